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
import io
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from triton.runtime import jit
from triton.runtime.autotuner import Autotuner

FORMAT = 1

# Arrays that would make the file larger are left out; so are large tensors of floating-point numbers, which are rarely
# indices.
_MOST_BYTES, _MOST_FLOAT_BYTES = 60 << 20, 1 << 20

# torch's allocator aligns storages to this.
_STORAGE_ALIGNMENT = 512

# Configs of an autotuner that are tried until one compiles and fits.
_MOST_CONFIGS = 8

_POINTER_OPS = (
    "tt.load", "tt.store", "tt.atomic_rmw", "tt.atomic_cas", "ttg.async_copy_global_to_local",
)  # fmt: skip

H200 = {
    "name": "H200", "sms": 132, "compute_capability": [9, 0], "shared_bytes_per_program": 232448,
    "l2_bytes": 60 << 20, "shared_bytes_per_sm": 228 << 10, "registers_per_sm": 65536,
}  # fmt: skip


class HostRead(Exception):
    """The script reads a result of a launch that did not run."""


# ---------------------------------------------------------------- what is recorded


@dataclass
class Storage:
    """Memory of tensors. It is kept alive, so that no other tensor gets its address."""

    number: int
    size: int
    start: int
    keep: Any


@dataclass
class Launch:
    """A launch: the function, its bound arguments, and the compiled kernel."""

    function: Any
    grid: tuple[int, ...]
    bound: dict[str, Any]
    options: dict[str, Any]
    caller: tuple[str, int]
    tuned: tuple[int, int] | None
    case: str | None
    compiled: Any = None
    arguments: list[dict[str, Any]] = field(default_factory=list)
    parameters: dict[str, str] = field(default_factory=dict)
    ran: str = ""
    events: tuple[Any, Any] | None = None
    results: dict[str, Any] | None = None


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
        self.storages: dict[tuple[str, int], Storage] = {}
        self.arrays: list[np.ndarray] = []
        self.array_types: list[str] = []
        self.numbers: dict[bytes, int] = {}  # of arrays, by content
        self.written: set[int] = set()  # storages with values that depend on launches which did not run
        self.tuned: list[tuple[int, int] | None] = []
        self.case: str | None = None
        self.cases: dict[str, dict[str, Any]] = {}
        self.stopped: dict[str, Any] | None = None
        self.not_captured: list[str] = []

    def storage(self, tensor: torch.Tensor) -> Storage:
        memory = tensor.untyped_storage()
        key = (tensor.device.type, memory.data_ptr())
        if key not in self.storages:
            start = memory.data_ptr() % _STORAGE_ALIGNMENT if tensor.device.type == "cuda" else 0
            self.storages[key] = Storage(len(self.storages), memory.nbytes(), start, tensor.detach())
        return self.storages[key]

    def describe(self, tensor: Any) -> dict[str, Any]:
        """Return a tensor's JSON, and keep a copy of its storage if it may hold indices."""
        base = tensor if isinstance(tensor, torch.Tensor) else getattr(tensor, "base", getattr(tensor, "_base", None))
        offset = base.storage_offset() * base.element_size()
        if base is not tensor:  # a wrapper such as triton.reinterpret's
            offset = int(tensor.data_ptr()) - base.untyped_storage().data_ptr()
        storage = self.storage(base)
        size = getattr(tensor.dtype, "itemsize", None) or base.element_size()
        is_known = storage.number not in self.written
        array = self._copy(base, storage) if base is tensor and is_known else None
        return {
            "dtype": str(tensor.dtype).removeprefix("torch."), "element_bytes": size, "shape": list(base.shape),
            "strides": list(base.stride()), "storage": storage.number, "offset_bytes": offset, "array": array,
            "is_known": is_known,
        }  # fmt: skip

    def _copy(self, tensor: torch.Tensor, storage: Storage) -> int | None:
        is_float = tensor.dtype.is_floating_point or tensor.dtype.is_complex
        if tensor.dtype.is_complex or (is_float and storage.size > _MOST_FLOAT_BYTES) or storage.size > 4 * _MOST_BYTES:
            return None
        count = storage.size // tensor.element_size()
        flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
            tensor.untyped_storage(), 0, (count,), (1,)
        )
        flat = flat.cpu()
        exact = (torch.float16, torch.float32, torch.float64)
        data = (flat.float() if is_float and tensor.dtype not in exact else flat.clone()).numpy()
        digest = hashlib.blake2b(data.tobytes(), key=str(tensor.dtype).encode()).digest()
        if digest not in self.numbers:
            self.numbers[digest] = len(self.arrays)
            self.arrays.append(data)
            self.array_types.append(str(tensor.dtype).removeprefix("torch."))
        return self.numbers[digest]

    def record(self, function: Any, arguments: Sequence[Any], grid: Any, keywords: Mapping[str, Any]) -> Launch:
        names = [parameter.name for parameter in function.params]
        bound = function.signature.bind(*arguments, **{k: v for k, v in keywords.items() if k in names})
        bound.apply_defaults()
        values = dict(bound.arguments)
        sizes = grid(values) if callable(grid) else grid
        sizes = (sizes,) if isinstance(sizes, int) else tuple(int(size) for size in sizes)
        options = {name: value for name, value in keywords.items() if name not in names}
        launch = Launch(function, sizes, values, options, _caller(), self.tuned[-1] if self.tuned else None, self.case)
        with torch._C.DisableTorchFunction():
            launch.compiled, launch.arguments = self._compile(launch)
            launch.parameters = {name: _text(value) for name, value in values.items()}
        self.launches.append(launch)
        return launch

    def _compile(self, launch: Launch) -> tuple[Any, list[dict[str, Any]]]:
        """Return the compiled kernel, and the arguments that Triton's binder leaves to the compiled function."""
        stand_ins = {name: _as_compiled(value) for name, value in launch.bound.items()}
        compiled = _RUN(launch.function, grid=launch.grid, warmup=True, **stand_ins, **launch.options)
        shared = int(compiled.metadata.shared)
        limit = int(self.gpu["shared_bytes_per_program"])
        if shared > limit:
            raise RuntimeError(f"{launch.function.fn.__name__} needs {shared:,} bytes of shared memory; {limit:,} fit.")
        device = triton.runtime.driver.active.get_current_device()
        *_, binder = launch.function.device_caches[device]
        options = {"debug": False, "instrumentation_mode": "", **launch.options}
        _, specialization, _ = binder(**stand_ins, **options)
        result: list[dict[str, Any]] = []
        for (name, value), (kind, *_) in zip(launch.bound.items(), specialization, strict=True):
            self._flatten(name, value, kind, result)
        return compiled, result

    def _flatten(self, name: str, value: Any, kind: Any, result: list[dict[str, Any]]) -> None:
        if isinstance(kind, tuple):
            for i, (inner, inner_kind) in enumerate(zip(value, kind, strict=True)):
                self._flatten(f"{name}.{i}", inner, inner_kind, result)
        elif kind == "constexpr":
            return
        elif type(value).__name__ == "TensorDescriptor":
            sizes = {"shape": list(map(int, value.shape)), "strides": list(map(int, value.strides))}
            content = {"tensor": self.describe(value.base), **sizes, "block_shape": list(value.block_shape)}
            result.append({"name": name, "descriptor": content})
            result += [
                {"name": f"{name}.{what}.{i}", "value": n} for what, ns in sizes.items() for i, n in enumerate(ns)
            ]
        elif hasattr(value, "data_ptr"):
            result.append({"name": name, "tensor": self.describe(value)})
        else:
            number = value if isinstance(value, bool | int) else float(value)
            is_finite = isinstance(number, int) or math.isfinite(number)
            result.append({"name": name, "value": number if is_finite else str(number)})

    def storages_of(self, launch: Launch, are_written: bool = False) -> set[int]:
        """Return the storages that a launch is given, or only those that it may write to."""
        written = _written_arguments(launch.compiled.asm["ttgir"]) if are_written else range(len(launch.arguments))
        given = (launch.arguments[number] for number in written)
        tensors = (a.get("tensor") or a.get("descriptor", {}).get("tensor") for a in given)
        return {tensor["storage"] for tensor in tensors if tensor}

    def propagate(self, inputs: Any, outputs: Any) -> None:
        """Mark the results of a torch operation as unknown if one of its operands is."""
        if any(self._is_written(tensor) for tensor in _tensors(inputs)):
            self.written |= {self.storage(tensor).number for tensor in _tensors(outputs)}

    def _is_written(self, tensor: torch.Tensor) -> bool:
        storage = self.storages.get((tensor.device.type, tensor.untyped_storage().data_ptr()))
        return storage is not None and storage.number in self.written

    # Writing.

    def save(self, path: Path, script: str = "", arguments: Sequence[str] = ()) -> None:
        """Write the capture."""
        kernels: dict[tuple[Any, str], int] = {}
        for launch in self.launches:
            kernels.setdefault((launch.function, launch.compiled.hash), len(kernels))
        with ThreadPoolExecutor(os.cpu_count() or 2) as threads:
            first = {(l.function, l.compiled.hash): l for l in reversed(self.launches)}
            described = list(threads.map(_describe_kernel, (first[key] for key in kernels)))
        sizes = sorted(range(len(self.arrays)), key=lambda number: self.arrays[number].nbytes)
        total, kept = 0, set[int]()
        for number in sizes:
            total += self.arrays[number].nbytes
            if total <= _MOST_BYTES:
                kept.add(number)
        if self.runs == "cuda":
            torch.cuda.synchronize()
        content = {
            "format": FORMAT, "triton": triton.__version__, "torch": torch.__version__,
            "python": sys.version.split()[0], "script": script, "arguments": list(arguments), "gpu": self.gpu,
            "backend": self.runs or "none", "stopped": self.stopped, "not_captured": self.not_captured,
            "cases": self.cases, "kernels": [kernel for kernel, _ in described],
            "arrays": [
                {"dtype": kind, "length": len(array), "why_missing": "" if number in kept else _too_large(array)}
                for number, (kind, array) in enumerate(zip(self.array_types, self.arrays, strict=True))
            ],
            "storages": [{"bytes": s.size, "address_bytes": s.start} for s in self.storages.values()],
            "launches": [_launch_json(l, kernels[l.function, l.compiled.hash]) for l in self.launches],
        }  # fmt: skip
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("capture.json", json.dumps(content))
            for number, (_, codes) in enumerate(described):
                for stage, text in codes.items():
                    file.writestr(f"kernels/{number}.{stage}", text)
            for number in kept:
                data = io.BytesIO()
                np.save(data, self.arrays[number], allow_pickle=False)
                file.writestr(f"arrays/{number}.npy", data.getvalue())


