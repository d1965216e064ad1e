"""What the model of DRAM traffic knows of GPUs: read from timelines of H200s, or fitted to counts of an H200.

The counts are the comparisons of GROUP_SIZE in `records/h200_reuse.jsonl`; timelines were taken as launches are
counted: one by one, on a GPU that is cool. Many constants near these do as well.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Constants:
    """What was fitted to counts, within what timelines show.

    Attributes:
        evicted_from, evicted_at: in lockstep, bytes read since, as a share of the L2, from which on what was read
            before begins to be evicted, and at which all of it is. About a half: what SMs on both sides of the L2 read
            is kept in both its halves.
        pressed_from: the pressure on the L2 from which on programs come apart, and each reads at its own pace.
        first_jitter, stretch: how unlike programs of an SM are when they start, and how quickly they come apart, for
            each unit of pressure more. Timelines show 0.055 and 0.5 of 64 × 64 tiles, at a pressure of 2.2.
        jitter: how unlike they are later. Timelines show 0.015 to 0.03.
        ahead_from, ahead_slope: the pressure from which on some SMs run ahead, and by how much of a tile's time for
            each unit more. Timelines show 0.04 to 0.13 at a pressure of 1.7, and 0.21 to 0.32 at 2.2.
        spread: how much faster or slower the other SMs are, for each unit of pressure.
        shared_by: consecutive programs from which on their common column panel holds them together: the L2 answers
            several SMs at once (of 64 × 128 tiles at 8192³ it reads 84 to 91 % of what they receive, else 92 to 96 %).
        apart_from: the pressure from which on they come apart all the same; below, reads are in between.
        slow_share: how far reads are, by logarithm, on the way from lockstep to each SM's own pace, where programs are
            not pressed. Waves dissolve slowly then, or not at all where early programs wait for DRAM.
        staggered_warps: warps per SM from which on its programs are evenly staggered if they multiply float32 or
            float8: so it was in 36 of 43 such launches, but with fewer warps in 3 of 15.
    """

    evicted_from: float = 0.2
    evicted_at: float = 0.64
    pressed_from: float = 1.2
    first_jitter: float = 0.016
    stretch: float = 1.0
    jitter: float = 0.018
    ahead_from: float = 1.32
    ahead_slope: float = 0.245
    spread: float = 0.003
    shared_by: int = 24
    apart_from: float = 1.9
    slow_share: float = 0.2
    staggered_warps: int = 12


CONSTANTS = Constants()


def ahead(l2_pressure: float, constants: Constants = CONSTANTS) -> float:
    """By how much of a tile's time some SMs run ahead, where the L2 needs `l2_pressure` times as long as the next."""
    return float(np.clip(constants.ahead_slope * (l2_pressure - constants.ahead_from), 0, 0.9))
