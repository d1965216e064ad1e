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
import ctypes
import errno
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
import mmap
import multiprocessing
import operator
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
from copy import copy
from importlib import import_module
from multiprocessing.pool import ThreadPool
from pathlib import Path
from signal import SIGCHLD, SIGHUP, SIGINT, SIGKILL, SIGTERM, SIGUSR1, SIGUSR2
from timeit import Timer
from typing import Any, NoReturn
from unittest import mock

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # this folder, whose files could shadow packages

try:
    import numpy as np
    import torch

    # Triton defines its library of device functions when it is imported
    with mock.patch.dict(os.environ, {"TRITON_INTERPRET": "0"}):
        import triton

    VERSION = tuple(map(int, triton.__version__.split(".")[:2]))
    if VERSION < (3, 6):
        raise ImportError(f"Triton is {triton.__version__}, and Tilescope needs 3.6 or later")
    from torch._subclasses import FakeTensor, FakeTensorMode
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.utils import _triton as torch_triton
    from torch.utils._device import DeviceContext
    from torch.utils._pytree import tree_leaves, tree_map_only
    from triton._C.libtriton import gluon_ir, ir, nvidia
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia import compiler as nvidia_compiler
    from triton.backends.nvidia.driver import CudaDriver
    from triton.compiler import CompilationError, CompiledKernel
    from triton.compiler.errors import CompileTimeAssertionFailure
    from triton.experimental.gluon.nvidia.hopper import NVMMASharedLayout
    from triton.runtime import Autotuner, OutOfResources, driver, interpreter, jit
    from triton.runtime.cache import get_cache_manager, triton_key
    from triton.runtime.errors import PTXASError

    # By its path, because this file may run without the package
    allocate = runpy.run_path(str(Path(__file__).with_name("allocation.py")))["allocate"]
except ImportError as error:
    if __name__ != "__main__":
        raise
    print(f'{sys.executable}: {error}. Install what is missing: pip install "tilescope[torch]"')
    sys.exit(2)

# A stand-in for the command of the driver. Libraries ask it for the name or the memory of the GPU.
_NVIDIA_SMI = """\
#!/bin/sh
exec '{python}' -IS -c '
import json, sys
gpu = json.loads(\"\"\"{gpu}\"\"\")
name = gpu["device_name"]
capability = ".".join(map(str, gpu["compute_capability"]))
memory = str(gpu["memory_gib"] << 10) + " MiB"
clock = str(gpu["clock_mhz"]) + " MHz"
values = dict.fromkeys(["name", "gpu_name"], name) | dict.fromkeys(["memory.total", "memory.free"], memory)
values |= {{"compute_cap": capability, "count": "1", "index": "0", "gpu_bus_id": "00000000:01:00.0"}}
values |= {{"memory.used": "0 MiB", "clocks.max.sm": clock, "driver_version": "580.65.06"}}
flags = " ".join(sys.argv[1:]).replace("=", " ").split()
fields = next((flags[n + 1] for n, flag in enumerate(flags) if flag.startswith("--query-gpu")), "").split(",")
if fields[0]:
    rows = [fields] * ("noheader" not in " ".join(flags)) + [[values.get(field, "[N/A]") for field in fields]]
    text = chr(10).join(", ".join(row) for row in rows)
    print(text.replace(" MiB", "").replace(" MHz", "") if "nounits" in " ".join(flags) else text)
elif "-L" in flags:
    print(f"GPU 0: {{name}} (UUID: GPU-00000000-0000-0000-0000-000000000000)")
else:
    print("NVIDIA-SMI 580.65.06    Driver Version: 580.65.06    CUDA Version: 13.0")
    print(f"0  {{name}}  0 MiB / {{memory}}")
' "$@"
"""

FORMAT = 1

# Maximum bytes of all arrays in the file.
_MOST_BYTES = 60 << 20

# Counts depend on addresses modulo this: see `tilescope/evaluate/atomics.py`.
_ADDRESS_RANGE = 1 << 29

# The environment variable with the id of the process that is being recorded.
RECORDED_PROCESS = "TILESCOPE_RECORDED_PROCESS"

# The environment variable with the folder of the temporary files: see `server.py`.
_FOLDER = "TILESCOPE_FOLDER"

# The signals that a recorder blocks: those of its script's terminal, and those that it awaits.
_BLOCKED = SIGINT, SIGCHLD

# The signals that the recorder forwards to the script, each with the one sent instead. `server.py` sends the last two.
_PASSED_ON = {
    SIGHUP: SIGHUP,
    SIGTERM: SIGTERM,
    SIGUSR1: SIGINT,
    SIGUSR2: SIGKILL,
}

# prctl(2), <linux/prctl.h>.
_PR_SET_PDEATHSIG = 1

# Held while a launch is recorded and while the process forks, so that other threads and forks never see part of one.
_LOCK = threading.RLock()
os.register_at_fork(
    before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release
)

# Python imports this module when a child process starts, instead of one with the same name. Recording starts once the
# child has imported torch.
_SITECUSTOMIZE = """\
import sys
from importlib.util import find_spec

sys.path.remove({folder!r})
own = sys.modules.pop("sitecustomize")
try:
    import sitecustomize
except ImportError:
    sys.modules["sitecustomize"] = own


class Recording:
    def find_spec(self, name, *_):
        if name == "torch" and sys.argv[0] != {recorder!r}:
            sys.meta_path.remove(self)
            if spec := find_spec(name):
                run = spec.loader.exec_module
                spec.loader.exec_module = lambda module: (run(module), self.start())
            return spec

    def start(self):
        from runpy import run_path

        try:
            record = run_path({recorder!r}, run_name="record")
        except ImportError:  # this interpreter has no Triton
            return
        record["record_child"](folder={folder!r}, **{options!r})


sys.meta_path.insert(0, Recording())
"""

# The place of an event outside the user's code.
_NO_PLACE = {"file": "", "line": 0}

# Maximum seconds for compiling a report's changed modules.
_RECOMPILE_S = 20

# Maximum number of autotuner configs to try until one compiles and fits, and of combinations in a sweep.
_MOST_CONFIGS = 8
_MOST_COMBINATIONS = 256

# Maximum number of programs along each axis of a grid.
_MOST_PROGRAMS = [2**31 - 1, 65535, 65535]

_TOO_LARGE = (
    f"Addresses depend on the values of {{}}. A capture keeps at most {_MOST_BYTES >> 20} MiB of values, so \
make the tensors smaller."
)

_INTERPRETED = (
    "TRITON_INTERPRET=1 was ignored. Kernels that were decorated before the recording began are not recorded. To run \
launches in the interpreter, pass --values (in Python, values=True)."
)

_NOT_OF_GPU = "{} measures time with {}: during a capture, the result is not the GPU's time."

_IN_GRAPH = (
    "Addresses depend on the values of {}, which can't be copied while a CUDA graph records the launch. Launch \
the kernel outside the graph, too."
)

# Advice on exceptions, by a pattern of their messages.
_ADVICE = {
    "relative import": "Show it as a module, from the folder above its package: -m PACKAGE.MODULE",
    "(waves_per_eu|kpack|matrix_instr_nonkdim|schedule_hint) was specified but unrecognised": (
        "This is an option for AMD GPUs (ROCm), which Triton refuses for an NVIDIA GPU"
    ),
    r"\b(XPU|HIP|xpu|hip|lib\w*hip64\.so)\b": 'Tilescope captures for NVIDIA GPUs, so use device="cuda"',
}

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

# JSON, arguments or options, by name.
Values = dict[str, Any]

