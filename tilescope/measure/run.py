"""One run: launch the kernel on poisoned output, check it against torch, and time it alternately with torch's calls.

The tensors stay in the run worker between the job. Everything except `measure_run` and `refuse_slow_run` runs in the
worker. The interpreter times nothing.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilescope.compiling.estimates import estimate_shared_bytes
from tilescope.declare.experiment import Experiment, launch_of, without_gpu
from tilescope.declare.gpus import Gpu
from tilescope.declare.knobs import ConfigError
from tilescope.declare.numerics import values
from tilescope.declare.spec import (
    DTYPE_BYTES,
    Allowance,
    Family,
    Kernel,
    Launch,
    TensorSpec,
    explain_slow_launch,
    shape_text,
)
from tilescope.measure import check, timing, worker
from tilescope.measure.gated_stream import GatedStream
from tilescope.measure.measurement import Job, Measurement
from tilescope.measure.timing import FEWEST, pair
from tilescope.results import Baseline, Check, Diff, Peak, RunResult, records


@dataclasses.dataclass
class Prepared:
    """The tensors of one launch as the kernel addresses them. A transposed operand is a view of the stored tensor.

    Attributes:
        workspaces: tensors by name and spec, allocated by `bind`. Configs that are launched on the same inputs share a
            workspace if its name and spec match.
    """

    experiment: Experiment
    kernel: Kernel
    gpu: Gpu
    inputs: dict[str, Any]
    output: Any
    workspaces: dict[tuple[str, TensorSpec], Any] = dataclasses.field(default_factory=dict)

    @property
    def setting(self) -> Launch:
        return Launch(self.experiment.problem, self.experiment.config, self.gpu)

    @property
    def outputs(self) -> Sequence[Any]:
        return (self.output,)

    def poison(self) -> None:
        """Fill the output with NaN, or with zeros if the kernel accumulates into it."""
        self.output.fill_(0.0 if self.kernel.zeroed_output else float("nan"))

    def explain_wrong(self) -> str:
        """Return a sentence that says how the output differs from the reference; "" if it passes."""
        return describe_wrong_result(self.check()[0])

    def launch(self) -> Any:
        """Launch once without waiting. Return Triton's compiled kernel, unless interpreted."""
        return self.bind()()

    def bind(self) -> Callable[[], Any]:
        """Return a function that launches with the grid and arguments bound, after its copies, to call in a loop."""
        import torch

        setting = self.setting
        specs = self.kernel.workspaces(setting)
        for name, spec in specs.items():
            if (name, spec) not in self.workspaces:
                dtype = getattr(torch, spec.dtype_in(setting.problem))
                empty = torch.empty_strided(
                    spec.shape, spec.strides, dtype=dtype, device=self.output.device
                )
                is_zeroed = spec.starts_zeroed or spec.copy_of
                self.workspaces[name, spec] = empty.zero_() if is_zeroed else empty
        workspaces = {name: self.workspaces[name, spec] for name, spec in specs.items()}
        tensors = {
            **self.inputs,
            self.kernel.family.output(setting.problem): self.output,
            **workspaces,
        }
        launch = functools.partial(
            self.kernel.jitted[self.kernel.grid(setting)],
            **self.kernel.arguments(tensors, setting),
        )
        copies = []
        for name, spec in specs.items():
            if spec.copy_of:
                source = self.inputs[spec.copy_of]
                rows, columns = source.shape
                copies.append((workspaces[name][:rows, :columns], source))

        def copy_and_launch() -> Any:
            for target, source in copies:
                target.copy_(source)
            return launch()

        return copy_and_launch if copies else launch

    def check(self) -> tuple[Check, Diff]:
        """Compare the output with the reference."""
        tile = self.kernel.output_tile(self.setting)
        return check.check(self.output, self.inputs, self.kernel.family, self.allowance, tile)

    @property
    def allowance(self) -> Allowance | None:
        """The error that rounding explains; None if the output must equal the reference."""
        kernel = self.kernel
        setting = self.setting
        if kernel.family.allowance is None:
            return None
        return kernel.family.allowance(
            setting.problem,
            kernel.roundings(setting),
            self.experiment.run.distribution,
            None if worker.interprets() else setting.gpu.compute_capability,
        )


