"""When tiles are begun: against machines of few SMs, played through program by program."""

from __future__ import annotations

import heapq
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels import discover
from kernels.gpus import GPUS
from kernels.spec import Launch
from visualize.predict.dispatch import Pace, by_pace, lockstep, staggered
from visualize.predict.schedule import schedule

H200 = GPUS["H200"]
KERNELS = discover()


def planned(programs_per_sm=1, sms=132, kernel="matmul.grouped", side=2048, **config):
    kernel = KERNELS[kernel]
    launch = Launch(kernel.family.problem(M=side, N=side, K=64), kernel.config(**config), replace(H200, sms=sms))
    return schedule(kernel, launch, programs_per_sm)


def played(planned, pace):
    """When each tile is begun if each slot takes the next program as soon as it is free."""
    slots = [(0.0, slot) for slot in range(planned.resident_programs)]
    begun = np.empty(len(planned.tiles.program))
    for program in range(planned.programs):
        now, slot = heapq.heappop(slots)
        own = np.flatnonzero(planned.tiles.program == program)
        begun[own] = now + planned.turn[own] * pace[slot % planned.sms]
        heapq.heappush(slots, (now + len(own) * pace[slot % planned.sms], slot))
    return begun


@pytest.mark.parametrize("programs_per_sm", [1, 2, 3])
def test_without_differences_of_pace_waves_stay_whole(programs_per_sm):
    one = planned(programs_per_sm, sms=20)
    assert by_pace(one, Pace()).begun.tolist() == lockstep(one).tolist() == one.step.tolist()


@given(
    st.floats(0, 0.8), st.floats(0, 0.1), st.floats(0, 0.05), st.floats(0, 0.1), st.integers(1, 3), st.integers(8, 40)
)
def test_as_many_programs_run_at_a_time_as_fit(ahead, spread, jitter, by_age, programs_per_sm, sms):
    """More would have begun within the shortest time that one takes, or fewer within the longest."""
    one, pace = planned(programs_per_sm, sms), Pace(ahead, spread, by_age, jitter)
    begun, took, _ = by_pace(one, pace)
    assert np.count_nonzero(begun == 0) == one.resident_programs
    assert by_pace(one, pace).begun.tolist() == begun.tolist(), "the same numbers each time"
    if not by_age:
        assert min(1 - ahead, 1 - spread) * (1 - 5 * jitter) <= took.min()
        assert took.max() <= (1 + spread) * (1 + 5 * jitter)
    for time in (0.5, 1.5, 2.5):
        if time < begun.max():
            assert np.count_nonzero((begun > time - took.min()) & (begun <= time)) <= one.resident_programs
            assert np.count_nonzero((begun > time - took.max()) & (begun <= time)) >= one.resident_programs


def test_24_of_132_sms_run_ahead_as_was_seen():
    """In the time of ten programs they end 20 each, the others ten."""
    one = planned(side=16384, BLOCK_M=128, BLOCK_N=128)
    begun, took, sm = by_pace(one, Pace(ahead=0.5))
    assert np.count_nonzero(begun < 10) == 24 * 20 + 108 * 10
    assert set(took.tolist()) == {0.5, 1.0}
    assert len(set(sm[took == 0.5].tolist())) == 24
    assert not set(sm[took == 0.5].tolist()) & set(sm[took == 1.0].tolist())


def test_programs_of_a_sm_come_apart_by_age_until_their_starts_are_even():
    """The first tile takes an older program less time; with each tile that is less, until starts are even."""
    one = planned(8, sms=20, side=16384, BLOCK_M=64, BLOCK_N=64)
    begun, took, sm = by_pace(one, Pace(by_age=0.05))
    of_first = took[:160].reshape(8, 20)
    assert (of_first == of_first[:, :1]).all(), "on each SM the same"
    assert (np.diff(of_first[:, 0]) > 0).all()
    assert (of_first[:, 0].mean(), of_first[:, 0].std()) == pytest.approx((1, 0.05))
    assert np.diff(of_first[:, 0])[-1] > 4 * np.diff(of_first[:, 0])[0], "the youngest is the slowest by far"
    # Of each SM the first 24 times eight programs.
    rounds = np.stack([np.sort(begun[sm == which])[: 24 * 8].reshape(24, 8) for which in range(20)])
    deviations = rounds.std(axis=-1).mean(axis=0)
    assert deviations[0] == 0
    assert deviations[1:3] == pytest.approx([0.05, 0.05 + 0.05 * (1 - 0.05 * 12**0.5)], rel=1e-6)
    assert 0.9 * 12**-0.5 < deviations[-1] < 1.05 * 12**-0.5


def test_however_unlike_programs_are_none_ends_before_it_begins():
    one = planned(16, sms=20, side=4096, BLOCK_M=64, BLOCK_N=64, num_warps=1)
    assert by_pace(one, Pace(by_age=1.0)).took.min() > 0.5
    assert by_pace(one, Pace(by_age=1.0)).begun.tolist() == by_pace(one, Pace(by_age=12**-0.5)).begun.tolist()


def test_a_program_alone_on_its_sm_is_neither_older_nor_younger():
    assert by_pace(planned(1, sms=20), Pace(by_age=0.1)).took.tolist() == [1.0] * len(planned(1, sms=20).tiles.program)


@pytest.mark.parametrize("kernel", ["matmul.grouped", "matmul.persistent"])
@pytest.mark.parametrize("programs_per_sm", [1, 2])
def test_it_is_what_slots_that_take_the_next_program_do(kernel, programs_per_sm):
    one = planned(programs_per_sm, sms=22, kernel=kernel)
    ahead, spread = 0.3, 0.05
    begun, took, sm = by_pace(one, Pace(ahead, spread))
    slot_pace = np.full(22, 1 - ahead)
    others = np.ones(22, bool)
    others[np.arange(22) * 24 % 132 < 24] = False
    slot_pace[others] = np.linspace(1 - spread, 1 + spread, others.sum())
    assert np.count_nonzero(~others) == 4
    assert begun == pytest.approx(played(one, slot_pace))
    assert took.tolist() == slot_pace[sm].tolist()


def test_a_program_that_loops_begins_each_tile_as_it_ends_the_one_before():
    one = planned(kernel="matmul.persistent", side=4096)
    assert one.turns > 2
    begun, took, _ = by_pace(one, Pace(0.4, 0.02))
    assert begun[one.turn == 0].tolist() == [0] * one.programs
    first = begun[one.turn == 1]
    again = begun[one.turn == 2]
    assert first == pytest.approx(took[one.turn == 0][one.tiles.program[one.turn == 1]])
    assert again == pytest.approx(2 * first[one.tiles.program[one.turn == 2]])
    assert len(np.unique(first.round(6))) > 100


def test_programs_of_a_sm_are_evenly_staggered():
    one = planned(4, sms=10)
    assert set((staggered(one) % 1).tolist()) == {0.0, 0.25, 0.5, 0.75}
    assert staggered(one)[:40].tolist() == np.repeat([0.0, 0.25, 0.5, 0.75], 10).tolist()
    assert staggered(planned(1)).tolist() == lockstep(planned(1)).tolist()
