"""The declarations of a kernel: its tensors, its tiles and accesses, its family, and the Kernel that combines them."""

from __future__ import annotations

import math
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, Self

import numpy as np
from typing_extensions import TypeVar

from tilescope.declare.gpus import Gpu
from tilescope.declare.knobs import Knob, knobs

# Keys are torch's names.
DTYPE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float8_e4m3fn": 1, "float8_e5m2": 1}

# The types of all tensors: those of problems, and those that only workspaces have.
TYPE_BYTES = {**DTYPE_BYTES, "int32": 4}

# Unit roundoff: the largest relative rounding error. Sources: IEEE 754; OCP 8-bit formats 1.0 for float8.
DTYPE_ROUNDOFF = {
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float32": 2.0**-24,
    "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
}

# The lowest compute capability whose matrix units support these types (CUDA C++ Programming Guide 13.0).
DTYPE_CAPABILITY = {"float8_e4m3fn": (8, 9), "float8_e5m2": (8, 9)}

# Maximum estimated duration of a launch in Triton's interpreter.
INTERPRETER_LIMIT_S = 20.0
# Seconds per execution of a memory operation (with its addresses and its share of the loop), per element moved, and per
# multiply-add: fitted by benchmarks/interpreter.py, triton 3.7.1, one x86 server core.
_PER_OPERATION_S = 1.2e-3
_PER_ELEMENT_S = 4e-8
_PER_PRODUCT_S = 6e-11


@dataclass(frozen=True)
class TensorSpec:
    """The shape, role and storage of a tensor argument.

    >>> TensorSpec((2, 3), is_input=True, transposed=True).stored
    (3, 2)

    Attributes:
        shape: (rows, columns) as the kernel sees it.
        is_input: whether the kernel only reads the tensor. Exactly one tensor, the output, is not an input.
        transposed: whether memory holds the tensor's transpose.
        dtype: torch's name for a workspace's type, if it differs from the problem's; "" otherwise.
        starts_zeroed: whether a workspace is allocated as zeros. Each launch must leave it as zeros.
        copy_of: the input that torch copies into a workspace before each launch; "" for none. The workspace's further
            rows and columns are zeros.
    """

    shape: tuple[int, int]
    is_input: bool
    transposed: bool = False
    dtype: str = ""
    starts_zeroed: bool = False
    copy_of: str = ""

    @property
    def stored(self) -> tuple[int, int]:
        """(rows, columns) in memory: row-major, contiguous, aligned to 128 bytes."""
        return (self.shape[1], self.shape[0]) if self.transposed else self.shape

    @property
    def strides(self) -> tuple[int, int]:
        """Elements from one row to the next and from one column to the next, as the kernel sees them."""
        return (1, self.shape[0]) if self.transposed else (self.shape[1], 1)

    def dtype_in(self, problem: ProblemFields) -> str:
        """Return torch's name for the tensor's type."""
        return self.dtype or problem.dtype

    def stored_bytes(self, problem: ProblemFields) -> int:
        """Return the tensor's size in memory, in bytes."""
        return math.prod(self.shape) * TYPE_BYTES[self.dtype_in(problem)]


class ProblemFields(Protocol):
    """The field that all families' problems share: the dtype of their tensors, by torch's name."""

    @property
    def dtype(self) -> str: ...


# A family's problem and a kernel's config: frozen dataclasses of knobs. An unparameterized `Kernel` accepts any.
P = TypeVar("P", bound=ProblemFields, default=Any)
C = TypeVar("C", default=Any)

# Tensors, and their specs, by name.
Tensors = Mapping[str, Any]
Specs = Mapping[str, TensorSpec]


def shape_text(problem: ProblemFields) -> str:
    """Return a problem's sizes as text: 4096 × 4096 × 512."""
    return " × ".join(str(value) for value in vars(problem).values() if isinstance(value, int))


def format_duration(seconds: float) -> str:
    """Format a duration with at most two units.

    >>> format_duration(42.4), format_duration(200), format_duration(4000)
    ('42 s', '3 min 20 s', '1 h 6 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


@dataclass(frozen=True)
class Launch(Generic[P, C]):
    """One launch of a kernel: a problem, a config and the GPU."""

    problem: P
    config: C
    gpu: Gpu

    @property
    def element_bytes(self) -> int:
        """The bytes of an element of the problem's tensors."""
        return DTYPE_BYTES[self.problem.dtype]


@dataclass(frozen=True)
class Tiles:
    """The tiles of programs, in launch order: int64 arrays, with an entry for each of a program's tiles."""

    program: np.ndarray
    pid_m: np.ndarray
    pid_n: np.ndarray
    pid_k: np.ndarray


