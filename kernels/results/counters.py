"""Counts by Nsight Compute: of one launch, and of one launch for each GROUP_SIZE."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from kernels.experiment import Experiment
from kernels.lanes import CompiledFacts
from kernels.results.fields import MeasuredExperiment
from kernels.results.outcome import Device


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
class Counters:
    """One launch as Nsight Compute counted it.

    Attributes:
        tool: the profiler and its version.
        launch: counts of the whole launch, by our names of the metrics: "ld_requests", "dram_read_bytes".
        ops, shared: counts of instructions on global and on shared memory.
    """

    experiment: MeasuredExperiment
    backend: str
    device: Device
    tool: str
    compiled: CompiledFacts
    launch: dict[str, float]
    ops: tuple[OpCounts, ...]
    shared: tuple[SharedCounts, ...]
    note: str = ""


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
class GroupSizeStudy:
    """The same launch with several GROUP_SIZEs, including the experiment's own.

    Attributes:
        tool: the profiler and its version.
        rows: by GROUP_SIZE.
    """

    experiment: MeasuredExperiment
    backend: str
    device: Device
    tool: str
    rows: tuple[GroupSizeRow, ...]
    clock_mhz: int | None = None
    note: str = ""


def with_group_size(experiment: Experiment, size: int | None) -> Experiment:
    """Return the experiment with another GROUP_SIZE; unchanged if `size` is None."""
    if size is None:
        return experiment
    return dataclasses.replace(experiment, config=dataclasses.replace(experiment.config, GROUP_SIZE=size))


def any_group_size(experiment: Experiment) -> Experiment:
    """Return one experiment that represents all that differ in GROUP_SIZE alone."""
    return with_group_size(experiment, 1 if hasattr(experiment.config, "GROUP_SIZE") else None)
