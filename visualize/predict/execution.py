"""A launch as it really ran, program by program, beside the ideal waves of `schedule`.

Left out: the launch itself, and writes that are on their way to memory when a program ends. Of a program that loops
over tiles only its own start and end are known.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from visualize.predict.schedule import Schedule


@dataclass(frozen=True)
class Course:
    """When and where each program ran.

    Attributes:
        sm: the SM of each program, by pid: (programs,).
        start_ns, end_ns: from the first start: (programs,).
        sms: SMs of the GPU.
    """

    sm: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    sms: int

    @property
    def span_ns(self) -> int:
        """From the first start to the last end."""
        return int(self.end_ns.max() - self.start_ns.min())

    @property
    def median_ns(self) -> float:
        """A program's median time."""
        return float(np.median(self.end_ns - self.start_ns))

    @cached_property
    def slot(self) -> np.ndarray:
        """The lowest place on its SM, from 0, that is free when each program starts: (programs,).

        A place is free again at the very tick at which its program ends, so that no SM has more places than programs
        at once.
        """
        slot = np.zeros(len(self.sm), dtype=np.int64)
        running: dict[int, list[tuple[int, int]]] = {}
        free: dict[int, list[int]] = {}
        columns = self.sm.tolist(), self.start_ns.tolist(), self.end_ns.tolist()
        for pid in np.lexsort((self.end_ns, self.start_ns)).tolist():
            sm, start, end = (column[pid] for column in columns)
            ends, places = running.setdefault(sm, []), free.setdefault(sm, [])
            while ends and ends[0][0] <= start:
                heapq.heappush(places, heapq.heappop(ends)[1])
            slot[pid] = heapq.heappop(places) if places else len(ends)
            heapq.heappush(ends, (end, int(slot[pid])))
        return slot

    @cached_property
    def at_once(self) -> np.ndarray:
        """Most programs that each SM ran at once: (SMs,)."""
        most = np.zeros(max(self.sms, int(self.sm.max()) + 1), dtype=np.int64)
        np.maximum.at(most, self.sm, self.slot + 1)
        return most

    @property
    def busy(self) -> float:
        """The share of all SMs' time over the span in which they ran a program or more, 0 to 1."""
        order = np.lexsort((self.start_ns, self.sm))
        # On a clock on which one SM follows the other, what is covered is counted in one go.
        begin, end = (times[order] + self.sm[order] * self.span_ns for times in (self.start_ns, self.end_ns))
        reached = np.maximum.accumulate(end)
        covered = reached - np.maximum(begin, np.append(0, reached[:-1]))
        return float(np.maximum(covered, 0).sum()) / max(self.sms * self.span_ns, 1)

    def tail_idle(self, places: int) -> float:
        """The share of places that stays empty from the last start to the last end, 0 to 1.

        Args:
            places: programs that all SMs are expected to hold at once; more, if an SM was seen to hold more.
        """
        last = self.start_ns.max()
        places = max(places, self.sms * int(self.at_once.max()))
        room = places * int(self.end_ns.max() - last)
        taken = np.maximum(self.end_ns - last, 0).sum()
        return 1 - float(taken) / room if room else 0.0


def spread_ns(course: Course, wave: np.ndarray) -> np.ndarray:
    """How far the starts of each ideal wave spread, first to last: (waves,).

    Args:
        wave: the wave of each program, ascending: (programs,).
    """
    first = np.flatnonzero(np.diff(wave, prepend=-1))
    return np.maximum.reduceat(course.start_ns, first) - np.minimum.reduceat(course.start_ns, first)


def round_robin_share(course: Course, schedule: Schedule) -> float:
    """The share of programs that ran on the SM that dealing them out one per SM, round after round, gives: 0 to 1."""
    return float(np.mean(course.sm == schedule.sm_of(np.arange(schedule.programs))))


def tile_times(course: Course, schedule: Schedule) -> tuple[np.ndarray, np.ndarray]:
    """When each tile is begun and done, in ns, by the entries of the schedule's tiles.

    Where a program computes several, its time is shared out evenly: an assumption.
    """
    program = schedule.tiles.program
    tiles = np.bincount(program, minlength=schedule.programs)[program]
    start, took = course.start_ns[program], (course.end_ns - course.start_ns)[program]
    return start + took * schedule.turn // tiles, start + took * (schedule.turn + 1) // tiles


def ideal_clock(begun_ns: np.ndarray, step: np.ndarray, span_ns: int) -> np.ndarray:
    """The ideal steps on the real clock: each begins with the first tile beyond those that the earlier ones hold.

    Args:
        begun_ns: when each tile really was begun.
        step: the ideal step of each tile, from 0, none left out.
        span_ns: when the last step ends.

    Returns:
        When each step begins, and when the last one ends, in ns: (steps + 1,).
    """
    firsts = np.cumsum(np.bincount(step))[:-1]
    return np.concatenate([[0], np.sort(begun_ns)[firsts], [span_ns]])
