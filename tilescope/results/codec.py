"""Convert frozen dataclasses to JSON and back, with strict checks against their annotations.

A JsonField annotation marks each field that pydantic can't convert: experiments, spaces, and the arrays of an error
picture. Pydantic is imported at the first conversion, so workers, which only create results, never load it.
"""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

import numpy as np
from numpy import ndarray

from tilescope.declare.experiment import Experiment, Json
from tilescope.declare.experiment import from_json as read_experiment
from tilescope.declare.space import Space, read_tried, space_from_json

# Codes from 1 represent errors of 1e-4 and above, 24 per decade, so a decoded error is at most 10 % too high. Code 0
# means no error. The limit, 1, is 24 × 4 steps above code 1. The last code marks an element that is not finite.
# Cells are rounded up: an error over the limit stays over it, and a cell stays an upper bound of its elements' errors.
LEVELS = np.array([0.0, *(10 ** (step / 24 - 4) for step in range(254)), np.inf], dtype=np.float32)
LEVELS[1 + 24 * 4] = 1.0


@dataclass(frozen=True)
class JsonField:
    """An annotation that tells pydantic how to convert a field to JSON and back.

    Attributes:
        write: value → JSON.
        read: JSON → value. Raises ValueError for JSON that does not represent a value.
        json: the type of the JSON, which pydantic checks before `read`.
    """

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]
    json: Any = Any

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        write = core_schema.plain_serializer_function_ser_schema(self.write)
        return core_schema.no_info_after_validator_function(
            self.read, handler(self.json), serialization=write
        )


def _read_picture(rows: list[Any]) -> ndarray:
    if len({len(row) for row in rows}) != 1 or not len(rows[0]):
        raise ValueError("a picture's rows must have equal lengths and at least one value")
    return np.array(rows, dtype=np.float32)


def _encode_cells(cells: ndarray) -> list[str]:
    finite = np.where(np.isfinite(cells), np.minimum(cells, LEVELS[-2]), np.inf)
    codes = np.searchsorted(LEVELS, finite.astype(np.float32)).astype(np.uint8)
    return [base64.b64encode(row.tobytes()).decode() for row in codes]


def _decode_cells(rows: list[str]) -> ndarray:
    return _read_picture([LEVELS[list(base64.b64decode(row, validate=True))] for row in rows])


def _write_elements(values: ndarray) -> list[list[float | str]]:
    """Write each number with the fewest digits that round-trip to the same float32."""
    return [
        [float(str(value)) if np.isfinite(value) else str(value) for value in row] for row in values
    ]


# (rows, columns) float32. JSON can't represent numbers that are not finite.
Cells = Annotated[ndarray, JsonField(_encode_cells, _decode_cells, list[str])]
Elements = Annotated[
    ndarray,
    JsonField(_write_elements, _read_picture, list[list[float | Literal["nan", "inf", "-inf"]]]),
]

MeasuredExperiment = Annotated[Experiment, JsonField(Experiment.to_json, read_experiment)]
# A sweep also has rows for configs that the family rejects.
SweptExperiment = Annotated[Experiment, JsonField(Experiment.to_json, read_tried)]
SweptSpace = Annotated[Space, JsonField(Space.to_json, space_from_json)]


class UnreadableRecording(ValueError):
    """JSON that does not represent the expected value. The message names the place, the field and the reason."""


def parse_json(text: str, place: str) -> Json:
    """Parse text that must be a JSON object.

    Args:
        place: as for `from_json`.

    Raises:
        UnreadableRecording: the text is not a JSON object.
    """
    try:
        fields = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise UnreadableRecording(f"{place}: this is not JSON: {error}.") from error
    if not isinstance(fields, dict):
        raise UnreadableRecording(f"{place}: this is not a JSON object.")
    return fields


def parse_lines(text: str, origin: str) -> list[tuple[str, Json]]:
    """Parse JSON lines. Return each line's place, for error messages, and its JSON object."""
    lines = [
        (f"{origin}, line {number}", line)
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip()
    ]
    return [(place, parse_json(line, place)) for place, line in lines]


@cache
def _adapter(kind: Any, ignores_unknown: bool = False) -> Any:
    from pydantic import ConfigDict, TypeAdapter

    # Pydantic refuses a config for a dataclass, but passes a tuple's config on to its items.
    extra: Any = "ignore" if ignores_unknown else "forbid"
    return TypeAdapter(tuple[kind], config=ConfigDict(strict=True, extra=extra))


def to_json(value: Any, *, omit_defaults: bool = False) -> Any:
    """Return a dataclass as JSON-compatible values. NaN and infinity stay floats.

    Args:
        omit_defaults: leave out fields with default values, as recordings do.
    """
    # NumPy numbers are the only values that pydantic can't serialize.
    return _adapter(value.__class__).dump_python(
        (value,),
        mode="json",
        exclude_defaults=omit_defaults,
        fallback=lambda number: number.item(),
        warnings=False,
    )[0]


def from_json(kind: Any, payload: Any, place: str, *, ignores_unknown: bool = False) -> Any:
    """Return the value that `payload` represents. Omitted fields take their defaults.

    Args:
        kind: a dataclass, or a tuple or dict of them.
        payload: as `json.loads` returns it.
        place: the payload's origin for error messages, such as a file and a line.
        ignores_unknown: ignore unknown fields, which other versions may have written.

    Raises:
        UnreadableRecording: a field is unknown, missing or of the wrong type ("1" is not a number).
    """
    from pydantic import ValidationError

    try:
        return _adapter(kind, ignores_unknown).validate_json(json.dumps([payload]))[0]
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"][1:])
        reason = first.get("ctx", {}).get("error", first["msg"])
        raise UnreadableRecording(f"{place}: {field}: {str(reason).removesuffix('.')}.") from error
