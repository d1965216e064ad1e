"""The code of a worker process: start, answer calls, keep a value between stages, and turn exceptions into Failures.

Every function here runs in a worker, except `default_cache_directory`. A worker's start fixes whether it runs kernels
on the GPU or interprets them.
"""

import functools
import gc
import importlib
import inspect
import os
import sys
import tempfile
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from tilescope.declare.gpus import on_zero_gpu
from tilescope.declare.knobs import ConfigError
from tilescope.measure.check import InsufficientMemory
from tilescope.results import Device, Failure, Stopped

# A module that imports Triton in the mode that compiles kernels, not in the one that interprets them.
PRELOADED = "tilescope.record.preloaded"

# Added to the niceness of workers that do not time a GPU, so that the page's own process has priority.
_NICENESS = 15

# Allocations of a compile worker until the next garbage collection. A higher number saves no more time.
_ALLOCATIONS = 7000


def default_cache_directory() -> Path:
    """Return the cache directory: TILESCOPE_CACHE, or else "tilescope" in the user's cache directory.

    A user without a home directory, as in some containers, gets a temporary directory for the life of this process.
    """
    if chosen := os.environ.get("TILESCOPE_CACHE"):
        return Path(chosen)
    if caches := os.environ.get("XDG_CACHE_HOME"):
        return Path(caches) / "tilescope"
    try:
        return Path.home() / ".cache" / "tilescope"
    except RuntimeError:
        return Path(_temporary_directory().name)


@functools.cache
def _temporary_directory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="tilescope-", ignore_cleanup_errors=True)


def start(backend: str, cache_directory: str, preload: tuple[str, ...] = ()) -> None:
    """Prepare this process before it imports Triton.

    Args:
        backend: "cuda", "interpreter", "compile" or "model".
        preload: modules to import now, so that no later call waits for their imports.
    """
    is_preloaded = PRELOADED in sys.modules and backend != "interpreter"
    if "triton" in sys.modules and not is_preloaded:
        raise RuntimeError(
            "Triton was imported before the worker knew whether to interpret: a script that starts a Session must "
            'import kernels under `if __name__ == "__main__":`, as worker processes import it again.'
        )
    if backend != "cuda":
        os.nice(_NICENESS)
    os.environ["TRITON_INTERPRET"] = "1" if backend == "interpreter" else "0"
    os.environ["TRITON_CACHE_DIR"] = cache_directory
    if backend == "interpreter":
        patch_interpreter()
    # Otherwise the first compile would wait a few seconds for these imports.
    for name in (
        (*preload, "torch", "triton.backends.compiler") if backend == "compile" else preload
    ):
        importlib.import_module(name)
    if backend == "compile":
        # There is a worker per core
        sys.modules["torch"].set_num_threads(1)
        # Otherwise, garbage collection scans the modules' objects, which takes 16 % of a prediction's time
        gc.freeze()
        gc.set_threshold(_ALLOCATIONS)


def serve(connection: "Connection[Any, Any]") -> None:
    """Answer calls until the other end is closed.

    For each call, send None to confirm its receipt, and then its result, or a Failure if it raised an exception.
    """
    while True:
        try:
            call = connection.recv()
        except (EOFError, ConnectionError):
            return
        except Exception as error:  # a function that can't be imported here
            connection.send(to_failure("worker", error))
            continue
        connection.send(None)
        try:
            connection.send(call.function(*call.args))
        except Exception as error:
            with suppress(ConnectionError):  # the other end is closed
                connection.send(to_failure(call.stage, error))


def to_failure(stage: str, error: Exception) -> Failure:
    """Return the Failure that describes an exception in a stage."""
    import torch

    if isinstance(error, Stopped):
        return error.failure
    if isinstance(error, _KeptValueLost):
        return Failure(
            stage, "worker_died", f"The worker died before the {stage} stage. Run it again."
        )
    if isinstance(error, InsufficientMemory):
        return Failure(stage, "out_of_memory", str(error))
    if isinstance(error, torch.cuda.OutOfMemoryError):
        free, total = torch.cuda.mem_get_info()
        has = f"The GPU has {total / 2**30:.0f} GiB, {free / 2**30:.1f} of them free"
        message = (
            f"{has}, which is too little for these tensors and their check. Make the shape smaller."
        )
        return Failure(stage, "out_of_memory", message)
    if isinstance(error, ConfigError):
        return Failure(stage, "error", str(error))
    lines = str(error).strip().splitlines() or ["no message"]
    is_cuda = isinstance(error, torch.AcceleratorError) or "CUDA" in lines[0]
    return Failure(
        stage, "cuda_error" if is_cuda else "error", f"{type(error).__name__}: {lines[0]}"
    )


_kept_value: Any = None


def describe() -> Device:
    """Import torch and Triton, initialize the device, compile its clock probe, and return its description."""
    import torch
    import triton

    from tilescope.measure.gated_stream import timing_device

    versions = {"torch": str(torch.__version__), "triton": triton.__version__}
    if interprets():
        return Device("interpreter", "Triton's interpreter on the CPU", **versions)
    torch.zeros(1, device="cuda")
    timing_device().probe(0)  # compiles the probe, so that no run waits for the compile
    torch.cuda.synchronize()
    name = torch.cuda.get_device_name(0)
    if on_zero_gpu():  # the GPU may be a slice
        device = torch.cuda.get_device_properties(0)
        size = f"{device.multi_processor_count} SMs, {device.L2_cache_size / 2**20:.0f} MiB of L2"
        name = f"a slice of {name}: {size}"
    return Device("cuda", name, **versions)


