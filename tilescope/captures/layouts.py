"""Layouts: which lane of which warp holds each element of a block."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy import ndarray

_MOST_BITS = 22
_MOST_ELEMENTS = 1 << 20

Bases = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Layout:
    """A linear layout: it maps each register of each lane of each warp to an element of a block.

    Attributes:
        shape: the block's size in each dimension.
        register, lane, warp: one base, a tuple of coordinates, per bit of the register (lane, warp) index. An element's
            coordinates are the XOR of the bases of all set bits. A zero base means replication: several registers,
            lanes or warps hold the same element.
    """

    shape: tuple[int, ...]
    register: Bases
    lane: Bases
    warp: Bases

    @property
    def fits(self) -> bool:
        """Whether a warp has 32 lanes, all bases lie in the block, and neither bases nor elements are too many."""
        bases = (*self.register, *self.lane, *self.warp)
        is_small = len(bases) <= _MOST_BITS and math.prod(self.shape) <= _MOST_ELEMENTS
        return (len(self.lane) == 5 and is_small) and all(
            len(base) == len(self.shape)
            and all(0 <= at < size for at, size in zip(base, self.shape, strict=True))
            for base in bases
        )

    @property
    def is_permutation(self) -> bool:
        """Whether each bit of an index is a bit of one coordinate. All requests then have the same lanes, shifted."""
        bases = [base for base in (*self.register, *self.lane, *self.warp) if any(base)]
        return len(set(bases)) == len(bases) and all(
            sum(map(int.bit_count, base)) == 1 for base in bases
        )


def expand_bases(bases: Sequence[Any], rank: int) -> ndarray:
    """Return the coordinates of each index, (2 ** bits, rank) int64: the XOR of the bases of its set bits."""
    places = np.zeros((1, rank), dtype=np.int64)
    for base in bases:
        places = np.concatenate([places, places ^ np.array(base, dtype=np.int64)])
    return places


def textbook_layout(shape: tuple[int, ...], lanes: int = 32, order: Sequence[int] = ()) -> Layout:
    """Return the textbook's layout: lane i of a warp holds element i, and the next warp continues.

    Args:
        shape: powers of two.
        order: the dimensions in which elements are numbered, from the slowest to the fastest; row by row by default.
    """
    bases = [
        tuple((other == dim) << bit for other in range(len(shape)))
        for dim in reversed(order or range(len(shape)))
        for bit in range(shape[dim].bit_length() - 1)
    ]
    lane_bits = lanes.bit_length() - 1
    return Layout(shape, (), tuple(bases[:lane_bits]), tuple(bases[lane_bits:]))


@dataclass(frozen=True)
class Vectors:
    """Warp requests of one execution, in the order of warps, then registers.

    Attributes:
        place: (dimensions, requests, lanes) int64, coordinates in the block of the first element of each lane.
        owner: (requests, lanes) bool, false for lanes and warps that hold replicas.
        warp: (requests,) int64, the warp that issues each request.
    """

    place: ndarray
    owner: ndarray
    warp: ndarray


@functools.lru_cache(maxsize=256)
def vectors(layout: Layout, length: int) -> Vectors:
    """Split each lane's registers, without replicas, into vectors of `length`. One instruction moves one vector."""
    rank = len(layout.shape)
    is_original, warps, lanes = map(_is_original, (layout.register, layout.warp, layout.lane))
    registers = np.flatnonzero(is_original)[::length]
    place = (
        expand_bases(layout.warp, rank)[:, None, None]
        ^ expand_bases(layout.register, rank)[registers][:, None]
        ^ expand_bases(layout.lane, rank)
    ).reshape(-1, len(lanes), rank)
    place = np.moveaxis(place, 2, 0)
    warp = np.repeat(np.arange(len(warps)), len(registers))
    owner = lanes & warps[warp][:, None]
    return Vectors(place, owner, warp)


def _is_original(bases: Bases) -> ndarray:
    """Return whether each index is an original. A set bit with a zero base makes an index a replica."""
    return expand_bases([(not any(base)) << bit for bit, base in enumerate(bases)], 1)[:, 0] == 0
