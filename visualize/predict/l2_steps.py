"""The loads of each step of a launch, and the L2's contents after it, if the programs of a wave run in lockstep.

This applies the model of `l2.py` to every use of every panel, wave by wave. `fetched_bytes` samples them, and gives the
bytes of a whole launch.
"""

from typing import NamedTuple

import numpy as np
from numpy import ndarray

from tilescope.timing.l2 import BINS_PER_OCTAVE, CONSTANTS, evicted_share, touched_bytes
from visualize.predict.schedule import Panels, Schedule, Steps, loads, slice_blocks, stable_order

# Maximum number of time spans for which contents are modelled: contents change slowly.
_MAX_SPANS = 256

# Maximum number of single programs after each of which the L2 is modelled. If there are more, it is modelled after each
# wave.
_MAX_SINGLE = 1 << 12


class StepLoads(NamedTuple):
    """The loads of a launch, and the L2.

    Attributes:
        blocks: distinct blocks that the compared programs load, then those that each step loads or, if a step is a
            single program, those that all programs up to it load: (steps + 1,).
        ends: the tiles after which the L2 is modelled, besides those of the compared programs: the ends of the steps
            or, if there are too many, of the waves: (parts,). The other arrays have parts + 1 values.
        part_bytes: bytes of the distinct blocks of each part; 0 for the compared programs.
        requested, hits: blocks that all programs so far have loaded, and how many of them the L2 held.
        fetched, evicted: bytes fetched from DRAM so far, and those that had been fetched before.
        held: bytes in the L2, of pieces that the part is the first to read, of others that it reads, and of the rest:
            (3, parts + 1). With `is_small`, a piece counts once; otherwise each half of the L2 may have a copy.
        is_small: whether all copies of the inputs fit in the L2.
    """

    blocks: ndarray
    ends: ndarray
    part_bytes: ndarray
    requested: ndarray
    hits: ndarray
    fetched: ndarray
    evicted: ndarray
    held: ndarray
    is_small: bool


def step_loads(
    order: Schedule, launch: Steps, read: Panels, tile_bytes: float, first: int
) -> StepLoads:
    """Predict the loads of each step, and the contents of the L2.

    Args:
        order: the launch's schedule, in start order.
        launch: its steps.
        tile_bytes: bytes that each tile writes.
        first: number of compared programs (or tiles of a loop).
    """
    timed = launch.timed
    capacity = timed.gpu.l2_bytes
    piece_bytes = np.concatenate([read.row_bytes, read.column_bytes]).astype(float)
    depth = np.tile(slice_blocks(timed), sum(timed.extents))
    is_small = 2 * read.total_bytes < capacity
    wave_tiles = np.bincount(order.step)
    wave_ends = np.cumsum(wave_tiles)
    blocks = launch.blocks
    ends = wave_ends
    if launch.is_single:
        programs = np.arange(1, len(launch.tiles) + 1)
        blocks = loads(timed, programs)
        ends = programs if len(programs) <= _MAX_SINGLE else wave_ends
    # Uses of a piece between two marks count as one read.
    marks = np.unique(np.concatenate([ends, wave_ends, [first]]))
    piece, place, users = _reads(timed, marks, len(piece_bytes))
    wave = np.searchsorted(wave_ends, marks)[place]
    part = np.searchsorted(ends, marks)[place]
    size = piece_bytes[piece]

    is_first = _changes(piece)
    begins = is_first | _changes(wave)  # the first read of a piece in a wave
    before = np.cumsum(users) - users
    users_in_wave = users + before - np.maximum.accumulate(np.where(begins, before, 0))
    # Each half of the L2 keeps a copy of what its SMs read: 1.5 copies for one user, 2 for many.
    copies = (2 - 0.5**users_in_wave) * size
    runs = np.flatnonzero(begins)
    share = np.ones(len(runs))
    is_again = ~is_first[runs]
    gap = np.diff(wave[runs], prepend=0)
    share[is_again] = _evicted(
        wave[runs],
        gap,
        is_again,
        copies[np.append(runs[1:], len(piece)) - 1],
        tile_bytes * wave_tiles,
        capacity,
    )

    def total(places: ndarray, values: ndarray) -> ndarray:
        """Add values up to the end of the compared programs, and to that of each part."""
        by_place = np.bincount(places, values, len(marks)).cumsum()
        return by_place[np.searchsorted(marks, [first, *ends])]

    missed = share * size[runs]
    requested = total(place, users * depth[piece]).astype(np.int64)
    kept = size if is_small else copies
    before = np.where(is_first, 0, np.append(0, kept[:-1]))
    # The last read of a piece in a part, and whether no earlier part has read it.
    is_last = np.append((is_first | _changes(part))[1:], True)
    is_new = part == np.repeat(part[is_first], np.bincount(piece)[piece[is_first]])
    used = np.zeros((2, len(ends) + 1))
    for row, chosen in zip(used, (is_last & is_new, is_last & ~is_new), strict=True):
        row[1:] = np.bincount(part[chosen], kept[chosen], len(ends))
    return StepLoads(
        blocks=np.append(loads(timed, np.array([first])), blocks),
        ends=ends,
        part_bytes=np.append(0, np.bincount(part[is_last], size[is_last], len(ends))),
        requested=requested,
        hits=requested - total(place[runs], share * depth[piece[runs]]),
        fetched=total(place[runs], missed),
        evicted=total(place[runs], np.where(is_again, missed, 0)),
        held=np.stack([*used, total(place, kept - before) - used.sum(0)]),
        is_small=is_small,
    )


