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
from visualize.models.dispatch import by_pace, lockstep, staggered
from visualize.models.schedule import schedule

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
    assert by_pace(one, 0.0, 0.0)[0].tolist() == lockstep(one).tolist() == one.step.tolist()


@given(st.floats(0, 0.8), st.floats(0, 0.1), st.floats(0, 0.05), st.integers(1, 3), st.integers(8, 40))
def test_as_many_programs_run_at_a_time_as_fit(ahead, spread, jitter, programs_per_sm, sms):
    """More would have begun within the shortest time that one takes, or fewer within the longest."""
    one = planned(programs_per_sm, sms)
    begun, took = by_pace(one, ahead, spread, jitter)
    assert np.count_nonzero(begun == 0) == one.resident_programs
    assert by_pace(one, ahead, spread, jitter)[0].tolist() == begun.tolist(), "the same numbers each time"
    shortest = min(1 - ahead, 1 - spread) * (1 - 5 * jitter)
    longest = (1 + spread) * (1 + 5 * jitter)
    assert shortest <= took.min() <= took.max() <= longest
    for time in (0.5, 1.5, 2.5):
        if time < begun.max():
            assert np.count_nonzero((begun > time - shortest) & (begun <= time)) <= one.resident_programs
            assert np.count_nonzero((begun > time - longest) & (begun <= time)) >= one.resident_programs


def test_18_of_132_sms_run_ahead_as_was_seen():
    """In the time of ten programs they end 20 each, the others ten."""
    one = planned(side=16384, BLOCK_M=128, BLOCK_N=128)
    begun, took = by_pace(one, 0.5, 0.0)
    assert np.count_nonzero(begun < 10) == 18 * 20 + 114 * 10
    assert set(took.tolist()) == {0.5, 1.0}


@pytest.mark.parametrize("kernel", ["matmul.grouped", "matmul.persistent"])
@pytest.mark.parametrize("programs_per_sm", [1, 2])
def test_it_is_what_slots_that_take_the_next_program_do(kernel, programs_per_sm):
    one = planned(programs_per_sm, sms=22, kernel=kernel)
    ahead, spread = 0.3, 0.05
    begun, took = by_pace(one, ahead, spread)
    slot_pace = np.full(22, 1 - ahead)
    others = np.ones(22, bool)
    others[np.arange(22) * 18 % 132 < 18] = False
    slot_pace[others] = np.linspace(1 - spread, 1 + spread, others.sum())
    assert np.count_nonzero(~others) == 3
    assert begun == pytest.approx(played(one, slot_pace))
    assert set(took.tolist()) <= set(slot_pace.tolist())


def test_a_program_that_loops_begins_each_tile_as_it_ends_the_one_before():
    one = planned(kernel="matmul.persistent", side=4096)
    assert one.turns > 2
    begun, took = by_pace(one, 0.4, 0.02)
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
