"""Knobs: the settings of problems, configs, runs and the page's options. Standard library only.

Each setting is declared once, as a dataclass field with a Knob. Its control on the page, its validation, its JSON
Schema and its URL parameter all follow from that declaration.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any

from tilescope.caching import once

# The group of the launch options. The page folds it.
LAUNCH = "Launch"

# Maximum number of characters of a value that an error message quotes.
_LONGEST_QUOTE = 100


class ConfigError(ValueError):
    """A bad argument. The message names the argument, the given value and the allowed values.

    Attributes:
        kind: a machine-readable word, such as "out_of_range".
        field: the knob or field that caused the error, or "" if no single field did.
    """

    def __init__(self, kind: str, message: str, field: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.field = field

    def __reduce__(self) -> tuple[type["ConfigError"], tuple[str, str, str]]:
        return ConfigError, (self.kind, str(self), self.field)


@dataclass(frozen=True)
class Knob:
    """One setting: its default and the values it allows.

    Attributes:
        group: the heading of its control; "" for a setting without a control.
        choices: the allowed values; None for a range or a text.
        low, high: the smallest and largest allowed whole number, if there are no choices.
        stops: the slider's steps: "powers" (powers of two; users can still type any value) or "ones".
        cap: two other knobs. Their quotient, rounded up, is the end of a slider in powers of two.
        only_with: another knob, and its values for which this knob matters. Other values hide this knob's control.
        longest: the maximum length of a text. Only page options are texts.
        kind: the error kind for a value that is not among the choices.
        label: the name of its control, if that is not the field's name. JSON and URLs use the field's name.
    """

    default: int | str
    group: str
    help: str
    choices: tuple[int | str, ...] | None = None
    low: int = 0
    high: int = 0
    stops: str = "ones"
    cap: tuple[str, str] | None = None
    only_with: tuple[str, tuple[int | str, ...]] | None = None
    longest: int | None = None
    kind: str = "not_a_choice"
    label: str = ""

    def validate(self, name: str, value: Any) -> int | str:
        """Check `value` and convert it to this knob's type.

        Raises:
            ConfigError: the knob does not allow the value.
        """
        read = _read_whole_number(value) if isinstance(self.default, int) else value
        if self.longest is not None:
            kind = "not_a_text"
            allowed = f"at most {self.longest} printable characters"
            fits = isinstance(read, str) and len(read) <= self.longest and read.isprintable()
        elif self.choices is not None:
            kind = self.kind
            allowed = join_names(self.choices, "or")
            fits = read in self.choices
        else:
            kind = "out_of_range"
            allowed = f"a whole number from {self.low} to {self.high}"
            fits = read is not None and self.low <= read <= self.high
        if fits and read is not None:
            return read
        if read is None and isinstance(self.default, int):
            kind = "not_a_number"
        subject = name if self.label.lower() in ("", name) else f"{self.label} ({name})"
        raise ConfigError(
            kind,
            f"{subject} must be {allowed} (got {quote(value if read is None else read)}).",
            name,
        )


def quote(value: object) -> str:
    """Return a value's repr for an error message, truncated if it is long.

    >>> quote("abc"), len(quote("a" * 5000))
    ("'abc'", 100)
    """
    text = repr(value)
    return text if len(text) <= _LONGEST_QUOTE else f"{text[: _LONGEST_QUOTE - 1]}…"


def join_names(names: Iterable[object], conjunction: str = "and") -> str:
    """Join names with commas and a conjunction. Skip empty names.

    >>> join_names(["A", "B", "C"]), join_names(["A", 2], "or"), join_names(["A"])
    ('A, B and C', 'A or 2', 'A')
    """
    *first, last = [str(name) for name in names if name != ""]
    return f"{', '.join(first)} {conjunction} {last}" if first else last


def _read_whole_number(value: object) -> int | None:
    """Read a whole number from JSON (4096, 4096.0) or from a URL ("4096"); return None for any other value."""
    if isinstance(value, str):
        with suppress(ValueError):
            return int(value)
    elif isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def knob(default: int | str, group: str, help: str, **allowed: Any) -> Any:
    """Declare a dataclass field as a knob. See Knob for the arguments."""
    declared = Knob(default, group, help, **allowed)
    declared.validate("default", default)
    return field(default=default, metadata={"knob": declared})


def powers(low: int, high: int) -> tuple[int, ...]:
    """Return the powers of two from `low` to `high`, both included.

    >>> powers(16, 128)
    (16, 32, 64, 128)
    """
    return tuple(1 << e for e in range(low.bit_length() - 1, high.bit_length()))


@once
def knobs(declared: type) -> Mapping[str, Knob]:
    """Return a dataclass's knobs by field name, in declaration order."""
    return {f.name: f.metadata["knob"] for f in fields(declared) if "knob" in f.metadata}


def refuse_unknown(names: Iterable[object], owner: str, known: Iterable[str]) -> None:
    """Raise ConfigError for the first name that is not a field of `owner`."""
    for name in names:
        if name not in (fields := tuple(known)):
            message = f"{owner} has no field {quote(name)}; it has {join_names(fields)}."
            raise ConfigError("unknown_field", message, str(name))


def read_fields(
    declared: type,
    values: Mapping[str, object],
    owner: str,
    allowed: Mapping[str, Knob] | None = None,
) -> Any:
    """Build a dataclass of knobs from `values`. Omitted fields take their defaults.

    Args:
        owner: the name of the object with these fields, for error messages.
        allowed: knobs by field name that replace the declared knobs.

    Raises:
        ConfigError: a field is unknown, or its knob does not allow the value.
    """
    allowed = knobs(declared) if allowed is None else allowed
    refuse_unknown(values, owner, allowed)
    return declared(**{name: allowed[name].validate(name, value) for name, value in values.items()})


def problem_size(default: int, help: str) -> Any:
    """Declare one size of a problem."""
    return knob(default, "Shape", help, low=1, high=16384, stops="powers")


def num_warps() -> Any:
    return knob(4, LAUNCH, "Warps per program, of 32 lanes each.", choices=powers(1, 16))


def num_stages() -> Any:
    return knob(
        3,
        LAUNCH,
        "Pipeline depth: loop iterations whose loads are in flight at once.",
        low=1,
        high=8,
    )
