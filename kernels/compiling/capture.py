"""Record every Triton launch of a script, unchanged, with or without a GPU, and write a capture.

    python capture.py --out FILE [--values] [--config KERNEL=N] [--set NAME=VALUE] SCRIPT.py[:CASE] [ARGUMENTS]
    python capture.py --serve

This file needs only torch and Triton, so it can be copied to any machine. Without a GPU nothing is launched: tensors
are in main memory and say that they are on a GPU, kernels are compiled but do not run, and recording stops where the
script reads a result. `--values` runs the launches in Triton's interpreter instead. `capture_file.py` describes the
file that is written.
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
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import triton
from torch.utils import _triton as torch_triton
from triton._C.libtriton import gluon_ir, ir, nvidia
from triton.backends.compiler import GPUTarget
from triton.runtime import Autotuner, driver, interpreter, jit

FORMAT = 1

# Arrays that would make the file larger are left out; so are large tensors of floating-point numbers, which are rarely
# indices.
_MOST_BYTES, _MOST_FLOAT_BYTES = 60 << 20, 1 << 20

# torch's allocator aligns storages to this.
_STORAGE_ALIGNMENT = 512

# Configs of an autotuner that are tried until one compiles and fits.
_MOST_CONFIGS = 8

_POINTER_OPS = "tt.load", "tt.store", "tt.atomic_rmw", "tt.atomic_cas", "ttg.async_copy_global_to_local"
_STORES = r"tt\.(store|atomic|descriptor_(store|scatter|reduce))|ttng\.async_tma_(copy_local|store|scatter|reduce)"

H200 = {
    "name": "H200", "sms": 132, "compute_capability": [9, 0], "shared_bytes_per_program": 232448,
    "l2_bytes": 60 << 20, "shared_bytes_per_sm": 228 << 10, "registers_per_sm": 65536,
}  # fmt: skip

_RUN = jit.JITFunction.run


class HostRead(BaseException):
    """The script reads a result of a launch that did not run. No `except Exception` in the script catches this."""

    def __str__(self) -> str:
        line = _users_line(traceback.extract_tb(self.__traceback__))
        return (
            f"{Path(line['file']).name}:{line['line']} reads a tensor that an earlier launch was given ({self.args[0]}"
            "), and launches do not run without a GPU. --values runs them in Triton's interpreter."
        )


class UsageError(Exception):
    """The command line is wrong. The message is one sentence."""


# ---------------------------------------------------------------- what is recorded


@dataclass
class Launch:
    """A launch: the function, its bound arguments, its options, the compiled kernel, and the launch's JSON."""

    function: Any
    bound: dict[str, Any]
    options: dict[str, Any]
    compiled: Any
    content: dict[str, Any]
    events: Sequence[Any] = ()


