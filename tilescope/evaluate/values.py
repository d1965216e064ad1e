"""Values of all programs of a launch at once: a number per program, plus terms from tables with few distinct rows.

`pointer + pid * 128 * pitch + row * pitch + column` stays one number per program and two small tables, for any number
of programs. A boolean value is the conjunction of its number and its terms.
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy import ndarray

from tilescope.captures.listings import UnsupportedOperation

# SplitMix64's constants
_MIX = np.array([0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0x9E3779B97F4A7C15], dtype=np.uint64)

# A sum with more terms than this is collapsed into a single term.
_MOST_TERMS = 4
# Maximum number of elements of a table.
_MOST_ELEMENTS = 1 << 25


class BlockTerm:
    """A block per program: row `index[program]` of `table`.

    Attributes:
        table: (rows, *block).
        index: (programs,) int64; None if all programs have the only row.
    """

    def __init__(self, table: ndarray, index: ndarray | None) -> None:
        self.table = table
        self.index = index

    @cached_property
    def spans(self) -> tuple[ndarray, ndarray]:
        """The smallest and the largest element of each row."""
        return self._flat.min(axis=1), self._flat.max(axis=1)

    @cached_property
    def first(self) -> ndarray:
        """The first element of each row; 0 for booleans, which are not sums."""
        flat = self._flat
        return np.zeros(len(flat), np.int64) if flat.dtype == bool else flat[:, 0]

    @property
    def _flat(self) -> ndarray:
        return self.table.reshape(len(self.table), -1)

    @cached_property
    def fingerprints(self) -> ndarray:
        """A 64-bit hash of each row relative to its first element. Equal rows have equal hashes, in any table."""
        flat = self._flat
        bits = (flat if flat.dtype == bool else flat - flat[:, :1]).astype(np.int64).view(np.uint64)
        bits = bits + np.arange(1, flat.shape[1] + 1, dtype=np.uint64) * _MIX[2]
        for shift, factor in ((30, _MIX[0]), (27, _MIX[1])):
            bits = (bits ^ (bits >> np.uint64(shift))) * factor
        shape = hash(self.table.shape[1:]) & 0xFFFFFFFF  # of integers: the same in every process
        return (bits.sum(axis=1, dtype=np.uint64) ^ np.uint64(shape)).view(np.int64)

    def rows(self, programs: ndarray) -> ndarray:
        """Return the blocks of the given programs: (programs or 1, *block)."""
        return self.table[:1] if self.index is None else self.table[self.index[programs]]

    def per_program(self, per_row: ndarray) -> ndarray:
        return per_row[:1] if self.index is None else per_row[self.index]

    def select(self, programs: ndarray) -> "BlockTerm":
        result = copy.copy(self)  # with what is cached
        result.index = None if self.index is None else self.index[programs]
        return result


class Value:
    """A scalar or block per program: the sum of `base` and the terms; for booleans, their conjunction.

    Attributes:
        base: (programs,), or (1,) if all programs have the same number.
        terms: their blocks have the same number of dimensions.
        unwrapped: the mathematical result, if it did not fit in the type of the operation that made the value.
    """

    unwrapped: "Value | None" = None

    def __init__(self, base: Any, terms: Sequence[BlockTerm] = ()) -> None:
        self.base = np.atleast_1d(base)
        self.terms = tuple(terms)

    @property
    def is_boolean(self) -> bool:
        return self.base.dtype == bool

    @property
    def known(self) -> "Value":
        return self

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The block along whose dimensions its elements may differ; None if that is unknown."""
        return np.broadcast_shapes(*(term.table.shape[1:] for term in self.terms))

    @property
    def first(self) -> ndarray:
        """The first element of each program's block: (programs,), or (1,) if all have the same."""
        return sum((term.per_program(term.first) for term in self.terms), self.base)

    def select(self, programs: ndarray) -> "Value":
        """Return the value of the given programs."""
        return Value(pick(self.base, programs), [term.select(programs) for term in self.terms])

    def blocks(self, programs: ndarray) -> ndarray:
        """Return the blocks of the given programs: (programs or 1, *block)."""
        rank = self.terms[0].table.ndim - 1 if self.terms else 0
        return self._combine(programs, rank, lambda rows: rows)

    def _combine(
        self, programs: ndarray, rank: int, pick_elements: Callable[[ndarray], ndarray]
    ) -> ndarray:
        total = pick(self.base, programs).reshape(-1, *[1] * rank)
        for term in self.terms:
            part = pick_elements(term.rows(programs))
            total = total & part if self.is_boolean else total + part
        return total

    def full_blocks(self, programs: ndarray, shape: Sequence[int]) -> ndarray:
        """Return all elements of the blocks of the given programs: (programs, *shape)."""
        blocks = self.with_rank(len(shape)).blocks(programs)
        return np.broadcast_to(blocks, (len(programs), *shape))

    def at(self, programs: ndarray, place: ndarray) -> ndarray:
        """Return elements of the blocks of the given programs: (programs or 1, ...).

        Args:
            place: (dimensions, ...) int64, their coordinates.
        """

        def pick_elements(rows: ndarray) -> ndarray:
            axes = zip(place, rows.shape[1:], strict=True)
            return rows[(slice(None), *(axis if size > 1 else axis * 0 for axis, size in axes))]

        return self._combine(programs, place.ndim - 1, pick_elements)

    @property
    def lower_bound(self) -> int:
        """A lower bound of all elements of all programs."""
        return int(self.base.min()) + sum(int(term.spans[0].min()) for term in self.terms)

    def bounds_by_program(self) -> tuple[ndarray, ndarray]:
        """Return a lower and an upper bound of each program's elements: (programs,), or (1,) if all have the same."""
        low, high = self.base, self.base
        for term in self.terms:
            least, greatest = map(term.per_program, term.spans)
            low, high = low + least, high + greatest
        return low, high

    def merge_terms(self) -> "Value":
        """Return the same sum with a single term."""
        terms = apply(lambda x: x, Value(np.zeros(1, self.base.dtype), self.terms)).terms
        return Value(self.base, terms)

    def map_blocks(self, change: Callable[[ndarray], ndarray]) -> "Value":
        """Change the shape of the blocks. `change` takes and returns tables."""
        return Value(self.base, [BlockTerm(change(term.table), term.index) for term in self.terms])

    def with_rank(self, rank: int) -> "Value":
        """Return a block of `rank` dimensions of length 1 if the value is a scalar."""
        if self.terms:
            return self
        index = np.arange(len(self.base)) if len(self.base) > 1 else None
        return from_table(self.base.reshape(-1, *[1] * rank), index)