def _too_large(array: np.ndarray) -> str:
    return f"with its {array.nbytes:,} bytes, the file would be too large"


def _launch_json(launch: Launch, kernel: int) -> dict[str, Any]:
    constants = {p.name: launch.bound[p.name] for p in launch.function.params if p.is_constexpr}
    metadata = launch.compiled.metadata
    config = {**constants, "num_warps": metadata.num_warps, "num_stages": getattr(metadata, "num_stages", None)}
    return {
        "kernel": kernel, "grid": [*launch.grid, 1, 1][:3],
        "caller": {"file": launch.caller[0], "line": launch.caller[1]},
        "config": {name: v if isinstance(v, bool | int | str) or v is None else _text(v) for name, v in config.items()},
        "tuned": {"number": launch.tuned[0], "of": launch.tuned[1]} if launch.tuned else None,
        "ran": launch.ran or False, "elapsed_ms": launch.events[0].elapsed_time(launch.events[1]) if launch.events else None,
        "case": launch.case, "arguments": launch.arguments, "parameters": launch.parameters, "results": launch.results,
    }  # fmt: skip


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, tuple | list | dict):
        for value in values.values() if isinstance(values, dict) else values:
            yield from _tensors(value)


def _written_arguments(ttgir: str) -> list[int]:
    """Return the numbers of the arguments to which a kernel may store, by following its pointers in the TTGIR's text."""
    sources: list[set[int]] = []  # of each value, by its number; a loop's number stands for all that it carries
    numbers: dict[str, int] = {}  # of the latest value of a name, which sibling regions may use again
    regions, arguments, reached, todo = [], list[int](), set[int](), list[int]()

    def define(depends_on: Iterable[int]) -> int:
        sources.append(set(depends_on))
        return len(sources) - 1

    for line in ttgir.splitlines():
        if "tt.func" in line:
            names = re.findall(_ARGUMENT, line.partition("(")[2])
            arguments = [define(()) for _ in names]
            numbers |= dict(zip(names, arguments, strict=True))
            continue
        line = re.sub(r" loc\(.*", "", line).strip()
        results, _, operation = line.partition(" = ") if line.startswith("%") else ("", "", line)
        values = [numbers[name] for name in re.findall(r"%[\w$.-]+", operation) if name in numbers]
        if operation.startswith(("tt.addptr", "tt.load")):  # offsets and loaded values point nowhere
            values = values[: operation.startswith("tt.addptr")]
        if line.startswith("}") and regions:
            carried = regions.pop()
        if line.endswith("{"):
            regions.append(carried if line.startswith("}") else define(values))
            carried_names = re.findall(r"(%[\w$.-]+) = %[\w$.-]+", operation)
            numbers |= dict.fromkeys(carried_names, regions[-1])
        elif line.startswith("^bb"):
            numbers |= {name: define(regions[-1:]) for name in re.findall(_ARGUMENT, line)}
        elif line.startswith(("scf.yield", "scf.condition", "tt.reduce.return", "tt.scan.return")) and regions:
            sources[regions[-1]].update(values)
        numbers |= {
            name: define(regions[-1:] if line.endswith("{") else values) for name in re.findall(r"%[\w$.-]+", results)
        }
        if re.match(
            r"tt\.store|tt\.atomic|ttng\.async_tma_(copy_local|store|reduce)|tt\.descriptor_(?!load)", operation
        ):
            todo += values[:1]
    while todo:
        if (number := todo.pop()) not in reached:
            reached.add(number)
            todo += sources[number]
    return [number for number, argument in enumerate(arguments) if argument in reached]


