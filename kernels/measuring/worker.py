"""What a worker process is: how it starts, what it holds between stages, and how what fails in it becomes a Failure.

Every function here runs in a worker. What a measurement does there stands in its own file; what goes back to the page
are the values of `results`, or a Failure. Whether a worker runs kernels on the GPU or interprets them is fixed when it
starts.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from kernels.gpus import on_zero_gpu
from kernels.measuring.check import InsufficientMemory
from kernels.measuring.prepared import interprets
from kernels.results import Device, Failure

T = TypeVar("T")


# Added to the niceness of workers that nobody is timed by: the page's own process comes first, also where they take all
# cores.
_NICER = 5


def start(backend: str, cache_directory: str, preload: Sequence[str] = ()) -> None:
    """Set what must be set before Triton is imported.

    Args:
        backend: "cuda", "interpreter", "compile" or "model".
        preload: modules that are imported now, so that no later call waits for them.
    """
    if "triton" in sys.modules:
        raise RuntimeError(
            "Triton was imported before the worker was told whether to interpret it: a script that starts a "
            'Session must import kernels under `if __name__ == "__main__":`, as worker processes import it again.'
        )
    os.environ["TRITON_INTERPRET"] = "1" if backend == "interpreter" else "0"
    os.environ["TRITON_CACHE_DIR"] = cache_directory
    if backend == "interpreter":
        from kernels.measuring.interpreter import patch_language_once, patch_small_floats, patch_tensor_index

        patch_small_floats()
        patch_tensor_index()
        patch_language_once()
    if backend in ("compile", "model"):
        os.nice(_NICER)
    for name in (*preload, *(_COMPILER if backend == "compile" else ())):
        importlib.import_module(name)


# What each compile would wait for else: seconds, the first time.
_COMPILER = ("torch", "triton.backends.compiler")


_held: Any = None
_compiled_here = 0


def as_failure(stage: str) -> Callable[[Callable[..., T]], Callable[..., T | Failure]]:
    """Make a Failure of that stage of whatever the function raises. For functions that run in a worker."""

    def wrap(function: Callable[..., T]) -> Callable[..., T | Failure]:
        @functools.wraps(function)
        def stage_function(*args: Any) -> T | Failure:
            import torch

            try:
                return function(*args)
            except _Gone:
                return Failure(stage, "worker_died", f"The worker died before the {stage} stage. Run it again.")
            except InsufficientMemory as error:
                return Failure(stage, "out_of_memory", str(error))
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


@as_failure("worker")
def describe() -> Device:
    """Import torch and Triton, wake the device, and say what it is. The probe of its clock is compiled by the way."""
    import torch
    import triton

    from kernels.measuring.gated_stream import ClockProbe

    versions = {"torch": str(torch.__version__), "triton": triton.__version__}
    if interprets():
        return Device("interpreter", "Triton's interpreter on the CPU", **versions)
    torch.zeros(1, device="cuda")
    ClockProbe().launch(0)  # compiles it, so that no run waits for it
    torch.cuda.synchronize()
    triton.knobs.compilation.listener = _count_compiles
    return Device("cuda", _device_name(), **versions)


def _device_name() -> str:
    """The device's own name; of one that is lent, with what it has, as it may be a slice."""
    import torch

    name = torch.cuda.get_device_name(0)
    if not on_zero_gpu():
        return name
    has = torch.cuda.get_device_properties(0)
    return f"a slice of {name}: {has.multi_processor_count} SMs, {has.L2_cache_size / 2**20:.0f} MiB of L2"


def _count_compiles(*, cache_hit: bool, **_: Any) -> None:
    global _compiled_here
    _compiled_here += not cache_hit


def compiled_here() -> int:
    """How many kernels this worker had to compile itself, because no compile worker had."""
    return _compiled_here


def process_id() -> int:
    return os.getpid()


class _Gone(Exception):
    """What was held is not here: another worker launched it."""


def hold(value: Any) -> None:
    """Keep a value for the next stage of the same job, in place of the one before."""
    global _held
    _held = value


def held() -> Any:
    """What the stage before left; where there is nothing, the stage that asks ends as a dead worker's."""
    if _held is None:
        raise _Gone
    return _held


def finish() -> None:
    """Let go of what is held, and give its memory back to the device."""
    import torch

    hold(None)
    if not interprets():
        torch.cuda.empty_cache()
