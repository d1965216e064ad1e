"""The GPU table (`gpus.csv`), and this machine's GPU ("this") as its driver describes it. Standard library only.

Sources: compute capability limits (shared memory, registers, warps and programs per SM) from NVIDIA's CUDA
C++ Programming Guide 13.0, table "Technical Specifications per Compute Capability"; SM counts, L2, DRAM
bandwidth and dense matrix rates (float16 inputs, float32 sums; tf32) from the vendor's document named in
each row. A datasheet rate is an upper limit at boost clock, which kernels don't reach. `benchmarks.l2` measures the
rate at which an SM receives data from the L2.

For AMD's GPUs, an SM is a compute unit (CU), a warp is a wave, and shared memory is the LDS. Times on
them are not predicted, so their rows have no matrix rates.
"""

import csv
import ctypes
import functools
import json
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

_KIB = 1024

# NVIDIA's cuda_occupancy.h (CUDA 13.0): an SM has four partitions and allocates a lane's registers in units of 8.
# It allocates shared memory to a program in units of 128 bytes, plus 1 KiB for the system from compute capability 8.0.
_REGISTER_UNIT = 8
_PARTITIONS = 4
_SHARED_UNIT = 128
_SYSTEM_SHARED = 1024
# Units of the LDS (LLVM's AMDGPUUsage, "GRANULATED_LDS_SIZE"). An AMD CU has four SIMDs, each with 512 registers per
# lane, allocated in units of 8, and with room for 8 waves (LLVM's AMDGPUBaseInfo.cpp).
_LDS_UNITS = {"gfx942": 512, "gfx950": 1280}

# Columns of an SM's tensor memory, each with 128 lanes of 4 bytes (CUDA PTX ISA 9.0, "Tensor Memory").
TENSOR_COLUMNS = 512


@dataclass(frozen=True)
class Gpu:
    """The properties of a GPU that the models need. Capacities are in bytes, rates in decimal units per second.

    Attributes:
        shared_bytes_per_sm, shared_bytes_per_program: shared memory of an SM, and the limit for one program.
        matrix_tflops: dense matrix rate with float32 sums, by input dtype; empty if unknown.
        l2_gbps_per_sm: rate at which an SM receives data from the L2 in long, L2-bound launches; 0 if not measured.
        clock_mhz: the SM clock at which the matrix rates hold; for a device not in the table, its maximum clock.
        device_name: its name in CUDA.
        memory_gib, bus_bits: capacity of the DRAM, and the width of its bus; 0 if unknown.
        assumed: a description of the values that come from the table instead of the device; "" for a table row.
        caveat: a warning for users who pick this GPU, or "".
        arch: the LLVM target of an AMD GPU, such as "gfx942"; "" for NVIDIA's.
    """

    name: str
    sms: int
    l2_bytes: int
    shared_bytes_per_sm: int
    shared_bytes_per_program: int
    max_warps_per_sm: int
    max_programs_per_sm: int
    dram_gbps: float
    matrix_tflops: dict[str, float] = field(hash=False)
    clock_mhz: float
    compute_capability: tuple[int, int]
    source: str
    device_name: str
    memory_gib: int
    bus_bits: int
    assumed: str = ""
    caveat: str = ""
    l2_gbps_per_sm: float = 0.0
    registers_per_sm: int = 65536  # the same for all compute capabilities from 7.0 on
    arch: str = ""

    @property
    def has_tma(self) -> bool:
        """Whether the tensor memory accelerator (TMA) copies blocks of tensors."""
        return self.compute_capability >= (9, 0) and not self.arch

    @property
    def has_tensor_memory(self) -> bool:
        """Whether matrix instructions keep their results in tensor memory (tcgen05)."""
        return self.compute_capability[0] == 10

    @property
    def lanes(self) -> int:
        return 64 if self.arch else 32

    def matrix_rate(self, dtype: str) -> float:
        """Return the TFLOP/s of matrix products of a dtype; 0 if unknown. float8 has twice the rate of float16."""
        is_float8 = dtype.startswith("float8")
        return self.matrix_tflops.get("float16" if is_float8 else dtype, 0.0) * (1 + is_float8)


@dataclass(frozen=True)
class Occupancy:
    """The programs that one SM holds.

    Attributes:
        programs_per_sm: resident programs; 0 if not even one fits.
        occupancy: resident warps / maximum warps per SM, 0 to 1.
        limits: programs allowed by each resource alone: "warps", "programs", "registers", "shared memory" and, if the
            kernel uses it, "tensor memory".
        limited_by: the resources that allow the fewest programs.
    """

    programs_per_sm: int
    occupancy: float
    limits: dict[str, int]
    limited_by: tuple[str, ...]