def _reads(timed: Schedule, marks: ndarray, pieces: int) -> tuple[ndarray, ndarray, ndarray]:
    """Return each read's piece, place (before the first mark, the second, …) and number of uses.

    Reads are sorted by piece, then by place.
    """
    rows, columns = timed.pieces
    last = (len(marks) + 1) * pieces
    place = np.arange(0, last - pieces, pieces, dtype=np.min_scalar_type(-last))
    place = np.repeat(place, np.diff(marks, prepend=0))
    # A stable sort is fast, because the places are in order.
    uses = np.concatenate(
        [
            np.sort(place + piece.astype(place.dtype), kind="stable")
            for piece in (rows, columns + timed.extents[0] * timed.slices)
        ]
    )
    begins = np.flatnonzero(_changes(uses))
    place, piece = np.divmod(uses[begins], pieces)
    order = stable_order(piece)
    return piece[order], place[order], np.diff(begins, append=len(uses))[order]


def _changes(values: ndarray) -> ndarray:
    """Return whether each value differs from the one before it; the first does."""
    return np.append(True, values[1:] != values[:-1])


def _evicted(
    wave: ndarray,
    gap: ndarray,
    is_again: ndarray,
    copies: ndarray,
    written: ndarray,
    capacity: float,
) -> ndarray:
    """Return the share of each repeated read that the L2 has evicted since the piece's last wave.

    Args:
        wave, gap, is_again, copies: of each read: its wave, the waves since the last read of its piece, if there is
            one, and the bytes that the L2 then keeps.
        written: bytes that each wave writes.
    """
    waves = len(written)
    spans = min(waves, _MAX_SPANS)
    span = np.arange(waves) * spans // waves
    binned = (np.log2(np.maximum(gap, 1)) * BINS_PER_OCTAVE).astype(np.int64)
    bins = int(binned[is_again].max(initial=0)) + 1
    binned[~is_again] = bins
    by_time = np.bincount(span[wave] * (bins + 1) + binned, copies, spans * (bins + 1))
    counts = np.bincount(binned[is_again], minlength=bins)
    gaps = np.bincount(binned[is_again], gap[is_again], bins) / np.maximum(counts, 1)
    rates = by_time.reshape(spans, bins + 1) / np.bincount(span)[:, None]
    touched = touched_bytes(rates, gaps, np.bincount(span, written) / np.bincount(span))
    middle = span[(wave - gap // 2)[is_again]]
    return evicted_share(touched[middle, binned[is_again]] / capacity, CONSTANTS.ways)