class Recorder:
    """Records launches while `recording` is active.

    Args:
        gpu: properties of the GPU to compile for.
        runs: "cuda" to launch on this machine's GPU, "interpreter", or "" to launch nothing.

    Attributes:
        configs: for a kernel's name, the number of the autotuner's config to pin, from 1.
    """

    def __init__(self, gpu: Mapping[str, Any], runs: str) -> None:
        self.gpu, self.runs = gpu, runs
        self.configs: dict[str, int] = {}
        self.launches: list[Launch] = []
        self.numbers: dict[tuple[str, int], int] = {}  # of storages, by device and address
        self.storages: list[torch.Tensor] = []  # kept alive, so that no later storage has the same address
        self.unknown: set[int] = set()  # storages with values that depend on launches that did not run
        self.arrays: dict[bytes, tuple[str, np.ndarray]] = {}  # dtype and elements, by a hash of them
        self.context: dict[str, Any] = {"case": None, "tuned": None}  # of the next launch
        self.cases: dict[str, dict[str, Any]] = {}
        self.stopped: dict[str, Any] | None = None
        self.not_captured: list[str] = []

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
            compiled = _RUN(function, grid=sizes, warmup=True, **stand_ins, **options)
            metadata, limit = compiled.metadata, self.gpu["shared_bytes_per_program"]
            if metadata.shared > limit:
                raise RuntimeError(f"{metadata.name} needs {metadata.shared:,} bytes of shared memory; {limit:,} fit.")
            *_, binder = function.device_caches[driver.active.get_current_device()]
            _, kinds, _ = binder(**stand_ins, **{"debug": False, "instrumentation_mode": "", **options})
            config = {parameter.name: values[parameter.name] for parameter in function.params if parameter.is_constexpr}
            config |= {"num_warps": metadata.num_warps, "num_stages": getattr(metadata, "num_stages", None)}
            described = map(self._describe, stand_ins, stand_ins.values(), (kind for kind, *_ in kinds))
            content = {
                "grid": [*sizes, 1, 1][:3], "caller": _users_line(traceback.extract_stack()), **self.context,
                "config": {k: v if isinstance(v, int | str | None) else _text(v) for k, v in config.items()},
                "ran": False, "elapsed_ms": None, "results": None, "arguments": list(itertools.chain(*described)),
                "parameters": {name: _text(value) for name, value in values.items()},
            }  # fmt: skip
        self.launches.append(Launch(function, values, options, compiled, content))
        return self.launches[-1]

    def _describe(self, name: str, value: Any, kind: Any) -> Iterator[dict[str, Any]]:
        """Yield the JSON of what Triton's binder leaves of a parameter to the compiled function."""
        if isinstance(kind, tuple):
            for number, (inner, inner_kind) in enumerate(zip(value, kind, strict=True)):
                yield from self._describe(f"{name}.{number}", inner, inner_kind)
        elif isinstance(value, _AlignedTensor):
            yield {"name": name, "tensor": self._describe_tensor(value)}
        elif type(value).__name__ == "TensorDescriptor":
            sizes = {"shape": list(map(int, value.shape)), "strides": list(map(int, value.strides))}
            content = {"tensor": self._describe_tensor(value.base), **sizes, "block_shape": list(value.block_shape)}
            yield {"name": name, "descriptor": content}
            for side, numbers in sizes.items():
                yield from ({"name": f"{name}.{side}.{i}", "value": size} for i, size in enumerate(numbers))
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

    def mark_unknown(self, values: Any) -> None:
        with torch._C.DisableTorchFunction():
            self.unknown |= {self.storage(tensor) for tensor in _tensors(values)}

    def save(self, path: Path, script: str = "", arguments: Sequence[str] = ()) -> None:
        """Write the capture."""
        if self.runs == "cuda":
            torch.cuda.synchronize()
        if getattr(sys.modules.get("torch._inductor.metrics"), "generated_kernel_count", 0):
            self.not_captured.append("Kernels that torch.compile generated were launched by Inductor and not recorded.")
        kernels: dict[tuple[Any, str], Launch] = {}
        for launch in self.launches:
            key = launch.function, launch.compiled.hash
            kernels.setdefault(key, launch)
            elapsed_ms = launch.events[0].elapsed_time(launch.events[1]) if launch.events else None
            launch.content |= {"kernel": list(kernels).index(key), "elapsed_ms": elapsed_ms}
        with ThreadPoolExecutor() as threads:
            described = list(threads.map(_describe_kernel, kernels.values()))
        arrays = [{"dtype": dtype, "length": len(array), "why_missing": ""} for dtype, array in self.arrays.values()]
        content = {
            "format": FORMAT, "triton": triton.__version__, "torch": torch.__version__, "script": script,
            "python": sys.version.split()[0], "arguments": list(arguments), "gpu": self.gpu, "cases": self.cases,
            "backend": self.runs or "none", "stopped": self.stopped, "arrays": arrays,
            "not_captured": list(dict.fromkeys(self.not_captured)), "kernels": [kernel for kernel, _ in described],
            "storages": [
                {"bytes": tensor.untyped_storage().nbytes(),
                 "address_bytes": _address(tensor)[1] % _STORAGE_ALIGNMENT if tensor.is_cuda else 0}
                for tensor in self.storages
            ],
            "launches": [launch.content for launch in self.launches],
        }  # fmt: skip
        total = 0
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            for number, (_, array) in sorted(enumerate(self.arrays.values()), key=lambda item: item[1][1].nbytes):
                total += array.nbytes
                if total > _MOST_BYTES:
                    arrays[number]["why_missing"] = f"with its {array.nbytes:,} bytes, the file would be too large"
                    continue
                with file.open(f"arrays/{number}.npy", "w") as stream:
                    np.save(stream, array, allow_pickle=False)
            for number, stage in ((n, stage) for n, (_, codes) in enumerate(described) for stage in codes):
                file.writestr(f"kernels/{number}.{stage}", described[number][1][stage])
            file.writestr("capture.json", json.dumps(content))


