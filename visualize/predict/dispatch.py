"""When each tile of a launch is begun, in units of a tile's time: in lockstep, staggered, or as each SM gets to it.

Timelines show that, where the L2 holds programs up, some SMs run ahead: 24 of 132 on most of the H200s and H100s that
were looked at, 12 or 18 on others. The number differs by device. And where an SM holds many warps that multiply float32
or float8, its programs end up staggered. `resident_programs` is assumed to be a multiple of `sms`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from visualize.predict.schedule import Schedule

# The SMs that run ahead: so many of so many. Of fewer than six SMs, the first one.
AHEAD_SMS, OF_SMS = 24, 132

# The standard deviation of starts that are spread evenly over a tile's time.
_EVEN = 12**-0.5

# The lag by age grows as exp(x), x from 0 for the oldest to this for the youngest, and is then scaled to mean 0 and
# standard deviation 1. Timelines show −1.1, −0.9, −0.7, −0.5, −0.2, 0.4, 0.8 and 2.0 for eight programs.
_AGE_EXPONENT = 2.2


@dataclass(frozen=True)
class Pace:
    """How SMs and their programs differ, as shares of a tile's time.

    Attributes:
        ahead: by how much those that run ahead are faster.
        spread: up to how much the other SMs are slower or faster than the average.
        by_age: standard deviation among programs of an SM that is due to when they started: the older is served first.
            The more evenly their starts are spread already, the less it is.
        jitter: standard deviation of what is left.
    """

    ahead: float = 0.0
    spread: float = 0.0
    by_age: float = 0.0
    jitter: float = 0.0


class Run(NamedTuple):
    """When each tile is begun, how long it takes, and the SM that computes it: (tiles,) each."""

    begun: np.ndarray
    took: np.ndarray
    sm: np.ndarray


def lockstep(schedule: Schedule) -> np.ndarray:
    """Wave by wave, or turn by turn of a loop over tiles: (tiles,)."""
    return schedule.step.astype(float)


def staggered(schedule: Schedule) -> np.ndarray:
    """As `lockstep`, with the starts of an SM's programs spread evenly over a tile's time: (tiles,)."""
    per_sm = schedule.resident_programs // schedule.sms
    return schedule.step + schedule.tiles.program % schedule.resident_programs // schedule.sms / per_sm


def by_pace(schedule: Schedule, pace: Pace) -> Run:
    """Each slot of an SM begins the next program as soon as its last one ends, and not all are equally fast.

    The same numbers are drawn each time.
    """
    random, per_sm = np.random.default_rng(0), schedule.resident_programs // schedule.sms
    is_ahead = np.arange(schedule.sms) * AHEAD_SMS % OF_SMS < AHEAD_SMS
    of_sm = np.full(schedule.sms, 1.0 - pace.ahead)
    of_sm[~is_ahead] = np.linspace(1 - pace.spread, 1 + pace.spread, np.count_nonzero(~is_ahead))
    # Starts are spread evenly after one tile at the earliest.
    age = min(pace.by_age, _EVEN) * _by_age(per_sm)[:, None]
    free = np.zeros((per_sm, schedule.sms))
    begun: list[np.ndarray] = []
    took: list[np.ndarray] = []
    # Rounds of all slots, until no slot that gets free later would begin one of these programs.
    while not _is_enough(begun, free, schedule.programs):
        together = max(0.0, 1 - float(np.sqrt((free - free.mean(0)).var())) / _EVEN)
        took.append(of_sm * (1 + random.normal(0, pace.jitter, free.shape) + together * age))
        begun.append(free)
        free = free + took[-1]
    # Programs go to slots in the order in which these get free.
    all_begun = np.concatenate(begun, axis=None)
    first = np.argsort(all_begun, kind="stable")[: schedule.programs]
    program = schedule.tiles.program
    start, each = all_begun[first][program], np.concatenate(took, axis=None)[first][program]
    return Run(start * schedule.turns + schedule.turn * each, each, (first % schedule.sms)[program])


def _by_age(per_sm: int) -> np.ndarray:
    """How much slower each of an SM's programs is, the oldest first, with a standard deviation of 1: (per_sm,)."""
    if per_sm == 1:
        return np.zeros(1)
    slower = np.exp(np.linspace(0, _AGE_EXPONENT, per_sm))
    return (slower - slower.mean()) / slower.std()


def _is_enough(begun: list[np.ndarray], free: np.ndarray, programs: int) -> bool:
    """Whether so many programs have been begun by the time that the first slot is free again."""
    if len(begun) * free.size < programs:
        return False
    return bool(sum(np.count_nonzero(one <= free.min()) for one in begun) >= programs)
