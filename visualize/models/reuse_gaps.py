"""What programs find in a cache that drops the least recently used first, where each runs at its own pace.

An estimate from how long ago a piece was used before, and how much is touched in so long: the pieces whose last use is
older than that when they are used next (the footprint of a window: Xiang et al., HOTL, ASPLOS 2013), averaged over a
tile's time, or over the window where that is longer. Of each panel two pieces stand for all; of many panels some stand
for those beside them. Within some 3 % of a cache that is played through use by use, on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from visualize.models.lru import evicted

# The pieces that are looked at, as shares of a panel; and so many uses of each, or all.
_AT, _MOST_USES = (0.25, 0.75), 7000

# At least so many row panels, and column panels, where there are.
_FEWEST_PANELS = 16

# Times are counted in such parts of a tile's time, and sorted into so many bins per octave.
_TICKS, _BINS = 2048, 4


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
    runs: Sequence[tuple[np.ndarray, np.ndarray]],
    orders: Sequence[tuple[np.ndarray, np.ndarray]],
    capacities: Sequence[tuple[float, float]],
) -> np.ndarray:
    """Bytes of panels that are not found in the cache: (runs, orders, capacities).

    Args:
        runs: for each, when each tile is begun and how long it takes, in units of a tile's time.
        orders: for each, the two panels of each tile.
        capacities: touched bytes from which on pieces begin to be evicted, and at which all are.
    """
    ends = np.array([(begun + took).max() for begun, took in runs])
    used, windows = _used(panels, runs, orders, ends.max())
    written = panels.written_bytes * len(orders[0][0]) / ends
    touched = _touched(used, windows, ends) + written[:, None, None, None] * windows
    panel_bytes = np.concatenate([panels.row_bytes, panels.column_bytes])
    asked = sum(panel_bytes[side].sum() for side in orders[0])
    again, touched = (each.reshape(len(runs), len(orders), -1) for each in (used[..., :-1], touched))
    missed = [(again * evicted(touched, low, high)).sum(-1) for low, high in capacities]
    return np.minimum(np.stack(missed, -1) + panel_bytes.sum(), asked)


def _used(
    panels: PanelBytes,
    runs: Sequence[tuple[np.ndarray, np.ndarray]],
    orders: Sequence[tuple[np.ndarray, np.ndarray]],
    end: float,
) -> tuple[np.ndarray, np.ndarray]:
    """(runs, orders, spans, bins + 1): bytes used, by when and by how long ago they were before, in the last bin never.

    A span is a tile's time. With the bins' middles, in the same unit.
    """
    ticks = int(end * _TICKS) + 1
    bin_of = np.concatenate([[0], 1 + np.log2(np.arange(1, ticks)) * _BINS]).astype(np.int32)
    bins, spans, bits = int(bin_of[-1]) + 1, -(-ticks // _TICKS), ticks.bit_length()
    used = np.zeros((len(runs), len(orders), spans * (bins + 1)))
    every = -(-2 * len(orders[0][0]) // _MOST_USES)
    random = np.random.default_rng(0)
    for at in _AT:
        place, weights = _sampled(panels, every, random)
        number_type = np.int32 if len(weights) << bits < 1 << 31 else np.int64
        times = [np.tile(((begun + at * took) * _TICKS).astype(number_type), 2) for begun, took in runs]
        for number, order in enumerate(orders):
            panel = place[np.concatenate(order)]
            looked_at = np.flatnonzero(panel >= 0)
            panel = panel[looked_at].astype(number_type) << bits
            for run, time in enumerate(times):
                use = np.sort(panel + time[looked_at])  # by panel, and then by time
                of, tick = use >> bits, use & ((1 << bits) - 1)
                is_again = of[1:] == of[:-1]
                gap = (use[1:] - use[:-1])[is_again]
                cell = (tick[1:][is_again] - (gap >> 1)) // _TICKS * (bins + 1) + bin_of[gap]
                used[run, number] += np.bincount(cell, weights[of[1:][is_again]], used.shape[-1])
                first = np.flatnonzero(np.append(True, ~is_again))
                cell = tick[first] // _TICKS * (bins + 1) + bins
                used[run, number] += np.bincount(cell, weights[of[first]], used.shape[-1])
    windows = np.append(0, np.exp2((np.arange(1, bins) - 0.5) / _BINS)) / _TICKS
    return used.reshape(len(runs), len(orders), spans, bins + 1) / len(_AT), windows


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
