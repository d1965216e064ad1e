"""One run: the kernel is launched on poisoned output, checked against torch, and timed in turns with torch's call.

Between its stages the tensors stay in the run worker. Under the interpreter nothing is timed.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kernels import discover
from kernels.equivalence import on_any_gpu
from kernels.experiment import Experiment
from kernels.gpus import Gpu
from kernels.measuring import sampling, timing, worker
from kernels.measuring.interpreter import refuse_what_takes_too_long
from kernels.measuring.measurements.measurement import Measurement
from kernels.measuring.overhead import launch_overhead
from kernels.measuring.prepared import Prepared, interprets, prepare
from kernels.measuring.stages import Stages
from kernels.measuring.worker import as_failure
from kernels.pairs import FEWEST, pair
from kernels.results import Baseline, Check, Diff, Failure, Peak, RunResult, RunTimes, Timing, records
from kernels.results.records import RecordForm
from kernels.spec import DTYPE_BYTES, Family, Launch, shape_text
from kernels.store import Found


class RunMeasurement(Measurement[RunResult]):
    """A run ("run"), or one that is checked and not timed ("check")."""

    form = RecordForm("run", RunResult, key=on_any_gpu, compact=RunResult.compact)
    is_interpreted = True

    def __init__(self, name: str, is_timed: bool) -> None:
        self.name = name
        self._is_timed = is_timed

    def refuse_interpreted(self, experiment: Experiment, gpu: Gpu) -> None:
        """Refuse what the interpreter would not finish in reasonable time."""
        recorded = records.find(self.form, experiment, gpu.name)
        instead = f" Or choose gpu {gpu.name}: a run there was recorded." if recorded else ""
        launch = Launch(experiment.problem, experiment.config, gpu)
        refuse_what_takes_too_long(discover()[experiment.kernel], launch, instead)

    def not_here(self, gpu: Gpu, this: Gpu | None) -> Failure:
        return Failure(
            "config",
            "not_recorded",
            f"This machine has {this.name if this else 'no GPU'}, and no run of this experiment on {gpu.name} was "
            "recorded. Leave gpu out, or choose the first one of the menu, to run it here.",
            "gpu",
        )

    def measure(self, experiment: Experiment, stages: Stages) -> RunResult:
        stages.compile(experiment)
        device = stages.device()
        stages.work("launch", launch, experiment, stages.gpu)
        check, diff = stages.work("check", checked)
        found = functools.partial(RunResult, experiment, device.backend, device, check, diff, stages=stages.seconds)
        if device.backend == "interpreter":
            note = "Run by Triton's interpreter on the CPU: the result is checked, and there is no time to report."
            return found(note=note)
        if not self._is_timed:
            return found(note="Checked, and not timed.")
        if not check.passed:
            return found(note="The result is wrong, so it was not timed.")
        times = stages.work("time", timed)
        clock_mhz = round(times.clocks.median_mhz) if times.clocks else None
        return found(baseline=times.baseline, clock_mhz=clock_mhz, **vars(times))

    def beside(self, measured: RunResult, recorded: Callable[[], Found | None]) -> RunResult:
        """The interpreter gives no time: a run on the GPU that is named stands beside its check."""
        if measured.device.backend != "interpreter":
            return measured
        found = recorded()
        return dataclasses.replace(measured, recorded=found.value if found else None)


RUN, CHECK = RunMeasurement("run", is_timed=True), RunMeasurement("check", is_timed=False)


@as_failure("launch")
def launch(experiment: Experiment, gpu: Gpu) -> None:
    """Make fresh inputs and a poisoned output, launch once, and wait for it. In the run worker, as what follows is."""
    import torch

    worker.hold(None)
    prepared = prepare(experiment, gpu)
    worker.hold(prepared)
    prepared.launch()
    if not interprets():
        torch.cuda.synchronize()


@as_failure("check")
def checked() -> tuple[Check, Diff]:
    """Compare the launched output with the reference."""
    held: Prepared = worker.held()
    return held.check()


@as_failure("time")
def timed() -> RunTimes:
    """Time the kernel and the library's calls in turns, a call from Python, and the share of this device's peak."""
    import torch

    run: Prepared = worker.held()
    family, problem, options = run.kernel.family, run.experiment.problem, run.experiment.run
    theirs, notes = library_calls(family, run.inputs, torch.empty_like(run.output), problem)
    launch = run.ready()
    samples = timing.in_turns([launch, *theirs.values()], l2=options.l2, timer=options.timer, effort=sampling.RUN)
    work, minimal_bytes = family.work(problem), family.minimal_bytes(problem)
    ours, *others = (sampling.timing(times, work, minimal_bytes) for times in samples.times_ms)
    return RunTimes(
        timing=ours,
        baselines=tuple(
            compared(name, other, times, samples.times_ms[0])
            for name, other, times in zip(theirs, others, samples.times_ms[1:], strict=True)
        ),
        peak=_peak(family, problem, ours),
        clocks=samples.clocks,
        launch_overhead=launch_overhead(launch, torch.cuda.synchronize, ours.median_ms),
        launches_per_sample=samples.launches_per_sample,
        copy_gbps=_peak_gbps()[0],
        note=" ".join(filter(None, [*notes, samples.warning])),
    )


def library_calls(
    family: Family, inputs: Mapping[str, Any], output: Any, problem: Any
) -> tuple[dict[str, Callable[[], Any]], list[str]]:
    """The library's calls by name, the one that the family names first; and why one is missing, a sentence each."""
    first = family.baseline(inputs, output, problem)
    if isinstance(first, str):
        return {}, [f"No library call to compare with: {first}"]
    calls, missing = {family.baseline_name(problem): first}, []
    for name, call in family.alternatives(inputs, output, problem).items():
        try:
            call()
        except RuntimeError as reason:  # this build of torch, or this GPU, has no such call for these operands
            missing.append(f"{name} was not timed: {str(reason).strip().splitlines()[0]}")
        else:
            calls[name] = call
    return calls, missing


