"""When each tile of a launch is begun, in units of a tile's time: in lockstep, staggered, or as each SM gets to it.

Timelines of an H200 show, and other GPUs are assumed to do the same: of programs that the L2 holds up, those on 18 of
its 132 SMs run ahead; and where an SM holds many warps that multiply float32 or float8, its programs end up staggered.
`resident_programs` is assumed to be a multiple of `sms`.
"""

from __future__ import annotations

import numpy as np

from visualize.models.schedule import Schedule

# The SMs that run ahead: so many of so many. Of fewer than eight SMs, the first one.
AHEAD_SMS, OF_SMS = 18, 132


def lockstep(schedule: Schedule) -> np.ndarray:
    """Wave by wave, or turn by turn of a loop over tiles: (tiles,)."""
    return schedule.step.astype(float)


def staggered(schedule: Schedule) -> np.ndarray:
    """As `lockstep`, with the starts of an SM's programs spread evenly over a tile's time: (tiles,)."""
    per_sm = schedule.resident_programs // schedule.sms
    return schedule.step + schedule.tiles.program % schedule.resident_programs // schedule.sms / per_sm


def by_pace(schedule: Schedule, ahead: float, spread: float, jitter: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Each SM begins the next program as soon as it has ended one, and not all are equally fast.

    Returns:
        When each tile is begun, and how long it takes: (tiles,) each.

    Args:
        ahead: by how much of a tile's time those that run ahead are faster.
        spread: up to how much the others are slower or faster than the average.
        jitter: standard deviation of the programs of one SM, as a share. The same numbers are drawn each time.
    """
    is_ahead = np.arange(schedule.sms) * AHEAD_SMS % OF_SMS < AHEAD_SMS
    pace = np.full(schedule.sms, 1 - ahead)
    pace[~is_ahead] = np.linspace(1 - spread, 1 + spread, np.count_nonzero(~is_ahead))
    pace = np.tile(pace, schedule.resident_programs // schedule.sms)
    # Enough programs for each slot, even if all were as slow as the slowest and this one the fastest.
    slowest = 1 + spread + 5 * jitter
    rounds = int(np.ceil(schedule.programs / schedule.resident_programs * slowest / pace.min())) + 1
    took = np.broadcast_to(pace, (rounds, len(pace)))
    if jitter:
        took = took * np.random.default_rng(0).normal(1, jitter, took.shape)
    free = np.cumsum(took, axis=0) - took
    # Programs go to slots in the order in which these get free.
    first = np.argsort(free, axis=None, kind="stable")[: schedule.programs]
    begun, each = free.reshape(-1)[first], took.reshape(-1)[first]
    program = schedule.tiles.program
    return begun[program] * schedule.turns + schedule.turn * each[program], each[program]