def grid_of(extents: Mapping[str, int]) -> tuple[int, ...]:
    """Return the grid with one program per tile: axes m, n and, if K is split, slice."""
    return tuple(extents[axis] for axis in ("m", "n", "slice") if axis in extents)


def tiles_on_grid(pids: np.ndarray, extents: Mapping[str, int]) -> Tiles:
    """Return the tile of each program on the grid that `grid_of` returns. Its first axis varies fastest in `pids`."""
    rest, pid_m = np.divmod(pids, extents["m"])
    pid_k, pid_n = np.divmod(rest, extents["n"])
    return Tiles(pids, pid_m, pid_n, pid_k)


@dataclass(frozen=True)
class Axis:
    """One axis of an access: `block` elements from `start(index, block)` for each value of the loop index `index`."""

    index: str
    block: int
    start: Callable[[Any, int], Any]


@dataclass(frozen=True)
class Access:
    """One memory operation of a kernel: a block of `rows` × `columns` of a tensor, masked at its edges.

    Attributes:
        op: "load", "store", "atomic", or "descriptor" (the tensor memory accelerator copies the whole block).
        tensor: name in the family's tensors.
        rows, columns: position of the block in that tensor as stored.
        over: loop indices ("m", "n", "k", "slice"). The operation executes once for each combination of their values.
        transposed: whether the block is the transpose of the program's tile. Lanes that store the elements that they
            loaded then move down the tensor's columns.
        source: (file, line) of the operation in the kernel's source.
        pointers: the loop index of each dimension of the program's block of pointers; None for (rows, columns). The
            order is reversed if the block of pointers is the transpose of the stored block.
    """

    op: str
    tensor: str
    rows: Axis
    columns: Axis
    over: tuple[str, ...]
    source: tuple[str, int]
    transposed: bool = False
    pointers: tuple[str, str] | None = None

    @property
    def axes(self) -> tuple[Axis, ...]:
        return self.rows, self.columns

    @property
    def dims(self) -> tuple[str, ...]:
        """The loop index of each dimension of the block of pointers."""
        return self.pointers or (self.rows.index, self.columns.index)

    @property
    def elements(self) -> int:
        """Number of elements per execution, including elements past an edge."""
        return self.rows.block * self.columns.block


@dataclass(frozen=True)
class FlatAccess:
    """One memory operation on a run of consecutive elements, masked at the end.

    Attributes:
        run: position of the run among the stored tensor's elements, counted row by row or, if `transposed`, column by
            column.
        op, tensor, over, source: as for Access.
    """

    op: str
    tensor: str
    run: Axis
    over: tuple[str, ...]
    source: tuple[str, int]
    transposed: bool = False

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (self.run,)

    @property
    def dims(self) -> tuple[str, ...]:
        return (self.run.index,)

    @property
    def elements(self) -> int:
        """Number of elements per execution, including elements past the end."""
        return self.run.block


AnyAccess = Access | FlatAccess


@dataclass(frozen=True)
class Allowance:
    """The error that an element may have before its final rounding: `of_value` · |reference| + `of_scale` · scale.

    The scale of an element's error is its family's `error_scale`.

    Attributes:
        of_value, of_scale: factors of the largest allowed error.
        expected_of_value, expected_of_scale: factors of the expected error (RMS).
        reference_dtype: type in which the reference is computed; wider than the output's type unless that is float64.
    """

    of_value: float
    of_scale: float
    expected_of_value: float
    expected_of_scale: float
    reference_dtype: str = "float32"


