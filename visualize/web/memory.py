"""Memory that the page's process has done with goes back to the system."""

from __future__ import annotations

import ctypes
import sys

# Options of mallopt(3), <malloc.h>.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8

# The arrays of a launch of 512 × 512 tiles, 2 MiB each, stay in the heap: to map each again takes 35 ms of a redraw.
_LARGE_BYTES = 4 << 20
_FREE_BYTES = 16 << 20
_ARENAS = 4


def give_back_large_arrays() -> None:
    """Let glibc return each large array when it is freed, whatever was freed before.

    By itself it raises the size from which on it does so with each that is freed, up to 32 MiB: then the arrays of a
    large launch stay in the heap of the thread that drew it, one heap per thread.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_TRIM_THRESHOLD, _FREE_BYTES)
        mallopt(_ARENA_MAX, _ARENAS)
