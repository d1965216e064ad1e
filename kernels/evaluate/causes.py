"""Why requests to global memory cost what they cost, in the same words for our own kernels and for captured ones."""

import numpy as np

from kernels.sectors import SECTOR_BYTES

# Triton specializes on arguments that are multiples of this, and a lane moves at most as many bytes.
ALIGNMENT = 16


def count_bytes(number: int) -> str:
    return f"{number:,} byte{'s' * (number != 1)}"


def explain_width(width_bytes: int, *causes: str) -> str:
    """Return the causes, and how many bytes a lane moves because of them."""
    return " ".join([*causes, f"A lane moves {count_bytes(width_bytes)} per request."])


def find_odd_size(name: str, size: int) -> str:
    """Return that the compiler does not know a size as a multiple of 16; "" if it is one."""
    return f"{name} = {size} is not a multiple of {ALIGNMENT}." if size % ALIGNMENT else ""


def find_fullest(active: np.ndarray) -> int:
    """Return the request with the most active lanes."""
    return int(active.sum(axis=1).argmax())


def measure_step(address: np.ndarray, active: np.ndarray) -> int:
    """Return the bytes from lane to lane of the request with the most active lanes; 0 if that varies."""
    steps = np.diff(address[find_fullest(active), :8])
    return int(steps[0]) if (steps == steps[0]).all() else 0


def explain_sectors(address: np.ndarray, active: np.ndarray, width_bytes: int) -> str:
    """Return a clause that says why requests touch more sectors than their bytes fill.

    Args:
        address: (requests, lanes) int64, first byte of each lane.
        active: (requests, lanes) bool.
    """
    step = measure_step(address, active)
    if abs(step) > width_bytes:
        side = "after" if step > 0 else "before"
        distance = f"lane 1 is {count_bytes(abs(step))} {side} lane 0"
        return f"{distance}, and a lane uses {count_bytes(width_bytes)}"
    request = find_fullest(active)
    used = np.unique(address[request, active[request]])
    ends = np.flatnonzero(np.diff(used) > width_bytes)
    runs = np.diff([-1, *ends, len(used) - 1]) * width_bytes
    if runs.max() < SECTOR_BYTES:
        return f"contiguous runs of a request are only {count_bytes(int(runs.max()))} long"
    return "contiguous runs begin or end inside sectors"
