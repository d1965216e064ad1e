"""What was observed inside launches: counters of one, and of one per GROUP_SIZE; where and when each program ran."""

from __future__ import annotations

import dataclasses
import itertools
import math
from dataclasses import dataclass

from kernels.experiment import Experiment
from kernels.lanes import CompiledFacts
from kernels.results.outcome import Measured
from kernels.results.run import Timing


@dataclass(frozen=True)
class OpCounts:
    """Counts of one memory operation, summed over its instructions of one opcode.

    Attributes:
        operation: index into the kernel's accesses; -1 if SASS does not tell.
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
    """Counts of one source line's shared-memory instructions of one opcode.

    `ideal_wavefronts` are the wavefronts without bank conflicts.
    """

    source: tuple[str, int]
    opcode: str
    executed: int
    wavefronts: int
    ideal_wavefronts: int


@dataclass(frozen=True)
class Counters(Measured):
    """One launch as Nsight Compute counted it.

    Attributes:
        tool: the profiler and its version.
        launch: counts of the whole launch, by our names of the metrics: "ld_requests", "dram_read_bytes".
        ops, shared: counts of instructions on global and on shared memory.
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
        kernel_ms: time of this launch by CUDA events.
        plain, instrumented: times of the kernel and of the instrumented build, in alternating launches.
        registers: registers per thread of these two.
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
        """Return the timer's tick: the greatest common divisor of all differences. Few programs may give a multiple."""
        return math.gcd(*self._steps())

    @property
    def step_ns(self) -> int:
        """Return the smallest nonzero difference between two times; 0 if all are equal."""
        return min(self._steps(), default=0)

    def _steps(self) -> list[int]:
        times = sorted({*self.start_ns, *self.end_ns})
        return [later - earlier for earlier, later in itertools.pairwise(times)]


@dataclass(frozen=True)
class GroupSizeRow:
    """Counts and times of one GROUP_SIZE.

    Attributes:
        group_size: None for a kernel without GROUP_SIZE.
        registers, shared_bytes: per thread and per program.
        dram_read_bytes, dram_write_bytes: one per counted launch.
        received_bytes: bytes of global memory that SMs received, without L1 hits; None if not counted.
        l2_read_bytes: bytes that the L2 looked up for them. One lookup can serve several SMs. None if not counted.
        times_ms: one per turn.
    """

    group_size: int | None
    registers: int
    shared_bytes: int
    dram_read_bytes: tuple[int, ...]
    dram_write_bytes: tuple[int, ...]
    received_bytes: int | None
    l2_read_bytes: int | None
    times_ms: tuple[float, ...]


@dataclass(frozen=True)
class GroupSizeStudy(Measured):
    """The same launch with several GROUP_SIZEs, including the experiment's own.

    Attributes:
        tool: the profiler and its version.
        rows: by GROUP_SIZE.
    """

    tool: str
    rows: tuple[GroupSizeRow, ...]
    clock_mhz: int | None = None


def with_group_size(experiment: Experiment, size: int | None) -> Experiment:
    """Return the experiment with another GROUP_SIZE; unchanged if `size` is None."""
    if size is None:
        return experiment
    return dataclasses.replace(experiment, config=dataclasses.replace(experiment.config, GROUP_SIZE=size))


def any_group_size(experiment: Experiment) -> Experiment:
    """Return one experiment that represents all that differ in GROUP_SIZE alone."""
    return with_group_size(experiment, 1 if hasattr(experiment.config, "GROUP_SIZE") else None)