def _text(value: Any) -> str:
    """Describe a parameter: dtype[shape][strides]+offset for a tensor."""
    if isinstance(value, torch.Tensor):
        offset = value.storage_offset() * value.element_size()
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}{list(value.stride())}+{offset}"
    if type(value).__name__ == "TensorDescriptor":
        return f"descriptor({_text(value.base)} {list(value.block_shape)})"
    return str(getattr(value, "__name__", None) or repr(value))[:60]


def _describe_kernel(launch: Launch) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a compiled kernel's JSON, and its TTGIR, PTX and SASS."""
    compiled, function = launch.compiled, launch.function.fn
    asm = compiled.asm
    codes = {"ttgir": asm["ttgir"], "ptx": asm["ptx"]}
    registers = spilled = 0
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file, contextlib.suppress(OSError, AttributeError):
        file.write(asm["cubin"])
        file.flush()
        usage = _tool("cuobjdump", "--dump-resource-usage", file.name)
        used = {name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
        registers, spilled = max(16, used.get("REG", 0)), used.get("STACK", 0) + used.get("LOCAL", 0)
        codes["sass"] = _tool("nvdisasm", "--print-line-info", "--print-code", "--no-dataflow", file.name)
    source, line = inspect.getsourcelines(function)
    metadata = compiled.metadata
    return {
        "name": function.__name__, "file": inspect.getsourcefile(function) or "", "line": line,
        "source": "".join(source), "registers": registers, "spilled_bytes": spilled, "shared_bytes": metadata.shared,
        "num_warps": metadata.num_warps, "num_ctas": metadata.num_ctas, "layouts": read_layouts(asm["ttgir"]),
    }, codes  # fmt: skip


def _tool(name: str, *arguments: str) -> str:
    path = getattr(triton.knobs.nvidia, name).path
    return subprocess.run([path, *arguments], capture_output=True, text=True, check=False).stdout


def read_layouts(ttgir: str) -> list[dict[str, Any] | None]:
    """Return the bases of the pointers' layout of each operation on pointers; None for a scalar pointer."""
    from triton._C.libtriton import gluon_ir, ir, nvidia

    context = ir.context()  # must outlive every object created from it
    ir.load_dialects(context)
    nvidia.load_dialects(context)
    with tempfile.NamedTemporaryFile("w", suffix=".ttgir") as file:
        file.write(ttgir)
        file.flush()
        module = ir.parse_mlir_module(file.name, context)
    builder = gluon_ir.GluonOpBuilder(context)
    pointers: list[Any] = []
    module.walk(lambda op: pointers.append(op.get_operand(0)) if op.get_name() in _POINTER_OPS else None)
    names = "|".join(map(re.escape, _POINTER_OPS))
    lines = [line for line in ttgir.splitlines() if re.search(rf"(?:^|= |\s)({names}) ", line)]
    result: list[dict[str, Any] | None] = []
    for line, pointer in zip(lines, pointers, strict=True):
        match = re.search(r"tensor<((?:\d+x)+)", line)
        if not match:
            result.append(None)
            continue
        shape = [int(size) for size in match[1][:-1].split("x")]
        layout = builder.to_linear_layout(builder.get_gluon_layout_from_tensor(pointer)._to_ir(builder), shape)
        sides = {"register": layout.reg_bases, "lane": layout.lane_bases, "warp": layout.warp_bases}
        result.append({"shape": shape, **{side: [list(base) for base in bases] for side, bases in sides.items()}})
    return result


def _frames() -> list[traceback.FrameSummary]:
    """Return the user's frames, innermost first."""
    folders = [str(Path(package.__file__).parent) for package in (torch, triton)]
    frames = traceback.extract_stack()[::-1]
    return [f for f in frames if f.filename != __file__ and not f.filename.startswith((*folders, "<frozen", "<string"))]


def _caller() -> tuple[str, int]:
    frame = next(
        (f for f in _frames() if f.filename not in (runpy.__file__, contextlib.__file__, functools.__file__)), None
    )
    return (frame.filename, frame.lineno or 0) if frame else ("", 0)


class _AlignedTensor:
    """Stands for a tensor while a kernel is compiled: Triton's binder only asks for its type and its address."""

    def __init__(self, tensor: Any) -> None:
        base = tensor if isinstance(tensor, torch.Tensor) else getattr(tensor, "base", getattr(tensor, "_base", None))
        self.dtype, self._tensor = tensor.dtype, base
        # Main memory is aligned less than GPU memory, so the address counts from the storage's start.
        self._start = int(tensor.data_ptr()) - (base.untyped_storage().data_ptr() if base.device.type == "cpu" else 0)

    def data_ptr(self) -> int:
        return self._start

    def ptr_range(self) -> int:
        return 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tensor, name)


