"""Record every Triton launch of an unmodified script, with or without a GPU, and write a capture.

    python capture.py --out FILE [--values] [--config KERNEL=N] [--set NAME=VALUE,...] SCRIPT.py[:CASE] [ARGUMENTS]
    python capture.py --serve

This file needs only torch, Triton and NumPy, so it can be copied to any machine. Without a GPU nothing is launched:
tensors live in host memory but report a CUDA device, kernels are compiled but do not run, and recording stops where the
script reads a result. `--values` runs the launches in Triton's interpreter instead. `capture_file.py` describes the
file format.
"""

import argparse
import ast
import contextlib
import functools
import hashlib
import inspect
import itertools
import json
import math
import os
import re
import runpy
import subprocess
import sys
import tempfile
import traceback
import types
import zipfile
from collections import defaultdict, namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

if __name__ == "__main__":
    del sys.path[0]  # this folder, whose files could shadow packages

import numpy as np
import torch
import triton
from torch.utils import _triton as torch_triton
from torch.utils._pytree import tree_leaves
from triton._C.libtriton import gluon_ir, ir, nvidia
from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel
from triton.runtime import Autotuner, driver, interpreter, jit

FORMAT = 1

# Maximum bytes of all arrays in the file, and of a floating-point tensor's storage (which rarely holds indices).
_MOST_BYTES, _MOST_FLOAT_BYTES = 60 << 20, 1 << 20

# Counts depend on addresses modulo this: see `kernels/atomics.py`.
_ADDRESS_RANGE = 1 << 29

# Triton specializes on integers and addresses that are multiples of this.
_ALIGNMENT = 16

# Maximum number of autotuner configs to try until one compiles and fits, and of combinations in a sweep.
_MOST_CONFIGS, _MOST_COMBINATIONS = 8, 256

_POINTER_OPS = "tt.load", "tt.store", "tt.atomic_rmw", "tt.atomic_cas", "ttg.async_copy_global_to_local"
_STORES = r"tt\.(store|atomic|descriptor_(store|scatter|reduce))|ttng\.async_tma_(copy_local|store|scatter|reduce)"

H200 = {
    "name": "H200", "sms": 132, "compute_capability": [9, 0], "shared_bytes_per_program": 232448,
    "l2_bytes": 60 << 20, "shared_bytes_per_sm": 228 << 10, "registers_per_sm": 65536,
}  # fmt: skip

_RUN = jit.JITFunction.run


class HostRead(BaseException):
    """The script reads a result of a launch that did not run. `except Exception` in the script does not catch it."""


class UsageError(Exception):
    """The command line is wrong. The message is one sentence."""


# ---------------------------------------------------------------- what is recorded


# The kernel's function, the bound arguments, the compiled kernel, the launch's JSON, the CUDA events around it, and the
# kernel compiled for aligned arguments (None if it is the same).
Launch = namedtuple("Launch", "function bound compiled content events aligned")


