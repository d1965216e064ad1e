"""A launch as it ran, against plain counting, program by program."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tilescope.declare.discovery import discover
from tilescope.declare.gpus import GPUS
from tilescope.declare.spec import Launch
from tilescope.measure.timeline import TIMELINE
from tilescope.results import records
from visualize.predict.execution import Execution, ideal_clock
from visualize.predict.schedule import schedule

PROGRAMS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(0, 15)), min_size=1, max_size=40
)


def execution(programs, sms=4):
    """From (SM, start, duration) of each program; the clock begins with the first."""
    sm, start, duration = (np.array(column) for column in zip(*programs, strict=True))
    return Execution(sm, start - start.min(), start - start.min() + duration, sms)


def planned(kernel_id, **problem):
    kernel = discover()[kernel_id]
    return schedule(kernel, Launch(kernel.family.problem(**problem), kernel.config(), GPUS["H200"]))


@given(PROGRAMS)
@example([(0, 0, 5), (0, 5, 5)])
def test_no_two_programs_share_a_slot_and_slots_are_as_many_as_concurrent_programs(programs):
    ran = execution(programs)
    spans = list(zip(ran.sm, ran.slot, ran.start_ns, ran.end_ns, strict=True))
    for i, (sm, slot, start, end) in enumerate(spans):
        for other_sm, other_slot, other_start, other_end in spans[:i]:
            assert (sm, slot) != (other_sm, other_slot) or end <= other_start or other_end <= start
    for sm in range(4):
        mine = [(start, end) for at, _, start, end in spans if at == sm]
        concurrent = [sum(start <= t < end for start, end in mine) for t, _ in mine]
        # A program that ends as it starts also takes a slot, next to those that were already running.
        concurrent += [
            1 + sum(start < t < end for start, end in mine) for t, ended in mine if t == ended
        ]
        assert ran.max_concurrency[sm] == max(concurrent, default=0)


@given(PROGRAMS)
def test_an_sm_is_busy_at_every_tick_that_one_of_its_programs_covers(programs):
    ran = execution(programs)
    spans = zip(ran.sm.tolist(), ran.start_ns.tolist(), ran.end_ns.tolist(), strict=True)
    covered = {(sm, t) for sm, start, end in spans for t in range(start, end)}
    assert ran.busy == pytest.approx(len(covered) / (4 * ran.span_ns) if ran.span_ns else 0)
    halves = np.arange(len(programs)) * 2 // len(programs)
    spreads = [np.ptp(ran.start_ns[halves == half]) for half in np.unique(halves)]
    assert ran.start_spread_ns(halves).tolist() == spreads


@given(PROGRAMS)
def test_the_tail_counts_what_runs_after_the_last_start(programs):
    ran = execution(programs)
    slots = 4 * int(ran.max_concurrency.max())
    ticks = range(int(ran.start_ns.max()), int(ran.end_ns.max()))
    taken = sum(int(((ran.start_ns <= t) & (t < ran.end_ns)).sum()) for t in ticks)
    for expected, total in ((0, slots), (2 * slots, 2 * slots)):
        assert ran.tail_idle(expected) == pytest.approx(
            1 - taken / (total * len(ticks)) if ticks else 0
        )


def test_the_round_robin_share_is_one_for_the_ideal_dispatch_and_drops_with_each_program_elsewhere():
    plan = planned("matmul.grouped", M=2048, N=2048, K=64)
    pids = np.arange(plan.programs)
    for moved in (0, 64):
        ran = Execution((pids + (pids < moved)) % 132, pids, pids + 1, 132)
        assert ran.round_robin_share(plan) == 1 - moved / plan.programs


@pytest.mark.parametrize("kernel_id", ["matmul.grouped", "matmul.persistent"])
def test_the_tiles_of_a_program_follow_one_another_from_its_start_to_its_end(kernel_id):
    plan = planned(kernel_id, M=2048, N=4096, K=64)
    pids = np.arange(plan.programs)
    start = pids * 3
    end = pids * 4 + 1000
    begin, done = Execution(pids % 132, start, end, 132).tile_times(plan)
    for pid in pids:
        mine = plan.tiles.program == pid
        assert begin[mine][0] == start[pid]
        assert done[mine][-1] == end[pid]
        assert np.array_equal(begin[mine][1:], done[mine][:-1])
        assert np.ptp(done[mine] - begin[mine]) <= 1


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 5)), min_size=1, max_size=40))
def test_an_ideal_step_begins_with_the_first_tile_beyond_the_earlier_steps(tiles):
    begin, step = (np.array(column) for column in zip(*tiles, strict=True))
    step = np.unique(step, return_inverse=True)[1]
    begin -= begin.min()
    clock = ideal_clock(begin, step, 100)
    assert clock[0] == 0
    assert clock[-1] == 100
    for t in range(100):
        now = int((clock[:-1] <= t).sum()) - 1
        started = int((begin <= t).sum())
        assert now == max(k for k in range(step.max() + 1) if (step < k).sum() < started)


@pytest.mark.parametrize(
    "experiment",
    records.experiments(TIMELINE.form, "H200"),
    ids=lambda e: f"{e.kernel}-{e.problem.M}",
)
def test_recorded_launches_hold_no_more_programs_than_the_span_has_room_for(experiment):
    recorded = records.find(TIMELINE.form, experiment, "H200")
    ran = Execution(
        np.array(recorded.sm), np.array(recorded.start_ns), np.array(recorded.end_ns), 132
    )
    assert ran.span_ns == recorded.span_ns
    assert 0 < ran.busy <= 1
    assert 0 <= ran.tail_idle(0) < 1
    assert (ran.end_ns - ran.start_ns).sum() <= ran.max_concurrency.sum() * ran.span_ns
