"""The bytes that a launch fetches from DRAM into the L2, from the times at which programs run and the L2's contents.

Programs start as slots become free. The programs of one SM drift apart, because an SM serves its older program first,
until their starts are evenly staggered. If programs request more than the L2 delivers, some SMs run ahead of the rest.
The model omits differences among the other SMs, because they even out: a program that is ahead misses and waits for
DRAM, and the programs behind it hit the data that it fetched.

The L2 has two halves. Each half caches data that SMs on its side read, and data from its own memory. A block misses if
the bytes touched since its last use no longer fit. The model computes these bytes from the times between uses (the
footprint of a window: Xiang et al., HOTL, ASPLOS 2013). Omitted: replacement policies beyond LRU, and which SMs of a
device run ahead.

Two callers find the uses of blocks: `timing/traffic.py` in the addresses of any launch, and `predict/reuse.py` in the
declared order of a matmul, before it is compiled and for many orders at once.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy import ndarray

from tilescope.declare.gpus import GPUS, Gpu
from tilescope.evaluate.counts import OperationCounts
from tilescope.evaluate.sectors import SECTOR_BYTES

# Times are whole ticks, which makes sorting and counting fast. Gaps between uses are counted in bins per octave.
_TICKS_PER_PROGRAM = 256
_MOST_TICKS = 1 << 22
BINS_PER_OCTAVE = 8

# Maximum number of time spans for which contents are modelled. A launch of more waves has several waves per span.
_MAX_SPANS = 1 << 12

# A written line is kept in the half that its memory is attached to. If the SM is on the other side, the other half
# keeps it as well: one and a half copies on average.
_WRITTEN_COPIES = 1.5

# `benchmarks.l2` measures the rate at which an SM receives data from the L2 in long, L2-bound launches, for each GPU.
# Short launches, at a higher clock, reach 86 GB/s on an H200 instead of 77, and 91 GB/s with blocks of K as long as a
# line. GPUs without a measurement are assumed to have the H200's rate.
_L2_ASSUMED = GPUS["H200"].l2_gbps_per_sm

# The sustained fraction of the datasheet's matrix rate in compute-bound launches. The same benchmark recorded 0.68 to
# 0.77 with 128 × 256 float16 tiles, at the device's power limit. Other GPUs are assumed to sustain the same fraction.
SUSTAINED = 0.73

# Bytes that an SM loads or stores per cycle.
_LSU_BYTES = 128

# A store below this efficiency writes partial sectors. The L2 reads the rest of them from DRAM.
_WHOLE = 0.5

# Multiples of the L2's capacity for which eviction is tabulated. Beyond four, no set keeps anything.
_TOUCHED = np.linspace(0, 4, 4097)


@dataclass(frozen=True)
class L2Constants:
    """The model's constants for GPUs.

    "Timelines" are 1,800 launches on two H200s and an H100. "Fitted" means fitted to 1,255 counts of DRAM reads on an
    H200 and an H100, in steps of a quarter or more; nearby values do about as well.

    Attributes:
        fast_sms: fraction of SMs that run ahead (timelines: 24 of 132 on most devices, 12 or 18 on others).
        ahead_from: L2 pressure above which these SMs run ahead (timelines).
        ahead_slope: lead of these SMs, in program times, per unit of pressure above `ahead_from` (timelines: 0.1 at
            1.7, a quarter at 2.2).
        max_ahead: the largest lead, in program times. The further SMs run ahead, the less the programs of an SM drift
            (fitted).
        drift: fraction of the way to an even stagger that n programs of an SM drift with each program, divided by n
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


CONSTANTS = L2Constants()


class ExpectedTimeline(NamedTuple):
    """The start and duration of programs, in units of a program's mean duration, and their SMs: (programs,) each."""

    start: ndarray
    duration: ndarray
    sm: ndarray