class _AlignedTensor:
    """Stands for a tensor while a kernel is compiled: Triton's binder asks for its type and its address.

    Main memory is aligned less than GPU memory, so an address in it counts from the storage's start.
    """

    def __init__(self, tensor: Any) -> None:
        is_wrapper = not isinstance(tensor, torch.Tensor)
        base: Any = getattr(tensor, "base", getattr(tensor, "_base", None)) if is_wrapper else tensor
        self.dtype, self.base = tensor.dtype, base
        self.offset_bytes = base.storage_offset() * base.element_size()
        if is_wrapper:  # FlagGems' has its own offset
            self.offset_bytes += int(tensor.data_ptr()) - base.data_ptr()
        self.data_ptr = _returning(self.offset_bytes + (_address(base)[1] if base.is_cuda else 0))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.base, name)


def _as_compiled(value: Any) -> Any:
    """Return what Triton's binder is given instead of an argument."""
    if type(value).__name__ == "TensorDescriptor":
        copy = object.__new__(type(value))  # its constructor checks alignment, which main memory may lack
        copy.__dict__ |= {**value.__dict__, "base": _AlignedTensor(value.base)}
        return copy
    if isinstance(value, tuple):
        parts = [_as_compiled(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return _AlignedTensor(value) if hasattr(value, "data_ptr") and hasattr(value, "dtype") else value


def _returning(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _address(tensor: torch.Tensor) -> tuple[str, int]:
    return tensor.device.type, tensor.untyped_storage().data_ptr()


def _text(value: Any) -> str:
    """Describe a parameter: dtype[shape][strides]+offset for a tensor."""
    if isinstance(value, torch.Tensor):
        offset_bytes = value.storage_offset() * value.element_size()
        return f"{_dtype(value)}{list(value.shape)}{list(value.stride())}+{offset_bytes}"
    if type(value).__name__ == "TensorDescriptor":
        return f"descriptor({_text(value.base)} {list(value.block_shape)})"
    return str(getattr(value, "__name__", None) or repr(value))[:60]


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, tuple | list | dict):
        for value in values.values() if isinstance(values, dict) else values:
            yield from _tensors(value)


def _users_line(frames: Iterable[traceback.FrameSummary]) -> dict[str, Any]:
    """Return the innermost of the frames that is in the user's code."""
    skipped = [__file__, runpy.__file__, contextlib.__file__, functools.__file__, "<frozen", "<string"]
    skipped += [f"{package.__path__[0]}/" for package in (torch, triton)]
    lines = [(frame.filename, frame.lineno or 0) for frame in frames if not frame.filename.startswith(tuple(skipped))]
    return dict(zip(("file", "line"), lines[-1] if lines else ("", 0), strict=True))


# ---------------------------------------------------------------- compiled code


@functools.cache
def _read_ttgir(ttgir: str) -> tuple[list[dict[str, Any] | None], list[int]]:
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
    sources = defaultdict[int, set[int]](set)  # of a value or region; a region's are all that enter or leave it
    stored, todo = set[int](), list[int]()

    def visit(op: Any) -> None:
        name, block = op.get_name(), op.get_block()
        operands = [op.get_operand(number).id() for number in range(op.get_num_operands())]
        if name in _POINTER_OPS:
            layouts.append(_layout(builder, op.get_operand(0)))
        if re.match(_STORES, name):
            todo.extend(operands[:1])  # waiting for a store has no operand
        if name == "ttng.tensormap_create":  # writes a descriptor of its second operand to its first
            sources[operands[0]].add(operands[1])
        if block is not None:
            region = block.get_parent().id()
            for number in range(block.get_num_arguments()):
                sources[block.arg(number).id()].add(region)
            if name.endswith((".yield", ".condition", ".return")) or name.startswith("cf."):
                sources[region].update(operands)
        if name in ("tt.addptr", "tt.load"):  # offsets and loaded values point nowhere
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


def _describe_kernel(launch: Launch) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a compiled kernel's JSON, and its TTGIR, PTX and SASS."""
    asm, metadata, function = launch.compiled.asm, launch.compiled.metadata, launch.function.fn
    codes, registers, spilled = {"ttgir": asm["ttgir"], "ptx": asm["ptx"]}, 0, 0
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file, contextlib.suppress(OSError, AttributeError):
        Path(file.name).write_bytes(asm["cubin"])
        run, tools = functools.partial(subprocess.run, capture_output=True, text=True), triton.knobs.nvidia
        usage = run([tools.cuobjdump.path, "--dump-resource-usage", file.name]).stdout
        used = {name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
        registers, spilled = max(16, used.get("REG", 0)), used.get("STACK", 0) + used.get("LOCAL", 0)
        codes["sass"] = run([tools.nvdisasm.path, "-g", "-c", "-ndf", file.name]).stdout
    source, line = inspect.getsourcelines(function)
    return {
        "name": function.__name__, "file": inspect.getsourcefile(function) or "", "line": line,
        "source": "".join(source), "registers": registers, "spilled_bytes": spilled, "shared_bytes": metadata.shared,
        "num_warps": metadata.num_warps, "num_ctas": metadata.num_ctas, "layouts": _read_ttgir(asm["ttgir"])[0],
    }, codes  # fmt: skip


# ---------------------------------------------------------------- launches


class _NotRun:
    """What a launch that did not run returns: enough for callers that keep the compiled kernel and launch it again."""

    n_regs = n_spills = 0

    def __init__(self, launch: Launch) -> None:
        self._launch = launch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._launch.compiled, name)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*arguments: Any, **_: Any) -> None:
            function, bound = self._launch.function, self._launch.bound
            free = [parameter.name for parameter in function.params if not parameter.is_constexpr]
            names = free if len(arguments) == len(free) else function.arg_names  # constants may be left out
            function[grid](**{**bound, **dict(zip(names, arguments, strict=False))}, **self._launch.options)

        return launch


def _launch(recorder: Recorder, function: Any, arguments: Sequence[Any], grid: Any, keywords: dict[str, Any]) -> Any:
    """Record a launch, and run it if the recorder does."""
    launch = recorder.record(function, arguments, grid, keywords)
    if recorder.runs == "cuda":
        launch.compiled._init_handles()  # loads the code, which would count as time of the first launch
        launch.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        launch.events[0].record()
        kernel = _RUN(function, *arguments, grid=grid, warmup=False, **keywords)
        launch.events[1].record()
        launch.content["ran"] = "cuda"
        return kernel
    tensors = [a.get("tensor") or a.get("descriptor", {}).get("tensor") for a in launch.content["arguments"]]
    if recorder.runs and all(tensor is None or tensor["is_known"] for tensor in tensors):
        try:
            _interpret(launch)
            launch.content["ran"] = "interpreter"
        except Exception as error:
            note = f"{function.__name__} did not run in the interpreter: {type(error).__name__}: {error}"
            recorder.not_captured.append(note[:200])
    if not launch.content["ran"]:
        written = [tensors[number] for number in _read_ttgir(launch.compiled.asm["ttgir"])[1]]
        recorder.unknown |= {tensor["storage"] for tensor in written if tensor}
    return _NotRun(launch)


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
    """Record all Triton launches. Without a GPU (`runs` is not "cuda"), tensors claim to be on one."""
    recorder, clock = Recorder(gpu, runs), itertools.count(1.0)

    @functools.wraps(_RUN)
    def run(self: Any, *arguments: Any, grid: Any, warmup: bool, **keywords: Any) -> Any:
        is_graph = runs == "cuda" and torch.cuda.is_current_stream_capturing()
        if is_graph:
            recorder.not_captured.append("The launches in a CUDA graph were not recorded.")
        if warmup or is_graph:
            return _RUN(self, *arguments, grid=grid, warmup=warmup, **keywords)
        for hook in self.pre_run_hooks:
            hook(*arguments, **keywords)
        return _launch(recorder, self, arguments, grid, keywords)

    # Tuners that search on their own find that their first config is the fastest.
    replaced: list[tuple[Any, str, Any]] = [
        (jit.JITFunction, "run", run), (Autotuner, "_bench", lambda *_, **__: [next(clock)] * 3)
    ]  # fmt: skip
    tuners: list[Any] = [Autotuner]
    for tuner in tuners:
        tuners += tuner.__subclasses__()
        if "run" in tuner.__dict__:
            replaced.append((tuner, "run", functools.partialmethod(_run_pinned, recorder)))
    if runs != "cuda":
        replaced += _gpu_stand_ins(recorder)
    with contextlib.ExitStack() as stack:
        for owner, name, value in replaced:
            stack.enter_context(mock.patch.object(owner, name, value, create=True))
        stack.enter_context(contextlib.nullcontext() if runs == "cuda" else _AsIfCuda(recorder))
        yield recorder


def _run_pinned(self: Any, recorder: Recorder, *arguments: Any, **keywords: Any) -> Any:
    """Replace an autotuner's search by its first config that compiles and fits."""
    self.nargs = dict(zip(self.arg_names, arguments, strict=False))
    configs = self.prune_configs(keywords) if len(self.configs) > 1 else self.configs
    if number := recorder.configs.get(self.base_fn.__name__):
        configs = [self.configs[(number - 1) % len(self.configs)]]
    count, context, configs = len(recorder.launches), recorder.context, configs[:_MOST_CONFIGS]
    for place, config in enumerate(configs, start=1):
        self.best_config, values = config, config.all_kwargs()
        if config.pre_hook is not None:
            config.pre_hook({**self.nargs, **keywords, **values})
        number = self.configs.index(config) + 1 if config in self.configs else place
        if len(self.configs) > 1:
            recorder.context = {**context, "tuned": {"number": number, "of": len(self.configs)}}
        try:
            return self.fn.run(*arguments, **keywords, **values)
        except Exception:
            if place == len(configs):
                raise
            del recorder.launches[count:]
        finally:
            recorder.context = context


# ---------------------------------------------------------------- a machine without a GPU

_CUDA = torch.device("cuda", 0)
_T: Any = torch.Tensor
_ANSWERS = {
    _T.device.__get__: _CUDA, _T.is_cuda.__get__: True, _T.is_cpu.__get__: False, _T.get_device: 0,
    _T.is_pinned: False, _T.record_stream: None,
}  # fmt: skip
_READS = {
    _T.item, _T.tolist, _T.__bool__, _T.__int__, _T.__float__, _T.__index__, _T.numpy, _T.nonzero, torch.nonzero,
    _T.unique, torch.unique, _T.masked_select, torch.masked_select, _T.cpu, torch.repeat_interleave, torch.equal,
    torch.allclose,
}  # fmt: skip


def _on_cpu(value: Any) -> Any:
    is_cuda = isinstance(value, str | torch.device) and re.fullmatch(r"cuda(:\d+)?", str(value))
    return torch.device("cpu") if is_cuda else value


class _AsIfCuda(torch.overrides.TorchFunctionMode):
    """Tensors say that they are on a GPU. What is created or moved there stays in main memory."""

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
            raise HostRead(function.__name__)
        options = {name: name != "pin_memory" and _on_cpu(value) for name, value in keywords.items()}
        result = function(*map(_on_cpu, arguments), **options)
        if recorder.unknown and recorder.is_unknown((arguments, options)):
            recorder.mark_unknown(result)
        return result


class _Stub(contextlib.ContextDecorator, contextlib.nullcontext[None]):
    """A driver, stream, event or guard. Its methods return the given answers, or do nothing."""

    cuda_stream, device, utils = 0, _CUDA, None

    def __init__(self, *_: Any, **answers: Any) -> None:
        self._answers = {"elapsed_time": 0.0, "query": True, **answers}

    def __getattr__(self, name: str) -> Any:
        return _returning(self._answers.get(name))


class _Generator(torch.Generator):
    """A GPU's random number generator, whose state libraries read and advance."""

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
        total_memory=150 * 10**9, max_threads_per_multi_processor=2048, max_threads_per_block=1024, is_integrated=0,
        regs_per_multiprocessor=gpu["registers_per_sm"], shared_memory_per_block=49152, L2_cache_size=gpu["l2_bytes"],
        shared_memory_per_block_optin=gpu["shared_bytes_per_program"], gcnArchName="",
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
        with _AsIfCuda(recorder):  # user code runs inside, where the mode is off otherwise
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
    yield torch.version, "cuda", torch.version.cuda or "13.0"
    yield torch_triton, "has_triton", _returning(True)
    yield torch.autograd, "_engine_run_backward", run_backward_as_if_cuda
    yield torch.library.Library, "impl", implement_on_cpu
    yield torch.library, "custom_op", lambda *names, device_types=None, **options: custom_op(*names, **options)


# ---------------------------------------------------------------- scripts and cases


def parse_settings(settings: Iterable[str], case: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that `--set` changes, with the type of their defaults."""
    result = {}
    for setting in settings:
        name, _, text = setting.partition("=")
        if name not in defaults:
            allowed = ", ".join(defaults) or "none"
            raise UsageError(f"--set {setting}: {case} has no parameter {name!r}. It has {allowed}.")
        default, kind = defaults[name], type(defaults[name])
        with contextlib.suppress(ValueError, SyntaxError):
            result[name] = text if kind is str else ast.literal_eval(text)
        if type(result.get(name)) is not kind:
            raise UsageError(f"--set {setting}: {name} must be a value of type {kind.__name__}, such as {default!r}.")
    return result


def run_case(recorder: Recorder, name: str, function: Any, settings: Mapping[str, Any]) -> None:
    """Launch a case, and compare its outputs with the expected ones if it ran."""
    kernel, grid, keywords, *expected = function(**settings)
    caller = {"file": inspect.getsourcefile(function) or "", "line": inspect.getsourcelines(function)[1]}
    recorder.context = {"case": name, "tuned": None, "caller": caller}
    kernel[grid](**keywords)
    content = recorder.launches[-1].content
    if expected and content["ran"]:
        content["results"] = {output: compare(keywords[output], result) for output, result in expected[0].items()}


def compare(result: torch.Tensor, reference: torch.Tensor) -> dict[str, Any]:
    """Return the errors of an output. It passes if its relative error is below 8 roundings of its type."""
    difference = result.double() - reference.double()
    scale = float(reference.double().square().mean().sqrt()) or 1.0
    rms, most = float(difference.square().mean().sqrt()) / scale, float(difference.abs().max())
    epsilon = torch.finfo(result.dtype).eps if result.dtype.is_floating_point else 0.0
    return {"relative_rms": rms, "max_abs_error": most, "passed": rms <= 8 * epsilon}


def run_script(recorder: Recorder, path: Path, case: str, settings: Sequence[str], arguments: Sequence[str]) -> None:
    """Run a script as `__main__`, or its cases."""
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
        run_case(recorder, name, cases[name], parse_settings(settings, name, defaults[name]))


def describe_stop(error: BaseException, script: str) -> dict[str, Any]:
    """Return the JSON that says where and why a script ended early."""
    is_read, line = isinstance(error, HostRead), _users_line(traceback.extract_tb(error.__traceback__))
    message = str(error) if is_read else f"{script} raised {type(error).__name__}: {error}"
    return {**line, "kind": "host_read" if is_read else "exception", "message": message.splitlines()[0][:300]}


def this_gpu() -> dict[str, Any]:
    """Return the properties of this machine's GPU."""
    properties: Any = torch.cuda.get_device_properties(0)
    shared = properties.shared_memory_per_block_optin
    return {
        "name": properties.name.removeprefix("NVIDIA "), "sms": properties.multi_processor_count,
        "compute_capability": [properties.major, properties.minor], "shared_bytes_per_program": shared,
    }  # fmt: skip


def serve() -> int:
    """Capture for each line of standard input, a JSON list of arguments, and print the exit status.

    Each capture runs in a fork of this process, which has imported torch and Triton.
    """
    for line in sys.stdin:
        if (child := os.fork()) == 0:
            os.dup2(2, 1)  # standard output is for statuses
            status = main(json.loads(line))
            sys.stdout.flush()
            os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return 0


def main(command_line: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Record the Triton launches of a script.")
    options: dict[str, dict[str, Any]] = {
        "--out": {"type": Path, "required": True}, "--gpu-json": {"type": json.loads, "default": None},
        "--values": {"action": "store_true"}, "--config": {"action": "append", "default": []},
        "--set": {"action": "append", "default": []}, "script": {}, "arguments": {"nargs": argparse.REMAINDER},
    }  # fmt: skip
    for name, option in options.items():
        parser.add_argument(name, **option)
    flags = parser.parse_args(command_line)
    file, _, case = flags.script.partition(":")
    path = Path(file).resolve()
    runs = "cuda" if torch.cuda.is_available() else "interpreter" if flags.values else ""
    gpu = flags.gpu_json or (this_gpu() if runs == "cuda" else H200)
    with recording(gpu, runs) as recorder:
        try:
            if not path.is_file():
                raise UsageError(f"There is no script {file}.")
            if not all(re.fullmatch(r"\w+=\d+", text) for text in flags.config):
                raise UsageError(f"--config must be KERNEL=N (got {' '.join(flags.config)}).")
            recorder.configs = {name: int(number) for name, number in (text.split("=") for text in flags.config)}
            run_script(recorder, path, case, flags.set, flags.arguments)
        except UsageError as error:
            print(error, file=sys.stderr)
            return 2
        except BaseException as error:
            if not isinstance(error, SystemExit | HostRead):
                traceback.print_exception(error)
            if not isinstance(error, SystemExit) or error.code:
                recorder.stopped = describe_stop(error, path.name)
    recorder.save(flags.out, path.name, flags.arguments)
    if recorder.stopped:
        print(recorder.stopped["message"], file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(serve() if sys.argv[1:] == ["--serve"] else main(sys.argv[1:]))
