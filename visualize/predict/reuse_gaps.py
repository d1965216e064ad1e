"""What programs find in an L2 of two halves, where each runs at its own pace.

A half holds what SMs on its side read; what lies in memory on its side, it also holds for the other. What is in neither
is fetched. Sets are picked by a hash, so where as many pieces have come as fill the L2, a set has on average as many as
it has ways, and some have more. On timelines that were taken as launches are counted that is within 20 % of 402 of 418
counts of an H200, and of 87 of 89 of an H100 (`benchmarks/timelines.py`).

An estimate from how long ago a piece was used before, and how much is touched in so long: the pieces whose last use is
older than that when they are used next (the footprint of a window: Xiang et al., HOTL, ASPLOS 2013), averaged over a
tile's time, or over the window where that is longer. Of each panel two pieces stand for all; of many panels some stand
for those beside them. That a half is asked for pieces of its memory only by who does not find them is left out; this,
and the rest, comes to some 10 % on average of two halves that are played through use by use.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from visualize.predict.dispatch import Run

# The pieces that are looked at, as shares of a panel; and so many uses of each, or all.
_AT, _MOST_USES = (0.25, 0.75), 4000

# At least so many row panels, and column panels, where there are.
_FEWEST_PANELS = 14

# Times are counted in such parts of a tile's time, and sorted into so many bins per octave.
_TICK_BITS, _BINS = 11, 4
_TICKS = 1 << _TICK_BITS

# Ways of a set of the L2: fitted, and 16 to 32 do nearly as well.
_WAYS = 24

# Multiples of the L2 that are worked out. Of four times as much no set keeps anything.
_TOUCHED = np.linspace(0, 4, 4097)

# What is written is in the half whose memory it is for; if the SM is on the other side, in that half too.
_WRITTEN_HALVES = 1.5


@dataclass(frozen=True)
class PanelBytes:
    """What programs read and write.

    Attributes:
        row_bytes, column_bytes: of each panel. Panels are numbered through both.
        written_bytes: of each tile, when it ends.
    """

    row_bytes: np.ndarray
    column_bytes: np.ndarray
    written_bytes: float


def fetched_bytes(
    panels: PanelBytes,
    runs: Sequence[Run],
    orders: Sequence[tuple[np.ndarray, np.ndarray]],
    capacities: Sequence[float],
) -> np.ndarray:
    """Bytes of panels that are not found in the L2: (runs, orders, capacities).

    Args:
        runs: when each tile is begun and how long it takes, in units of a tile's time, and on which SM.
        orders: for each, the two panels of each tile.
        capacities: bytes of both halves.
    """
    ends = np.array([(run.begun + run.took).max() for run in runs])
    used, used_by_side, windows = _used(panels, runs, orders, ends.max())
    written = panels.written_bytes * len(orders[0][0]) / ends
    # What is held twice is what both sides touch: of a side's pieces there are half as many as of both sides'.
    touched = _touched(used, windows, ends) + _touched(used_by_side, windows, ends) / 2
    touched += _WRITTEN_HALVES * written[:, None, None, None] * windows
    panel_bytes = np.concatenate([panels.row_bytes, panels.column_bytes])
    asked = sum(panel_bytes[side].sum() for side in orders[0])
    again, touched = (each.reshape(len(runs), len(orders), -1) for each in (used[..., :-1], touched))
    missed = [(again * _evicted(touched / capacity)).sum(-1) for capacity in capacities]
    return np.minimum(np.stack(missed, -1) + panel_bytes.sum(), asked)


def _evicted(touched: np.ndarray) -> np.ndarray:
    """The share of sets to which as many pieces have come as they have ways: by Poisson's distribution.

    Args:
        touched: bytes, as a multiple of the L2's.
    """
    return np.interp(touched, _TOUCHED, _full_sets(_WAYS))


@functools.cache
def _full_sets(ways: int) -> np.ndarray:
    """The same for each of `_TOUCHED`."""
    per_set = ways * _TOUCHED
    fewer, term = np.zeros_like(per_set), np.exp(-per_set)
    for come in range(1, ways + 1):
        fewer += term
        term = term * per_set / come
    return 1 - fewer


def _used(
    panels: PanelBytes, runs: Sequence[Run], orders: Sequence[tuple[np.ndarray, np.ndarray]], end: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bytes used, by when and by how long ago they were before, in the last bin never: (runs, orders, spans, bins + 1).

    The same with each side's uses by themselves; and the bins' middles. A span is a tile's time.
    """
    ticks = int(end * _TICKS) + 1
    bin_of = np.concatenate([[0], 1 + np.log2(np.arange(1, ticks)) * _BINS]).astype(np.int32)
    bins, spans, bits = int(bin_of[-1]) + 1, -(-ticks // _TICKS), ticks.bit_length()
    used, used_by_side = np.zeros((2, len(runs), len(orders), spans * (bins + 1)))
    every = -(-2 * len(orders[0][0]) // _MOST_USES)
    random = np.random.default_rng(0)
    sides = [np.tile(_side(run.sm), 2) for run in runs]
    for at in _AT:
        place, weights = _sampled(panels, every, random)
        number_type = np.int32 if 2 * len(weights) << bits < 1 << 31 else np.int64
        times = [np.tile(((run.begun + at * run.took) * _TICKS).astype(number_type), 2) for run in runs]
        for number, order in enumerate(orders):
            panel = place[np.concatenate(order)]
            looked_at = np.flatnonzero(panel >= 0)
            panel = panel[looked_at].astype(number_type)
            for run, (time, side) in enumerate(zip(times, sides, strict=True)):
                tick = time[looked_at]
                used[run, number] += _binned((panel << bits) + tick, bits, weights, bin_of, used.shape[-1])
                key = (2 * panel + side[looked_at] << bits) + tick
                used_by_side[run, number] += _binned(key, bits, np.repeat(weights, 2), bin_of, used.shape[-1])
    windows = np.append(0, np.exp2((np.arange(1, bins) - 0.5) / _BINS)) / _TICKS
    used, used_by_side = (
        each.reshape(len(runs), len(orders), spans, bins + 1) / len(_AT) for each in (used, used_by_side)
    )
    return used, used_by_side, windows


def _binned(use: np.ndarray, bits: int, weights: np.ndarray, bin_of: np.ndarray, cells: int) -> np.ndarray:
    """Bytes by span and bin, which is the last one for what was not used before: (cells,).

    Args:
        use: the number of what is used, and in the last `bits` bits when.
        weights: bytes, by number.
        bin_of: by ticks since the use before.
    """
    use, bins = np.sort(use), int(bin_of[-1]) + 1
    of = use >> bits
    is_first = np.append(True, of[1:] != of[:-1])
    gap = np.diff(use, prepend=use[:1])
    gap[is_first] = 0
    ago = bin_of[gap]
    ago[is_first] = bins
    span = (use & ((1 << bits) - 1)) - (gap >> 1) >> _TICK_BITS
    return np.bincount(span * (bins + 1) + ago, weights[of], cells)


def _side(sm: np.ndarray) -> np.ndarray:
    """The half of the L2, 0 or 1, that each SM is beside: assumed, half of them each, by chance."""
    sms = int(sm.max()) + 1
    return np.random.default_rng(0).permutation(np.arange(sms) % 2)[sm]


def _sampled(panels: PanelBytes, every: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The number of each panel that is looked at, −1 for the others; and the bytes that each of those stands for."""
    places, weights, known = [], [], 0
    for sizes in (panels.row_bytes, panels.column_bytes):
        first = np.arange(0, len(sizes), max(1, min(every, len(sizes) // _FEWEST_PANELS)))
        chosen = first + (random.random(len(first)) * np.diff(first, append=len(sizes))).astype(int)
        place = np.full(len(sizes), -1)
        place[chosen] = known + np.arange(len(chosen))
        known += len(chosen)
        places.append(place)
        weights.append(np.add.reduceat(sizes, first))
    return np.concatenate(places), np.concatenate(weights)


def _touched(used: np.ndarray, windows: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """(runs, orders, spans, bins): bytes that are touched in a window as long as each bin's middle, around each span.

    A use touches something new for windows that begin after the use before.
    """
    rate = used @ np.minimum(np.append(windows, np.inf)[:, None], windows)
    spans = np.arange(used.shape[-2])[:, None]
    reach = np.ceil(np.maximum(windows, 1) / 2).astype(int)
    low, high = np.maximum(spans - reach, 0), np.minimum(spans + reach + 1, len(spans))
    until = np.concatenate([np.zeros_like(rate[..., :1, :]), np.cumsum(rate, axis=-2)], axis=-2)
    edges = np.minimum(np.arange(len(spans) + 1), ends[:, None])
    length = np.maximum(edges[:, high] - edges[:, low], 1 / _TICKS)
    every = np.arange(len(windows))
    return (until[..., high, every] - until[..., low, every]) / length[:, None]