@dataclass(eq=False)
class Unknown(Value):
    """The sum of a known value and unknown integers, or a boolean that may be false where the known one is true.

    Other uses raise the reason.

    Attributes:
        why: a sentence that says why it is unknown.
        shape: the block along whose dimensions the integers may differ; None if that is unknown.
        multiple: the integers are multiples of it.
        known: the known value.
    """

    why: str
    shape: tuple[int, ...] | None = None
    multiple: int = 1
    known: Value = Value(0)

    def __getattr__(self, name: str) -> Any:
        raise UnsupportedOperation(self.why)

    def __iter__(self) -> Iterator[Any]:
        raise UnsupportedOperation(self.why)

    @property
    def is_boolean(self) -> bool:
        return self.known.is_boolean

    def select(self, programs: ndarray) -> Value:
        return join(self.known.select(programs), self)

    def map_blocks(self, change: Callable[[ndarray], ndarray]) -> Value:
        shape = self.shape and change(np.empty((1, *self.shape))).shape[1:]
        return Unknown(self.why, shape, self.multiple, self.known.map_blocks(change))


def possible(condition: Value) -> Value:
    """Return where a condition may be true."""
    return condition.known if condition.is_boolean else Value(True)


def common_shape(*values: Value) -> tuple[int, ...] | None:
    """Return the block along whose dimensions a function of values may vary; None if that is unknown."""
    return _common([part.shape for value in values for part in (value, value.known)])


