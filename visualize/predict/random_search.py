"""What random search would have found by now: the baseline of a sweep's convergence."""

from __future__ import annotations

import numpy as np


def expected_best(times_ms: np.ndarray) -> np.ndarray:
    """The expected fastest of the first 1, 2, 3 … configs, if these same times had come in random order.

    Of n times in ascending order, the i-th is the fastest of k drawn ones with probability C(n − i, k − 1) / C(n, k).
    Left out: configs that were never timed, as an early end leaves out those that are predicted to be slow.

    Args:
        times_ms: (n,), in any order.

    Returns:
        (n,), in ms; the last one is the fastest of all.

    >>> expected_best(np.array([3.0, 1.0])).tolist()
    [2.0, 1.0]
    """
    ordered = np.sort(np.asarray(times_ms, dtype=float))
    count = len(ordered)
    drawn = np.arange(1, count + 1)
    chance = drawn / max(count, 1)
    expected = np.zeros(count)
    for place, time_ms in enumerate(ordered):
        expected += chance * time_ms
        left = count - place - 1
        if left:
            chance = chance * np.maximum(left + 1 - drawn, 0) / left
    return expected
