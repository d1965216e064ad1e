"""What the model of DRAM traffic was fitted with: the comparisons of GROUP_SIZE and timelines recorded on an H200.

`ahead_slope`, `spread`, `apart_evicted_at` and `slow_spread` were chosen on all shapes but the 13 that were drawn at
random first; `shared_by` and `apart_from` with these in view, `slow_share` with all. Many others near them do as well.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Constants:
    """What was fitted to counts and read from timelines.

    Attributes:
        evicted_from, evicted_at: bytes read since, as a share of the L2, from which on what was read before begins to
            be evicted, and at which all of it is. About a half: what SMs on both sides of the L2 read is kept in both
            its halves.
        apart_evicted_at: the latter where programs run ahead.
        ahead_from: the pressure on the L2 from which on some SMs run ahead.
        ahead_slope: by how much of a tile's time, for each unit of pressure more.
        spread: how much faster or slower the other SMs are then, as a share of that, but no less than without, and
        jitter: how much, by standard deviation, the programs of one SM, as timelines show it.
        shared_by: consecutive programs from which on their common column panel holds them together: the L2 answers
            several SMs at once (of 64 × 128 tiles at 8192³ it reads 84 to 91 % of what they receive, else 92 to 96 %).
        apart_from: the pressure from which on they come apart all the same; below, reads are in between.
        slow_spread: how much faster or slower SMs are below `ahead_from`, for each unit of pressure. Waves dissolve
            slowly then, or not at all where early programs wait for DRAM, and
        slow_share: so far are reads on the way from lockstep to that, by logarithm.
        staggered_warps: warps per SM from which on its programs are evenly staggered if they multiply float32 or
            float8: so it was in 36 of 43 such launches, but with fewer warps in 3 of 15.
    """

    evicted_from: float = 0.2
    evicted_at: float = 0.64
    apart_evicted_at: float = 0.62
    ahead_from: float = 1.2
    ahead_slope: float = 0.28
    spread: float = 0.12
    jitter: float = 0.03
    shared_by: int = 24
    apart_from: float = 2.0
    slow_spread: float = 0.009
    slow_share: float = 0.1
    staggered_warps: int = 12


CONSTANTS = Constants()


def ahead(l2_pressure: float, constants: Constants = CONSTANTS) -> float:
    """By how much of a tile's time some SMs run ahead, where the L2 needs `l2_pressure` times as long as the next."""
    return float(np.clip(constants.ahead_slope * (l2_pressure - constants.ahead_from), 0, 0.9))
