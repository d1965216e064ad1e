"""Measurements inside launches: profiler counters, counters per GROUP_SIZE, and when and where each program ran."""

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilescope.declare.experiment import Experiment
from tilescope.evaluate.instructions import CompiledFacts
from tilescope.results.run import Measured, Timing


@dataclass(frozen=True)
class OpCounts:
    """Counts of one memory operation, summed over its instructions with one opcode.

    Attributes:
        operation: index into the kernel's accesses; -1 if the SASS is ambiguous.
        executed: warp instructions, including those without an active lane.
        lines: L1 tag lookups.
        ideal_sectors: sectors that the requested bytes would fill.
    """

    operation: int
    opcode: str
    executed: int
    lines: int
    sectors: int
    ideal_sectors: int


@dataclass(frozen=True)
class SharedCounts:
    """Counts of the shared-memory instructions with one opcode on one source line.

    `ideal_wavefronts` is the number of wavefronts without bank conflicts.
    """

    source: tuple[str, int]
    opcode: str
    executed: int
    wavefronts: int
    ideal_wavefronts: int


@dataclass(frozen=True)
class Counters(Measured):
    """The counters that Nsight Compute collected for one launch.

    Attributes:
        tool: the profiler and its version.
        launch: counts for the whole launch by our metric names, such as "ld_requests" and "dram_read_bytes".
        ops, shared: counts for global-memory and shared-memory instructions.
    """

    tool: str
    compiled: CompiledFacts
    launch: dict[str, float]
    ops: tuple[OpCounts, ...]
    shared: tuple[SharedCounts, ...]


@dataclass(frozen=True)
class Timeline(Measured):
    """Where and when each program of one launch ran, recorded by an instrumented build of the kernel.

    Attributes:
        sm: %smid of each program, in the order of pid = x + y·grid_x + z·grid_x·grid_y.
        start_ns, end_ns: %globaltimer of each program, counted from the first start.
        kernel_ms: this launch's time by CUDA events.
        plain, instrumented: times of the kernel and of the instrumented build, in alternating launches.
        registers: registers per thread of the kernel and of the instrumented build.
        passed: whether the instrumented build's output passed the kernel's check.
        clock_mhz: the SM clock during timing; None if it can't be read.
    """

    sm: tuple[int, ...]
    start_ns: tuple[int, ...]
    end_ns: tuple[int, ...]
    kernel_ms: float
    plain: Timing
    instrumented: Timing
    registers: tuple[int, int]
    passed: bool
    clock_mhz: int | None = None

    @property
    def span_ns(self) -> int:
        """Return the time from the first start to the last end."""
        return max(self.end_ns) - min(self.start_ns)

    @property
    def tick_ns(self) -> int:
        """Return the timer's tick (with few programs, maybe a multiple): the greatest common divisor of differences."""
        return math.gcd(*self._steps())

    @property
    def step_ns(self) -> int:
        """Return the smallest nonzero difference between two times; 0 if all are equal."""
        return min(self._steps(), default=0)

    def _steps(self) -> list[int]:
        times = sorted({*self.start_ns, *self.end_ns})
        return [later - earlier for earlier, later in itertools.pairwise(times)]


def assign_slots(sm: Sequence[int], start_ns: Sequence[int], end_ns: Sequence[int]) -> list[int]:
    """Return the slot of each program on its SM: the lowest slot, from 0, that is free when the program starts.

    A program frees its slot in the tick in which it ends, so an SM never has more slots than concurrent programs.

    >>> assign_slots((0, 0, 0, 1), (0, 0, 10, 0), (10, 30, 20, 5))
    [0, 1, 0, 0]
    """
    slots = [0] * len(sm)
    ends: dict[int, list[int]] = defaultdict(list)  # by SM: when each slot's last program ends
    for program in sorted(
        range(len(sm)), key=lambda program: (start_ns[program], end_ns[program], program)
    ):
        busy_until = ends[sm[program]]
        slot = next(
            (slot for slot, end in enumerate(busy_until) if end <= start_ns[program]),
            len(busy_until),
        )
        busy_until[slot : slot + 1] = [end_ns[program]]
        slots[program] = slot
    return slots


@dataclass(frozen=True)
class GroupSizeRow:
    """Counts and times of one GROUP_SIZE.

    Attributes:
        group_size: None for a kernel without GROUP_SIZE.
        registers, shared_bytes: per thread and per program.
        dram_read_bytes, dram_write_bytes: one value per counted launch.
        received_bytes: bytes of global memory that SMs received, without L1 hits; None if not counted.
        l2_read_bytes: bytes that the L2 looked up for the SMs. One lookup can serve several SMs. None if not counted.
        times_ms: one value per turn.
    """

    group_size: int | None
    registers: int
    shared_bytes: int
    dram_read_bytes: tuple[int, ...]
    dram_write_bytes: tuple[int, ...]
    received_bytes: int | None
    l2_read_bytes: int | None
    times_ms: tuple[float, ...]

    @property
    def read_bytes(self) -> float:
        """The median of the bytes read from DRAM; 0 if not counted."""
        return statistics.median(self.dram_read_bytes or (0,))

    @property
    def ms(self) -> float:
        """The median time."""
        return statistics.median(self.times_ms)


@dataclass(frozen=True)
class GroupSizeStudy(Measured):
    """The same launch with several GROUP_SIZEs, including the experiment's own.

    Attributes:
        tool: the profiler and its version.
        rows: sorted by GROUP_SIZE.
    """

    tool: str
    rows: tuple[GroupSizeRow, ...]
    clock_mhz: int | None = None


def with_group_size(experiment: Experiment, size: int | None) -> Experiment:
    """Return the experiment with another GROUP_SIZE; unchanged if `size` is None."""
    return (
        experiment
        if size is None
        else replace(experiment, config=replace(experiment.config, GROUP_SIZE=size))
    )


def any_group_size(experiment: Experiment) -> Experiment:
    """Return the representative of all experiments that differ only in GROUP_SIZE."""
    return with_group_size(experiment, 1 if hasattr(experiment.config, "GROUP_SIZE") else None)
