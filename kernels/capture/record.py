"""Record every Triton launch of an unmodified script, with or without a GPU, and write a capture.

    python record.py --out FILE [--values] [--config KERNEL=N] [--set NAME=VALUE,...] SCRIPT[:CASE] [ARGUMENTS]
    python record.py --out FILE [...] -m MODULE[:CASE] [ARGUMENTS]
    python record.py --serve FD

SCRIPT is a Python file or a notebook (.ipynb).

This file and `allocation.py` need only torch, Triton and NumPy, so they can be copied to any machine. Without a GPU
nothing is launched: tensors live in host memory but report a CUDA device, kernels are compiled but do not run, and
recording stops where the script reads a result. `--values` runs the launches in Triton's interpreter instead.
`reader.py` describes the file format.
"""

import argparse
import ast
import asyncio
import atexit
import contextlib
import faulthandler
import functools
import gc
import hashlib
import inspect
import io
import itertools
import json
import linecache
import math
import multiprocessing
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
import zipfile
from collections import defaultdict, namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # this folder, whose files could shadow packages

try:
    import numpy as np
    import torch
    import triton

    VERSION = tuple(map(int, triton.__version__.split(".")[:2]))
    if VERSION < (3, 6):
        raise ImportError(f"Triton is {triton.__version__}, and Tilescope needs 3.6 or later")
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.utils import _triton as torch_triton
    from torch.utils._device import DeviceContext
    from torch.utils._pytree import tree_leaves
    from triton._C.libtriton import gluon_ir, ir, nvidia
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.driver import CudaDriver
    from triton.compiler import CompilationError, CompiledKernel
    from triton.runtime import Autotuner, OutOfResources, driver, interpreter, jit
    from triton.runtime.cache import triton_key

    # By its path, because this file may run without the package
    allocate = runpy.run_path(str(Path(__file__).with_name("allocation.py")))["allocate"]
except ImportError as error:
    if __name__ != "__main__":
        raise
    print(f'{sys.executable}: {error}. Install what is missing: pip install "tilescope[torch]"')
    sys.exit(2)

FORMAT = 1

# Maximum bytes of all arrays in the file.
_MOST_BYTES = 60 << 20

# Counts depend on addresses modulo this: see `kernels/atomics.py`.
_ADDRESS_RANGE = 1 << 29

# The environment variable with the id of the process that is being recorded.
RECORDED_PROCESS = "TILESCOPE_RECORDED_PROCESS"

# The number of an entry that is added to a list of the capture's JSON.
_END = sys.maxsize

# Maximum seconds of compiling a report's changed modules.
_RECOMPILE_S = 20

# Maximum number of autotuner configs to try until one compiles and fits, and of combinations in a sweep.
_MOST_CONFIGS = 8
_MOST_COMBINATIONS = 256

_TOO_LARGE = (
    f"Addresses depend on the values of {{}}. A capture keeps at most {_MOST_BYTES >> 20} MiB of values, so \
make the tensors smaller."
)

_IN_GRAPH = (
    "Addresses depend on the values of {}, which can't be copied while a CUDA graph records the launch. Launch \
the kernel outside the graph, too."
)

_NO_MODULE = "There is no module {} that `python -m` can run."

_POINTER_OPS = (
    "tt.load",
    "tt.store",
    "tt.atomic_rmw",
    "tt.atomic_cas",
    "ttg.async_copy_global_to_local",
)
_TMA_COPIES = r"ttng\.async_tma_(copy|store|gather|scatter|reduce)"
_NUMBERS = r"^(tensor<[\dx]+)?i\d+"
_BRANCHES = r"scf\.(if|for|condition|index_switch)$|cf\.cond_br$"
_INLINE_ASSEMBLY = re.compile(r"// begin inline asm\n.*?// end inline asm", re.DOTALL)
_LINE_MARKER = re.compile(r"\t\.loc\t.*\n")
_STORES = r"tt\.(store|atomic|descriptor_(store|scatter|reduce))|ttng\.async_tma_(copy_local|store|scatter|reduce)"

H200 = {
    "name": "H200", "device_name": "NVIDIA H200", "sms": 132, "compute_capability": [9, 0], "l2_bytes": 60 << 20,
    "shared_bytes_per_sm": 228 << 10, "shared_bytes_per_program": 227 << 10, "registers_per_sm": 65536,
    "max_warps_per_sm": 64, "clock_mhz": 1830, "dram_gbps": 4800, "bus_bits": 6144, "memory_gib": 141,
}  # fmt: skip

_ROWS = "crow_indices", "col_indices", "values"
_COLUMNS = "ccol_indices", "row_indices", "values"
_PARTS = {
    torch.sparse_coo: ("_indices", "_values"), torch.sparse_csr: _ROWS, torch.sparse_bsr: _ROWS,
    torch.sparse_csc: _COLUMNS, torch.sparse_bsc: _COLUMNS,
}  # fmt: skip

# IPython's syntax: a cell in another language; a magic or shell command with its continuation lines, or a question
# about a name; a magic that times a statement.
_OTHER_LANGUAGE = re.compile(r"\s*(%%(?!(?:time|timeit|capture|prun)\b).*)")
_MAGIC = re.compile(
    r"^(?P<indent>[ \t]*)(?:(?P<target>\w[\w., \t]*=[ \t]*)?(?P<magic>[%!](?:.*\\\n)*.*)"
    r"|(?:\?{1,2}[\w.]+|[\w.]+\?{1,2})[ \t]*$)",
    re.MULTILINE,
)
_TIMED = re.compile(
    r"%%?time(?:it)?\b(?:[ \t]+-(?:[nrp][ \t]*\d+|[tcqo]+))*[ \t]*(?P<statement>.*)", re.DOTALL
)

_RUN = jit.JITFunction.run


class HostRead(BaseException):
    """The script reads a result of a launch that did not run. `except Exception` in the script does not catch it."""


class UsageError(Exception):
    """The command line is wrong. The message is one sentence."""


# ---------------------------------------------------------------- what is recorded


# A launch's number, its kernel's function, its compiled kernel, and its JSON.
Launch = namedtuple("Launch", "number function compiled content")

# The layouts of the pointers of each operation on pointers, and numbers of arguments: those that are stored to, those
# that hold pointers to what is stored to, and those whose values addresses, masks or branches depend on.
Facts = namedtuple("Facts", "layouts stored tables needed")

# A program to run as `__main__`: its code objects, in order, and the module's attributes.
Program = namedtuple("Program", "codes attributes")


