"""The run worker: prepares, launches, checks and times one experiment at a time. A process of its own.

Every public function here runs in the worker. The tensors stay in it between the stages of a run; what goes back
to the page are the values of `results`, or a Failure. Whether the worker runs kernels on the GPU or interprets them
is fixed when it starts.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from kernels.experiment import Experiment
from kernels.results import Baseline, Check, Device, Diff, Failure, LayoutRow, Peak, Timing
from kernels.runner.prepared import Prepared, interprets, prepare
from kernels.spec import DTYPE_BYTES, Family

if TYPE_CHECKING:
    from kernels.gpus import Gpu
    from kernels.results import Timeline

T = TypeVar("T")


def start(backend: str, cache_directory: str) -> None:
    """Set what must be set before Triton is imported. `backend`: "cuda", "interpreter" or "compile"."""
    if "triton" in sys.modules:
        raise RuntimeError(
            "Triton was imported before the worker was told whether to interpret it: a script that starts a "
            'Session must import kernels under `if __name__ == "__main__":`, as worker processes import it again.'
        )
    os.environ["TRITON_INTERPRET"] = "1" if backend == "interpreter" else "0"
    os.environ["TRITON_CACHE_DIR"] = cache_directory
    if backend == "interpreter":
        from kernels.runner.interpreter import mend_small_floats

        mend_small_floats()
    if backend == "compile":  # so that no later compile waits for imports: seconds, the first time
        import torch  # noqa: F401
        import triton.backends.compiler  # noqa: F401


_current: Prepared | None = None
_compiled_here = 0


def _as_failure(stage: str) -> Callable[[Callable[..., T]], Callable[..., T | Failure]]:
    """What a stage raises becomes a Failure of that stage."""

    def wrap(function: Callable[..., T]) -> Callable[..., T | Failure]:
        @functools.wraps(function)
        def stage_function(*args: Any) -> T | Failure:
            import torch

            try:
                return function(*args)
            except _Gone:
                return Failure(stage, "worker_died", f"The worker died before the {stage} stage. Run it again.")
            except torch.cuda.OutOfMemoryError:
                free, total = torch.cuda.mem_get_info()
                return Failure(
                    stage,
                    "out_of_memory",
                    f"The GPU has {total / 2**30:.0f} GiB, {free / 2**30:.1f} of them free: "
                    "too little for these tensors and their check. Make the shape smaller.",
                )
            except Exception as error:
                lines = str(error).strip().splitlines() or ["no message"]
                cuda = isinstance(error, torch.AcceleratorError) or "CUDA" in lines[0]
                return Failure(stage, "cuda_error" if cuda else "error", f"{type(error).__name__}: {lines[0]}")

        return stage_function

    return wrap


@_as_failure("worker")
def describe() -> Device:
    """Import torch and Triton, wake the device, and say what it is."""
    import torch
    import triton

    versions = {"torch": str(torch.__version__), "triton": triton.__version__}
    if interprets():
        return Device("interpreter", "Triton's interpreter on the CPU", **versions)
    torch.zeros(1, device="cuda")
    triton.knobs.compilation.listener = _count_compiles
    return Device("cuda", torch.cuda.get_device_name(0), **versions)


def _count_compiles(*, cache_hit: bool, **_: Any) -> None:
    global _compiled_here
    _compiled_here += not cache_hit


def compiled_here() -> int:
    """How many kernels this worker had to compile itself, because no compile worker had."""
    return _compiled_here


def process_id() -> int:
    return os.getpid()


@_as_failure("launch")
def launch(experiment: Experiment, gpu: Gpu) -> None:
    """Make fresh inputs and a poisoned output, launch once, and wait for it."""
    global _current
    _current = None
    _current = prepare(experiment, gpu)
    _current.launch()
    _wait()


def _wait() -> None:
    import torch

    if not interprets():
        torch.cuda.synchronize()


class _Gone(Exception):
    """The worker that launched is not this one."""


def _running() -> Prepared:
    if _current is None:
        raise _Gone
    return _current


@_as_failure("check")
def check() -> tuple[Check, Diff]:
    """Compare the launched output with the reference."""
    return _running().check()


@_as_failure("time")
def measure() -> tuple[Timing, Baseline | None, Peak | None, int | None, str]:
    """Time the kernel and the library's call in turns; then the share of this device's measured peak."""
    import torch

    from kernels.runner import timing

    run = _running()
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


@_as_failure("time")
def time_in_turns(experiments: tuple[Experiment, ...], gpu: Gpu) -> tuple[Any, int | None, str]:
    """Time launches on the same inputs in turns: (experiments, samples) milliseconds; the clock, or why not."""
    from kernels.runner import timing

    first, options = prepare(experiments[0], gpu), experiments[0].run
    calls = [replace(first, experiment=experiment).launch for experiment in experiments]
    samples = timing.in_turns(calls, l2=options.l2, timer=options.timer)
    return samples.times_ms, samples.clock_mhz, samples.clock_note


@_as_failure("time")
def compare_layouts(experiment: Experiment, gpu: Gpu) -> tuple[tuple[LayoutRow, ...], int | None, str]:
    """Check and time a product with B stored both ways, and turned first. The clock, or why it is not known."""
    from kernels.runner.layout_comparison import compared

    rows, samples = compared(experiment, gpu)
    return rows, samples.clock_mhz, samples.clock_note


@_as_failure("time")
def timeline(experiment: Experiment, gpu: Gpu, device: Device) -> Timeline | Failure:
    """Record when and where each program ran."""
    from kernels.runner import program_times

    return program_times.timeline(experiment, gpu, device)


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

    from kernels.runner import timing

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

    from kernels.runner import timing

    size = min(1 << 30, torch.cuda.mem_get_info()[0] // 8)
    source = torch.zeros(size // DTYPE_BYTES["float32"], dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    best = timing.best_ms(lambda: target.copy_(source))
    return 2 * source.numel() * 4 / best / 1e6, f"a copy of {size / 2**20:.0f} MiB, the best of a few"


def finish() -> None:
    """Let the tensors of the last run go, and give their memory back to the device."""
    global _current
    import torch

    _current = None
    if not interprets():
        torch.cuda.empty_cache()
