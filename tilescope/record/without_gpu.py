"""Make torch and Triton appear to have a GPU: stand-ins for tensors in host memory, drivers, streams and operators."""

import math
import mmap
import multiprocessing
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ContextDecorator, nullcontext, suppress
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import _meta_registrations
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses import FakeTensor
from torch.utils import _triton as torch_triton
from torch.utils._device import DeviceContext
from torch.utils._pytree import tree_leaves, tree_map_only
from triton.backends.nvidia.driver import CudaDriver
from triton.compiler import CompiledKernel
from triton.runtime import driver

from . import Values
from .allocation import make_target
from .arguments import find_tensors
from .compiled import read_amd_resources, read_resources
from .recorder import HostRead, Recorder

# An object, the name of one of its attributes, and the attribute's replacement.
Patch = tuple[Any, str, Any]

_TOO_LARGE_FOR_HOST = "a tensor that does not fit in this machine's memory"

# Results with fewer elements are computed without asking whether they fit in memory.
_MOST_UNASKED = 1 << 27
_MAP_NORESERVE = 0x4000  # of Linux; Python 3.13 names it
_CUDA = torch.device("cuda", 0)
_T: Any = torch.Tensor
_ANSWERS = {
    _T.device.__get__: _CUDA, _T.is_cuda.__get__: True, _T.is_cpu.__get__: False, _T.get_device: 0,
    _T.is_pinned: False, _T.record_stream: None,
}  # fmt: skip
_READ_NAMES = """
item tolist numpy __dlpack__ __bool__ __int__ __float__ __index__ __array__ equal allclose
nonzero argwhere unique unique_consecutive bincount masked_select repeat_interleave
to_sparse to_sparse_csr to_sparse_csc to_sparse_bsr to_sparse_bsc
"""
_READS = {getattr(owner, name, None) for owner in (torch, _T) for name in _READ_NAMES.split()}


def _on_cpu(value: Any) -> Any:
    is_cuda = isinstance(value, str | torch.device) and re.fullmatch(r"cuda(:\d+)?", str(value))
    return torch.device("cpu") if is_cuda else value


def _returning(value: Any) -> Any:
    return lambda *_, **__: value


class AsIfCuda(torch.overrides.TorchFunctionMode, ContextDecorator):
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
            masks = [mask for mask in find_tensors(arguments[1:]) if mask.dtype == torch.bool]
            is_selection = bool(recorder.find_unknown(masks))
        if function in _READS or is_selection:
            raise recorder.refuse_read(function, launch)
        try:
            result = _compute(recorder, function, arguments, options)
        except (IndexError, RuntimeError) as error:
            # An index from a launch that did not run may be out of range
            raise recorder.refuse_read(function, launch) from error
        with torch._C.DisableTorchFunction():
            recorder.unknown |= {recorder.storage(each): launch for each in find_tensors(result)}
        return result


