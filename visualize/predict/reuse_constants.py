"""What the model of DRAM traffic knows of GPUs: from timelines of H200s and an H100, or fitted to those or to counts.

The pace comes from timelines of 1,800 launches of float16 products, taken one by one on a GPU that is cool, as launches
are counted. What each fetches is what the model of the L2 makes of its timeline (`benchmarks/timelines.py`). Many
constants near these do as well.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Constants:
    """Lockstep's were fitted to counts, the others read from timelines or fitted to what they fetch.

    Attributes:
        evicted_from, evicted_at: in lockstep, bytes read since, as a share of the L2, from which on what was read
            before begins to be evicted, and at which all of it is. About a half: what SMs on both sides of the L2 read
            is kept in both its halves.
        slow_rate: what SMs that do not run ahead receive from the L2, as a share of the GPU's rate.
        asked_gbps, received_gbps: what SMs that run ahead receive, by what programs would ask for if the L2 did not
            hold them up: both per SM. Beyond the last point: linear, with the last slope.
        most_ahead: by how much of a tile's time they run ahead at most, as if four SMs had what elsewhere six share.
        spread: up to how much the other SMs are faster or slower, evenly distributed, by the pressure on the L2.
        by_age, age_power, age_until: how unlike programs of an SM become with each tile, by their number to this
            power; less, the more some SMs run ahead, and not at all where they are ahead by so much.
        strided: how much of that is left where rows of A or B are a multiple of `stride_bytes` apart.
        jitter: how unlike programs are otherwise, for each unit of pressure.
        wait_bytes: how far misses hold programs together. Bytes of a row of A stand for a tile's time. Where a tile
            finds nothing in the L2 and its rows are this long, programs come half as far apart.
        calm_until: the pressure below which misses hold all programs together, also those that share no panel.
        shared_by: consecutive programs, on average, from which on a common column panel holds them together.
        apart_from: the pressure from which on it does not. Below a pressure of 1 they stay in lockstep.
        staggered_warps: warps per SM from which on its programs are evenly staggered if they multiply float32 or
            float8: so it was in 36 of 43 such launches, but with fewer warps in 3 of 15.
    """

    evicted_from: float = 0.2
    evicted_at: float = 0.64
    slow_rate: float = 0.92
    asked_gbps: tuple[float, ...] = (0.0, 64.0, 85.0, 129.0, 171.0)
    received_gbps: tuple[float, ...] = (0.0, 62.0, 70.5, 79.0, 95.0)
    most_ahead: float = 1 / 3
    spread: tuple[tuple[float, float], ...] = ((0.0, 0.0), (0.9, 0.007), (1.15, 0.015), (1.75, 0.026), (2.3, 0.02))
    by_age: float = 0.0018
    age_power: float = 2.5
    age_until: float = 0.43
    strided: float = 0.65
    stride_bytes: int = 8192
    jitter: float = 0.0075
    wait_bytes: float = 48_000.0
    calm_until: float = 1.3
    shared_by: int = 12
    apart_from: float = 2.0
    staggered_warps: int = 12


CONSTANTS = Constants()
