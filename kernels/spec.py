"""What a kernel declares: its tensors, its family, and the Kernel that joins them. Standard library only."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self

from kernels.accesses import Access, Axis, FlatAccess, Tiles
from kernels.knobs import Knob, knobs

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import TypeVar

    from kernels.gpus import Gpu
else:
    from typing import TypeVar

# By torch's names.
DTYPE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float8_e4m3fn": 1, "float8_e5m2": 1}

# Unit roundoff: half a unit in the last place, relative. IEEE 754; for float8 the OCP 8-bit formats 1.0.
DTYPE_ROUNDOFF = {
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float32": 2.0**-24,
    "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
}

# The first compute capability whose matrix units take these types (CUDA C++ Programming Guide 13.0).
DTYPE_CAPABILITY = {"float8_e4m3fn": (8, 9), "float8_e5m2": (8, 9)}


@dataclass(frozen=True)
class TensorSpec:
    """A tensor that a kernel takes.

    >>> TensorSpec((2, 3), is_input=True, transposed=True).stored
    (3, 2)

    Attributes:
        shape: (rows, columns) as the kernel sees it.
        is_input: whether it is read; the one that is not is the output.
        transposed: it is stored as its transpose.
    """

    shape: tuple[int, int]
    is_input: bool
    transposed: bool = False

    @property
    def stored(self) -> tuple[int, int]:
        """(rows, columns) in memory: row-major, contiguous, its start aligned to a line."""
        return (self.shape[1], self.shape[0]) if self.transposed else self.shape

    @property
    def strides(self) -> tuple[int, int]:
        """Elements from one row, and from one column, to the next, as the kernel sees it."""
        return (1, self.shape[0]) if self.transposed else (self.shape[1], 1)


class ProblemFields(Protocol):
    """What every problem has, whatever its family: the type of its tensors, by torch's name."""

    @property
    def dtype(self) -> str: ...


def shape_text(problem: ProblemFields) -> str:
    """A problem's sizes as they are written: 4096 × 4096 × 512."""
    return " × ".join(str(value) for value in vars(problem).values() if isinstance(value, int))


class ConfigFields(Protocol):
    """What every config has, whatever its kernel."""

    @property
    def num_warps(self) -> int: ...

    @property
    def num_stages(self) -> int: ...


# A family's problem and a kernel's config: frozen dataclasses of knobs. To a type checker a bare `Kernel` is one of any
# problem and config.
if TYPE_CHECKING:
    P = TypeVar("P", bound=ProblemFields, default=Any)
    C = TypeVar("C", bound=ConfigFields, default=Any)
    P_co = TypeVar("P_co", bound=ProblemFields, default=Any, covariant=True)
    C_co = TypeVar("C_co", bound=ConfigFields, default=Any, covariant=True)
else:
    P, C = TypeVar("P"), TypeVar("C")
    P_co, C_co = TypeVar("P_co", covariant=True), TypeVar("C_co", covariant=True)


@dataclass(frozen=True)
class Launch(Generic[P_co, C_co]):
    """One launch: what is computed, how, and on which GPU."""

    problem: P_co
    config: C_co
    gpu: Gpu


@dataclass(frozen=True)
class Rounding(Generic[P]):
    """What the rounding errors of a launch depend on.

    Attributes:
        partial_sums: partial results that are rounded to the output's type and added up in it.
        distribution: of the inputs' values, as in `experiment.Run`.
        interpreted: the launch is interpreted on the CPU, without matrix units.
    """

    launch: Launch[P, Any]
    partial_sums: int
    distribution: str
    interpreted: bool


@dataclass(frozen=True)
class Allowance:
    """How far an element may be off before it is rounded: `of_value` · |reference| + `of_scale` · scale.

    The scale of an element's error is its family's `error_scale`.

    Attributes:
        of_value, of_scale: the most that is allowed.
        expected_of_value, expected_of_scale: the same on average (RMS).
        reference_dtype: type in which the reference is computed; wider than the output's, unless that is float64.
    """

    of_value: float
    of_scale: float
    expected_of_value: float
    expected_of_scale: float
    reference_dtype: str = "float32"