def _common(shapes: list[tuple[int, ...] | None]) -> tuple[int, ...] | None:
    return None if None in shapes else np.broadcast_shapes(*filter(None, shapes))


def join(result: Value, *operands: Value) -> Value:
    """Return the result for the known parts of operands with their unknown parts, which are added or chosen."""
    unknown = [each for each in operands if isinstance(each, Unknown)]
    if not unknown:
        return result
    shape = _common([each.shape for each in unknown])
    return Unknown(unknown[0].why, shape, math.gcd(*(each.multiple for each in unknown)), result)


def pick(numbers: ndarray, programs: ndarray) -> ndarray:
    """Return the numbers of the given programs; (1,) if all programs share one."""
    return numbers if len(numbers) == 1 else numbers[programs]


def group(keys: Sequence[ndarray | None]) -> tuple[ndarray, ndarray | None]:
    """Group the programs that agree in all keys.

    Returns:
        One program of each group, and the group of each program; None if there is only one group.
    """
    code = np.zeros(1, np.int64)
    count = 1
    for key in {id(key): key for key in keys if key is not None and len(key) > 1}.values():
        numbers, size = _number(key.view(f"i{key.itemsize}") if key.dtype.kind == "f" else key)
        if count * size > 1 << 62:
            code, count = _number(code)
        code, count = (code * size + numbers, count * size) if size > 1 else (code, count)
    if count == 1:
        return np.zeros(1, np.int64), None
    code, count = _number(code)
    first, number = np.full((2, count), -1)
    first[code[::-1]] = np.arange(len(code) - 1, -1, -1)
    present = np.flatnonzero(first >= 0)
    number[present] = np.arange(len(present))
    return first[present], number[code]


def group_equal(keys: Sequence[ndarray], times: ndarray | None = None) -> tuple[ndarray, ndarray]:
    """Return one member of each group that agrees in all keys, and how often the group occurs.

    Args:
        times: how often each member occurs; once by default.
    """
    first, index = group(keys)
    numbers = np.zeros(len(keys[0]), np.int64) if index is None else index
    return first, np.bincount(numbers, times).astype(np.int64)


def _number(key: ndarray) -> tuple[ndarray, int]:
    """Return a small number for each distinct element, in ascending order, and a bound of the numbers."""
    low, high = int(key.min()), int(key.max())
    if high - low < max(4 * len(key), 1024):
        return key.astype(np.int64) - low, high - low + 1
    values, numbers = np.unique(key, return_inverse=True)
    return numbers.ravel(), len(values)


def check_size(*shape: int) -> None:
    if math.prod(shape) > _MOST_ELEMENTS:
        what = f"{math.prod(shape):,} elements; the limit is {_MOST_ELEMENTS:,}"
        raise UnsupportedOperation(
            f"Too many distinct addresses or values: {what}. Launch fewer programs."
        )


def keys_of(*values: Value) -> list[ndarray | None]:
    return [key for value in values for key in (value.base, *(term.index for term in value.terms))]


def from_table(table: ndarray, index: ndarray | None = None) -> Value:
    """Return the value whose blocks are the rows of a table: see `BlockTerm`."""
    if table.ndim == 1:
        return Value(table if index is None else table[index])
    return Value(
        np.ones(1, bool) if table.dtype == bool else np.zeros(1, table.dtype),
        [BlockTerm(table, index)],
    )


def apply(function: Callable[..., Any], *values: Value) -> Value:
    """Apply an elementwise function once per group of programs with equal operands."""
    if not any(value.terms for value in values):
        return Value(function(*(value.base for value in values)))
    first, index = group(keys_of(*values))
    rank = next(value.terms[0].table.ndim for value in values if value.terms) - 1
    shape = np.broadcast_shapes(*(term.table.shape[1:] for value in values for term in value.terms))
    check_size(len(first), *shape)
    return from_table(
        np.asarray(function(*(value.with_rank(rank).blocks(first) for value in values))), index
    )


