"""One run: launch the kernel on poisoned output, check it against torch, and time it in turns with torch's calls.

The tensors stay in the run worker between the stages. The interpreter times nothing.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from kernels import discover
from kernels.experiment import Experiment, on_any_gpu
from kernels.gpus import Gpu
from kernels.measuring import worker
from kernels.measuring.gated_stream import GatedStream
from kernels.measuring.interpreter import refuse_slow_launch
from kernels.measuring.measurements.measurement import Measurement
from kernels.measuring.prepared import Prepared, interprets, prepare
from kernels.measuring.stages import Stages
from kernels.measuring.timing import RUN as RUN_EFFORT
from kernels.measuring.timing import measure_launch_overhead, sample, summarize_times
from kernels.measuring.worker import as_failure
from kernels.pairs import FEWEST, pair
from kernels.results import Baseline, Check, Diff, Failure, Peak, RunResult, records
from kernels.results.records import RecordForm
from kernels.results.run import RunTimes
from kernels.results.stored import KnownResult
from kernels.spec import DTYPE_BYTES, Family, Launch, shape_text


class RunMeasurement(Measurement[RunResult]):
    """A run ("run"), or one that is checked and not timed ("check")."""

    form = RecordForm("run", RunResult, key=on_any_gpu, compact=RunResult.compact)
    is_interpreted = True

    def __init__(self, name: str, is_timed: bool) -> None:
        self.name = name
        self._is_timed = is_timed

    def refuse_interpreted(self, experiment: Experiment, gpu: Gpu) -> None:
        """Refuse a launch that the interpreter would not finish in reasonable time."""
        recorded = records.find(self.form, experiment, gpu.name)
        alternative = f" Or choose gpu {gpu.name}: a run there was recorded." if recorded else ""
        launch = Launch(experiment.problem, experiment.config, gpu)
        refuse_slow_launch(discover()[experiment.kernel], launch, alternative)

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
        check, diff = stages.work("check", check_output)
        result = functools.partial(RunResult, experiment, device.backend, device, check, diff, stages=stages.seconds)
        if device.backend == "interpreter":
            note = "Run by Triton's interpreter on the CPU: the result is checked, and there is no time to report."
            return result(note=note)
        if not self._is_timed:
            return result(note="Checked, and not timed.")
        if not check.passed:
            return result(note="The result is wrong, so it was not timed.")
        times = stages.work("time", time_run)
        clock_mhz = round(times.clocks.median_mhz) if times.clocks else None
        return result(baseline=times.baseline, clock_mhz=clock_mhz, **vars(times))

    def beside(self, measured: RunResult, recorded: Callable[[], KnownResult | None]) -> RunResult:
        """Add the recorded run on the named GPU to a result of the interpreter, which has no times."""
        if measured.device.backend != "interpreter":
            return measured
        found = recorded()
        return dataclasses.replace(measured, recorded=found.value if found else None)


RUN, CHECK = RunMeasurement("run", is_timed=True), RunMeasurement("check", is_timed=False)


@as_failure("launch")
def launch(experiment: Experiment, gpu: Gpu) -> None:
    """Launch once on fresh inputs and a poisoned output, and wait. This and what follows runs in the run worker."""
    import torch

    worker.hold(None)
    prepared = prepare(experiment, gpu)
    worker.hold(prepared)
    prepared.launch()
    if not interprets():
        torch.cuda.synchronize()


@as_failure("check")
def check_output() -> tuple[Check, Diff]:
    """Compare the launched output with the reference."""
    prepared: Prepared = worker.held()
    return prepared.check()


@as_failure("time")
def time_run() -> RunTimes:
    """Time the kernel and the library's calls in turns, then a call from Python; compute the share of the peak."""
    import torch

    run: Prepared = worker.held()
    family, problem, options = run.kernel.family, run.experiment.problem, run.experiment.run
    library, notes = library_calls(family, run.inputs, torch.empty_like(run.output), problem)
    launch = run.ready()
    samples = sample(GatedStream([launch, *library.values()], options.l2, options.timer), RUN_EFFORT)
    work, minimal_bytes = family.work(problem), family.minimal_bytes(problem)
    kernel_timing, *library_timings = (summarize_times(times, work, minimal_bytes) for times in samples.times_ms)
    baselines = []
    for name, timing, times_ms in zip(library, library_timings, samples.times_ms[1:], strict=True):
        ratio = pair(times_ms, samples.times_ms[0])
        interval = (ratio.low, ratio.high) if len(times_ms) >= FEWEST else ()
        baselines.append(Baseline(name, timing, ratio.ratio, *interval))
    if (best := family.best(problem)) is None:
        rate, what = _copy_gbps()
        peak: Peak | None = Peak(rate, "GB/s", what, share=(kernel_timing.gbps or 0) / rate)
    else:
        # A family that extends another does more in its library call; the peak is that of the plain one.
        peak = _library_peak(family.root, best)
        peak = peak and dataclasses.replace(peak, share=(kernel_timing.tflops or 0) / peak.rate)
    return RunTimes(
        timing=kernel_timing,
        baselines=tuple(baselines),
        peak=peak,
        clocks=samples.clocks,
        launch_overhead=measure_launch_overhead(launch, torch.cuda.synchronize, kernel_timing.median_ms),
        launches_per_sample=samples.launches_per_sample,
        copy_gbps=_copy_gbps()[0],
        note=" ".join(filter(None, [*notes, samples.warning])),
    )


def library_calls(
    family: Family, inputs: Mapping[str, Any], output: Any, problem: Any
) -> tuple[dict[str, Callable[[], Any]], list[str]]:
    """Return the library's calls by name, the family's baseline first, and a sentence for each that is missing."""
    first = family.baseline(inputs, output, problem)
    if isinstance(first, str):
        return {}, [f"No library call to compare with: {first}"]
    calls, missing = {family.baseline_name(problem): first}, []
    for name, call in family.alternatives(inputs, output, problem).items():
        try:
            call()
        except RuntimeError as reason:  # this build of torch, or this GPU, does not support the call for these operands
            missing.append(f"{name} was not timed: {str(reason).strip().splitlines()[0]}")
        else:
            calls[name] = call
    return calls, missing


@functools.cache
def _library_peak(family: Family, problem: Any) -> Peak | None:
    """The best rate of the family's library call, measured once per worker; None if it has none. Its share is 1."""
    import torch

    tensors = {
        name: torch.randn(spec.shape, device="cuda").to(getattr(torch, problem.dtype))
        for name, spec in family.tensors(problem).items()
    }
    call = family.baseline(tensors, tensors.pop(family.output(problem)), problem)
    if isinstance(call, str):
        return None
    what = f"{family.baseline_name(problem)}, {shape_text(problem)} {problem.dtype}, the best of a few"
    return Peak(family.work(problem) / _best_ms(call) / 1e9, "TFLOP/s", what, share=1.0)


@functools.cache
def _copy_gbps() -> tuple[float, str]:
    """The best rate of a large copy, bytes read plus bytes written, measured once per worker."""
    import torch

    size = min(1 << 30, torch.cuda.mem_get_info()[0] // 8)
    source = torch.zeros(size // DTYPE_BYTES["float32"], dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    best_ms = _best_ms(lambda: target.copy_(source))
    return 2 * source.numel() * 4 / best_ms / 1e6, f"a copy of {size / 2**20:.0f} MiB, the best of a few"


def _best_ms(call: Callable[[], Any]) -> float:
    """The fastest of eight launches: a device's peak is its best, not its median."""
    import torch

    call()
    times_ms = []
    for _ in range(8):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times_ms.append(begin.elapsed_time(end))
    return min(times_ms)
