"""Compile a kernel for any GPU, on a machine with or without one. Runs in a compile worker.

Triton's own launcher binds the arguments: stand-in tensors and the real sizes. The kernel is therefore specialized
exactly as in a launch (sizes divisible by 16, or equal to 1), and the run worker finds it in the shared cache.
"""

import errno
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tilescope.captures.listings import UnsupportedOperation
from tilescope.compiling.estimates import estimate_shared_bytes
from tilescope.compiling.instrumented import TIMED_FIELDS, add_timer
from tilescope.declare.experiment import Experiment, launch_of
from tilescope.declare.gpus import Gpu
from tilescope.declare.jit import display_path
from tilescope.declare.knobs import ConfigError, knobs
from tilescope.declare.spec import Kernel, Launch, Specs, TensorSpec
from tilescope.evaluate.matching import find_conversions, read_operations
from tilescope.evaluate.sectors import LANES
from tilescope.results import Compiled, Failure, Stopped

_TOO_FEW_REGISTERS = re.compile(r"Insufficient registers \((\d+)\).*register target of (\d+)")
# "ptxas fatal   : (C7602) text", "ptxas a.ptx, line 7; error   : text", "/a/b.py:29:0: error: text"
_ERROR = re.compile(r"(?<!PTXAS )\b(?:error|fatal)\s*: (?:\(\w+\) )?(.+)")
_QUOTED_PATH = re.compile(r'"(/[^"\n]+)"')
_PATH = re.compile(r"(?<![\w.])/\w[^\s\"':,;]+")


def compile_into_cache(experiment: Experiment, gpu: Gpu, is_timed: bool = False) -> None:
    """Compile the experiment's kernel for `gpu` into the shared cache.

    Args:
        is_timed: compile the instrumented build, whose programs record when they ran.

    Raises:
        Stopped: as for `compile_kernel`.
    """
    declared, launch = launch_of(experiment, gpu)
    compile_kernel(timed_build(declared, launch) if is_timed else declared, launch)


def timed_build(declared: Kernel, launch: Launch) -> Kernel:
    """Return a kernel's timed build with a stand-in record tensor. It can be compiled but not launched."""
    rows = TensorSpec((declared.programs(launch), len(TIMED_FIELDS)), is_input=False)
    return add_timer(declared, _stand_in_tensor("int64", rows))


def compile_experiment(experiment: Experiment, gpu: Gpu) -> Compiled:
    """Compile the experiment's kernel for `gpu`. Return its registers, memory operations, IR, PTX and SASS.

    Raises:
        Stopped: as for `compile_kernel`.
    """
    return compile_launch(*launch_of(experiment, gpu))


def compile_launch(declared: Kernel, launch: Launch) -> Compiled:
    """Compile a launch of any declared kernel. See `compile_experiment`."""
    import triton

    from tilescope.record.compiled import disassemble, read_resources, tensor_columns

    start = time.perf_counter()
    kernel = compile_kernel(declared, launch)
    asm = kernel.asm
    sass = disassemble(asm["cubin"])
    registers, spilled_bytes = read_resources(asm["cubin"])
    accesses = declared.accesses(launch)
    tensors = declared.tensors(launch)
    shapes = [tensors[access.tensor].stored for access in accesses]
    try:
        operations = read_operations(accesses, shapes, asm["ttgir"], asm["ptx"], sass)
        unreadable = ""
    except UnsupportedOperation as error:
        operations = ()
        unreadable = str(error)
    return Compiled(
        gpu=launch.gpu.name,
        registers=registers,
        spilled_bytes=spilled_bytes,
        shared_bytes=kernel.metadata.shared,
        operations=operations,
        conversions=find_conversions(asm["ttgir"]),
        ttgir=hide_paths(asm["ttgir"]),
        ptx=hide_paths(asm["ptx"]),
        sass=hide_paths(sass),
        triton=triton.__version__,
        seconds=time.perf_counter() - start,
        unreadable=unreadable,
        tensor_columns=tensor_columns(kernel.metadata),
    )


def hide_paths(text: str) -> str:
    """Shorten the absolute paths quoted in TTGIR, PTX or SASS, as `display_path` does."""
    return _QUOTED_PATH.sub(lambda match: f'"{display_path(match[1])}"', text)


def compile_kernel(declared: Kernel, launch: Launch) -> Any:
    """Return Triton's compiled kernel.

    Raises:
        Stopped: the config does not compile or does not fit on the GPU.
    """
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    gpu = launch.gpu
    major, minor = gpu.compute_capability
    capability = 10 * major + minor
    # This driver only names the target. Triton caches kernels by device, so each target gets its own device number.
    stand_in = SimpleNamespace(
        get_current_stream=lambda device: 0,
        get_current_target=lambda: GPUTarget("cuda", capability, 32),
        get_current_device=lambda: capability,
    )
    driver.set_active(stand_in)
    tensors = stand_in_tensors(declared.tensors(launch), launch)
    with capture_output() as printed:
        try:
            arguments = declared.arguments(tensors, launch)
            kernel = declared.jitted.warmup(**arguments, grid=declared.grid(launch))
        except Exception as error:  # the compiler can raise any type
            if _discard_entry(error):
                return compile_kernel(declared, launch)
            raise Stopped(explain_rejection(error, printed(), launch)) from error
    shared = kernel.metadata.shared
    if shared > gpu.shared_bytes_per_program:
        change = suggest_smaller_config(declared, launch, shared)
        message = (
            f"This config needs {shared:,} bytes of shared memory per program; {gpu.name} allows "
            f"{gpu.shared_bytes_per_program:,}. Make the tile or num_stages smaller"
        )
        message += f"; with {change} it should fit." if change else "."
        raise Stopped(_too_large(message, launch))
    return kernel


