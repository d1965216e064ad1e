"""A measured launch, program by program, compared with the ideal waves of `schedule`.

Omitted: launch overhead, and writes that are still in flight when a program ends. If a program loops over tiles, only
the program's start and end are known.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy import ndarray

from tilescope.results.counters import assign_slots
from visualize.predict.schedule import Schedule


@dataclass(frozen=True)
class Execution:
    """When and where each program ran.

    Attributes:
        sm: the SM of each program, by pid: (programs,).
        start_ns, end_ns: time since the first start: (programs,).
        sms: number of SMs of the GPU.
    """

    sm: ndarray
    start_ns: ndarray
    end_ns: ndarray
    sms: int

    @property
    def span_ns(self) -> int:
        """The time from the first start to the last end."""
        return int(self.end_ns.max() - self.start_ns.min())

    @property
    def median_ns(self) -> float:
        """The median duration of a program."""
        return float(np.median(self.end_ns - self.start_ns))

    @cached_property
    def slot(self) -> ndarray:
        """The slot of each program on its SM, as in `assign_slots`: (programs,)."""
        return np.array(
            assign_slots(*(values.tolist() for values in (self.sm, self.start_ns, self.end_ns)))
        )

    @cached_property
    def max_concurrency(self) -> ndarray:
        """The maximum number of programs that each SM ran concurrently: (SMs,)."""
        most = np.zeros(max(self.sms, int(self.sm.max()) + 1), dtype=np.int64)
        np.maximum.at(most, self.sm, self.slot + 1)
        return most

    @property
    def busy(self) -> float:
        """The fraction of the span, averaged over SMs, in which an SM ran at least one program, 0 to 1."""
        order = np.lexsort((self.start_ns, self.sm))
        # Laying the SMs' timelines end to end lets one pass measure the covered time of all SMs.
        begin, end = (
            times[order] + self.sm[order] * self.span_ns for times in (self.start_ns, self.end_ns)
        )
        reached = np.maximum.accumulate(end)
        covered = reached - np.maximum(begin, np.append(0, reached[:-1]))
        return float(np.maximum(covered, 0).sum()) / max(self.sms * self.span_ns, 1)

    def tail_idle(self, slots: int) -> float:
        """Return the idle share of program slots from the last start to the last end, 0 to 1.

        Args:
            slots: expected number of resident programs on all SMs. It is raised if an SM ran more than its share.
        """
        last = self.start_ns.max()
        slots = max(slots, self.sms * int(self.max_concurrency.max()))
        room = slots * int(self.end_ns.max() - last)
        taken = np.maximum(self.end_ns - last, 0).sum()
        return 1 - float(taken) / room if room else 0.0

    def start_spread_ns(self, wave: ndarray) -> ndarray:
        """Return the time from the first start to the last start of each ideal wave: (waves,).

        Args:
            wave: the wave of each program, ascending: (programs,).
        """
        first = np.flatnonzero(np.diff(wave, prepend=-1))
        return np.maximum.reduceat(self.start_ns, first) - np.minimum.reduceat(self.start_ns, first)

    def round_robin_share(self, schedule: Schedule) -> float:
        """Return the fraction of programs that ran on the SM that round-robin dispatch would choose, 0 to 1.

        A real GPU dispatches a program to the first SM with room.
        """
        return float(np.mean(self.sm == np.arange(schedule.programs) % schedule.sms))

    def tile_times(self, schedule: Schedule) -> tuple[ndarray, ndarray]:
        """Return the start and end of each tile, in ns, by the entries of the schedule's tiles.

        A program that computes several tiles is assumed to take equal time for each.
        """
        program = schedule.tiles.program
        tiles = np.bincount(program, minlength=schedule.programs)[program]
        start = self.start_ns[program]
        took = (self.end_ns - self.start_ns)[program]
        return start + took * schedule.turn // tiles, start + took * (schedule.turn + 1) // tiles


def ideal_clock(begin_ns: ndarray, step: ndarray, span_ns: int) -> ndarray:
    """Map ideal steps to real time: each step begins with the first tile that no earlier step has room for.

    Args:
        begin_ns: the real start of each tile.
        step: the ideal step of each tile, from 0 without gaps.
        span_ns: the end of the last step.

    Returns:
        The start of each step and the end of the last one, in ns: (steps + 1,).
    """
    firsts = np.cumsum(np.bincount(step))[:-1]
    return np.concatenate([[0], np.sort(begin_ns)[firsts], [span_ns]])
