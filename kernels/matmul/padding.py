"""Copies of A and B, made before the matmul, whose rows start at multiples of 128 bytes."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kernels.matmul.problem import Problem, extents, is_aligned
from tilescope.declare.knobs import LAUNCH, knob
from tilescope.declare.spec import Launch, Specs, TensorSpec
from tilescope.evaluate.sectors import LANES

# A workspace's rows start at multiples of a cache line.
_PITCH_BYTES = 128

# Assumed time of a copy's launch, and the copies' share of DRAM's rate (measured on an H200: 1.6 of 4.8 TB/s).
_LAUNCH_MS = 0.003
_RATE = 0.34

# Without descriptors, a lane loads one element at a time and then stores it to shared memory: two requests of 32 lanes.
# Cycles per request, the wait for the data included (measured on an H200 and an H100: 4 to 7 with eight warps per
# program, 8 to 10 with four).
_PASSES = 2
_REQUEST_CYCLES = 5


def pad() -> Any:
    return knob(
        "never", LAUNCH, "Copy misaligned A and B to aligned rows first. auto: only if that saves time.",
        choices=("never", "auto", "always"),
    )  # fmt: skip


def workspaces(specs: Specs, launch: Launch[Problem]) -> dict[str, TensorSpec]:
    """Return the workspaces of the operands that a launch copies, by the operands' names.

    Args:
        specs: the tensors of the kernel's family.
    """
    if launch.config.PAD == "never" or not launch.gpu.has_tma:
        return {}
    misaligned = {
        name: specs[name] for name in ("A", "B") if not is_aligned(specs[name], launch.problem)
    }
    if launch.config.PAD == "auto" and not _saves_time(misaligned, launch):
        return {}
    return {name: _padded(name, spec, launch) for name, spec in misaligned.items()}


def _padded(name: str, spec: TensorSpec, launch: Launch[Problem]) -> TensorSpec:
    unit = _PITCH_BYTES // launch.element_bytes
    rows, columns = spec.stored
    stored = rows, -(-columns // unit) * unit
    return replace(spec, shape=stored[::-1] if spec.transposed else stored, copy_of=name)


def _saves_time(misaligned: Specs, launch: Launch[Problem]) -> bool:
    """Return whether the copies take less time than loads of single elements, which would limit the launch."""
    config = launch.config
    tiles = extents(launch)
    steps = -(-tiles["m"] * tiles["n"] // launch.gpu.sms) * tiles["k"]
    sides = {"A": config.BLOCK_M, "B": config.BLOCK_N}
    requests = _PASSES * sum(sides[name] for name in misaligned) * config.BLOCK_K / LANES
    loads_ms = steps * requests * _REQUEST_CYCLES / launch.gpu.clock_mhz / 1e3
    return _copies_ms(misaligned, launch) < loads_ms


def _copies_ms(specs: Specs, launch: Launch[Problem]) -> float:
    copied = 2 * sum(math.prod(spec.shape) for spec in specs.values()) * launch.element_bytes
    return len(specs) * _LAUNCH_MS + copied / (_RATE * launch.gpu.dram_gbps) / 1e6


def fields(tensors: Callable[[Problem], Specs]) -> dict[str, Any]:
    """Return the fields of a Kernel that loads copies of misaligned operands.

    Args:
        tensors: the family's `tensors`.
    """

    def copies_ms(launch: Launch[Problem]) -> float:
        specs = tensors(launch.problem)
        copied = {name: specs[name] for name in workspaces(specs, launch)}
        return _copies_ms(copied, launch) if copied else 0.0

    return {
        "workspaces": lambda launch: {
            f"padded {name}": spec
            for name, spec in workspaces(tensors(launch.problem), launch).items()
        },
        "copies_ms": copies_ms,
    }


def note(specs: Specs, launch: Launch[Problem]) -> str:
    """Describe the copies that precede a launch, or return ""."""
    padded = workspaces(specs, launch)
    size = launch.element_bytes
    if not padded:
        return ""
    rows = " and ".join(
        f"rows of {name} from {specs[name].stored[1] * size:,} to {spec.stored[1] * size:,} bytes"
        for name, spec in padded.items()
    )
    megabytes = sum(math.prod(spec.shape) for spec in padded.values()) * size / 1e6
    return (
        f"Before each launch, torch copies {' and '.join(padded)}, so that descriptors can load them. "
        f"This pads {rows}, in {megabytes:,.3g} MB of workspace. Times include the copies; counts don't."
    )
