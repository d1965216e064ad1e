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
from dataclasses import dataclass
from typing import Any, TypeVar

from kernels import discover
from kernels.experiment import Experiment
from kernels.runner.results import Baseline, Check, Device, Diff, Failure, Peak, Timing
from kernels.spec import DTYPE_BYTES, Kernel

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
        from kernels.runner.interpreter import mend_bfloat16

        mend_bfloat16()
    if backend == "compile":  # so that no later compile waits for imports: seconds, the first time
        import torch  # noqa: F401
        import triton.backends.compiler  # noqa: F401


@dataclass
class _Prepared:
    """The run in progress."""

    experiment: Experiment
    kernel: Kernel
    inputs: dict[str, Any]
    output: Any

    def launch(self) -> None:
        experiment, kernel = self.experiment, self.kernel
        tensors = {**self.inputs, kernel.family.output(experiment.problem): self.output}
        arguments = kernel.arguments(tensors, experiment.problem, experiment.config)
        kernel.jitted[kernel.grid(experiment.problem, experiment.config)](**arguments)


_current: _Prepared | None = None
_compiled_here = 0


def _interprets() -> bool:
    return os.environ["TRITON_INTERPRET"] == "1"


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
    if _interprets():
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
def launch(experiment: Experiment) -> None:
    """Make fresh inputs and a poisoned output, launch once, and wait for it."""
    global _current
    import torch

    _current = None
    kernel = discover()[experiment.kernel]
    device = "cpu" if _interprets() else "cuda"
    dtype = getattr(torch, experiment.problem.dtype)
    specs = kernel.family.tensors(experiment.problem)
    generator = torch.Generator(device).manual_seed(experiment.run.seed)
    inputs = {
        name: _values(experiment.run.distribution, spec.shape, generator, device).to(dtype)
        for name, spec in specs.items()
        if spec.is_input
    }
    start_value = 0.0 if kernel.zeroed_output else float("nan")
    output = torch.full(specs[kernel.family.output(experiment.problem)].shape, start_value, dtype=dtype, device=device)
    _current = _Prepared(experiment, kernel, inputs, output)
    _current.launch()
    _wait()


def _values(distribution: str, shape: tuple[int, int], generator: Any, device: str) -> Any:
    """float32 values: normal (0, 1), uniform in [-1, 1), integers from -4 to 4, or zeros."""
    import torch

    empty = torch.empty(shape, dtype=torch.float32, device=device)
    if distribution == "normal":
        return empty.normal_(generator=generator)
    if distribution == "uniform":
        return empty.uniform_(-1, 1, generator=generator)
    if distribution == "integers":
        return empty.random_(-4, 5, generator=generator)
    return empty.zero_()


def _wait() -> None:
    import torch

    if not _interprets():
        torch.cuda.synchronize()


class _Gone(Exception):
    """The worker that launched is not this one."""


def _running() -> _Prepared:
    if _current is None:
        raise _Gone
    return _current


@_as_failure("check")
def check() -> tuple[Check, Diff]:
    """Compare the launched output with the reference."""
    from kernels.runner import check as checks

    run = _running()
    family, problem = run.kernel.family, run.experiment.problem
    return checks.check(
        run.output, run.inputs, family.reference, family.reduction(problem), problem.dtype, tf32=_rounds_to_tf32(run)
    )


def _rounds_to_tf32(run: _Prepared) -> bool:
    """Whether float32 operands lose bits in a product: on matrix units (from Ampere on), unless they fit anyhow."""
    import torch

    exact_anyhow = run.experiment.run.distribution in ("integers", "zeros")
    return (
        run.experiment.problem.dtype == "float32"
        and not _interprets()
        and torch.cuda.get_device_capability(0) >= (8, 0)
        and not exact_anyhow
    )


@_as_failure("time")
def measure() -> tuple[Timing, Baseline, Peak, int | None, str]:
    """Time the kernel and the library's call in turns; then the share of this device's measured peak."""
    import torch

    from kernels.runner import timing

    run = _running()
    family, problem, options = run.kernel.family, run.experiment.problem, run.experiment.run
    theirs_output = torch.empty_like(run.output)
    samples = timing.paired(
        run.launch, lambda: family.baseline(run.inputs, theirs_output), l2=options.l2, timer=options.timer
    )
    work, minimal_bytes = family.work(problem), family.minimal_bytes(problem)
    ours = timing.timing(samples.ours_ms, work, minimal_bytes)
    theirs = timing.timing(samples.theirs_ms, work, minimal_bytes)
    baseline = Baseline(family.baseline_name, theirs, ratio=theirs.median_ms / ours.median_ms)
    if work:
        rate, what = _peak_tflops(problem.dtype)
        peak = Peak(rate, "TFLOP/s", what, share=(ours.tflops or 0) / rate)
    else:
        rate, what = _peak_gbps()
        peak = Peak(rate, "GB/s", what, share=(ours.gbps or 0) / rate)
    return ours, baseline, peak, samples.clock_mhz, samples.clock_note


@functools.cache
def _peak_tflops(dtype: str) -> tuple[float, str]:
    """The best rate of torch.matmul on a large square of this dtype, on this device, measured once a worker."""
    import torch

    from kernels.runner import timing

    side = 8192
    a, b = (torch.randn(side, side, device="cuda").to(getattr(torch, dtype)) for _ in range(2))
    torch.backends.cuda.matmul.allow_tf32 = True
    output = torch.empty_like(a)
    best = timing.best_ms(lambda: torch.matmul(a, b, out=output))
    return 2 * side**3 / best / 1e9, f"torch.matmul, {side}³ {dtype}, the best of a few"


@functools.cache
def _peak_gbps() -> tuple[float, str]:
    """The best rate of a large copy on this device, bytes read plus bytes written, measured once a worker."""
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
    if not _interprets():
        torch.cuda.empty_cache()