def occupancy(
    gpu: Gpu, num_warps: int, registers: int, shared_bytes: int, tensor_columns: int = 0
) -> Occupancy:
    """Predict the occupancy of a compiled kernel by the rules of NVIDIA's cuda_occupancy.h.

    Args:
        registers: registers per thread.
        shared_bytes: shared memory per program.
        tensor_columns: columns of tensor memory per program.

    >>> occupancy(GPUS["H200"], num_warps=8, registers=168, shared_bytes=0).limited_by
    ('registers',)
    """
    registers_per_warp = -(-registers // _REGISTER_UNIT) * _REGISTER_UNIT * gpu.lanes
    system = _SYSTEM_SHARED if gpu.compute_capability >= (8, 0) and not gpu.arch else 0
    shared_unit = _LDS_UNITS.get(gpu.arch, _SHARED_UNIT)
    shared = -(-(shared_bytes + system) // shared_unit) * shared_unit
    warps_by_registers = (
        gpu.registers_per_sm // _PARTITIONS // max(registers_per_warp, 1) * _PARTITIONS
    )
    limits = {
        "warps": gpu.max_warps_per_sm // num_warps,
        "programs": gpu.max_programs_per_sm,
        "registers": warps_by_registers // num_warps,
        "shared memory": gpu.shared_bytes_per_sm // shared if shared else gpu.max_programs_per_sm,
    }
    if tensor_columns:
        # The GPU allocates a power of two, at least 32.
        columns = max(32, 1 << (tensor_columns - 1).bit_length())
        limits["tensor memory"] = TENSOR_COLUMNS // columns
    programs = min(limits.values())
    limited_by = tuple(name for name, limit in limits.items() if limit == programs)
    return Occupancy(programs, programs * num_warps / gpu.max_warps_per_sm, limits, limited_by)


def _read_row(row: dict[str, str]) -> Gpu:
    fields: dict[str, Any] = {
        n: row.pop(n) for n in ("name", "device_name", "source", "caveat", "arch")
    }
    major, minor = map(int, row.pop("compute_capability").split("."))
    fields |= {name: json.loads(text) for name, text in row.items()}
    half = fields.pop("half_tflops")
    rates = {"float16": half}
    if tf32 := fields.pop("tf32_tflops"):
        rates |= {"bfloat16": half, "float32": tf32}
    return Gpu(
        l2_bytes=fields.pop("l2_mib") * _KIB * _KIB,
        shared_bytes_per_sm=fields.pop("shared_kib_per_sm") * _KIB,
        shared_bytes_per_program=fields.pop("shared_kib_per_program") * _KIB,
        matrix_tflops=rates,
        compute_capability=(major, minor),
        registers_per_sm=131072 if fields["arch"] else 65536,
        **fields,
    )


# Half types and tf32 in TFLOP/s, the clock in MHz, the L2 in MiB. A pattern finds device names that do not contain the
# table's name as a word.
with Path(__file__).with_name("gpus.csv").open(encoding="utf-8", newline="") as _file:
    _ROWS = list(csv.DictReader(_file))

# Table name → the pattern of its device names.
_PATTERNS = {row["name"]: row.pop("pattern") or rf"\b{row['name']}\b" for row in _ROWS}

# All GPUs that kernels are compiled for, and those whose launches are modelled.
ALL_GPUS: dict[str, Gpu] = {row["name"]: _read_row({**row}) for row in _ROWS}
GPUS = {name: gpu for name, gpu in ALL_GPUS.items() if not gpu.arch}

DEFAULT_GPU = "H200"

# CUdevice_attribute values, from cuda.h, of fields of a Gpu and of others.
_ATTRIBUTES = {
    "sms": 16, "l2_bytes": 38, "shared_bytes_per_sm": 81, "shared_bytes_per_program": 97, "max_programs_per_sm": 106,
    "bus_bits": 37,
}  # fmt: skip
_CLOCK_KHZ = 13
_MEMORY_KHZ = 36
_THREADS = 39
_CC_MAJOR = 75
_CC_MINOR = 76


def table_name(device_name: str) -> str | None:
    """Return the table's name for a device name as the driver reports it, or None.

    >>> table_name("NVIDIA A100-SXM4-80GB")
    'A100-80GB'
    """
    names = (
        name
        for name, pattern in _PATTERNS.items()
        if re.search(pattern, device_name, re.IGNORECASE)
    )
    return next(names, None)


def find_gpu(text: str, allowed: Collection[str] = ALL_GPUS) -> str:
    """Return the table's name for a GPU as people write it: in any case, with spaces or hyphens, or only the number.

    >>> find_gpu("nvidia geforce rtx_4090")
    'RTX4090'

    Raises:
        ValueError: the table has no such GPU, or it is not allowed.
    """
    ignored = r"[\W_]|nvidia|geforce|tesla|rtx|sxm\d?|(?<=\d)gb|blackwell|amd|instinct"
    squeezed, *rows = (re.sub(ignored, "", name.lower()) for name in (text, *ALL_GPUS))
    name = dict(zip(rows, ALL_GPUS, strict=True)).get(squeezed) or table_name(text)
    if name and name in allowed:
        return name
    why = f"only `tilescope show` compiles for {name}" if name else f"there is no GPU {text!r}"
    raise ValueError(f"{why}; choose from {', '.join(allowed)}")


def on_zero_gpu() -> bool:
    """Return whether this is a Space on ZeroGPU, which lends a GPU for one job at a time."""
    return os.environ.get("SPACES_ZERO_GPU", "").lower() in ("1", "t", "true")


def gpu_or_slice(device_name: str, sms: int, capability: tuple[int, int]) -> Gpu:
    """Return a GPU, or a slice of a GPU, from its name, number of SMs and compute capability.

    The table supplies all other values. For a slice, they are scaled by its share of the SMs.

    Raises:
        ValueError: the compute capability is not in the table.
    """
    row = ALL_GPUS.get(device_name) or ALL_GPUS.get(table_name(device_name) or "")
    source = f"reported for this device, {device_name}"
    if row is None:
        by_capability = {gpu.compute_capability: gpu for gpu in GPUS.values()}
        if capability not in by_capability:
            known = ", ".join(f"{major}.{minor}" for major, minor in sorted(by_capability))
            raise ValueError(
                f"{device_name} has compute capability {capability[0]}.{capability[1]}; supported: {known}."
            )
        unknown: dict[str, Any] = {
            "l2_bytes": 0,
            "dram_gbps": 0,
            "clock_mhz": 0,
            "memory_gib": 0,
            "bus_bits": 0,
        }
        return replace(
            by_capability[capability],
            **unknown,
            name=device_name,
            device_name=device_name,
            sms=sms,
            matrix_tflops={},
            l2_gbps_per_sm=0.0,
            source=source,
            caveat="",
            assumed="L2, DRAM and matrix rates are unknown",
        )
    if row.sms == sms:
        return replace(row, assumed="everything except the number of SMs, from the table")
    share = sms / row.sms
    return replace(
        row,
        name=f"slice of {row.name}",
        sms=sms,
        l2_bytes=int(row.l2_bytes * share),
        dram_gbps=row.dram_gbps * share,
        matrix_tflops={dtype: rate * share for dtype, rate in row.matrix_tflops.items()},
        source=source,
        assumed=f"L2, DRAM bandwidth and matrix rates, as {sms} of the {row.sms} SMs of {row.name}",
        caveat=f"A slice of {row.name}: other jobs share the GPU, so times say little about a whole {row.name}.",
    )


def captured_gpu(properties: Mapping[str, Any]) -> Gpu | None:
    """Return the GPU of a capture; None if the table lacks its compute capability."""
    capability = tuple(properties["compute_capability"])
    try:
        return gpu_or_slice(properties["name"], properties["sms"], capability)
    except ValueError:
        return None


def visible_devices() -> tuple[str, ...]:
    """Return the GPUs that this process can see, as named in CUDA_VISIBLE_DEVICES, without a CUDA context."""
    _, count = _driver()
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    numbers = chosen.split(",") if chosen is not None else map(str, range(count))
    return tuple(name.strip() for name in numbers)[:count]


def _driver() -> tuple[Any, int]:
    """Load the CUDA driver. Return the driver and the number of visible devices, which is 0 without a driver."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None, 0
    count = ctypes.c_int()
    return cuda, 0 if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)) else count.value


def this_gpu() -> Gpu | None:
    """Return the first visible GPU, or None if there is none."""
    return next(iter(visible_gpus()), None)


@functools.cache
def visible_gpus() -> tuple[Gpu, ...]:
    """Read the visible GPUs through the CUDA driver.

    Reading attributes creates no context and allocates no GPU memory. A slice of a larger GPU (MIG,
    ZeroGPU) reports its own SMs and L2.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES", "unset") in ("", "-1"):
        return ()
    cuda, count = _driver()
    return tuple(gpu for number in range(count) if (gpu := _read_gpu(cuda, number)))


def _read_gpu(cuda: Any, number: int) -> Gpu | None:
    """Read the visible GPU with this number. Return None if the driver refuses."""
    device = ctypes.c_int()
    buffer = ctypes.create_string_buffer(128)
    if cuda.cuDeviceGet(ctypes.byref(device), number) or cuda.cuDeviceGetName(
        buffer, len(buffer), device
    ):
        return None

    def read(attribute: int) -> int:
        value = ctypes.c_int()
        return (
            0 if cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device) else value.value
        )

    device_name = buffer.value.decode()
    memory_bytes = ctypes.c_size_t()
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory_bytes), device)
    fields: dict[str, Any] = {name: read(number) for name, number in _ATTRIBUTES.items()}
    fields |= {
        "max_warps_per_sm": read(_THREADS) // 32,
        # Two transfers per clock (DDR): kHz · 2 · bits / 8, in GB/s.
        "dram_gbps": read(_MEMORY_KHZ) * 2 * fields["bus_bits"] / 8 / 1e6,
        "compute_capability": (read(_CC_MAJOR), read(_CC_MINOR)),
        "source": f"read from this device, {device_name}",
        "device_name": device_name,
        "memory_gib": memory_bytes.value >> 30,
    }
    row = GPUS.get(table_name(device_name) or "")
    if row is None or row.sms != fields["sms"]:
        # The table's name and rates do not apply to another model or to a slice
        return Gpu(name=device_name, matrix_tflops={}, clock_mhz=read(_CLOCK_KHZ) / 1000, **fields)
    fields["dram_gbps"] = fields["dram_gbps"] or row.dram_gbps
    return replace(row, assumed="matrix rates and their clock, from the table", **fields)
