"""What GROUP_SIZE does to a launch: bytes that reach DRAM, and time, counted and measured for several.

DRAM's metrics are counted alone, five times, each time with the caches flushed: taken with others, the launch would be
replayed, and the L2's state at its start would be undefined. The L2's are counted once, in a launch of their own. Times
are taken in turns, one launch of each GROUP_SIZE after the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from kernels import discover
from kernels.equivalence import same_launch
from kernels.experiment import Experiment
from kernels.gpus import Gpu
from kernels.lanes import CompiledFacts
from kernels.measuring import ncu
from kernels.measuring.measurements.measurement import Incomplete, Measurement
from kernels.measuring.prepared import prepare
from kernels.measuring.stages import Stages
from kernels.measuring.timing import in_turns
from kernels.measuring.worker import as_failure
from kernels.results import GroupSizeRow, GroupSizeStudy
from kernels.results.counters import any_group_size, with_group_size
from kernels.results.records import RecordForm
from kernels.spec import Kernel, Launch

REPEATS = 5

DRAM = {"read": "dram__bytes_read.sum", "write": "dram__bytes_write.sum"}

# Sectors that SMs received, and those that the L2 looked up for SMs: fewer, as one answer can go to several SMs. Both
# leave out what crosses between the L2's halves, which `lts__t_sectors.sum` counts a second time.
L2 = {"received": "l1tex__m_xbar2l1tex_read_sectors.sum", "looked_up": "lts__t_sectors_srcunit_tex_op_read.sum"}
_SECTOR_BYTES = 32

# What DRAM's metrics say of REPEATS launches, and the L2's of one; () and None where nothing was counted.
Counted = tuple[Sequence[dict[str, float]], dict[str, float] | None]
UNCOUNTED: Counted = ((), None)


class GroupSizesMeasurement(Measurement[GroupSizeStudy]):
    name = "reuse"
    form = RecordForm("reuse", GroupSizeStudy, key=lambda experiment: any_group_size(same_launch(experiment)))
    takes = "GROUP_SIZEs are compared on a GPU"
    missing = "no comparison of this experiment on {gpu} was recorded"

    def measure(self, experiment: Experiment, stages: Stages) -> GroupSizeStudy | Incomplete[GroupSizeStudy]:
        """Count and time each GROUP_SIZE; where nothing can be counted, time alone, with the reason."""
        kernel, launch = discover()[experiment.kernel], Launch(experiment.problem, experiment.config, stages.gpu)
        several = variants(experiment, kernel, launch)
        compiled = stages.compiled(*several)
        counts, tool, uncounted = [UNCOUNTED] * len(several), "", ""
        try:
            counts, tool = stages.count(counted, several), ncu.tool()
        except ncu.CountingFailed as error:
            uncounted = str(error)
        device = stages.device()
        times_ms, clock_mhz, note = stages.work("time", time_in_turns, several, stages.gpu)
        rows = tuple(map(row, several, compiled, counts, times_ms))
        study = GroupSizeStudy(experiment, "cuda", device, tool, rows, clock_mhz, f"{uncounted} {note}".strip())
        return Incomplete(study, uncounted) if uncounted else study


GROUP_SIZES = GroupSizesMeasurement()


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
    experiments: Sequence[Experiment], *, cache: str, started: Callable[[ncu.Counting], None] = lambda _: None
) -> list[Counted]:
    """What is counted of each experiment.

    Raises:
        CountingFailed: as `ncu.launched` does.
    """
    dram = ncu.launched(experiments, DRAM, cache, REPEATS, started)
    l2 = ncu.launched(experiments, L2, cache, 1, started)
    return [(dram[first * REPEATS :][:REPEATS], once) for first, once in enumerate(l2)]


@as_failure("time")
def time_in_turns(experiments: tuple[Experiment, ...], gpu: Gpu) -> tuple[Any, int | None, str]:
    """Time launches on the same inputs in turns. In the run worker.

    Returns:
        (experiments, samples) milliseconds; the SM clock in MHz, and why it is not known.
    """
    first, options = prepare(experiments[0], gpu), experiments[0].run
    calls = [dataclasses.replace(first, experiment=experiment).launch for experiment in experiments]
    samples = in_turns(calls, l2=options.l2, timer=options.timer)
    return samples.times_ms, samples.clock_mhz, samples.note


def row(experiment: Experiment, compiled: CompiledFacts, counts: Counted, times_ms: Any) -> GroupSizeRow:
    """What was found of one GROUP_SIZE; without counts, where nothing was counted."""
    dram, l2 = counts
    return GroupSizeRow(
        group_size=getattr(experiment.config, "GROUP_SIZE", None),
        registers=compiled.registers,
        shared_bytes=compiled.shared_bytes,
        dram_read_bytes=tuple(int(one["read"]) for one in dram),
        dram_write_bytes=tuple(int(one["write"]) for one in dram),
        received_bytes=int(l2["received"]) * _SECTOR_BYTES if l2 else None,
        l2_read_bytes=int(l2["looked_up"]) * _SECTOR_BYTES if l2 else None,
        times_ms=tuple(round(float(time), 6) for time in times_ms),
    )
