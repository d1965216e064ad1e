"""Wavefronts of shared-memory instructions: 32 banks of 4 bytes, each of which serves one word per wavefront.

Any number of lanes may share a word (CUDA C++ Programming Guide 13.0, "Shared Memory"). Wider accesses are split into
parts of 128 bytes: half a warp at 8 bytes per lane, a quarter warp at 16, or the 8 rows of 16 bytes of a matrix.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kernels.accesses import SharedOperation, expand_bases

_BANKS, _WORD_BYTES, _LANES = 32, 4, 32
_WAVEFRONT_BYTES = _BANKS * _WORD_BYTES


def wavefronts(operation: SharedOperation) -> tuple[float, float]:
    """Return the wavefronts of one warp's instruction with and without bank conflicts, averaged over the warps."""
    address = expand_bases(operation.warp, 1) ^ expand_bases(operation.lane, 1).T
    lanes_at_once = min(_LANES, _WAVEFRONT_BYTES // max(operation.width_bytes, _WORD_BYTES))
    parts = address.reshape(-1, lanes_at_once, 1) + np.arange(0, operation.width_bytes, _WORD_BYTES)
    total = sum(int(np.bincount(np.unique(part // _WORD_BYTES) % _BANKS).max()) for part in parts)
    return total / len(address), len(parts) / len(address)  # without conflicts: at most as many words as banks


def wavefronts_per_instruction(operations: Iterable[SharedOperation]) -> tuple[float, float]:
    """Return the wavefronts of one warp's instruction with and without bank conflicts, averaged over operations."""
    counts, passes = zip(*((operation.count, wavefronts(operation)) for operation in operations), strict=True)
    total, ideal = np.average(passes, axis=0, weights=counts).tolist()
    return total, ideal