class Recorder:
    """Records launches while `recording` is active.

    Everything is written to `folder` at once, because the process may be killed at any time.

    Args:
        gpu: properties of the GPU to compile for.
        runs: "cuda" to launch on this machine's GPU, "interpreter", or "" to launch nothing.

    Attributes:
        configs: number of the autotuner config to pin, from 1, by kernel name.
        process: the process whose launches are recorded, and not those of its forks.
        context: JSON to add to the next launch.
        storages: number of storages so far.
        numbers: a storage's number and a weak reference to it, by device and address.
        unknown: by storage, the launch that did not run and on which its values depend.
        pointees: a launch that did not run, and the sorted addresses to which it would have stored.
        kernels, arrays: numbers by key.
        bases: the tensors of the launch being recorded, by storage.
        read: the JSON of the last read of a result that was not computed; None if there was none.
        is_timed: whether cases and `do_bench` calls are launched repeatedly on a GPU to time them.
    """

    def __init__(self, gpu: Mapping[str, Any], runs: str, folder: Path) -> None:
        self.gpu = gpu
        self.runs = runs
        self.configs = dict[str, int]()
        self.folder = folder
        self.process = os.getpid()
        self.journal = (folder / "journal").open("ab", buffering=0)
        self.launches = list[Launch]()
        self.storages = 0
        self.numbers = dict[tuple[str, int], tuple[int, StorageWeakRef]]()
        self.unknown = dict[int, str]()
        self.pointees = list[tuple[str, np.ndarray]]()
        self.kernels = dict[Any, int]()
        self.arrays = dict[bytes | str, int]()
        self.bases = dict[int, torch.Tensor]()
        self.context: dict[str, Any] = {"case": None, "tuned": None}
        self.read: dict[str, Any] | None = None
        self.is_paused = False
        self.is_timed = True
        self.write("gpu", gpu)

    def write(self, name: str, value: Any, number: int | None = None) -> None:
        """Write an entry of the capture's JSON, or replace a list from an element on."""
        self.journal.write(json.dumps([name, number, value]).encode() + b"\n")

    def note(self, text: str) -> None:
        """Add a sentence to `not_captured`."""
        self.write("not_captured", [text], _END)

    def keep(self, launch: Launch, **changes: Any) -> None:
        """Write a launch with changes to its JSON."""
        launch.content.update(changes)
        self.write("launches", [launch.content], launch.number)

    def drop(self, number: int) -> None:
        """Forget the launches from a number on."""
        del self.launches[number:]
        self.write("launches", [], number)

    def record(
        self, function: Any, arguments: Sequence[Any], grid: Any, keywords: Mapping[str, Any]
    ) -> tuple[Launch, dict[str, Any]]:
        """Compile and describe a launch. Return it and its arguments by name.

        Raises:
            OutOfResources: the kernel needs too much shared memory. `keep_failed` adds the error's `launch`.
        """
        values, options, sizes = bind(function, arguments, grid, keywords)
        with torch._C.DisableTorchFunction():
            stand_ins = {name: as_compiled(value) for name, value in values.items()}
            compiled = _RUN(function, grid=sizes, warmup=True, **stand_ins, **options)
            metadata = compiled.metadata
            config = {
                parameter.name: values[parameter.name]
                for parameter in function.params
                if parameter.is_constexpr
            }
            config |= {
                "num_warps": metadata.num_warps,
                "num_stages": getattr(metadata, "num_stages", None),
            }
            facts = read_ttgir(compiled.asm["ttgir"])
            content = {
                "grid": [*sizes, 1, 1][:3], "caller": _users_line(traceback.extract_stack()), **self.context,
                "config": {name: _plain(value) for name, value in config.items()},
                "ran": False, "elapsed_ms": None, "results": None, "kernel": self._keep_kernel(function, compiled),
                "arguments": describe_arguments(
                    function, stand_ins, options, self._describe_tensor, self.gpu["compute_capability"]
                ),
            }  # fmt: skip
            for number in facts.needed:
                argument = content["arguments"][number]
                if (tensor := _own_tensor(argument)) and tensor["is_known"]:
                    self._keep_values(argument["name"], tensor)
        self.bases.clear()
        launch = Launch(len(self.launches), function, compiled, content)
        limit = self.gpu["shared_bytes_per_program"]
        if metadata.shared > limit:
            error = OutOfResources(metadata.shared, limit, "shared memory")
            error.launch = launch
            raise error
        self._add(launch)
        return launch, values

    def _add(self, launch: Launch) -> None:
        self.launches.append(launch)
        self.keep(launch)

    def keep_failed(self, error: BaseException | None) -> None:
        """Add the launch that ended the script because it needs too much shared memory, if there is one.

        Scripts and tuners that handle the error launch something else, so theirs are not added.
        """
        while error:
            if launch := getattr(error, "launch", None):
                self._add(launch._replace(number=len(self.launches)))
            error = error.__cause__ or error.__context__

    def _describe_tensor(self, tensor: Any) -> dict[str, Any]:
        base = tensor.base
        storage = self.storage(tensor.base)
        self.bases[storage] = base
        return {
            "dtype": _dtype(tensor), "shape": list(base.shape), "strides": list(base.stride()), "storage": storage,
            "element_bytes": getattr(tensor.dtype, "itemsize", None) or base.element_size(),
            "is_known": not self.find_unknown(base), "offset_bytes": tensor.offset_bytes, "array": None,
        }  # fmt: skip

    def storage(self, tensor: torch.Tensor) -> int:
        """Return the number of a tensor's storage."""
        number, reference = self.numbers.get(_address(tensor), (0, None))
        if reference is None or reference.expired():  # a later storage may have the same address
            memory = tensor.untyped_storage()
            number = self.storages
            self.storages += 1
            self.numbers[_address(tensor)] = number, StorageWeakRef(memory)
            size = {"bytes": memory.nbytes(), "address_bytes": _start(tensor) % _ADDRESS_RANGE}
            self.write("storages", [size], number)
        return number

    def _keep_values(self, name: str, tensor: dict[str, Any]) -> None:
        """Copy the storage of an argument on whose values addresses, masks or branches depend."""
        base = self.bases[tensor["storage"]]
        memory = base.untyped_storage()
        dtype = base.dtype
        why = ""
        elements = np.empty(0)
        if tensor["dtype"] != _dtype(base):
            return
        if _is_graph(self):
            why = _IN_GRAPH.format(name)
        elif memory.nbytes() > _MOST_BYTES:
            why = _TOO_LARGE.format(f"{name}, {memory.nbytes() >> 20:,} MiB")
        else:
            flat = base.new_empty(0).set_(memory, 0, (memory.nbytes() // dtype.itemsize,), (1,))
            is_numpy = not dtype.is_floating_point or dtype in (
                torch.float16,
                torch.float32,
                torch.float64,
            )
            elements = flat.to("cpu", dtype if is_numpy else torch.float32).numpy()
        number = len(self.arrays)
        key = why or hashlib.blake2b(elements.data, key=tensor["dtype"].encode()).digest()
        tensor["array"] = self.arrays.setdefault(key, number)
        if tensor["array"] == number:
            np.save(self.folder / f"{number}.npy", elements, allow_pickle=False)
            self.write("arrays", [{"why_missing": why}], number)

    def _keep_kernel(self, function: Any, compiled: Any) -> int:
        """Return the number of a compiled kernel, and write its code."""
        number = len(self.kernels)
        if self.kernels.setdefault((function, compiled.hash), number) == number:
            for stage in {"ttir", "ttgir", "ptx"} & compiled.asm.keys():
                (self.folder / f"{number}.{stage}").write_text(compiled.asm[stage])
            (self.folder / f"{number}.cubin").write_bytes(compiled.asm["cubin"])
            self.write("kernels", [describe_kernel(compiled)], number)
        return self.kernels[function, compiled.hash]

    def find_unknown(self, values: Any) -> str:
        """Return the launch that did not run and that one of the tensors depends on; "" if there is none."""
        if not self.unknown and not self.pointees:
            return ""
        with torch._C.DisableTorchFunction():
            for tensor in _tensors(values):
                number, reference = self.numbers.get(_address(tensor), (-1, None))
                if number in self.unknown and reference and not reference.expired():
                    return self.unknown[number]
                start = tensor.untyped_storage().data_ptr()
                size = tensor.untyped_storage().nbytes()
                for launch, addresses in self.pointees:
                    first, last = np.searchsorted(addresses, (start, start + size))
                    if first < last:
                        return launch
        return ""

    def refuse_read(self, function: Any, launch: str) -> HostRead:
        """Return the exception for a function that reads a result of a launch that did not run."""
        line = _users_line(traceback.extract_stack())
        place = f"{Path(line['file']).name}:{line['line']}"
        message = f"{place} reads {_READ.format(function.__name__, launch)}"
        self.read = {**line, "kind": "host_read", "message": message}
        return HostRead(message)

    def mark_unknown(self, launch: Launch) -> None:
        """Remember the tensors that a launch would have stored to."""
        name = f"launch {launch.number} ({launch.function.__name__})"
        facts = read_ttgir(launch.compiled.asm["ttgir"])
        tensors = list(map(_own_tensor, launch.content["arguments"]))
        self.unknown |= {
            tensors[number]["storage"]: name for number in facts.stored if tensors[number]
        }
        for number in facts.tables:
            array = (tensors[number] or {}).get("array")
            if array is not None:
                self.pointees.append((name, np.sort(np.load(self.folder / f"{array}.npy"))))


def bind(
    function: Any, arguments: Sequence[Any], grid: Any, keywords: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], list[int]]:
    """Return a launch's arguments by name, the compiler's options, and the size of the grid."""
    names = function.arg_names
    bound = function.signature.bind(*arguments, **{k: v for k, v in keywords.items() if k in names})
    bound.apply_defaults()
    values = dict(bound.arguments)
    options = {k: v for k, v in keywords.items() if k not in names}
    sizes = grid(values) if callable(grid) else grid
    return values, options, [sizes] if isinstance(sizes, int) else [int(size) for size in sizes]


def describe_arguments(
    function: Any,
    values: Mapping[str, Any],
    options: Mapping[str, Any],
    describe_tensor: Callable[[Any], dict[str, Any]],
    capability: Sequence[int],
) -> list[dict[str, Any]]:
    """Return the JSON of the compiled function's arguments.

    Args:
        values: by parameter of the kernel, as from `as_compiled`.
        describe_tensor: returns the JSON of a tensor's stand-in.
    """
    *_, binder = function.device_caches[driver.active.get_current_device()]
    _, kinds, _ = binder(**values, **{"debug": False, "instrumentation_mode": "", **options})

    def describe(name: str, value: Any, kind: Any) -> Iterator[dict[str, Any]]:
        """Yield the arguments that come from one parameter."""
        if isinstance(kind, tuple):
            for number, (inner, inner_kind) in enumerate(zip(value, kind, strict=True)):
                yield from describe(f"{name}.{number}", inner, inner_kind)
        elif isinstance(value, _AlignedTensor):
            yield {"name": name, "tensor": describe_tensor(value)}
        elif type(value).__name__ == "TensorDescriptor":
            sizes = {"shape": list(map(int, value.shape)), "strides": list(map(int, value.strides))}
            scalars = [
                {"name": f"{name}.{side}.{i}", "value": size}
                for side, numbers in sizes.items()
                for i, size in enumerate(numbers)
            ]
            tensor = describe_tensor(value.base)
            if tuple(capability) >= (9, 0):
                block = list(value.block_shape)
                yield {
                    "name": name,
                    "descriptor": {"tensor": tensor, **sizes, "block_shape": block},
                }
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

    return [
        argument
        for (name, value), (kind, *_) in zip(values.items(), kinds, strict=True)
        for argument in describe(name, value, kind)
    ]


def check_output(path: Path) -> None:
    """Raise OSError if a file cannot be written."""
    is_new = not path.exists()
    path.open("ab").close()
    if is_new:
        path.unlink()


def write_capture(folder: Path, path: Path, script: str = "", status: int = 0) -> str:
    """Write a capture from the files of a recorder. Return "", or why nothing was captured.

    Args:
        status: the exit status of the recorder's process, or minus the signal that killed it.
    """
    content: dict[str, Any] = {
        "format": FORMAT, "triton": triton.__version__, "script": script, "cases": {}, "about": "", "stopped": None,
        "not_captured": [], "arrays": [], "kernels": [], "storages": [], "launches": [], "refused": "",
    }  # fmt: skip
    *lines, _ = (folder / "journal").read_bytes().split(b"\n")
    for name, number, value in map(json.loads, lines):
        if number is None:
            content[name] = value
        else:
            content[name][number:] = value
    content["not_captured"] = list(dict.fromkeys(content["not_captured"]))
    if content["refused"]:
        return content["refused"]
    if status and "is_complete" not in content:
        launches = content["launches"]
        before = f"; launches before that: {len(launches)}"
        end = _describe_exit(script, status, before)
        if status < 0:
            killed = f"{script} was killed by {signal.Signals(-status).name}{before}"
            end = {"kind": "exception", "message": killed}
        place = launches[-1]["caller"] if launches else {"file": "", "line": 0}
        content["stopped"] = {**place, **end}
    total = 0
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        sizes = {folder / f"{number}.npy": array for number, array in enumerate(content["arrays"])}
        for array_path in sorted(sizes, key=lambda array_path: array_path.stat().st_size):
            total += array_path.stat().st_size
            if total > _MOST_BYTES:
                sizes[array_path]["why_missing"] = _TOO_LARGE.format("several tensors")
            else:
                file.write(array_path, f"arrays/{array_path.name}")
        kernels = [
            (folder, number, kernel["file"]) for number, kernel in enumerate(content["kernels"])
        ]
        with ThreadPool() as pool:
            read = pool.starmap(_read_kernel, kernels)
            pool.close()
            pool.join()  # no thread may be left when `serve` forks
        for number, (resources, codes) in enumerate(read):
            content["kernels"][number] |= dict(
                zip(("registers", "spilled_bytes"), resources, strict=True)
            )
            for stage, code in codes.items():
                file.writestr(f"kernels/{number}.{stage}", code)
        file.writestr("capture.json", json.dumps(content))
    return ""


class _AlignedTensor:
    """A stand-in for a tensor or its wrapper during compilation. Triton's binder reads its dtype and address."""

    def __init__(self, tensor: Any) -> None:
        # Wrappers of Triton and FlagGems hold the tensor in these attributes
        base: Any = getattr(tensor, "base", getattr(tensor, "_base", None))
        self.dtype = tensor.dtype
        self.base = tensor if isinstance(tensor, torch.Tensor) else base
        self.offset_bytes = self.base.storage_offset() * self.base.element_size()
        self.offset_bytes += tensor.data_ptr() - self.base.data_ptr()
        self.data_ptr = _returning(_start(self.base) + self.offset_bytes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.base, name)


def as_compiled(value: Any) -> Any:
    """Return the stand-in that is passed to Triton's binder for an argument."""
    if type(value).__name__ == "TensorDescriptor":
        # Skips the constructor's alignment check, which host tensors may fail
        copy = object.__new__(type(value))
        copy.__dict__ |= {**value.__dict__, "base": _AlignedTensor(value.base)}
        return copy
    if isinstance(value, tuple):
        parts = [as_compiled(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return (
        _AlignedTensor(value) if hasattr(value, "data_ptr") and hasattr(value, "dtype") else value
    )


def _own_tensor(argument: dict[str, Any]) -> Any:
    return argument.get("tensor") or argument.get("descriptor", {}).get("tensor")


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
    return (
        value
        if isinstance(value, int | str | None)
        else str(getattr(value, "__name__", value))[:60]
    )


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors among values; for sparse tensors, their parts."""
    for value in tree_leaves(values):
        if isinstance(value, torch.Tensor):
            parts = [getattr(value, name)() for name in _PARTS.get(value.layout, ())] or [value]
            yield from filter(torch._C._has_storage, parts)


def _users_line(frames: Iterable[traceback.FrameSummary]) -> dict[str, Any]:
    """Return the innermost frame that is in the user's code."""
    folders = (f"{package.__path__[0]}/" for package in (torch, triton))
    skipped = [re.escape(prefix) for prefix in (__file__, "<frozen", "<string", *folders)]
    skipped.append(re.escape(str(Path(os.__file__).parent)) + "/(?!(site|dist)-packages/)")
    lines = [
        {"file": f.filename, "line": f.lineno}
        for f in frames
        if not re.match("|".join(skipped), f.filename)
    ]
    return lines[-1] if lines else {"file": "", "line": 0}


# ---------------------------------------------------------------- compiled code


@functools.cache
def read_ttgir(ttgir: str) -> Facts:
    """Return what a capture needs to know about a kernel.

    A layout is None for a scalar pointer. An argument counts as stored to if a store's pointer may derive from it.
    """
    context = ir.context()  # must outlive every object created from it
    ir.load_dialects(context)
    nvidia.load_dialects(context)
    with tempfile.NamedTemporaryFile("w", suffix=".ttgir") as file:
        Path(file.name).write_text(ttgir)
        module = ir.parse_mlir_module(file.name, context)
    builder = gluon_ir.GluonOpBuilder(context)
    layouts: list[dict[str, Any] | None] = []
    # The values from which a value derives: as a pointer, in addition as a number, and by a load from a pointer. What
    # enters or leaves a region passes through a node per type.
    sources, offsets, loads = (defaultdict[Any, set[Any]](set) for _ in range(3))
    stores = set[int]()
    roots = set[int]()

    def link(
        targets: Iterable[Any], origins: Iterable[Any], edges: dict[Any, set[Any]] = sources
    ) -> None:
        for target in targets:
            edges[target].update(origins)

    def visit(op: Any) -> None:
        name = op.get_name()
        block = op.get_block()
        operands = _values(op.get_operand, op.get_num_operands())
        results = _values(op.get_result, op.get_num_results())
        values = [value for value, _ in operands]
        made = [value for value, _ in results]
        if name in _POINTER_OPS:
            layouts.append(_layout(builder, op.get_operand(0)))
        if name in _POINTER_OPS or re.match(_TMA_COPIES, name):
            kinds = _NUMBERS if "tma" in name else "i1"
            roots.update(values[:1], (value for value, kind in operands if re.search(kinds, kind)))
        if re.match(_STORES, name):
            stores.update(values[:1])  # the op that waits for a store has no operand
        if re.match(_BRANCHES, name):
            roots.update(values[: 3 if name == "scf.for" else 1])
        if (
            name == "ttng.tensormap_create"
        ):  # writes a descriptor of its second operand to its first
            link(values[:1], values[1:2])
            roots.update(values)  # its shape and strides
        if block is not None:
            region = block.get_parent().id()
            for value, kind in _values(block.arg, block.get_num_arguments()):
                link([value], [(region, kind)])
            if name.endswith((".yield", ".condition", ".return")) or name.startswith("cf."):
                for value, kind in operands:
                    link([(region, kind)], [value])
        regions = []
        if name.startswith("scf."):
            regions = list(map(op.get_region, range(op.get_num_regions())))
        elif name == "tt.call":
            regions = [module.get_function(op.get_flat_symbol_ref_attr("callee")).get_region(0)]
        if regions:
            for value, kind in (*operands, *results):
                alike = [value, *((region.id(), kind) for region in regions)]
                link(alike, alike)
            return
        shared = [value for value, kind in operands if "memdesc" in kind]
        # A view shares its memory
        made = made + shared if name.startswith("ttg.memdesc_") else made or shared
        if name in _POINTER_OPS or name.startswith("ttng.async_tma_copy_global"):
            link(made, values[:1], loads)
        if name == "tt.addptr" or name in _POINTER_OPS:
            link(made, values, offsets)
            # An offset, and the address of a loaded value, are not the result's origin.
            values = values[: name == "tt.addptr"]
        link(made, values)

    def reach(values: Iterable[Any], *edges: Mapping[Any, set[Any]]) -> set[Any]:
        reached = set()
        todo = list(values)
        while todo:
            if (value := todo.pop()) not in reached:
                reached.add(value)
                todo += itertools.chain(*(each.get(value, ()) for each in edges))
        return reached

    def find_arguments(values: set[Any]) -> list[int]:
        return [number for number in range(count) if function.args(number).id() in values]

    module.walk(visit)
    function = module.get_function(module.get_entry_func_name())
    count = len(module.get_function_signature(function))
    stored = reach(stores, sources)
    loaded = (
        itertools.chain(*map(loads.__getitem__, v))
        for v in (stored, reach(roots, sources, offsets))
    )
    return Facts(
        layouts, *map(find_arguments, (stored, *(reach(pointers, sources) for pointers in loaded)))
    )


def keep_source_lines(backend: Any = None, stages: Any = None, *_: Any) -> tuple[str, str]:
    """Change the PTX before ptxas reads it: all lines of inline assembly belong to the source line of their operation.

    From Triton 3.8 on, LLVM assigns the second line of inline assembly to the next source line, and so on. The SASS
    would name that line. This is a value of `triton.knobs.runtime.add_stages_inspection_hook`, which returns a key.
    """

    def make_ptx(*arguments: Any) -> str:
        ptx = make_shifted(*arguments)
        return _INLINE_ASSEMBLY.sub(lambda assembly: _LINE_MARKER.sub("", assembly[0]), ptx)

    if stages:
        make_shifted = stages["ptx"]
        stages["ptx"] = make_ptx
    return "source lines", "source lines"


# If unneeded, it would bypass the cache of the kernels that the user has compiled.
STAGES_HOOK = keep_source_lines if VERSION >= (3, 8) else None


def _values(get: Callable[[int], Any], count: int) -> list[tuple[int, str]]:
    """Return the ids and types of values of the IR."""
    return [(value.id(), str(value.get_type())) for value in map(get, range(count))]


def _layout(builder: Any, pointer: Any) -> dict[str, Any] | None:
    match = re.match(r"tensor<((?:\d+x)+)", str(pointer.get_type()))
    if match is None:
        return None
    shape = [int(size) for size in match[1][:-1].split("x")]
    layout = builder.to_linear_layout(
        builder.get_gluon_layout_from_tensor(pointer)._to_ir(builder), shape
    )
    return {
        "shape": shape,
        "register": layout.reg_bases,
        "lane": layout.lane_bases,
        "warp": layout.warp_bases,
    }


def _run_tool(name: str, code: bytes, *flags: str) -> str:
    """Return the messages of one of the CUDA tools in Triton's wheel for a file; "" if the tool is missing."""
    with tempfile.NamedTemporaryFile() as file, contextlib.suppress(OSError, AttributeError):
        Path(file.name).write_bytes(code)
        command = [getattr(triton.knobs.nvidia, name).path, *flags, file.name]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.stdout + done.stderr
    return ""


@functools.lru_cache(64)
def _disassemble(cubin: bytes) -> str:
    return _run_tool("nvdisasm", cubin, "-g", "-c", "-ndf")


@functools.lru_cache(64)
def read_resources(cubin: bytes) -> tuple[int, int]:
    """Return a kernel's registers and spilled bytes, both per thread."""
    usage = _run_tool("cuobjdump", cubin, "--dump-resource-usage")
    used = {name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    has_stack = used.get("STACK", 0) + used.get("LOCAL", 0)
    spilled = _count_spilled_bytes(_disassemble(cubin)) if has_stack else 0
    return max(16, used.get("REG", 0)), spilled


def _count_spilled_bytes(sass: str) -> int:
    """Return the bytes of the stores to the stack that are reloaded, as ptxas counts them.

    A stack frame may also hold arrays, such as a table of `sin`, which other registers than R1 index.
    """
    slots: dict[str, list[range]] = {"STL": [], "LDL": []}
    for name, suffixes, start in re.findall(
        r"\b(STL|LDL)([.\w]*) [^;]*\[R1(?:\+(0x[0-9a-f]+))?\]", sass
    ):
        widths = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}
        width = next((widths[each] for each in suffixes.split(".") if each in widths), 4)
        first = int(start or "0", 16)
        slots[name].append(range(first, first + width))
    reloaded = set().union(*slots["LDL"])
    return sum(len(slot) for slot in slots["STL"] if not reloaded.isdisjoint(slot))


def describe_kernel(compiled: Any) -> dict[str, Any]:
    """Return the JSON of a compiled kernel, without its resources."""
    metadata = compiled.metadata
    function = compiled.src.fn.fn
    source, line = inspect.getsourcelines(function)
    codes = compiled.asm
    options = {k: v for k, v in metadata._asdict().items() if isinstance(v, int | str)}
    # The metadata's number includes the warps that specialization adds
    options["num_warps"] = int(re.findall(r'"ttg.num-warps" = (\d+)', codes["ttgir"])[0])
    capability = metadata.target.arch
    return {
        "name": function.__name__, "file": inspect.getsourcefile(function) or "", "line": line,
        "source": "".join(source), "shared_bytes": metadata.shared, "num_warps": metadata.num_warps,
        "num_ctas": metadata.num_ctas, "layouts": read_ttgir(compiled.asm["ttgir"]).layouts,
        "options": options, "allocation": allocate(codes["ttgir"], codes.get("ttir", ""), capability, options),
    }  # fmt: skip


def _read_kernel(folder: Path, number: int, file: str) -> tuple[tuple[int, int], dict[str, str]]:
    """Return a kernel's registers and spilled bytes, and its TTIR (unless Gluon made it), TTGIR, PTX and SASS."""
    paths = ((stage, folder / f"{number}.{stage}") for stage in ("ttir", "ttgir", "ptx"))
    codes = {stage: path.read_text() for stage, path in paths if path.exists()}
    cubin = (folder / f"{number}.cubin").read_bytes()
    resources = read_resources(cubin)
    codes["sass"] = _disassemble(cubin)
    new = Path(file).name
    compiled_from = re.search(r'^#loc = loc\("([^"]+)":', codes["ttgir"], re.MULTILINE)
    if (
        compiled_from and new not in codes["ttgir"]
    ):  # Triton's cache knows the same source in another file
        codes = {
            stage: code.replace(Path(compiled_from[1]).name, new) for stage, code in codes.items()
        }
    return resources, codes


def recompile(modules: Sequence[Mapping[str, Any]], capability: int) -> list[dict[str, Any] | None]:
    """Compile TTIR modules, each with its options. Return {} for one that fails, None for a timeout."""
    deadline = time.monotonic() + _RECOMPILE_S + 2 * len(modules)
    replies: list[dict[str, Any] | None] = []
    workers = min(os.cpu_count() or 1, len(modules))
    # Threads may deadlock in Triton.
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        results = [pool.apply_async(_recompile_one, (module, capability)) for module in modules]
        for result in results:
            try:
                replies.append(result.get(max(0, deadline - time.monotonic())))
            except multiprocessing.TimeoutError:
                replies.append(None)
            except Exception:  # the compiler can raise any type
                replies.append({})
    return replies


def _recompile_one(module: Mapping[str, Any], capability: int) -> dict[str, Any]:
    triton.knobs.runtime.add_stages_inspection_hook = STAGES_HOOK
    with tempfile.NamedTemporaryFile("w", suffix=".ttir") as file:
        Path(file.name).write_text(module["ttir"])
        target = GPUTarget("cuda", capability, 32)
        with contextlib.redirect_stdout(None):  # Triton prints the PTX if ptxas fails
            compiled = triton.compile(file.name, target=target, options=module["options"])
    codes = {stage: compiled.asm[stage] for stage in ("ttgir", "ptx")}
    codes["sass"] = _disassemble(compiled.asm["cubin"])
    registers, spilled = read_resources(compiled.asm["cubin"])
    return {
        "registers": registers, "spilled_bytes": spilled, "shared_bytes": compiled.metadata.shared,
        "num_warps": compiled.metadata.num_warps, "layouts": read_ttgir(codes["ttgir"]).layouts, "codes": codes,
        "allocation": None,
    }  # fmt: skip


# ---------------------------------------------------------------- launches


def _relaunch(self: Any, grid: Any) -> Callable[..., None]:
    """Redirect a direct launch of a compiled kernel to its jitted function, so that the launch is recorded."""

    def launch(*arguments: Any, **_: Any) -> None:
        function = self.src.fn
        values = {
            function.arg_names[path[0]]: value
            for path, value in self.src.constants.items()
            if len(path) == 1
        }
        free = [parameter.name for parameter in function.params if not parameter.is_constexpr]
        # Constants may be left out
        names = free if len(arguments) == len(free) else function.arg_names
        options = {
            name: getattr(self.metadata, name) for name in ("num_warps", "num_stages", "num_ctas")
        }
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


def _is_graph(recorder: Recorder) -> bool:
    return recorder.runs == "cuda" and torch.cuda.is_current_stream_capturing()


def _launch(
    recorder: Recorder, function: Any, arguments: Sequence[Any], grid: Any, keywords: dict[str, Any]
) -> Any:
    """Record a launch, and run it on the GPU or in the interpreter if the recorder does so."""
    launch, values = recorder.record(function, arguments, grid, keywords)
    if recorder.runs == "cuda":
        run = functools.partial(_RUN, function, *arguments, grid=grid, warmup=False, **keywords)
        if not _is_graph(recorder):
            return _run_and_time(recorder, launch, run)
        recorder.note(
            "Launches captured into a CUDA graph were recorded once, without times. Replays were not recorded."
        )
        return run()
    tensors = filter(None, map(_own_tensor, launch.content["arguments"]))
    if recorder.runs and all(tensor["is_known"] for tensor in tensors):
        try:
            _interpret(launch, values)
            recorder.keep(launch, ran="interpreter")
        except Exception as error:
            recorder.note(
                f"{function.__name__} did not run in the interpreter: {_summarize(error)}"
            )
    if not launch.content["ran"]:
        recorder.mark_unknown(launch)
    return launch.compiled


def _run_and_time(recorder: Recorder, launch: Launch, run: Callable[[], Any]) -> Any:
    """Launch on the GPU and wait for completion, so that a fault is attributed to this launch."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.current_stream().synchronize()  # a fault of earlier work appears here
    launch.compiled._init_handles()  # load the code now, so that the first launch's time excludes it
    try:
        start.record()
        kernel = run()
        end.record()
        end.synchronize()
    except Exception as error:
        name = f"launch {launch.number} ({launch.function.__name__})"
        error.__notes__ = [name]
        recorder.note(f"{name.capitalize()} failed: {_summarize(error)}")
        raise
    recorder.keep(launch, ran="cuda", elapsed_ms=start.elapsed_time(end))
    return kernel


def _interpret(launch: Launch, values: Mapping[str, Any]) -> None:
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
    grid = tuple(launch.content["grid"])
    with mock.patch.object(jit.JITFunction, "__call__", call), torch._C.DisableTorchFunction():
        interpreted.run(grid=grid, warmup=False, **values)


@contextlib.contextmanager
def recording(
    folder: Path, gpu: Mapping[str, Any] = H200, runs: str = "", tunes: bool = False
) -> Iterator[Recorder]:
    """Record all Triton launches in a folder, from which `write_capture` makes a capture.

    Unless `runs` is "cuda", tensors in host memory report a CUDA device.

    Args:
        tunes: whether autotuners search as usual; otherwise they launch their first config.
    """
    recorder = Recorder(gpu, runs, folder)

    @functools.wraps(_RUN)
    def run(self: Any, *arguments: Any, grid: Any, warmup: bool, **keywords: Any) -> Any:
        is_child = os.getpid() != recorder.process
        if is_child:
            recorder.note("Launches in processes that the script started were not recorded.")
        if warmup or recorder.is_paused or is_child:
            launches_nothing = warmup or (is_child and runs != "cuda")
            return _RUN(self, *arguments, grid=grid, warmup=launches_nothing, **keywords)
        for hook in self.pre_run_hooks:
            hook(*arguments, **keywords)
        return _launch(recorder, self, arguments, grid, keywords)

    def run_generated(
        self: Any, *arguments: Any, stream: Any, **keywords: Any
    ) -> Any:  # Inductor's code
        config = self.configs[0]
        arguments, grid = self._interpret_args_grid(arguments, config)
        options = {name: getattr(config, name) for name in ("num_warps", "num_stages")}
        return self.fn[grid](*arguments, **keywords, **config.kwargs, **options)

    def compile_nothing(model: Any = None, **_: Any) -> Any:
        recorder.note("Functions passed to torch.compile ran uncompiled.")
        return (lambda function: function) if model is None else model

    tuners: list[Any] = [Autotuner]
    for tuner in tuners:
        tuners += tuner.__subclasses__()
    pinned = functools.partialmethod(_run_pinned, recorder)
    search = Autotuner._bench

    def bench(*arguments: Any, **keywords: Any) -> Any:
        if not tunes:
            return [0.0] * 3  # a tuner with its own search picks its first config
        with mock.patch.object(recorder, "is_paused", True):
            return search(*arguments, **keywords)

    replaced: list[tuple[Any, str, Any]] = [
        (jit.JITFunction, "run", run),
        (Autotuner, "_bench", bench),
        (triton.knobs.runtime, "add_stages_inspection_hook", STAGES_HOOK),
    ]
    if not tunes:
        replaced += [(tuner, "run", pinned) for tuner in tuners if "run" in tuner.__dict__]
    replaced += [(CompiledKernel, "__getitem__", _relaunch), (torch, "compile", compile_nothing)]
    for name in ("do_bench", "do_bench_cudagraph"):
        replaced.append(
            (triton.testing, name, _measure_once(recorder, getattr(triton.testing, name)))
        )
    with recorder.journal, contextlib.ExitStack() as stack:

        def pin_subclass(tuner: type) -> None:  # of a library that the script imports
            if issubclass(tuner, Autotuner) and "run" in tuner.__dict__ and not tunes:
                stack.enter_context(mock.patch.object(tuner, "run", pinned))
            elif tuner.__name__ == "CachingAutotuner":
                stack.enter_context(
                    mock.patch.multiple(tuner, run=run_generated, precompile=_returning(None))
                )

        replaced.append((jit.KernelInterface, "__init_subclass__", classmethod(pin_subclass)))
        variables = {"TORCH_COMPILE_DISABLE": "1", RECORDED_PROCESS: str(os.getpid())}
        stack.enter_context(mock.patch.dict(os.environ, variables))
        for owner, name, value in [
            *replaced,
            *(_gpu_stand_ins(recorder) if runs != "cuda" else ()),
        ]:
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
            raise UsageError(
                f"--config {name}={number}: {name} has configs 1 to {len(self.configs)}."
            )
        configs = [self.configs[number - 1]]
    count = len(recorder.launches)
    configs = configs[:_MOST_CONFIGS]
    for place, config in enumerate(configs, start=1):
        self.best_config = config
        values = config.all_kwargs()
        if len(self.configs) > 1 and (conflicts := keywords.keys() & config.kwargs.keys()):
            raise ValueError(
                f"Conflicting meta-parameters: {', '.join(conflicts)}. Make sure that you don't re-define auto-tuned "
                "symbols."
            )
        if config.pre_hook is not None:
            config.pre_hook({**self.nargs, **keywords, **values})
        number = self.configs.index(config) + 1 if config in self.configs else place
        tuned = {
            "tuned": {
                "number": number,
                "of": len(self.configs),
                "restored": _restored(self, config),
            }
        }
        tuned = tuned if len(self.configs) > 1 else {}
        try:
            with mock.patch.object(recorder, "context", {**recorder.context, **tuned}):
                return self.fn.run(*arguments, **keywords, **values)
        except Exception:
            if place == len(configs):
                raise
            recorder.drop(count)


def _restored(tuner: Any, config: Any) -> list[str] | None:
    """Return the arguments that a tuner resets before each run; None if a hook of the user's may do so."""
    if config.pre_hook or getattr(tuner, "user_defined_pre_hook", False):
        return None
    return [*getattr(tuner, "reset_to_zero", ()), *getattr(tuner, "restore_value", ())]


# ---------------------------------------------------------------- a machine without a GPU

_READ = (
    "a tensor (with {}) that depends on {}, which did not run. Pass --values (in Python, values=True) to run launches "
    "in the interpreter."
)
_CUDA = torch.device("cuda", 0)
_T: Any = torch.Tensor
_ANSWERS = {
    _T.device.__get__: _CUDA, _T.is_cuda.__get__: True, _T.is_cpu.__get__: False, _T.get_device: 0,
    _T.is_pinned: False, _T.record_stream: None,
}  # fmt: skip
_READS = set()
for _name in (
    "item", "tolist", "numpy", "__dlpack__", "__bool__", "__int__", "__float__", "__index__", "__array__",
    "nonzero", "argwhere", "unique", "unique_consecutive", "bincount", "masked_select", "repeat_interleave", "equal",
    "allclose", "to_sparse", "to_sparse_csr", "to_sparse_csc", "to_sparse_bsr", "to_sparse_bsc",
):  # fmt: skip
    _READS |= {getattr(owner, _name, None) for owner in (torch, _T)}


def _on_cpu(value: Any) -> Any:
    is_cuda = isinstance(value, str | torch.device) and re.fullmatch(r"cuda(:\d+)?", str(value))
    return torch.device("cpu") if is_cuda else value


class _AsIfCuda(torch.overrides.TorchFunctionMode):
    """Make tensors report a CUDA device. Tensors created on or moved to the GPU stay in host memory."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, function: Any, kinds: Any, arguments: Any = (), keywords: Any = None
    ) -> Any:
        __tracebackhide__ = True  # pytest omits this frame
        keywords = keywords or {}
        if function in _ANSWERS:
            return _ANSWERS[function]
        if function in (_T.cuda, _T.pin_memory):
            return arguments[0]
        if function is torch.device:
            return _CUDA if arguments == (0,) else function(*arguments, **keywords)
        recorder = self._recorder
        options: dict[str, Any] = {
            name: name != "pin_memory" and _on_cpu(value) for name, value in keywords.items()
        }
        if type(options.get("device")) is int:
            options["device"] = "cpu"
        if function is _T.to and type(arguments[-1]) is int:
            return arguments[0]
        launch = recorder.find_unknown((arguments, options))
        if not launch:
            return function(*map(_on_cpu, arguments), **options)
        if function in (_T.__repr__, _T.__format__):
            return f"<unknown: {launch} did not run>"
        is_selection = function is torch.where and len(arguments) + len(options) == 1
        if function is _T.__getitem__:
            masks = [tensor for tensor in _tensors(arguments[1:]) if tensor.dtype == torch.bool]
            is_selection = bool(recorder.find_unknown(masks))
        if function in _READS or is_selection:
            raise recorder.refuse_read(function, launch)
        try:
            result = function(*map(_on_cpu, arguments), **options)
        except (
            IndexError,
            RuntimeError,
        ) as error:  # an index from a launch that did not run may be out of range
            raise recorder.refuse_read(function, launch) from error
        with torch._C.DisableTorchFunction():
            recorder.unknown |= {recorder.storage(tensor): launch for tensor in _tensors(result)}
        return result


class _Stub(contextlib.ContextDecorator, contextlib.nullcontext[None]):
    """A stand-in for a driver, stream, event or guard. Its methods return the given values, or None."""

    cuda_stream = 0
    device = _CUDA
    utils = None
    # Inductor's code replaces a driver of another class
    __class__ = property(lambda self: CudaDriver)

    def __init__(self, *_: Any, **answers: Any) -> None:
        self._answers = {"elapsed_time": 1.0, "query": True, **answers}

    def __getattr__(self, name: str) -> Any:
        return _returning(self._answers.get(name))


class _Generator(torch.Generator):
    """A stand-in for a CUDA random number generator. Libraries read and advance its state: seed and offset."""

    offset = 0
    device = _CUDA

    def __new__(cls, *_: Any, **__: Any) -> Any:
        return super().__new__(cls)

    def get_state(self) -> torch.Tensor:
        return torch.tensor([self.initial_seed(), self.offset]).view(torch.uint8)

    def set_state(self, new_state: torch.Tensor) -> torch.Generator:
        seed, self.offset = new_state.view(torch.int64).tolist()
        return self.manual_seed(seed)


def _gpu_stand_ins(recorder: Recorder) -> Iterator[tuple[Any, str, Any]]:
    """Yield replacements, (owner, name, value), that make torch and Triton appear to have the recorder's GPU."""
    gpu = recorder.gpu
    generator = _Generator()
    (major, minor) = recorder.gpu["compute_capability"]
    arch = 10 * major + minor
    # Kernels keep their code by device: a recording for another GPU, or a launch on this machine's, needs other code.
    active: Any = _Stub(
        get_current_target=GPUTarget("cuda", arch, 32), get_device_capability=(major, minor),
        get_current_device=arch, get_current_stream=0, get_device_interface=torch.cuda, get_active_torch_device=_CUDA,
    )  # fmt: skip
    memory_bytes = gpu["memory_gib"] << 30
    clock_khz = round(1000 * gpu["clock_mhz"])
    memory_clock_khz = round(4e6 * gpu["dram_gbps"] / gpu["bus_bits"])  # two transfers per clock
    active.utils = _Stub(cuOccupancyMaxActiveClusters=gpu["sms"], get_device_properties={
        "max_shared_mem": gpu["shared_bytes_per_program"], "max_num_regs": gpu["registers_per_sm"], "warpSize": 32,
        "multiprocessor_count": gpu["sms"], "sm_clock_rate": clock_khz, "mem_clock_rate": memory_clock_khz,
        "mem_bus_width": gpu["bus_bits"],
    })  # fmt: skip
    properties = types.SimpleNamespace(
        name=gpu["device_name"], major=major, minor=minor, multi_processor_count=gpu["sms"], warp_size=32,
        total_memory=memory_bytes, max_threads_per_multi_processor=32 * gpu["max_warps_per_sm"], gcnArchName="",
        max_threads_per_block=1024, regs_per_multiprocessor=gpu["registers_per_sm"], shared_memory_per_block=49152,
        L2_cache_size=gpu["l2_bytes"], shared_memory_per_block_optin=gpu["shared_bytes_per_program"],
        is_integrated=0, shared_memory_per_multiprocessor=gpu["shared_bytes_per_sm"], clock_rate=clock_khz,
        memory_clock_rate=memory_clock_khz, memory_bus_width=gpu["bus_bits"],
    )  # fmt: skip
    answers = {
        "is_available": True, "device_count": 1, "current_stream": _Stub(), "default_stream": _Stub(),
        "is_current_stream_capturing": False, "_get_device_index": 0, "mem_get_info": (memory_bytes, memory_bytes),
        "get_device_properties": properties, "get_arch_list": [f"sm_{major}{minor}"],
    }  # fmt: skip
    run_backward = torch.autograd._engine_run_backward
    implement = torch.library.Library.impl
    custom_op = torch.library.custom_op
    set_default_device = DeviceContext.__init__
    run_thread = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]
    report_exception = threading.excepthook
    new_shared = torch.UntypedStorage._new_shared
    fork = multiprocessing.context.ForkProcess._Popen

    def run_backward_as_if_cuda(*arguments: Any, **keywords: Any) -> Any:
        with _AsIfCuda(recorder):  # user code runs inside, and autograd turns the mode off there
            return run_backward(*arguments, **keywords)

    def run_thread_as_if_cuda(self: Any) -> None:
        with _AsIfCuda(recorder):
            run_thread(self)

    def report_read(failure: Any) -> None:
        if issubclass(failure.exc_type, HostRead):
            recorder.note(str(failure.exc_value))
        else:
            report_exception(failure)

    def answer_zero(name: str) -> Any:
        if not name.startswith("_cuda_"):
            raise AttributeError(f"module 'torch._C' has no attribute {name!r}")
        return _returning(int(name == "_cuda_getDeviceCount"))

    def implement_on_cpu(
        self: Any, op: Any, function: Any, dispatch_key: str = "", **keywords: Any
    ) -> Any:
        if (dispatch_key or self.dispatch_key) == "CUDA" and self.ns not in (
            "aten",
            "_inductor_test",
            "fsdp",
        ):
            with contextlib.suppress(Exception):
                implement(self, op, function, "CPU", **keywords)
        return implement(self, op, function, dispatch_key, **keywords)

    class Graph(_Stub):
        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__()
            recorder.note(
                "The code in a CUDA graph ran once, without a graph. Replaying the graph launched nothing."
            )

    def make_graphed(calls: Any, *_: Any, **__: Any) -> Any:
        Graph()
        return calls

    yield driver, "_active", active
    yield from ((torch.cuda, name, _returning(value)) for name, value in answers.items())
    kinds = "device", "device_of", "_DeviceGuard", "stream", "Stream", "Event"
    yield from ((torch.cuda, name, _Stub) for name in kinds)
    yield torch.cuda, "default_generators", (generator,)
    yield torch.cuda, "_initialized", True
    yield torch._C, "__getattr__", answer_zero
    yield threading.Thread, "_bootstrap_inner", run_thread_as_if_cuda
    yield threading, "excepthook", report_read
    yield multiprocessing.context.SpawnProcess, "_Popen", staticmethod(fork)
    for owner in (torch.cuda, torch.cuda.graphs):
        yield owner, "CUDAGraph", Graph
        yield owner, "graph", _Stub
        yield owner, "graph_pool_handle", _returning((0, 0))
        yield owner, "make_graphed_callables", make_graphed
    yield torch.cuda.nvtx, "_nvtx", _Stub()
    yield (
        DeviceContext,
        "__init__",
        lambda self, device: set_default_device(self, _on_cpu(torch.device(device))),
    )
    yield torch, "Generator", _Generator
    yield torch.UntypedStorage, "_new_shared", staticmethod(lambda size, **_: new_shared(size))
    yield torch.serialization, "_get_restore_location", _returning(lambda storage, _: storage)
    guards: Any = torch._C._dynamo.guards
    yield guards, "_empty_strided_cuda", guards._empty_strided_cpu
    yield CompiledKernel, "_init_handles", _returning(None)
    yield (
        CompiledKernel,
        "n_regs",
        property(lambda self: read_resources(self.kernel)[0]),
    )
    in_registers = property(lambda self: read_resources(self.kernel)[1] // 4)
    yield CompiledKernel, "n_spills", in_registers
    yield torch.version, "cuda", torch.version.cuda or "13.0"
    yield torch_triton, "has_triton", _returning(True)
    yield torch.autograd, "_engine_run_backward", run_backward_as_if_cuda
    yield torch.library.Library, "impl", implement_on_cpu
    yield (
        torch.library,
        "custom_op",
        lambda *names, device_types=None, **options: custom_op(*names, **options),
    )


# ---------------------------------------------------------------- scripts and cases


def parse_settings(
    settings: Iterable[str], case: str, defaults: Mapping[str, Any]
) -> dict[str, list[Any]]:
    """Return the values of the parameters that `--set` changes, with the type of their defaults."""
    result = {}
    for setting in settings:
        name, _, texts = setting.partition("=")
        if name not in defaults:
            allowed = ", ".join(defaults) or "none"
            raise UsageError(
                f"--set {setting}: {case} has no parameter {name!r}. It has {allowed}."
            )
        default = defaults[name]
        kind = type(defaults[name])
        values: list[Any] = texts.split(",")
        if kind is not str:
            with contextlib.suppress(ValueError, SyntaxError):
                values = [
                    ast.literal_eval(text.capitalize() if kind is bool else text) for text in values
                ]
        if any(type(value) is not kind for value in values):
            allowed = (
                "True or False"
                if kind is bool
                else f"a value of type {kind.__name__}, such as {default!r}"
            )
            raise UsageError(f"--set {setting}: {name} must be {allowed}.")
        result[name] = values
    return result


def run_case(recorder: Recorder, name: str, function: Any, settings: Mapping[str, Any]) -> None:
    """Launch a case. If it ran, compare its outputs with the expected ones and, on a GPU, time it."""
    recorder.context = {"case": name, "tuned": None, "settings": settings}
    count = len(recorder.launches)
    returned = function(**settings)
    parts = returned if isinstance(returned, tuple) else ()
    is_launch = (
        3 <= len(parts) <= 4
        and hasattr(parts[0], "run")
        and all(isinstance(p, dict) for p in parts[2:])
    )
    if not (is_launch and set(parts[-1]) <= set(parts[2])):
        if len(recorder.launches) == count:
            raise UsageError(
                f"{name} must launch a kernel, or return (kernel, grid, arguments) or (kernel, grid, arguments, "
                "expected), where expected maps argument names to expected results."
            )
        return
    kernel, grid, keywords, *expected = parts
    caller = {
        "file": inspect.getsourcefile(function) or "",
        "line": inspect.getsourcelines(function)[1],
    }
    recorder.context |= {"caller": caller}
    kernel[grid](**keywords)
    launch = recorder.launches[-1]
    if expected and launch.content["ran"]:
        results = {
            output: compare(keywords[output], result) for output, result in expected[0].items()
        }
        recorder.keep(launch, results=results)
    if launch.content["ran"] == "cuda" and recorder.is_timed:
        call = functools.partial(kernel[grid], **keywords)
        with mock.patch.object(recorder, "is_paused", True):
            recorder.keep(launch, elapsed_ms=triton.testing.do_bench(call, return_mode="median"))


def run_sweep(
    recorder: Recorder, name: str, function: Any, values: Mapping[str, Sequence[Any]]
) -> None:
    """Launch a case for each combination of its parameters' values. Failures are listed in `not_captured`."""
    combinations = [
        dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())
    ]
    if len(combinations) > _MOST_COMBINATIONS:
        raise UsageError(
            f"--set gives {len(combinations):,} combinations; at most {_MOST_COMBINATIONS} are run."
        )
    for settings in combinations:
        try:
            run_case(recorder, name, function, settings)
        except Exception as error:
            if len(combinations) == 1:
                raise
            chosen = " ".join(f"{parameter}={value}" for parameter, value in settings.items())
            recorder.note(f"{chosen}: {_summarize(error)}")


def compare(result: torch.Tensor, reference: torch.Tensor) -> dict[str, Any]:
    """Return the errors of an output. It passes if its relative RMS error is at most 8 × its dtype's epsilon."""
    difference = result.double() - reference.double()
    scale = float(reference.double().square().mean().sqrt()) or 1.0
    rms = float(difference.square().mean().sqrt()) / scale
    most = float(difference.abs().max())
    epsilon = torch.finfo(result.dtype).eps if result.dtype.is_floating_point else 0.0
    return {"relative_rms": rms, "max_abs_error": most, "passed": rms <= 8 * epsilon}


def read_program(recorder: Recorder, target: str, is_module: bool) -> Program:
    """Compile a script, a notebook or a module, and put its folder on the path, as Python does."""
    path = Path(target).resolve()
    if not (is_module or path.is_file()):
        raise UsageError(f"There is no script {target}.")
    if not sys.flags.safe_path:
        sys.path.insert(0, str(Path.cwd() if is_module else path.parent))
    spec = _find_module(target) if is_module else None
    try:
        if spec is not None:
            code = spec.loader.get_code(spec.name)
            if code is None:  # it is not written in Python
                raise UsageError(_NO_MODULE.format(target))
            names = "__spec__", "__file__", "__package__", "__loader__"
            values = spec, spec.origin, spec.parent, spec.loader
            return Program([code], dict(zip(names, values, strict=True)))
        if path.suffix == ".ipynb":

            def get_ipython() -> _Stub:
                recorder.note("Calls of get_ipython's methods did nothing.")
                return _Stub()

            attributes = {"display": print, "get_ipython": get_ipython}
            return Program(_compile_cells(recorder, path), attributes)
        code = compile(path.read_bytes(), str(path), "exec")
        return Program([code], {"__file__": str(path)})
    except (SyntaxError, ValueError) as error:
        is_notebook = path.suffix == ".ipynb" and isinstance(error, ValueError)
        kind = "a notebook" if is_notebook else "Python"
        raise UsageError(f"{target} is not {kind}: {error}.") from None


def _find_module(name: str) -> Any:
    """Return the spec of what `python -m` runs: a module, or the `__main__` of a package."""
    try:
        spec = find_spec(name) if all(name.split(".")) else None  # no relative name
        if spec and spec.submodule_search_locations is not None:
            spec = find_spec(f"{name}.__main__")
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):  # an import in its package failed
            raise
        spec = None
    if spec is None:
        raise UsageError(_NO_MODULE.format(name))
    return spec


def _compile_cells(recorder: Recorder, path: Path) -> list[types.CodeType]:
    """Compile a notebook's code cells. A cell's file name is the notebook's with the number that Jupyter gives it."""
    codes = list[types.CodeType]()
    notebook = json.loads(path.read_bytes())
    if not isinstance(notebook, dict) or "cells" not in notebook:
        raise ValueError("it has no cells")
    for cell in notebook["cells"]:
        text = "".join(cell.get("source", ""))
        if cell.get("cell_type") == "code" and text.strip():
            codes.append(_compile_cell(recorder, text, f"{path}[{len(codes) + 1}]"))
    return codes


def _compile_cell(recorder: Recorder, text: str, name: str) -> types.CodeType:
    compile_cell = functools.partial(
        compile, filename=name, mode="exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    )
    try:
        code = compile_cell(text)
    except SyntaxError:
        text = _translate_magics(recorder, text)
        try:
            code = compile_cell(text)
        except SyntaxError as error:
            place = f"{Path(name).name}, line {error.lineno}"
            recorder.note(f"A cell that is not Python was skipped: {error.msg} ({place})")
            text = ""
            code = compile_cell(text)
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    return code


def _translate_magics(recorder: Recorder, text: str) -> str:
    """Return a cell without IPython's syntax, but with the statements that it times. Lines keep their numbers."""

    def translate(match: re.Match[str]) -> str:
        indent, target, magic = match.group("indent", "target", "magic")
        timed = _TIMED.match(magic or "")
        if timed and timed["statement"]:
            return f"{indent}{target or ''}{timed['statement']}"
        skipped = " ".join(match[0].replace("\\\n", " ").split())
        recorder.note(f"An IPython magic was skipped: {skipped}")
        return f"{indent}{f'{target}None' if target else 'pass'}" + "\n" * match[0].count("\n")

    if language := _OTHER_LANGUAGE.match(text):
        recorder.note(f"An IPython magic was skipped: {language[1]}")
        return ""
    return _MAGIC.sub(translate, text)


def run_program(
    recorder: Recorder, program: Program, title: str, case: str, settings: Sequence[str]
) -> None:
    """Run a program as `__main__`, then the named case, or all cases if the program launched nothing."""
    module = types.ModuleType("__main__")
    names = vars(module)
    names.update(program.attributes)
    ended = None
    sys.modules["__main__"] = module
    try:
        for code in program.codes:
            awaited = eval(code, names)
            if code.co_flags & inspect.CO_COROUTINE:  # a cell with `await`
                asyncio.run(awaited)
    except (HostRead, SystemExit) as error:
        ended = error
    finally:
        recorder.write("about", inspect.cleandoc(names["__doc__"] or ""))
    cases = {
        name: value
        for name, value in names.items()
        if name.startswith("case") and inspect.isfunction(value)
    }
    defaults = {}
    plain = {}
    for name, function in cases.items():
        parameters = inspect.signature(function).parameters.values()
        defaults[name] = {p.name: p.default for p in parameters if p.default is not p.empty}
        plain[name] = {k: v for k, v in defaults[name].items() if isinstance(v, int | float | str)}
    recorder.write("cases", plain)
    if case and case not in cases:
        if isinstance(ended, HostRead) and any(case in code.co_names for code in program.codes):
            raise ended
        allowed = (
            f"Its cases are {', '.join(cases)}."
            if cases
            else "It has no function whose name begins with `case`."
        )
        raise UsageError(f"{title} has no case {case!r}. {allowed}")
    chosen = [case] if case else [] if recorder.launches else list(cases)
    if settings and len(chosen) != 1:
        raise UsageError("--set changes the parameters of one case: name it, as in script.py:case.")
    if ended and (not chosen or getattr(ended, "code", None)):
        raise ended
    if case:
        recorder.drop(0)
    for name in chosen:
        run_sweep(recorder, name, cases[name], parse_settings(settings, name, defaults[name]))


def describe_stop(error: BaseException, title: str) -> dict[str, Any]:
    """Return the JSON that says where and why a program ended early."""
    line = _users_line(traceback.extract_tb(error.__traceback__))
    if isinstance(error, SystemExit):
        if isinstance(error.code, int):
            return {**line, **_describe_exit(title, int(error.code), "")}
        return {**line, **_describe_exit(title, 1, f": {error.code}")}
    message = f"{title} raised {_summarize(error)}"
    if "relative import" in str(error):
        message += ". Show it as a module, from the folder above its package: -m PACKAGE.MODULE"
    message = "; ".join([message, *getattr(error, "__notes__", [])])
    return {**line, "kind": "exception", "message": message}


def _describe_exit(title: str, status: int, text: str) -> dict[str, Any]:
    message = f"{title} exited with status {status}{text}"
    return {"kind": "exit", "status": status, "message": message[:300]}


def _summarize(error: Any) -> str:
    """Return an exception's type and the first line of its message. Of a CompilationError, return the reason."""
    while isinstance(error, CompilationError) and isinstance(error.__cause__, CompilationError):
        error = error.__cause__
    text = getattr(error, "error_message", "") or str(error).partition("\n")[0]
    return " ".join(f"{type(error).__name__}: {text}".split()).rstrip(":")[:300]


def print_exception(error: BaseException) -> None:
    """Print a traceback as plain Python does: without the frames of this file and of torch's dispatch to it."""
    described = traceback.TracebackException.from_exception(error)
    chain = [described]
    for link in chain:
        chain += filter(None, (link.__cause__, link.__context__))
        link.stack[:] = (
            f for f in link.stack if f.filename not in (__file__, torch.overrides.__file__)
        )
    print("".join(described.format()), end="", file=sys.stderr)


def this_gpu() -> dict[str, Any]:
    """Return the properties of this machine's GPU."""
    properties: Any = torch.cuda.get_device_properties(0)
    shared = properties.shared_memory_per_block_optin
    return {
        "name": properties.name.removeprefix("NVIDIA "), "sms": properties.multi_processor_count,
        "compute_capability": [properties.major, properties.minor], "shared_bytes_per_program": shared,
    }  # fmt: skip


def serve(stdin: int) -> None:
    """Serve requests, one JSON line of stdin each, with a reply of one line.

    The scripts' stdin is the given file descriptor.

    A list holds the arguments of a capture; the reply is the error, or nothing. An object holds the arguments of
    `recompile`; the reply is its result. Scripts run in forks of
    this process, which has imported torch and Triton.
    """
    requests = os.fdopen(os.dup(0))
    reply = os.dup(1)
    os.dup2(stdin, 0)
    os.dup2(2, 1)  # the scripts' output goes to stderr
    for line in requests:
        request = json.loads(line)
        is_capture = isinstance(request, list)
        message = capture(request) if is_capture else json.dumps(recompile(**request))
        os.write(reply, f"{message}\n".encode())


def capture(command_line: Sequence[str]) -> str:
    """Run a script in a fork, and write its capture even if it is killed. Return "", or why nothing was captured."""
    parser = argparse.ArgumentParser(description="Record the Triton launches of a script.")
    options: dict[str, dict[str, Any]] = {
        "--out": {"type": Path, "required": True}, "--gpu-json": {"type": json.loads, "default": None},
        "--values": {"action": "store_true"}, "--config": {"action": "append", "default": []},
        "--set": {"action": "append", "default": []}, "--untimed": {"action": "store_true"},
        "-m": {"action": "store_true", "help": "SCRIPT is a module"}, "script": {},
        "arguments": {"nargs": argparse.REMAINDER},
    }  # fmt: skip
    for name, option in options.items():
        parser.add_argument(name, **option)
    flags = parser.parse_args(command_line)
    try:
        check_output(flags.out)
    except OSError as error:
        return f"--out {flags.out} cannot be written ({error.strerror})."
    folder = Path(tempfile.mkdtemp(prefix="tilescope-"))
    status = 0
    if flags.untimed:  # under a profiler, which may not follow a fork
        record_script(flags, folder)
    elif child := _fork_warm():
        status = _wait(child)
    else:
        faulthandler.enable()
        record_script(flags, folder)
        _exit()
    try:
        script = Path(flags.script.partition(":")[0]).name
        return write_capture(folder, flags.out, script, status)
    finally:
        shutil.rmtree(folder)


def _fork_warm() -> int:
    """Fork after the costly steps of a process's first compile. Forks of this process skip them."""
    triton_key()
    import_module("triton.experimental.gluon.nvidia.hopper")  # for the first layout of a TTGIR
    gc.freeze()
    return os.fork()


def _exit(status: int = 0) -> NoReturn:
    """Flush what the script wrote, and exit.

    Python's own exit takes half a second with torch. From Triton 3.8 on, it also prints a list of objects that
    Triton leaks when it returns a layout.
    """
    for file in (sys.stdout, sys.stderr, *gc.get_objects()):  # the fork's own objects
        if type(file) in (io.TextIOWrapper, io.BufferedWriter) and not file.closed:
            file.flush()
    os._exit(status)


def _wait(child: int) -> int:
    """Wait for a process, despite signals to this one. Return its exit status, or minus the signal."""
    handlers = {
        signal.SIGINT: signal.signal(
            signal.SIGINT, signal.SIG_IGN
        ),  # the terminal interrupts the child, too
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM)),
    }
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    for number, handler in handlers.items():
        signal.signal(number, handler)
    return status