H200: Values = {
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
_ELAPSED_TIME = torch.cuda.Event.elapsed_time
_SKIPPED_BY_AUTOTUNER = OutOfResources, CompileTimeAssertionFailure, PTXASError

# Triton keeps the classes of layouts forever, and with them the variables of its modules, but not the modules, whose
# variables Python deletes when it ends. Nanobind lists what is left then: from Triton 3.9 on, 25 lines.
NVMMASharedLayout.modules = [
    module for name, module in sys.modules.items() if name.startswith("triton.")
]


class HostRead(BaseException):
    """The script reads a result of a launch that did not run. `except Exception` in the script does not catch it."""


class UsageError(Exception):
    """The command line is wrong. The message is one sentence."""


# ---------------------------------------------------------------- what is recorded


# A launch's number in its process, its kernel's function, its compiled kernel, and its JSON.
Launch = namedtuple("Launch", "number function compiled content")

# The layouts of the pointers of each operation on pointers, and numbers of arguments: those that are stored to, those
# that hold pointers to what is stored to, and those whose values addresses, masks or branches depend on.
Facts = namedtuple("Facts", "layouts stored tables needed")


class Recorder:
    """Records launches while `recording` is active.

    Everything is written to `folder` at once, because the process may be killed at any time. Child processes write to
    the same folder, so launches, kernels, arrays and storages have keys that are unique among processes.

    Args:
        gpu: properties of the GPU to compile for.
        runs: "cuda" to launch on this machine's GPU, "interpreter", or "" to launch nothing.
        tunes: whether autotuners search as usual; otherwise they launch their first config.
        configs: number of the autotuner config to pin, from 1, by kernel name.
        is_timed: whether cases and `do_bench` calls are launched repeatedly on a GPU to time them.

    Attributes:
        process: the recorded process, which may have started this one.
        context: JSON to add to the next launch.
        storages: a storage's key and a weak reference to it, by device and address.
        unknown: by storage, the launch that did not run and on which its values depend.
        reserved: the storages that do not fit in this machine's memory, and those that depend on them.
        pointees: a launch that did not run, and the sorted addresses to which it would have stored.
        written: the keys of the kernels and arrays in the folder.
        bases: the tensors of the launch being recorded, by storage.
        read: the JSON of the last read of a result that was not computed; None if there was none.
        timing: the threads that are timing launches, which are not recorded.
    """

    def __init__(
        self,
        gpu: Values,
        runs: str,
        folder: Path,
        tunes: bool = False,
        configs: Mapping[str, int] = types.MappingProxyType({}),
        is_timed: bool = True,
    ) -> None:
        self.gpu = gpu
        self.runs = runs
        self.tunes = tunes
        self.configs = configs
        self.is_timed = is_timed
        self.folder = folder
        self.process = os.getpid()
        self.journal = (folder / "journal").open("ab", buffering=0)
        self.launches = list[Launch]()
        self.counter = itertools.count()
        self.storages = dict[tuple[str, int], tuple[str, StorageWeakRef]]()
        self.unknown = dict[str, str]()
        self.reserved = set[str]()
        self.pointees = list[tuple[str, np.ndarray]]()
        self.written = set[str]()
        self.bases = dict[str, torch.Tensor]()
        self.context: Values = {"case": None, "tuned": None}
        self.read: Values | None = None
        self.timing = list[threading.Thread]()
        self.write("gpu", gpu)

    def write(self, name: str, value: Any, key: str = "") -> None:
        """Write an entry of the capture's JSON, or the element of an entry with a key."""
        if not self.journal.closed:  # a thread may outlive the recording
            # A process that is killed may leave a part of its line
            self.journal.write(b"\n" + json.dumps([name, key, value]).encode() + b"\n")

    def name(self, launch: Launch) -> str:
        is_child = os.getpid() != self.process
        place = f" of process {os.getpid()}" if is_child else ""
        return f"launch {launch.number} ({launch.function.__name__}){place}"

    def note(self, text: str) -> None:
        """Add a sentence to `not_captured`."""
        self.write("not_captured", text, text)

    def note_timing(self, name: str) -> None:
        """Say that the script measures time, unless it measures it with launches that are not recorded."""
        if not self.is_paused():
            line = _users_line(traceback.extract_stack())
            self.note(_NOT_OF_GPU.format(_describe_place(line), name))

    def keep(self, launch: Launch, **changes: Any) -> None:
        """Write a launch with changes to its JSON."""
        launch.content.update(changes)
        self.write("launches", launch.content, f"{os.getpid()}.{launch.number}")

    def drop(self, number: int) -> None:
        """Forget the launches from a number on."""
        for launch in self.launches[number:]:
            self.write("launches", None, f"{os.getpid()}.{launch.number}")
        del self.launches[number:]

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Record no launches of this thread."""
        thread = threading.current_thread()
        self.timing.append(thread)
        try:
            yield
        finally:
            self.timing.remove(thread)

    def is_paused(self) -> bool:
        thread = threading.current_thread()
        # Python did not start autograd's threads, in which a backward pass runs on a GPU
        is_own = isinstance(thread, threading._DummyThread)
        return thread in self.timing or bool(self.timing and is_own)

    def record(
        self, function: Any, arguments: Sequence[Any], grid: Any, keywords: Values
    ) -> tuple[Launch, Values]:
        """Compile and describe a launch. Return it and its arguments by name.

        Raises:
            OutOfResources: the kernel needs too much shared memory. `keep_failed` adds the error's `launch`.
        """
        values, options, sizes = bind(function, arguments, grid, keywords)
        with torch._C.DisableTorchFunction():
            stand_ins = {name: as_compiled(value) for name, value in values.items()}
            compiled = _RUN(function, grid=sizes, warmup=True, **stand_ins, **options)
            metadata = compiled.metadata
            constants = [p.name for p in function.params if p.is_constexpr]
            config = {name: _plain(values[name]) for name in constants}
            config["num_warps"] = metadata.num_warps
            config["num_stages"] = getattr(metadata, "num_stages", None)
            facts = read_ttgir(compiled.asm["ttgir"])
            grid = [*sizes, 1, 1][:3]
            content = {
                "grid": grid, "caller": _users_line(traceback.extract_stack()), **self.context, "config": config,
                "ran": False, "elapsed_ms": None, "results": None, "kernel": self._keep_kernel(compiled),
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
        if math.prod(grid) < 1:
            place = _describe_place(content["caller"])
            name = function.__name__
            self.note(f"{place} launches {name} with an empty grid, {grid}, which Triton skips.")
            return launch, values
        if min(grid) < 1 or any(map(int.__gt__, grid, _MOST_PROGRAMS)):
            error = RuntimeError("Triton Error [CUDA]: invalid argument")
            error.add_note(f"the grid is {grid}, and a GPU allows at most {_MOST_PROGRAMS}")
            raise error
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

    def _describe_tensor(self, tensor: Any) -> Values:
        base = tensor.base
        storage = self.storage(base)
        self.bases[storage] = base
        return {
            "dtype": _dtype(tensor), "shape": list(base.shape), "strides": list(base.stride()), "storage": storage,
            "element_bytes": getattr(tensor.dtype, "itemsize", None) or base.element_size(),
            "is_known": not self.find_unknown(base), "offset_bytes": tensor.offset_bytes, "array": None,
        }  # fmt: skip

    def storage(self, tensor: torch.Tensor) -> str:
        """Return the key of a tensor's storage."""
        with _LOCK:
            key, reference = self.storages.get(_address(tensor), ("", None))
            if (
                reference is None or reference.expired()
            ):  # a later storage may have the same address
                memory = tensor.untyped_storage()
                key = f"{os.getpid()}.{next(self.counter)}"
                self.storages[_address(tensor)] = key, StorageWeakRef(memory)
                size = {"bytes": memory.nbytes(), "address_bytes": _start(tensor) % _ADDRESS_RANGE}
                self.write("storages", size, key)
            return key

    def _keep_values(self, name: str, tensor: Values) -> None:
        """Copy the storage of an argument on whose values addresses, masks or branches depend."""
        base = self.bases[tensor["storage"]]
        memory = base.untyped_storage()
        if tensor["dtype"] != _dtype(base):
            return
        why = ""
        elements = np.empty(0)
        if _is_graph(self):
            why = _IN_GRAPH.format(name)
        elif memory.nbytes() > _MOST_BYTES:
            why = _TOO_LARGE.format(f"{name}, {memory.nbytes() >> 20:,} MiB")
        else:
            flat = base.new_empty(0).set_(memory, 0, (memory.nbytes() // base.itemsize,), (1,))
            is_narrow = base.is_floating_point() and base.itemsize < 4  # NumPy lacks bfloat16
            elements = flat.to("cpu", torch.float32 if is_narrow else base.dtype).numpy()
        kind = tensor["dtype"].encode()
        digest = hashlib.blake2b(elements.data, digest_size=32, key=kind).hexdigest()
        tensor["array"] = why or digest
        if tensor["array"] not in self.written:
            self.written.add(tensor["array"])
            np.save(self.folder / f"{digest}.npy", elements, allow_pickle=False)
            self.write("arrays", {"why_missing": why}, tensor["array"])

    def _keep_kernel(self, compiled: Any) -> str:
        """Return the key of a compiled kernel, and write its code."""
        file = repr(compiled.src.fn.fn.__code__.co_filename)  # Triton's hash leaves it out
        key = hashlib.blake2b(f"{file}{compiled.hash}".encode(), digest_size=32).hexdigest()
        if key not in self.written:
            self.written.add(key)
            for stage in {"ttir", "ttgir", "ptx"} & compiled.asm.keys():
                (self.folder / f"{key}.{stage}").write_text(compiled.asm[stage])
            (self.folder / f"{key}.cubin").write_bytes(compiled.asm["cubin"])
            self.write("kernels", describe_kernel(compiled), key)
        return key

    def find_unknown(self, values: Any) -> str:
        """Return the launch that did not run and that one of the tensors depends on; "" if there is none."""
        if not self.unknown and not self.pointees:
            return ""
        with torch._C.DisableTorchFunction():
            for tensor in _tensors(values):
                key, reference = self.storages.get(_address(tensor), ("", None))
                if key in self.unknown and reference and not reference.expired():
                    return self.unknown[key]
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
        tensor = f"a tensor (with {function.__name__}) that depends on {launch}."
        advice = f" {_VALUES}" if launch.endswith(_NOT_RUN) else ""
        message = f"{_describe_place(line)} reads {tensor}{advice}"
        self.read = {**line, "kind": "host_read", "message": message}
        self.write("read", self.read)
        return HostRead(message)

    def mark_unknown(self, launch: Launch) -> None:
        """Remember the tensors that a launch would have stored to."""
        name = f"{self.name(launch)}, {_NOT_RUN}"
        facts = read_ttgir(launch.compiled.asm["ttgir"])
        tensors = list(map(_own_tensor, launch.content["arguments"]))
        self.unknown |= {
            tensors[number]["storage"]: name for number in facts.stored if tensors[number]
        }
        for number in facts.tables:
            array = (tensors[number] or {}).get("array")
            path = self.folder / f"{array}.npy"
            if path.exists():
                self.pointees.append((name, np.sort(np.load(path))))


def bind(
    function: Any, arguments: Sequence[Any], grid: Any, keywords: Values
) -> tuple[Values, Values, list[int]]:
    """Return a launch's arguments by name, the compiler's options, and the size of the grid."""
    names = function.arg_names
    bound = function.signature.bind(*arguments, **{k: v for k, v in keywords.items() if k in names})
    bound.apply_defaults()
    values = dict(bound.arguments)
    options = {k: v for k, v in keywords.items() if k not in names}
    sizes = grid(values) if callable(grid) else grid
    sizes = [sizes] if isinstance(sizes, int) else sizes
    return values, options, list(map(operator.index, sizes))


def describe_arguments(
    function: Any,
    values: Values,
    options: Values,
    describe_tensor: Callable[[Any], Values],
    capability: Sequence[int],
) -> list[Values]:
    """Return the JSON of the compiled function's arguments.

    Args:
        values: by parameter of the kernel, as from `as_compiled`.
        describe_tensor: returns the JSON of a tensor's stand-in.
    """
    *_, binder = function.device_caches[driver.active.get_current_device()]
    _, kinds, _ = binder(**values, **{"debug": False, "instrumentation_mode": "", **options})

    def describe(name: str, value: Any, kind: Any) -> Iterator[Values]:
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


def split_case(target: str) -> tuple[str, str]:
    """Split off the name of a case. The name of a script may contain colons, too."""
    name, colon, case = target.rpartition(":")
    return (name, case) if colon and not Path(target).is_file() else (target, "")


def check_output(path: Path) -> None:
    """Raise OSError if a file cannot be written, or exists and is not a capture."""
    path = path.resolve()
    is_new = not path.exists()
    with path.open("a+b") as file:
        is_empty = not file.tell()
        is_zip = zipfile.is_zipfile(file)
        is_capture = is_zip and "capture.json" in zipfile.ZipFile(file).namelist()
    if is_new:
        path.unlink()
    elif not is_empty and not is_capture:
        raise FileExistsError(errno.EEXIST, "Tilescope did not write the existing file", str(path))


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yield a path in the same folder, which replaces a file once it is whole."""
    path = path.resolve()
    partial = path.with_name(
        f".{path.name[:50]}.{os.getppid()}"
    )  # known to `server.py`, the parent
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_capture(folder: Path, path: Path, script: str = "", status: int = 0) -> str:
    """Write a capture from the files of a recorder. Return "", or why nothing was captured.

    Args:
        status: the exit status of the recorder's process, or minus the signal that killed it.
    """
    content = _read_journal(folder, script)
    if content["refused"]:
        return content["refused"]
    if status and "is_complete" not in content:
        launches = content["launches"]
        before = f"; launches before that: {len(launches)}"
        end = _describe_exit(script, status, before)
        if status < 0:
            killed = f"{script} was killed by {signal.Signals(-status).name}{before}"
            end = {"kind": "exception", "message": killed}
        place = launches[-1]["caller"] if launches else _NO_PLACE
        content["stopped"] = {**place, **end}
    total = 0
    with _replacing(path) as partial, zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as file:
        arrays = []
        for number, (key, array) in enumerate(content["arrays"].items()):
            if not array["why_missing"]:
                arrays.append((folder / f"{key}.npy", f"arrays/{number}.npy", array))
        for source, name, array in sorted(arrays, key=lambda each: each[0].stat().st_size):
            total += source.stat().st_size
            if total > _MOST_BYTES:
                array["why_missing"] = _TOO_LARGE.format("several tensors")
            else:
                file.write(source, name)
        kernels = content["kernels"]
        with ThreadPool() as pool:
            read = pool.starmap(_read_kernel, ((folder / key, kernels[key]) for key in kernels))
            pool.close()
            pool.join()  # no thread may be left when `serve` forks
        for number, codes in enumerate(read):
            for stage, code in codes.items():
                file.writestr(f"kernels/{number}.{stage}", code)
        for name in ("kernels", "arrays", "storages"):
            content[name] = list(content[name].values())
        # Names of files may contain bytes that are not UTF-8
        text = json.dumps(content, ensure_ascii=False).encode(errors="replace")
        file.writestr("capture.json", text)
    return ""


def _read_journal(folder: Path, script: str) -> Values:
    """Return a capture's JSON, but with the kernels, arrays and storages by key.

    The launches are sorted by process id and, in a process, in the order in which they began.
    """
    content: Values = {
        "format": FORMAT, "triton": triton.__version__, "script": script, "cases": {}, "about": "", "stopped": None,
        "not_captured": {}, "arrays": {}, "kernels": {}, "storages": {}, "launches": {}, "refused": "",
    }  # fmt: skip
    for line in (folder / "journal").read_bytes().split(b"\n"):
        with contextlib.suppress(ValueError):  # empty, or the part that a killed process wrote
            name, key, value = json.loads(line)
            if key:
                content[name][key] = value
            else:
                content[name] = value
    if content["stopped"] and content["stopped"]["kind"] == "exit":
        # A test runner catches the reads, and exits with a status
        content["stopped"] = content.pop("read", content["stopped"])
    content["not_captured"] = list(content["not_captured"])
    launches = content["launches"]
    order = sorted(launches, key=lambda key: [int(part) for part in key.split(".")])
    content["launches"] = [launches[key] for key in order if launches[key]]
    numbers = dict[str, int]()
    for name in ("kernels", "arrays", "storages"):
        numbers |= zip(content[name], itertools.count())
    for launch in content["launches"]:
        launch["kernel"] = numbers[launch["kernel"]]
        for tensor in filter(None, map(_own_tensor, launch["arguments"])):
            tensor["storage"] = numbers[tensor["storage"]]
            tensor["array"] = numbers.get(tensor["array"])
    return content


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
        # A copy skips the constructor's alignment check, which host tensors may fail
        stand_in = copy(value)
        vars(stand_in)["base"] = _AlignedTensor(value.base)
        return stand_in
    if isinstance(value, tuple):
        parts = [as_compiled(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return (
        _AlignedTensor(value) if hasattr(value, "data_ptr") and hasattr(value, "dtype") else value
    )


def _own_tensor(argument: Values) -> Any:
    return argument.get("tensor") or argument.get("descriptor", {}).get("tensor")


def _returning(value: Any) -> Any:
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


def _users_line(frames: Iterable[traceback.FrameSummary]) -> Values:
    """Return the innermost frame that is in the user's code."""
    folders = (f"{package.__path__[0]}/" for package in (torch, triton))
    skipped = [re.escape(prefix) for prefix in (__file__, "<frozen", "<string", *folders)]
    skipped.append(re.escape(str(Path(os.__file__).parent)) + "/(?!(site|dist)-packages/)")
    lines = [
        {"file": f.filename, "line": f.lineno}
        for f in frames
        if not re.match("|".join(skipped), f.filename)
    ]
    return lines[-1] if lines else _NO_PLACE


def _describe_place(line: Values) -> str:
    return f"{Path(line['file']).name}:{line['line']}"


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
    layouts: list[Values | None] = []
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

    def find_tables(values: set[Any]) -> list[int]:
        pointers = itertools.chain(*map(loads.__getitem__, values))
        return find_arguments(reach(pointers, sources))

    module.walk(visit)
    function = module.get_function(module.get_entry_func_name())
    count = len(module.get_function_signature(function))
    stored = reach(stores, sources)
    needed = reach(roots, sources, offsets)
    return Facts(layouts, find_arguments(stored), find_tables(stored), find_tables(needed))


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


def _layout(builder: Any, pointer: Any) -> Values | None:
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
    """Return the messages of one of the CUDA tools in Triton's wheel for a file; "" if the tool fails."""
    with tempfile.NamedTemporaryFile() as file, contextlib.suppress(OSError, AttributeError):
        Path(file.name).write_bytes(code)
        command = [getattr(triton.knobs.nvidia, name).path, *flags, file.name]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.stdout + done.stderr if done.returncode == 0 else ""
    return ""


@functools.lru_cache(64)
def _disassemble(cubin: bytes) -> str:
    """Return the SASS. Triton's cache keeps it, because nvdisasm takes 0.3 s even for a small kernel."""
    key = hashlib.sha256(triton.__version__.encode() + cubin).hexdigest()
    sass = ""
    with contextlib.suppress(OSError):
        if path := get_cache_manager(key).get_file("kernel.sass"):
            sass = Path(path).read_text()
    if not sass:
        sass = _run_tool("nvdisasm", cubin, "-g", "-c", "-ndf")
        with contextlib.suppress(OSError):
            if sass:
                get_cache_manager(key).put(sass, "kernel.sass")
    if " BRX" in sass:  # the listing lacks the table of its targets
        dump = _run_tool("cuobjdump", cubin, "--dump-elf")
        sass += "".join(re.findall(r"^\.nv\.constant2\..*\n(?:0x.*\n)+", dump, re.MULTILINE))
    return sass


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
    # STL.64 [R1+0x8], R4 ;
    accesses = r"\b(STL|LDL)(?:\.[SU]?(8|16|64|128)|\.\w+)* [^;]*\[R1(?:\+(0x[0-9a-f]+))?\]"
    for name, bits, start in re.findall(accesses, sass):
        first = int(start or "0", 16)
        slots[name].append(range(first, first + int(bits or 32) // 8))
    reloaded = set().union(*slots["LDL"])
    return sum(len(slot) for slot in slots["STL"] if not reloaded.isdisjoint(slot))


def describe_kernel(compiled: Any) -> Values:
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
        "num_ctas": metadata.num_ctas, "layouts": read_ttgir(codes["ttgir"]).layouts,
        "options": options, "allocation": allocate(codes["ttgir"], codes.get("ttir", ""), capability, options),
    }  # fmt: skip


def _read_kernel(path: Path, kernel: Values) -> dict[str, str]:
    """Add a kernel's resources to its JSON. Return its TTIR (unless Gluon made it), TTGIR, PTX and SASS."""
    paths = ((stage, path.with_suffix(f".{stage}")) for stage in ("ttir", "ttgir", "ptx"))
    codes = {stage: path.read_text() for stage, path in paths if path.exists()}
    cubin = path.with_suffix(".cubin").read_bytes()
    kernel["registers"], kernel["spilled_bytes"] = read_resources(cubin)
    codes["sass"] = _disassemble(cubin)
    new = Path(kernel["file"]).name
    compiled_from = re.search(r'^#loc = loc\("([^"]+)":', codes["ttgir"], re.MULTILINE)
    if (
        compiled_from and new not in codes["ttgir"]
    ):  # Triton's cache knows the same source in another file
        codes = {
            stage: code.replace(Path(compiled_from[1]).name, new) for stage, code in codes.items()
        }
    return codes


def recompile(modules: Sequence[Values], capability: int) -> list[Values | None]:
    """Compile TTIR modules, each with its options. Return {} for one that fails, None for a timeout."""
    deadline = time.monotonic() + _RECOMPILE_S + 2 * len(modules)
    replies: list[Values | None] = []
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


def _recompile_one(module: Values, capability: int) -> Values:
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


def _relaunch(self: Any, grid: Any) -> Any:
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
        function[grid](**(options | values | dict(zip(names, arguments, strict=False))))

    return launch


def _measure_once(recorder: Recorder, measure: Any) -> Any:
    """Return a version of `do_bench` that records a single call. If nothing is timed, it returns 1 ms."""

    @functools.wraps(measure)
    def measure_once(call: Any, *arguments: Any, **options: Any) -> Any:
        call()
        if recorder.runs == "cuda" and recorder.is_timed:
            with recorder.paused():
                return measure(call, *arguments, **options)
        recorder.note_timing(measure.__name__)
        count = len(options.get("quantiles") or ()) or (options.get("return_mode") == "all")
        return [1.0] * count if count else 1.0

    return measure_once


def _is_graph(recorder: Recorder) -> bool:
    return recorder.runs == "cuda" and torch.cuda.is_current_stream_capturing()


def _launch(
    recorder: Recorder, function: Any, arguments: Sequence[Any], grid: Any, keywords: Values
) -> Any:
    """Record a launch, and run it on the GPU or in the interpreter if the recorder does so."""
    launch, values = recorder.record(function, arguments, grid, keywords)
    if min(launch.content["grid"]) < 1:
        return launch.compiled
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
        name = recorder.name(launch)
        error.__notes__ = [name]
        recorder.note(f"{name.capitalize()} failed: {_summarize(error)}")
        raise
    recorder.keep(launch, ran="cuda", elapsed_ms=_ELAPSED_TIME(start, end))
    return kernel


def _interpret(launch: Launch, values: Values) -> None:
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
    folder: Path, gpu: Values = H200, runs: str = "", **options: Any
) -> Iterator[Recorder]:
    """Record all Triton launches, also in child processes, in a folder, from which `write_capture` makes a capture.

    Unless `runs` is "cuda", tensors in host memory report a CUDA device.

    Args:
        options: of `Recorder`.
    """
    recorder = Recorder(gpu, runs, folder, **options)
    variables = {"TORCH_COMPILE_DISABLE": "1", RECORDED_PROCESS: str(os.getpid())}
    hook = folder / "sitecustomize.py"
    if not hook.exists():
        options |= {"gpu": gpu, "runs": runs}
        hook.write_text(
            _SITECUSTOMIZE.format(folder=str(folder), recorder=__file__, options=options)
        )
        command = folder / "nvidia-smi"
        if runs != "cuda":
            command.write_text(_NVIDIA_SMI.format(python=sys.executable, gpu=json.dumps(gpu)))
            command.chmod(0o755)
        for name in ("PATH", "PYTHONPATH"):
            paths = filter(None, (str(folder), os.environ.get(name)))
            variables[name] = os.pathsep.join(paths)

    @functools.wraps(_RUN)
    def run(self: Any, *arguments: Any, grid: Any, warmup: bool, **keywords: Any) -> Any:
        with _LOCK:
            if warmup or recorder.is_paused() or recorder.journal.closed:
                return _RUN(self, *arguments, grid=grid, warmup=warmup, **keywords)
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

    def note_elapsed_time(*events: Any) -> float:
        recorder.note_timing("CUDA events")
        return _ELAPSED_TIME(*events) if runs == "cuda" else 1.0

    def note_timeit(self: Any, *arguments: Any) -> float:
        count = len(recorder.launches)
        elapsed = timeit(self, *arguments)
        if len(recorder.launches) > count:
            recorder.note_timing("timeit")
        return elapsed

    knobs = type(triton.knobs.runtime)
    interpret = vars(knobs)["interpret"]

    def refuse_interpreter(values: Any) -> bool:
        if interpret.__get__(values, knobs):
            recorder.note(_INTERPRETED)
        return False

    def compile_nothing(model: Any = None, **_: Any) -> Any:
        recorder.note("Functions passed to torch.compile ran uncompiled.")
        return (lambda function: function) if model is None else model

    search = Autotuner._bench
    timeit = Timer.timeit
    pinned = functools.partialmethod(_run_pinned, recorder)

    def bench(*arguments: Any, **keywords: Any) -> Any:
        with recorder.paused():
            return search(*arguments, **keywords)

    tuners: list[Any] = [jit.KernelInterface]
    with recorder.journal, contextlib.ExitStack() as stack:

        def pin_config(tuner: type) -> None:
            if issubclass(tuner, Autotuner) and "run" in vars(tuner) and not recorder.tunes:
                stack.enter_context(mock.patch.object(tuner, "run", pinned))
            elif tuner.__name__ == "CachingAutotuner":
                nothing = _returning(None)
                stack.enter_context(
                    mock.patch.multiple(tuner, run=run_generated, precompile=nothing)
                )

        for tuner in tuners:
            tuners += tuner.__subclasses__()
            pin_config(tuner)
        replaced: list[Any] = [
            (jit.JITFunction, "run", run),
            (Autotuner, "_bench", bench),
            (triton.knobs.runtime, "add_stages_inspection_hook", STAGES_HOOK),
            (knobs, "interpret", property(refuse_interpreter, interpret.__set__)),
            (Timer, "timeit", note_timeit),
            (torch.cuda.Event if runs == "cuda" else _Stub, "elapsed_time", note_elapsed_time),
            # Autotuners of a library that the script imports later
            (jit.KernelInterface, "__init_subclass__", classmethod(pin_config)),
            *(_gpu_stand_ins(recorder) if runs != "cuda" else ()),
            *(
                (triton.testing, name, _measure_once(recorder, getattr(triton.testing, name)))
                for name in ("do_bench", "do_bench_cudagraph")
            ),
            (CompiledKernel, "__getitem__", _relaunch),
            (torch, "compile", compile_nothing),
        ]
        stack.callback(_restore_environment, variables, dict(os.environ))
        os.environ.update(variables)
        for owner, name, value in replaced:
            stack.enter_context(mock.patch.object(owner, name, value, create=True))
        if runs != "cuda":
            stack.enter_context(_AsIfCuda(recorder))
        refuse_interpreter(triton.knobs.runtime)
        yield recorder


def _restore_environment(variables: Mapping[str, str], before: Mapping[str, str]) -> None:
    """Undo the changes of variables, unless the script has changed them since."""
    for name, own in variables.items():
        if os.environ.get(name) == own:
            del os.environ[name]
            if name in before:
                os.environ[name] = before[name]


def record_child(folder: str, **options: Any) -> None:
    """Record the launches of this process, which a recorded process started, until it ends."""
    context = recording(Path(folder), **options)
    context.__enter__().process = os.getppid()
    atexit.register(context.__exit__, None, None, None)


def _run_pinned(self: Any, recorder: Recorder, *arguments: Any, **keywords: Any) -> Any:
    """Run the pinned config, or the first that compiles and fits, instead of the autotuner's search."""
    with _LOCK:
        self.nargs = dict(zip(self.arg_names, arguments, strict=False))
        is_tuned = len(self.configs) > 1
        configs = self.prune_configs(keywords)[:_MOST_CONFIGS] if is_tuned else self.configs
        name = self.base_fn.__name__
        if number := recorder.configs.get(name):
            if not 1 <= number <= len(self.configs):
                raise UsageError(
                    f"--config {name}={number}: {name} has configs 1 to {len(self.configs)}."
                )
            configs = [self.configs[number - 1]]
        count = len(recorder.launches)
        for place, config in enumerate(configs, start=1):
            self.best_config = config
            values = config.all_kwargs()
            if is_tuned and (conflicts := keywords.keys() & config.kwargs.keys()):
                raise ValueError(
                    f"Conflicting meta-parameters: {', '.join(conflicts)}. Make sure that you don't re-define "
                    "auto-tuned symbols."
                )
            if config.pre_hook:
                config.pre_hook({**self.nargs, **keywords, **values})
            number = self.configs.index(config) + 1 if config in self.configs else place
            has_hook = config.pre_hook or self.user_defined_pre_hook
            restored = None if has_hook else [*self.reset_to_zero, *self.restore_value]
            tuned = {"number": number, "of": len(self.configs), "restored": restored}
            context = {**recorder.context, **({"tuned": tuned} if is_tuned else {})}
            try:
                with mock.patch.object(recorder, "context", context):
                    return self.fn.run(*arguments, **keywords, **values)
            except _SKIPPED_BY_AUTOTUNER:
                if place == len(configs):
                    raise
                recorder.drop(count)


# ---------------------------------------------------------------- a machine without a GPU

_NOT_RUN = "which did not run"
_TOO_LARGE_FOR_HOST = "a tensor that does not fit in this machine's memory"
_VALUES = "Pass --values (in Python, values=True) to run launches in the interpreter."

# Results with fewer elements are computed without asking whether they fit in memory.
_MOST_UNASKED = 1 << 27
_MAP_NORESERVE = 0x4000  # of Linux; Python 3.13 names it
_CUDA = torch.device("cuda", 0)
_T: Any = torch.Tensor
_ANSWERS = {
    _T.device.__get__: _CUDA, _T.is_cuda.__get__: True, _T.is_cpu.__get__: False, _T.get_device: 0,
    _T.is_pinned: False, _T.record_stream: None,
}  # fmt: skip
_READS = {getattr(owner, name, None) for owner in (torch, _T) for name in (
    "item", "tolist", "numpy", "__dlpack__", "__bool__", "__int__", "__float__", "__index__", "__array__",
    "nonzero", "argwhere", "unique", "unique_consecutive", "bincount", "masked_select", "repeat_interleave", "equal",
    "allclose", "to_sparse", "to_sparse_csr", "to_sparse_csc", "to_sparse_bsr", "to_sparse_bsc",
)}  # fmt: skip


def _on_cpu(value: Any) -> Any:
    is_cuda = isinstance(value, str | torch.device) and re.fullmatch(r"cuda(:\d+)?", str(value))
    return torch.device("cpu") if is_cuda else value


def _compute(recorder: Recorder, function: Any, arguments: Sequence[Any], options: Values) -> Any:
    """Call a function of torch. Results that do not fit in memory have addresses, but no values."""
    leaves = tree_leaves((arguments, options))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    sizes = [tensor.numel() for tensor in tensors]
    sizes += [abs(leaf) for leaf in leaves if isinstance(leaf, int)]
    is_small = math.prod(filter(None, sizes)) < _MOST_UNASKED
    if is_small or function.__name__ in ("__get__", "data_ptr"):
        return function(*arguments, **options)
    outputs = list[FakeTensor]()
    # Fails if a shape depends on values, and in the script's own mode
    with FakeTensorMode() as mode, contextlib.suppress(Exception):
        given = list(arguments), options
        fakes, keywords = tree_map_only(torch.Tensor, mode.from_tensor, given)
        result = function(*fakes, **keywords)
        inputs = {mode.from_tensor(tensor): tensor for tensor in tensors}
        shared = {tensor.untyped_storage()._cdata for tensor in inputs}
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, FakeTensor)]
    memory = Path("/proc/meminfo").read_text()
    free_bytes = int(re.findall(r"MemAvailable: *(\d+)", memory)[0]) << 10
    storages = (output.untyped_storage() for output in outputs)
    new = [storage for storage in storages if storage._cdata not in shared]
    is_large = any(storage.nbytes() > free_bytes for storage in new)
    is_written = any(output in inputs for output in outputs)
    is_reserved = not recorder.reserved.isdisjoint(map(recorder.storage, tensors))
    if not (is_large or (is_reserved and (new or is_written))):
        return function(*arguments, **options)
    recorder.note(f"The values of {_TOO_LARGE_FOR_HOST} are unknown.")

    def reserve(output: FakeTensor) -> torch.Tensor:
        if output in inputs:
            return inputs[output]
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        addresses = mmap.mmap(-1, output.untyped_storage().nbytes() or 1, flags)
        storage = torch.frombuffer(addresses, dtype=torch.uint8).untyped_storage()
        tensor = torch.empty(0, dtype=output.dtype)
        tensor.set_(storage, output.storage_offset(), output.size(), output.stride())
        key = recorder.storage(tensor)
        recorder.reserved.add(key)
        recorder.unknown[key] = _TOO_LARGE_FOR_HOST
        return tensor.requires_grad_(output.requires_grad)

    return tree_map_only(FakeTensor, reserve, result)


class _AsIfCuda(torch.overrides.TorchFunctionMode, contextlib.ContextDecorator):
    """Make tensors report a CUDA device. Tensors created on or moved to the GPU stay in host memory."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, function: Any, kinds: Any, arguments: Any = (), keywords: Any = None
    ) -> Any:
        __tracebackhide__ = True  # pytest omits this frame
        keywords = keywords or {}
        if function in _ANSWERS and not arguments[0].is_meta:
            return _ANSWERS[function]
        if function in (_T.cuda, _T.pin_memory):
            return arguments[0]
        if function is torch.device:
            return _CUDA if arguments == (0,) else function(*arguments, **keywords)
        recorder = self._recorder
        options: Values = {
            name: name != "pin_memory" and _on_cpu(value) for name, value in keywords.items()
        }
        if type(options.get("device")) is int:
            options["device"] = "cpu"
        if function is _T.to and type(arguments[-1]) is int:
            return arguments[0]
        launch = recorder.find_unknown((arguments, options))
        arguments = [_on_cpu(value) for value in arguments]
        if not launch:
            return _compute(recorder, function, arguments, options)
        if function in (_T.__repr__, _T.__format__):
            return f"<unknown: {re.sub(', which| that', '', launch)}>"
        is_selection = function is torch.where and len(arguments) + len(options) == 1
        if function is _T.__getitem__:
            masks = [tensor for tensor in _tensors(arguments[1:]) if tensor.dtype == torch.bool]
            is_selection = bool(recorder.find_unknown(masks))
        if function in _READS or is_selection:
            raise recorder.refuse_read(function, launch)
        try:
            result = _compute(recorder, function, arguments, options)
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
        self._answers = {"query": True, **answers}

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


def _gpu_stand_ins(recorder: Recorder) -> Iterator[Any]:
    """Yield replacements, (owner, name, value), that make torch and Triton appear to have the recorder's GPU."""
    gpu = recorder.gpu
    major, minor = gpu["compute_capability"]
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
    nvml = {
        "nvmlDeviceGetCount": 1, "nvmlDeviceGetName": gpu["device_name"], "nvmlSystemGetDriverVersion": "580.65.06",
        "nvmlDeviceGetCudaComputeCapability": (major, minor),
        "nvmlDeviceGetMemoryInfo": types.SimpleNamespace(total=memory_bytes, free=memory_bytes, used=0),
    }  # fmt: skip
    implement = torch.library.Library.impl
    on_cuda = set[tuple[Any, str]]()
    own = threading.local()
    report_exception = threading.excepthook
    new_fake_tensor = FakeTensor.__new__
    fake_device: Any = FakeTensor.device
    new_shared = torch.UntypedStorage._new_shared

    def report_read(failure: Any) -> None:
        if issubclass(failure.exc_type, HostRead):
            recorder.note(str(failure.exc_value))
        else:
            report_exception(failure)

    def make_fake_tensor(*arguments: Any, **keywords: Any) -> FakeTensor:
        options = {name: _on_cpu(value) for name, value in keywords.items()}
        return new_fake_tensor(*map(_on_cpu, arguments), **options)

    def find_fake_device(self: FakeTensor) -> torch.device:
        device = fake_device.__get__(self)
        return _CUDA if device.type == "cpu" else device

    def answer_zero(name: str) -> Any:
        if not name.startswith("_cuda_"):
            raise AttributeError(f"module 'torch._C' has no attribute {name!r}")
        return _returning(int(name == "_cuda_getDeviceCount"))

    def implement_on_cpu(
        self: Any, op: Any, function: Any, dispatch_key: str = "", **keywords: Any
    ) -> Any:
        key = dispatch_key or self.dispatch_key
        is_short = isinstance(op, str) and "::" not in op
        name = f"{self.ns}::{op}" if is_short else op
        if key in ("CUDA", "AutogradCUDA") and self.ns not in ("_inductor_test", "fsdp"):
            key = key.replace("CUDA", "CPU")
            on_cuda.add((name, key))
            original: Any = None
            with contextlib.suppress(RuntimeError):  # an operator of the script's
                original = torch.library.get_kernel(name, key)

            def call(keys: Any, *arguments: Any, **options: Any) -> Any:
                is_recorder = torch._C._is_torch_function_all_disabled()
                is_running = name in vars(own)  # its calls of its own operator run on the CPU
                if original and (is_recorder or is_running or recorder.journal.closed):
                    return original.call_boxed(keys, *arguments, **options)
                # torch turns the mode off for its own calls
                with mock.patch.object(own, name, True, create=True), _AsIfCuda(recorder):
                    first = [keys] if keywords.get("with_keyset") else []
                    return function(*first, *arguments, **options)

            with contextlib.suppress(Exception):
                implement(self, op, call, key, **{**keywords, "with_keyset": True})
        elif (name, key) in on_cuda:
            return None  # tensors in host memory have the kernel for CUDA
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

    with contextlib.suppress(ImportError):
        pynvml = import_module("pynvml")
        names = [name for name in dir(pynvml) if name.startswith("nvml")]
        yield from ((pynvml, name, _returning(nvml.get(name))) for name in names)
    yield driver, "_active", active
    yield from ((torch.cuda, name, _returning(value)) for name, value in answers.items())
    kinds = "device", "device_of", "_DeviceGuard", "stream", "Stream", "Event"
    yield from ((torch.cuda, name, _Stub) for name in kinds)
    yield torch.cuda, "default_generators", (_Generator(),)
    yield torch.cuda, "_initialized", True
    yield torch._C, "__getattr__", answer_zero
    # Where Python or autograd runs the script's code without the mode
    thread: Any = threading.Thread
    for owner, name in ((thread, "_bootstrap_inner"), (torch.autograd, "_engine_run_backward")):
        yield owner, name, _AsIfCuda(recorder)(getattr(owner, name))
    yield threading, "excepthook", report_read
    processes = multiprocessing.context
    yield processes.SpawnProcess, "_Popen", staticmethod(processes.ForkProcess._Popen)
    for owner in (torch.cuda, torch.cuda.graphs):
        yield owner, "CUDAGraph", Graph
        yield owner, "graph", _Stub
        yield owner, "graph_pool_handle", _returning((0, 0))
        yield owner, "make_graphed_callables", make_graphed
    yield torch.cuda.nvtx, "_nvtx", _Stub()
    on_device = DeviceContext.__init__
    yield DeviceContext, "__init__", lambda self, name: on_device(self, _on_cpu(torch.device(name)))
    yield torch, "Generator", _Generator
    yield FakeTensor, "__new__", make_fake_tensor
    yield FakeTensor, "device", property(find_fake_device)
    yield torch.UntypedStorage, "_new_shared", staticmethod(lambda size, **_: new_shared(size))
    yield torch.serialization, "_get_restore_location", _returning(lambda storage, _: storage)
    guards: Any = torch._C._dynamo.guards
    yield guards, "_empty_strided_cuda", guards._empty_strided_cpu
    yield CompiledKernel, "_init_handles", _returning(None)
    yield CompiledKernel, "n_regs", property(lambda self: read_resources(self.kernel)[0])
    yield CompiledKernel, "n_spills", property(lambda self: read_resources(self.kernel)[1] // 4)
    yield torch.version, "cuda", torch.version.cuda or "13.0"
    yield torch_triton, "has_triton", _returning(True)
    yield torch.library.Library, "impl", implement_on_cpu


# ---------------------------------------------------------------- scripts and cases


def parse_settings(settings: Iterable[str], case: str, defaults: Values) -> dict[str, list[Any]]:
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
        kind = type(default)
        values: list[Any] = texts.split(",")
        if kind is not str:
            with contextlib.suppress(ValueError, SyntaxError):
                values = [
                    ast.literal_eval(text.capitalize() if kind is bool else text) for text in values
                ]
        if any(type(value) is not kind for value in values):
            allowed = f"a value of type {kind.__name__}, such as {default!r}"
            raise UsageError(f"--set {setting}: {name} must be {allowed}.")
        result[name] = values
    return result


def run_case(recorder: Recorder, name: str, function: Any, settings: Values) -> None:
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
    code = inspect.unwrap(function).__code__
    recorder.context["caller"] = {"file": code.co_filename, "line": code.co_firstlineno}
    kernel[grid](**keywords)
    if len(recorder.launches) == count:
        return  # the grid is empty
    launch = recorder.launches[-1]
    if expected and launch.content["ran"]:
        results = {
            output: compare(keywords[output], result) for output, result in expected[0].items()
        }
        recorder.keep(launch, results=results)
    if launch.content["ran"] == "cuda" and recorder.is_timed:
        call = functools.partial(kernel[grid], **keywords)
        with recorder.paused():
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


def compare(result: torch.Tensor, reference: torch.Tensor) -> Values:
    """Return the errors of an output. It passes if its relative RMS error is at most 8 × its dtype's epsilon."""
    difference = result.double() - reference.double()
    scale = float(reference.double().square().mean().sqrt()) or 1.0
    rms = float(difference.square().mean().sqrt()) / scale
    most = float(difference.abs().max())
    epsilon = torch.finfo(result.dtype).eps if result.dtype.is_floating_point else 0.0
    return {"relative_rms": rms, "max_abs_error": most, "passed": rms <= 8 * epsilon}


def read_program(
    recorder: Recorder, target: str, is_module: bool
) -> tuple[list[types.CodeType], Values]:
    """Compile a script, a notebook or a module, and put its folder on the path, as Python does.

    Return the code objects, in order, and the module's attributes.
    """
    path = Path(target).resolve()
    if not (is_module or path.is_file()):
        raise UsageError(f"There is no script {target}.")
    if not sys.flags.safe_path:
        sys.path.insert(0, str(Path.cwd() if is_module else path.parent))
    try:
        if is_module:
            _, spec, code = runpy._get_module_details(target, UsageError)  # type: ignore[attr-defined]
            names = "__spec__", "__file__", "__package__", "__loader__"
            values = spec, spec.origin, spec.parent, spec.loader
            return [code], dict(zip(names, values, strict=True))
        if path.suffix == ".ipynb":

            def get_ipython() -> _Stub:
                recorder.note("Calls of get_ipython's methods did nothing.")
                return _Stub()

            attributes = {"display": print, "get_ipython": get_ipython}
            return _compile_cells(recorder, path), attributes
        name = os.fsencode(path).decode(errors="replace")  # Triton needs UTF-8
        linecache.cache[name] = 0, None, linecache.getlines(str(path)), name
        code = compile(path.read_bytes(), name, "exec")
        return [code], {"__file__": str(path)}
    except UsageError:
        raise UsageError(f"There is no module {target} that `python -m` can run.") from None
    except (SyntaxError, ValueError, RecursionError) as error:
        is_notebook = path.suffix == ".ipynb" and not isinstance(error, SyntaxError)
        kind = "a notebook" if is_notebook else "Python"
        raise UsageError(f"{target} is not {kind}: {error}.") from None


def _compile_cells(recorder: Recorder, path: Path) -> list[types.CodeType]:
    """Compile a notebook's code cells. A cell's file name is the notebook's with the number that Jupyter gives it."""
    codes = list[types.CodeType]()
    notebook = json.loads(path.read_bytes())
    try:
        cells = [
            (cell.get("cell_type"), "".join(cell.get("source", ""))) for cell in notebook["cells"]
        ]
    except (AttributeError, KeyError, TypeError):
        raise ValueError("it has no cells with a source") from None
    for kind, text in cells:
        if kind == "code" and text.strip():
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
    recorder: Recorder,
    codes: Sequence[types.CodeType],
    attributes: Values,
    title: str,
    case: str,
    settings: Sequence[str],
) -> None:
    """Run code as `__main__`, then the named case, or all cases if the code launched nothing.

    Args:
        attributes: of the module.
    """
    module = types.ModuleType("__main__")
    names = vars(module)
    names.update(attributes)
    ended = None
    sys.modules["__main__"] = module
    try:
        for code in codes:
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
        if isinstance(ended, HostRead) and any(case in code.co_names for code in codes):
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


def describe_stop(error: BaseException, title: str) -> Values:
    """Return the JSON that says where and why a program ended early."""
    frames = list[traceback.FrameSummary](traceback.extract_tb(error.__traceback__))
    # Kernels have no frames: an error names the source of the function that the compiler visited
    link: BaseException | None = error
    while isinstance(link, CompilationError):
        for function in gc.get_objects():
            if issubclass(type(function), jit.JITFunction) and function.src == link.src:
                lines, first = inspect.getsourcelines(function.fn)
                first += [line.lstrip()[:4] for line in lines].index("def ")
                file = function.fn.__code__.co_filename
                number = first + getattr(link.node, "lineno", 1) - 1
                frames.append(traceback.FrameSummary(file, number, ""))
        link = link.__cause__
    line = _users_line(frames)
    if isinstance(error, SystemExit):
        if isinstance(error.code, int):
            return line | _describe_exit(title, int(error.code), "")
        return line | _describe_exit(title, 1, f": {_text(error.code)}")
    message = f"{title} raised {_summarize(error)}"
    advice = (text for pattern, text in _ADVICE.items() if re.search(pattern, message))
    notes = map(_text, getattr(error, "__notes__", []))
    message = "; ".join([". ".join([message, *advice]), *notes])
    return {**line, "kind": "exception", "message": message}


def _describe_exit(title: str, status: int, text: str) -> Values:
    message = f"{title} exited with status {status}{text}"
    return {"kind": "exit", "status": status, "message": message[:300]}


def _summarize(error: Any) -> str:
    """Return an exception's type and the first line of its message. Of a CompilationError, return the reason."""
    while isinstance(error, CompilationError) and isinstance(error.__cause__, CompilationError):
        error = error.__cause__
    text = getattr(error, "error_message", "") or _text(error).partition("\n")[0]
    return " ".join(f"{type(error).__name__}: {text}".split()).rstrip(":")[:300]


def _text(value: Any) -> str:
    """Return a value's text, as Python prints it if the value's own method raises an exception."""
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__} str() failed>"


