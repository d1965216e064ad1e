"""Compare a launch's GROUP_SIZEs: count the DRAM bytes and measure the time of each.

DRAM metrics are counted separately, in five launches, each with flushed caches. With more metrics, ncu would replay the
launch, and the L2's initial state would be undefined. L2 metrics are counted once, in a separate launch. Timed launches
alternate between the GROUP_SIZEs.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from tilescope.declare.experiment import Experiment, launch_key, launch_of
from tilescope.declare.gpus import Gpu
from tilescope.evaluate.instructions import CompiledFacts
from tilescope.evaluate.sectors import SECTOR_BYTES
from tilescope.measure.counters import count
from tilescope.measure.gated_stream import GatedStream
from tilescope.measure.measurement import Job, Measurement
from tilescope.measure.ncu import L2, tool
from tilescope.measure.run import prepare
from tilescope.measure.timing import STUDY, Samples, sample
from tilescope.results import Failure, GroupSizeRow, GroupSizeStudy, records
from tilescope.results.counters import any_group_size, with_group_size

REPEATS = 5

DRAM = ("dram_read_bytes", "dram_write_bytes")

# DRAM metrics of REPEATS launches and L2 metrics of one launch; () and None if nothing was counted.
Counts = tuple[Sequence[dict[str, float]], dict[str, float] | None]


def variants(experiment: Experiment, gpu: Gpu) -> tuple[Experiment, ...]:
    """Return the experiment with each GROUP_SIZE to compare: its own, powers of two, and the number of rows of tiles.

    Powers of two stop below the number of rows. A kernel without GROUP_SIZE has a single variant.
    """
    own = getattr(experiment.config, "GROUP_SIZE", None)
    if own is None:
        return (experiment,)
    kernel, launch = launch_of(experiment, gpu)
    rows = kernel.extents(launch)["m"]
    sizes = sorted({*(1 << e for e in range(rows.bit_length()) if 1 << e < rows), rows, own})
    return tuple(with_group_size(experiment, size) for size in sizes)


def count_variants(experiments: Sequence[Experiment], **how: Any) -> list[Counts]:
    """Count the DRAM and L2 traffic of each experiment.

    Args:
        how: the cache and the callback of `count`.

    Raises:
        CountingFailed: as for `count`.
    """
    dram = count(experiments, DRAM, repeats=REPEATS, by_instruction=False, **how)
    l2 = count(experiments, L2, by_instruction=False, **how)
    return [
        ([launch for launch, _ in dram[place * REPEATS :][:REPEATS]], launch)
        for place, (launch, _) in enumerate(l2)
    ]


def time_variants(experiments: tuple[Experiment, ...], gpu: Gpu) -> Samples:
    """Time the variants in alternating launches on the same inputs. Runs in the run worker."""
    first = prepare(experiments[0], gpu)
    options = experiments[0].run
    calls = [dataclasses.replace(first, experiment=experiment).launch for experiment in experiments]
    return sample(GatedStream(calls, options.l2, options.timer), STUDY)


def make_row(
    experiment: Experiment, compiled: CompiledFacts, counts: Counts, times_ms: Any
) -> GroupSizeRow:
    """Combine the counts and times of one GROUP_SIZE."""
    dram, l2 = counts
    size = getattr(experiment.config, "GROUP_SIZE", None)
    read, written = (tuple(int(launch[name]) for launch in dram) for name in DRAM)
    received, looked_up = (int(l2[name]) * SECTOR_BYTES if l2 else None for name in L2)
    times = tuple(round(float(time), 6) for time in times_ms)
    return GroupSizeRow(
        size, compiled.registers, compiled.shared_bytes, read, written, received, looked_up, times
    )


def compare_group_sizes(job: Job) -> GroupSizeStudy:
    """Count and time each GROUP_SIZE. If counting fails, return a recording or, without one, times and the reason."""
    experiment = job.experiment
    experiments = variants(experiment, job.gpu)
    compiled = job.compile_all(*experiments)
    counts = job.count(count_variants, experiments)
    uncounted = ""
    if isinstance(counts, Failure):
        if recording := job.find_recording(GROUP_SIZES, counts.message):
            return recording
        uncounted = counts.message
        counts = [((), None)] * len(experiments)
    device = job.device()
    samples = job.work("time", time_variants, experiments, job.gpu)
    rows = tuple(map(make_row, experiments, compiled, counts, samples.times_ms))
    profiler = "" if uncounted else tool()
    note = f"{uncounted} {samples.note}".strip()
    return GroupSizeStudy(experiment, "cuda", device, profiler, rows, samples.clock_mhz, note=note)


GROUP_SIZES = Measurement(
    "reuse",
    records.RecordForm(
        "reuse", GroupSizeStudy, key=lambda experiment: any_group_size(launch_key(experiment))
    ),
    compare_group_sizes,
    "Comparing GROUP_SIZEs needs a GPU: this machine has {this}, and no comparison of this experiment on {gpu} is "
    "recorded.",
)
