"""When each tile of a launch is begun, in units of the time that a tile takes: together, apart, or as SMs get to it.

What was seen in timelines of an H200, and is taken for other GPUs as well: of programs that the L2 holds up, those on
18 of its 132 SMs run ahead; and where a SM holds many warps that multiply float32 or float8, its programs end up evenly
apart. `resident_programs` is taken to be a multiple of `sms`.
"""

from __future__ import annotations

import numpy as np

from visualize.models.schedule import Schedule

# The SMs that run ahead: so many of so many. Of fewer than eight SMs, the first one.
AHEAD_SMS, OF_SMS = 18, 132


def together(planned: Schedule) -> np.ndarray:
    """Wave by wave, or turn by turn of a loop over tiles: (tiles,)."""
    return planned.step.astype(float)


def apart(planned: Schedule) -> np.ndarray:
    """As `together`, with the programs of a SM evenly apart: (tiles,)."""
    per_sm = planned.resident_programs // planned.sms
    return planned.step + planned.tiles.program % planned.resident_programs // planned.sms / per_sm


def by_pace(planned: Schedule, ahead: float, spread: float, jitter: float = 0.0) -> np.ndarray:
    """Each SM begins the next program as soon as it has ended one, and not all are equally fast: (tiles,).

    Args:
        ahead: by how much of a tile's time those that run ahead are faster.
        spread: up to how much the others are slower or faster than the average.
        jitter: standard deviation of the programs of one SM, as a share. The same numbers are drawn each time.
    """
    is_ahead = np.arange(planned.sms) * AHEAD_SMS % OF_SMS < AHEAD_SMS
    pace = np.full(planned.sms, 1 - ahead)
    pace[~is_ahead] = np.linspace(1 - spread, 1 + spread, np.count_nonzero(~is_ahead))
    pace = np.tile(pace, planned.resident_programs // planned.sms)
    # Enough programs for each slot, even if all were as slow as the slowest and this one the fastest.
    slowest = 1 + spread + 5 * jitter
    rounds = int(np.ceil(planned.programs / planned.resident_programs * slowest / pace.min())) + 1
    took = np.broadcast_to(pace, (rounds, len(pace)))
    if jitter:
        took = took * np.random.default_rng(0).normal(1, jitter, took.shape)
    free = np.cumsum(took, axis=0) - took
    # Programs go to slots in the order in which these get free.
    first = np.argsort(free, axis=None, kind="stable")[: planned.programs]
    begun, each = free.reshape(-1)[first], took.reshape(-1)[first]
    program = planned.tiles.program
    return begun[program] * planned.turns + planned.turn * each[program]