@dataclass(frozen=True)
class Family(Generic[P]):
    """What kernels of one task share: the problem, its tensors, the reference, what may err, and the library's call.

    Attributes:
        tensors: problem → the tensors, inputs first; the one that is no input is the output.
        reference: (inputs, rows) → those rows of the right answer, in the inputs' type.
        baseline: (inputs, output, problem) → the library's call, ready to be repeated, that writes into `output`; or a
            sentence where the library has none.
        baseline_name: problem → what the page calls the library's call.
        alternatives: (inputs, output, problem) → further calls to compare with, by name: the library's other ways to
            the same result, or a bound such as a plain copy.
        magnitude: the scale of an element's error, in words.
        limit_follows: what the limit on the error follows from, in words.
        allowance: what rounding explains of an error; None where the output must equal the reference bit for bit.
        error_scale: (absolute float32 inputs, rows) → the scale of those rows' errors; None for |reference|.
        panels: the inputs that several tiles read again: one by tile row, one by tile column, each tile a panel as long
            as the loop index "k", which all kernels of the family have then. None where each input is read once.
        work: problem → floating-point operations that a speed is given in; 0 where it is given in bytes per second.
        matrix_passes: problem → products on matrix units that one product takes; 0 for float32 units.
        best: problem → the problem at which the library's call shows what the device can do; None where a plain copy
            of memory does.
        note: problem → what a reader must know of its arithmetic, or "".
        refuse: (problem, config) → raises ConfigError where they don't go together.
        essential: problem → the one that stands for all with the same launch: fields that make no difference at rest.
        extends: the family that this one adds to: the same problem, so that both share a menu.
    """

    id: str
    problem: type[P]
    tensors: Callable[[P], dict[str, TensorSpec]]
    reference: Callable[[Mapping[str, Any], slice], Any]
    baseline: Callable[[Mapping[str, Any], Any, P], Callable[[], None] | str]
    baseline_name: Callable[[P], str]
    magnitude: str
    allowance: Callable[[Rounding[P]], Allowance] | None = None
    error_scale: Callable[[Mapping[str, Any], slice], Any] | None = None
    panels: tuple[str, str] | None = None
    work: Callable[[P], int] = lambda problem: 0
    matrix_passes: Callable[[P], int] = lambda problem: 0
    best: Callable[[P], P | None] = lambda problem: None
    alternatives: Callable[[Mapping[str, Any], Any, P], Mapping[str, Callable[[], Any]]] = lambda *_: {}
    note: Callable[[P], str] = lambda problem: ""
    refuse: Callable[[P, Any], None] = lambda problem, config: None
    essential: Callable[[P], P] = lambda problem: problem
    limit_follows: str = "this dtype"
    extends: Family[P] | None = None

    @property
    def is_exact(self) -> bool:
        """Whether the output must equal the reference, bit for bit."""
        return self.allowance is None

    @property
    def root(self) -> Family[P]:
        """The family that this one, and any that it extends, adds to; itself where it extends none."""
        return self.extends.root if self.extends else self

    def extended(self, name: str, **changes: Any) -> Self:
        """A family of the same problem that computes more; what is not changed is as here."""
        return dataclasses.replace(self, id=f"{self.id}.{name}", extends=self, **changes)

    def output(self, problem: P) -> str:
        """The name of the tensor that is written."""
        return next(name for name, tensor in self.tensors(problem).items() if not tensor.is_input)

    def tensor_bytes(self, problem: P) -> dict[str, int]:
        """Bytes of each tensor."""
        size = DTYPE_BYTES[problem.dtype]
        return {name: math.prod(tensor.shape) * size for name, tensor in self.tensors(problem).items()}

    def minimal_bytes(self, problem: P) -> int:
        """Bytes that must move if each tensor is read or written once."""
        return sum(self.tensor_bytes(problem).values())


@dataclass(frozen=True)
class Preset:
    """One click: a problem and config with a name, and view options (by name) that show what it is for."""

    title: str
    problem: Mapping[str, int | str]
    config: Mapping[str, int | str]
    view: Mapping[str, int | str] = field(default_factory=dict)


@dataclass(frozen=True)
class Kernel(Generic[P, C]):
    """A kernel variant. Its file declares exactly one, as KERNEL.

    Attributes:
        id: "family.variant".
        title, claim: a name, and what the kernel shows in a sentence.
        jitted: the `@triton.jit` function.
        grid: launch → programs along x, y, z.
        extents: launch → tiles along each loop index: "m", "n", for a reduction "k", and "slice" where it is split.
        tiles: (pids, launch) → Tiles of those programs.
        accesses: launch → its memory operations, in source order.
        arguments: (tensors, launch) → the launch's arguments by name, num_warps and num_stages included.
        dtypes: those of the problem's that the kernel takes; empty for all.
        zeroed_output: the kernel accumulates into its output, so that it starts at zero instead of poison.
        roundings: launch → how many partial results are rounded to the output's type and added up in it.
        race: launch → what the programs race for, in words; "" where there is no data race.
        note: launch → what a reader must know of this launch, or "".
    """

    id: str
    title: str
    claim: str
    family: Family[P]
    config: type[C]
    jitted: Any
    grid: Callable[[Launch[P, C]], tuple[int, ...]]
    extents: Callable[[Launch[P, C]], dict[str, int]]
    tiles: Callable[[np.ndarray, Launch[P, C]], Tiles]
    accesses: Callable[[Launch[P, C]], tuple[Access | FlatAccess, ...]]
    arguments: Callable[[Mapping[str, Any], Launch[P, C]], dict[str, Any]]
    dtypes: tuple[str, ...] = ()
    zeroed_output: bool = False
    roundings: Callable[[Launch[P, C]], int] = lambda launch: 1
    race: Callable[[Launch[P, C]], str] = lambda launch: ""
    note: Callable[[Launch[P, C]], str] = lambda launch: ""
    presets: tuple[Preset, ...] = ()

    def programs(self, launch: Launch[P, C]) -> int:
        """Programs in one launch: the product of the grid."""
        return math.prod(self.grid(launch))

    def output_tile(self, launch: Launch[P, C]) -> tuple[int, int] | None:
        """Rows and columns of a tile of the output; None where programs write something else."""
        axes = self.output_axes(launch)
        if axes is None:
            return None
        rows, columns = (int(axis.start(1, axis.block) - axis.start(0, axis.block)) for axis in axes)
        return rows, columns

    def output_axes(self, launch: Launch[P, C]) -> tuple[Axis, Axis] | None:
        """What the output's rows and columns of tiles are numbered by; None where programs write something else."""
        output = self.family.output(launch.problem)
        written = next(a for a in reversed(self.accesses(launch)) if a.tensor == output)
        return (written.rows, written.columns) if isinstance(written, Access) else None

    def problem_knobs(self) -> dict[str, Knob]:
        """The knobs of the problem, by field name; dtype with the types that this kernel takes."""
        declared = knobs(self.family.problem)
        if self.dtypes:
            declared["dtype"] = dataclasses.replace(declared["dtype"], choices=self.dtypes)
        return declared