class Uses(NamedTuple):
    """Uses of blocks of memory, (uses,) each.

    Attributes:
        block: the number of the block.
        time: when it is used, in units of a program's mean duration.
        side: the half of the L2, 0 or 1, to which the program's SM is close.
        size: bytes used.
    """

    block: ndarray
    time: ndarray
    side: ndarray
    size: ndarray


def l2_gbps(gpu: Gpu) -> float:
    """Return the rate at which all SMs together receive bytes from the L2."""
    return (gpu.l2_gbps_per_sm or _L2_ASSUMED) * gpu.sms


def load_store_cycles(op: OperationCounts) -> float:
    """Return an operation's cycles of load and store units: one per request, or per 128 bytes if that is longer."""
    return max(op.launch.requests, op.launch.sectors * SECTOR_BYTES / _LSU_BYTES)


def writes_in_parts(op: OperationCounts) -> bool:
    """Return whether the requests of a store cover only parts of their sectors, and not only at the ends of rows."""
    return op.op == "store" and 0 < op.launch.efficiency < _WHOLE


def l2_pressure(l2_ms: float, arithmetic_ms: float, load_store_ms: float) -> float:
    """Return the L2's time divided by that of the next slowest resource; 0 without arithmetic."""
    return l2_ms / max(arithmetic_ms / SUSTAINED, load_store_ms) if arithmetic_ms else 0.0


def ahead(pressure: float, constants: L2Constants = CONSTANTS) -> float:
    """Return the lead of the fast SMs, in program times, at an L2 pressure."""
    return min(
        max(0.0, constants.ahead_slope * (pressure - constants.ahead_from)), constants.max_ahead
    )


def is_staggered(
    is_half: bool, resident: int, warps: int, constants: L2Constants = CONSTANTS
) -> bool:
    """Return whether the programs of an SM are evenly staggered from the start.

    Args:
        is_half: whether they multiply numbers of 16 bits.
        resident: programs that run on an SM at a time.
        warps: of a program.
    """
    return not is_half and resident > 1 and resident * warps >= constants.staggered_warps