def add(a: Value, b: Value, sign: int = 1) -> Value:
    """Return a + b, or a − b if `sign` is −1. Terms with a common index are merged."""
    terms = list(a.known.terms)
    for term in b.known.terms:
        term = term if sign == 1 else BlockTerm(-term.table, term.index)
        for i, other in enumerate(terms):
            if other.index is term.index and other.table.shape[1:] == term.table.shape[1:]:
                terms[i] = BlockTerm(other.table + term.table, term.index)
                break
        else:
            terms.append(term)
    total = Value(a.known.base + sign * b.known.base, terms)
    return join(total.merge_terms() if len(terms) > _MOST_TERMS else total, a, b)


def multiply(a: Value, b: Value) -> Value:
    if isinstance(b, Unknown) or b.terms:
        a, b = b, a
    if b.terms:
        return apply(np.multiply, a, b)
    if isinstance(a, Unknown):
        multiple = a.multiple * int(np.gcd.reduce(b.base))
        return Unknown(a.why, a.shape, multiple, multiply(a.known, b))
    if len(b.base) == 1:
        return Value(
            a.base * b.base, [BlockTerm(term.table * b.base[0], term.index) for term in a.terms]
        )
    zero = np.zeros(1, np.int64)
    return Value(
        a.base * b.base, [apply(np.multiply, Value(zero, [term]), b).terms[0] for term in a.terms]
    )


def conjunction(a: Value, b: Value) -> Value:
    own = a.known.terms
    others = (term for term in b.known.terms if not any(term is each for each in own))
    return join(Value(a.known.base & b.known.base, [*own, *others]), a, b)


def compare(predicate: Callable[..., Any], a: Value, b: Value) -> Value:
    """Apply a comparison. Differences between numbers per program are clipped to what the blocks can compensate.

    Without the clipping, each program would need its own mask. With it, programs away from an edge share one.
    """
    if a.base.dtype.kind == "f" or b.base.dtype.kind == "f" or not (a.terms or b.terms):
        return apply(predicate, a, b)
    difference = add(a, b, -1)
    zero = Value(np.zeros(1, np.int64))
    (term,) = difference.merge_terms().terms
    least, greatest = map(term.per_program, term.spans)
    return apply(predicate, Value(np.clip(difference.base, -greatest - 1, 1 - least), [term]), zero)


def choose(condition: ndarray | Unknown, a: Value, b: Value) -> Value:
    """Return a where the program's condition is true, otherwise b.

    Args:
        condition: (programs,) bool.
    """
    if a is b:
        return a
    if isinstance(condition, Unknown):
        is_boolean = isinstance(a, Value) and a.is_boolean
        return Unknown(condition.why, known=Value(True if is_boolean else 0))
    if condition.all():
        return a
    if isinstance(a, Unknown) or isinstance(b, Unknown):
        return join(choose(condition, a.known, b.known), a, b)
    if a.is_boolean or [x.table.shape[1:] for x in a.terms] != [y.table.shape[1:] for y in b.terms]:
        return apply(np.where, Value(condition), a, b)
    result = []
    for x, y in zip(a.terms, b.terms, strict=True):
        if x is not y:
            in_a, in_b = (
                np.zeros(len(condition), np.int64) if t.index is None else t.index for t in (x, y)
            )
            index = np.where(condition, in_a, in_b + len(x.table))
            table = np.concatenate([x.table, y.table])
            if len(table) > len(index):  # each iteration of a loop may choose again
                used, index = np.unique(index, return_inverse=True)
                table = table[used]
            x = BlockTerm(table, index)
        result.append(x)
    return Value(np.where(condition, a.base, b.base), result)
