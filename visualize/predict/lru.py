"""What programs find in a cache that drops the least recently used first, where each reads two panels piece by piece.

Exact up to pieces for programs that start at the same steps and all take `pieces` of them; a cache is given by the
touched bytes from which on data begins to be evicted, and at which all of it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Programs:
    """When programs run, and what they read and write.

    Attributes:
        start: (programs,) whole steps.
        pieces: that a panel is read in, one per step.
        panel_bytes: (panels,) of each panel.
        written_bytes: that a program writes when it ends.
    """

    start: np.ndarray
    pieces: int
    panel_bytes: np.ndarray
    written_bytes: float


def fetched_bytes(
    programs: Programs,
    orders: Sequence[tuple[np.ndarray, np.ndarray]],
    capacities: Sequence[tuple[float, float]],
) -> np.ndarray:
    """Bytes of panels that are not found in the cache: (orders, capacities).

    What is touched between two uses of a piece follows from the starts alone: all programs read their pieces in the
    same order, so of each panel as many pieces are touched in a window as starts fall into that window, moved back
    piece by piece.

    Args:
        orders: for each, the two panels of each program, numbered alike.
        capacities: touched bytes from which on pieces begin to be evicted, and at which all are.
    """
    times, rank = np.unique(programs.start, return_inverse=True)
    steps, weights = len(times), programs.panel_bytes
    touched = np.zeros((steps, len(orders), len(weights)), bool)
    for number, (first, second) in enumerate(orders):
        touched[rank, number, first] = touched[rank, number, second] = True
    last = np.maximum.accumulate(np.where(touched, np.arange(steps, dtype=np.int16)[:, None, None], np.int16(-1)))
    before = np.concatenate([np.full((1, *last.shape[1:]), -1, np.int16), last[:-1]])
    # Bytes of panels that are used at a step, and were at a step before: one entry of `used` for each such pair.
    again = np.flatnonzero(touched & (before >= 0))
    row, panel = np.divmod(again, len(weights))
    pairs = np.bincount(row * steps + before.reshape(-1)[again], weights[panel], steps * len(orders) * steps)
    at = np.flatnonzero(pairs)
    used = pairs[at]
    step, order, previous = np.unravel_index(at, (steps, len(orders), steps))
    # since[b, order, a]: bytes of panels whose last use up to step b is at step a or later.
    since = _sums(last, weights)[..., ::-1].cumsum(-1)[..., ::-1]
    distance = _touched_between(since, times, programs.pieces, step, order, previous)
    distance += _written_between(programs, times, step, previous)
    cold = touched.any(0) @ weights
    fetched = []
    for low, high in capacities:
        fetched.append(cold + np.bincount(order, used * evicted(distance, low, high).mean(0), len(orders)))
    return np.stack(fetched, 1)


def evicted(touched: Any, low: float, high: float) -> Any:
    """The share of what was used that is evicted after so much was touched: 0 up to `low`, 1 from `high` on.

    With the fourth power of the way in between: a cache that picks sets by a hash loses little at first.
    """
    return np.square(np.square(np.clip((np.asarray(touched) - low) / (high - low), 0, 1)))


def _sums(places: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(steps, orders, steps): panel bytes by the place of each panel, (steps, orders, panels); −1 for nowhere."""
    steps, orders, _ = places.shape
    cells = np.arange(steps * orders, dtype=np.int64).reshape(steps, orders, 1) * (steps + 1) + places + 1
    sums = np.bincount(cells.ravel(), np.broadcast_to(weights, places.shape).ravel(), steps * orders * (steps + 1))
    return sums.reshape(steps, orders, steps + 1)[..., 1:]


def _touched_between(
    since: np.ndarray, times: np.ndarray, pieces: int, step: np.ndarray, order: np.ndarray, previous: np.ndarray
) -> np.ndarray:
    """(pieces, uses): bytes touched between the uses of a piece in programs begun at `previous` and at `step`.

    Half of the piece itself is taken to be touched already.
    """
    steps = len(times)
    padded = np.zeros((steps + 1, since.shape[1], steps + 1))
    padded[1:, :, :steps] = since
    moved = np.empty((2 * pieces, len(step)))
    for by in range(2 * pieces):
        upto = np.searchsorted(times, times + by - pieces, "right")
        moved[by] = padded[upto[step], order, upto[previous]]
    between = np.cumsum(moved[:-1] + moved[1:], axis=0)
    whole = between[pieces - 1 :]
    whole[1:] -= between[: pieces - 1]
    return whole / (2 * pieces)


def _written_between(programs: Programs, times: np.ndarray, step: np.ndarray, previous: np.ndarray) -> np.ndarray:
    """(pieces, uses): bytes that are written in between."""
    ends = np.sort(programs.start) + programs.pieces
    ended = np.searchsorted(ends, times + np.arange(programs.pieces)[:, None], "right") * programs.written_bytes
    return ended[:, step] - ended[:, previous]
