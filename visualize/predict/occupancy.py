"""How many programs an SM holds at once, and what limits them.

The rules are those of NVIDIA's cuda_occupancy.h (CUDA 13.0), for the compute capabilities of the GPU table. Left out:
how the driver divides an SM's memory into L1 and shared memory (a kernel is taken to get all that there is).
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels.gpus import Gpu
from kernels.lanes import CompiledFacts
from kernels.spec import Launch

# A warp is given registers by 256, from four parts of an SM; a program shared memory by 128 bytes, with a KiB that the
# system keeps for each from compute capability 8.0 on.
_REGISTER_UNIT, _PARTS = 256, 4
_SHARED_UNIT, _SYSTEM_SHARED = 128, 1024
_LANES = 32


@dataclass(frozen=True)
class Occupancy:
    """What one SM holds.

    Attributes:
        programs_per_sm: resident programs; 0 where not even one fits.
        occupancy: resident warps / most warps of an SM, 0 to 1.
        limits: programs that each resource would allow by itself: "warps", "programs", "registers", "shared memory".
        limited_by: the resources that allow the fewest.
    """

    programs_per_sm: int
    occupancy: float
    limits: dict[str, int]
    limited_by: tuple[str, ...]


def occupancy(gpu: Gpu, num_warps: int, registers: int, shared_bytes: int) -> Occupancy:
    """Predict the occupancy of a compiled kernel.

    Args:
        registers: per thread.
        shared_bytes: per program.

    >>> from kernels.gpus import GPUS
    >>> occupancy(GPUS["H200"], num_warps=8, registers=168, shared_bytes=0).limited_by
    ('registers',)
    """
    registers_of_warp = -(-registers * _LANES // _REGISTER_UNIT) * _REGISTER_UNIT
    system = _SYSTEM_SHARED if gpu.compute_capability >= (8, 0) else 0
    shared = -(-(shared_bytes + system) // _SHARED_UNIT) * _SHARED_UNIT
    warps_by_registers = gpu.registers_per_sm // _PARTS // max(registers_of_warp, 1) * _PARTS
    limits = {
        "warps": gpu.max_warps_per_sm // num_warps,
        "programs": gpu.max_programs_per_sm,
        "registers": warps_by_registers // num_warps,
        "shared memory": gpu.shared_bytes_per_sm // shared if shared else gpu.max_programs_per_sm,
    }
    held = min(limits.values())
    return Occupancy(
        programs_per_sm=held,
        occupancy=held * num_warps / gpu.max_warps_per_sm,
        limits=limits,
        limited_by=tuple(name for name, allowed in limits.items() if allowed == held),
    )


@dataclass(frozen=True)
class Residency:
    """How many programs an SM holds at once, and where that is from: "assumed" or "compiled"."""

    programs_per_sm: int
    source: str


def residency(launch: Launch, compiled: CompiledFacts | None, assumed: int = 0) -> Residency:
    """What is known of a launch's resident programs: `assumed`, if not 0; as compiled; or else one per SM, assumed."""
    if assumed:
        return Residency(assumed, "assumed")
    if compiled is None:
        return Residency(1, "assumed")
    held = occupancy(launch.gpu, launch.config.num_warps, compiled.registers, compiled.shared_bytes)
    return Residency(max(1, held.programs_per_sm), "compiled")