def print_exception(error: BaseException) -> None:
    """Print a traceback as plain Python does: without the frames of this file and of torch's dispatch to it."""
    described = traceback.TracebackException.from_exception(error)
    chain = [described]
    for link in chain:
        chain += filter(None, (link.__cause__, link.__context__))
        link.stack[:] = (
            f for f in link.stack if f.filename not in (__file__, torch.overrides.__file__)
        )
    described.print()


def this_gpu() -> Values:
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
    `recompile`; the reply is its result. Scripts run in forks of this process, which has imported torch and Triton.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, (*_BLOCKED, SIGUSR1, SIGUSR2))
    tempfile.tempdir = os.environ.get(_FOLDER)
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
    parser = argparse.ArgumentParser()
    add = parser.add_argument
    add("--out", type=Path, required=True)
    add("--gpu-json", type=json.loads)
    add("--config", action="append", default=[])
    add("--set", action="append", default=[])
    for name in ("--values", "--untimed", "-m"):
        add(name, action="store_true")
    add("script")
    add("arguments", nargs=argparse.REMAINDER)
    flags = parser.parse_args(command_line)
    try:
        check_output(flags.out)
        folder = Path(tempfile.mkdtemp(prefix="tilescope-"))
        try:
            status = 0
            if flags.untimed:  # under a profiler, which may not follow a fork
                record_script(flags, folder)
            else:
                # The costly steps of a process's first compile: its forks skip them
                triton_key()
                gc.freeze()
                if SIGUSR1 in signal.sigpending():
                    return "Interrupted before the script started."
                status = _run_in_fork(flags, folder)
            script = Path(split_case(flags.script)[0]).name
            return write_capture(folder, flags.out, script, status)
        finally:
            shutil.rmtree(folder)
    except OSError as error:
        return f"--out {flags.out} cannot be written ({error.strerror})."