class UninitializedTensors(torch.overrides.TorchFunctionMode):
    """The tensors from `torch.empty` and its variants that no function of torch has written."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder
        self._storages = set[str]()

    def __torch_function__(
        self, function: Any, kinds: Any, arguments: Any = (), keywords: Any = None
    ) -> Any:
        result = function(*arguments, **(keywords or {}))
        name = function.__name__
        if "empty" in name:
            self._storages |= self._find_storages(result)
        elif "out" in (keywords or {}) or (name.endswith("_") and name != "__get__"):
            self._storages -= self._find_storages((arguments, keywords))
        return result

    def _find_storages(self, values: Any) -> set[str]:
        with torch._C.DisableTorchFunction():
            return {self._recorder.storage(tensor) for tensor in find_tensors(values)}

    def __contains__(self, tensor: torch.Tensor) -> bool:
        return self._find_storages(tensor) <= self._storages


def _compute(recorder: Recorder, function: Any, arguments: Sequence[Any], options: Values) -> Any:
    """Call a function of torch. Results that do not fit in memory have addresses, but no values."""
    leaves = tree_leaves((arguments, options))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    is_small = _multiply_sizes(leaves) < min(_MOST_UNASKED, recorder.max_bytes // 8)
    if is_small or function.__name__ in ("__get__", "data_ptr"):
        return function(*arguments, **options)
    outputs = list[torch.Tensor]()
    # Tensors on the meta device have no values, so this fails if a shape depends on values.
    with torch.device("meta"), suppress(Exception):
        metas = {tensor: tensor.to("meta") for tensor in tensors}
        inputs = {meta: tensor for tensor, meta in metas.items()}
        given = list(arguments), {**options, "device": "meta"} if "device" in options else options
        positional, named = tree_map_only(torch.Tensor, metas.__getitem__, given)
        named.pop("generator", None)
        # Meta tensors of random functions would import sympy, which takes seconds
        infer = torch.empty if function in (torch.rand, torch.randn) else function
        try:
            result = infer(*positional, **named)
        except NotImplementedError:  # see `use_compiled_meta_functions`
            with enable_python_dispatcher():
                result = infer(*positional, **named)
        shared = {meta.untyped_storage()._cdata for meta in inputs}
        outputs = list(find_tensors(result))
    storages = (output.untyped_storage() for output in outputs)
    new = [storage for storage in storages if storage._cdata not in shared]
    max_bytes = min(_read_free_bytes(), recorder.max_bytes)
    is_large = any(storage.nbytes() > max_bytes for storage in new)
    is_written = any(output in inputs for output in outputs)
    is_reserved = not recorder.reserved.isdisjoint(map(recorder.storage, tensors))
    if not (is_large or (is_reserved and (new or is_written))):
        return function(*arguments, **options)
    recorder.note(f"The values of {_TOO_LARGE_FOR_HOST} are unknown.")

    def reserve(output: torch.Tensor) -> torch.Tensor:
        return inputs[output] if output in inputs else _reserve(recorder, output)

    return tree_map_only(torch.Tensor, reserve, result)


def use_compiled_meta_functions() -> None:
    """Find the shapes of results with torch's compiled functions. Those in Python import sympy, which takes seconds.

    Afterwards, functions of meta tensors that exist only in Python need torch's Python dispatcher.
    """
    _meta_registrations._meta_lib_dont_use_me_use_register_meta._destroy()


def _multiply_sizes(leaves: Sequence[Any]) -> int:
    """Return an upper bound of the elements of a result: the product of all numbers and sizes of tensors."""
    sizes = [leaf.numel() for leaf in leaves if isinstance(leaf, torch.Tensor)]
    sizes += [abs(leaf) for leaf in leaves if isinstance(leaf, int)]
    return math.prod(filter(None, sizes))


def _read_free_bytes() -> int:
    memory = Path("/proc/meminfo").read_text()
    return int(re.findall(r"MemAvailable: *(\d+)", memory)[0]) << 10


def _reserve(recorder: Recorder, output: torch.Tensor) -> torch.Tensor:
    """Return a tensor with addresses for which there is no memory."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    addresses = mmap.mmap(-1, output.untyped_storage().nbytes() or 1, flags)
    storage = torch.frombuffer(addresses, dtype=torch.uint8).untyped_storage()
    tensor = torch.empty(0, dtype=output.dtype)
    tensor.set_(storage, output.storage_offset(), output.size(), output.stride())
    key = recorder.storage(tensor)
    recorder.reserved.add(key)
    recorder.unknown[key] = _TOO_LARGE_FOR_HOST
    return tensor.requires_grad_(output.requires_grad)


class Stub(ContextDecorator, nullcontext[None]):
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


