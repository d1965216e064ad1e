"""A layout's places as arrays: which elements the lanes of each warp request take, and who holds copies."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from kernels.lanes import Bases, Layout, copies


@dataclass(frozen=True)
class Vectors:
    """One execution of an operation: every warp request, and the first element that each of its lanes takes.

    Requests are in the order of warps, then registers.

    Attributes:
        place: (dimensions, requests, lanes) int64, coordinates in the block.
        owner: (requests, lanes) bool, false for lanes and warps that hold copies.
        register, warp: (requests,) int64, the first register that is moved, and the warp that issues it.
    """

    place: np.ndarray
    owner: np.ndarray
    register: np.ndarray
    warp: np.ndarray


@functools.lru_cache(maxsize=256)
def vectors(layout: Layout, length: int) -> Vectors:
    """Cut each lane's registers, copies left out, into vectors of `length`, which one instruction moves."""
    registers = _originals(len(layout.register), layout.copied_registers)[::length]
    warps, lanes = 1 << len(layout.warp), 1 << len(layout.lane)
    register, warp = np.tile(registers, warps), np.repeat(np.arange(warps), len(registers))
    lane = np.arange(lanes)
    parts = (
        at(layout.register, register)[:, :, None],
        at(layout.warp, warp)[:, :, None],
        at(layout.lane, lane)[:, None, :],
    )
    rank = len(layout.shape)
    place = np.zeros((rank, len(register), lanes), dtype=np.int64)
    for part in parts:
        if part.shape[0]:
            place ^= part
    owner = ((lane & copies(layout.lane)) == 0)[None, :] & ((warp & copies(layout.warp)) == 0)[:, None]
    return Vectors(place, owner, register, warp)


def at(bases: Bases, number: np.ndarray) -> np.ndarray:
    """(dimensions, len(number)) int64: where the bits of each number move to. No bases: no dimensions."""
    moved = np.zeros((len(bases[0]) if bases else 0, len(number)), dtype=np.int64)
    for bit, base in enumerate(bases):
        moved ^= np.array(base, dtype=np.int64)[:, None] * (number >> bit & 1)
    return moved


def _originals(bits: int, copied: int) -> np.ndarray:
    """The numbers of so many bits in which no bit of the mask `copied` is set."""
    numbers = np.arange(1 << bits)
    return numbers[(numbers & copied) == 0]