def _run_in_fork(flags: argparse.Namespace, folder: Path) -> int:
    """Record a script. Return the exit status of its process, or minus the signal that killed it."""
    if child := os.fork():
        return _wait(child)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, SIGKILL)
    tempfile.tempdir = None
    temporary_file = functools.partial(tempfile.NamedTemporaryFile, dir=folder)
    # Triton deletes the files of a compile, unless it is killed.
    vars(nvidia_compiler)["tempfile"] = types.SimpleNamespace(NamedTemporaryFile=temporary_file)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*_BLOCKED, *_PASSED_ON))
    faulthandler.enable()
    try:
        record_script(flags, folder)
    except BaseException as error:  # such as Ctrl+C while the script's threads end
        print_exception(error)
        _exit(1)
    _exit()


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
    """Wait for a process, and pass signals on to it. Return its exit status, or minus the signal."""
    while True:
        number = signal.sigwait((SIGCHLD, *_PASSED_ON))
        if number == SIGUSR1 and SIGINT in signal.sigpending():
            signal.sigwait((SIGINT,))  # the terminal has interrupted the child, too
        elif number != SIGCHLD:
            os.kill(child, _PASSED_ON[signal.Signals(number)])
        else:
            process, status = os.waitpid(child, os.WNOHANG)
            if process:
                return os.waitstatus_to_exitcode(status)


