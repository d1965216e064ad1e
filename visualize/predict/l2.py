"""The bytes that a launch fetches from DRAM into the L2, from the times at which programs run and the L2's contents.

Programs start as slots become free. The programs of one SM drift apart, because an SM serves its older program first,
until their starts are evenly staggered. If programs request more than the L2 delivers, some SMs run ahead of the rest.
The model omits differences among the other SMs, because they even out: a program that is ahead misses and waits for
DRAM, and the programs behind it hit the data that it fetched.

The L2 has two halves. Each half caches data that SMs on its side read, and data from its own memory. A block misses if
the bytes touched since its last use no longer fit. The model computes these bytes from the times between uses (the
footprint of a window: Xiang et al., HOTL, ASPLOS 2013). Omitted: replacement policies beyond LRU, and which SMs of a
device run ahead.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy import ndarray

from visualize.predict.schedule import Panels, Schedule

# Times are whole ticks, which makes sorting and counting fast. Gaps between uses are counted in bins per octave.
_TICKS_PER_TILE = 256
BINS_PER_OCTAVE = 8

# Maximum number of panel uses counted per order. If there are more, some panels represent their neighbours.
_MAX_USES = 1 << 12
_MIN_PANELS = 16

# Maximum number of time spans for which contents are modelled. A launch of more waves has several waves per span.
_MAX_SPANS = 1 << 12

# A written line is kept in the half that its memory is attached to. If the SM is on the other side, the other half
# keeps it as well: one and a half copies on average.
_WRITTEN_COPIES = 1.5

# Multiples of the L2's capacity for which eviction is tabulated. Beyond four, no set keeps anything.
_TOUCHED = np.linspace(0, 4, 4097)


@dataclass(frozen=True)
class Constants:
    """The model's constants for GPUs.

    "Timelines" are 1,800 launches on two H200s and an H100. "Fitted" means fitted to 1,255 counts of DRAM reads on an
    H200 and an H100, in steps of a quarter or more; nearby values do about as well.

    Attributes:
        fast_sms: fraction of SMs that run ahead (timelines: 24 of 132 on most devices, 12 or 18 on others).
        ahead_from: L2 pressure above which these SMs run ahead (timelines).
        ahead_slope: lead of these SMs, in tile times, per unit of pressure above `ahead_from` (timelines: 0.1 at 1.7,
            a quarter at 2.2).
        max_ahead: the largest lead, in tile times. The further SMs run ahead, the less the programs of an SM drift
            (fitted).
        drift: fraction of the way to an even stagger that n programs of an SM drift with each tile, divided by n
            squared (fitted; timelines show that it grows steeply with n).
        stagger_power: exponent of a program's stagger by age: the youngest lag most (fitted; timelines show the lag).
        jitter: relative standard deviation of a program's time (fitted; timelines: 0.0075 per unit of pressure).
        ways: lines in a set. A hash picks the set, so some sets fill up before the L2 does (fitted; 32 works as well).
        staggered_warps: warps per SM from which programs that multiply float32 or float8 are evenly staggered from the
            start (timelines: 36 of 43 such launches, but 3 of 15 with fewer warps).
    """

    fast_sms: float = 24 / 132
    ahead_from: float = 1.1
    ahead_slope: float = 0.25
    max_ahead: float = 0.5
    drift: float = 0.007
    stagger_power: float = 1.5
    jitter: float = 0.006
    ways: int = 24
    staggered_warps: int = 12


CONSTANTS = Constants()


class Timeline(NamedTuple):
    """The start and duration of each tile, in tile times, and its SM: (tiles,) each."""

    start: ndarray
    duration: ndarray
    sm: ndarray


def ahead(l2_pressure: float, constants: Constants = CONSTANTS) -> float:
    """Return the lead of the fast SMs, in tile times."""
    return min(
        max(0.0, constants.ahead_slope * (l2_pressure - constants.ahead_from)), constants.max_ahead
    )


def expected_timeline(
    schedule: Schedule,
    l2_pressure: float,
    is_staggered: bool = False,
    constants: Constants = CONSTANTS,
) -> Timeline:
    """Return the expected timeline of the tiles. The result is deterministic.

    Programs that loop over tiles stay in lockstep, and so do all programs if the pressure is unknown.

    Args:
        l2_pressure: the L2's time divided by that of the next slowest resource; 0 if unknown.
        is_staggered: whether programs of an SM are evenly staggered from the start.
    """
    sms = schedule.sms
    per_sm = schedule.programs_per_sm
    can_drift = l2_pressure > 0 and schedule.turns == 1
    lead = ahead(l2_pressure, constants) if can_drift else 0.0
    jitter = constants.jitter if can_drift else 0.0
    drift = constants.drift * per_sm**2 * (1 - lead / constants.max_ahead) if can_drift else 0.0
    rounds = math.ceil((schedule.waves + 3) / (1 - lead))
    wave = np.arange(rounds + 1)[:, None, None]
    stagger = np.sign(wave) if is_staggered else np.minimum(1, drift * wave)
    offset = stagger * (np.arange(per_sm)[:, None] / per_sm) ** constants.stagger_power
    noise = np.zeros((rounds + 1, per_sm, sms))
    np.random.default_rng(0).standard_normal(out=noise[1:])
    fast = np.arange(sms) * constants.fast_sms % 1 < constants.fast_sms - 1e-9
    free = (wave + offset + jitter * noise.cumsum(0)) * np.where(fast, 1 - lead, 1.0)
    start = free[:-1].ravel()
    duration = np.diff(free, axis=0).ravel()
    # Programs are assigned to slots in the order in which slots become free.
    slot = np.argsort(start, kind="stable")[: schedule.programs][schedule.tiles.program]
    return Timeline(start[slot] * schedule.turns + schedule.turn, duration[slot], slot % sms)


def fetched_bytes(
    panels: Panels,
    written_bytes: float,
    timeline: Timeline,
    orders: Sequence[tuple[ndarray, ndarray]],
    capacities: Sequence[float],
    ways: int = CONSTANTS.ways,
) -> ndarray:
    """Estimate the bytes of panels that each order fetches from DRAM.

    The uses of one byte of each panel represent all of its bytes.

    Args:
        written_bytes: bytes that each tile writes.
        orders: orders of the same tiles: for each order, the row panel and the column panel that each tile reads.
        capacities: L2 capacities to evaluate, in bytes of both halves together.

    Returns:
        (orders, capacities).
    """
    tiles = len(timeline.start)
    end = float((timeline.start + timeline.duration).max())
    panel_bytes = np.concatenate([panels.row_bytes, panels.column_bytes]).astype(float)
    row_panels = len(panels.row_bytes)
    spans = min(max(1, int(end)), _MAX_SPANS)
    random = np.random.default_rng(0)
    number, weight = _sampled_panels(
        (panels.row_bytes, panels.column_bytes), -(-2 * tiles // _MAX_USES), random
    )
    place = random.random(len(weight))
    start, duration = (np.tile(each, 2) for each in timeline[:2])
    side = np.tile(sides(int(timeline.sm.max()) + 1)[timeline.sm], 2)
    ticks = int(end * _TICKS_PER_TILE) + 2
    bin_of = np.append(0, 1 + np.log2(np.arange(1, ticks)) * BINS_PER_OCTAVE).astype(np.int64)
    asked = panels.row_bytes[orders[0][0]].sum() + panels.column_bytes[orders[0][1]].sum()
    fetched = np.empty((len(orders), len(capacities)))
    for index, (rows, columns) in enumerate(orders):
        panel = number[np.concatenate([rows, row_panels + columns])]
        used = np.flatnonzero(panel >= 0)
        panel = panel[used]
        tick = ((start[used] + place[panel] * duration[used]) * _TICKS_PER_TILE).astype(np.int64)
        uses = _Uses(panel, tick, weight, bin_of, spans)
        by_side = _Uses(2 * panel + side[used], tick, weight.repeat(2), bin_of, spans)
        # A line that both sides read is kept twice. A line that one side reads is kept 1.5 times on average.
        gaps = (uses.gaps + by_side.gaps) / np.maximum(uses.gap_counts + by_side.gap_counts, 1)
        rates = (uses.by_time + by_side.by_time / 2) / (ticks / spans)
        touched = touched_bytes(rates, gaps, written_bytes * tiles / ticks)
        again = uses.by_gap[:, :-1]
        missed = [
            (again * evicted_share(touched / capacity, ways)).sum() for capacity in capacities
        ]
        fetched[index] = np.minimum(panel_bytes.sum() + missed, asked)
    return fetched


def touched_bytes(rates: ndarray, gaps: ndarray, written: ndarray | float) -> ndarray:
    """Return the bytes of the L2 that are touched during each gap between two uses: (spans, gaps).

    Args:
        rates: bytes used per unit of time in each span, by the gap since their last use; the last column holds first
            uses: (spans, gaps + 1).
        written: bytes of the output that are written per unit of time, in each span or in all.
    """
    shorter = np.minimum(np.append(gaps, np.inf)[:, None], gaps)
    return rates @ shorter + _WRITTEN_COPIES * np.reshape(written, (-1, 1)) * gaps


class _Uses:
    """Bytes used per time span and per gap since the previous use; the last bin holds first uses.

    Attributes:
        by_time: bytes by the span of the use: (spans, bins + 1).
        by_gap: bytes by the span of the gap's midpoint: (spans, bins + 1).
        gaps, gap_counts: sum and number of the gaps in each bin: (bins,).
    """

    def __init__(
        self, key: ndarray, tick: ndarray, weight: ndarray, bin_of: ndarray, spans: int
    ) -> None:
        ticks = len(bin_of)
        bins = int(bin_of[-1]) + 1
        bits = len(bin_of).bit_length()
        uses = np.sort(key << bits | tick)
        key = uses >> bits
        tick = uses & ((1 << bits) - 1)
        is_first = np.append(True, key[1:] != key[:-1])
        gap = np.where(is_first, 0, np.append(0, np.diff(tick)))
        binned = np.where(is_first, bins, bin_of[gap])
        shape = (spans, bins + 1)
        self.by_time, self.by_gap = (
            np.bincount(
                at * spans // ticks * (bins + 1) + binned, weight[key], spans * (bins + 1)
            ).reshape(shape)
            for at in (tick, tick - gap // 2)
        )
        self.gaps = np.bincount(binned, gap, bins + 1)[:-1]
        self.gap_counts = np.bincount(binned, minlength=bins + 1)[:-1]


def _sampled_panels(
    sides: tuple[ndarray, ndarray], every: int, random: np.random.Generator
) -> tuple[ndarray, ndarray]:
    """Sample one in `every` panels. Return each panel's sample number (-1: none), and the bytes per sample."""
    numbers = []
    weights = []
    known = 0
    for sizes in sides:
        first = np.arange(0, len(sizes), max(1, min(every, len(sizes) // _MIN_PANELS)))
        chosen = first + (random.random(len(first)) * np.diff(first, append=len(sizes))).astype(int)
        number = np.full(len(sizes), -1)
        number[chosen] = known + np.arange(len(chosen))
        known += len(chosen)
        numbers.append(number)
        weights.append(np.add.reduceat(sizes, first).astype(float))
    return np.concatenate(numbers), np.concatenate(weights)


def sides(sms: int) -> ndarray:
    """Return the half of the L2, 0 or 1, that each SM is close to. The model splits the SMs evenly, at random."""
    return np.random.default_rng(0).permutation(np.arange(sms) % 2)


def evicted_share(touched: ndarray | float, ways: int) -> ndarray:
    """Return the fraction of sets that have received at least as many lines as they have ways (Poisson).

    Args:
        touched: bytes touched since the last use, as a multiple of the L2's capacity.
    """
    return np.interp(touched, _TOUCHED, _full_sets(ways))


@functools.cache
def _full_sets(ways: int) -> ndarray:
    lines = ways * _TOUCHED
    fewer = np.zeros_like(lines)
    term = np.exp(-lines)
    for count in range(1, ways + 1):
        fewer += term
        term = term * lines / count
    return 1 - fewer
