"""What a kernel declares: knobs, accesses, and the Kernel that joins them. Standard library only.

Controls on the page, validation, endpoints and addresses are generated from what is declared here,
so a bound or a default exists once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

DTYPE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}


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


@dataclass(frozen=True)
class Knob:
    """One setting: its default and what it allows, either `choices` or whole numbers from `low` to `high`.

    `stops` says how a slider over a range steps: "powers" (of two; any value can still be typed) or "ones".
    """

    default: int | str
    group: str
    help: str
    choices: tuple[int | str, ...] | None = None
    low: int = 0
    high: int = 0
    stops: str = "ones"

    def checked(self, name: str, value: object) -> int | str:
        """Return `value` as this knob's type, or raise ConfigError with what is allowed."""
        if self.choices is not None and isinstance(self.choices[0], str):
            if isinstance(value, str) and value in self.choices:
                return value
            raise ConfigError("not_a_choice", f"{name} is {value!r}; allowed are {_listed(self.choices)}.", name)
        number = _whole(name, value)
        if self.choices is not None:
            if number not in self.choices:
                raise ConfigError("not_a_choice", f"{name} is {number}; allowed are {_listed(self.choices)}.", name)
        elif not self.low <= number <= self.high:
            raise ConfigError(
                "out_of_range", f"{name} is {number}; allowed are whole numbers from {self.low} to {self.high}.", name
            )
        return number


def _listed(choices: Sequence[object]) -> str:
    words = [str(c) for c in choices]
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


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
        raise ConfigError("not_a_number", f"{name} is {value!r}; it must be a whole number.", name)
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
) -> Any:
    """Declare a dataclass field that a person can set. See Knob for what the arguments mean."""
    declared = Knob(default, group, help, tuple(choices) if choices is not None else None, low, high, stops)
    declared.checked("default", default)
    return field(default=default, metadata={"knob": declared})


def powers(low: int, high: int) -> tuple[int, ...]:
    """The powers of two from `low` to `high`, both included."""
    return tuple(1 << e for e in range(low.bit_length() - 1, high.bit_length()))


def knobs(declared: type) -> dict[str, Knob]:
    """The knobs of a dataclass, by field name, in the order of declaration."""
    return {f.name: f.metadata["knob"] for f in dataclasses.fields(declared) if "knob" in f.metadata}


def checked_fields(declared: type, values: Mapping[str, object], what: str) -> Any:
    """Build a dataclass of knobs from `values`; what is left out takes its default.

    Raises:
        ConfigError: for an unknown field, or a value that its knob does not allow.
    """
    allowed = knobs(declared)
    for name in values:
        if name not in allowed:
            raise ConfigError("unknown_field", f"{what} has no field {name!r}; it has {_listed(tuple(allowed))}.", name)
    return declared(**{name: allowed[name].checked(name, value) for name, value in values.items()})


def num_warps() -> Any:
    return knob(4, "Launch", "Warps (of 32 lanes) that share one program.", choices=powers(1, 16))


def num_stages() -> Any:
    return knob(3, "Launch", "Loop iterations whose loads are in flight at once.", low=1, high=8)


@dataclass(frozen=True)
class TensorSpec:
    """A tensor that a kernel takes: (rows, columns), row-major and contiguous, and whether it is an input."""

    shape: tuple[int, int]
    is_input: bool


@dataclass(frozen=True)
class Tiles:
    """Which program computes which tiles: four int64 arrays of one entry a tile, in launch order.

    A program that computes several tiles has several consecutive entries.
    """

    program: np.ndarray
    pid_m: np.ndarray
    pid_n: np.ndarray
    pid_k: np.ndarray


@dataclass(frozen=True)
class Axis:
    """One axis of an access: `block` elements that begin at `start(index, block)` for each loop `index`."""

    index: str
    block: int
    start: Callable[[Any, int], Any]


@dataclass(frozen=True)
class Access:
    """One memory operation of a kernel: a block of `rows` × `columns` of a tensor, masked at its edges.

    Attributes:
        op: "load" or "store".
        tensor: name in the family's tensors.
        rows, columns: where the block lies in that tensor's own coordinates.
        over: the loop indices ("m", "n", "k") that the operation is executed for.
        turned: the block is the transpose of the tile that the program holds, so a lane that kept its
            loaded element would walk down the tensor's columns.
        source: (file, line) of the operation in the kernel's source.
    """

    op: str
    tensor: str
    rows: Axis
    columns: Axis
    over: tuple[str, ...]
    source: tuple[str, int]
    turned: bool = False


@dataclass(frozen=True)
class Family:
    """What kernels of one task share: the problem, its tensors, the reference and the library's own call.

    Attributes:
        tensors: problem → the tensors, inputs first; the one that is no input is the output.
        reference: (inputs, rows) → those rows of the right answer, in the inputs' type.
        baseline: (inputs, output) → None; the library's call, written into `output`.
        reduction: problem → how many products one element sums; 0 where results must be exact.
        work: problem → floating-point operations (0 for a pure copy).
        minimal_bytes: problem → bytes that must move if each tensor is read or written once.
        baseline_name: what the page calls the library's call.
        note: problem → what a reader must know of its arithmetic, or "".
    """

    id: str
    problem: type
    tensors: Callable[[Any], dict[str, TensorSpec]]
    reference: Callable[[dict[str, Any], slice], Any]
    baseline: Callable[[dict[str, Any], Any], None]
    baseline_name: str
    reduction: Callable[[Any], int]
    work: Callable[[Any], int]
    minimal_bytes: Callable[[Any], int]
    note: Callable[[Any], str] = lambda problem: ""

    def output(self, problem: Any) -> str:
        return next(name for name, tensor in self.tensors(problem).items() if not tensor.is_input)


@dataclass(frozen=True)
class Preset:
    """One click: a problem and config with a name, and view options (by name) that show what it is for."""

    title: str
    problem: Mapping[str, int | str]
    config: Mapping[str, int | str]
    view: Mapping[str, int | str] = field(default_factory=dict)


@dataclass(frozen=True)
class Kernel:
    """A kernel variant. Its file declares exactly one, as KERNEL.

    Attributes:
        id: "family.variant".
        title, claim: a name, and what the kernel shows in a sentence.
        jitted: the `@triton.jit` function.
        grid: (problem, config) → programs along x, y, z.
        extents: (problem, config) → tiles along each loop index: "m", "n" and, for a reduction, "k".
        tiles: (pids, problem, config) → Tiles of those programs.
        group: (pids, problem, config) → the group of each program in launch order.
        accesses: (problem, config) → its memory operations, in source order.
        arguments: (tensors, problem, config) → the launch's arguments by name, num_warps and num_stages included.
        zeroed_output: the kernel accumulates into its output, so that it starts at zero instead of poison.
    """

    id: str
    title: str
    claim: str
    family: Family
    config: type
    jitted: Any
    grid: Callable[[Any, Any], tuple[int, ...]]
    extents: Callable[[Any, Any], dict[str, int]]
    tiles: Callable[[np.ndarray, Any, Any], Tiles]
    group: Callable[[np.ndarray, Any, Any], np.ndarray]
    accesses: Callable[[Any, Any], tuple[Access, ...]]
    arguments: Callable[[Mapping[str, Any], Any, Any], dict[str, Any]]
    zeroed_output: bool = False
    presets: tuple[Preset, ...] = ()

    def programs(self, problem: Any, config: Any) -> int:
        """Programs in one launch: the product of the grid."""
        count = 1
        for extent in self.grid(problem, config):
            count *= extent
        return count
