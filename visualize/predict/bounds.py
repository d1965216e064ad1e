"""What a launch needs of each resource, by itself: DRAM, L2, load and store units, arithmetic, and the tail wave.

Each time is that of one resource kept busy all along, at the rate that is named; a real launch takes at least the
longest of them. Left out: latency, launch overhead, shared memory's own traffic but for loads that are staged through
registers, and how resources get in each other's way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernels.gpus import GPUS, Gpu
from kernels.spec import Kernel, Launch
from visualize.predict.schedule import Schedule
from visualize.predict.traffic import Operation

# What an SM receives from the L2 where that is what limits long launches is measured, GPU by GPU (`benchmarks.l2`).
# Short ones, at a higher clock, reach 86 on an H200 in place of 77, and with blocks of K as long as a line 91. Where
# nobody has measured it, an H200's is taken.
_L2_ASSUMED = GPUS["H200"].l2_gbps_per_sm

# The share of the datasheet's matrix rate that is sustained where nothing else is in the way: 0.68 to 0.77 by tiles of
# 128 × 256 float16 in the same file, at the device's limit of power. Taken for other GPUs as well.
SUSTAINED = 0.73

# Bytes of a load or store that an SM passes per cycle, and float32 multiply-adds per SM and cycle by compute capability
# (64 in those named, else 128): CUDA C++ Programming Guide 13.0, table "Throughput of Native Arithmetic Instructions".
_LSU_BYTES, _SECTOR_BYTES = 128, 32
# Below this efficiency a store's sectors are written in parts, and not at its edges alone.
_WHOLE = 0.9
_MULTIPLY_ADDS, _FEWER = 128, {(7, 5): 64, (8, 0): 64}


@dataclass(frozen=True)
class Bound:
    """One resource: `ms` is what it needs by itself, `why` the amount and the rate in words."""

    name: str
    ms: float
    why: str


def bounds(
    kernel: Kernel,
    launch: Launch,
    schedule: Schedule,
    operations: Sequence[Operation],
    dram_bytes: float,
    received_bytes: float,
    clock_mhz: float | None = None,
) -> tuple[Bound, ...]:
    """What each resource needs, in the order from memory to arithmetic; what is not known is left out.

    Args:
        operations: what it asks of memory; () where that is not known: nothing is said of load and store units.
        dram_bytes: read and written.
        received_bytes: what SMs receive from the L2.
        clock_mhz: the SM clock that was measured; else the one that the matrix rate is given at.
    """
    gpu, clock = launch.gpu, clock_mhz or launch.gpu.clock_mhz
    found = []
    if gpu.dram_gbps:
        found.append(Bound("DRAM", dram_bytes / gpu.dram_gbps / 1e6, _rate(dram_bytes, f"{gpu.dram_gbps:,.0f} GB/s")))
    how = "measured" if gpu.l2_gbps_per_sm else "assumed"
    rate = f"{l2_gbps(gpu):,.0f} GB/s ({how})"
    found.append(Bound("L2", received_bytes / l2_gbps(gpu) / 1e6, _rate(received_bytes, rate)))
    if operations:
        found.append(_load_store(kernel, gpu, operations, clock))
    needed = arithmetic(kernel, launch, clock)
    if needed:
        found.append(needed)
        tiles, sms = len(schedule.tiles.program), gpu.sms
        busiest = -(-tiles // sms)
        why = f"the busiest SM computes {busiest:,} tiles, the average {tiles / sms:,.1f}"
        found.append(Bound("tail wave", needed.ms * (busiest * sms / tiles - 1), why))
    return tuple(found)


def l2_gbps(gpu: Gpu) -> float:
    """What all SMs together receive from the L2 where that is what limits."""
    return (gpu.l2_gbps_per_sm or _L2_ASSUMED) * gpu.sms


def l2_pressure(found: Sequence[Bound], operations: Sequence[Operation]) -> float:
    """The time that the L2 needs, over that of the slowest of load and store units and arithmetic; 0 if not known.

    0, too, where operands are staged through registers: each step waits for its loads, and the L2 is not kept busy.
    """
    times = {bound.name: bound.ms for bound in found}
    if "arithmetic" not in times or any(op.compiled is not None and op.compiled.op == "load" for op in operations):
        return 0.0
    return times["L2"] / max(times["arithmetic"] / SUSTAINED, times.get("load and store", 0.0))


def writes_in_parts(operations: Sequence[Operation]) -> bool:
    """Whether a store's request covers only parts of the sectors that it touches."""
    return any(op.access.op == "store" and op.launch.efficiency < _WHOLE for op in operations)


def _rate(amount: float, rate: str) -> str:
    return f"{amount / 1e9:,.3g} GB at {rate}"


def _load_store(kernel: Kernel, gpu: Gpu, operations: Sequence[Operation], clock_mhz: float) -> Bound:
    """Requests of one per cycle and SM, or more cycles where they move more than 128 bytes.

    A load of a panel that is no asynchronous copy passes a second time: into shared memory.
    """
    cycles = requests = 0.0
    for op in operations:
        if op.compiled is None or op.compiled.layout is None:
            continue
        needed = max(op.launch.requests, op.launch.sectors * _SECTOR_BYTES / _LSU_BYTES)
        staged = op.compiled.op == "load" and op.access.tensor in (kernel.family.panels or ())
        cycles += needed * (2 if staged else 1)
        requests += op.launch.requests
    ms = cycles / gpu.sms / clock_mhz / 1e3
    return Bound("load and store", ms, f"{requests:,.0f} requests, one per SM and cycle, or 128 bytes per cycle")


def arithmetic(kernel: Kernel, launch: Launch, clock_mhz: float) -> Bound | None:
    """What the work takes at the full rate of the units that do it; None where there is none, or no rate is known."""
    work = kernel.family.work(launch.problem)
    if not work:
        return None
    tflops, what = _tflops(kernel, launch)
    if not tflops:
        return None
    scaled = tflops * clock_mhz / launch.gpu.clock_mhz
    why = f"{work / 1e12:,.3g} TFLOP at {scaled:,.0f} TFLOP/s ({what}, {clock_mhz:,.0f} MHz)"
    return Bound("arithmetic", work / scaled / 1e9, why)


def _tflops(kernel: Kernel, launch: Launch) -> tuple[float, str]:
    """The rate at the clock of the table, and what has it."""
    gpu, dtype, passes = launch.gpu, launch.problem.dtype, kernel.family.matrix_passes(launch.problem)
    plain = 2 * _FEWER.get(gpu.compute_capability, _MULTIPLY_ADDS) * gpu.sms * gpu.clock_mhz / 1e6
    if gpu.compute_capability < (8, 0) or not passes:
        return plain, "float32 units"
    rate = gpu.matrix_tflops.get(dtype, 0.0)
    if dtype.startswith("float8"):
        rate = 2 * gpu.matrix_tflops.get("float16", 0.0)
    return rate / passes, "matrix units"