def record_script(flags: argparse.Namespace, folder: Path) -> None:
    """Run a script, and record its launches and how it ended."""
    target, case = split_case(flags.script)
    title = Path(target).name
    here = this_gpu() if torch.cuda.is_available() else {}
    gpu = {**H200, **(flags.gpu_json or here)}
    is_here = here and all(here[name] == gpu[name] for name in ("sms", "compute_capability"))
    runs = "cuda" if is_here else "interpreter" if flags.values else ""
    pairs = re.findall(r"^(\w+)=(\d+)$", "\n".join(flags.config), re.MULTILINE)
    configs = {name: int(number) for name, number in pairs}
    with recording(folder, gpu, runs, configs=configs, is_timed=not flags.untimed) as recorder:
        if here and not is_here:
            recorder.note(
                f"Nothing ran on the GPU: this machine has {here['name']}, but --gpu is {gpu['name']}."
            )
        try:
            if len(pairs) < len(flags.config):
                raise UsageError(f"--config must be KERNEL=N (got {' '.join(flags.config)}).")
            # As Python does while it imports the package of a module
            sys.argv = ["-m" if flags.m else target, *flags.arguments]
            codes, attributes = read_program(recorder, target, flags.m)
            if flags.m:
                sys.argv[0] = attributes["__file__"]
            run_program(recorder, codes, attributes, title, case, flags.set)
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
        except HostRead:
            recorder.write("stopped", recorder.read)
        except SystemExit as error:
            if not isinstance(error.code, int | None):
                print(_text(error.code), file=sys.stderr)
            if error.code:
                recorder.write("stopped", describe_stop(error, title))
        except BaseException as error:
            print_exception(error)
            recorder.keep_failed(error)
            recorder.write("stopped", describe_stop(error, title))
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as plain Python does at its end
        atexit._run_exitfuncs()
        _LOCK.acquire()  # daemon threads stop at their next launch
        recorder.write("is_complete", True)


def main() -> None:
    status = 0
    if sys.argv[1:2] == ["--serve"]:
        serve(int(sys.argv[2]))
        _exit()
    is_untimed = "--untimed" in sys.argv
    if not is_untimed:
        signal.pthread_sigmask(signal.SIG_BLOCK, (*_BLOCKED, *_PASSED_ON))
    if message := capture(sys.argv[1:]):
        print(message, file=sys.stderr)
        status = 2
    if is_untimed:  # a profiler may need the process's own exit
        sys.exit(status)
    _exit(status)


if __name__ == "__main__":
    main()