def compared(name: str, timing: Timing, times_ms: np.ndarray, ours_ms: np.ndarray) -> Baseline:
    """A call of the library's beside the kernel: the ratio of times that were taken in turns.

    Args:
        times_ms, ours_ms: (turns,).
    """
    ratio = pair(times_ms, ours_ms)
    if len(ours_ms) < FEWEST:
        return Baseline(name, timing, ratio.ratio)
    return Baseline(name, timing, ratio.ratio, ratio.low, ratio.high)


def _peak(family: Family, problem: Any, ours: Timing) -> Peak | None:
    """The share of the best that this device was measured to do; None where the library has no call for it."""
    best = family.best(problem)
    if best is None:
        rate, what = _peak_gbps()
        return Peak(rate, "GB/s", what, share=(ours.gbps or 0) / rate)
    # A family that extends another does more in its library call; the best is that of the plain one.
    measured = _peak_tflops(family.root, best)
    return measured and Peak(measured[0], "TFLOP/s", measured[1], share=(ours.tflops or 0) / measured[0])


@functools.cache
def _peak_tflops(family: Family, problem: Any) -> tuple[float, str] | None:
    """The best rate of the family's library call at `problem`, on this device, measured once per worker."""
    import torch

    tensors = {
        name: torch.randn(spec.shape, device="cuda").to(getattr(torch, problem.dtype))
        for name, spec in family.tensors(problem).items()
    }
    call = family.baseline(tensors, tensors.pop(family.output(problem)), problem)
    if isinstance(call, str):
        return None
    work = family.work(problem)
    shape = shape_text(problem)
    what = f"{family.baseline_name(problem)}, {shape} {problem.dtype}, the best of a few"
    return work / timing.best_ms(call) / 1e9, what


@functools.cache
def _peak_gbps() -> tuple[float, str]:
    """The best rate of a large copy on this device, bytes read plus bytes written, measured once per worker."""
    import torch

    size = min(1 << 30, torch.cuda.mem_get_info()[0] // 8)
    source = torch.zeros(size // DTYPE_BYTES["float32"], dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    best = timing.best_ms(lambda: target.copy_(source))
    return 2 * source.numel() * 4 / best / 1e6, f"a copy of {size / 2**20:.0f} MiB, the best of a few"
