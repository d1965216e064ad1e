"""One run: the kernel is launched on poisoned output, checked against torch, and timed in turns with torch's call.

Between its stages the tensors stay in the run worker. Under the interpreter nothing is timed.
"""

from __future__ import annotations

import functools
from typing import Any

from kernels import discover, records
from kernels.equivalence import on_any_gpu
from kernels.experiment import Experiment
from kernels.gpus import Gpu
from kernels.records import RecordForm
from kernels.results import Baseline, Check, Diff, Failure, Peak, RunResult, Timing
from kernels.runner import timing, worker
from kernels.runner.interpreter import refuse_what_takes_too_long
from kernels.runner.measurements.measurement import Measurement
from kernels.runner.prepared import Prepared, interprets, prepare
from kernels.runner.stages import Stages
from kernels.runner.worker import as_failure
from kernels.spec import DTYPE_BYTES, Family, Launch


def _read(fields: dict[str, Any]) -> dict[str, Any]:
    """A line's fields as RunResult has them: a line may hold no picture, and has the library's times beside its name.

    It repeats two fields of the experiment, as the API's reply does.
    """
    plain, baseline = {name: value for name, value in fields.items() if name not in ("l2", "distribution")}, None
    if fields["baseline"]:
        times = dict(fields["baseline"])
        baseline = {"name": times.pop("name"), "ratio": times.pop("ratio"), "timing": times}
    return {"diff": None, **plain, "baseline": baseline}


class RunMeasurement(Measurement[RunResult]):
    """A run ("run"), or one that is checked and not timed ("check")."""

    form = RecordForm("run", RunResult, key=on_any_gpu, written=RunResult.to_record, read=_read, is_compact=False)
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
            return found(recorded=records.find(self.form, experiment, stages.gpu.name), note=note)
        if not self._is_timed:
            return found(note="Checked, and not timed.")
        if not check.passed:
            return found(note="The result is wrong, so it was not timed.")
        own, baseline, peak, clock_mhz, note = stages.work("time", timed)
        return found(timing=own, baseline=baseline, peak=peak, clock_mhz=clock_mhz, note=note)


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
def timed() -> tuple[Timing, Baseline | None, Peak | None, int | None, str]:
    """Time the kernel and the library's call in turns; then the share of this device's measured peak.

    Returns:
        The kernel's time, the library's, the peak, the SM clock in MHz, and what a reader must know.
    """
    import torch

    run: Prepared = worker.held()
    family, problem, options = run.kernel.family, run.experiment.problem, run.experiment.run
    theirs = family.baseline(run.inputs, torch.empty_like(run.output), problem)
    calls = [run.launch] if isinstance(theirs, str) else [run.launch, theirs]
    samples = timing.in_turns(calls, l2=options.l2, timer=options.timer)
    work, minimal_bytes = family.work(problem), family.minimal_bytes(problem)
    ours, *others = (timing.timing(times, work, minimal_bytes) for times in samples.times_ms)
    baseline, notes = None, [samples.clock_note]
    if others:
        baseline = Baseline(family.baseline_name(problem), others[0], ratio=others[0].median_ms / ours.median_ms)
    else:
        notes.append(f"No library call to compare with: {theirs}")
    return ours, baseline, _peak(family, problem, ours), samples.clock_mhz, " ".join(note for note in notes if note)


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
    shape = " × ".join(str(size) for size in vars(problem).values() if isinstance(size, int))
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
