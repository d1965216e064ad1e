"""Launch a kernel's timed build, and read what its programs wrote down. Torch; runs in the worker."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from kernels.compiled.instrumented import FIELDS, timed
from kernels.experiment import Experiment
from kernels.results import Device, Failure, Timeline
from kernels.runner.prepared import prepare
from kernels.runner.timing import Samples, in_a_row, in_turns, timing

if TYPE_CHECKING:
    from kernels.gpus import Gpu

# Launches right before the one that is recorded. The build has just been timed, so the clock is up already.
_WARM_UP = 5

# What no program writes: times and SMs are not negative. `writes` is one less than how often a program wrote.
_POISON = -1


def timeline(experiment: Experiment, gpu: Gpu, device: Device) -> Timeline | Failure:
    """Check the timed build's output, time it beside the kernel, and record one warm launch of it.

    Returns:
        The timeline; or a Failure where a program did not write once, or wrote what can't be.
    """
    import torch

    plain = prepare(experiment, gpu)
    programs = plain.kernel.programs(plain.setting)
    record = torch.full((programs, len(FIELDS)), _POISON, dtype=torch.int64, device="cuda")
    instrumented = dataclasses.replace(plain, kernel=timed(plain.kernel, record))
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
        registers=registers, passed=passed, clock_mhz=samples.clock_mhz, note=samples.clock_note,
    )  # fmt: skip


def _recorded_ms(launch: Any, record: Any, l2: str) -> float:
    """Launch with fresh poison in the record, behind some warm launches; the time of that launch."""
    warm: Samples = in_a_row([*[launch] * _WARM_UP, lambda: record.fill_(_POISON), launch], l2)
    return float(warm.times_ms[-1, 0])


def written_once(rows: np.ndarray) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | Failure:
    """SM, start and end of each program, in ns from the first start.

    Args:
        rows: (programs, 4) int64, FIELDS of each program, on fresh poison.
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
