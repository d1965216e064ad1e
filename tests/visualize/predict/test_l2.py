"""When programs run, and what an L2 of two halves keeps: against program-by-program and access-by-access replays."""

import heapq
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.experiments import fill_sms
from tilescope.declare.discovery import discover
from tilescope.declare.gpus import GPUS
from tilescope.declare.spec import Launch
from visualize.predict.l2 import (
    CONSTANTS,
    Constants,
    ahead,
    evicted_share,
    expected_timeline,
    fetched_bytes,
)
from visualize.predict.schedule import Panels, schedule

H200 = GPUS["H200"]
KERNELS = discover()
PRESSURE = 2.1


def plan(per_sm=1, sms=132, kernel="matmul.grouped", m=2048, n=2048, **config):
    kernel = KERNELS[kernel]
    launch = Launch(
        kernel.family.problem(M=m, N=n, K=64), kernel.config(**config), replace(H200, sms=sms)
    )
    return fill_sms(schedule(kernel, launch), per_sm)


@pytest.mark.parametrize("per_sm", [1, 2, 3])
@pytest.mark.parametrize("kernel", ["matmul.grouped", "matmul.persistent"])
def test_without_a_known_pressure_and_in_loops_programs_stay_in_lockstep(kernel, per_sm):
    planned = plan(per_sm, sms=20, kernel=kernel)
    for pressure in (0.0, PRESSURE) if planned.turns > 1 else (0.0,):
        timeline = expected_timeline(planned, pressure)
        assert timeline.start.tolist() == planned.step.tolist()
        assert set(timeline.duration.tolist()) == {1.0}


@given(st.floats(0.1, 4), st.integers(1, 8), st.integers(1, 40))
def test_each_slot_takes_the_next_program_as_soon_as_it_is_free(pressure, per_sm, sms):
    planned = plan(per_sm, sms)
    start, duration, sm = expected_timeline(planned, pressure)
    assert expected_timeline(planned, pressure).start.tolist() == start.tolist(), (
        "the same in every call"
    )
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
    later = start[planned.resident_programs :]
    assert later == pytest.approx(np.sort(start + duration)[: len(later)])


def test_24_of_132_sms_run_ahead_where_programs_request_more_than_the_l2_delivers():
    lead = ahead(PRESSURE)
    assert ahead(0.0) == 0
    assert ahead(1.1) == 0
    assert ahead(100.0) == CONSTANTS.max_ahead
    assert 0.1 < lead < CONSTANTS.max_ahead
    planned = plan(m=16384, n=16384, BLOCK_M=128, BLOCK_N=128)
    _, duration, sm = expected_timeline(planned, PRESSURE, constants=Constants(jitter=0.0))
    assert set(duration.round(9).tolist()) == {round(1 - lead, 9), 1.0}
    assert len(set(sm[duration < 1 - lead / 2].tolist())) == 24


def test_programs_of_an_sm_drift_apart_and_the_more_of_them_the_faster():
    def spread(per_sm, waves, **more):
        planned = plan(per_sm, sms=20, m=8192, n=8192, BLOCK_M=64, BLOCK_N=64)
        start = expected_timeline(planned, 1.0, constants=Constants(jitter=0.0), **more).start
        return np.ptp(start[waves * 20 * per_sm : (waves + 1) * 20 * per_sm])

    assert spread(8, 0) == 0
    assert 0 < spread(8, 1) < spread(8, 2) <= spread(8, 40) < 1
    assert spread(1, 40) == 0
    assert spread(2, 2) < spread(4, 2) < spread(8, 2)
    assert spread(4, 1, is_staggered=True) == pytest.approx(spread(4, 40, is_staggered=True))


def order_of(group_size, m=48, n=36, per_sm=4):
    """A schedule of m × n tiles, and the panels of each tile."""
    planned = plan(per_sm, m=64 * m, n=64 * n, BLOCK_M=64, BLOCK_N=64, GROUP_SIZE=group_size)
    return planned, planned.pieces


def panels(m=48, n=36):
    return Panels(np.full(m, 1), np.full(n, 2))


def test_an_endless_l2_fetches_each_panel_once_and_none_fetches_what_is_requested():
    planned, order = order_of(4)
    timeline = expected_timeline(planned, PRESSURE)
    once, every = fetched_bytes(panels(), 0.0, timeline, [order], [1e18, 1e-9])[0]
    assert once == pytest.approx(48 + 2 * 36)
    assert 15 * once < every <= 3 * 48 * 36, (
        "programs that run at the same time still share a fetch"
    )


def test_some_sets_are_full_before_the_l2_is():
    share = evicted_share(np.array([0.0, 0.5, 0.75, 1.0, 1.5, 100.0]), 24)
    assert share[0] == 0
    assert share[1] < 0.01 < share[2] < 0.25
    assert share[3] == pytest.approx(0.5, abs=0.06)
    assert share[4] > 0.95
    assert share[5] == pytest.approx(1)