def expected_timeline(
    program: ndarray,
    programs: int,
    sms: int,
    resident: int,
    pressure: float,
    is_staggered: bool = False,
    constants: L2Constants = CONSTANTS,
) -> ExpectedTimeline:
    """Return the expected timeline of some programs of a launch. The result is deterministic.

    All programs stay in lockstep if the pressure is unknown, or if all of them run at once, as persistent ones do.

    Args:
        program: their IDs.
        programs: number of programs in the launch.
        resident: programs that run on an SM at a time.
        pressure: the L2's time divided by that of the next slowest resource; 0 if unknown.
        is_staggered: whether programs of an SM are evenly staggered from the start.
    """
    waves = math.ceil(programs / (sms * resident))
    if waves == 1 or not (pressure or is_staggered):
        start = (program // (sms * resident)).astype(float)
        return ExpectedTimeline(start, np.ones_like(start), program % sms)
    lead = ahead(pressure, constants) if pressure else 0.0
    jitter = constants.jitter if pressure else 0.0
    drift = constants.drift * resident**2 * (1 - lead / constants.max_ahead) if pressure else 0.0
    rounds = math.ceil((waves + 3) / (1 - lead))
    wave = np.arange(rounds + 1)[:, None, None]
    stagger = np.sign(wave) if is_staggered else np.minimum(1, drift * wave)
    offset = stagger * (np.arange(resident)[:, None] / resident) ** constants.stagger_power
    noise = np.zeros((rounds + 1, resident, sms))
    np.random.default_rng(0).standard_normal(out=noise[1:])
    fast = np.arange(sms) * constants.fast_sms % 1 < constants.fast_sms - 1e-9
    free = (wave + offset + jitter * noise.cumsum(0)) * np.where(fast, 1 - lead, 1.0)
    start = free[:-1].ravel()
    duration = np.diff(free, axis=0).ravel()
    # Programs are assigned to slots in the order in which slots become free.
    slot = np.argsort(start, kind="stable")[:programs][program]
    return ExpectedTimeline(start[slot], duration[slot], slot % sms)


def missed_shares(
    uses: Uses,
    end: float,
    written_bytes: float,
    capacities: Sequence[float],
    ways: int = CONSTANTS.ways,
) -> ndarray:
    """Return the fraction of each use's bytes that the L2 fetches: (capacities, uses). It is 1 for first uses.

    Args:
        end: the end of the launch, in units of a program's mean duration.
        written_bytes: bytes that the launch writes.
        capacities: L2 capacities to evaluate, in bytes of both halves together.
    """
    ticks = int(find_ticks(np.array(end), end)) + 2
    tick = find_ticks(uses.time, end)
    spans = min(max(1, int(end)), _MAX_SPANS)
    bin_of = _tabulate_bins(ticks)
    bins = int(bin_of[-1])
    span = tick * spans // ticks * (bins + 1)
    rates = np.zeros((spans, bins + 1))
    gaps = np.zeros(bins + 1)
    counts = np.zeros(bins + 1)
    # A line that both sides read is kept twice. A line that one side reads is kept 1.5 times on average.
    for key, copies in ((2 * uses.block + uses.side, 0.5), (uses.block, 1.0)):
        gap = _gaps(key, tick, ticks)
        bin_ = bin_of[gap]
        rates += copies * np.bincount(span + bin_, uses.size, rates.size).reshape(rates.shape)
        gaps += np.bincount(bin_, gap, bins + 1)
        counts += np.bincount(bin_, minlength=bins + 1)
    mean_gaps = gaps[:-1] / np.maximum(counts[:-1], 1)
    touched = touched_bytes(rates / (ticks / spans), mean_gaps, written_bytes / ticks)
    middle = (tick - np.maximum(gap, 0) // 2) * spans // ticks * (bins + 1) + bin_
    evicted = np.ones((spans, bins + 1))
    shares = np.empty((len(capacities), len(tick)))
    for row, capacity in zip(shares, capacities, strict=True):
        evicted[:, :-1] = evicted_share(touched / capacity, ways)
        evicted.take(middle, out=row)
    return shares


def find_ticks(time: ndarray, end: float) -> ndarray:
    """Return times as whole ticks, of a launch that ends at a time."""
    return (time * min(_TICKS_PER_PROGRAM, _MOST_TICKS / end)).astype(np.int64)


@functools.lru_cache(maxsize=8)
def _tabulate_bins(ticks: int) -> ndarray:
    """Return the bin of each gap in ticks; the last entry, for a gap of -1, is the bin of first uses."""
    bins = 1 + (np.log2(np.arange(1, ticks)) * BINS_PER_OCTAVE).astype(np.int64)
    return np.concatenate([[0], bins, bins[-1:] + 1])


def _gaps(key: ndarray, tick: ndarray, ticks: int) -> ndarray:
    """Return the ticks since the previous use of the same key; -1 for first uses."""
    bits = len(key).bit_length()
    shift = ticks.bit_length()
    # Sorting one integer that holds all three is several times as fast as sorting indices.
    uses = np.sort((key << shift | tick) << bits | np.arange(len(key)))
    order = uses & ((1 << bits) - 1)
    gap = np.diff(tick[order], prepend=0)
    gap[np.append(True, np.diff(key[order]) != 0)] = -1
    result = np.empty_like(gap)
    result[order] = gap
    return result


def touched_bytes(rates: ndarray, gaps: ndarray, written: ndarray | float) -> ndarray:
    """Return the bytes of the L2 that are touched during each gap between two uses: (spans, gaps).

    Args:
        rates: bytes used per unit of time in each span, by the gap since their last use; the last column holds first
            uses: (spans, gaps + 1).
        written: bytes of the output that are written per unit of time, in each span or in all.
    """
    shorter = np.minimum(np.append(gaps, np.inf)[:, None], gaps)
    return rates @ shorter + _WRITTEN_COPIES * np.reshape(written, (-1, 1)) * gaps


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
