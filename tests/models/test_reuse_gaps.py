"""What programs of different paces find in a cache: against one that is played through use by use."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

from kernels import discover
from kernels.gpus import GPUS
from kernels.spec import Launch
from visualize.models import reuse_gaps
from visualize.models.dispatch import by_pace
from visualize.models.reuse_gaps import fetched_bytes
from visualize.models.schedule import schedule

GROUPED = discover()["matmul.grouped"]
ENDLESS, NONE = (1e18, 2e18), (1e-9, 2e-9)
SHARP = 1.001


def order_of(group_size, m=32, n=24, programs_per_sm=2):
    """The schedule of so many rows and columns of tiles, and the panels of each tile."""
    config = GROUPED.config(BLOCK_M=64, BLOCK_N=64, GROUP_SIZE=group_size)
    launch = Launch(GROUPED.family.problem(M=64 * m, N=64 * n, K=64), config, GPUS["H200"])
    planned = schedule(GROUPED, launch, programs_per_sm)
    rows, columns = planned.pieces
    return planned, (rows, m + columns)


def panels(m=32, n=24, written=0.0):
    return reuse_gaps.PanelBytes(np.full(m, 1.0), np.full(n, 2.0), written)


def played(known, run, order, kept, pieces=24):
    """Bytes that are not found in a cache of `kept` bytes that drops the least recently used first."""
    begun, took = run
    sizes = np.concatenate([known.row_bytes, known.column_bytes]) / pieces
    time = begun[:, None] + (np.arange(pieces) + 0.5) / pieces * took[:, None]
    cache, held, fetched = OrderedDict(), 0.0, 0.0
    for at in np.argsort(time, axis=None, kind="stable").tolist():
        tile, piece = divmod(at, pieces)
        for panel in (order[0][tile], order[1][tile]):
            size = sizes[panel]
            if cache.pop((panel, piece), None) is None:
                fetched += size
                held += size
            cache[panel, piece] = size
            while held > kept:
                held -= cache.popitem(last=False)[1]
    return fetched


@pytest.mark.parametrize("ahead", [0.0, 0.3])
def test_it_is_near_a_cache_that_is_played_through(ahead):
    """Further off only where what is reused just fits: this cache evicts all at one size."""
    off = []
    for group_size in (1, 3, 8, 48):
        planned, order = order_of(group_size, 48, 36, 4)
        known, run = panels(48, 36), by_pace(planned, ahead, 0.05, 0.03)
        for kept in (5, 12, 25, 40):
            found = fetched_bytes(known, [run], [order], [(kept, SHARP * kept)])[0, 0, 0]
            off.append(abs(np.log(found / played(known, run, order, kept))))
    assert np.mean(off) < 0.12, off
    assert max(off) < 0.45, off


def test_all_is_fetched_once_where_nothing_is_evicted_and_no_more_than_is_asked_where_all_is():
    planned, order = order_of(4)
    once, every = fetched_bytes(panels(), [by_pace(planned, 0.3, 0.05, 0.03)], [order], [ENDLESS, NONE])[0, 0]
    assert once == pytest.approx(32 + 2 * 24)
    assert every == pytest.approx(3 * 32 * 24, rel=0.05)
    assert every <= 3 * 32 * 24


def test_several_runs_and_orders_are_what_they_are_by_themselves():
    orders = [order_of(size)[1] for size in (1, 5, 32)]
    runs = [by_pace(order_of(1)[0], 0.3, spread, 0.03) for spread in (0.02, 0.05)]
    capacities = [(3, 12), (9, 30)]
    together = fetched_bytes(panels(), runs, orders, capacities)
    for run, several in zip(runs, together, strict=True):
        for order, found in zip(orders, several, strict=True):
            assert found == pytest.approx(fetched_bytes(panels(), [run], [order], capacities)[0, 0], rel=0.02)


def test_of_many_panels_some_stand_for_all(monkeypatch):
    planned, order = order_of(8, 128, 96, 8)
    run, known, capacities = by_pace(planned, 0.3, 0.05, 0.03), panels(128, 96), [(10, 30), (30, 60)]
    some = fetched_bytes(known, [run], [order], capacities)
    monkeypatch.setattr(reuse_gaps, "_MOST_USES", 1 << 20)
    assert some == pytest.approx(fetched_bytes(known, [run], [order], capacities), rel=0.1)


def test_what_is_written_takes_room():
    planned, order = order_of(4)
    run = by_pace(planned, 0.3, 0.05, 0.03)
    none, much = (fetched_bytes(panels(written=size), [run], [order], [(10, 30)])[0, 0, 0] for size in (0.0, 1.0))
    assert much > 1.1 * none
