"""Compare a launch's predicted DRAM traffic with the counted traffic and measured times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernels.knobs import ConfigError, knobs
from kernels.results import Compiled, GroupSizeRow, GroupSizeStudy
from kernels.spec import Kernel, Launch
from visualize.predict import coalescing
from visualize.predict.bounds import Bound, bounds, l2_pressure, writes_in_parts
from visualize.predict.reuse import MAX_WAVES, Reuse, asked_bytes, by_group_size, group_sizes, reuse
from visualize.predict.schedule import Schedule, residency, schedule
from visualize.predict.traffic import Operation


@dataclass(frozen=True)
class DramTraffic:
    """Everything known about a launch's DRAM traffic.

    Attributes:
        own: prediction for the launch's own order.
        sizes: prediction for each GROUP_SIZE; {} for a kernel without GROUP_SIZE.
        operations: memory operations of the compiled kernel; () if unknown.
        bounds: the time that each resource needs.
        study: counts and times of several GROUP_SIZEs, or None.
        row: the study's row for the launch's own order, or None.
    """

    kernel: Kernel
    launch: Launch
    schedule: Schedule
    compiled: Compiled | None
    operations: tuple[Operation, ...]
    own: Reuse
    sizes: dict[int, Reuse]
    bounds: tuple[Bound, ...]
    study: GroupSizeStudy | None
    row: GroupSizeRow | None

    @property
    def group_size(self) -> int | None:
        return getattr(self.launch.config, "GROUP_SIZE", None)

    def source(self, live: str) -> str:
        """Return "recorded" for a shipped study, otherwise `live`."""
        return "recorded" if self.study and self.study.backend == "recorded" else live

    @property
    def measured_ms(self) -> float | None:
        return float(np.median(self.row.times_ms)) if self.row else None


def predicted_bytes(
    kernel: Kernel, launch: Launch, compiled: Compiled | None, sizes: tuple[int, int]
) -> tuple[float, float] | None:
    """Predict the bytes read from DRAM with either GROUP_SIZE; None for too many waves."""
    ideal, operations = _asked(kernel, launch, compiled)
    pressure = l2_pressure(bounds(kernel, launch, operations, 0.0, asked_bytes(kernel, launch, ideal)), operations)
    found = by_group_size(kernel, launch, ideal, pressure, sizes)
    return (found[sizes[0]].read_bytes, found[sizes[1]].read_bytes) if found else None


def _asked(kernel: Kernel, launch: Launch, compiled: Compiled | None) -> tuple[Schedule, tuple[Operation, ...]]:
    """Return the launch's schedule in ideal waves, and its memory operations."""
    resident = residency(launch, compiled)
    ideal = schedule(kernel, launch, resident.programs_per_sm, resident.source)
    readable = compiled and not compiled.unreadable
    return ideal, coalescing.operations(kernel, launch, compiled.operations) if compiled and readable else ()


def _refuse_many_waves(ideal: Schedule, launch: Launch) -> None:
    """Reject launches with too many waves.

    Raises:
        ConfigError: a launch with panels has more than MAX_WAVES waves.
    """
    if ideal.panels is None or (waves := int(ideal.step.max()) + 1) <= MAX_WAVES:
        return
    name = "waves" if ideal.turns == 1 else "turns of the programs' loop"
    raise ConfigError(
        "too_many_tiles",
        f"{waves:,} {name} are too many to predict here; at most {MAX_WAVES:,} are allowed. "
        "Make the tile larger or the shape smaller.",
        next(iter(knobs(type(launch.config)))),
    )


def dram_traffic(
    kernel: Kernel, launch: Launch, compiled: Compiled | None, study: GroupSizeStudy | None
) -> DramTraffic:
    """Predict a launch's DRAM traffic, and add a study's counts and times.

    Raises:
        ConfigError: the problem has too many tiles or waves.
    """
    ideal, operations = _asked(kernel, launch, compiled)
    _refuse_many_waves(ideal, launch)
    in_parts = writes_in_parts(operations)
    asked = asked_bytes(kernel, launch, ideal)
    pressure = l2_pressure(bounds(kernel, launch, operations, 0.0, asked), operations)
    own = reuse(kernel, launch, ideal, pressure, in_parts)
    assert own is not None, "launches with too many waves are rejected above"
    size = getattr(launch.config, "GROUP_SIZE", None)
    sizes = by_group_size(kernel, launch, ideal, pressure, group_sizes(ideal)) if size else {}
    row = next((row for row in study.rows if row.group_size == size), None) if study else None
    moved, clock_mhz = own.read_bytes + own.write_bytes, study.clock_mhz if study else None
    needed = bounds(kernel, launch, operations, moved, asked, clock_mhz)
    return DramTraffic(kernel, launch, ideal, compiled, operations, own, sizes, needed, study, row)