@dataclass(frozen=True)
class Family(Generic[P]):
    """The declarations that all kernels of a task share.

    Attributes:
        tensors: problem → the tensors, inputs first. Exactly one tensor, the output, is not an input.
        reference: (inputs, rows) → the given rows of the correct result, in the inputs' type.
        baseline: (inputs, output, problem) → a repeatable library call that writes into `output`, or a sentence that
            says why the library has no such call.
        baseline_name: problem → the name of the library call on the page.
        why_library_is_slow: launch → a clause: the likely reason that the library call runs far below its best rate.
        alternatives: (inputs, output, problem) → further calls to compare with, by name: other ways to compute the same
            result, or a bound such as a plain copy.
        magnitude: the formula of an element's error scale, as text.
        allowance: (problem, partial_sums, distribution, capability) → the error that rounding can cause. None if the
            output must equal the reference bit for bit. `partial_sums` is the number of partial results that are
            rounded to the output's type and added up in it. `distribution` is the inputs' distribution, as in
            `experiment.Run`. `capability` is the GPU's compute capability, or None for Triton's interpreter, which runs
            on the CPU, without matrix units.
        error_scale: (absolute float32 inputs, rows) → the error scale of the given rows; None for |reference|.
        panels: two inputs that tiles share. Tiles of one row read the same panel of the first input, tiles of one
            column the same panel of the second. A panel extends along the loop index "k", which all kernels of the
            family must have. None if each input is read once.
        work: problem → floating-point operations, for a rate in TFLOP/s; 0 for a rate in bytes per second.
        matrix_passes: problem → passes through the matrix units per product; 0 if the float32 units multiply.
        best: problem → a problem on which the library call reaches the device's peak; None if a memory copy does.
        note: problem → a caveat about its arithmetic, or "".
        refuse: (problem, config) → raises ConfigError if the two are incompatible.
        essential: problem → the representative of all problems with the same launch: fields without effect are reset.
        extends: the family that this family extends. Both have the same problem and share a menu.
    """

    id: str
    problem: type[P]
    tensors: Callable[[P], dict[str, TensorSpec]]
    reference: Callable[[Tensors, slice], Any]
    baseline: Callable[[Tensors, Any, P], Callable[[], Any] | str]
    baseline_name: Callable[[P], str]
    magnitude: str
    allowance: Callable[[P, int, str, tuple[int, int] | None], Allowance] | None = None
    error_scale: Callable[[Tensors, slice], Any] | None = None
    panels: tuple[str, str] | None = None
    work: Callable[[P], int] = lambda problem: 0
    matrix_passes: Callable[[P], int] = lambda problem: 0
    best: Callable[[P], P | None] = lambda problem: None
    alternatives: Callable[[Tensors, Any, P], Mapping[str, Callable[[], Any]]] = lambda *_: {}
    why_library_is_slow: Callable[[Launch[P]], str] = lambda launch: ""
    note: Callable[[P], str] = lambda problem: ""
    refuse: Callable[[P, Any], None] = lambda problem, config: None
    essential: Callable[[P], P] = lambda problem: problem
    extends: Family[P] | None = None

    @property
    def is_exact(self) -> bool:
        """Whether the output must equal the reference, bit for bit."""
        return self.allowance is None

    @property
    def root(self) -> Family[P]:
        """The family at the end of the `extends` chain, or this family if it extends none."""
        return self.extends.root if self.extends else self

    def extend(self, name: str, **changes: Any) -> Self:
        """Return a family that extends this one, with some fields replaced."""
        return replace(self, id=f"{self.id}.{name}", extends=self, **changes)

    def output(self, problem: P) -> str:
        """Return the name of the tensor that kernels write."""
        return next(name for name, tensor in self.tensors(problem).items() if not tensor.is_input)

    def tensor_bytes(self, problem: P) -> dict[str, int]:
        """Return the bytes of each tensor."""
        return {
            name: tensor.stored_bytes(problem) for name, tensor in self.tensors(problem).items()
        }

    def minimal_bytes(self, problem: P) -> int:
        """Count the bytes that a kernel moves if it reads or writes each tensor exactly once."""
        return sum(self.tensor_bytes(problem).values())


@dataclass(frozen=True)
class Preset:
    """A named problem and config, with view options that show what is special about them."""

    title: str
    problem: Mapping[str, int | str]
    config: Mapping[str, int | str]
    view: Mapping[str, int | str]


def preset(title: str, problem: str, config: str = "", view: str = "") -> Preset:
    """Return a preset whose fields are written as in an address, such as "M=4096&N=4096".

    >>> preset("Odd", "M=4097", "PAD=auto")
    Preset(title='Odd', problem={'M': 4097}, config={'PAD': 'auto'}, view={})
    """
    parts = (
        urllib.parse.parse_qsl(text, strict_parsing=bool(text)) for text in (problem, config, view)
    )
    numbers = (
        {name: int(word) if word.isdecimal() else word for name, word in part} for part in parts
    )
    return Preset(title, *numbers)


