"""Wavefronts of instructions on shared memory: its 32 banks of 4 bytes serve one word each per wavefront.

Any number of lanes may share that word (CUDA C++ Programming Guide 13.0, "Shared Memory"). Wider accesses go in parts
of 128 bytes: half a warp with 8 bytes per lane, a quarter with 16, and a matrix's 8 rows of 16 bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from kernels.lanes import SharedOperation

_BANKS, _WORD_BYTES, _LANES = 32, 4, 32
_WAVEFRONT_BYTES = _BANKS * _WORD_BYTES


@dataclass(frozen=True)
class Wavefronts:
    """Wavefronts of one instruction of every warp: what they take, and what they would without a bank conflict."""

    wavefronts: int
    ideal: int
    warps: int

    @property
    def each(self) -> float:
        """Wavefronts of one warp's instruction."""
        return self.wavefronts / self.warps


def wavefronts(operation: SharedOperation) -> Wavefronts:
    """Count one instruction of every warp of a program."""
    lanes = _spread(operation.lane)
    lanes_at_once = min(_LANES, _WAVEFRONT_BYTES // max(operation.width_bytes, _WORD_BYTES))
    total = ideal = 0
    for start in _spread(operation.warp):
        address = start ^ lanes
        for first in range(0, len(address), lanes_at_once):
            part = address[first : first + lanes_at_once]
            words = np.unique((part[:, None] + np.arange(0, operation.width_bytes, _WORD_BYTES)).ravel() // _WORD_BYTES)
            total += int(np.bincount(words % _BANKS).max())
            ideal += 1  # its words are as many as there are banks, or fewer
    return Wavefronts(total, ideal, 1 << len(operation.warp))


def wavefronts_per_instruction(alike: Iterable[SharedOperation]) -> tuple[float, float]:
    """Wavefronts of one warp's instruction, on average: those it takes, and those without a bank conflict."""
    total = ideal = warps = 0
    for operation in alike:
        one = wavefronts(operation)
        total += operation.count * one.wavefronts
        ideal += operation.count * one.ideal
        warps += operation.count * one.warps
    return total / warps, ideal / warps


def _spread(bases: tuple[int, ...]) -> np.ndarray:
    """The offset of every number of so many bits."""
    numbers = np.arange(1 << len(bases))
    offsets = np.zeros(len(numbers), dtype=np.int64)
    for bit, base in enumerate(bases):
        offsets ^= np.where(numbers >> bit & 1, base, 0)
    return offsets
