"""A launch as it ran against plain counting, program by program."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels import discover
from kernels.gpus import GPUS
from kernels.measuring.measurements.timeline_measurement import TIMELINE
from kernels.results import records
from kernels.spec import Launch
from visualize.predict.execution import Course, ideal_clock, round_robin_share, spread_ns, tile_times
from visualize.predict.schedule import schedule

PROGRAMS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(0, 15)), min_size=1, max_size=40)


def course(programs, sms=4):
    """From (SM, start, length) of each program; the clock begins with the first."""
    sm, start, length = (np.array(column) for column in zip(*programs, strict=True))
    return Course(sm, start - start.min(), start - start.min() + length, sms)


def planned(kernel_id, problem, config):
    kernel = discover()[kernel_id]
    return schedule(kernel, Launch(kernel.family.problem(**problem), kernel.config(**config), GPUS["H200"]))


@given(PROGRAMS)
def test_no_two_programs_share_a_place_and_there_are_no_more_places_than_programs_at_once(programs):
    ran = course(programs)
    spans = list(zip(ran.sm, ran.slot, ran.start_ns, ran.end_ns, strict=True))
    for i, (sm, slot, start, end) in enumerate(spans):
        for other_sm, other_slot, other_start, other_end in spans[:i]:
            if (sm, slot) == (other_sm, other_slot):
                assert end <= other_start or other_end <= start
    for sm in range(4):
        mine = [(start, end) for at, _, start, end in spans if at == sm]
        others = [sum(start <= t < end for start, end in mine) for t, _ in mine]
        # One that ends as it starts takes a place, too, beside those that were running before.
        others += [1 + sum(start < t < end for start, end in mine) for t, ended in mine if t == ended]
        assert ran.at_once[sm] == max(others, default=0)


@given(PROGRAMS)
def test_a_sm_is_busy_at_every_tick_that_a_program_of_it_covers(programs):
    ran = course(programs)
    covered = {
        (sm, t)
        for sm, start, end in zip(ran.sm.tolist(), ran.start_ns.tolist(), ran.end_ns.tolist(), strict=True)
        for t in range(start, end)
    }
    assert ran.busy == pytest.approx(len(covered) / (4 * ran.span_ns) if ran.span_ns else 0)


@given(PROGRAMS)
def test_the_tail_counts_what_runs_after_the_last_start(programs):
    ran = course(programs)
    places = 4 * int(ran.at_once.max())
    ticks = range(int(ran.start_ns.max()), int(ran.end_ns.max()))
    taken = sum(int(((ran.start_ns <= t) & (t < ran.end_ns)).sum()) for t in ticks)
    assert ran.tail_idle(0) == pytest.approx(1 - taken / (places * len(ticks)) if ticks else 0)
    assert ran.tail_idle(2 * places) == pytest.approx(1 - taken / (2 * places * len(ticks)) if ticks else 0)


def test_the_starts_of_a_wave_are_spread_from_its_first_to_its_last():
    ran = course([(0, 0, 9), (1, 3, 9), (2, 1, 9), (0, 20, 9), (1, 12, 9)])
    assert spread_ns(ran, np.array([0, 0, 0, 1, 1])).tolist() == [3, 8]


def test_a_launch_that_is_dealt_out_as_the_ideal_machine_does_says_so():
    plan = planned("matmul.grouped", {"M": 2048, "N": 2048, "K": 64}, {})
    pids = np.arange(plan.programs)
    assert round_robin_share(Course(pids % 132, pids, pids + 1, 132), plan) == 1
    assert round_robin_share(Course((pids + (pids < 64)) % 132, pids, pids + 1, 132), plan) == 1 - 64 / plan.programs


def test_a_program_of_one_tile_computes_it_from_its_start_to_its_end():
    plan = planned("matmul.grouped", {"M": 1000, "N": 577, "K": 129}, {})
    start = np.arange(plan.programs) * 7
    begun, done = tile_times(Course(start % 132, start, start + 5, 132), plan)
    assert (begun.tolist(), done.tolist()) == (start.tolist(), (start + 5).tolist())


def test_the_tiles_of_a_loop_follow_one_another_from_its_start_to_its_end():
    plan = planned("matmul.persistent", {"M": 2048, "N": 4096, "K": 64}, {})
    start = np.arange(132) * 3
    end = start + 1000 + np.arange(132)
    begun, done = tile_times(Course(np.arange(132), start, end, 132), plan)
    for program in range(132):
        mine = plan.tiles.program == program
        assert begun[mine][0] == start[program]
        assert done[mine][-1] == end[program]
        assert np.array_equal(begun[mine][1:], done[mine][:-1])


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 5)), min_size=1, max_size=40))
def test_an_ideal_step_begins_with_the_first_tile_beyond_the_earlier_steps(tiles):
    begun, step = (np.array(column) for column in zip(*tiles, strict=True))
    step = np.unique(step, return_inverse=True)[1]
    begun -= begun.min()
    clock = ideal_clock(begun, step, 100)
    assert (clock[0], clock[-1]) == (0, 100)
    for t in range(100):
        now = int((clock[:-1] <= t).sum()) - 1
        started = int((begun <= t).sum())
        assert now == max(k for k in range(step.max() + 1) if (step < k).sum() < started)


@pytest.mark.parametrize(
    "experiment", records.experiments(TIMELINE.form, "H200"), ids=lambda e: f"{e.kernel}-{e.problem.M}"
)
def test_recorded_launches_hold_no_more_programs_than_the_span_has_room_for(experiment):
    ran = records.find(TIMELINE.form, experiment, "H200")
    told = Course(np.array(ran.sm), np.array(ran.start_ns), np.array(ran.end_ns), 132)
    assert told.span_ns == ran.span_ns
    assert 0 < told.busy <= 1
    assert 0 <= told.tail_idle(0) < 1
    assert (told.end_ns - told.start_ns).sum() <= told.at_once.sum() * told.span_ns