def record_script(flags: argparse.Namespace, folder: Path) -> None:
    """Run a script, and record its launches and how it ended."""
    target, _, case = flags.script.partition(":")
    title = Path(target).name
    here = this_gpu() if torch.cuda.is_available() else {}
    gpu = {**H200, **(flags.gpu_json or here)}
    is_here = here and all(here[name] == gpu[name] for name in ("sms", "compute_capability"))
    runs = "cuda" if is_here else "interpreter" if flags.values else ""
    with recording(folder, gpu, runs) as recorder:
        if here and not is_here:
            recorder.note(
                f"Nothing ran on the GPU: this machine has {here['name']}, but --gpu is {gpu['name']}."
            )
        try:
            if not all(re.fullmatch(r"\w+=\d+", text) for text in flags.config):
                raise UsageError(f"--config must be KERNEL=N (got {' '.join(flags.config)}).")
            recorder.configs = {
                name: int(number) for name, number in (text.split("=") for text in flags.config)
            }
            recorder.is_timed = not flags.untimed
            # As Python does while it imports the package of a module
            sys.argv = ["-m" if flags.m else target, *flags.arguments]
            program = read_program(recorder, target, flags.m)
            if flags.m:
                sys.argv[0] = program.attributes["__file__"]
            run_program(recorder, program, title, case, flags.set)
            tuned = {
                launch.function.__name__ for launch in recorder.launches if launch.content["tuned"]
            }
            if unused := sorted({*recorder.configs} - tuned):
                allowed = ", ".join(sorted(tuned)) or "none"
                raise UsageError(
                    f"--config: no autotuned kernel {unused[0]} was launched. Autotuned kernels: {allowed}."
                )
        except UsageError as error:
            recorder.write("refused", str(error))
        except BaseException as error:
            if not isinstance(error, SystemExit | HostRead):
                print_exception(error)
            elif isinstance(error, SystemExit) and not isinstance(error.code, int | None):
                print(error.code, file=sys.stderr)
            if not isinstance(error, SystemExit) or error.code:
                # A test runner catches the reads, and exits with a status
                stop = recorder.read if isinstance(error, SystemExit | HostRead) else None
                recorder.keep_failed(error)
                recorder.write("stopped", stop or describe_stop(error, title))
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as plain Python does at its end
        atexit._run_exitfuncs()
        recorder.write("is_complete", True)


def main() -> None:
    status = 0
    if sys.argv[1:2] == ["--serve"]:
        serve(int(sys.argv[2]))
    elif message := capture(sys.argv[1:]):
        print(message, file=sys.stderr)
        status = 2
    if "--untimed" in sys.argv:  # a profiler may need the process's own exit
        sys.exit(status)
    _exit(status)


if __name__ == "__main__":
    main()
