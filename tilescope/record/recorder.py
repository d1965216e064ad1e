"""Record launches: their grids, arguments, kernels, and the values on which their addresses depend."""

import contextlib
import hashlib
import itertools
import json
import math
import os
import sys
import threading
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from triton.runtime import OutOfResources, jit

from . import Values
from .arguments import (
    as_compiled,
    bind,
    describe_arguments,
    find_tensors,
    own_tensor,
    storage_start,
)
from .compiled import STAGES, describe_kernel, plain, read_ttgir, tensor_columns
from .tracebacks import current_line, describe_place

# Maximum bytes of all arrays in the file.
MOST_BYTES = 60 << 20

# Counts depend on addresses modulo this: see `tilescope/evaluate/sectors.py`.
_ADDRESS_RANGE = 1 << 29

# Columns of an SM's tensor memory. Triton checks them when it loads the kernel.
_TENSOR_COLUMNS = 512

# Threads of a program.
_MOST_THREADS = 1024
# Maximum number of programs along each axis of a grid.
_MOST_PROGRAMS = [2**31 - 1, 65535, 65535]

# Held while a launch is recorded and while the process forks, so that other threads and forks never see part of one.
LOCK = threading.RLock()
os.register_at_fork(before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release)

H200: Values = {
    "name": "H200", "device_name": "NVIDIA H200", "sms": 132, "compute_capability": [9, 0], "l2_bytes": 60 << 20,
    "shared_bytes_per_sm": 228 << 10, "shared_bytes_per_program": 227 << 10, "registers_per_sm": 65536,
    "max_warps_per_sm": 64, "clock_mhz": 1830, "dram_gbps": 4800, "bus_bits": 6144, "memory_gib": 141,
}  # fmt: skip

TOO_LARGE = (
    f"Addresses depend on the values of {{}}. A capture keeps at most {MOST_BYTES >> 20} MiB of values, so \
make the tensors smaller."
)

_IN_GRAPH = (
    "Addresses depend on the values of {}, which can't be copied while a CUDA graph records the launch. Launch \
the kernel outside the graph, too."
)

_NOT_OF_GPU = "{} measures time with {}: during a capture, the result is not the GPU's time."
_NOT_RUN = "which did not run"
ADVICE = "Pass --values (in Python, values=True) to run launches in the interpreter."

RUN = jit.JITFunction.run


class HostRead(BaseException):
    """The script reads a result of a launch that did not run. `except Exception` in the script does not catch it."""


class UsageError(Exception):
    """The command line is wrong. The message is one sentence."""