def suggest_smaller_config(kernel: Kernel, launch: Launch, shared_bytes: int) -> str:
    """Name the smallest change to a config that should fit in shared memory, such as "num_stages 2"; "" without one.

    It changes as few knobs as possible. Among those changes, it picks the one that uses the most shared memory.

    Args:
        shared_bytes: shared memory of the compiled config. It corrects the estimate if that is too low.
    """
    config = launch.config
    correction = max(1.0, shared_bytes / estimate_shared_bytes(kernel, launch))
    lower = {
        name: [
            value
            for value in reversed(knob.choices or range(knob.low, knob.high))
            if value < getattr(config, name)
        ]
        for name, knob in knobs(type(config)).items()
        if name.startswith("BLOCK") or name == "num_stages"
    }
    for count in range(1, len(lower) + 1):
        fitting: dict[str, int] = {}
        for names in combinations(reversed(lower), count):
            for values in product(*(lower[name] for name in names)):
                changes = dict(zip(names, values, strict=True))
                smaller = replace(launch, config=replace(config, **changes))
                with suppress(ConfigError):
                    kernel.family.refuse(smaller.problem, smaller.config)
                    needed = estimate_shared_bytes(kernel, smaller)
                    if needed * correction <= launch.gpu.shared_bytes_per_program:
                        fitting[", ".join(f"{name} {value}" for name, value in changes.items())] = (
                            needed
                        )
        if fitting:
            return max(fitting, key=lambda change: fitting[change])
    return ""


def _too_large(message: str, launch: Launch) -> Failure:
    """Return the failure of a config that cannot launch, at the first size of its tile."""
    return Failure("compile", "out_of_resources", message, next(iter(knobs(type(launch.config)))))


def _discard_entry(error: Exception) -> bool:
    """Delete a kernel's folder in Triton's cache if one of its files can't be read. Return whether it was deleted."""
    from triton import knobs

    folder = Path(getattr(error, "filename", None) or "/").parent
    if folder.parent != Path(knobs.cache.dir):
        return False
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def stand_in_tensors(specs: Specs, launch: Launch) -> dict[str, Any]:
    """Return a tensor without storage for each spec."""
    return {
        name: _stand_in_tensor(spec.dtype_in(launch.problem), spec) for name, spec in specs.items()
    }


def _stand_in_tensor(dtype: str, spec: TensorSpec) -> Any:
    """Return a tensor without storage. Its address, 0, is aligned at least as well as any torch allocation."""
    import torch

    return torch.empty_strided(spec.shape, spec.strides, dtype=getattr(torch, dtype), device="meta")


@contextmanager
def capture_output() -> Iterator[Callable[[], str]]:
    """Capture output, including native output: MLIR and ptxas dump whole kernels when they fail.

    Yields:
        A function that returns the text printed so far.
    """
    with (
        tempfile.TemporaryFile("w", encoding="utf-8", errors="replace") as file,
        ExitStack() as stack,
    ):

        def printed() -> str:
            file.flush()
            return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(
                "utf-8", "replace"
            )

        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        for number in (1, 2):
            saved = os.dup(number)
            stack.callback(os.close, saved)
            stack.callback(os.dup2, saved, number)
            os.dup2(file.fileno(), number)
        stack.enter_context(redirect_stdout(file))
        stack.enter_context(redirect_stderr(file))
        yield printed


def explain_rejection(error: Exception, printed: str, launch: Launch) -> Failure:
    """Convert an exception from the compiler to a Failure.

    Args:
        printed: the compiler's output up to the exception.
    """
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        message = (
            f"The disk of {Path(os.environ['TRITON_CACHE_DIR']).name} is full ({error.strerror}), so the compiled "
            "kernel can't be saved. Free some space, or point TILESCOPE_CACHE to another folder."
        )
        return Failure("compile", "disk_full", message)
    text = f"{error}\n{printed}"
    if match := _TOO_FEW_REGISTERS.search(text):
        message = (
            f"This config needs at least {match[2]} registers per thread; with {LANES * launch.config.num_warps} "
            f"threads per program, {launch.gpu.name} allows {match[1]}. Make the tile smaller."
        )
        return _too_large(message, launch)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if match := _ERROR.search(text):
        reason = match[1].strip()
    elif lines and lines[0].startswith(
        "PTXAS error: "
    ):  # ptxas crashed; the following lines say how to reproduce it
        reason = lines[0].removeprefix("PTXAS error: ")
    else:  # the last line of a Python exception's message gives the reason
        reason = f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"
    reason = _PATH.sub(lambda match: display_path(match[0]), reason)
    return Failure("compile", "compile_error", f"Triton could not compile this config: {reason}")
