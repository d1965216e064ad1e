"""Knobs: what a person can set, its default and its bounds. Standard library only.

Controls on the page, validation, endpoints and addresses are generated from them, so a bound or a default exists once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


class ConfigError(ValueError):
    """A bad argument: what was wrong, the value, and what is allowed, in one sentence.

    Attributes:
        kind: a word for programs, such as "out_of_range".
        field: the knob or field that caused it, or "" where it is no single one.
    """

    def __init__(self, kind: str, message: str, field: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.field = field

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, str, str]]:
        return ConfigError, (self.kind, str(self), self.field)


@dataclass(frozen=True)
class Knob:
    """One setting: its default and what it allows: `choices`, text up to `longest`, or numbers from `low` to `high`.

    `stops` says how a slider over a range steps: "powers" (of two; any value can still be typed) or "ones". `reach` is
    where the slider ends, if before `high`: what is beyond can still be typed. `only_with` names another knob and the
    values of it with which this one makes a difference: with others its control is hidden.
    Text is for a page's options: no kernel takes any.
    """

    default: int | str
    group: str
    help: str
    choices: tuple[int | str, ...] | None = None
    low: int = 0
    high: int = 0
    stops: str = "ones"
    reach: int | None = None
    only_with: tuple[str, tuple[int | str, ...]] | None = None
    longest: int | None = None

    def checked(self, name: str, value: object) -> int | str:
        """Return `value` as this knob's type, or raise ConfigError with what is allowed."""
        if self.longest is not None:
            return _text(name, value, self.longest)
        if self.choices is not None and isinstance(self.choices[0], str):
            if isinstance(value, str) and value in self.choices:
                return value
            raise ConfigError("not_a_choice", f"{name} is {quoted(value)}; allowed are {_listed(self.choices)}.", name)
        number = _whole(name, value)
        if self.choices is not None:
            if number not in self.choices:
                raise ConfigError("not_a_choice", f"{name} is {number}; allowed are {_listed(self.choices)}.", name)
        elif not self.low <= number <= self.high:
            raise ConfigError(
                "out_of_range", f"{name} is {number}; allowed are whole numbers from {self.low} to {self.high}.", name
            )
        return number


def quoted(value: object) -> str:
    """A value as a sentence about it holds it: what is long is cut.

    >>> quoted("abc"), len(quoted("a" * 5000))
    ("'abc'", 100)
    """
    text = repr(value)
    return text if len(text) <= _LONGEST_QUOTE else f"{text[: _LONGEST_QUOTE - 1]}…"


# Characters of a value that a sentence repeats.
_LONGEST_QUOTE = 100


def _listed(choices: Sequence[object]) -> str:
    words = [str(c) for c in choices]
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def _text(name: str, value: object, longest: int) -> str:
    if isinstance(value, str) and len(value) <= longest and (value.isprintable() or not value):
        return value
    raise ConfigError(
        "not_a_text", f"{name} is {quoted(value)}; allowed are up to {longest} printable characters.", name
    )


def _whole(name: str, value: object) -> int:
    """A whole number from JSON (4096, 4096.0) or from an address ("4096")."""
    number = value
    if isinstance(value, str):
        try:
            number = int(value)
        except ValueError:
            number = value
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if isinstance(number, bool) or not isinstance(number, int):
        raise ConfigError("not_a_number", f"{name} is {quoted(value)}; it must be a whole number.", name)
    if abs(number) >= 10**100:  # more digits than a sentence should hold
        raise ConfigError("out_of_range", f"{name} has more than 100 digits; allowed are smaller whole numbers.", name)
    return number


def knob(
    default: int | str,
    group: str,
    help: str,
    *,
    choices: Sequence[int | str] | None = None,
    low: int = 0,
    high: int = 0,
    stops: str = "ones",
    reach: int | None = None,
    only_with: tuple[str, tuple[int | str, ...]] | None = None,
    longest: int | None = None,
) -> Any:
    """Declare a dataclass field that a person can set. See Knob for what the arguments mean."""
    allowed = tuple(choices) if choices is not None else None
    declared = Knob(default, group, help, allowed, low, high, stops, reach, only_with, longest)
    declared.checked("default", default)
    return field(default=default, metadata={"knob": declared})


def powers(low: int, high: int) -> tuple[int, ...]:
    """The powers of two from `low` to `high`, both included.

    >>> powers(16, 128)
    (16, 32, 64, 128)
    """
    return tuple(1 << e for e in range(low.bit_length() - 1, high.bit_length()))


def knobs(declared: type) -> dict[str, Knob]:
    """The knobs of a dataclass, by field name, in the order of declaration."""
    return {f.name: f.metadata["knob"] for f in dataclasses.fields(declared) if "knob" in f.metadata}


def checked_fields(
    declared: type, values: Mapping[str, object], what: str, allowed: Mapping[str, Knob] | None = None
) -> Any:
    """Build a dataclass of knobs from `values`; what is left out takes its default.

    Args:
        allowed: the knobs by field name, where they are not those declared.

    Raises:
        ConfigError: for an unknown field, or a value that its knob does not allow.
    """
    allowed = knobs(declared) if allowed is None else allowed
    for name in values:
        if name not in allowed:
            raise ConfigError(
                "unknown_field", f"{what} has no field {quoted(name)}; it has {_listed(tuple(allowed))}.", str(name)
            )
    return declared(**{name: allowed[name].checked(name, value) for name, value in values.items()})


def num_warps() -> Any:
    return knob(4, "Launch", "Warps (of 32 lanes) that share one program.", choices=powers(1, 16))


def num_stages() -> Any:
    return knob(3, "Launch", "Loop iterations whose loads are in flight at once.", low=1, high=8)
