"""Record every Triton launch of a script, unchanged, with or without a GPU, and write a capture.

    python capture.py --out FILE [--values] [--config KERNEL=N] [--set NAME=VALUE] SCRIPT.py[:CASE] [ARGUMENTS]

This file needs only torch and Triton, so it can be copied to any machine. Without a GPU nothing is launched: tensors are
in main memory and say that they are on a GPU, kernels are compiled but do not run, and recording stops where the script
reads a result. `--values` runs the launches in Triton's interpreter instead. `kernels/compiling/capture_file.py`
describes the file that is written.
"""

import argparse
import ast
import contextlib
import functools
import hashlib
import inspect
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
import torch.utils._triton as torch_triton
import triton
from triton._C.libtriton import gluon_ir, ir, nvidia
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, interpreter, jit
from triton.runtime.autotuner import Autotuner

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


class UsageError(Exception):
    """The command line is wrong. The message is one sentence."""


# ---------------------------------------------------------------- what is recorded


@dataclass
class Launch:
    """A launch: the function, its bound arguments, the compiled kernel, and the JSON of the launch."""

    function: Any
    bound: dict[str, Any]
    options: dict[str, Any]
    compiled: Any
    content: dict[str, Any]
    events: Sequence[Any] = ()

    @property
    def kernel(self) -> tuple[Any, str]:
        return self.function, self.compiled.hash

    def storages(self, numbers: Iterable[int] | None = None) -> set[int]:
        """Return the storages of the arguments, or only of those with the given numbers."""
        arguments = self.content["arguments"]
        chosen = arguments if numbers is None else [arguments[number] for number in numbers]
        tensors = (argument.get("tensor") or argument.get("descriptor", {}).get("tensor") for argument in chosen)
        return {tensor["storage"] for tensor in tensors if tensor}