class Recorder:
    """Records launches while `recording` is active.

    Args:
        gpu: properties of the GPU to compile for.
        runs: "cuda" to launch on this machine's GPU, "interpreter", or "" to launch nothing.

    Attributes:
        configs: number of the autotuner config to pin, from 1, by kernel name.
        context: JSON to add to the next launch.
        numbers: storage numbers by device and address.
        storages: one tensor per storage, kept alive so that no later storage reuses its address.
        unknown: storages with values that depend on launches that did not run.
        arrays: dtype and elements, by a hash of them.
        is_timed: whether cases and `do_bench` calls are launched repeatedly on a GPU to time them.
        cases: the parameters of each of the script's cases.
    """

    def __init__(self, gpu: Mapping[str, Any], runs: str) -> None:
        self.gpu, self.runs, self.configs = gpu, runs, dict[str, int]()
        self.launches, self.storages, self.not_captured = list[Launch](), list[torch.Tensor](), list[str]()
        self.numbers, self.unknown = dict[tuple[str, int], int](), set[int]()
        self.arrays, self.cases = dict[bytes, tuple[str, np.ndarray]](), dict[str, dict[str, Any]]()
        self.context: dict[str, Any] = {"case": None, "tuned": None}
        self.stopped: dict[str, Any] | None = None
        self.about = ""  # the script's docstring
        self.is_paused, self.is_timed = False, True

    def record(self, function: Any, arguments: Sequence[Any], grid: Any, keywords: Mapping[str, Any]) -> Launch:
        """Compile and describe a launch."""
        names = function.arg_names
        bound = function.signature.bind(*arguments, **{k: v for k, v in keywords.items() if k in names})
        bound.apply_defaults()
        values, options = dict(bound.arguments), {k: v for k, v in keywords.items() if k not in names}
        sizes = grid(values) if callable(grid) else grid
        sizes = [sizes] if isinstance(sizes, int) else [int(size) for size in sizes]
        with torch._C.DisableTorchFunction():
            stand_ins = {name: _as_compiled(value) for name, value in values.items()}
            compiled = self._compile(function, sizes, stand_ins, options)
            metadata = compiled.metadata
            *_, binder = function.device_caches[driver.active.get_current_device()]
            _, kinds, _ = binder(**stand_ins, **{"debug": False, "instrumentation_mode": "", **options})
            config = {parameter.name: values[parameter.name] for parameter in function.params if parameter.is_constexpr}
            config |= {"num_warps": metadata.num_warps, "num_stages": getattr(metadata, "num_stages", None)}
            groups = map(self._describe, stand_ins, stand_ins.values(), (kind for kind, *_ in kinds))
            content = {
                "grid": [*sizes, 1, 1][:3], "caller": _users_line(traceback.extract_stack()), **self.context,
                "config": {name: _plain(value) for name, value in config.items()},
                "ran": False, "elapsed_ms": None, "results": None, "arguments": [a for group in groups for a in group],
            }  # fmt: skip
            better = {name: _align(value) for name, value in stand_ins.items() if name not in config}
            content["aligned"], aligned = None, None
            if any(value is not stand_ins[name] for name, value in better.items()):
                with contextlib.suppress(Exception):  # without it, the cost of misalignment is not reported
                    aligned = self._compile(function, sizes, {**stand_ins, **better}, options)
            if aligned and aligned.hash != compiled.hash:
                tensors = filter(None, map(_own_tensor, content["arguments"]))
                size = min((tensor["element_bytes"] for tensor in tensors), default=1)
                content["aligned"] = {"arguments": [_describe_aligned(a, better, size) for a in content["arguments"]]}
        made = Launch(function, values, compiled, content, [], content["aligned"] and aligned)
        self.launches.append(made)
        return made

    def _compile(self, function: Any, grid: Any, arguments: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
        compiled = _RUN(function, grid=grid, warmup=True, **arguments, **options)
        if (needed := compiled.metadata.shared) > (limit := self.gpu["shared_bytes_per_program"]):
            raise RuntimeError(
                f"{function.__name__} needs {needed:,} bytes of shared memory; the GPU allows {limit:,}."
            )
        return compiled

    def _describe(self, name: str, value: Any, kind: Any) -> Iterator[dict[str, Any]]:
        """Yield the JSON of the compiled function's arguments that come from one parameter of the kernel."""
        if isinstance(kind, tuple):
            for number, (inner, inner_kind) in enumerate(zip(value, kind, strict=True)):
                yield from self._describe(f"{name}.{number}", inner, inner_kind)
        elif isinstance(value, _AlignedTensor):
            yield {"name": name, "tensor": self._describe_tensor(value)}
        elif type(value).__name__ == "TensorDescriptor":
            sizes = {"shape": list(map(int, value.shape)), "strides": list(map(int, value.strides))}
            scalars = [
                {"name": f"{name}.{side}.{i}", "value": size}
                for side, numbers in sizes.items()
                for i, size in enumerate(numbers)
            ]
            tensor = self._describe_tensor(value.base)
            if self.gpu["compute_capability"] >= [9, 0]:
                yield {"name": name, "descriptor": {"tensor": tensor, **sizes, "block_shape": list(value.block_shape)}}
            else:  # without the tensor memory accelerator, Triton passes a pointer, and the sizes twice
                yield {"name": name, "tensor": tensor}
                yield from scalars
                yield {"name": f"{name}.padding", "value": value.padding == "nan"}
                if hasattr(value, "round_f32_to_tf32"):
                    yield {"name": f"{name}.round_f32_to_tf32", "value": value.round_f32_to_tf32}
            yield from scalars
        elif kind != "constexpr":
            value = value if isinstance(value, int) else float(value)
            yield {"name": name, "value": value if math.isfinite(value) else str(value)}

    def _describe_tensor(self, tensor: Any) -> dict[str, Any]:
        """Return a tensor's JSON, and keep a copy of its storage if it may hold indices."""
        base, storage = tensor.base, self.storage(tensor.base)
        is_known = storage not in self.unknown
        return {
            "dtype": _dtype(tensor), "shape": list(base.shape), "strides": list(base.stride()), "storage": storage,
            "element_bytes": getattr(tensor.dtype, "itemsize", None) or base.element_size(), "is_known": is_known,
            "offset_bytes": tensor.offset_bytes,
            "array": self._copy(base) if is_known and tensor.dtype == base.dtype else None,
        }  # fmt: skip

    def storage(self, tensor: torch.Tensor) -> int:
        """Return the number of a tensor's storage."""
        number = self.numbers.setdefault(_address(tensor), len(self.storages))
        if number == len(self.storages):
            self.storages.append(tensor.detach())
        return number

    def _copy(self, tensor: torch.Tensor) -> int | None:
        """Return the number of a copy of the tensor's storage; None if it is too large."""
        dtype, memory, is_float = tensor.dtype, tensor.untyped_storage(), tensor.is_floating_point()
        if dtype.is_complex or memory.nbytes() > (_MOST_FLOAT_BYTES if is_float else 4 * _MOST_BYTES):
            return None
        flat = tensor.new_empty(0).set_(memory, 0, (memory.nbytes() // dtype.itemsize,), (1,))
        is_numpy = not is_float or dtype in (torch.float16, torch.float32, torch.float64)
        elements = flat.to("cpu", dtype if is_numpy else torch.float32, copy=True).numpy()
        digest = hashlib.blake2b(elements.tobytes(), key=str(dtype).encode()).digest()
        self.arrays.setdefault(digest, (_dtype(tensor), elements))
        return list(self.arrays).index(digest)

    def is_unknown(self, values: Any) -> bool:
        """Return whether the values contain a tensor that depends on a launch that did not run."""
        with torch._C.DisableTorchFunction():
            return any(self.numbers.get(_address(tensor)) in self.unknown for tensor in _tensors(values))

    def save(self, path: Path, script: str = "", arguments: Sequence[str] = ()) -> None:
        """Write the capture."""
        if self.runs == "cuda":
            torch.cuda.synchronize()
        if getattr(sys.modules.get("torch._inductor.metrics"), "generated_kernel_count", 0):
            self.not_captured.append("Kernels generated by torch.compile were not recorded: Inductor launches them.")
        kernels = {(launch.function, launch.compiled.hash): launch.compiled for launch in self.launches}
        for launch in self.launches:
            if launch.aligned:
                key = launch.function, launch.aligned.hash
                kernels.setdefault(key, launch.aligned)
                launch.content["aligned"]["kernel"] = list(kernels).index(key)
            launch.content["kernel"] = list(kernels).index((launch.function, launch.compiled.hash))
            if launch.events:
                launch.content["elapsed_ms"] = launch.events[0].elapsed_time(launch.events[1])
        described = list(ThreadPoolExecutor().map(_describe_kernel, kernels.values()))
        arrays = [{"dtype": dtype, "length": len(array), "why_missing": ""} for dtype, array in self.arrays.values()]
        content = {
            "format": FORMAT, "triton": triton.__version__, "torch": torch.__version__, "script": script,
            "python": sys.version.split()[0], "arguments": list(arguments), "gpu": self.gpu, "cases": self.cases,
            "about": self.about, "backend": self.runs or "none", "stopped": self.stopped, "arrays": arrays,
            "not_captured": list(dict.fromkeys(self.not_captured)), "kernels": [kernel for kernel, _ in described],
            "storages": [
                {"bytes": t.untyped_storage().nbytes(), "address_bytes": _start(t) % _ADDRESS_RANGE}
                for t in self.storages
            ],
            "launches": [launch.content for launch in self.launches],
        }  # fmt: skip
        total = 0
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            for number, (_, array) in sorted(enumerate(self.arrays.values()), key=lambda item: item[1][1].nbytes):
                total += array.nbytes
                if total > _MOST_BYTES:
                    arrays[number]["why_missing"] = f"its {array.nbytes:,} bytes would exceed the file's limit"
                    continue
                with file.open(f"arrays/{number}.npy", "w") as stream:
                    np.save(stream, array, allow_pickle=False)
            for number, stage in ((n, stage) for n, (_, codes) in enumerate(described) for stage in codes):
                file.writestr(f"kernels/{number}.{stage}", described[number][1][stage])
            file.writestr("capture.json", json.dumps(content))


class _AlignedTensor:
    """A stand-in for a tensor or its wrapper during compilation. Triton's binder reads its dtype and address."""

    def __init__(self, tensor: Any) -> None:
        base: Any = getattr(tensor, "base", getattr(tensor, "_base", None))  # of Triton's and FlagGems' wrappers
        self.dtype, self.base = tensor.dtype, tensor if isinstance(tensor, torch.Tensor) else base
        self.offset_bytes = self.base.storage_offset() * self.base.element_size()
        self.offset_bytes += tensor.data_ptr() - self.base.data_ptr()
        self.data_ptr = _returning(_start(self.base) + self.offset_bytes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.base, name)


def _as_compiled(value: Any) -> Any:
    """Return the stand-in that is passed to Triton's binder for an argument."""
    if type(value).__name__ == "TensorDescriptor":
        copy = object.__new__(type(value))  # skips the constructor's alignment check, which host tensors may fail
        copy.__dict__ |= {**value.__dict__, "base": _AlignedTensor(value.base)}
        return copy
    if isinstance(value, tuple):
        parts = [_as_compiled(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return _AlignedTensor(value) if hasattr(value, "data_ptr") and hasattr(value, "dtype") else value


def _align(value: Any) -> Any:
    """Return an aligned argument: an integer rounded up, or a tensor's start rounded down, to a multiple of 16."""
    if type(value) is int and value > _ALIGNMENT:
        return value + -value % _ALIGNMENT if value % _ALIGNMENT else value
    if isinstance(value, _AlignedTensor) and (excess := value.offset_bytes % _ALIGNMENT):
        aligned = _AlignedTensor(value.base)
        aligned.offset_bytes = value.offset_bytes - excess
        aligned.data_ptr = _returning(value.data_ptr() - excess)
        return aligned
    return value


def _own_tensor(argument: dict[str, Any]) -> Any:
    return argument.get("tensor") or argument.get("descriptor", {}).get("tensor")


def _describe_aligned(argument: dict[str, Any], better: Mapping[str, Any], element_bytes: int) -> dict[str, Any]:
    """Return an argument's JSON with the value or the offset of its aligned version.

    An integer keeps its value if that many elements fill a multiple of 16 bytes: declaring it constexpr is enough.
    """
    value = better.get(argument["name"])
    if "tensor" in argument and isinstance(value, _AlignedTensor):
        return {**argument, "tensor": {**argument["tensor"], "offset_bytes": value.offset_bytes}}
    is_padded = type(before := argument.get("value")) is int and before * element_bytes % _ALIGNMENT
    return {**argument, "value": value} if is_padded else argument


def _returning(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _address(tensor: torch.Tensor) -> tuple[str, int]:
    return tensor.device.type, tensor.untyped_storage().data_ptr()


def _start(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's storage; 0 in host memory, because it is less aligned than GPU memory."""
    return tensor.untyped_storage().data_ptr() if tensor.is_cuda else 0


def _plain(value: Any) -> int | str | None:
    """Return a constant's JSON."""
    return value if isinstance(value, int | str | None) else str(getattr(value, "__name__", value))[:60]


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    return (value for value in tree_leaves(values) if isinstance(value, torch.Tensor))


def _users_line(frames: Iterable[traceback.FrameSummary]) -> dict[str, Any]:
    """Return the innermost of the frames that is in the user's code."""
    skipped = [__file__, runpy.__file__, contextlib.__file__, functools.__file__, "<frozen", "<string"]
    skipped += [f"{package.__path__[0]}/" for package in (torch, triton)]
    lines = [{"file": f.filename, "line": f.lineno} for f in frames if not f.filename.startswith(tuple(skipped))]
    return lines[-1] if lines else {"file": "", "line": 0}


# ---------------------------------------------------------------- compiled code


@functools.cache
def read_ttgir(ttgir: str) -> tuple[list[dict[str, Any] | None], list[int]]:
    """Return the pointers' layout of each operation on pointers, and the numbers of the arguments that are stored to.

    A layout is None for a scalar pointer. An argument is stored to if a store's pointer may derive from it.
    """
    context = ir.context()  # must outlive every object created from it
    ir.load_dialects(context)
    nvidia.load_dialects(context)
    with tempfile.NamedTemporaryFile("w", suffix=".ttgir") as file:
        Path(file.name).write_text(ttgir)
        module = ir.parse_mlir_module(file.name, context)
    builder = gluon_ir.GluonOpBuilder(context)
    layouts: list[dict[str, Any] | None] = []
    sources = defaultdict[int, set[int]](set)  # by value or region; a region's are all values that enter or leave it
    stored, todo = set[int](), list[int]()

    def visit(op: Any) -> None:
        name, block = op.get_name(), op.get_block()
        operands = [op.get_operand(number).id() for number in range(op.get_num_operands())]
        if name in _POINTER_OPS:
            layouts.append(_layout(builder, op.get_operand(0)))
        if re.match(_STORES, name):
            todo.extend(operands[:1])  # the op that waits for a store has no operand
        if name == "ttng.tensormap_create":  # writes a descriptor of its second operand to its first
            sources[operands[0]].add(operands[1])
        if block is not None:
            region = block.get_parent().id()
            for number in range(block.get_num_arguments()):
                sources[block.arg(number).id()].add(region)
            if name.endswith((".yield", ".condition", ".return")) or name.startswith("cf."):
                sources[region].update(operands)
        # An offset, and the address of a loaded value, are not the result's origin.
        if name in ("tt.addptr", "tt.load"):
            operands = operands[: name == "tt.addptr"]
        regions = [op.get_region(number).id() for number in range(op.get_num_regions())]
        for value in (*regions, *(op.get_result(number).id() for number in range(op.get_num_results()))):
            sources[value].update(operands, regions)

    module.walk(visit)
    while todo:
        if (value := todo.pop()) not in stored:
            stored.add(value)
            todo += sources[value]
    function = module.get_function(module.get_entry_func_name())
    count = len(module.get_function_signature(function))
    return layouts, [number for number in range(count) if function.args(number).id() in stored]


def _layout(builder: Any, pointer: Any) -> dict[str, Any] | None:
    match = re.match(r"tensor<((?:\d+x)+)", str(pointer.get_type()))
    if match is None:
        return None
    shape = [int(size) for size in match[1][:-1].split("x")]
    layout = builder.to_linear_layout(builder.get_gluon_layout_from_tensor(pointer)._to_ir(builder), shape)
    return {"shape": shape, "register": layout.reg_bases, "lane": layout.lane_bases, "warp": layout.warp_bases}


def _run_tool(name: str, cubin: bytes, *flags: str) -> str:
    """Return the output of one of the CUDA tools in Triton's wheel for a cubin; "" if the tool is missing."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file, contextlib.suppress(OSError, AttributeError):
        Path(file.name).write_bytes(cubin)
        command = [getattr(triton.knobs.nvidia, name).path, *flags, file.name]
        return subprocess.run(command, capture_output=True, text=True).stdout
    return ""


@functools.cache
def _resources(cubin: bytes) -> tuple[int, int]:
    """Return a kernel's registers and spilled bytes, both per thread."""
    usage = _run_tool("cuobjdump", cubin, "--dump-resource-usage")
    used = {name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    return max(16, used.get("REG", 0)), used.get("STACK", 0) + used.get("LOCAL", 0)


def _describe_kernel(compiled: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the JSON of a compiled kernel, and its TTGIR, PTX and SASS by stage."""
    asm, metadata, function = compiled.asm, compiled.metadata, compiled.src.fn.fn
    registers, spilled = _resources(asm["cubin"])
    sass = _run_tool("nvdisasm", asm["cubin"], "-g", "-c", "-ndf")
    codes = {"ttgir": asm["ttgir"], "ptx": asm["ptx"], "sass": sass}
    (source, line), file = inspect.getsourcelines(function), inspect.getsourcefile(function) or ""
    compiled_from = re.search(r'^#loc = loc\("([^"]+)":', asm["ttgir"], re.MULTILINE)
    if compiled_from and Path(file).name not in asm["ttgir"]:  # Triton's cache knows the same source in another file
        old, new = Path(compiled_from[1]).name, Path(file).name
        codes = {stage: code.replace(old, new) for stage, code in codes.items()}
    return {
        "name": function.__name__, "file": file, "line": line,
        "source": "".join(source), "registers": registers, "spilled_bytes": spilled, "shared_bytes": metadata.shared,
        "num_warps": metadata.num_warps, "num_ctas": metadata.num_ctas, "layouts": read_ttgir(asm["ttgir"])[0],
    }, codes  # fmt: skip


# ---------------------------------------------------------------- launches


def _relaunch(self: Any, grid: Any) -> Callable[..., None]:
    """Redirect a direct launch of a compiled kernel to its jitted function, so that the launch is recorded."""

    def launch(*arguments: Any, **_: Any) -> None:
        function = self.src.fn
        values = {function.arg_names[path[0]]: value for path, value in self.src.constants.items() if len(path) == 1}
        free = [parameter.name for parameter in function.params if not parameter.is_constexpr]
        names = free if len(arguments) == len(free) else function.arg_names  # constants may be left out
        options = {name: getattr(self.metadata, name) for name in ("num_warps", "num_stages", "num_ctas")}
        function[grid](**{**options, **values, **dict(zip(names, arguments, strict=False))})

    return launch


def _measure_once(recorder: Recorder, measure: Callable[..., Any]) -> Callable[..., Any]:
    """Return a version of `do_bench` that records a single call. If nothing is timed, it returns 1 ms."""

    @functools.wraps(measure)
    def measure_once(call: Callable[[], Any], *arguments: Any, **options: Any) -> Any:
        call()
        if recorder.runs != "cuda" or not recorder.is_timed:
            count = len(options.get("quantiles") or ()) or (options.get("return_mode") == "all")
            return [1.0] * count if count else 1.0
        with mock.patch.object(recorder, "is_paused", True):
            return measure(call, *arguments, **options)

    return measure_once


def _launch(recorder: Recorder, function: Any, arguments: Sequence[Any], grid: Any, keywords: dict[str, Any]) -> Any:
    """Record a launch, and run it on the GPU or in the interpreter if the recorder does so."""
    launch = recorder.record(function, arguments, grid, keywords)
    if recorder.runs == "cuda":
        launch.compiled._init_handles()  # load the code now, so that the first launch's time excludes it
        launch.events.extend(torch.cuda.Event(enable_timing=True) for _ in range(2))
        launch.events[0].record()
        kernel = _RUN(function, *arguments, grid=grid, warmup=False, **keywords)
        launch.events[1].record()
        launch.content["ran"] = "cuda"
        return kernel
    tensors = list(map(_own_tensor, launch.content["arguments"]))
    if recorder.runs and all(tensor["is_known"] for tensor in tensors if tensor):
        try:
            _interpret(launch)
            launch.content["ran"] = "interpreter"
        except Exception as error:
            note = f"{function.__name__} did not run in the interpreter: {type(error).__name__}: {error}"
            recorder.not_captured.append(note[:200])
    if not launch.content["ran"]:
        written = [tensors[number] for number in read_ttgir(launch.compiled.asm["ttgir"])[1]]
        recorder.unknown |= {tensor["storage"] for tensor in written if tensor}
    return launch.compiled


def _interpret(launch: Launch) -> None:
    """Run a launch in Triton's interpreter, on the tensors in main memory."""

    def call(self: Any, *arguments: Any, **keywords: Any) -> Any:
        # The interpreter's own version leaves triton.language patched.
        scope = interpreter._patch_lang(self.fn)
        try:
            return interpreter.InterpretedFunction(self.fn).rewrite()(*arguments, **keywords)
        finally:
            if hasattr(scope, "restore"):
                scope.restore()

    interpreted, grid = interpreter.InterpretedFunction(launch.function.fn), tuple(launch.content["grid"])
    with mock.patch.object(jit.JITFunction, "__call__", call), torch._C.DisableTorchFunction():
        interpreted.run(grid=grid, warmup=False, **launch.bound)


@contextlib.contextmanager
def recording(gpu: Mapping[str, Any] = H200, runs: str = "") -> Iterator[Recorder]:
    """Record all Triton launches. Unless `runs` is "cuda", tensors in host memory report a CUDA device."""
    recorder = Recorder(gpu, runs)

    @functools.wraps(_RUN)
    def run(self: Any, *arguments: Any, grid: Any, warmup: bool, **keywords: Any) -> Any:
        is_graph = runs == "cuda" and torch.cuda.is_current_stream_capturing()
        if is_graph:
            recorder.not_captured.append("Launches captured into a CUDA graph were not recorded.")
        if warmup or is_graph or recorder.is_paused:
            return _RUN(self, *arguments, grid=grid, warmup=warmup, **keywords)
        for hook in self.pre_run_hooks:
            hook(*arguments, **keywords)
        return _launch(recorder, self, arguments, grid, keywords)

    tuners: list[Any] = [Autotuner]
    for tuner in tuners:
        tuners += tuner.__subclasses__()
    pinned, bench = functools.partialmethod(_run_pinned, recorder), _returning([0.0] * 3)
    # A tuner with its own search picks its first config, because all benchmark times are equal.
    replaced: list[tuple[Any, str, Any]] = [(jit.JITFunction, "run", run), (Autotuner, "_bench", bench)]
    replaced += [(tuner, "run", pinned) for tuner in tuners if "run" in tuner.__dict__]
    replaced.append((CompiledKernel, "__getitem__", _relaunch))
    for name in ("do_bench", "do_bench_cudagraph"):
        replaced.append((triton.testing, name, _measure_once(recorder, getattr(triton.testing, name))))
    with contextlib.ExitStack() as stack:

        def pin_subclass(tuner: type) -> None:  # of a library that the script imports
            if "run" in tuner.__dict__:
                stack.enter_context(mock.patch.object(tuner, "run", pinned))

        replaced.append((Autotuner, "__init_subclass__", classmethod(pin_subclass)))
        for owner, name, value in [*replaced, *(_gpu_stand_ins(recorder) if runs != "cuda" else ())]:
            stack.enter_context(mock.patch.object(owner, name, value, create=True))
        if runs != "cuda":
            stack.enter_context(_AsIfCuda(recorder))
        yield recorder


def _run_pinned(self: Any, recorder: Recorder, *arguments: Any, **keywords: Any) -> Any:
    """Run the pinned config, or the first that compiles and fits, instead of the autotuner's search."""
    self.nargs = dict(zip(self.arg_names, arguments, strict=False))
    configs = self.prune_configs(keywords) if len(self.configs) > 1 else self.configs
    if number := recorder.configs.get(self.base_fn.__name__):
        if not 1 <= number <= len(self.configs):
            name = self.base_fn.__name__
            raise UsageError(f"--config {name}={number}: {name} has configs 1 to {len(self.configs)}.")
        configs = [self.configs[number - 1]]
    count, configs = len(recorder.launches), configs[:_MOST_CONFIGS]
    for place, config in enumerate(configs, start=1):
        self.best_config, values = config, config.all_kwargs()
        if config.pre_hook is not None:
            config.pre_hook({**self.nargs, **keywords, **values})
        number = self.configs.index(config) + 1 if config in self.configs else place
        tuned = {"tuned": {"number": number, "of": len(self.configs)}} if len(self.configs) > 1 else {}
        try:
            with mock.patch.object(recorder, "context", {**recorder.context, **tuned}):
                return self.fn.run(*arguments, **keywords, **values)
        except Exception:
            if place == len(configs):
                raise
            del recorder.launches[count:]


# ---------------------------------------------------------------- a machine without a GPU

_READ = "a tensor (with {}) that may depend on an earlier launch, and launches do not run without a GPU. \
Use --values to run them in Triton's interpreter."
_CUDA = torch.device("cuda", 0)
_T: Any = torch.Tensor
_ANSWERS = {
    _T.device.__get__: _CUDA, _T.is_cuda.__get__: True, _T.is_cpu.__get__: False, _T.get_device: 0,
    _T.is_pinned: False, _T.record_stream: None,
}  # fmt: skip
_READS = {_T.item, _T.tolist, _T.numpy, _T.cpu, _T.__bool__, _T.__int__, _T.__float__, _T.__index__}
for _name in ("nonzero", "unique", "masked_select", "repeat_interleave", "equal", "allclose"):
    _READS |= {getattr(torch, _name), getattr(_T, _name)}


def _on_cpu(value: Any) -> Any:
    is_cuda = isinstance(value, str | torch.device) and re.fullmatch(r"cuda(:\d+)?", str(value))
    return torch.device("cpu") if is_cuda else value


class _AsIfCuda(torch.overrides.TorchFunctionMode):
    """Make tensors report a CUDA device. Tensors created on or moved to the GPU stay in host memory."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, function: Any, kinds: Any, arguments: Any = (), keywords: Any = None) -> Any:
        if function in _ANSWERS:
            return _ANSWERS[function]
        if function in (_T.cuda, _T.pin_memory):
            return arguments[0]
        recorder, keywords = self._recorder, keywords or {}
        if function in _READS and not recorder.runs and recorder.is_unknown((arguments, keywords)):
            raise HostRead(_READ.format(function.__name__))
        options = {name: name != "pin_memory" and _on_cpu(value) for name, value in keywords.items()}
        try:
            result = function(*map(_on_cpu, arguments), **options)
        except (IndexError, RuntimeError) as error:  # an index from a launch that did not run may be out of range
            if recorder.runs or not recorder.is_unknown((arguments, options)):
                raise
            raise HostRead(_READ.format(function.__name__)) from error
        if recorder.unknown and recorder.is_unknown((arguments, options)):
            with torch._C.DisableTorchFunction():
                recorder.unknown |= {recorder.storage(tensor) for tensor in _tensors(result)}
        return result


class _Stub(contextlib.ContextDecorator, contextlib.nullcontext[None]):
    """A stand-in for a driver, stream, event or guard. Its methods return the given values, or None."""

    cuda_stream, device, utils = 0, _CUDA, None

    def __init__(self, *_: Any, **answers: Any) -> None:
        self._answers = {"elapsed_time": 1.0, "query": True, **answers}

    def __getattr__(self, name: str) -> Any:
        return _returning(self._answers.get(name))


class _Generator(torch.Generator):
    """A stand-in for the CUDA random number generator. Libraries read and advance its state: seed and offset."""

    offset = 0

    def get_state(self) -> torch.Tensor:
        return torch.tensor([self.initial_seed(), self.offset]).view(torch.uint8)

    def set_state(self, new_state: torch.Tensor) -> torch.Generator:
        seed, self.offset = new_state.view(torch.int64).tolist()
        return self.manual_seed(seed)


def _gpu_stand_ins(recorder: Recorder) -> Iterator[tuple[Any, str, Any]]:
    """Yield replacements, (owner, name, value), that make torch and Triton appear to have the recorder's GPU."""
    gpu, generator, (major, minor) = recorder.gpu, _Generator(), recorder.gpu["compute_capability"]
    active: Any = _Stub(
        get_current_target=GPUTarget("cuda", 10 * major + minor, 32), get_device_capability=(major, minor),
        get_current_device=0, get_current_stream=0, get_device_interface=torch.cuda, get_active_torch_device=_CUDA,
    )  # fmt: skip
    active.utils = _Stub(cuOccupancyMaxActiveClusters=gpu["sms"], get_device_properties={
        "max_shared_mem": gpu["shared_bytes_per_program"], "max_num_regs": gpu["registers_per_sm"], "warpSize": 32,
        "multiprocessor_count": gpu["sms"], "sm_clock_rate": 1980000, "mem_clock_rate": 3201000, "mem_bus_width": 6144,
    })  # fmt: skip
    properties = types.SimpleNamespace(
        name=f"NVIDIA {gpu['name']}", major=major, minor=minor, multi_processor_count=gpu["sms"], warp_size=32,
        total_memory=150 * 10**9, max_threads_per_multi_processor=2048, max_threads_per_block=1024, gcnArchName="",
        regs_per_multiprocessor=gpu["registers_per_sm"], shared_memory_per_block=49152, L2_cache_size=gpu["l2_bytes"],
        shared_memory_per_block_optin=gpu["shared_bytes_per_program"], is_integrated=0,
        shared_memory_per_multiprocessor=gpu["shared_bytes_per_sm"],
    )  # fmt: skip
    answers = {
        "is_available": True, "device_count": 1, "current_device": 0, "set_device": None, "get_arch_list": ["sm_90"],
        "synchronize": None, "current_stream": _Stub(), "default_stream": _Stub(), "_lazy_init": None,
        "is_current_stream_capturing": False, "mem_get_info": (140 * 10**9, 150 * 10**9), "_get_device_index": 0,
        "get_device_properties": properties,
    }  # fmt: skip
    run_backward, implement = torch.autograd._engine_run_backward, torch.library.Library.impl
    custom_op = torch.library.custom_op

    def run_backward_as_if_cuda(*arguments: Any, **keywords: Any) -> Any:
        with _AsIfCuda(recorder):  # user code runs inside, and autograd turns the mode off there
            return run_backward(*arguments, **keywords)

    def implement_on_cpu(self: Any, op: Any, function: Any, dispatch_key: str = "", **keywords: Any) -> Any:
        if (dispatch_key or self.dispatch_key) == "CUDA" and self.ns not in ("aten", "_inductor_test"):
            with contextlib.suppress(Exception):
                implement(self, op, function, "CPU", **keywords)
        return implement(self, op, function, dispatch_key, **keywords)

    driver.set_active(active)
    yield from ((torch.cuda, name, _returning(value)) for name, value in answers.items())
    kinds = "device", "device_of", "_DeviceGuard", "stream", "Stream", "Event"
    yield from ((torch.cuda, name, _Stub) for name in kinds)
    yield torch.cuda, "default_generators", (generator,)
    yield torch._C, "_cuda_getCurrentRawStream", _returning(0)
    yield CompiledKernel, "_init_handles", _returning(None)
    yield CompiledKernel, "n_regs", property(lambda self: _resources(self.kernel)[0])
    yield CompiledKernel, "n_spills", property(lambda self: _resources(self.kernel)[1] // 4)  # in registers
    yield torch.version, "cuda", torch.version.cuda or "13.0"
    yield torch_triton, "has_triton", _returning(True)
    yield torch.autograd, "_engine_run_backward", run_backward_as_if_cuda
    yield torch.library.Library, "impl", implement_on_cpu
    yield torch.library, "custom_op", lambda *names, device_types=None, **options: custom_op(*names, **options)


# ---------------------------------------------------------------- scripts and cases


def parse_settings(settings: Iterable[str], case: str, defaults: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the values of the parameters that `--set` changes, with the type of their defaults."""
    result = {}
    for setting in settings:
        name, _, texts = setting.partition("=")
        if name not in defaults:
            allowed = ", ".join(defaults) or "none"
            raise UsageError(f"--set {setting}: {case} has no parameter {name!r}. It has {allowed}.")
        default, kind = defaults[name], type(defaults[name])
        values: list[Any] = texts.split(",")
        if kind is not str:
            with contextlib.suppress(ValueError, SyntaxError):
                values = [ast.literal_eval(text.capitalize() if kind is bool else text) for text in values]
        if any(type(value) is not kind for value in values):
            allowed = "True or False" if kind is bool else f"a value of type {kind.__name__}, such as {default!r}"
            raise UsageError(f"--set {setting}: {name} must be {allowed}.")
        result[name] = values
    return result


def run_case(recorder: Recorder, name: str, function: Any, settings: Mapping[str, Any]) -> None:
    """Launch a case. If it ran, compare its outputs with the expected ones and, on a GPU, time it."""
    kernel, grid, keywords, *expected = function(**settings)
    caller = {"file": inspect.getsourcefile(function) or "", "line": inspect.getsourcelines(function)[1]}
    recorder.context = {"case": name, "tuned": None, "caller": caller, "settings": settings}
    kernel[grid](**keywords)
    launch = recorder.launches[-1]
    if expected and launch.content["ran"]:
        results = {output: compare(keywords[output], result) for output, result in expected[0].items()}
        launch.content["results"] = results
    if launch.content["ran"] == "cuda" and recorder.is_timed:
        call = functools.partial(kernel[grid], **keywords)
        with mock.patch.object(recorder, "is_paused", True):
            launch.content["elapsed_ms"] = triton.testing.do_bench(call, return_mode="median")
        launch.events.clear()


def run_sweep(recorder: Recorder, name: str, function: Any, values: Mapping[str, Sequence[Any]]) -> None:
    """Launch a case for each combination of its parameters' values. Failures are listed in `not_captured`."""
    combinations = [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]
    if len(combinations) > _MOST_COMBINATIONS:
        raise UsageError(f"--set gives {len(combinations):,} combinations; at most {_MOST_COMBINATIONS} are run.")
    for settings in combinations:
        try:
            run_case(recorder, name, function, settings)
        except Exception as error:
            if len(combinations) == 1:
                raise
            chosen = " ".join(f"{parameter}={value}" for parameter, value in settings.items())
            recorder.not_captured.append(f"{chosen}: {type(error).__name__}: {error}"[:300])


def compare(result: torch.Tensor, reference: torch.Tensor) -> dict[str, Any]:
    """Return the errors of an output. It passes if its relative RMS error is at most 8 × its dtype's epsilon."""
    difference = result.double() - reference.double()
    scale = float(reference.double().square().mean().sqrt()) or 1.0
    rms, most = float(difference.square().mean().sqrt()) / scale, float(difference.abs().max())
    epsilon = torch.finfo(result.dtype).eps if result.dtype.is_floating_point else 0.0
    return {"relative_rms": rms, "max_abs_error": most, "passed": rms <= 8 * epsilon}


def run_script(recorder: Recorder, path: Path, case: str, settings: Sequence[str], arguments: Sequence[str]) -> None:
    """Run a script as `__main__`, then the named case, or all cases if the script launched nothing."""
    sys.argv, sys.path[0] = [str(path), *arguments], str(path.parent)
    names = runpy.run_path(str(path), run_name="__main__")
    cases = {name: value for name, value in names.items() if name.startswith("case") and inspect.isfunction(value)}
    defaults = {}
    for name, function in cases.items():
        parameters = inspect.signature(function).parameters.values()
        defaults[name] = {p.name: p.default for p in parameters if p.default is not p.empty}
        recorder.cases[name] = {k: v for k, v in defaults[name].items() if isinstance(v, int | float | str)}
    if case and case not in cases:
        allowed = f"Its cases are {', '.join(cases)}." if cases else "It has no function whose name begins with `case`."
        raise UsageError(f"{path.name} has no case {case!r}. {allowed}")
    chosen = [case] if case else [] if recorder.launches else list(cases)
    if settings and len(chosen) != 1:
        raise UsageError("--set changes the parameters of one case: name it, as in script.py:case.")
    if case:
        recorder.launches.clear()
    for name in chosen:
        run_sweep(recorder, name, cases[name], parse_settings(settings, name, defaults[name]))


def describe_stop(error: BaseException, script: str) -> dict[str, Any]:
    """Return the JSON that says where and why a script ended early."""
    line = _users_line(traceback.extract_tb(error.__traceback__))
    kind, message = "exception", f"{script} raised {type(error).__name__}: {error}"
    if isinstance(error, HostRead):
        kind, message = "host_read", f"{Path(line['file']).name}:{line['line']} reads {error}"
    return {**line, "kind": kind, "message": message.splitlines()[0][:300]}


def this_gpu() -> dict[str, Any]:
    """Return the properties of this machine's GPU."""
    properties: Any = torch.cuda.get_device_properties(0)
    shared = properties.shared_memory_per_block_optin
    return {
        "name": properties.name.removeprefix("NVIDIA "), "sms": properties.multi_processor_count,
        "compute_capability": [properties.major, properties.minor], "shared_bytes_per_program": shared,
    }  # fmt: skip


def serve() -> int:
    """Capture once per line of stdin, a JSON list of arguments. Reply with a line: the error, or nothing.

    Each capture runs in a fork of this process, which has imported torch and Triton.
    """
    for line in sys.stdin:
        if (child := os.fork()) == 0:
            reply = os.dup(1)
            os.dup2(2, 1)  # the script's output goes to stderr
            message = capture(json.loads(line))
            sys.stdout.flush()
            os.write(reply, f"{message}\n".encode())
            os._exit(0)
        if status := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            print(f"The script's process ended with status {status}.", flush=True)
    return 0


def capture(command_line: Sequence[str]) -> str:
    """Run a script and write its capture. Return "", or a message if the command line is wrong."""
    parser = argparse.ArgumentParser(description="Record the Triton launches of a script.")
    options: dict[str, dict[str, Any]] = {
        "--out": {"type": Path, "required": True}, "--gpu-json": {"type": json.loads, "default": None},
        "--values": {"action": "store_true"}, "--config": {"action": "append", "default": []},
        "--set": {"action": "append", "default": []}, "--untimed": {"action": "store_true"}, "script": {},
        "arguments": {"nargs": argparse.REMAINDER},
    }  # fmt: skip
    for name, option in options.items():
        parser.add_argument(name, **option)
    flags = parser.parse_args(command_line)
    file, _, case = flags.script.partition(":")
    path = Path(file).resolve()
    runs = "cuda" if torch.cuda.is_available() else "interpreter" if flags.values else ""
    gpu = {**H200, **(flags.gpu_json or (this_gpu() if runs == "cuda" else {}))}
    with recording(gpu, runs) as recorder:
        try:
            if not path.is_file():
                raise UsageError(f"There is no script {file}.")
            try:
                recorder.about = ast.get_docstring(ast.parse(path.read_bytes())) or ""
            except (SyntaxError, ValueError) as error:
                raise UsageError(f"{file} is not Python: {error}.") from None
            if not all(re.fullmatch(r"\w+=\d+", text) for text in flags.config):
                raise UsageError(f"--config must be KERNEL=N (got {' '.join(flags.config)}).")
            recorder.configs = {name: int(number) for name, number in (text.split("=") for text in flags.config)}
            recorder.is_timed = not flags.untimed
            run_script(recorder, path, case, flags.set, flags.arguments)
            tuned = {launch.function.__name__ for launch in recorder.launches if launch.content["tuned"]}
            if unused := sorted({*recorder.configs} - tuned):
                allowed = ", ".join(sorted(tuned)) or "none"
                raise UsageError(
                    f"--config: no autotuned kernel {unused[0]} was launched. Autotuned kernels: {allowed}."
                )
        except UsageError as error:
            return str(error)
        except BaseException as error:
            if not isinstance(error, SystemExit | HostRead):
                traceback.print_exception(error)
            if not isinstance(error, SystemExit) or error.code:
                recorder.stopped = describe_stop(error, path.name)
    recorder.save(flags.out, path.name, flags.arguments)
    if recorder.stopped:
        print(recorder.stopped["message"], file=sys.stderr)
    return ""


def main() -> int:
    if sys.argv[1:] == ["--serve"]:
        return serve()
    if message := capture(sys.argv[1:]):
        print(message, file=sys.stderr)
    return 2 if message else 0


if __name__ == "__main__":
    sys.exit(main())
