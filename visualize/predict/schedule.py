"""The schedule of a launch: how many programs an SM holds, which program computes which tile, and in which order.

A step of a launch is a wave or, if programs loop over tiles, a turn of the loop in a wave. It can also be a single
program (or a single tile of a loop), in start order. Omitted: program durations, and how the driver divides an SM's
memory into L1 and shared memory. Waves are ideal: all programs take the same time.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from kernels import orders
from tilescope.captures.content import CapturedKernel
from tilescope.compiling.estimates import panel_loads
from tilescope.declare.gpus import Gpu, Occupancy, occupancy
from tilescope.declare.jit import on_arrays
from tilescope.declare.knobs import ConfigError, knobs
from tilescope.declare.spec import Kernel, Launch, Tiles
from tilescope.evaluate.instructions import CompiledFacts

# Maximum number of tiles in a schedule. Arrays of this length take at most a few hundred megabytes and one second.
MAX_TILES = 1 << 21

# Up to this many tiles, a player steps through single programs.
_FEW_PROGRAMS = 256


def occupancy_of(gpu: Gpu, num_warps: int, compiled: CompiledFacts | CapturedKernel) -> Occupancy:
    """Predict the occupancy of a compiled kernel."""
    columns = getattr(compiled, "tensor_columns", 0)  # recordings lack them
    return occupancy(gpu, num_warps, compiled.registers, compiled.shared_bytes, columns)


def max_programs_per_sm(gpu: Gpu, num_warps: int) -> int:
    """Return the maximum number of programs of `num_warps` warps that fit an SM's warp and program slots."""
    return max(1, min(gpu.max_programs_per_sm, gpu.max_warps_per_sm // num_warps))


def programs_per_sm(
    gpu: Gpu, num_warps: int, compiled: CompiledFacts | CapturedKernel | None
) -> int:
    """Return how many programs an SM holds: at least 1 by the compiled kernel's resources, or 1 before a compile."""
    return 1 if compiled is None else max(1, occupancy_of(gpu, num_warps, compiled).programs_per_sm)


@dataclass(frozen=True)
class Schedule:
    """The schedule of one launch.

    Attributes:
        num_warps: warps of a program.
        programs: number of programs in the launch.
        tiles: program → tile, in launch order.
        extents: (num_pid_m, num_pid_n), number of output tiles along each axis.
        panels: the inputs that tiles share, by tile row and by tile column; None if each input is read once.
        transposed: for each tensor, the output last, whether pid_m counts to the right and pid_n down.
        k_blocks: number of blocks along the loop index "k" that one tile reads; 0 without a loop.
        slices: number of programs that share a tile, each with its slice of "k".
        resident_programs: number of programs that all SMs hold at once.
        resident_source: "assumed", or "compiled" if registers and shared memory are known.
    """

    gpu: Gpu
    num_warps: int
    programs: int
    tiles: Tiles
    extents: tuple[int, int]
    panels: tuple[str, str] | None
    transposed: dict[str, bool]
    k_blocks: int
    slices: int
    resident_programs: int
    resident_source: str

    @property
    def sms(self) -> int:
        return self.gpu.sms

    @property
    def programs_per_sm(self) -> int:
        return self.resident_programs // self.sms

    @property
    def waves(self) -> int:
        return -(-self.programs // self.resident_programs)

    @property
    def tail_programs(self) -> int:
        """Number of programs in the last wave; 0 if it is full."""
        return self.programs % self.resident_programs

    @cached_property
    def turn(self) -> np.ndarray:
        """The iteration of its program's loop that computes each tile: (tiles,), all 0 without a loop over tiles."""
        program = self.tiles.program
        if len(program) == self.programs:
            return np.zeros_like(program)
        return np.arange(len(program)) - np.searchsorted(program, np.arange(self.programs))[program]

    @cached_property
    def turns(self) -> int:
        """The maximum number of tiles that one program computes."""
        return int(self.turn.max(initial=0)) + 1

    @cached_property
    def step(self) -> np.ndarray:
        """The step, from 0, that computes each tile if all tiles take equal time: its wave, or its turn in the wave."""
        return self.tiles.program // self.resident_programs * self.turns + self.turn

    @cached_property
    def place(self) -> np.ndarray:
        """Slice, pid_m and pid_n of each tile as one number, pid_n fastest."""
        return (self.tiles.pid_k * self.extents[0] + self.tiles.pid_m) * self.extents[
            1
        ] + self.tiles.pid_n

    @cached_property
    def entry(self) -> np.ndarray:
        """(slices, num_pid_m, num_pid_n): the entry of `tiles` that computes each slice of each tile."""
        entry = np.empty((self.slices, *self.extents), dtype=np.int32)
        entry.flat[self.place] = np.arange(len(self.place))
        return entry

    @cached_property
    def pieces(self) -> tuple[np.ndarray, np.ndarray]:
        """The pieces of a row panel and of a column panel that each tile reads: pid × slices + slice."""
        tiles = self.tiles
        slices = self.slices
        return tiles.pid_m * slices + tiles.pid_k, tiles.pid_n * slices + tiles.pid_k

    @cached_property
    def first_of_piece(self) -> tuple[np.ndarray, np.ndarray]:
        """The first entry, in launch order, that reads each piece: (num_pid_m, slices), (num_pid_n, slices).

        A row of tiles reads one row panel, a column of tiles one column panel, and a slice of K one piece of each.
        """
        return self.entry.min(axis=2).T, self.entry.min(axis=1).T


@dataclass(frozen=True)
class KernelSchedule(Schedule):
    """The schedule of a launch of one of our kernels."""

    kernel: Kernel
    launch: Launch


def count_tiles(kernel: Kernel, launch: Launch) -> int:
    """Count the tiles that a launch's programs compute. Slices of a tile count separately."""
    extents = kernel.extents(launch)
    return extents["m"] * extents["n"] * extents.get("slice", 1)


def schedule(
    kernel: Kernel, launch: Launch, compiled: CompiledFacts | None = None
) -> KernelSchedule:
    """Predict the schedule of one launch. Before a compile, an SM is assumed to hold one program.

    Raises:
        ConfigError: the problem has more than MAX_TILES tiles.
    """
    extents = kernel.extents(launch)
    gpu = launch.gpu
    config = launch.config
    num_warps = config.num_warps
    if (tiles := count_tiles(kernel, launch)) > MAX_TILES:
        message = f"{tiles:,} tiles are too many to schedule; at most {MAX_TILES:,} are allowed."
        hint = "Make the tile larger or the shape smaller."
        raise ConfigError("too_many_tiles", f"{message} {hint}", next(iter(knobs(type(config)))))
    pids = np.arange(kernel.programs(launch), dtype=np.int64)
    transposed = {access.tensor: access.transposed for access in reversed(kernel.accesses(launch))}
    return KernelSchedule(
        gpu,
        num_warps,
        programs=len(pids),
        tiles=kernel.tiles(pids, launch),
        extents=(extents["m"], extents["n"]),
        panels=kernel.family.panels,
        transposed={
            name: transposed.get(name, False) for name in kernel.family.tensors(launch.problem)
        },
        k_blocks=extents.get("k", 0),
        slices=extents.get("slice", 1),
        resident_programs=gpu.sms * programs_per_sm(gpu, num_warps, compiled),
        resident_source="assumed" if compiled is None else "compiled",
        kernel=kernel,
        launch=launch,
    )


def row_major(like: KernelSchedule) -> KernelSchedule:
    """Return the same schedule with tiles in row-major order. Requires panels.

    Each program still computes the same number of tiles, and the same slices.
    """
    tiles = like.tiles
    (num_pid_m, num_pid_n) = like.extents
    place = np.empty_like(tiles.program)
    # Entries in the order in which they start, slice by slice.
    place[stable_order(tiles.pid_k * like.turns + like.turn)] = np.arange(len(place))
    pid_m, pid_n = on_arrays(orders.row_major)(place % (num_pid_m * num_pid_n), num_pid_n)
    return replace(like, tiles=Tiles(tiles.program, pid_m, pid_n, tiles.pid_k))


def stable_order(key: np.ndarray) -> np.ndarray:
    """Return the indices that sort `key`, with ties in their original order."""
    # Small integers sort faster
    return np.argsort(key.astype(np.min_scalar_type(int(key.max()))), kind="stable")


def slice_blocks(schedule: Schedule) -> np.ndarray:
    """Return the number of blocks along K in each slice: (slices,). The last slices may be empty."""
    start, end = on_arrays(orders.slice_of_k)(
        np.arange(schedule.slices), schedule.k_blocks, schedule.slices
    )
    return end - start


def loads(schedule: Schedule, counts: np.ndarray) -> np.ndarray:
    """Count the distinct panel blocks, BLOCK_K deep, that the first n programs load, for each n in `counts`.

    The program of tile (pid_m, pid_n) loads the blocks of row panel pid_m and column panel pid_n in its slice of K.
    Requires panels.
    """
    first_program = np.concatenate(
        [schedule.tiles.program[first.ravel()] for first in schedule.first_of_piece]
    )
    blocks = np.tile(slice_blocks(schedule), sum(schedule.extents))
    order = np.argsort(first_program)
    total = np.concatenate([[0], np.cumsum(blocks[order])])
    return total[np.searchsorted(first_program[order], counts)]


@dataclass(frozen=True)
class Panels:
    """The input panels that the output's tiles read. A panel is as high or wide as a tile, and as long as K.

    If K is split into slices, each panel is split into pieces, numbered `pid * slices + slice`.

    Attributes:
        row_bytes, column_bytes: bytes of each piece inside the tensor, (num_pid_m * slices,) and
            (num_pid_n * slices,).
    """

    row_bytes: np.ndarray
    column_bytes: np.ndarray

    @property
    def total_bytes(self) -> int:
        """The bytes of all pieces, each counted once."""
        return int(self.row_bytes.sum() + self.column_bytes.sum())

    def requested_bytes(self, schedule: Schedule) -> int:
        """Return the bytes that all tiles read in total."""
        rows, columns = schedule.pieces
        return int(self.row_bytes[rows].sum() + self.column_bytes[columns].sum())


def panels(schedule: KernelSchedule) -> Panels | None:
    """Return the panels of a launch; None if each input is read once."""
    kernel = schedule.kernel
    launch = schedule.launch
    inputs = schedule.panels
    if inputs is None:
        return None
    loads = panel_loads(kernel, launch)
    block = {axis.index: axis.block for access in loads for axis in (access.rows, access.columns)}
    row_panels, column_panels = (kernel.family.tensors(launch.problem)[name] for name in inputs)
    (height, depth) = row_panels.shape
    width = column_panels.shape[1]
    ends = np.minimum(np.cumsum(slice_blocks(schedule)) * block["k"], depth)
    slice_bytes = np.diff(ends, prepend=0) * launch.element_bytes

    def pieces(extent: int, size: int, total: int) -> np.ndarray:
        return np.outer(np.minimum(size, total - np.arange(extent) * size), slice_bytes).reshape(-1)

    num_pid_m, num_pid_n = schedule.extents
    return Panels(pieces(num_pid_m, block["m"], height), pieces(num_pid_n, block["n"], width))


@dataclass(frozen=True)
class Steps:
    """A launch, step by step.

    Attributes:
        name: the unit of a step: "wave", "turn" (of the loop), "step" (a turn in a wave), "program", or "tile" (of a
            loop).
        entries: the entries of the schedule's tiles, step by step.
        timed: the launch as if each tile were a separate program, started when the tile is computed.
        tiles: number of tiles that each step computes: (steps,).
        slots: number of programs that run at once in a full step.
    """

    name: str
    entries: np.ndarray
    timed: Schedule
    tiles: np.ndarray
    slots: int

    @property
    def tail_idle(self) -> float:
        """The idle fraction of the last step's slots, 0 to 1."""
        return 1 - int(self.tiles[-1]) / self.slots

    @property
    def idle(self) -> float:
        """The idle fraction of all steps' slots, 0 to 1."""
        return 1 - int(self.tiles.sum()) / (len(self.tiles) * self.slots)

    @property
    def is_single(self) -> bool:
        """Whether a step is one program, or one tile of a loop."""
        return self.name in ("program", "tile")

    @cached_property
    def blocks(self) -> np.ndarray:
        """Number of distinct panel blocks, BLOCK_K deep, that each step reads: (steps,). Requires panels."""
        slices = self.timed.slices
        depth = slice_blocks(self.timed)
        dtype = np.min_scalar_type(len(self.tiles) * max(self.timed.extents) * slices)
        step = np.repeat(np.arange(len(self.tiles), dtype=dtype), self.tiles)
        blocks = np.zeros(len(self.tiles))
        for piece, extent in zip(self.timed.pieces, self.timed.extents, strict=True):
            # A stable sort is fast, because the steps are in order. np.unique would take three times as long.
            reads = np.sort(step * dtype.type(extent * slices) + piece.astype(dtype), kind="stable")
            is_new = np.append(True, reads[1:] != reads[:-1])
            blocks += np.bincount(step[is_new], depth[reads[is_new] % slices], len(blocks))
        return blocks.astype(np.int64)


def steps(schedule: Schedule) -> Steps:
    """Divide a launch into its waves or, if programs loop over tiles, the turns of the loop."""
    entries = np.arange(len(schedule.place))
    timed = schedule
    slots = schedule.resident_programs
    name = "wave"
    if schedule.turns > 1:
        name = "turn" if schedule.waves == 1 else "step"
        by_time = stable_order(schedule.step)
        columns = {name: column[by_time] for name, column in vars(schedule.tiles).items()}
        timed = replace(
            schedule, programs=len(entries), tiles=Tiles(**{**columns, "program": entries})
        )
        entries = by_time
        # A persistent launch starts only as many programs as it needs, even if SMs could hold more.
        slots = min(slots, -(-schedule.programs // schedule.sms) * schedule.sms)
    return Steps(name, entries, timed, np.bincount(schedule.step), slots)


def player_steps(schedule: Schedule) -> Steps:
    """Divide a launch into the steps of a player: single programs if there are only a few or all fit in one wave."""
    full = steps(schedule)
    if len(full.tiles) > 1 and len(full.entries) > _FEW_PROGRAMS:
        return full
    name = "program" if schedule.turns == 1 else "tile"
    return replace(full, name=name, tiles=np.ones_like(full.entries), slots=1)


def first_reads(launch: Steps) -> tuple[np.ndarray, np.ndarray]:
    """Return the first entry, in time, that reads each piece: (num_pid_m, slices), (slices, num_pid_n)."""
    rows, columns = launch.timed.first_of_piece
    return launch.entries[rows], launch.entries[columns.T]


def first_programs(schedule: Schedule, launch: Steps, first: int) -> int:
    """Return how many programs (or tiles of a loop) to compare: `first`, or all concurrent programs if `first` is 0."""
    resident = schedule.resident_programs if schedule.turns == 1 else schedule.programs
    return min(first or resident, len(launch.timed.place))
