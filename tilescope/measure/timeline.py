"""Record when and on which SM each program of a launch ran, with an instrumented build of the kernel."""

import dataclasses

import numpy as np

from tilescope.compiling.instrumented import TIMED_FIELDS, add_timer
from tilescope.declare.experiment import Experiment, launch_key, launch_of
from tilescope.declare.gpus import Gpu
from tilescope.declare.knobs import ConfigError
from tilescope.measure.gated_stream import GatedStream
from tilescope.measure.measurement import Job, Measurement
from tilescope.measure.run import prepare
from tilescope.measure.timing import STUDY, sample, summarize_times
from tilescope.results import Device, Failure, Stopped, Timeline, records

MAX_PROGRAMS = 65_536

# Warm-up launches right before the recorded launch. Few suffice, because timing the build has already raised the clock.
_WARM_UP = 5

# No program writes this value, because times and SM ids are not negative. A program that writes once increments
# `writes` to 0.
_POISON = -1


def refuse_large_launch(experiment: Experiment, gpu: Gpu, is_interpreted: bool) -> None:
    """Refuse a launch of more than MAX_PROGRAMS programs."""
    kernel, launch = launch_of(experiment, gpu)
    programs = kernel.programs(launch)
    if programs > MAX_PROGRAMS:
        excess = (
            f"This launch has {programs:,} programs; a timeline holds at most {MAX_PROGRAMS:,}."
        )
        raise ConfigError("too_many_programs", f"{excess} Choose larger tiles or a smaller shape.")


def measure_timeline(job: Job) -> Timeline:
    job.compile()
    job.compile(is_timed=True)
    return job.work("time", timeline, job.experiment, job.gpu, job.device())


TIMELINE = Measurement(
    "timeline",
    records.RecordForm("timeline", Timeline, key=launch_key, keeps_run=True),
    measure_timeline,
    "Recording a timeline needs the GPU: this machine has {this}, and no timeline of this experiment on {gpu} was "
    "recorded.",
    refuse_large_launch,
)


def timeline(experiment: Experiment, gpu: Gpu, device: Device) -> Timeline:
    """Check the instrumented build's output, time it alternately with the kernel, and record one warm launch.

    Runs in the run worker.

    Raises:
        Stopped: as for `read_record`.
    """
    import torch

    plain = prepare(experiment, gpu)
    programs = plain.kernel.programs(plain.setting)
    record = torch.full((programs, len(TIMED_FIELDS)), _POISON, dtype=torch.int64, device="cuda")
    instrumented = dataclasses.replace(plain, kernel=add_timer(plain.kernel, record))
    build = instrumented.launch()
    passed = instrumented.check()[0].passed
    registers = plain.launch().n_regs, build.n_regs
    run = experiment.run
    samples = sample(GatedStream([plain.launch, instrumented.launch], run.l2, run.timer), STUDY)
    timings = [
        summarize_times(times, plain.kernel.family, experiment.problem)
        for times in samples.times_ms
    ]
    launches = [
        *[instrumented.launch] * _WARM_UP,
        lambda: record.fill_(_POISON),
        instrumented.launch,
    ]
    kernel_ms = float(GatedStream(launches, run.l2, "events").time_in_order()[-1])
    fields = read_record(record.cpu().numpy())
    return Timeline(
        experiment, device.backend, device, *fields, kernel_ms, plain=timings[0], instrumented=timings[1],
        registers=registers, passed=passed, clock_mhz=samples.clock_mhz, note=samples.note,
    )  # fmt: skip


def read_record(rows: np.ndarray) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the SM, start and end of each program. Times are in ns since the first start.

    Args:
        rows: (programs, 4) int64, TIMED_FIELDS of each program, poisoned before the launch.

    Raises:
        Stopped: a program did not write exactly once, or wrote impossible values.
    """
    start, end, sm, writes = rows.T
    wrong = (writes != _POISON + 1) | (start < 0) | (end < start) | (sm < 0)
    if wrong.any():
        count = f"{np.count_nonzero(wrong):,} of {len(rows):,} programs"
        message = f"{count} did not record one start and one end; the first is program {np.flatnonzero(wrong)[0]}."
        raise Stopped(Failure("time", "not_written_once", message))
    first = start.min()
    return tuple(sm.tolist()), tuple((start - first).tolist()), tuple((end - first).tolist())
