"""Compile a kernel for any GPU, on a machine with or without one. Runs in a compile worker.

Triton's launcher decides what to compile: its own binder sees stand-in tensors and the real sizes. So the kernel is
specialized as in a launch (sizes divisible by 16, or equal to 1), and the run worker finds the result in the shared
cache.
"""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from kernels import discover
from kernels.compiling.global_memory import Unreadable, read_operations
from kernels.compiling.instrumented import TIMED_FIELDS, add_timer
from kernels.compiling.listing import cuda_tool, disassemble, hide_paths
from kernels.compiling.rejection import capture_output, explain_rejection
from kernels.compiling.shared_memory import conversions, shared_operations
from kernels.experiment import Experiment
from kernels.gpus import Gpu
from kernels.results import Compiled, Failure
from kernels.spec import Kernel, Launch, TensorSpec

# Knowledge of sizes and strides: what the launcher records; their values, as constants; nothing.
SPECIALIZATIONS = ("launcher", "constexpr", "none")

# Fewest registers per thread that ptxas allocates: Nsight Compute reports 16 on an H200 for code that names fewer.
_LEAST_REGISTERS = 16

# ELF64 header: offset of the section table's offset, and of the size and number of its entries.
_SECTIONS_AT, _ENTRY_AT = 0x28, 0x3A


def compile_into_cache(experiment: Experiment, gpu: Gpu) -> Failure | None:
    """Compile the experiment's kernel for `gpu` into the shared cache, or return why not."""
    kernel = _compile(*_declare(experiment, gpu))
    return kernel if isinstance(kernel, Failure) else None


def compile_timed_build(experiment: Experiment, gpu: Gpu) -> Failure | None:
    """Compile the build whose programs record when they ran, as `compile_into_cache` does."""
    declared, launch = _declare(experiment, gpu)
    kernel = _compile(timed_build(declared, launch), launch)
    return kernel if isinstance(kernel, Failure) else None


def timed_build(declared: Kernel, launch: Launch) -> Kernel:
    """Return a kernel's timed build with a stand-in for its record: to be compiled, not launched."""
    rows = TensorSpec((declared.programs(launch), len(TIMED_FIELDS)), is_input=False)
    return add_timer(declared, _stand_in_tensor("int64", rows))


def compile_experiment(experiment: Experiment, gpu: Gpu, specialization: str = "launcher") -> Compiled | Failure:
    """Compile the experiment's kernel for `gpu` and read it back: registers, memory operations, texts.

    Args:
        specialization: what the compiler knows about sizes and strides, one of SPECIALIZATIONS.
    """
    return compile_launch(*_declare(experiment, gpu), specialization)


def compile_launch(declared: Kernel, launch: Launch, specialization: str = "launcher") -> Compiled | Failure:
    """Compile and read back a launch of any declared kernel, as `compile_experiment` does."""
    start = time.perf_counter()
    kernel = _compile(declared, launch, specialization)
    if isinstance(kernel, Failure):
        return kernel
    try:
        return _read_back(declared, launch, kernel, start)
    except Exception:  # a truncated text from the cache can fail anywhere
        kernel = _compile(declared, launch, specialization, use_cache=False)
        return kernel if isinstance(kernel, Failure) else _read_back(declared, launch, kernel, start)


def _declare(experiment: Experiment, gpu: Gpu) -> tuple[Kernel, Launch]:
    return discover()[experiment.kernel], Launch(experiment.problem, experiment.config, gpu)


def _read_back(declared: Kernel, launch: Launch, kernel: Any, start: float) -> Compiled:
    import triton

    asm, sass = kernel.asm, disassemble(kernel)
    usage = cuda_tool(triton.knobs.nvidia.cuobjdump.path, asm["cubin"], "--dump-resource-usage")
    used = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", usage))
    accesses = declared.accesses(launch)
    tensors = declared.family.tensors(launch.problem)
    shapes = [tensors[access.tensor].stored for access in accesses]
    try:
        operations, unreadable = read_operations(accesses, shapes, asm["ttgir"], asm["ptx"], sass), ""
    except Unreadable as error:
        operations, unreadable = (), str(error)
    return Compiled(
        gpu=launch.gpu.name,
        registers=max(int(used["REG"]), _LEAST_REGISTERS),
        spilled_bytes=int(used["STACK"]) + int(used["LOCAL"]),
        shared_bytes=kernel.metadata.shared,
        operations=operations,
        shared=shared_operations(asm["ptx"], launch.config.num_warps),
        conversions=conversions(asm["ttgir"]),
        ttgir=hide_paths(asm["ttgir"]),
        ptx=hide_paths(asm["ptx"]),
        sass=hide_paths(sass),
        triton=triton.__version__,
        seconds=time.perf_counter() - start,
        unreadable=unreadable,
    )


