"""Wavefronts of shared-memory instructions: 32 banks of 4 bytes, each of which serves one word per wavefront.

Any number of lanes may share that word (CUDA C++ Programming Guide 13.0, "Shared Memory"). Wider accesses are split
into parts of 128 bytes: half a warp with 8 bytes per lane, a quarter with 16, and a matrix's 8 rows of 16 bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from kernels.lanes import SharedOperation, expand_bases

_BANKS, _WORD_BYTES, _LANES = 32, 4, 32
_WAVEFRONT_BYTES = _BANKS * _WORD_BYTES


@dataclass(frozen=True)
class Wavefronts:
    """Wavefronts of one instruction of every warp; `ideal` without bank conflicts."""

    wavefronts: int
    ideal: int
    warps: int


def wavefronts(operation: SharedOperation) -> Wavefronts:
    """Count the wavefronts of one instruction of every warp of a program."""
    lanes = expand_bases(operation.lane, 1)
    lanes_at_once = min(_LANES, _WAVEFRONT_BYTES // max(operation.width_bytes, _WORD_BYTES))
    total = ideal = 0
    for start in expand_bases(operation.warp, 1):
        address = start ^ lanes
        for first in range(0, len(address), lanes_at_once):
            part = address[first : first + lanes_at_once]
            words = np.unique((part + np.arange(0, operation.width_bytes, _WORD_BYTES)) // _WORD_BYTES)
            total += int(np.bincount(words % _BANKS).max())
            ideal += 1  # at most as many words as banks
    return Wavefronts(total, ideal, 1 << len(operation.warp))


def wavefronts_per_instruction(operations: Iterable[SharedOperation]) -> tuple[float, float]:
    """Return the mean wavefronts of one warp's instruction, with and without bank conflicts."""
    counts = [(operation.count, wavefronts(operation)) for operation in operations]
    warps = sum(count * each.warps for count, each in counts)
    total, ideal = (sum(count * getattr(each, name) for count, each in counts) for name in ("wavefronts", "ideal"))
    return total / warps, ideal / warps