def gpu_stand_ins(recorder: Recorder) -> Iterator[Patch]:
    """Yield replacements that make torch and Triton appear to have the recorder's GPU."""
    properties = _make_properties(recorder.gpu)
    yield driver, "_active", _make_driver(properties)
    yield from _patch_nvml(properties)
    yield from _patch_cuda(properties)
    yield from _patch_graphs(recorder)
    yield from _patch_threads(recorder)
    yield from _patch_tensors()
    yield CompiledKernel, "_init_handles", _returning(None)
    yield CompiledKernel, "n_regs", property(lambda self: _read_resources(self)[0])
    yield CompiledKernel, "n_spills", property(lambda self: _read_resources(self)[1] // 4)
    yield torch_triton, "has_triton", _returning(True)
    yield torch.library.Library, "impl", _make_impl(recorder)


def _read_resources(compiled: Any) -> tuple[int, int]:
    if amdgcn := compiled.asm.get("amdgcn"):
        return read_amd_resources(amdgcn)
    return read_resources(compiled.kernel)


def _make_properties(gpu: Values) -> Any:
    """Return a GPU's properties, as of `torch.cuda.get_device_properties`."""
    major, minor = gpu["compute_capability"]
    arch = gpu.get("arch", "")
    lanes = 64 if arch else 32
    return SimpleNamespace(
        name=gpu["device_name"], major=major, minor=minor, multi_processor_count=gpu["sms"], warp_size=lanes,
        total_memory=gpu["memory_gib"] << 30, max_threads_per_multi_processor=lanes * gpu["max_warps_per_sm"],
        gcnArchName=arch, max_threads_per_block=1024, regs_per_multiprocessor=gpu["registers_per_sm"],
        shared_memory_per_block=49152, L2_cache_size=gpu["l2_bytes"], is_integrated=0,
        shared_memory_per_block_optin=gpu["shared_bytes_per_program"],
        shared_memory_per_multiprocessor=gpu["shared_bytes_per_sm"], clock_rate=round(1000 * gpu["clock_mhz"]),
        memory_clock_rate=round(4e6 * gpu["dram_gbps"] / gpu["bus_bits"]),  # two transfers per clock
        memory_bus_width=gpu["bus_bits"],
    )  # fmt: skip


def _make_driver(gpu: Any) -> Any:
    """Return a stand-in for Triton's driver."""
    # Kernels keep their code by device: a recording for another GPU, or a launch on this machine's, needs other code.
    arch = 10 * gpu.major + gpu.minor
    active: Any = Stub(
        get_current_target=make_target(gpu.gcnArchName or arch), get_device_capability=(gpu.major, gpu.minor),
        get_current_device=arch, get_current_stream=0, get_device_interface=torch.cuda, get_active_torch_device=_CUDA,
    )  # fmt: skip
    active.utils = Stub(cuOccupancyMaxActiveClusters=gpu.multi_processor_count, get_device_properties={
        "max_shared_mem": gpu.shared_memory_per_block_optin, "max_num_regs": gpu.regs_per_multiprocessor,
        "warpSize": gpu.warp_size, "multiprocessor_count": gpu.multi_processor_count, "sm_clock_rate": gpu.clock_rate,
        "mem_clock_rate": gpu.memory_clock_rate, "mem_bus_width": gpu.memory_bus_width,
    })  # fmt: skip
    return active


def _patch_nvml(gpu: Any) -> Iterator[Patch]:
    memory = SimpleNamespace(total=gpu.total_memory, free=gpu.total_memory, used=0)
    answers = {
        "nvmlDeviceGetCount": 1, "nvmlDeviceGetName": gpu.name, "nvmlSystemGetDriverVersion": "580.65.06",
        "nvmlDeviceGetCudaComputeCapability": (gpu.major, gpu.minor), "nvmlDeviceGetMemoryInfo": memory,
    }  # fmt: skip
    with suppress(ImportError):
        pynvml = import_module("pynvml")
        names = [name for name in dir(pynvml) if name.startswith("nvml")]
        yield from ((pynvml, name, _returning(answers.get(name))) for name in names)


def _patch_cuda(gpu: Any) -> Iterator[Patch]:
    answers = {
        "is_available": True, "device_count": 1, "current_stream": Stub(), "default_stream": Stub(),
        "is_current_stream_capturing": False, "_get_device_index": 0, "get_device_properties": gpu,
        "mem_get_info": (gpu.total_memory, gpu.total_memory), "get_arch_list": [f"sm_{gpu.major}{gpu.minor}"],
    }  # fmt: skip

    def answer_zero(name: str) -> Any:
        if not name.startswith("_cuda_"):
            raise AttributeError(f"module 'torch._C' has no attribute {name!r}")
        return _returning(int(name == "_cuda_getDeviceCount"))

    yield from ((torch.cuda, name, _returning(value)) for name, value in answers.items())
    kinds = "device", "device_of", "_DeviceGuard", "stream", "Stream", "Event"
    yield from ((torch.cuda, name, Stub) for name in kinds)
    yield torch.cuda.random, "device_count", _returning(1)
    yield torch.cuda, "default_generators", (_Generator(),)
    yield torch.cuda, "_initialized", True
    yield torch.cuda.nvtx, "_nvtx", Stub()
    yield torch._C, "__getattr__", answer_zero
    is_amd = bool(gpu.gcnArchName)
    yield torch.version, "cuda", None if is_amd else torch.version.cuda or "13.0"
    yield torch.version, "hip", "7.0" if is_amd else None


def _patch_graphs(recorder: Recorder) -> Iterator[Patch]:
    class Graph(Stub):
        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__()
            recorder.note(
                "The code in a CUDA graph ran once, without a graph. Replaying the graph launched nothing."
            )

    def make_graphed(calls: Any, *_: Any, **__: Any) -> Any:
        Graph()
        return calls

    for owner in (torch.cuda, torch.cuda.graphs):
        yield owner, "CUDAGraph", Graph
        yield owner, "graph", Stub
        yield owner, "graph_pool_handle", _returning((0, 0))
        yield owner, "make_graphed_callables", make_graphed


def _patch_threads(recorder: Recorder) -> Iterator[Patch]:
    """Yield replacements where Python or autograd runs the script's code without the mode."""
    report_exception = threading.excepthook

    def report_read(failure: Any) -> None:
        if issubclass(failure.exc_type, HostRead):
            recorder.note(str(failure.exc_value))
        else:
            report_exception(failure)

    thread: Any = threading.Thread
    for owner, name in ((thread, "_bootstrap_inner"), (torch.autograd, "_engine_run_backward")):
        yield owner, name, AsIfCuda(recorder)(getattr(owner, name))
    yield threading, "excepthook", report_read
    processes = multiprocessing.context
    yield processes.SpawnProcess, "_Popen", staticmethod(processes.ForkProcess._Popen)


def _patch_tensors() -> Iterator[Patch]:
    """Yield replacements that create tensors for a CUDA device in host memory."""
    new_fake_tensor = FakeTensor.__new__
    fake_device: Any = FakeTensor.device
    new_shared = torch.UntypedStorage._new_shared
    on_device = DeviceContext.__init__

    def make_fake_tensor(*arguments: Any, **keywords: Any) -> FakeTensor:
        options = {name: _on_cpu(value) for name, value in keywords.items()}
        return new_fake_tensor(*map(_on_cpu, arguments), **options)

    def find_fake_device(self: FakeTensor) -> torch.device:
        device = fake_device.__get__(self)
        return _CUDA if device.type == "cpu" else device

    yield DeviceContext, "__init__", lambda self, name: on_device(self, _on_cpu(torch.device(name)))
    yield torch, "Generator", _Generator
    yield FakeTensor, "__new__", make_fake_tensor
    yield FakeTensor, "device", property(find_fake_device)
    yield torch.UntypedStorage, "_new_shared", staticmethod(lambda size, **_: new_shared(size))
    yield torch.serialization, "_get_restore_location", _returning(lambda storage, _: storage)
    guards: Any = torch._C._dynamo.guards
    yield guards, "_empty_strided_cuda", guards._empty_strided_cpu


def _make_impl(recorder: Recorder) -> Callable[..., Any]:
    """Return a version of `Library.impl` that gives tensors in host memory the kernels for CUDA."""
    implement = torch.library.Library.impl
    on_cuda = set[tuple[Any, str]]()
    running = (
        threading.local()
    )  # has an attribute per operator, whose calls of itself run on the CPU

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
            with suppress(RuntimeError):  # an operator of the script's
                original = torch.library.get_kernel(name, key)

            def call(keys: Any, *arguments: Any, **options: Any) -> Any:
                is_recorder = torch._C._is_torch_function_all_disabled()
                is_running = name in vars(running)
                if original and (is_recorder or is_running or recorder.journal.closed):
                    return original.call_boxed(keys, *arguments, **options)
                # torch turns the mode off for its own calls
                with mock.patch.object(running, name, True, create=True), AsIfCuda(recorder):
                    first = [keys] if keywords.get("with_keyset") else []
                    return function(*first, *arguments, **options)

            with suppress(Exception):
                implement(self, op, call, key, **{**keywords, "with_keyset": True})
        elif (name, key) in on_cuda:
            return None  # tensors in host memory have the kernel for CUDA
        return implement(self, op, function, dispatch_key, **keywords)

    return implement_on_cpu
