"""What GROUP_SIZE does to a launch on this GPU: bytes that reach DRAM, and time, counted and measured for several.

DRAM's metrics are counted alone, five times, each time with the caches flushed: taken with others, the launch would be
replayed, and the L2's state at its start would be undefined. The L2's are counted once, in a launch of their own. Times
are taken in turns, one launch of each GROUP_SIZE after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kernels.experiment import Experiment
from kernels.lanes import CompiledFacts
from kernels.results.group_size_study import GroupSizeRow, with_group_size
from kernels.runner import ncu
from kernels.runner.ncu import Counting
from kernels.spec import Kernel, Launch

REPEATS = 5

DRAM = {"read": "dram__bytes_read.sum", "write": "dram__bytes_write.sum"}

# Sectors that SMs received, and those that the L2 looked up for SMs: fewer, as one answer can go to several SMs. Both
# leave out what crosses between the L2's halves, which `lts__t_sectors.sum` counts a second time.
L2 = {"received": "l1tex__m_xbar2l1tex_read_sectors.sum", "looked_up": "lts__t_sectors_srcunit_tex_op_read.sum"}
_SECTOR_BYTES = 32

# What DRAM's metrics say of REPEATS launches, and the L2's of one; () and None where nothing was counted.
Counted = tuple[Sequence[dict[str, float]], dict[str, float] | None]


def group_sizes(kernel: Kernel, launch: Launch) -> tuple[int, ...]:
    """Those that are compared: powers of two below the rows of tiles, all rows, and the launch's own; () for none."""
    own, rows = getattr(launch.config, "GROUP_SIZE", None), kernel.extents(launch)["m"]
    if own is None:
        return ()
    return tuple(sorted({*(1 << e for e in range(rows.bit_length()) if 1 << e < rows), rows, own}))


def variants(experiment: Experiment, kernel: Kernel, launch: Launch) -> tuple[Experiment, ...]:
    """The experiment with each GROUP_SIZE that is compared."""
    return tuple(with_group_size(experiment, size) for size in group_sizes(kernel, launch) or (None,))


def counted(
    experiments: Sequence[Experiment], cache: str, started: Callable[[Counting], None] = lambda _: None
) -> tuple[list[Counted], str, str]:
    """For each experiment what is counted of it; by what tool; and why nothing was counted, if it wasn't."""
    try:
        dram = ncu.launched(experiments, DRAM, cache, REPEATS, started)
        l2 = ncu.launched(experiments, L2, cache, 1, started)
    except ncu.CountingFailed as error:
        return [((), None)] * len(experiments), "", str(error)
    return [(dram[first * REPEATS :][:REPEATS], once) for first, once in enumerate(l2)], ncu.tool(), ""


def row(
    experiment: Experiment,
    made: CompiledFacts,
    counted: Counted,
    times_ms: Any,
) -> GroupSizeRow:
    """What was found of one GROUP_SIZE; without counts, where nothing was counted."""
    dram, l2 = counted
    return GroupSizeRow(
        group_size=getattr(experiment.config, "GROUP_SIZE", None),
        registers=made.registers,
        shared_bytes=made.shared_bytes,
        dram_read_bytes=tuple(int(one["read"]) for one in dram),
        dram_write_bytes=tuple(int(one["write"]) for one in dram),
        received_bytes=int(l2["received"]) * _SECTOR_BYTES if l2 else None,
        l2_read_bytes=int(l2["looked_up"]) * _SECTOR_BYTES if l2 else None,
        times_ms=tuple(round(float(time), 6) for time in times_ms),
    )
