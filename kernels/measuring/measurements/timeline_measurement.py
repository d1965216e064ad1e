"""When and where each program of a launch ran: a build of the kernel writes it down, beside the kernel's own time."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from kernels import discover
from kernels.compiling import compiler
from kernels.compiling.instrumented import TIMED_FIELDS, add_timer
from kernels.equivalence import same_launch
from kernels.experiment import Experiment
from kernels.gpus import Gpu
from kernels.knobs import ConfigError
from kernels.measuring.measurements.measurement import Measurement
from kernels.measuring.prepared import prepare
from kernels.measuring.sampling import timing
from kernels.measuring.stages import Stages
from kernels.measuring.timing import in_a_row, in_turns
from kernels.measuring.worker import as_failure
from kernels.results import Device, Failure, Timeline
from kernels.results.records import RecordForm
from kernels.spec import Launch

MOST_PROGRAMS = 65_536

# Launches right before the one that is recorded. The build has just been timed, so the clock is up already.
_WARM_UP = 5

# What no program writes: times and SMs are not negative. `writes` is one less than how often a program wrote.
_POISON = -1


class TimelineMeasurement(Measurement[Timeline]):
    name = "timeline"
    form = RecordForm("timeline", Timeline, key=same_launch, keeps_run=True)
    takes = "A timeline is taken on a GPU"
    missing = "none of this experiment on {gpu} was recorded"

    def refuse(self, experiment: Experiment, gpu: Gpu) -> None:
        """Refuse a launch of more than MOST_PROGRAMS programs, and say how many it has."""
        programs = discover()[experiment.kernel].programs(Launch(experiment.problem, experiment.config, gpu))
        if programs > MOST_PROGRAMS:
            raise ConfigError(
                "too_many_programs",
                f"This launch has {programs:,} programs; a timeline holds at most {MOST_PROGRAMS:,}. "
                "Choose larger tiles or a smaller shape.",
            )

    def measure(self, experiment: Experiment, stages: Stages) -> Timeline:
        stages.compile(experiment)
        stages.compile(experiment, compiler.compile_timed_build)
        return stages.work("time", timeline, experiment, stages.gpu, stages.device())


TIMELINE = TimelineMeasurement()


@as_failure("time")
def timeline(experiment: Experiment, gpu: Gpu, device: Device) -> Timeline | Failure:
    """Check the timed build's output, time it beside the kernel, and record one warm launch of it. In the run worker.

    Returns:
        The timeline; or a Failure where a program did not write once, or wrote what can't be.
    """
    import torch

    plain = prepare(experiment, gpu)
    programs = plain.kernel.programs(plain.setting)
    record = torch.full((programs, len(TIMED_FIELDS)), _POISON, dtype=torch.int64, device="cuda")
    instrumented = dataclasses.replace(plain, kernel=add_timer(plain.kernel, record))
    built = instrumented.launch()
    passed = instrumented.check()[0].passed
    registers = plain.launch().n_regs, built.n_regs
    run, family = experiment.run, plain.kernel.family
    samples = in_turns([plain.launch, instrumented.launch], l2=run.l2, timer=run.timer)
    work, minimal_bytes = family.work(experiment.problem), family.minimal_bytes(experiment.problem)
    ours, theirs = (timing(times, work, minimal_bytes) for times in samples.times_ms)
    kernel_ms = _recorded_ms(instrumented.launch, record, run.l2)
    written = written_once(record.cpu().numpy())
    if isinstance(written, Failure):
        return written
    sm, start_ns, end_ns = written
    return Timeline(
        experiment, device.backend, device, sm, start_ns, end_ns, kernel_ms, plain=ours, instrumented=theirs,
        registers=registers, passed=passed, clock_mhz=samples.clock_mhz, note=samples.note,
    )  # fmt: skip


def _recorded_ms(launch: Any, record: Any, l2: str) -> float:
    """Launch with fresh poison in the record, behind some warm launches; the time of that launch."""
    return float(in_a_row([*[launch] * _WARM_UP, lambda: record.fill_(_POISON), launch], l2)[-1])


def written_once(rows: np.ndarray) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | Failure:
    """SM, start and end of each program, in ns from the first start.

    Args:
        rows: (programs, 4) int64, TIMED_FIELDS of each program, on fresh poison.
    """
    start, end, sm, writes = rows.T
    wrong = (writes != _POISON + 1) | (start < 0) | (end < start) | (sm < 0)
    if wrong.any():
        return Failure(
            "time",
            "not_written_once",
            f"{np.count_nonzero(wrong):,} of {len(rows):,} programs did not write down one start and end: program "
            f"{np.flatnonzero(wrong)[0]} is the first.",
        )
    first = start.min()
    return tuple(sm.tolist()), tuple((start - first).tolist()), tuple((end - first).tolist())
