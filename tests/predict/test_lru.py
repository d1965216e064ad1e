"""The cache model against a cache: every piece of every panel, step by step, the least recently used dropped first."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from visualize.predict.lru import Programs, fetched_bytes

PANELS = 4  # of each side
# Bytes between what is found and what is gone, less than any two distances differ by.
SHARP = 0.25
ENDLESS = (1e12, 2e12)


@dataclass
class Cache:
    """What is kept, the least recently used first."""

    capacity: float
    fetched: float = 0.0

    def __post_init__(self):
        self.kept = OrderedDict()

    def touch(self, item, size, is_read=True):
        if item not in self.kept:
            self.fetched += size * is_read
        self.kept[item] = size
        self.kept.move_to_end(item)
        while sum(self.kept.values()) > self.capacity:
            self.kept.popitem(last=False)


def read_at(programs, order, time):
    """The pieces that are read at a step, each once: programs of the same step share them."""
    running = np.flatnonzero((programs.start <= time) & (time < programs.start + programs.pieces))
    return sorted({(int(side[p]), int(time - programs.start[p])) for p in running for side in order})


def simulated(programs, order, capacity, backwards=False):
    """Bytes fetched by a cache; `backwards` turns the order in which the pieces of one step are read."""
    cache = Cache(capacity)
    for time in range(int(programs.start.max()) + programs.pieces + 1):
        for program in np.flatnonzero(programs.start + programs.pieces == time):
            cache.touch(("written", program), programs.written_bytes, is_read=False)
        pieces = read_at(programs, order, time)
        for panel, piece in reversed(pieces) if backwards else pieces:
            cache.touch((panel, piece), programs.panel_bytes[panel] / programs.pieces)
    return cache.fetched


def most_in_a_step(programs, order):
    """The most bytes that are read in one step."""
    ends = int(programs.start.max()) + programs.pieces
    several = (read_at(programs, order, time) for time in range(ends))
    return max(sum(programs.panel_bytes[panel] for panel, _ in pieces) for pieces in several) / programs.pieces


def modelled(programs, order, capacity):
    return fetched_bytes(programs, [order], [(capacity, capacity + SHARP)])[0, 0]


@st.composite
def cases(draw):
    """Programs in lock step (whole waves) or staggered, and an order."""
    count, pieces = draw(st.integers(1, 14)), draw(st.integers(1, 4))
    resident = draw(st.integers(1, 6))
    start = np.arange(count) // resident * pieces
    if draw(st.booleans()):
        start = np.sort(np.array(draw(st.lists(st.integers(0, 12), min_size=count, max_size=count))))
    sizes = draw(st.lists(st.integers(1, 9), min_size=2 * PANELS, max_size=2 * PANELS))
    programs = Programs(start, pieces, pieces * np.array(sizes, float), draw(st.integers(0, 5)))
    return programs, draw(orders(count))


@st.composite
def orders(draw, count):
    """The panel of A, and the one of B, of each program."""
    a, b = (np.array(draw(st.lists(st.integers(0, PANELS - 1), min_size=count, max_size=count))) for _ in "AB")
    return a, PANELS + b


@given(cases(), st.integers(0, 120), st.booleans())
def test_a_cache_fetches_what_the_model_says_give_or_take_a_steps_bytes_of_room(case, capacity, backwards):
    """Within a step, what comes first is open, and the model takes the middle of all orders.

    Between two uses of a piece a cache touches what is read in the steps between, and some of what is read in the two
    steps themselves; the model takes half of that. So the two differ by at most half of what two steps read.
    """
    programs, order = case
    room = most_in_a_step(programs, order)
    fetched = simulated(programs, order, capacity, backwards)
    assert modelled(programs, order, capacity + room) <= fetched + 1e-9
    assert fetched <= modelled(programs, order, capacity - room - SHARP) + 1e-9


def touched(programs, order, times):
    """Bytes of the distinct pieces that are read at some steps."""
    pieces = {piece for time in times for piece in read_at(programs, order, time)}
    return sum(programs.panel_bytes[panel] for panel, _ in pieces) / programs.pieces


def expected(programs, order, low, high):
    """What the model should say, use by use."""
    ends, fetched, last = programs.start + programs.pieces, 0.0, {}
    for now in range(int(ends.max())):
        for panel, piece in read_at(programs, order, now):
            before = last.get((panel, piece))
            last[panel, piece] = now
            share = 1.0
            if before is not None:
                between = [touched(programs, order, range(before + half, now + half)) for half in (0, 1)]
                written = np.count_nonzero((before < ends) & (ends <= now)) * programs.written_bytes
                share = np.clip((sum(between) / 2 + written - low) / (high - low), 0, 1) ** 4
            fetched += share * programs.panel_bytes[panel] / programs.pieces
    return fetched


@given(cases(), st.integers(0, 60), st.integers(1, 60))
def test_a_piece_is_gone_by_what_is_read_from_one_use_to_the_next_with_half_of_either_step(case, low, more):
    programs, order = case
    found = fetched_bytes(programs, [order], [(low, low + more)])[0, 0]
    assert found == pytest.approx(expected(programs, order, low, low + more))


@given(cases())
def test_without_room_every_use_is_fetched_once_a_step(case):
    programs, order = case
    used = {(int(start), int(panel)) for side in order for start, panel in zip(programs.start, side, strict=True)}
    assert modelled(programs, order, 0) == pytest.approx(sum(programs.panel_bytes[panel] for _, panel in used))


@given(cases())
def test_with_endless_room_each_panel_is_fetched_once(case):
    programs, order = case
    used = np.unique(np.concatenate(order))
    (fetched,) = fetched_bytes(programs, [order], [ENDLESS])[0]
    assert fetched == pytest.approx(programs.panel_bytes[used].sum())
    assert fetched == pytest.approx(simulated(programs, order, 1e12))


def test_programs_that_start_together_share_one_fetch():
    start, panels = np.zeros(5, int), np.array([8.0, 4.0, 4.0])
    order = np.zeros(5, int), np.array([1, 2, 1, 2, 1])
    assert modelled(Programs(start, 2, panels, 0), order, 0) == 16
    later = Programs(np.arange(5) * 2, 2, panels, 0)
    assert modelled(later, order, 0) == 5 * 8 + 5 * 4


def test_programs_half_a_panel_apart_find_the_half_that_is_still_kept():
    """Two programs read one panel of A, four pieces of 1, two steps apart; between, two pieces of each B come in."""
    programs = Programs(np.array([0, 2]), 4, np.array([4.0, 4.0, 4.0]), 0)
    order = np.array([0, 0]), np.array([1, 2])
    assert modelled(programs, order, 100) == 12
    assert modelled(programs, order, 3) == 16
    assert simulated(programs, order, 100) == 12
    assert simulated(programs, order, 3) == 16


def test_between_its_two_capacities_a_piece_is_gone_with_the_fourth_power_of_the_way():
    """A panel of 8 is read again after 8 and 2 others: with its own two panels, 20 are touched from piece to piece."""
    programs = Programs(np.array([0, 4, 8]), 4, np.array([8.0, 8.0, 2.0, 2.0]), 0)
    order = np.array([0, 1, 0]), np.array([2, 3, 2])
    limits = [(20, 30), (10, 30), (0, 40), (0, 20), (10, 20)]
    fetched = fetched_bytes(programs, [order], limits)[0]
    assert fetched.tolist() == [20, 20.625, 20.625, 30, 30]


@given(cases(), st.integers(0, 120), st.integers(1, 20))
def test_more_room_never_fetches_more(case, capacity, more):
    programs, order = case
    assert modelled(programs, order, capacity + more) <= modelled(programs, order, capacity)


@given(cases(), st.data(), st.integers(0, 60))
def test_several_orders_at_once_are_each_by_itself(case, data, capacity):
    programs, order = case
    several = [order, *(data.draw(orders(len(programs.start))) for _ in range(3))]
    limits = [(capacity, capacity + SHARP), (capacity / 2, capacity + 10), ENDLESS]
    together = fetched_bytes(programs, several, limits)
    assert together.shape == (4, 3)
    for one, found in zip(several, together, strict=True):
        assert found == pytest.approx(fetched_bytes(programs, [one], limits)[0])


def test_what_is_written_takes_room():
    """A panel of 2 and one of 3 are kept from wave to wave, up to what a program writes between."""
    panels, order = np.array([2.0, 3.0]), (np.zeros(3, int), np.ones(3, int))
    for written, fetched in ((0, 5), (2, 5), (3, 15)):
        programs = Programs(np.arange(3), 1, panels, written)
        assert modelled(programs, order, 7) == fetched
        assert simulated(programs, order, 7) == fetched