def _as_compiled(value: Any) -> Any:
    if type(value).__name__ == "TensorDescriptor":
        # Its constructor checks alignment, which main memory may lack.
        copy = object.__new__(type(value))
        copy.__dict__ |= {**value.__dict__, "base": _AlignedTensor(value.base)}
        return copy
    if isinstance(value, tuple):
        parts = [_as_compiled(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return _AlignedTensor(value) if hasattr(value, "data_ptr") and hasattr(value, "dtype") else value


# ---------------------------------------------------------------- hooks

_RUN = jit.JITFunction.run
_RECORDERS: list[Recorder] = []  # the active one last
_ABSENT = object()
_ARGUMENT = r"(%[\w$.-]+): "


class _NotRun:
    """What a launch that did not run returns: enough for callers that keep the compiled kernel and launch it again."""

    def __init__(self, launch: Launch, keywords: Mapping[str, Any]) -> None:
        self._launch, self._keywords = launch, keywords
        self.n_regs = self.n_spills = 0
        self.name = launch.compiled.name
        self.metadata, self.asm, self.function = launch.compiled.metadata, launch.compiled.asm, None

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*arguments: Any, **_: Any) -> None:
            function, values = self._launch.function, list(arguments)
            free = [parameter.name for parameter in function.params if not parameter.is_constexpr]
            if len(values) == len(free):  # constants are left out
                given = dict(zip(free, values, strict=True))
                values = [given.get(p.name, self._launch.bound.get(p.name)) for p in function.params]
            options = {k: v for k, v in self._keywords.items() if k not in function.arg_names}
            _launch(_RECORDERS[-1], function, values, grid, options)

        return launch


def _launch(recorder: Recorder, function: Any, arguments: Sequence[Any], grid: Any, keywords: dict[str, Any]) -> Any:
    """Record a launch, and run it if the recorder does."""
    launch = recorder.record(function, arguments, grid, keywords)
    if recorder.runs == "cuda":
        launch.events = tuple(torch.cuda.Event(enable_timing=True) for _ in range(2))
        launch.events[0].record()
        kernel = _RUN(function, *arguments, grid=grid, warmup=False, **keywords)
        launch.events[1].record()
        launch.ran = "cuda"
        return kernel
    if recorder.runs == "interpreter" and not recorder.storages_of(launch) & recorder.written:
        try:
            _interpret(function, arguments, launch, keywords)
            launch.ran = "interpreter"
        except Exception as error:
            note = f"{function.fn.__name__} did not run in the interpreter: {type(error).__name__}: {error}"[:200]
            recorder.not_captured.append(note)
    if not launch.ran:
        recorder.written |= recorder.storages_of(launch, are_written=True)
    return _NotRun(launch, keywords)


def _interpret(function: Any, arguments: Sequence[Any], launch: Launch, keywords: Mapping[str, Any]) -> None:
    """Run a launch in Triton's interpreter, on the tensors in main memory."""
    from triton.runtime import interpreter

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        # The interpreter's own version leaves triton.language patched.
        scope = interpreter._patch_lang(self.fn)
        try:
            return interpreter.InterpretedFunction(self.fn).rewrite()(*args, **kwargs)
        finally:
            if scope is not None and hasattr(scope, "restore"):
                scope.restore()

    before, names = jit.JITFunction.__call__, [parameter.name for parameter in function.params]
    jit.JITFunction.__call__ = call
    try:
        with torch._C.DisableTorchFunction():
            interpreted = interpreter.InterpretedFunction(function.fn)
            known = {name: value for name, value in keywords.items() if name in names}
            interpreted.run(*arguments, grid=launch.grid, warmup=False, **known)
    finally:
        jit.JITFunction.__call__ = before


def _subclasses(base: type) -> Iterator[type]:
    for kind in base.__subclasses__():
        yield kind
        yield from _subclasses(kind)


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

    def pin(self: Any, *arguments: Any, **keywords: Any) -> Any:
        """Replace an autotuner's search by its first config that compiles and fits."""
        self.nargs = dict(zip(self.arg_names, arguments, strict=False))
        configs = self.prune_configs(keywords) if len(self.configs) > 1 else self.configs
        name = getattr(getattr(self.base_fn, "fn", self.base_fn), "__name__", "")
        if chosen := recorder.configs.get(name):
            configs = [self.configs[(chosen - 1) % len(self.configs)]]
        try:
            for place, config in enumerate(configs):
                self.best_config = config
                values = config.all_kwargs()
                if config.pre_hook is not None:
                    config.pre_hook({**self.nargs, **keywords, **values})
                number = next((i for i, other in enumerate(self.configs) if other is config), place)
                recorder.tuned.append((number + 1, len(self.configs)) if len(self.configs) > 1 else None)
                count = len(recorder.launches)
                try:
                    return self.fn.run(*arguments, **keywords, **values)
                except HostRead:
                    raise
                except Exception:
                    if place + 1 == min(len(configs), _MOST_CONFIGS):
                        raise
                    del recorder.launches[count:]
                finally:
                    recorder.tuned.pop()
        finally:
            self.nargs = None
        return None

    def bench(self: Any, *arguments: Any, **keywords: Any) -> list[float]:
        """Make the first config the fastest, for tuners that search on their own."""
        return [float(next(clock))] * 3

    kinds = [Autotuner, *(kind for kind in _subclasses(Autotuner) if "run" in kind.__dict__)]
    replaced: list[tuple[Any, str, Any]] = [(jit.JITFunction, "run", run), (Autotuner, "_bench", bench)]
    replaced += [(kind, "run", pin) for kind in kinds]
    if heuristics := sys.modules.get("torch._inductor.runtime.triton_heuristics"):
        sentence = "Kernels that torch.compile generated were launched by Inductor itself and not recorded."
        tuner = heuristics.CachingAutotuner
        replaced.append((tuner, "run", _noting(recorder, tuner.run, sentence)))
    if runs == "cuda":
        sentence = "A CUDA graph was replayed; the launches in it were not recorded."
        replaced.append((torch.cuda.CUDAGraph, "replay", _noting(recorder, torch.cuda.CUDAGraph.replay, sentence)))
    _RECORDERS.append(recorder)
    try:
        with contextlib.nullcontext() if runs == "cuda" else as_if_cuda(recorder), replacing(replaced):
            yield recorder
    finally:
        _RECORDERS.pop()


def _noting(recorder: Recorder, function: Any, sentence: str) -> Any:
    @functools.wraps(function)
    def noting(*arguments: Any, **keywords: Any) -> Any:
        if sentence not in recorder.not_captured:
            recorder.not_captured.append(sentence)
        return function(*arguments, **keywords)

    return noting


# ---------------------------------------------------------------- a machine without a GPU

_CUDA = torch.device("cuda", 0)
_T = torch.Tensor
_ANSWERS = {_T.device.__get__: _CUDA, _T.is_cuda.__get__: True, _T.is_cpu.__get__: False, _T.get_device: 0}  # type: ignore[attr-defined]
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
        keywords = dict(keywords or {})
        if function in _ANSWERS:
            return _ANSWERS[function]
        if function in (_T.cuda, _T.pin_memory):
            return arguments[0]
        if function is _T.is_pinned:
            return False
        if function is _T.record_stream:
            return None
        if function in _READS and self._recorder.written and isinstance(arguments[0], _T):
            self._check_read(function, arguments[0])
        if "device" in keywords:
            keywords["device"] = _on_cpu(keywords["device"])
        if keywords.get("pin_memory"):
            keywords["pin_memory"] = False
        result = function(*map(_on_cpu, arguments), **keywords)
        if self._recorder.written:
            with torch._C.DisableTorchFunction():
                self._recorder.propagate((arguments, keywords), result)
        return result

    def _check_read(self, function: Any, tensor: torch.Tensor) -> None:
        with torch._C.DisableTorchFunction():
            is_unknown = self._recorder._is_written(tensor)
        if is_unknown and not self._recorder.runs:
            file, line = _caller()
            raise HostRead(
                f"{Path(file).name}:{line} reads a tensor that an earlier launch was given ({function.__name__}), and "
                "launches do not run without a GPU. --values runs them in Triton's interpreter."
            )


class _Nothing:
    """A context manager and stream or event that does nothing."""

    cuda_stream, device = 0, _CUDA

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> "_Nothing":
        return self

    def __exit__(self, *_: Any) -> bool:
        return False

    def __call__(self, function: Any) -> Any:
        return function

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: 0.0 if name == "elapsed_time" else name == "query" or None


class _Generator:
    """A GPU's random number generator, as far as libraries save and restore it."""

    def __init__(self) -> None:
        self.number, self.offset = 0, 0

    def get_state(self) -> torch.Tensor:
        return torch.tensor([self.number, self.offset]).view(torch.uint8)

    def set_state(self, state: torch.Tensor) -> None:
        self.number, self.offset = (int(value) for value in state.view(torch.int64).tolist())

    def initial_seed(self) -> int:
        return self.number

    def manual_seed(self, number: int) -> "_Generator":
        self.number = number
        return self


class _Driver:
    """Triton's driver: names the GPU to compile for."""

    def __init__(self, gpu: Mapping[str, Any]) -> None:
        from triton.backends.compiler import GPUTarget

        major, minor = gpu["compute_capability"]
        self._target, self._capability = GPUTarget("cuda", 10 * major + minor, 32), (major, minor)
        properties = {
            "max_shared_mem": gpu["shared_bytes_per_program"], "max_num_regs": gpu.get("registers_per_sm", 65536),
            "multiprocessor_count": gpu["sms"], "warpSize": 32, "sm_clock_rate": 1980000, "mem_clock_rate": 3201000,
            "mem_bus_width": 6144,
        }  # fmt: skip
        self.utils = types.SimpleNamespace(
            get_device_properties=lambda device: properties,
            cuOccupancyMaxActiveClusters=lambda *_: gpu["sms"],
            set_printf_fifo_size=lambda size: None,
            fill_1d_tma_descriptor=lambda *_: None,
            fill_2d_tma_descriptor=lambda *_: None,
        )

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: Any = None) -> int:
        return 0

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        return self._capability

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_active_torch_device(self) -> torch.device:
        return _CUDA

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        return torch.empty(1)

    def clear_cache(self, cache: Any) -> None:
        pass

    def get_benchmarker(self) -> Any:
        return lambda function, **_: [0.0, 0.0, 0.0]

    def map_python_to_cpp_type(self, kind: str) -> str:
        return kind

    @staticmethod
    def is_active() -> bool:
        return True