class Recorder:
    """Records launches while `recording` is active.

    Args:
        gpu: properties of the GPU to compile for.
        runs: "cuda" to launch on this machine's GPU, "interpreter", or "" to launch nothing.
        configs: for a kernel's name, the number of the autotuner's config to pin, from 1.
    """

    def __init__(self, gpu: Mapping[str, Any], runs: str = "", configs: Mapping[str, int] | None = None) -> None:
        self.gpu, self.runs, self.configs = gpu, runs, dict(configs or {})
        self.launches: list[Launch] = []
        self.storages: dict[tuple[str, int], int] = {}  # numbers, by device and address
        self.storage_contents: list[dict[str, int]] = []
        self.tensors: list[torch.Tensor] = []  # kept alive, so that no later storage has the same address
        self.arrays: list[tuple[str, np.ndarray]] = []  # dtype, elements
        self.array_numbers: dict[bytes, int] = {}  # by content
        self.unknown: set[int] = set()  # storages with values that depend on launches that did not run
        self.tuned: list[dict[str, int] | None] = []
        self.case: str | None = None
        self.cases: dict[str, dict[str, Any]] = {}
        self.stopped: dict[str, Any] | None = None
        self.not_captured: list[str] = []

    def record(self, function: Any, arguments: Sequence[Any], grid: Any, keywords: Mapping[str, Any]) -> Launch:
        """Compile and describe a launch."""
        names = [parameter.name for parameter in function.params]
        bound = function.signature.bind(*arguments, **{k: v for k, v in keywords.items() if k in names})
        bound.apply_defaults()
        values = dict(bound.arguments)
        sizes = grid(values) if callable(grid) else grid
        sizes = [sizes] if isinstance(sizes, int) else [int(size) for size in sizes]
        options = {name: value for name, value in keywords.items() if name not in names}
        with torch._C.DisableTorchFunction():
            stand_ins = {name: _as_compiled(value) for name, value in values.items()}
            compiled = _RUN(function, grid=sizes, warmup=True, **stand_ins, **options)
            metadata, limit = compiled.metadata, int(self.gpu["shared_bytes_per_program"])
            if metadata.shared > limit:
                needs = f"{function.fn.__name__} needs {metadata.shared:,} bytes of shared memory"
                raise RuntimeError(f"{needs}; {limit:,} fit.")
            *_, binder = function.device_caches[driver.active.get_current_device()]
            _, kinds, _ = binder(**stand_ins, **{"debug": False, "instrumentation_mode": "", **options})
            config = {parameter.name: values[parameter.name] for parameter in function.params if parameter.is_constexpr}
            config |= {"num_warps": metadata.num_warps, "num_stages": getattr(metadata, "num_stages", None)}
            content = {
                "grid": [*sizes, 1, 1][:3], "caller": _users_line(traceback.extract_stack()), "case": self.case,
                "config": {k: v if isinstance(v, int | str | None) else _text(v) for k, v in config.items()},
                "tuned": self.tuned[-1] if self.tuned else None, "ran": False, "elapsed_ms": None, "results": None,
                "arguments": [
                    argument for (name, value), (kind, *_) in zip(stand_ins.items(), kinds, strict=True)
                    for argument in self._describe(name, value, kind)
                ],
                "parameters": {name: _text(value) for name, value in values.items()},
            }  # fmt: skip
        self.launches.append(Launch(function, values, options, compiled, content))
        return self.launches[-1]

    def _describe(self, name: str, value: Any, kind: Any) -> Iterator[dict[str, Any]]:
        """Yield the JSON of a parameter's arguments: what Triton's binder leaves to the compiled function."""
        if isinstance(kind, tuple):
            for number, (inner, inner_kind) in enumerate(zip(value, kind, strict=True)):
                yield from self._describe(f"{name}.{number}", inner, inner_kind)
        elif kind == "constexpr":
            return
        elif isinstance(value, _AlignedTensor):
            yield {"name": name, "tensor": self._describe_tensor(value)}
        elif type(value).__name__ == "TensorDescriptor":
            sizes = {"shape": list(map(int, value.shape)), "strides": list(map(int, value.strides))}
            content = {"tensor": self._describe_tensor(value.base), **sizes, "block_shape": list(value.block_shape)}
            yield {"name": name, "descriptor": content}
            for side, numbers in sizes.items():
                yield from ({"name": f"{name}.{side}.{i}", "value": number} for i, number in enumerate(numbers))
        else:
            number = value if isinstance(value, int) else float(value)
            yield {"name": name, "value": number if math.isfinite(number) else str(number)}

    def _describe_tensor(self, tensor: "_AlignedTensor") -> dict[str, Any]:
        """Return a tensor's JSON, and keep a copy of its storage if it may hold indices."""
        base, storage = tensor.base, self.storage(tensor.base)
        is_known = storage not in self.unknown
        return {
            "dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(base.shape), "strides": list(base.stride()),
            "element_bytes": getattr(tensor.dtype, "itemsize", None) or base.element_size(), "storage": storage,
            "offset_bytes": tensor.offset_bytes, "is_known": is_known,
            "array": self._copy(base) if is_known and tensor.dtype == base.dtype else None,
        }  # fmt: skip

    def storage(self, tensor: torch.Tensor) -> int:
        """Return the number of a tensor's storage."""
        memory, kind = tensor.untyped_storage(), tensor.device.type
        number = self.storages.setdefault((kind, memory.data_ptr()), len(self.storages))
        if number == len(self.tensors):
            start = memory.data_ptr() % _STORAGE_ALIGNMENT if kind == "cuda" else 0
            self.storage_contents.append({"bytes": memory.nbytes(), "address_bytes": start})
            self.tensors.append(tensor.detach())
        return number

    def _copy(self, tensor: torch.Tensor) -> int | None:
        """Return the number of a copy of the tensor's storage; None if it is too large."""
        kind, memory = tensor.dtype, tensor.untyped_storage()
        most_bytes = _MOST_FLOAT_BYTES if kind.is_floating_point else 4 * _MOST_BYTES
        if kind.is_complex or memory.nbytes() > most_bytes:
            return None
        flat = tensor.new_empty(0).set_(memory, 0, (memory.nbytes() // kind.itemsize,), (1,))
        has_numpy_type = not kind.is_floating_point or kind in (torch.float16, torch.float32, torch.float64)
        elements = flat.to("cpu", kind if has_numpy_type else torch.float32, copy=True).numpy()
        digest = hashlib.blake2b(elements.tobytes(), key=str(kind).encode()).digest()
        number = self.array_numbers.setdefault(digest, len(self.arrays))
        if number == len(self.arrays):
            self.arrays.append((str(kind).removeprefix("torch."), elements))
        return number

    def is_unknown(self, values: Any) -> bool:
        """Return whether the values contain a tensor that depends on a launch that did not run."""
        with torch._C.DisableTorchFunction():
            keys = ((tensor.device.type, tensor.untyped_storage().data_ptr()) for tensor in _tensors(values))
            return bool(self.unknown) and any(self.storages.get(key) in self.unknown for key in keys)

    def mark_unknown(self, values: Any) -> None:
        with torch._C.DisableTorchFunction():
            self.unknown |= {self.storage(tensor) for tensor in _tensors(values)}

    def save(self, path: Path, script: str = "", arguments: Sequence[str] = ()) -> None:
        """Write the capture."""
        if self.runs == "cuda":
            torch.cuda.synchronize()
        kernels: dict[tuple[Any, str], Launch] = {}
        for launch in self.launches:
            kernels.setdefault(launch.kernel, launch)
            launch.content["kernel"] = list(kernels).index(launch.kernel)
            launch.content["elapsed_ms"] = launch.events[0].elapsed_time(launch.events[1]) if launch.events else None
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            described = list(threads.map(_describe_kernel, kernels.values()))
        arrays, total = [], 0
        why = "with its {:,} bytes, the file would be too large"
        for kind, array in self.arrays:
            arrays.append({"dtype": kind, "length": len(array), "why_missing": why.format(array.nbytes)})
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            for number in sorted(range(len(arrays)), key=lambda number: self.arrays[number][1].nbytes):
                total += self.arrays[number][1].nbytes
                if total <= _MOST_BYTES:
                    arrays[number]["why_missing"] = ""
                    with file.open(f"arrays/{number}.npy", "w") as stream:
                        np.save(stream, self.arrays[number][1], allow_pickle=False)
            for number, (_, codes) in enumerate(described):
                for stage, text in codes.items():
                    file.writestr(f"kernels/{number}.{stage}", text)
            content = {
                "format": FORMAT, "triton": triton.__version__, "torch": torch.__version__,
                "python": sys.version.split()[0], "script": script, "arguments": list(arguments), "gpu": self.gpu,
                "backend": self.runs or "none", "stopped": self.stopped, "not_captured": self.not_captured,
                "cases": self.cases, "kernels": [kernel for kernel, _ in described], "arrays": arrays,
                "storages": self.storage_contents, "launches": [launch.content for launch in self.launches],
            }  # fmt: skip
            file.writestr("capture.json", json.dumps(content))


class _AlignedTensor:
    """Stands for a tensor while a kernel is compiled: Triton's binder asks for its type and its address.

    Main memory is aligned less than GPU memory, so an address in it counts from the storage's start.
    """

    def __init__(self, tensor: Any) -> None:
        self.dtype = tensor.dtype
        # triton.reinterpret's wrapper has a `base`, FlagGems' has a `_base`.
        is_wrapper = not isinstance(tensor, torch.Tensor)
        self.base = getattr(tensor, "base", getattr(tensor, "_base", None)) if is_wrapper else tensor
        start = self.base.storage_offset() * self.base.element_size()
        self.offset_bytes = start + (int(tensor.data_ptr()) - self.base.data_ptr() if is_wrapper else 0)

    def data_ptr(self) -> int:
        return self.offset_bytes if self.base.device.type == "cpu" else int(self.base.data_ptr())

    def ptr_range(self) -> int:
        return 0

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


def _text(value: Any) -> str:
    """Describe a parameter: dtype[shape][strides]+offset for a tensor."""
    if isinstance(value, torch.Tensor):
        offset = value.storage_offset() * value.element_size()
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}{list(value.stride())}+{offset}"
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
    skipped = __file__, runpy.__file__, contextlib.__file__, functools.__file__, "<frozen", "<string"
    skipped += tuple(f"{Path(package.__file__ or '').parent}{os.sep}" for package in (torch, triton))
    lines = [(frame.filename, frame.lineno or 0) for frame in frames if not frame.filename.startswith(skipped)]
    return dict(zip(("file", "line"), lines[-1] if lines else ("", 0), strict=True))


# ---------------------------------------------------------------- compiled code


@contextlib.contextmanager
def _parse(ttgir: str) -> Iterator[tuple[Any, Any]]:
    """Yield the context, which outlives every object created from it, and the module."""
    context = ir.context()
    ir.load_dialects(context)
    nvidia.load_dialects(context)
    with tempfile.NamedTemporaryFile("w", suffix=".ttgir") as file:
        file.write(ttgir)
        file.flush()
        yield context, ir.parse_mlir_module(file.name, context)


def read_layouts(ttgir: str) -> list[dict[str, Any] | None]:
    """Return the bases of the pointers' layout of each operation on pointers; None for a scalar pointer."""
    result: list[dict[str, Any] | None] = []
    with _parse(ttgir) as (context, module):
        builder = gluon_ir.GluonOpBuilder(context)

        def visit(op: Any) -> None:
            if op.get_name() not in _POINTER_OPS:
                return
            pointer = op.get_operand(0)
            match = re.match(r"tensor<((?:\d+x)+)", str(pointer.get_type()))
            if not match:
                result.append(None)
                return
            shape = [int(size) for size in match[1][:-1].split("x")]
            layout = builder.to_linear_layout(builder.get_gluon_layout_from_tensor(pointer)._to_ir(builder), shape)
            sides = {"register": layout.reg_bases, "lane": layout.lane_bases, "warp": layout.warp_bases}
            result.append({"shape": shape, **{side: [list(base) for base in bases] for side, bases in sides.items()}})

        module.walk(visit)
    return result


@functools.cache
def _written_arguments(ttgir: str) -> list[int]:
    """Return the numbers of the arguments to which a kernel may store, by following its pointers."""
    sources: dict[int, set[int]] = defaultdict(set)  # of a value or region; a region's are all that enter or leave it
    reached, todo = set[int](), list[int]()

    def visit(op: Any) -> None:
        name, block = op.get_name(), op.get_block()
        operands = [op.get_operand(number).id() for number in range(op.get_num_operands())]
        regions = [op.get_region(number).id() for number in range(op.get_num_regions())]
        if re.match(_STORES, name) or name == "tt.call":
            todo.extend(operands if name == "tt.call" else operands[:1])
        if block is not None:
            region = block.get_parent().id()
            for number in range(block.get_num_arguments()):
                sources[block.arg(number).id()].add(region)
            if name.endswith((".yield", ".condition", ".return")) or name.startswith("cf."):
                sources[region].update(operands)
            if name == "ttg.warp_specialize.partitions":
                operands.append(region)
        if name == "ttng.tensormap_create":  # its first operand is the memory of a descriptor of the second
            sources[operands[0]].add(operands[1])
        if name in ("tt.addptr", "tt.load"):  # offsets and loaded values point nowhere
            operands = operands[: name == "tt.addptr"]
        for value in (*regions, *(op.get_result(number).id() for number in range(op.get_num_results()))):
            sources[value].update(operands, regions)

    with _parse(ttgir) as (_, module):
        module.walk(visit)
        function = module.get_function(module.get_entry_func_name())
        arguments = [function.args(number).id() for number in range(len(module.get_function_signature(function)))]
    while todo:
        if (value := todo.pop()) not in reached:
            reached.add(value)
            todo += sources[value]
    return [number for number, argument in enumerate(arguments) if argument in reached]


def _describe_kernel(launch: Launch) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a compiled kernel's JSON, and its TTGIR, PTX and SASS."""
    asm, metadata, function = launch.compiled.asm, launch.compiled.metadata, launch.function.fn
    codes = {"ttgir": asm["ttgir"], "ptx": asm["ptx"]}
    registers = spilled = 0
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file, contextlib.suppress(OSError, AttributeError):
        file.write(asm["cubin"])
        file.flush()
        tools, run = triton.knobs.nvidia, functools.partial(subprocess.run, capture_output=True, text=True)
        usage = run([tools.cuobjdump.path, "--dump-resource-usage", file.name]).stdout
        used = {name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
        registers, spilled = max(16, used.get("REG", 0)), used.get("STACK", 0) + used.get("LOCAL", 0)
        flags = ["--print-line-info", "--print-code", "--no-dataflow"]
        codes["sass"] = run([tools.nvdisasm.path, *flags, file.name]).stdout
    source, line = inspect.getsourcelines(function)
    return {
        "name": function.__name__, "file": inspect.getsourcefile(function) or "", "line": line,
        "source": "".join(source), "registers": registers, "spilled_bytes": spilled, "shared_bytes": metadata.shared,
        "num_warps": metadata.num_warps, "num_ctas": metadata.num_ctas, "layouts": read_layouts(asm["ttgir"]),
    }, codes  # fmt: skip


# ---------------------------------------------------------------- launches


class _NotRun:
    """What a launch that did not run returns: enough for callers that keep the compiled kernel and launch it again."""

    n_regs = n_spills = 0
    function = None

    def __init__(self, launch: Launch) -> None:
        self._launch = launch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._launch.compiled, name)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*arguments: Any, **_: Any) -> None:
            function, values = self._launch.function, list(arguments)
            free = [parameter.name for parameter in function.params if not parameter.is_constexpr]
            if len(values) == len(free):  # constants are left out
                given = {**self._launch.bound, **dict(zip(free, values, strict=True))}
                values = [given.get(parameter.name) for parameter in function.params]
            function[grid](*values, **self._launch.options)

        return launch