def _compile(declared: Kernel, launch: Launch, specialization: str = "launcher", use_cache: bool = True) -> Any:
    """Return Triton's compiled kernel or a Failure."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    gpu, dtype = launch.gpu, launch.problem.dtype
    major, minor = gpu.compute_capability
    capability = 10 * major + minor
    # A driver that only names the target. Triton caches compiled kernels by device, so each target has its own number.
    target = {"get_current_target": GPUTarget("cuda", capability, 32), "get_current_device": capability}
    driver.set_active(
        SimpleNamespace(
            **{name: lambda value=value: value for name, value in target.items()}, get_current_stream=lambda device: 0
        )
    )
    specs = declared.family.tensors(launch.problem)
    tensors = {name: _stand_in_tensor(dtype, spec) for name, spec in specs.items()}
    with capture_output() as printed:
        try:
            arguments = _specialize(declared.arguments(tensors, launch), declared.jitted, specialization)
            kernel = _warm_up(declared, launch, arguments, use_cache)
        except Exception as error:  # whatever the compiler raises: kernel and config are ours, the reason is its own
            return explain_rejection(error, printed(), launch)
    shared = kernel.metadata.shared
    if shared > gpu.shared_bytes_per_program:
        return Failure(
            "compile",
            "out_of_resources",
            f"This config needs {shared:,} bytes of shared memory per program; {gpu.name} allows "
            f"{gpu.shared_bytes_per_program:,}. Make the tile or num_stages smaller.",
        )
    return kernel


def _stand_in_tensor(dtype: str, spec: TensorSpec) -> SimpleNamespace:
    """A stand-in with all that the launcher reads: dtype, strides, and an address, aligned as torch's are."""
    import torch

    return SimpleNamespace(
        dtype=getattr(torch, dtype),
        shape=spec.shape,
        data_ptr=lambda: 0,
        ptr_range=lambda: 0,
        stride=spec.strides.__getitem__,
    )


def _warm_up(declared: Kernel, launch: Launch, arguments: dict[str, Any], use_cache: bool) -> Any:
    """Compile, or load from Triton's cache.

    Triton trusts its cache, so an entry truncated by a full disk or a crash would fail its kernel for good. It is
    compiled again. Reading one raises ValueError (JSON or text that ends too early), KeyError or OSError (a missing
    field or file).
    """
    import triton

    with triton.knobs.compilation.scope():
        if not use_cache:
            declared.jitted.device_caches.clear()  # what was read of the bad entry
            triton.knobs.compilation.always_compile = True
        try:
            kernel = declared.jitted.warmup(**arguments, grid=declared.grid(launch))
            if use_cache:
                assert_whole(kernel.asm)
            return kernel
        except (ValueError, KeyError, OSError):
            if not use_cache:
                raise
    return _warm_up(declared, launch, arguments, use_cache=False)


def assert_whole(asm: Mapping[str, Any]) -> None:
    """Raise ValueError if a part of a compiled kernel is visibly truncated.

    Args:
        asm: the cubin (bytes) and the texts "ttgir" and "ptx", as Triton keeps them.
    """
    cubin = asm["cubin"]
    try:
        (table,) = struct.unpack_from("<Q", cubin, _SECTIONS_AT)
        size, count = struct.unpack_from("<HH", cubin, _ENTRY_AT)
        is_whole = cubin.startswith(b"\x7fELF") and 0 < table <= len(cubin) - size * count  # the table comes last
    except struct.error:
        is_whole = False
    if not is_whole:
        raise ValueError(f"The compiled kernel of {len(cubin):,} bytes is truncated.")
    for kind in ("ttgir", "ptx"):
        text = asm[kind]
        if "{" not in text or text.count("{") != text.count("}"):
            raise ValueError(f"The {kind} of {len(text):,} characters is truncated.")


def _specialize(arguments: dict[str, Any], jitted: Any, specialization: str) -> dict[str, Any]:
    """Return the arguments with what the compiler may know about sizes and strides."""
    import triton.language as tl

    if specialization == "launcher":
        return arguments
    numbers = [p.name for p in jitted.params if not p.is_constexpr and isinstance(arguments[p.name], int)]
    # Triton does not specialize on an odd number, except on 1, which stays 1.
    changed = {
        name: tl.constexpr(arguments[name]) if specialization == "constexpr" else arguments[name] | 1
        for name in numbers
    }
    return {**arguments, **changed}
