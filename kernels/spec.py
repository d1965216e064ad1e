"""What a kernel declares: tensors, tiles, accesses, and the Kernel that joins them. Standard library only."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kernels.knobs import Knob, knobs

if TYPE_CHECKING:
    import numpy as np

    from kernels.gpus import Gpu

# By torch's names.
DTYPE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float8_e4m3fn": 1, "float8_e5m2": 1}

# The first compute capability whose matrix units take these types (CUDA C++ Programming Guide 13.0).
DTYPE_CAPABILITY = {"float8_e4m3fn": (8, 9), "float8_e5m2": (8, 9)}


@dataclass(frozen=True)
class TensorSpec:
    """A tensor that a kernel takes.

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


@dataclass(frozen=True)
class Launch:
    """One launch: what is computed, how, and on which GPU. `problem` and `config` are the kernel's own dataclasses."""

    problem: Any
    config: Any
    gpu: Gpu


@dataclass(frozen=True)
class Tiles:
    """Which program computes which tiles: five int64 arrays of one entry a tile, in launch order.

    A program that computes several tiles has several consecutive entries. `group` numbers the tiles that the order
    keeps together.
    """

    program: np.ndarray
    pid_m: np.ndarray
    pid_n: np.ndarray
    pid_k: np.ndarray
    group: np.ndarray


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
        op: "load", "store", "atomic", or "descriptor" (a whole block copied by the tensor memory accelerator).
        tensor: name in the family's tensors.
        rows, columns: where the block lies in that tensor as it is stored.
        over: the loop indices ("m", "n", "k", "slice") that the operation is executed for.
        transposed: the block is the transpose of the tile that the program holds, so a lane that kept its
            loaded element would walk down the tensor's columns.
        source: (file, line) of the operation in the kernel's source.
        pointers: the loop indices that the program's block of pointers follows in each of its dimensions, where they
            are not those of rows and columns: another order, if it is turned before it is loaded or stored.
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
    def dims(self) -> tuple[str, str]:
        """The loop indices that the block of pointers follows, dimension by dimension."""
        return self.pointers or (self.rows.index, self.columns.index)

    @property
    def elements(self) -> int:
        """Elements of one execution, those past an edge included."""
        return self.rows.block * self.columns.block


@dataclass(frozen=True)
class FlatAccess:
    """One memory operation on a run of consecutive elements, masked at the end.

    Attributes:
        run: where the run begins, counting the elements of the tensor as it is stored row by row, or, where
            `transposed`, column by column.
        op, tensor, over, source: as of Access.
    """

    op: str
    tensor: str
    run: Axis
    over: tuple[str, ...]
    source: tuple[str, int]
    transposed: bool = False

    @property
    def elements(self) -> int:
        """Elements of one execution, those past the end included."""
        return self.run.block


@dataclass(frozen=True)
class Family:
    """What kernels of one task share: the problem, its tensors, the reference and the library's own call.

    Attributes:
        tensors: problem → the tensors, inputs first; the one that is no input is the output.
        reference: (inputs, rows) → those rows of the right answer, in the inputs' type.
        magnitude: what `reference` gives for absolute inputs, in words: the scale of an element's error.
        baseline: (inputs, output, problem) → the library's call, ready to be repeated, that writes into `output`; or a
            sentence where the library has none.
        baseline_name: problem → what the page calls the library's call.
        reduction: problem → how many products one element sums; 0 where results must be exact.
        work: problem → floating-point operations (0 for a pure copy).
        minimal_bytes: problem → bytes that must move if each tensor is read or written once.
        best: problem → the problem at which the library's call shows what the device can do; None for a copy.
        note: problem → what a reader must know of its arithmetic, or "".
        refuse: (problem, config) → raises ConfigError where they don't go together.
        essential: problem → the one that stands for all with the same launch: fields that make no difference at rest.
    """

    id: str
    problem: type
    tensors: Callable[[Any], dict[str, TensorSpec]]
    reference: Callable[[dict[str, Any], slice], Any]
    magnitude: str
    baseline: Callable[[dict[str, Any], Any, Any], Callable[[], None] | str]
    baseline_name: Callable[[Any], str]
    reduction: Callable[[Any], int]
    work: Callable[[Any], int]
    minimal_bytes: Callable[[Any], int]
    best: Callable[[Any], Any] = lambda problem: None
    note: Callable[[Any], str] = lambda problem: ""
    refuse: Callable[[Any, Any], None] = lambda problem, config: None
    essential: Callable[[Any], Any] = lambda problem: problem

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
        grid: launch → programs along x, y, z.
        extents: launch → tiles along each loop index: "m", "n", for a reduction "k", and "slice" where it is cut.
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
    family: Family
    config: type
    jitted: Any
    grid: Callable[[Launch], tuple[int, ...]]
    extents: Callable[[Launch], dict[str, int]]
    tiles: Callable[[np.ndarray, Launch], Tiles]
    accesses: Callable[[Launch], tuple[Access | FlatAccess, ...]]
    arguments: Callable[[Mapping[str, Any], Launch], dict[str, Any]]
    dtypes: tuple[str, ...] = ()
    zeroed_output: bool = False
    roundings: Callable[[Launch], int] = lambda launch: 1
    race: Callable[[Launch], str] = lambda launch: ""
    note: Callable[[Launch], str] = lambda launch: ""
    presets: tuple[Preset, ...] = ()

    def programs(self, launch: Launch) -> int:
        """Programs in one launch: the product of the grid."""
        return math.prod(self.grid(launch))

    def output_tile(self, launch: Launch) -> tuple[int, int] | None:
        """Rows and columns of a tile of the output; None where programs write something else."""
        axes = self.output_axes(launch)
        if axes is None:
            return None
        rows, columns = (int(axis.start(1, axis.block) - axis.start(0, axis.block)) for axis in axes)
        return rows, columns

    def output_axes(self, launch: Launch) -> tuple[Axis, Axis] | None:
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
