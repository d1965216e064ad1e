"""What the first programs of a launch load in its own order and in row-major order, and why that differs or not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from visualize.predict.schedule import Schedule, loads_at
from visualize.predict.steps import Steps

# Tiles up to which the blocks of all waves are added up: more would hold up a slider.
_MOST_ADDED_UP = 1 << 15


@dataclass(frozen=True)
class FirstLoads:
    """Distinct blocks of panels that the first programs (or tiles) load.

    Attributes:
        first: how many programs, or tiles of a loop.
        tiles: how many there are.
        ours, reference: blocks in this order, and in row-major order.
        regions: rows and columns of tiles that these need, in either order.
        is_same_order: the two orders are one.
        waves: distinct blocks of each wave, added up: in either order; None where a step is no wave, or tiles are many.
    """

    first: int
    tiles: int
    ours: int
    reference: int
    regions: tuple[tuple[int, int], tuple[int, int]]
    is_same_order: bool
    waves: tuple[int, int] | None

    @property
    def is_all(self) -> bool:
        return self.first == self.tiles


def first_programs(schedule: Schedule, ours: Steps, first: int) -> int:
    """How many programs (or tiles of a loop) are compared.

    Args:
        first: as many as that, or as there are; 0 for those that run at once.
    """
    at_once = schedule.resident_programs if schedule.turns == 1 else schedule.programs
    return min(first or at_once, len(ours.timed.place))


def first_loads(ours: Steps, reference: Steps, first: int) -> FirstLoads | None:
    """Compare; None where each input is read once."""
    orders, n = (ours.timed, reference.timed), np.array([first])
    mine, others = (loads_at(order, n) for order in orders)
    if mine is None or others is None:
        return None
    near, far = (_region(order, first) for order in orders)
    waves = None
    if not ours.is_single and len(orders[0].place) <= _MOST_ADDED_UP:
        waves = int(ours.blocks.sum()), int(reference.blocks.sum())
    is_same = np.array_equal(orders[0].place, orders[1].place)
    return FirstLoads(first, len(orders[0].place), int(mine[0]), int(others[0]), (near, far), is_same, waves)


def _region(order: Schedule, first: int) -> tuple[int, int]:
    """Distinct rows and columns of tiles among the first."""
    return len(np.unique(order.tiles.pid_m[:first])), len(np.unique(order.tiles.pid_n[:first]))
