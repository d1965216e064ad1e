"""What programs of different paces find in an L2 of two halves: against one that is played through use by use."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

from kernels import discover
from kernels.gpus import GPUS
from kernels.spec import Launch
from visualize.predict import reuse_gaps
from visualize.predict.dispatch import Pace, Run, by_pace
from visualize.predict.reuse_gaps import fetched_bytes
from visualize.predict.schedule import schedule

GROUPED = discover()["matmul.grouped"]
ENDLESS, NONE = 1e18, 1e-9
PACE = Pace(0.3, 0.05, jitter=0.03)


def order_of(group_size, m=32, n=24, programs_per_sm=2):
    """The schedule of so many rows and columns of tiles, and the panels of each tile."""
    config = GROUPED.config(BLOCK_M=64, BLOCK_N=64, GROUP_SIZE=group_size)
    launch = Launch(GROUPED.family.problem(M=64 * m, N=64 * n, K=64), config, GPUS["H200"])
    planned = schedule(GROUPED, launch, programs_per_sm)
    rows, columns = planned.pieces
    return planned, (rows, m + columns)


def panels(m=32, n=24, written=0.0):
    return reuse_gaps.PanelBytes(np.full(m, 1.0), np.full(n, 2.0), written)


def played(known, run, order, capacity, pieces=24):
    """Bytes that are in neither half, each of which drops the least recently used first.

    A piece is kept beside its memory, half of all pieces on either side; and on the side of each SM that reads it.
    """
    sizes = np.concatenate([known.row_bytes, known.column_bytes]) / pieces
    time = run.begun[:, None] + (np.arange(pieces) + 0.5) / pieces * run.took[:, None]
    sides = reuse_gaps._side(run.sm)
    halves, fetched = (Half(capacity / 2), Half(capacity / 2)), 0.0
    for at in np.argsort(time, axis=None, kind="stable").tolist():
        tile, piece = divmod(at, pieces)
        for panel in (order[0][tile], order[1][tile]):
            own, home = sides[tile], (panel + piece) % 2
            if not halves[own].touch((panel, piece), sizes[panel]) and (
                own == home or not halves[home].touch((panel, piece), sizes[panel])
            ):
                fetched += sizes[panel]
    return fetched


class Half:
    def __init__(self, capacity):
        self.capacity, self.held, self.cache = capacity, 0.0, OrderedDict()

    def touch(self, what, size):
        """Whether it is there. It is, afterwards."""
        found = self.cache.pop(what, None) is not None
        self.held += 0.0 if found else size
        self.cache[what] = size
        while self.held > self.capacity:
            self.held -= self.cache.popitem(last=False)[1]
        return found


@pytest.mark.parametrize("ahead", [0.0, 0.3])
def test_it_is_near_a_cache_that_is_played_through(ahead, monkeypatch):
    """With sets so large that all evict at one size. On average a little below: in both halves a use counts as one."""
    monkeypatch.setattr(reuse_gaps, "_WAYS", 600)
    off = []
    for group_size in (1, 8, 48):
        planned, order = order_of(group_size, 48, 36, 4)
        known, run = panels(48, 36), by_pace(planned, Pace(ahead, 0.05, jitter=0.03))
        for capacity in (10, 24, 50, 80):
            found = fetched_bytes(known, [run], [order], [capacity])[0, 0, 0]
            off.append(np.log(found / played(known, run, order, capacity)))
    assert -0.13 < np.mean(off) < 0.05, off
    assert np.mean(np.abs(off)) < 0.15, off
    assert np.max(np.abs(off)) < 0.45, off


def test_what_one_side_alone_reads_takes_three_quarters_of_the_room_of_what_both_do():
    """Each panel of a row is read by a program on either side at the same time, or by two on the same."""
    known = reuse_gaps.PanelBytes(np.full(64, 1.0), np.full(64, 1.0), 0.0)
    both = np.arange(4096) // 2
    sm = np.argsort(reuse_gaps._side(np.arange(64)), kind="stable")
    begun, took = (both % 64) / 64 + both // 64, np.ones(4096)
    order = both % 64, 64 + both % 64
    same = Run(begun, took, sm[(both % 64 + np.arange(4096) % 2 * 0) % 64])
    shared = Run(begun, took, sm[np.where(np.arange(4096) % 2, 0, 63)])
    capacities = np.linspace(60, 400, 171)
    half_lost = []
    for run in (same, shared):
        fetched = fetched_bytes(known, [run], [order], list(capacities))[0, 0] - 128
        half_lost.append(np.interp(-0.5 * fetched[0], -fetched, capacities))
    assert half_lost[0] / half_lost[1] == pytest.approx(0.75, rel=0.05)


def test_sets_are_full_now_and_then_before_the_l2_is():
    """By Poisson's distribution: hardly ever at half of the L2, of each second set at the whole."""
    share = reuse_gaps._evicted(np.array([0.0, 0.5, 0.75, 1.0, 1.5, 100.0]))
    assert share[0] == 0
    assert share[1] < 0.01 < share[2] < 0.25
    assert share[3] == pytest.approx(0.5, abs=0.06)
    assert share[4] > 0.95
    assert share[5] == pytest.approx(1)


def test_all_is_fetched_once_where_nothing_is_evicted_and_no_more_than_is_asked_where_all_is():
    planned, order = order_of(4)
    once, every = fetched_bytes(panels(), [by_pace(planned, PACE)], [order], [ENDLESS, NONE])[0, 0]
    assert once == pytest.approx(32 + 2 * 24)
    assert every == pytest.approx(3 * 32 * 24, rel=0.05)
    assert every <= 3 * 32 * 24


def test_several_runs_and_orders_are_what_they_are_by_themselves():
    orders = [order_of(size)[1] for size in (1, 5, 32)]
    runs = [by_pace(order_of(1)[0], Pace(0.3, spread, jitter=0.03)) for spread in (0.02, 0.05)]
    capacities = [24, 60]
    together = fetched_bytes(panels(), runs, orders, capacities)
    for run, several in zip(runs, together, strict=True):
        for order, found in zip(orders, several, strict=True):
            assert found == pytest.approx(fetched_bytes(panels(), [run], [order], capacities)[0, 0], rel=0.02)


def test_of_many_panels_some_stand_for_all(monkeypatch):
    planned, order = order_of(8, 128, 96, 8)
    run, known, capacities = by_pace(planned, PACE), panels(128, 96), [50, 100]
    some = fetched_bytes(known, [run], [order], capacities)
    monkeypatch.setattr(reuse_gaps, "_MOST_USES", 1 << 20)
    assert some == pytest.approx(fetched_bytes(known, [run], [order], capacities), rel=0.1)


def test_what_is_written_takes_room():
    """In one and a half of the halves: a tile that is written takes as much as one and a half that one side reads."""
    planned, order = order_of(4)
    run = by_pace(planned, PACE)
    none, much = (fetched_bytes(panels(written=size), [run], [order], [60])[0, 0, 0] for size in (0.0, 1.0))
    assert much > 1.1 * none