def _torch_cuda(gpu: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stand-ins for functions of torch.cuda."""
    capability = tuple(gpu["compute_capability"])
    properties = types.SimpleNamespace(
        name=f"NVIDIA {gpu['name']}", major=capability[0], minor=capability[1], total_memory=150 * 10**9, warp_size=32,
        multi_processor_count=gpu["sms"], max_threads_per_multi_processor=2048, max_threads_per_block=1024,
        regs_per_multiprocessor=gpu.get("registers_per_sm", 65536), shared_memory_per_block=49152,
        shared_memory_per_block_optin=gpu["shared_bytes_per_program"], gcnArchName="", is_integrated=0,
        shared_memory_per_multiprocessor=gpu.get("shared_bytes_per_sm", 233472), L2_cache_size=gpu.get("l2_bytes", 0),
    )  # fmt: skip
    generator = _Generator()
    constants = {
        "is_available": True, "device_count": 1, "current_device": 0, "set_device": None, "get_device_name": properties.name,
        "get_device_properties": properties, "get_device_capability": capability, "synchronize": None,
        "current_stream": _Nothing(), "default_stream": _Nothing(), "is_current_stream_capturing": False,
        "is_bf16_supported": True, "empty_cache": None, "mem_get_info": (140 * 10**9, 150 * 10**9),
        "memory_allocated": 0, "init": None, "_lazy_init": None, "is_initialized": True, "get_arch_list": ["sm_90"],
        "_get_device_index": 0, "manual_seed": None, "manual_seed_all": None, "set_rng_state": None,
    }  # fmt: skip
    answers = {name: (lambda *_, value=value, **__: value) for name, value in constants.items()}
    kinds = dict.fromkeys(("device", "device_of", "_DeviceGuard", "stream", "Stream", "Event"), _Nothing)
    return {**answers, **kinds, "default_generators": (generator,), "get_rng_state": lambda *_: generator.get_state()}


@contextlib.contextmanager
def as_if_cuda(recorder: Recorder) -> Iterator[None]:
    """Make this process appear to have the recorder's GPU."""
    import torch.utils._triton as torch_triton
    from triton.runtime import driver

    driver.set_active(_Driver(recorder.gpu))
    engine, implement, custom_op = (
        torch.autograd._engine_run_backward, torch.library.Library.impl, torch.library.custom_op
    )  # fmt: skip

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

    absent = {
        "_cuda_getCurrentRawStream": 0, "_cuda_getDevice": 0, "_cuda_setDevice": None, "_cuda_exchangeDevice": 0,
        "_cuda_maybeExchangeDevice": 0, "_cuda_getDeviceCount": 1,
    }  # fmt: skip
    replaced: list[tuple[Any, str, Any]] = [
        (torch.cuda, name, value) for name, value in _torch_cuda(recorder.gpu).items()
    ]
    replaced += [
        (torch.version, "cuda", torch.version.cuda or "13.0"),
        (torch_triton, "has_triton", lambda *_: True),
        (torch.autograd, "_engine_run_backward", run_backward),
        (torch.library.Library, "impl", implement_on_cpu),
        (torch.library, "custom_op", custom_op_anywhere),
    ]
    replaced += [
        (torch._C, name, lambda *_, value=value: value) for name, value in absent.items() if not hasattr(torch._C, name)
    ]
    with replacing(replaced), _AsIfCuda(recorder):
        yield


@contextlib.contextmanager
def replacing(attributes: Sequence[tuple[Any, str, Any]]) -> Iterator[None]:
    """Set attributes, (owner, name, value), and restore them at the end."""
    before = [(owner, name, owner.__dict__.get(name, _ABSENT)) for owner, name, _ in attributes]
    for owner, name, value in attributes:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in reversed(before):
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


# ---------------------------------------------------------------- scripts and cases


class UsageError(Exception):
    """The command line is wrong. The message is one sentence."""


def case_parameters(function: Any) -> dict[str, Any]:
    """Return a case's parameters with their defaults."""
    return {p.name: p.default for p in inspect.signature(function).parameters.values() if p.default is not p.empty}


def parse_settings(settings: Iterable[str], case: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that `--set` changes, with the type of their defaults."""
    result = {}
    for setting in settings:
        name, separator, text = setting.partition("=")
        if name not in defaults:
            raise UsageError(
                f"--set {setting}: {case} has no parameter {name!r}. It has {', '.join(defaults) or 'none'}."
            )
        try:
            value = ast.literal_eval(text) if not isinstance(defaults[name], str) else text
        except (ValueError, SyntaxError):
            value = None
        if not separator or type(value) is not type(defaults[name]):
            kind = type(defaults[name]).__name__
            raise UsageError(f"--set {setting}: {name} must be a value of type {kind}, such as {defaults[name]!r}.")
        result[name] = value
    return result


def run_case(recorder: Recorder, name: str, function: Any, settings: Mapping[str, Any]) -> None:
    """Launch a case, and compare its outputs with the expected ones if it ran."""
    recorder.case = name
    kernel, grid, keywords, *expected = function(**settings)
    count = len(recorder.launches)
    kernel[grid](**keywords)
    recorder.case = None
    launches = recorder.launches[count:]
    for launch in launches:
        launch.caller = inspect.getsourcefile(function) or "", inspect.getsourcelines(function)[1]
    if expected and launches and launches[-1].ran:
        launches[-1].results = {
            output: compare(keywords[output], reference) for output, reference in expected[0].items()
        }


def compare(result: torch.Tensor, reference: torch.Tensor) -> dict[str, Any]:
    """Return the errors of an output. It passes if its relative error is below 8 roundings of its type."""
    with torch._C.DisableTorchFunction():
        a, b = result.double(), reference.double()
        scale = float(b.square().mean().sqrt()) or 1.0
        rms = float((a - b).square().mean().sqrt()) / scale
        epsilon = torch.finfo(result.dtype).eps if result.dtype.is_floating_point else 0.0
        error = float((a - b).abs().max())
        return {"relative_rms": rms, "max_abs_error": error, "passed": bool(rms <= 8 * epsilon)}


def run_script(recorder: Recorder, path: Path, case: str, settings: Sequence[str], arguments: Sequence[str]) -> None:
    """Run a script as `__main__`, or its cases."""
    sys.argv = [str(path), *arguments]
    sys.path[0] = str(path.parent)
    names = runpy.run_path(str(path), run_name="__main__")
    cases = {name: f for name, f in names.items() if name.startswith("case") and inspect.isfunction(f)}
    recorder.cases = {name: {k: v for k, v in case_parameters(f).items() if isinstance(v, bool | int | float | str)}
                      for name, f in cases.items()}  # fmt: skip
    if case and case not in cases:
        allowed = f"Its cases are {', '.join(cases)}." if cases else "It has no function whose name begins with `case`."
        raise UsageError(f"{path.name} has no case {case!r}. {allowed}")
    chosen = [case] if case else [] if recorder.launches else list(cases)
    if settings and len(chosen) != 1:
        raise UsageError("--set changes the parameters of one case: name it, as in script.py:case.")
    if case:
        recorder.launches.clear()
    for name in chosen:
        run_case(recorder, name, cases[name], parse_settings(settings, name, case_parameters(cases[name])))


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
    if not path.is_file():
        print(f"There is no script {file}.", file=sys.stderr)
        return 2
    try:
        configs = {name: int(number) for name, number in (text.split("=", 1) for text in flags.config)}
    except ValueError:
        print(f"--config must be KERNEL=N (got {' '.join(flags.config)}).", file=sys.stderr)
        return 2
    runs = "cuda" if torch.cuda.is_available() else "interpreter" if flags.values else ""
    with recording(flags.gpu_json, runs, configs) as recorder:
        try:
            run_script(recorder, path, case, flags.set, flags.arguments)
        except UsageError as error:
            print(error, file=sys.stderr)
            return 2
        except SystemExit as error:
            if error.code not in (None, 0):
                recorder.stopped = _stop("exception", f"{path.name} exited with {error.code!r}.", error)
        except HostRead as error:
            recorder.stopped = _stop("host_read", str(error), error)
        except BaseException as error:
            traceback.print_exc()
            message = f"{path.name} raised {type(error).__name__}: {error}"
            recorder.stopped = _stop("exception", message.splitlines()[0][:300], error)
    recorder.save(flags.out, path.name, flags.arguments)
    if recorder.stopped:
        print(recorder.stopped["message"], file=sys.stderr)
    return 0


def _stop(kind: str, message: str, error: BaseException) -> dict[str, Any]:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    frame = frames[-1] if frames else None
    return {
        "file": frame.filename if frame else "",
        "line": frame.lineno if frame else 0,
        "kind": kind,
        "message": message,
    }


if __name__ == "__main__":
    sys.exit(main())
