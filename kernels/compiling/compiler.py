"""Compile a kernel for any GPU, on a machine with or without one. Runs in a compile worker.

The launcher itself is asked what to compile: its own binder sees stand-in tensors and the real sizes. So the kernel is
specialized as in a launch (sizes divisible by 16, or equal to 1), and the run worker finds the result in the cache that
both share.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from dataclasses import replace
from typing import Any

from kernels import discover
from kernels.compiling.cache_entry import UNREADABLE, assert_whole, compiled_anew, disk_full
from kernels.compiling.disassembly import sass_of, tool
from kernels.compiling.global_memory import Unreadable, operations
from kernels.compiling.instrumented import FIELDS, timed
from kernels.compiling.listing import with_shown_paths
from kernels.compiling.rejection import captured_output, rejection
from kernels.compiling.shared_memory import conversions, shared_operations
from kernels.experiment import Experiment
from kernels.gpus import Gpu
from kernels.results import Compiled, Failure
from kernels.spec import Kernel, Launch, TensorSpec

# What the compiler may know of sizes and strides: what the launcher records; their values, as constants; nothing.
SPECIALIZATIONS = ("launcher", "constexpr", "none")

# A thread gets no fewer, however few the code names: Nsight Compute says 16 of each launch of such code on an H200.
_LEAST_REGISTERS = 16

_disassembled: dict[tuple[str, str, str], Compiled] = {}
_MOST_DISASSEMBLED = 64


class _Target:
    """A driver that only names the GPU to compile for."""

    def __init__(self, gpu: Gpu) -> None:
        from triton.backends.compiler import GPUTarget

        major, minor = gpu.compute_capability
        self._target = GPUTarget("cuda", major * 10 + minor, 32)

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        """A number per target: Triton caches compiled kernels by device, so targets need different ones."""
        return int(self._target.arch)

    def get_current_stream(self, device: int) -> int:
        return 0


class _StandInTensor:
    """What the launcher asks of a tensor: dtype, strides, and an address (aligned, as torch's allocations are)."""

    def __init__(self, dtype: str, spec: TensorSpec) -> None:
        import torch

        self.dtype = getattr(torch, dtype)
        self.shape = spec.shape
        self._strides = spec.strides

    def data_ptr(self) -> int:
        return 0

    def ptr_range(self) -> int:
        return 0

    def stride(self, axis: int) -> int:
        return self._strides[axis]


def compile_for(experiment: Experiment, gpu: Gpu) -> Failure | None:
    """Compile the experiment's kernel for `gpu` into the shared cache, or say why it can't be."""
    kernel = _kernel(*_launch(experiment, gpu))
    return kernel if isinstance(kernel, Failure) else None


def compile_timed_for(experiment: Experiment, gpu: Gpu) -> Failure | None:
    """Compile the build of it whose programs write down when they ran."""
    declared, launch = _launch(experiment, gpu)
    kernel = _kernel(timed_build(declared, launch), launch)
    return kernel if isinstance(kernel, Failure) else None


def timed_build(declared: Kernel, launch: Launch) -> Kernel:
    """A kernel's timed build with a stand-in for what it writes to: to be compiled, not launched."""
    rows = TensorSpec((declared.programs(launch), len(FIELDS)), is_input=False)
    return timed(declared, _StandInTensor("int64", rows))


def compiled_for(experiment: Experiment, gpu: Gpu, specialization: str = "launcher") -> Compiled | Failure:
    """Compile the experiment's kernel for `gpu`, and disassemble it: registers, memory operations, texts.

    Args:
        specialization: what the compiler may know of sizes and strides, one of SPECIALIZATIONS.
    """
    return disassembled(*_launch(experiment, gpu), specialization)


def disassembled(declared: Kernel, launch: Launch, specialization: str = "launcher") -> Compiled | Failure:
    """The same for a launch of any declared kernel."""
    start = time.perf_counter()
    kernel = _kernel(declared, launch, specialization)
    if isinstance(kernel, Failure):
        return kernel
    # Many launches share one compiled kernel: sizes that are alike in what is specialized on.
    key = kernel.hash, launch.gpu.name, declared.id
    if key not in _disassembled:
        try:
            _disassembled[key] = _parts(declared, launch, kernel)
        except Exception:  # a text of the cache that is cut off can fail in any way: it must be read once more
            with compiled_anew(declared.jitted):
                kernel = _kernel(declared, launch, specialization)
            if isinstance(kernel, Failure):
                return kernel
            _disassembled[key] = _parts(declared, launch, kernel)
        while len(_disassembled) > _MOST_DISASSEMBLED:
            _disassembled.pop(next(iter(_disassembled)))
    return replace(_disassembled[key], seconds=time.perf_counter() - start)


def _parts(declared: Kernel, launch: Launch, kernel: Any) -> Compiled:
    import triton

    sass = sass_of(kernel)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        usage = tool(triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name)
    try:
        found, unreadable = operations(declared.accesses(launch), kernel.asm["ttgir"], kernel.asm["ptx"], sass), ""
    except Unreadable as error:
        found, unreadable = (), str(error)
    used = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", usage))
    return Compiled(
        gpu=launch.gpu.name,
        registers=max(int(used["REG"]), _LEAST_REGISTERS),
        spilled_bytes=int(used["STACK"]) + int(used["LOCAL"]),
        shared_bytes=kernel.metadata.shared,
        operations=found,
        shared=shared_operations(kernel.asm["ptx"], launch.config.num_warps),
        conversions=conversions(kernel.asm["ttgir"]),
        ttgir=with_shown_paths(kernel.asm["ttgir"]),
        ptx=with_shown_paths(kernel.asm["ptx"]),
        sass=with_shown_paths(sass),
        triton=triton.__version__,
        seconds=0.0,
        unreadable=unreadable,
    )


def _launch(experiment: Experiment, gpu: Gpu) -> tuple[Kernel, Launch]:
    return discover()[experiment.kernel], Launch(experiment.problem, experiment.config, gpu)


def _kernel(kernel: Kernel, launch: Launch, specialization: str = "launcher") -> Any:
    """Triton's compiled kernel, or a Failure."""
    from triton.runtime import driver

    gpu = launch.gpu
    tensors = {
        name: _StandInTensor(launch.problem.dtype, spec) for name, spec in kernel.family.tensors(launch.problem).items()
    }
    driver.set_active(_Target(gpu))
    with captured_output() as printed:
        try:
            arguments = _specialized(kernel.arguments(tensors, launch), kernel.jitted, specialization)
            compiled = _warmed_up(kernel, launch, arguments)
        except Exception as error:  # whatever the compiler raises: kernel and config are ours, the reason is its own
            return disk_full(error, os.environ["TRITON_CACHE_DIR"]) or rejection(error, printed(), launch)
    shared = compiled.metadata.shared
    if shared > gpu.shared_bytes_per_program:
        return Failure(
            "compile",
            "out_of_resources",
            f"This config needs {shared:,} bytes of shared memory per program; {gpu.name} allows "
            f"{gpu.shared_bytes_per_program:,}. Make the tile or num_stages smaller.",
        )
    return compiled


def _warmed_up(kernel: Kernel, launch: Launch, arguments: dict[str, Any]) -> Any:
    """Triton's compiled kernel, from its cache where that has all of it."""
    grid = kernel.grid(launch)
    try:
        compiled = kernel.jitted.warmup(**arguments, grid=grid)
        assert_whole(compiled.asm)
    except UNREADABLE:
        with compiled_anew(kernel.jitted):
            compiled = kernel.jitted.warmup(**arguments, grid=grid)
    return compiled


def _specialized(arguments: dict[str, Any], jitted: Any, specialization: str) -> dict[str, Any]:
    """The arguments as the compiler is to see them.

    Args:
        specialization: what it may know of sizes and strides, one of SPECIALIZATIONS.
    """
    import triton.language as tl

    if specialization == "launcher":
        return arguments
    numbers = [p.name for p in jitted.params if not p.is_constexpr and isinstance(arguments[p.name], int)]
    # An odd number is not specialized on, but 1 is, and stays 1.
    changed = {
        name: tl.constexpr(arguments[name]) if specialization == "constexpr" else arguments[name] | 1
        for name in numbers
    }
    return {**arguments, **changed}