def prepare(experiment: Experiment, gpu: Gpu) -> Prepared:
    """Make inputs from the experiment's seed, and an output of NaN, or of zeros for a kernel that accumulates into it.

    Raises:
        InsufficientMemory: raised before any tensor is allocated.
    """
    import torch

    kernel, setting = launch_of(experiment, gpu)
    device = "cpu" if worker.interprets() else "cuda"
    dtype = getattr(torch, experiment.problem.dtype)
    specs = kernel.family.tensors(experiment.problem)
    workspaces = kernel.workspaces(setting)
    if device == "cuda":
        allocated = peak = (
            0  # bytes: values are drawn in float32 and then converted, one tensor at a time
        )
        for spec in (*specs.values(), *workspaces.values()):
            allocated += spec.stored_bytes(experiment.problem)
            is_drawn = spec.is_input and spec not in workspaces.values()
            peak = max(
                peak,
                allocated + (4 * math.prod(spec.stored) if is_drawn and dtype.itemsize != 4 else 0),
            )
        check.require_memory(peak, "These tensors")
    generator = torch.Generator(device).manual_seed(experiment.run.seed)
    inputs = {}
    for name, spec in specs.items():
        if spec.is_input:
            stored = values(experiment.run.distribution, spec.stored, generator, device).to(dtype)
            inputs[name] = stored.t() if spec.transposed else stored
    shape = specs[kernel.family.output(experiment.problem)].shape
    output = torch.empty(shape, dtype=dtype, device=device)
    prepared = Prepared(experiment, kernel, gpu, inputs, output)
    prepared.poison()
    return prepared


def describe_wrong_result(check: Check) -> str:
    """Describe in a sentence why a result failed its check; "" if it passed."""
    of_all = f"of {check.elements:,} elements are"
    rms = f"relative RMS error {check.relative_rms:.2g} (limit {check.tolerance:.2g})"
    if check.passed:
        return ""
    if check.nonfinite:
        return f"The result is wrong: {check.nonfinite:,} {of_all} not finite."
    if check.mismatched:
        return (
            f"The result is wrong: {check.mismatched:,} {of_all} outside the allowed error; {rms}."
        )
    return f"The result is wrong: {rms}."


def launch(experiment: Experiment, gpu: Gpu) -> None:
    """Launch once on new inputs and a poisoned output, and wait."""
    import torch

    worker.set_kept_value(None)
    prepared = prepare(experiment, gpu)
    worker.set_kept_value(prepared)
    prepared.launch()
    if not worker.interprets():
        torch.cuda.synchronize()


def check_output() -> tuple[Check, Diff]:
    """Compare the launched output with the reference."""
    return worker.get_kept_value().check()


def time_run(result: RunResult) -> RunResult:
    """Time the kernel and the library's calls alternately, and a launch from Python. Return the result with times."""
    import torch

    run: Prepared = worker.get_kept_value()
    family = run.kernel.family
    problem = run.experiment.problem
    options = run.experiment.run
    library, notes = library_calls(family, run.inputs, torch.empty_like(run.output), problem)
    launch = run.bind()
    stream = GatedStream([launch, *library.values()], options.l2, options.timer)
    samples = timing.sample(stream, timing.RUN)
    kernel_timing, *library_timings = (
        timing.summarize_times(times, family, problem) for times in samples.times_ms
    )
    baselines = []
    for name, library_timing, times_ms in zip(
        library, library_timings, samples.times_ms[1:], strict=True
    ):
        ratio = pair(times_ms, samples.times_ms[0])
        interval = (ratio.low, ratio.high) if len(times_ms) >= FEWEST else ()
        baselines.append(Baseline(name, library_timing, ratio.ratio, *interval))
    best = family.best(problem)
    # The library call of an extended family does extra work, so the peak comes from the family that it extends.
    peak = _copy_peak() if best is None else _library_peak(family.root, best)
    rate = (kernel_timing.gbps if best is None else kernel_timing.tflops) or 0.0
    return dataclasses.replace(
        result,
        timing=kernel_timing,
        baseline=baselines[0] if baselines else None,
        baselines=tuple(baselines),
        peak=peak and dataclasses.replace(peak, share=rate / peak.rate),
        clock_mhz=samples.clock_mhz,
        clocks=samples.clocks,
        launch_overhead=timing.measure_launch_overhead(
            launch, torch.cuda.synchronize, kernel_timing.median_ms
        ),
        launches_per_sample=stream.launches_per_sample,
        copy_gbps=_copy_peak().rate,
        note=" ".join(filter(None, [*notes, samples.warning])),
    )