def _launch(recorder: Recorder, function: Any, arguments: Sequence[Any], grid: Any, keywords: dict[str, Any]) -> Any:
    """Record a launch, and run it if the recorder does."""
    launch = recorder.record(function, arguments, grid, keywords)
    if recorder.runs == "cuda":
        launch.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        launch.events[0].record()
        kernel = _RUN(function, *arguments, grid=grid, warmup=False, **keywords)
        launch.events[1].record()
        launch.content["ran"] = "cuda"
        return kernel
    if recorder.runs == "interpreter" and not launch.storages() & recorder.unknown:
        try:
            _interpret(launch)
            launch.content["ran"] = "interpreter"
        except Exception as error:
            note = f"{function.fn.__name__} did not run in the interpreter: {type(error).__name__}: {error}"[:200]
            recorder.not_captured.append(note)
    if not launch.content["ran"]:
        recorder.unknown |= launch.storages(_written_arguments(launch.compiled.asm["ttgir"]))
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

    interpreted = interpreter.InterpretedFunction(launch.function.fn)
    with mock.patch.object(jit.JITFunction, "__call__", call), torch._C.DisableTorchFunction():
        interpreted.run(grid=tuple(launch.content["grid"]), warmup=False, **launch.bound)


@contextlib.contextmanager
def recording(
    gpu: Mapping[str, Any] = H200, runs: str = "", configs: Mapping[str, int] | None = None
) -> Iterator[Recorder]:
    """Record all Triton launches. Without a GPU (`runs` is not "cuda"), tensors claim to be on one."""
    recorder = Recorder(gpu, runs, configs)
    clock = iter(range(1, 1 << 62))

    @functools.wraps(_RUN)
    def run(self: Any, *arguments: Any, grid: Any, warmup: bool, **keywords: Any) -> Any:
        if warmup or (runs == "cuda" and torch.cuda.is_current_stream_capturing()):
            return _RUN(self, *arguments, grid=grid, warmup=warmup, **keywords)
        for hook in self.pre_run_hooks:
            hook(*arguments, **keywords)
        return _launch(recorder, self, arguments, grid, keywords)

    def bench(self: Any, *arguments: Any, **keywords: Any) -> list[float]:
        """Make the first config the fastest, for tuners that search on their own."""
        return [float(next(clock))] * 3

    def note(function: Any, sentence: str) -> Any:
        def noting(*arguments: Any, **keywords: Any) -> Any:
            if sentence not in recorder.not_captured:
                recorder.not_captured.append(sentence)
            return function(*arguments, **keywords)

        return noting

    replaced: list[tuple[Any, str, Any]] = [(jit.JITFunction, "run", run), (Autotuner, "_bench", bench)]
    tuners: list[type] = [Autotuner]
    while tuners:
        tuner = tuners.pop()
        tuners += tuner.__subclasses__()
        if "run" in tuner.__dict__:
            replaced.append((tuner, "run", functools.partialmethod(_run_pinned, recorder)))
    if heuristics := sys.modules.get("torch._inductor.runtime.triton_heuristics"):
        tuner = heuristics.CachingAutotuner
        sentence = "Kernels that torch.compile generated were launched by Inductor itself and not recorded."
        replaced.append((tuner, "run", note(tuner.run, sentence)))
    if runs == "cuda":
        sentence = "A CUDA graph was replayed; the launches in it were not recorded."
        replaced.append((torch.cuda.CUDAGraph, "replay", note(torch.cuda.CUDAGraph.replay, sentence)))
    else:
        driver.set_active(_make_driver(gpu))
        replaced += _cuda_stand_ins(recorder)
    with contextlib.ExitStack() as stack:
        for owner, name, value in replaced:
            stack.enter_context(mock.patch.object(owner, name, value, create=True))
        if runs != "cuda":
            stack.enter_context(_AsIfCuda(recorder))
        yield recorder


