"""What the persistent matmuls share: a few programs per SM, which take tile after tile, and tensor descriptors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from kernels import orders
from kernels.accesses import Axis, Tiles
from kernels.jit import on_arrays
from kernels.knobs import knob, powers
from kernels.matmul import problem as family
from kernels.matmul.problem import GroupedConfig, Problem, extents
from kernels.spec import DTYPE_BYTES, Launch, TensorSpec

# The tensor memory accelerator came with this compute capability; it wants rows that begin at multiples of 16 bytes.
TMA_FROM = (9, 0)
PITCH_BYTES = 16


class PersistentConfig(GroupedConfig, Protocol):
    """That of a matmul whose programs take tile after tile."""

    @property
    def PROGRAMS_PER_SM(self) -> int: ...


def programs_per_sm() -> Any:
    text = "Programs that are started per SM: with two, one computes while the other writes."
    return knob(1, "Launch", text, choices=powers(1, 8))


def grid(launch: Launch[Problem, PersistentConfig]) -> tuple[int]:
    """PROGRAMS_PER_SM programs per SM, or one per tile where there are fewer tiles."""
    tiles = extents(launch)
    return (min(tiles["m"] * tiles["n"], launch.gpu.sms * launch.config.PROGRAMS_PER_SM),)


def tiles_of(pids: np.ndarray, launch: Launch[Problem, PersistentConfig]) -> Tiles:
    """Program pid takes tiles pid, pid + programs, pid + 2 · programs, … of grouped order."""
    tiles, size, programs = extents(launch), launch.config.GROUP_SIZE, grid(launch)[0]
    turns = -(-(tiles["m"] * tiles["n"] - pids) // programs)
    program = np.repeat(pids, turns)
    turn = np.arange(len(program)) - np.repeat(np.cumsum(turns) - turns, turns)
    place = program + turn * programs
    pid_m, pid_n = on_arrays(orders.grouped)(place, tiles["m"], tiles["n"], size)
    group = on_arrays(orders.group_of)(place, tiles["n"], size)
    return Tiles(program, pid_m, pid_n, np.zeros_like(program), group)


def half_start(half: int) -> Any:
    """Where the left or the right half of tile `index` begins; `block` is half a tile's columns."""
    return lambda index, block: on_arrays(orders.tile_start)(2 * index + half, block)


def half_columns(launch: Launch[Problem, GroupedConfig]) -> tuple[Axis, Axis]:
    """The columns of a tile's two halves."""
    block = launch.config.BLOCK_N // 2
    return Axis("n", block, half_start(0)), Axis("n", block, half_start(1))


def tma_fallback_reason(tensors: dict[str, TensorSpec], launch: Launch[Problem, GroupedConfig]) -> str:
    """Why this launch falls back on pointers, or "" where it uses tensor descriptors."""
    gpu, size = launch.gpu, DTYPE_BYTES[launch.problem.dtype]
    if gpu.compute_capability < TMA_FROM:
        major, minor = gpu.compute_capability
        return (
            f"{gpu.name} has compute capability {major}.{minor}: tensor descriptors need 9.0, so this "
            "launch falls back on pointers."
        )
    for name, tensor in tensors.items():
        if tensor.stored[1] * size % PITCH_BYTES:
            return (
                f"A row of {name} takes {tensor.stored[1] * size:,} bytes, no multiple of {PITCH_BYTES}, so no tensor "
                "descriptor can be made: this launch falls back on pointers."
            )
    return ""


def arguments(
    tensors: Mapping[str, Any],
    specs: dict[str, TensorSpec],
    pieces: Mapping[str, int],
    launch: Launch[Problem, GroupedConfig],
) -> dict[str, Any]:
    """Arguments of a persistent matmul: descriptors in place of tensors, where they can be made.

    Args:
        pieces: for each tensor that is copied once per tile, into how many pieces, side by side, a tile is split.
    """
    config, problem = launch.config, launch.problem
    are_whole = extents(launch)["m"] % config.GROUP_SIZE == 0
    plain = {**family.arguments(tensors, launch), "GROUP_SIZE": config.GROUP_SIZE, "WHOLE_GROUPS": are_whole}
    if tma_fallback_reason(specs, launch) or not all(_fits_descriptor(tensors[name]) for name in specs):
        return {**plain, "USE_TMA": False, "A_TRANSPOSED": False, "B_TRANSPOSED": False}
    blocks = {"A": (config.BLOCK_M, config.BLOCK_K), "B": (config.BLOCK_K, config.BLOCK_N)}
    blocks |= {name: (config.BLOCK_M, config.BLOCK_N // count) for name, count in pieces.items()}
    descriptors = {name.lower(): _descriptor(tensors[name], specs[name], blocks[name]) for name in blocks}
    a_transposed, b_transposed = (letter == "T" for letter in problem.layout)
    stored = {"A_TRANSPOSED": a_transposed, "B_TRANSPOSED": b_transposed}
    return {**plain, **descriptors, "USE_TMA": True, **stored}


def _fits_descriptor(tensor: Any) -> bool:
    """Whether rows begin at multiples of 16 bytes: not in every slice of a larger tensor."""
    pitch = max(tensor.stride(0), tensor.stride(1)) * tensor.dtype.itemsize
    return tensor.data_ptr() % PITCH_BYTES == 0 and pitch % PITCH_BYTES == 0


def _descriptor(tensor: Any, spec: TensorSpec, block: tuple[int, int]) -> Any:
    """A descriptor of a tensor as it is stored, which it copies in blocks."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    stored, pitch = spec.stored, tensor.stride(0) if not spec.transposed else tensor.stride(1)
    shape = block[::-1] if spec.transposed else block
    return TensorDescriptor(tensor, list(stored), [pitch, 1], list(shape))