def library_calls(
    family: Family, inputs: Mapping[str, Any], output: Any, problem: Any
) -> tuple[dict[str, Callable[[], Any]], list[str]]:
    """Return the library's calls by name, the family's baseline first, and a sentence for each unavailable call."""
    first = family.baseline(inputs, output, problem)
    if isinstance(first, str):
        return {}, [f"There is no library call to compare with: {first}"]
    calls = {family.baseline_name(problem): first}
    missing = []
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
    """Return the best rate of the family's library call as share 1, measured once per worker; None without a call."""
    import torch

    tensors = {
        name: torch.randn(spec.shape, device="cuda").to(getattr(torch, problem.dtype))
        for name, spec in family.tensors(problem).items()
    }
    call = family.baseline(tensors, tensors.pop(family.output(problem)), problem)
    if isinstance(call, str):
        return None
    what = f"{family.baseline_name(problem)}, {shape_text(problem)} {problem.dtype}, best of 8 launches"
    return Peak(family.work(problem) / _best_ms(call) / 1e9, "TFLOP/s", what, share=1.0)


@functools.cache
def _copy_peak() -> Peak:
    """Return the best rate of a large copy, bytes read plus bytes written, as share 1, measured once per worker."""
    import torch

    size = min(1 << 30, torch.cuda.mem_get_info()[0] // 8)
    source = torch.zeros(size // DTYPE_BYTES["float32"], dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    gbps = 2 * source.nbytes / _best_ms(lambda: target.copy_(source)) / 1e6
    return Peak(gbps, "GB/s", f"a copy of {size / 2**20:.0f} MiB, best of 8 launches", share=1.0)


def _best_ms(call: Callable[[], Any]) -> float:
    """Return the time of the fastest of 8 launches: a peak comes from the best time, not the median."""
    return float(GatedStream([call], "warm", "events").batch(8).times_ms.min())


def _explain_excess(experiment: Experiment, gpu: Gpu) -> str:
    """Return why a program probably needs too much shared memory, as a sentence and a space; "" if it fits."""
    needed = estimate_shared_bytes(*launch_of(experiment, gpu))
    most = gpu.shared_bytes_per_program
    if needed <= most:
        return ""
    return (
        f"This config probably can't launch on {gpu.name}: it needs {needed:,} bytes of shared memory per "
        f"program, but the limit is {most:,}. "
    )


def refuse_slow_run(experiment: Experiment, gpu: Gpu, is_interpreted: bool) -> None:
    """Refuse a launch that the interpreter would not finish in reasonable time."""
    if is_interpreted and (reason := explain_slow_launch(*launch_of(experiment, gpu))):
        recorded = records.find(RUN.form, experiment, gpu.name)
        alternative = f" Or choose gpu {gpu.name}, for which a run is recorded." if recorded else ""
        excess = _explain_excess(experiment, gpu)
        raise ConfigError("too_slow_here", excess + reason + alternative)


def measure_run(job: Job, is_timed: bool = True) -> RunResult:
    """Launch and check. Time the kernel if `is_timed` and the result is correct."""
    experiment = job.experiment
    job.compile()
    device = job.device()
    job.work("launch", launch, experiment, job.gpu)
    verdict, diff = job.work("check", check_output)
    if device.backend == "interpreter":
        # The interpreter ignores the GPU's limit on shared memory.
        note = (
            _explain_excess(experiment, job.gpu)
            + "Triton's interpreter ran this on the CPU, so the result was checked but not timed."
        )
    elif not is_timed:
        note = "Checked but not timed."
    else:
        note = "" if verdict.passed else "The result is wrong, so it was not timed."
    result = RunResult(experiment, device.backend, device, verdict, diff, note=note)
    if not note:
        result = job.work("time", time_run, result)
    return dataclasses.replace(result, stages=job.stages)


RUN = Measurement(
    "run",
    records.RecordForm("run", RunResult, key=without_gpu),
    measure_run,
    "This machine has {this}, and no run of this experiment on {gpu} was recorded. To run it here, omit gpu, or choose "
    "this machine's GPU.",
    refuse_slow_run,
    is_interpreted=True,
)
CHECK = dataclasses.replace(
    RUN, name="check", measure=functools.partial(measure_run, is_timed=False)
)
