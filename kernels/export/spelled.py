"""Integers that remember how they are written, so that `-(-M // BLOCK_M)` reaches a script as that, and not as 8."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Self


class SpelledInt(int):
    """An integer and its expression.

    Attributes:
        spelling: the expression.
        sign: of its outermost operation; "" for a name.
        unspelled: filled with what was asked of any of them that no expression can say, a comparison for one: then
            what follows from the answers holds for these values alone.
    """

    spelling: str
    sign: str
    unspelled: list[str]

    def __new__(cls, value: int, spelling: str, unspelled: list[str], sign: str = "") -> Self:
        made = super().__new__(cls, value)
        made.spelling, made.sign, made.unspelled = spelling, sign, unspelled
        return made

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __neg__(self) -> SpelledInt:
        return SpelledInt(
            int.__neg__(self), f"-({self.spelling})" if self.sign else f"-{self.spelling}", self.unspelled
        )

    def __hash__(self) -> int:
        return int.__hash__(self)


def spelling(value: int, after: str = "", is_left: bool = True) -> str:
    """How an integer is written, as an operand of the operation `after`."""
    if not isinstance(value, SpelledInt):
        return str(value)
    plain = not value.sign or not after or (is_left and value.sign == after and after in "+*")
    return value.spelling if plain else f"({value.spelling})"


def _arithmetic(sign: str, compute: Callable[[int, int], int], neutral: int | None, name: str) -> None:
    """Let the operation `sign` be spelled, from both sides; `neutral` leaves what it is joined with as it is."""

    def joined(left: int, right: int) -> SpelledInt:
        unspelled = (left if isinstance(left, SpelledInt) else right).unspelled  # type: ignore[attr-defined]
        text = f"{spelling(left, sign)} {sign} {spelling(right, sign, is_left=False)}"
        return SpelledInt(compute(int.__index__(left), int.__index__(right)), text, unspelled, sign)

    def forward(self: SpelledInt, other: int) -> SpelledInt:
        return self if type(other) is int and other == neutral else joined(self, other)

    def reflected(self: SpelledInt, other: int) -> SpelledInt:
        return self if type(other) is int and other == neutral and sign in "+*" else joined(other, self)

    setattr(SpelledInt, f"__{name}__", forward)
    setattr(SpelledInt, f"__r{name}__", reflected)


def _noted(name: str) -> None:
    """Let an operation that is not spelled be noted."""
    plain = getattr(int, f"__{name}__")

    def operation(self: SpelledInt, *others: Any) -> Any:
        self.unspelled.append(name)
        return plain(self, *others)

    setattr(SpelledInt, f"__{name}__", operation)


_arithmetic("+", operator.add, 0, "add")
_arithmetic("-", operator.sub, 0, "sub")
_arithmetic("*", operator.mul, 1, "mul")
_arithmetic("//", operator.floordiv, 1, "floordiv")
for _name in ("lt", "le", "gt", "ge", "eq", "ne", "bool", "int", "index", "float"):
    _noted(_name)
for _name in ("truediv", "mod", "divmod", "pow", "and", "or", "xor", "lshift", "rshift"):
    _noted(_name)
    _noted(f"r{_name}")