def _run_pinned(self: Any, recorder: Recorder, *arguments: Any, **keywords: Any) -> Any:
    """Replace an autotuner's search by its first config that compiles and fits."""
    self.nargs = dict(zip(self.arg_names, arguments, strict=False))
    configs = self.prune_configs(keywords) if len(self.configs) > 1 else self.configs
    name = getattr(getattr(self.base_fn, "fn", self.base_fn), "__name__", "")
    if chosen := recorder.configs.get(name):
        configs = [self.configs[(chosen - 1) % len(self.configs)]]
    count = len(recorder.launches)
    for place, config in enumerate(configs[:_MOST_CONFIGS], start=1):
        self.best_config, values = config, config.all_kwargs()
        if config.pre_hook is not None:
            config.pre_hook({**self.nargs, **keywords, **values})
        number = next((i for i, other in enumerate(self.configs, start=1) if other is config), place)
        recorder.tuned.append({"number": number, "of": len(self.configs)} if len(self.configs) > 1 else None)
        try:
            return self.fn.run(*arguments, **keywords, **values)
        except Exception:
            if place == min(len(configs), _MOST_CONFIGS):
                raise
            del recorder.launches[count:]
        finally:
            recorder.tuned.pop()


# ---------------------------------------------------------------- a machine without a GPU

