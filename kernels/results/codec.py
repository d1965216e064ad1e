"""The one codec: frozen dataclasses to JSON and back, checked strictly against their annotations.

Fields that pydantic can't convert alone are annotated with a JsonField: experiments, spaces, and the arrays of an error
picture. Pydantic itself is imported at the first conversion: workers make results, and need none.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from kernels import discover
from kernels.experiment import Experiment
from kernels.experiment import from_json as read_experiment
from kernels.space import Space, space_from_json

if TYPE_CHECKING:
    from pydantic import TypeAdapter

# Codes 1 … 253 stand for errors from 1e-4 up, 24 per decade, so at most 10 % too high; 0 is no error. The limit, 1, is
# 24 × 4 steps above the first. The last code is an element that is not finite.
# A cell is rounded up: an error over the limit stays over it, and a cell stays an upper bound of its elements.
LEVELS = np.array([0.0, *(10 ** (step / 24 - 4) for step in range(254)), np.inf], dtype=np.float32)
LEVELS[1 + 24 * 4] = 1.0

# JSON has no such numbers.
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True)
class JsonField:
    """How a field is converted to JSON and back; an annotation that pydantic reads.

    Attributes:
        write: value → JSON.
        read: JSON → value. Raises ValueError for JSON that holds no such value.
    """

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        write = core_schema.plain_serializer_function_ser_schema(self.write)
        return core_schema.no_info_plain_validator_function(self.read, serialization=write)


def _read_rows(rows: Any, read_row: Callable[[Any], list[float]]) -> np.ndarray:
    if not isinstance(rows, list):
        raise ValueError("a picture is a list of rows")
    values = [read_row(row) for row in rows]
    if not values or not values[0] or len({len(row) for row in values}) != 1:
        raise ValueError("a picture's rows have one length, and there is at least one value")
    return np.array(values, dtype=np.float32)


def _encode_cells(cells: np.ndarray) -> list[str]:
    finite = np.where(np.isfinite(cells), np.minimum(cells, LEVELS[-2]), np.inf)
    codes = np.searchsorted(LEVELS, finite.astype(np.float32)).astype(np.uint8)
    return [base64.b64encode(row.tobytes()).decode() for row in codes]


def _decode_cells(row: Any) -> list[float]:
    if not isinstance(row, str):
        raise ValueError("a row of cells is base64 text")
    try:
        return [float(LEVELS[code]) for code in base64.b64decode(row, validate=True)]
    except binascii.Error as error:
        raise ValueError(f"a row of cells is base64 text: {error}") from error


def _write_elements(values: np.ndarray) -> list[list[float | str]]:
    """Write numbers in the fewest digits that give the same float32."""
    return [[float(str(value)) if np.isfinite(value) else str(value) for value in row] for row in values]


def _read_elements(row: Any) -> list[float]:
    if not isinstance(row, list):
        raise ValueError("a row of elements is a list of numbers")
    return [_read_number(value) for value in row]


def _read_number(value: Any) -> float:
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"an element is a number or one of {', '.join(_NOT_FINITE)}; this is {value!r}")
    return float(value)


# (rows, columns) float32.
Cells = Annotated[np.ndarray, JsonField(_encode_cells, lambda rows: _read_rows(rows, _decode_cells))]
Elements = Annotated[np.ndarray, JsonField(_write_elements, lambda rows: _read_rows(rows, _read_elements))]

MeasuredExperiment = Annotated[
    Experiment, JsonField(Experiment.to_json, lambda payload: read_experiment(payload, discover()))
]
# A sweep also has rows of configs that the family refuses.
SweptExperiment = Annotated[
    Experiment, JsonField(Experiment.to_json, lambda payload: read_experiment(payload, discover(), together=False))
]
SweptSpace = Annotated[Space, JsonField(Space.to_json, lambda payload: space_from_json(payload, discover()))]


class UnreadableRecording(ValueError):
    """JSON that does not hold the expected value: where it stands, which field is wrong, and why."""


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import ConfigDict, TypeAdapter

    # Pydantic refuses a config for a dataclass, but passes a tuple's config on to its items.
    return TypeAdapter(tuple[kind], config=ConfigDict(strict=True, extra="forbid"))


def to_json(value: Any, *, omit_defaults: bool = False) -> Any:
    """Return a dataclass as plain JSON. NaN and infinity stay floats.

    Args:
        omit_defaults: leave out fields that have their default, as recordings do.
    """
    # NumPy numbers are the only values that pydantic does not know.
    (plain,) = _adapter(value.__class__).dump_python(
        (value,), mode="json", exclude_defaults=omit_defaults, fallback=lambda number: number.item(), warnings=False
    )
    return plain


def from_json(kind: Any, payload: Any, place: str) -> Any:
    """Return the value that `payload` holds. Omitted fields take their defaults.

    Args:
        kind: a dataclass, or a tuple or dict of them.
        payload: as `json.loads` returns it.
        place: where the payload stands, such as a file and a line, for the error.

    Raises:
        UnreadableRecording: for an unknown or missing field, or a value of another type: "1" is not a number.
    """
    from pydantic import ValidationError

    try:
        (value,) = _adapter(kind).validate_json(json.dumps([payload]))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"][1:])
        reason = first.get("ctx", {}).get("error", first["msg"])
        raise UnreadableRecording(f"{place}: {field}: {str(reason).removesuffix('.')}.") from error
    return value
