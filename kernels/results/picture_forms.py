"""How the arrays of an error picture are written in a recording, and read back into the same values.

Cells of a map become codes of one byte: an error is rounded up, so that one beyond the limit stays beyond it and a cell
stays an upper bound of its elements. Single elements keep every digit.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

# Codes 1 … 253 stand for errors from 1e-4 up, 24 per decade, so at most 10 % too high; 0 is none. 24 × 4 steps above
# the first is the limit itself, 1. The last code is an element that is not finite.
LEVELS = np.array([0.0, *(10 ** (step / 24 - 4) for step in range(254)), np.inf], dtype=np.float32)
LEVELS[1 + 24 * 4] = 1.0

# JSON has no such numbers, so they are written as words.
_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True)
class ArrayForm:
    """How one array is written. As an annotation of a dataclass's field it makes pydantic read the array back.

    Attributes:
        written: (rows, columns) array → its rows as JSON.
        row: one such row → its values. Raises ValueError where it is none.
    """

    written: Callable[[np.ndarray], list[Any]]
    row: Callable[[Any], list[float]]

    def read(self, rows: Any) -> np.ndarray:
        """The array.

        Raises:
            ValueError: where it is no list of rows of one length.
        """
        if not isinstance(rows, list):
            raise ValueError("a picture is a list of rows")
        values = [self.row(row) for row in rows]
        if not values or not values[0] or len({len(row) for row in values}) != 1:
            raise ValueError("a picture's rows have one length, and there is at least one value")
        return np.array(values, dtype=np.float32)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Pydantic's hook. Whoever only makes results need not load it."""
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(self.read)


def _coded(cells: np.ndarray) -> list[str]:
    """Each row as base64 of one byte per cell."""
    finite = np.where(np.isfinite(cells), np.minimum(cells, LEVELS[-2]), np.inf)
    codes = np.searchsorted(LEVELS, finite.astype(np.float32)).astype(np.uint8)
    return [base64.b64encode(row.tobytes()).decode() for row in codes]


def _decoded(row: Any) -> list[float]:
    if not isinstance(row, str):
        raise ValueError("a row of cells is base64 text")
    try:
        codes = base64.b64decode(row, validate=True)
    except binascii.Error as error:
        raise ValueError(f"a row of cells is base64 text: {error}") from error
    return [float(LEVELS[code]) for code in codes]


def _exact(values: np.ndarray) -> list[list[float | str]]:
    """Each row as numbers, in the fewest digits that give the same float32."""
    return [[float(str(value)) if np.isfinite(value) else str(value) for value in row] for row in values]


def _numbers(row: Any) -> list[float]:
    if not isinstance(row, list):
        raise ValueError("a row of elements is a list of numbers")
    return [_number(value) for value in row]


def _number(value: Any) -> float:
    if isinstance(value, str) and value in _WORDS:
        return _WORDS[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"an element is a number or one of {', '.join(_WORDS)}; this is {value!r}")
    return float(value)


CELLS = ArrayForm(_coded, _decoded)
ELEMENTS = ArrayForm(_exact, _numbers)


def pooled(cells: np.ndarray, factor: tuple[int, int]) -> np.ndarray:
    """The largest of each `factor` cells; the last of a row or column may hold fewer."""
    rows, columns = cells.shape
    tall = np.maximum.reduceat(cells, np.arange(0, rows, factor[0]), axis=0)
    return np.maximum.reduceat(tall, np.arange(0, columns, factor[1]), axis=1)
