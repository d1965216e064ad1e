"""A launch before the matmul that copies A and B to workspaces whose rows start at multiples of 128 bytes."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kernels.matmul.problem import Problem, extents, is_aligned
from kernels.orders import tile_offsets, tile_start
from tilescope.declare.jit import memory_lines, on_arrays, tl, triton
from tilescope.declare.knobs import LAUNCH, knob
from tilescope.declare.spec import Access, Axis, FirstLaunch, Launch, Specs, Tensors, TensorSpec
from tilescope.evaluate.sectors import LANES

# A workspace's rows start at multiples of a cache line.
_PITCH_BYTES = 128

# Each program copies a block of this shape.
_ROWS = 4
_COLUMNS = 1024
_WARPS = 8

# Assumed time of a second launch, and the copies' share of DRAM's rate (measured on an H200: 3.6 of 4.8 TB/s).
_LAUNCH_MS = 0.003
_RATE = 0.75

# Without descriptors, a lane loads one element at a time and then stores it to shared memory. These are two requests,
# and an SM issues one request per cycle. Each step waits for its loads.
_PASSES = 2
_STEP_MS = 0.0009


def pad() -> Any:
    return knob(
        "never", LAUNCH, "Copy misaligned A and B to aligned rows first. auto: only if that saves time.",
        choices=("never", "auto", "always"),
    )  # fmt: skip


@triton.jit
def copy_padded(
    a,
    padded_a,
    a_shape,
    a_strides,
    a_pitch,
    b,
    padded_b,
    b_shape,
    b_strides,
    b_pitch,
    a_programs,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PAD_A: tl.constexpr,
    PAD_B: tl.constexpr,
):
    pid = tl.program_id(0)
    # The block is stored as its transpose so that the compiler chooses a separate layout for the store, in which a lane
    # holds 16 consecutive bytes. A load in that layout, with one element per lane and request, would touch up to eight
    # times as many sectors.
    if PAD_A and pid < a_programs:
        start, inside, end, in_row = locate_block(pid, a_shape, a_strides, a_pitch, ROWS, COLUMNS)
        elements = tl.load(a + start, mask=inside, other=0.0)
        tl.store(padded_a + end.T, elements.T, mask=in_row.T)
    if PAD_B and pid >= a_programs:
        start, inside, end, in_row = locate_block(
            pid - a_programs, b_shape, b_strides, b_pitch, ROWS, COLUMNS
        )
        elements = tl.load(b + start, mask=inside, other=0.0)
        tl.store(padded_b + end.T, elements.T, mask=in_row.T)


@triton.jit
def locate_block(pid, shape, strides, pitch, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return the offsets of block `pid` in a matrix and in its workspace, and which elements are inside each.

    Zeros fill the rest of a workspace's row: only a mask at the row's end allows wide stores.
    """
    across = tl.cdiv(pitch, COLUMNS)
    rows, columns = (
        tile_offsets(pid // across, ROWS)[:, None],
        tile_offsets(pid % across, COLUMNS)[None, :],
    )
    inside = (rows < shape[0]) & (columns < shape[1])
    in_workspace = (rows < shape[0]) & (columns < pitch)
    return rows * strides[0] + columns * strides[1], inside, rows * pitch + columns, in_workspace


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
    return {name: _padded(spec, launch) for name, spec in misaligned.items()}


def _padded(spec: TensorSpec, launch: Launch[Problem]) -> TensorSpec:
    unit = _PITCH_BYTES // launch.element_bytes
    rows, columns = spec.stored
    stored = rows, -(-columns // unit) * unit
    return replace(spec, shape=stored[::-1] if spec.transposed else stored)


def _saves_time(misaligned: Specs, launch: Launch[Problem]) -> bool:
    """Return whether the copies take less time than loads of single elements, which would limit the launch."""
    config = launch.config
    tiles = extents(launch)
    steps = -(-tiles["m"] * tiles["n"] // launch.gpu.sms) * tiles["k"]
    requests = _PASSES * (config.BLOCK_M + config.BLOCK_N) * config.BLOCK_K / LANES
    return _copies_ms(misaligned, launch) < steps * max(
        requests / launch.gpu.clock_mhz / 1e3, _STEP_MS
    )


def _copies_ms(specs: Specs, launch: Launch[Problem]) -> float:
    copied = 2 * sum(math.prod(spec.shape) for spec in specs.values()) * launch.element_bytes
    return _LAUNCH_MS + copied / (_RATE * launch.gpu.dram_gbps) / 1e6


def fields(tensors: Callable[[Problem], Specs]) -> dict[str, Any]:
    """Return the fields of a Kernel that copies misaligned operands first.

    Args:
        tensors: the family's `tensors`.
    """

    def padded(launch: Launch[Problem]) -> dict[str, TensorSpec]:
        return workspaces(tensors(launch.problem), launch)

    return {
        "extents": lambda launch: {**extents(launch), **_blocks(padded(launch))},
        "workspaces": lambda launch: {
            f"padded {name}": spec for name, spec in padded(launch).items()
        },
        "first": lambda launch: _copies(tensors(launch.problem), launch),
    }


def _blocks(padded: Specs) -> dict[str, int]:
    """Return the number of blocks along each side of each workspace."""
    sides: dict[str, int] = {}
    for name, spec in padded.items():
        rows, columns = spec.stored
        sides |= {f"{name} rows": -(-rows // _ROWS), f"{name} columns": -(-columns // _COLUMNS)}
    return sides


def _copies(specs: Specs, launch: Launch[Problem]) -> FirstLaunch | None:
    padded = workspaces(specs, launch)
    if not padded:
        return None
    blocks = _blocks(padded)
    start = on_arrays(tile_start)
    programs = {name: blocks[f"{name} rows"] * blocks[f"{name} columns"] for name in padded}
    load_a, store_a, load_b, store_b = memory_lines(copy_padded)
    accesses = []
    for name, load, store in (("A", load_a, store_a), ("B", load_b, store_b)):
        if name in padded:
            over = f"{name} rows", f"{name} columns"
            block = Axis(over[0], _ROWS, start), Axis(over[1], _COLUMNS, start)
            accesses.append(Access("load", name, *block, over, load))
            accesses.append(
                Access("store", f"padded {name}", *block, over, store, pointers=over[::-1])
            )

    def arguments(tensors: Tensors) -> dict[str, Any]:
        given: dict[str, Any] = {
            "a_programs": programs.get("A", 0),
            "num_warps": _WARPS,
            "ROWS": _ROWS,
            "COLUMNS": _COLUMNS,
            "PAD_A": "A" in padded,
            "PAD_B": "B" in padded,
        }
        for name in ("A", "B"):
            letter = name.lower()
            operand = tensors[name]
            spec = specs[name]
            given |= {
                letter: operand,
                f"padded_{letter}": tensors.get(f"padded {name}", operand),
                f"{letter}_shape": spec.stored,
                f"{letter}_pitch": padded.get(name, spec).stored[1],
                f"{letter}_strides": operand.stride()[:: -1 if spec.transposed else 1],
            }
        return given

    ms = _copies_ms({name: specs[name] for name in padded}, launch)
    return FirstLaunch(copy_padded, sum(programs.values()), tuple(accesses), arguments, ms)


def note(specs: Specs, launch: Launch[Problem]) -> str:
    """Describe the copies that a launch makes first, or return ""."""
    padded = workspaces(specs, launch)
    size = launch.element_bytes
    if not padded:
        return ""
    rows = " and ".join(
        f"rows of {name} from {specs[name].stored[1] * size:,} to {spec.stored[1] * size:,} bytes"
        for name, spec in padded.items()
    )
    megabytes = sum(math.prod(spec.shape) for spec in padded.values()) * size / 1e6
    copies = f"A first launch pads {rows}, in {megabytes:,.3g} MB of workspace, so that descriptors can load them."
    return f"{copies} Times and counts include it."