@dataclass(frozen=True, eq=False)  # caches use it as a key
class Kernel(Generic[P, C]):
    """A kernel variant. Each kernel file declares exactly one, as KERNEL.

    Attributes:
        id: "family.variant".
        headline: one sentence on what the kernel shows.
        jitted: the `@triton.jit` function.
        grid: launch → programs along x, y, z.
        extents: launch → tiles along each loop index: "m", "n", "k" for a reduction, and "slice" if programs share
            tiles. In that case, a program with a whole tile computes its slices one after another.
        tiles: (pids, launch) → Tiles of the given programs.
        accesses: launch → its memory operations, in source order.
        arguments: (tensors, launch) → the launch's arguments by name, num_warps and num_stages included.
        workspaces: launch → further tensors, by name. Their content is undefined, unless they start as zeros or are
            copies of inputs.
        copies_ms: launch → the assumed time of the copies into workspaces.
        dtypes: the problem's dtypes that the kernel supports; empty for all.
        zeroed_output: whether the kernel accumulates into its output, which then starts as zeros instead of poison.
        roundings: launch → the number of partial results that are rounded to the output's type and added up in it.
        reduction_ms: launch → the estimated time that combining partial results adds to it; 0 if not modelled.
        race: launch → a description of its data race, or "".
        note: launch → a caveat about this launch, or "".
    """

    id: str
    title: str
    headline: str
    family: Family[P]
    config: type[C]
    jitted: Any
    grid: Callable[[Launch[P, C]], tuple[int, ...]]
    extents: Callable[[Launch[P, C]], dict[str, int]]
    tiles: Callable[[np.ndarray, Launch[P, C]], Tiles]
    accesses: Callable[[Launch[P, C]], tuple[AnyAccess, ...]]
    arguments: Callable[[Tensors, Launch[P, C]], dict[str, Any]]
    workspaces: Callable[[Launch[P, C]], dict[str, TensorSpec]] = lambda launch: {}
    copies_ms: Callable[[Launch[P, C]], float] = lambda launch: 0.0
    dtypes: tuple[str, ...] = ()
    zeroed_output: bool = False
    roundings: Callable[[Launch[P, C]], int] = lambda launch: 1
    reduction_ms: Callable[[Launch[P, C]], float] = lambda launch: 0.0
    race: Callable[[Launch[P, C]], str] = lambda launch: ""
    note: Callable[[Launch[P, C]], str] = lambda launch: ""
    presets: tuple[Preset, ...] = ()

    def programs(self, launch: Launch[P, C]) -> int:
        """Count the programs of one launch: the product of the grid."""
        return math.prod(self.grid(launch))

    def tensors(self, launch: Launch[P, C]) -> dict[str, TensorSpec]:
        """Return the family's tensors and the workspaces."""
        return {**self.family.tensors(launch.problem), **self.workspaces(launch)}

    def output_tile(self, launch: Launch[P, C]) -> tuple[int, int] | None:
        """Return (rows, columns) of a tile of the output, or None if programs do not write tiles."""
        if (axes := self.output_axes(launch)) is None:
            return None
        rows, columns = (
            int(axis.start(1, axis.block) - axis.start(0, axis.block)) for axis in axes
        )
        return rows, columns

    def output_axes(self, launch: Launch[P, C]) -> tuple[Axis, Axis] | None:
        """Return the axes of the output's rows and columns of tiles, or None if programs do not write tiles."""
        output = self.family.output(launch.problem)
        written = next(a for a in reversed(self.accesses(launch)) if a.tensor == output)
        return (written.rows, written.columns) if isinstance(written, Access) else None

    def problem_knobs(self) -> Mapping[str, Knob]:
        """Return the problem's knobs by field name. The dtype knob allows only types that this kernel supports."""
        declared = knobs(self.family.problem)
        return (
            {**declared, "dtype": replace(declared["dtype"], choices=self.dtypes)}
            if self.dtypes
            else declared
        )


def interpreter_seconds(kernel: Kernel, launch: Launch) -> float:
    """Estimate how long Triton's interpreter takes for one launch."""
    extents = kernel.extents(launch)
    seconds = _PER_PRODUCT_S * kernel.family.work(launch.problem) / 2
    for access in kernel.accesses(launch):
        executions = math.prod(extents[index] for index in access.over)
        seconds += executions * (_PER_OPERATION_S + _PER_ELEMENT_S * access.elements)
    return seconds


def explain_slow_launch(kernel: Kernel, launch: Launch) -> str:
    """Return why a launch is too slow for the interpreter, as sentences; "" if it is quick enough."""
    seconds = interpreter_seconds(kernel, launch)
    if seconds <= INTERPRETER_LIMIT_S:
        return ""
    return (
        f"There is no GPU here, and the interpreter would take about {format_duration(seconds)} for "
        f"{shape_text(launch.problem)} with these tiles. The limit is about {INTERPRETER_LIMIT_S:.0f} s. "
        "Make the shape smaller."
    )
