"""When programs run, and what an L2 of two halves keeps: against program-by-program and access-by-access replays."""

import heapq
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilescope.timing.l2 import (
    CONSTANTS,
    Uses,
    ahead,
    evicted_share,
    expected_timeline,
    missed_shares,
)

PRESSURE = 2.1
WITHOUT_JITTER = replace(CONSTANTS, jitter=0.0)


def timeline(programs, sms, resident, pressure, **more):
    return expected_timeline(np.arange(programs), programs, sms, resident, pressure, **more)


@pytest.mark.parametrize("resident", [1, 2, 3])
def test_without_a_known_pressure_or_in_a_single_wave_programs_stay_in_lockstep(resident):
    for programs, pressure in ((1024, 0.0), (20 * resident, PRESSURE)):
        found = timeline(programs, 20, resident, pressure)
        assert found.start.tolist() == (np.arange(programs) // (20 * resident)).tolist()
        assert set(found.duration.tolist()) == {1.0}


@given(st.floats(0.1, 4), st.integers(1, 8), st.integers(1, 40))
def test_each_slot_takes_the_next_program_as_soon_as_it_is_free(pressure, per_sm, sms):
    find = partial(timeline, 1024, sms, per_sm, pressure)
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


def test_24_of_132_sms_run_ahead_where_programs_request_more_than_the_l2_delivers():
    lead = ahead(PRESSURE)
    assert ahead(0.0) == 0
    assert ahead(1.1) == 0
    assert ahead(100.0) == CONSTANTS.max_ahead
    assert 0.1 < lead < CONSTANTS.max_ahead
    _, duration, sm = timeline(128 * 128, 132, 1, PRESSURE, constants=WITHOUT_JITTER)
    assert set(duration.round(9).tolist()) == {round(1 - lead, 9), 1.0}
    assert len(set(sm[duration < 1 - lead / 2].tolist())) == 24


def test_programs_of_an_sm_drift_apart_and_the_more_of_them_the_faster():
    def spread(per_sm, waves, **more):
        start = timeline(128 * 128, 20, per_sm, 1.0, constants=WITHOUT_JITTER, **more).start
        return np.ptp(start[waves * 20 * per_sm : (waves + 1) * 20 * per_sm])

    assert spread(8, 0) == 0
    assert 0 < spread(8, 1) < spread(8, 2) <= spread(8, 40) < 1
    assert spread(1, 40) == 0
    assert spread(2, 2) < spread(4, 2) < spread(8, 2)
    assert spread(4, 1, is_staggered=True) == pytest.approx(spread(4, 40, is_staggered=True))


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


def test_some_sets_are_full_before_the_l2_is():
    share = evicted_share(np.array([0.0, 0.5, 0.75, 1.0, 1.5, 100.0]), 24)
    assert share[0] == 0
    assert share[1] < 0.01 < share[2] < 0.25
    assert share[3] == pytest.approx(0.5, abs=0.06)
    assert share[4] > 0.95
    assert share[5] == pytest.approx(1)
