"""What GROUP_SIZE does to a launch on this GPU: bytes that reach DRAM, and time, counted and measured for several.

DRAM's metrics are counted alone, five times, each time with the caches flushed: taken with others, the launch would be
replayed, and the L2's state at its start would be undefined. The L2's are counted once, in a launch of their own. Times
are taken in turns, one launch of each GROUP_SIZE after the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kernels.experiment import Experiment
from kernels.lanes import Facts
from kernels.runner import counters
from kernels.runner.counters import Counting
from kernels.runner.results import Device
from kernels.spec import Kernel, Launch

REPEATS = 5

DRAM = {"read": "dram__bytes_read.sum", "write": "dram__bytes_write.sum"}

# Sectors that SMs received, and those that the L2 looked up for SMs: fewer, as one answer can go to several SMs. Both
# leave out what crosses between the L2's halves, which `lts__t_sectors.sum` counts a second time.
L2 = {"received": "l1tex__m_xbar2l1tex_read_sectors.sum", "looked_up": "lts__t_sectors_srcunit_tex_op_read.sum"}
_SECTOR_BYTES = 32

# What DRAM's metrics say of REPEATS launches, and the L2's of one; () and None where nothing was counted.
Counted = tuple[Sequence[dict[str, float]], dict[str, float] | None]


@dataclass(frozen=True)
class ReuseRow:
    """One GROUP_SIZE.

    Attributes:
        group_size: None for a kernel that has none.
        registers, shared_bytes: of its compiled kernel, a thread's and a program's.
        dram_read_bytes, dram_write_bytes: of each counted launch.
        received_bytes: what SMs received of global memory, loads that hit in L1 left out; None where not counted.
        l2_read_bytes: what the L2 looked up for that; one answer can go to several SMs. None where not counted.
        times_ms: of each turn.
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
class ReuseStudy:
    """The same launch with several GROUP_SIZEs, that of `experiment` among them.

    Attributes:
        tool: what counted, with its version.
        rows: by GROUP_SIZE.
    """

    experiment: Experiment
    backend: str
    device: Device
    tool: str
    rows: tuple[ReuseRow, ...]
    clock_mhz: int | None = None
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """As it is recorded."""
        return {
            **dataclasses.asdict(self),
            "experiment": self.experiment.to_json(),
            "rows": [dataclasses.asdict(row) for row in self.rows],
        }


def group_sizes(kernel: Kernel, launch: Launch) -> tuple[int, ...]:
    """Those that are compared: powers of two below the rows of tiles, all rows, and the launch's own; () for none."""
    own, rows = getattr(launch.config, "GROUP_SIZE", None), kernel.extents(launch)["m"]
    if own is None:
        return ()
    return tuple(sorted({*(1 << e for e in range(rows.bit_length()) if 1 << e < rows), rows, own}))


def with_group_size(experiment: Experiment, size: int | None) -> Experiment:
    """The experiment with another GROUP_SIZE; itself, where there is none."""
    if size is None:
        return experiment
    return dataclasses.replace(experiment, config=dataclasses.replace(experiment.config, GROUP_SIZE=size))


def any_group_size(experiment: Experiment) -> Experiment:
    """One experiment that stands for all that differ in GROUP_SIZE alone."""
    return with_group_size(experiment, 1 if hasattr(experiment.config, "GROUP_SIZE") else None)


def variants(experiment: Experiment, kernel: Kernel, launch: Launch) -> tuple[Experiment, ...]:
    """The experiment with each GROUP_SIZE that is compared."""
    return tuple(with_group_size(experiment, size) for size in group_sizes(kernel, launch) or (None,))


def counted(
    experiments: Sequence[Experiment], cache: str, started: Callable[[Counting], None] = lambda _: None
) -> tuple[list[Counted], str, str]:
    """For each experiment what is counted of it; by what tool; and why nothing was counted, if it wasn't."""
    try:
        dram = counters.launched(experiments, DRAM, cache, REPEATS, started)
        l2 = counters.launched(experiments, L2, cache, 1, started)
    except counters.CountingFailed as error:
        return [((), None)] * len(experiments), "", str(error)
    return [(dram[first * REPEATS :][:REPEATS], once) for first, once in enumerate(l2)], counters.tool(), ""


def row(
    experiment: Experiment,
    made: Facts,
    counted: Counted,
    times_ms: Any,
) -> ReuseRow:
    """What was found of one GROUP_SIZE; without counts, where nothing was counted."""
    dram, l2 = counted
    return ReuseRow(
        group_size=getattr(experiment.config, "GROUP_SIZE", None),
        registers=made.registers,
        shared_bytes=made.shared_bytes,
        dram_read_bytes=tuple(int(one["read"]) for one in dram),
        dram_write_bytes=tuple(int(one["write"]) for one in dram),
        received_bytes=int(l2["received"]) * _SECTOR_BYTES if l2 else None,
        l2_read_bytes=int(l2["looked_up"]) * _SECTOR_BYTES if l2 else None,
        times_ms=tuple(round(float(time), 6) for time in times_ms),
    )