_CUDA = torch.device("cuda", 0)
_T = torch.Tensor
_ANSWERS: dict[Any, Any] = {
    _T.device.__get__: _CUDA, _T.is_cuda.__get__: True, _T.is_cpu.__get__: False, _T.get_device: 0,
    _T.is_pinned: False, _T.record_stream: None,
}  # fmt: skip
_READS = {
    _T.item, _T.tolist, _T.__bool__, _T.__int__, _T.__float__, _T.__index__, _T.numpy, _T.nonzero, torch.nonzero,
    _T.unique, torch.unique, _T.masked_select, torch.masked_select, _T.cpu, torch.repeat_interleave, torch.equal,
    torch.allclose,
}  # fmt: skip


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "cuda" else value
    return "cpu" if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")) else value


class _AsIfCuda(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
    """Tensors say that they are on a GPU. What is created or moved there stays in main memory."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, function: Any, kinds: Any, arguments: Any = (), keywords: Any = None) -> Any:
        if function in _ANSWERS:
            return _ANSWERS[function]
        if function in (_T.cuda, _T.pin_memory):
            return arguments[0]
        recorder, keywords = self._recorder, {name: _on_cpu(value) for name, value in (keywords or {}).items()}
        if function in _READS and not recorder.runs and recorder.is_unknown((arguments, keywords)):
            line = _users_line(traceback.extract_stack())
            raise HostRead(
                f"{Path(line['file']).name}:{line['line']} reads a tensor that an earlier launch was given "
                f"({function.__name__}), and launches do not run without a GPU. --values runs them in Triton's "
                "interpreter."
            )
        if keywords.get("pin_memory"):
            keywords["pin_memory"] = False
        result = function(*map(_on_cpu, arguments), **keywords)
        if recorder.is_unknown((arguments, keywords)):
            recorder.mark_unknown(result)
        return result


class _Stub:
    """A driver, stream, event or guard with the given attributes. Its other methods do nothing."""

    cuda_stream, device = 0, _CUDA

    def __init__(self, *_: Any, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def __enter__(self) -> "_Stub":
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def __call__(self, function: Any) -> Any:
        return function

    def __getattr__(self, name: str) -> Any:
        return _returning({"elapsed_time": 0.0, "query": True}.get(name))


class _Generator(torch.Generator):
    """A GPU's random number generator, as far as libraries save and restore it."""

    offset = 0

    def get_state(self) -> torch.Tensor:
        return torch.tensor([self.initial_seed(), self.offset]).view(torch.uint8)

    def set_state(self, state: torch.Tensor) -> None:
        seed, self.offset = state.view(torch.int64).tolist()
        self.manual_seed(seed)


def _returning(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def _make_driver(gpu: Mapping[str, Any]) -> _Stub:
    """Return a driver for Triton that names the GPU to compile for."""
    major, minor = gpu["compute_capability"]
    properties = {
        "max_shared_mem": gpu["shared_bytes_per_program"], "max_num_regs": gpu.get("registers_per_sm", 65536),
        "multiprocessor_count": gpu["sms"], "warpSize": 32, "sm_clock_rate": 1980000, "mem_clock_rate": 3201000,
        "mem_bus_width": 6144,
    }  # fmt: skip
    answers = {
        "get_current_target": GPUTarget("cuda", 10 * major + minor, 32), "get_device_capability": (major, minor),
        "get_current_device": 0, "get_current_stream": 0, "is_active": True, "get_device_interface": torch.cuda,
        "get_active_torch_device": _CUDA, "get_empty_cache_for_benchmark": torch.empty(1),
        "get_benchmarker": _returning([0.0, 0.0, 0.0]),
    }  # fmt: skip
    utils = {"get_device_properties": properties, "cuOccupancyMaxActiveClusters": gpu["sms"]}
    return _Stub(
        utils=_Stub(**{name: _returning(value) for name, value in utils.items()}),
        map_python_to_cpp_type=str,
        **{name: _returning(value) for name, value in answers.items()},
    )


def _cuda_stand_ins(recorder: Recorder) -> Iterator[tuple[Any, str, Any]]:
    """Yield replacements, (owner, name, value), that make torch appear to have the recorder's GPU."""
    gpu, generator = recorder.gpu, _Generator()
    capability = tuple(gpu["compute_capability"])
    properties = types.SimpleNamespace(
        name=f"NVIDIA {gpu['name']}", major=capability[0], minor=capability[1], total_memory=150 * 10**9, warp_size=32,
        multi_processor_count=gpu["sms"], max_threads_per_multi_processor=2048, max_threads_per_block=1024,
        regs_per_multiprocessor=gpu.get("registers_per_sm", 65536), shared_memory_per_block=49152,
        shared_memory_per_block_optin=gpu["shared_bytes_per_program"], gcnArchName="", is_integrated=0,
        shared_memory_per_multiprocessor=gpu.get("shared_bytes_per_sm", 233472), L2_cache_size=gpu.get("l2_bytes", 0),
    )  # fmt: skip
    answers = {
        "is_available": True, "device_count": 1, "current_device": 0, "set_device": None, "synchronize": None,
        "get_device_name": properties.name, "get_device_properties": properties, "get_device_capability": capability,
        "current_stream": _Stub(), "default_stream": _Stub(), "is_current_stream_capturing": False,
        "is_bf16_supported": True, "empty_cache": None, "mem_get_info": (140 * 10**9, 150 * 10**9),
        "memory_allocated": 0, "init": None, "_lazy_init": None, "is_initialized": True, "get_arch_list": ["sm_90"],
        "_get_device_index": 0, "manual_seed": None, "manual_seed_all": None, "set_rng_state": None,
    }  # fmt: skip
    absent = {
        "_cuda_getCurrentRawStream": 0, "_cuda_getDevice": 0, "_cuda_setDevice": None, "_cuda_exchangeDevice": 0,
        "_cuda_maybeExchangeDevice": 0, "_cuda_getDeviceCount": 1,
    }  # fmt: skip
    engine, implement, custom_op = torch.autograd._engine_run_backward, torch.library.Library.impl, torch.library.custom_op

    def run_backward(*arguments: Any, **keywords: Any) -> Any:
        with _AsIfCuda(recorder):  # user code runs inside, where the mode is off otherwise
            return engine(*arguments, **keywords)

    def implement_on_cpu(self: Any, op: Any, function: Any, dispatch_key: str = "", **keywords: Any) -> Any:
        if (dispatch_key or self.dispatch_key) == "CUDA" and self.ns not in ("aten", "_inductor_test"):
            with contextlib.suppress(Exception):
                implement(self, op, function, "CPU", **keywords)
        return implement(self, op, function, dispatch_key, **keywords)

    def custom_op_anywhere(name: Any, function: Any = None, /, *, device_types: Any = None, **keywords: Any) -> Any:
        return custom_op(name, function, device_types=None, **keywords)

    yield from ((torch.cuda, name, _returning(value)) for name, value in answers.items())
    yield from ((torch._C, name, _returning(value)) for name, value in absent.items() if not hasattr(torch._C, name))
    for name in ("device", "device_of", "_DeviceGuard", "stream", "Stream", "Event"):
        yield torch.cuda, name, _Stub
    yield torch.cuda, "default_generators", (generator,)
    yield torch.cuda, "get_rng_state", lambda *_: generator.get_state()
    yield torch.version, "cuda", torch.version.cuda or "13.0"
    yield torch_triton, "has_triton", _returning(True)
    yield torch.autograd, "_engine_run_backward", run_backward
    yield torch.library.Library, "impl", implement_on_cpu
    yield torch.library, "custom_op", custom_op_anywhere


# ---------------------------------------------------------------- scripts and cases


def parse_settings(settings: Iterable[str], case: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that `--set` changes, with the type of their defaults."""
    result = {}
    for setting in settings:
        name, _, text = setting.partition("=")
        if name not in defaults:
            allowed = ", ".join(defaults) or "none"
            raise UsageError(f"--set {setting}: {case} has no parameter {name!r}. It has {allowed}.")
        kind, value = type(defaults[name]), None
        with contextlib.suppress(ValueError, SyntaxError):
            value = text if kind is str else ast.literal_eval(text)
        if type(value) is not kind or "=" not in setting:
            example = f"{name} must be a value of type {kind.__name__}, such as {defaults[name]!r}"
            raise UsageError(f"--set {setting}: {example}.")
        result[name] = value
    return result


def run_case(recorder: Recorder, name: str, function: Any, settings: Mapping[str, Any]) -> None:
    """Launch a case, and compare its outputs with the expected ones if it ran."""
    recorder.case, count = name, len(recorder.launches)
    kernel, grid, keywords, *expected = function(**settings)
    kernel[grid](**keywords)
    recorder.case = None
    caller = {"file": inspect.getsourcefile(function) or "", "line": inspect.getsourcelines(function)[1]}
    for launch in recorder.launches[count:]:
        launch.content["caller"] = caller
    if expected and recorder.launches[count:] and recorder.launches[-1].content["ran"]:
        results = {output: compare(keywords[output], reference) for output, reference in expected[0].items()}
        recorder.launches[-1].content["results"] = results


def compare(result: torch.Tensor, reference: torch.Tensor) -> dict[str, Any]:
    """Return the errors of an output. It passes if its relative error is below 8 roundings of its type."""
    with torch._C.DisableTorchFunction():
        difference = result.double() - reference.double()
        scale = float(reference.double().square().mean().sqrt()) or 1.0
        rms, most = float(difference.square().mean().sqrt()) / scale, float(difference.abs().max())
    epsilon = torch.finfo(result.dtype).eps if result.dtype.is_floating_point else 0.0
    return {"relative_rms": rms, "max_abs_error": most, "passed": rms <= 8 * epsilon}


def run_script(recorder: Recorder, path: Path, case: str, settings: Sequence[str], arguments: Sequence[str]) -> None:
    """Run a script as `__main__`, or its cases."""
    sys.argv = [str(path), *arguments]
    sys.path[0] = str(path.parent)
    names = runpy.run_path(str(path), run_name="__main__")
    cases = {name: value for name, value in names.items() if name.startswith("case") and inspect.isfunction(value)}
    defaults: dict[str, dict[str, Any]] = {}
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


def main() -> int:
    parser = argparse.ArgumentParser(description="Record the Triton launches of a script.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpu-json", type=json.loads, default=H200)
    parser.add_argument("--values", action="store_true")
    parser.add_argument("--config", action="append", default=[])
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    flags = parser.parse_args()
    file, _, case = flags.script.partition(":")
    path = Path(file).resolve()
    runs = "cuda" if torch.cuda.is_available() else "interpreter" if flags.values else ""
    with recording(flags.gpu_json, runs) as recorder:
        try:
            if not path.is_file():
                raise UsageError(f"There is no script {file}.")
            if not all(re.fullmatch(r"[^=]+=\d+", text) for text in flags.config):
                raise UsageError(f"--config must be KERNEL=N (got {' '.join(flags.config)}).")
            recorder.configs = {name: int(number) for name, number in (text.split("=") for text in flags.config)}
            run_script(recorder, path, case, flags.set, flags.arguments)
        except UsageError as error:
            print(error, file=sys.stderr)
            return 2
        except BaseException as error:
            recorder.stopped = describe_stop(error, path.name)
    recorder.save(flags.out, path.name, flags.arguments)
    if recorder.stopped:
        print(recorder.stopped["message"], file=sys.stderr)
    return 0


def describe_stop(error: BaseException, script: str) -> dict[str, Any] | None:
    """Return the JSON that says where and why the script ended early; None if it exited as planned."""
    kind, message = "exception", f"{script} raised {type(error).__name__}: {error}"
    if isinstance(error, HostRead):
        kind, message = "host_read", str(error)
    elif isinstance(error, SystemExit):
        message = f"{script} exited with {error.code!r}."
    else:
        traceback.print_exception(error)
    if isinstance(error, SystemExit) and not error.code:
        return None
    return {**_users_line(traceback.extract_tb(error.__traceback__)), "kind": kind, "message": message.splitlines()[0][:300]}


if __name__ == "__main__":
    sys.exit(main())