def interprets() -> bool:
    """Return whether this process runs kernels under Triton's interpreter. This is fixed when the process starts."""
    return os.environ["TRITON_INTERPRET"] == "1"


class _KeptValueLost(Exception):
    """The previous stage ran in another worker, which has died."""


def set_kept_value(value: Any) -> None:
    """Keep a value for the next stage of the same job, in place of the previous value."""
    global _kept_value
    _kept_value = value


def get_kept_value() -> Any:
    """Return the value that the previous stage kept. Raise an error that `to_failure` handles if its worker died."""
    if _kept_value is None:
        raise _KeptValueLost
    return _kept_value


def finish() -> None:
    """Drop the kept value, and return its memory to the device."""
    import torch

    set_kept_value(None)
    if not interprets():
        torch.cuda.empty_cache()


def patch_interpreter() -> None:
    """Mend defects of Triton's interpreter."""
    _patch_small_floats()
    _patch_bfloat16_atomics()
    _patch_tensor_index()
    _patch_language_once()


def _patch_small_floats() -> None:
    """Make the interpreter treat bfloat16 and float8 as numbers (defects of triton 3.6 and 3.7.1).

    The interpreter stores both as raw integers. `tl.dot` multiplies bfloat16 as integers: the patch converts them to
    float32 first, which holds every bfloat16 exactly. A cast from float32 truncates: the patch rounds to nearest even,
    as the GPU does, and clamps float8 to its largest number.
    """
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    original = {
        name: getattr(InterpreterBuilder, name)
        for name in ("create_dot", "cast_impl", "create_fp_to_fp")
    }
    types = {tl.bfloat16: "bfloat16", tl.float8e4nv: "float8_e4m3fn", tl.float8e5: "float8_e5m2"}

    def decode(handle: Any) -> Any:
        name = types.get(handle.dtype.scalar)
        return handle if name is None else TensorHandle(_decode(handle.data, name), tl.float32)

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return original["create_dot"](self, decode(a), decode(b), *rest)

    def cast(name: str) -> Any:
        def patched(self: Any, source: Any, target: Any, *rest: Any) -> Any:
            if source.dtype.scalar == tl.float32 and target.scalar in types:
                return TensorHandle(_encode(source.data, types[target.scalar]), target.scalar)
            if source.dtype.scalar in types and target.scalar == tl.float32:
                return decode(source)
            return original[name](self, source, target, *rest)

        return patched

    InterpreterBuilder.create_dot = create_dot
    InterpreterBuilder.cast_impl = cast("cast_impl")
    InterpreterBuilder.create_fp_to_fp = cast("create_fp_to_fp")


def _patch_bfloat16_atomics() -> None:
    """Let the interpreter's atomics accept bfloat16, which triton 3.6 and 3.7.1 refuse.

    The patch loads, adds and stores, which is equivalent because programs run one after another.
    """
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    atomic = InterpreterBuilder.create_atomic_rmw
    _, _, _, _, *policies = inspect.signature(InterpreterBuilder.create_masked_store).parameters
    no_policies = [None] * len(policies)  # two; one since Triton 3.9

    def create_atomic_rmw(
        self: Any, operation: Any, pointers: Any, value: Any, mask: Any, *rest: Any
    ) -> Any:
        if value.dtype.scalar != tl.bfloat16:
            return atomic(self, operation, pointers, value, mask, *rest)
        before = self.create_masked_load(pointers, mask, None, *no_policies, False)
        total = sum(_decode(handle.data, "bfloat16") for handle in (before, value))
        stored = TensorHandle(_encode(total, "bfloat16"), tl.bfloat16)
        self.create_masked_store(pointers, stored, mask, *no_policies)
        return before

    InterpreterBuilder.create_atomic_rmw = create_atomic_rmw


def _patch_tensor_index() -> None:
    """Let a one-element tensor serve as an index under NumPy 2.5 (a defect of triton 3.6, fixed in 3.7)."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_with_index(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_with_index


def _patch_language_once() -> None:
    """Skip the interpreter's repeated search for functions to replace (triton 3.6 and 3.7.1).

    The interpreter searches `triton.language` whenever one jitted function calls another. Once all functions of a
    module are replaced, the search finds nothing, yet takes a third of the launch's time.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    patch = interpreter._patch_lang

    def patch_once(function: Any) -> Any:
        modules = [
            value for value in function.__globals__.values() if value is tl or value is tl.core
        ]
        is_new = any(
            tl.core.is_builtin(f) for module in modules for f in (module.load, module.tensor.to)
        )
        return patch(function) if is_new or not modules else interpreter._LangPatchScope()

    interpreter._patch_lang = patch_once


def _decode(raw: Any, dtype: str) -> Any:
    """Convert raw integers to float32."""
    import torch

    raw = np.ascontiguousarray(raw)
    return (
        torch.from_numpy(raw.view(f"int{8 * raw.itemsize}"))
        .view(getattr(torch, dtype))
        .float()
        .numpy()
    )


def _encode(values: Any, dtype: str) -> Any:
    """Convert float32 to raw integers, rounded to nearest even."""
    import torch

    numbers = torch.from_numpy(np.ascontiguousarray(values))
    target = getattr(torch, dtype)
    if target.itemsize == 1:
        numbers = numbers.clamp(-torch.finfo(target).max, torch.finfo(target).max)
    return numbers.to(target).view(getattr(torch, f"uint{8 * target.itemsize}")).numpy()