class RecordedLaunch(NamedTuple):
    """A recorded launch.

    Attributes:
        number: its number in its process.
        function: the kernel's jitted function.
        compiled: the compiled kernel.
        content: the launch's JSON.
    """

    number: int
    function: Any
    compiled: Any
    content: Values


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
        max_bytes: without a GPU, the values of larger tensors are not computed.
        maps_memory: as for `describe_kernel`.

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
        max_bytes: int = sys.maxsize,
        maps_memory: bool = True,
    ) -> None:
        self.gpu = gpu
        self.runs = runs
        self.tunes = tunes
        self.configs = configs
        self.is_timed = is_timed
        self.max_bytes = max_bytes
        self.maps_memory = maps_memory
        self.folder = folder
        self.process = os.getpid()
        self.journal = (folder / "journal").open("ab", buffering=0)
        self.launches = list[RecordedLaunch]()
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

    def name(self, launch: RecordedLaunch) -> str:
        is_child = os.getpid() != self.process
        place = f" of process {os.getpid()}" if is_child else ""
        return f"launch {launch.number} ({launch.function.__name__}){place}"

    def note(self, text: str) -> None:
        """Add a sentence to `not_captured`."""
        self.write("not_captured", text, text)

    def note_timing(self, name: str) -> None:
        """Say that the script measures time, unless it measures it with launches that are not recorded."""
        if not self.is_paused():
            self.note(_NOT_OF_GPU.format(describe_place(current_line()), name))

    def keep(self, launch: RecordedLaunch, **changes: Any) -> None:
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

    def is_capturing_graph(self) -> bool:
        """Return whether a CUDA graph records the launches."""
        return self.runs == "cuda" and torch.cuda.is_current_stream_capturing()

    def record(
        self, function: Any, arguments: Sequence[Any], grid: Any, keywords: Values
    ) -> tuple[RecordedLaunch, Values]:
        """Compile and describe a launch. Return it and its arguments by name.

        Raises:
            OutOfResources: too much memory or too many threads. `keep_failed` adds the error's `launch`.
        """
        values, options, sizes = bind(function, arguments, grid, keywords)
        with torch._C.DisableTorchFunction():
            stand_ins = {name: as_compiled(value) for name, value in values.items()}
            compiled = RUN(function, grid=sizes, warmup=True, **stand_ins, **options)
            described = describe_arguments(
                compiled.src.signature,
                stand_ins,
                self._describe_tensor,
                not self.gpu.get("arch") and tuple(self.gpu["compute_capability"]) >= (9, 0),
            )
            kernel = self._keep_kernel(compiled)
            for number in read_ttgir(compiled.asm["ttgir"]).needed:
                self._keep_values(described[number])
        self.bases.clear()
        constants = [p.name for p in function.params if p.is_constexpr]
        config = {name: plain(values[name]) for name in constants}
        config["num_warps"] = compiled.metadata.num_warps
        config["num_stages"] = getattr(compiled.metadata, "num_stages", None)
        content = {
            "grid": [*sizes, 1, 1][:3], "caller": current_line(), **self.context, "config": config, "ran": False,
            "elapsed_ms": None, "results": None, "kernel": kernel, "arguments": described,
        }  # fmt: skip
        launch = RecordedLaunch(len(self.launches), function, compiled, content)
        if self._check(launch):
            self._add(launch)
        return launch, values

    def _check(self, launch: RecordedLaunch) -> bool:
        """Return whether Triton launches any program. Raise the exceptions that it would raise."""
        grid = launch.content["grid"]
        if math.prod(grid) < 1:
            place = describe_place(launch.content["caller"])
            name = launch.function.__name__
            self.note(f"{place} launches {name} with an empty grid, {grid}, which Triton skips.")
            return False
        if min(grid) < 1 or any(map(int.__gt__, grid, _MOST_PROGRAMS)):
            error = RuntimeError("Triton Error [CUDA]: invalid argument")
            error.add_note(f"the grid is {grid}, and a GPU allows at most {_MOST_PROGRAMS}")
            raise error
        metadata = launch.compiled.metadata
        limit = self.gpu["shared_bytes_per_program"]
        for needed, most, what in (
            (metadata.shared, limit, "shared memory"),
            (tensor_columns(metadata), _TENSOR_COLUMNS, "tensor memory"),
            (metadata.num_warps * metadata.target.warp_size, _MOST_THREADS, "threads"),
        ):
            if needed > most:
                failure = OutOfResources(needed, most, what)
                failure.launch = launch
                raise failure
        return True

    def _add(self, launch: RecordedLaunch) -> None:
        self.launches.append(launch)
        self.keep(launch)

    def keep_failed(self, error: BaseException | None) -> None:
        """Add the launch that ended the script because it needs too much memory of an SM, if there is one.

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
        with LOCK:
            key, reference = self.storages.get(_address(tensor), ("", None))
            # A later storage may have the same address
            if reference is None or reference.expired():
                memory = tensor.untyped_storage()
                key = f"{os.getpid()}.{next(self.counter)}"
                self.storages[_address(tensor)] = key, StorageWeakRef(memory)
                address = storage_start(tensor) % _ADDRESS_RANGE
                self.write("storages", {"bytes": memory.nbytes(), "address_bytes": address}, key)
            return key

    def _keep_values(self, argument: Values) -> None:
        """Copy the storage of an argument on whose values addresses, masks or branches depend."""
        tensor = own_tensor(argument)
        if not (tensor and tensor["is_known"]):
            return
        base = self.bases[tensor["storage"]]
        if tensor["dtype"] != _dtype(base):
            return
        memory = base.untyped_storage()
        name = argument["name"]
        why = ""
        elements = np.empty(0)
        if self.is_capturing_graph():
            why = _IN_GRAPH.format(name)
        elif memory.nbytes() > MOST_BYTES:
            why = TOO_LARGE.format(f"{name}, {memory.nbytes() >> 20:,} MiB")
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
            for stage in compiled.asm.keys() & {*STAGES}:
                (self.folder / f"{key}.{stage}").write_text(compiled.asm[stage])
            if "cubin" in compiled.asm:
                (self.folder / f"{key}.cubin").write_bytes(compiled.asm["cubin"])
            self.write("kernels", describe_kernel(compiled, self.maps_memory), key)
        return key

    def find_unknown(self, values: Any) -> str:
        """Return the launch that did not run and that one of the tensors depends on; "" if there is none."""
        if not self.unknown and not self.pointees:
            return ""
        with torch._C.DisableTorchFunction():
            for tensor in find_tensors(values):
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
        line = current_line()
        tensor = f"a tensor (with {function.__name__}) that depends on {launch}."
        advice = f" {ADVICE}" if launch.endswith(_NOT_RUN) else ""
        message = f"{describe_place(line)} reads {tensor}{advice}"
        self.read = {**line, "kind": "host_read", "message": message}
        self.write("read", self.read)
        return HostRead(message)

    def mark_unknown(self, launch: RecordedLaunch) -> None:
        """Remember the tensors that a launch would have stored to."""
        name = f"{self.name(launch)}, {_NOT_RUN}"
        facts = read_ttgir(launch.compiled.asm["ttgir"])
        tensors = list(map(own_tensor, launch.content["arguments"]))
        self.unknown |= {
            tensors[number]["storage"]: name for number in facts.stored if tensors[number]
        }
        for number in facts.tables:
            array = (tensors[number] or {}).get("array")
            path = self.folder / f"{array}.npy"
            if path.exists():
                self.pointees.append((name, np.sort(np.load(path))))


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _address(tensor: torch.Tensor) -> tuple[str, int]:
    return tensor.device.type, tensor.untyped_storage().data_ptr()
