"""When programs run, and what an L2 keeps: each slot takes the next program, and first uses miss."""

import heapq
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilescope.timing.l2 import Uses, expected_timeline, missed_shares


@given(st.floats(0.1, 4), st.integers(1, 8), st.integers(1, 40))
def test_each_slot_takes_the_next_program_as_soon_as_it_is_free(pressure, per_sm, sms):
    find = partial(expected_timeline, np.arange(1024), 1024, sms, per_sm, pressure)
    start, duration, sm = find()
    assert find().start.tolist() == start.tolist(), "the same in every call"
    assert (duration > 0).all()
    assert (np.diff(start) >= 0).all(), "programs start in launch order"
    for number in range(sms):
        running = []
        for begin, end in sorted(
            zip(start[sm == number], (start + duration)[sm == number], strict=True)
        ):
            while running and running[0] <= begin + 1e-9:
                heapq.heappop(running)
            heapq.heappush(running, end)
            assert len(running) <= per_sm
    later = start[sms * per_sm :]
    assert later == pytest.approx(np.sort(start + duration)[: len(later)])


def test_an_endless_l2_fetches_each_block_once_and_none_at_almost_every_use():
    block = np.repeat(np.arange(8), 100)
    time = np.random.default_rng(0).random(800) * 50
    uses = Uses(block, time, np.zeros(800, int), np.full(800, 4096.0))
    endless, none = missed_shares(uses, 50.0, 0.0, [1e18, 1e-9])
    assert endless.sum() == 8
    assert [time[(block == number) & (endless > 0)].min() for number in range(8)] == [
        time[block == number].min() for number in range(8)
    ], "the first use misses"
    assert 0.9 < none.mean() < 1, "uses at one moment share a fetch"
