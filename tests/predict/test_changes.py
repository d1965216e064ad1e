"""When a launch became slower: steps are found where they are, and noise is left alone."""

from __future__ import annotations

import numpy as np
import pytest

from visualize.predict.changes import FEWEST, LEAST, Times, changes, suspicion

SEEDS = range(200)


def times(medians, spread=0.004):
    """Times whose 20th and 80th percentile are that share from the median."""
    median_ms = np.asarray(medians, dtype=float)
    return Times(median_ms, median_ms * (1 - spread), median_ms * (1 + spread))


def noisy(seed, *parts, scatter=0.005):
    """Runs in parts: (how many, their time), with as much scatter from run to run as a GPU has."""
    dice = np.random.default_rng(seed)
    return np.concatenate([level * (1 + scatter * dice.standard_normal(count)) for count, level in parts])


def places(medians, **more):
    return [one.place for one in changes(times(medians, **more))]


def test_a_step_is_one_change_with_its_ratio_and_the_runs_on_each_side():
    (change,) = changes(times([1.00, 1.01, 1.00, 0.99, 1.08, 1.09, 1.07, 1.08]))
    assert (change.place, change.before, change.after) == (4, 4, 4)
    assert change.ratio == pytest.approx(1.08)
    assert change.is_slower
    assert 1 < change.low < change.ratio < change.high
    faster = changes(times([1.08, 1.09, 1.07, 1.08, 1.00, 1.01, 1.00, 0.99]))[0]
    assert not faster.is_slower
    assert faster.low < faster.ratio < faster.high < 1


@pytest.mark.parametrize(("scatter", "share"), [(0.005, 0.97), (0.01, 0.9)])
@pytest.mark.parametrize("count", [FEWEST, 5, 20])
def test_a_step_of_eight_percent_is_found_where_it_is(count, scatter, share):
    found = [places(noisy(seed, (count, 1.0), (count, 1.08), scatter=scatter)) for seed in SEEDS]
    assert sum(one == [count] for one in found) >= share * len(SEEDS)


@pytest.mark.parametrize("scatter", [0.0, 0.003, 0.01])
@pytest.mark.parametrize("count", [2 * FEWEST, 12, 60])
def test_noise_is_no_change(count, scatter):
    found = [places(noisy(seed, (count, 1.0), scatter=scatter)) for seed in SEEDS]
    assert sum(bool(one) for one in found) < 0.01 * len(SEEDS)


def test_a_step_within_the_runs_own_intervals_is_no_change():
    steps = noisy(0, (8, 1.0), (8, 1.06), scatter=0.001)
    assert places(steps) == [8]
    assert places(steps, spread=0.05) == []


def test_a_step_within_what_runs_differ_by_is_no_change():
    assert places(noisy(3, (8, 1.0), (8, 1.05), scatter=0.03)) == []


def test_a_step_below_the_least_is_no_change():
    assert places([1.0] * 9 + [1.0 + LEAST / 2] * 9, spread=0.0) == []
    assert places([1.0] * 9 + [1.0 + LEAST * 1.1] * 9, spread=0.0) == [9]


def test_one_slow_run_is_no_change_wherever_it_is():
    for place in range(12):
        medians = noisy(1, (12, 1.0))
        medians[place] *= 1.3
        assert places(medians) == []


@pytest.mark.parametrize("place", [place for place in range(20) if place not in (8, 9)])
def test_a_run_that_stands_out_moves_no_step(place):
    """But for those right before it, which may belong to it."""
    medians = noisy(7, (10, 1.0), (10, 1.06))
    medians[place] *= 1.5
    assert places(medians) == [10]


def test_several_changes_are_all_found_and_the_runs_between_them_counted():
    found = changes(times(noisy(5, (10, 1.0), (10, 1.10), (10, 1.0))))
    assert [(one.place, one.before, one.after) for one in found] == [(10, 10, 10), (20, 10, 10)]
    assert [one.is_slower for one in found] == [True, False]


@pytest.mark.parametrize("count", range(2 * FEWEST))
def test_few_runs_have_no_change(count):
    assert changes(times(np.linspace(1.0, 3.0, count))) == ()


def test_the_last_runs_are_suspected_until_enough_confirm_them():
    steady = [1.0, 1.001, 0.999, 1.001, 1.0]
    for more in range(1, FEWEST):
        row = times(steady + [1.08] * more)
        assert changes(row) == ()
        found = suspicion(row, changes(row))
        assert (found.place, found.after) == (5, more)
        assert found.ratio == pytest.approx(1.08)
    row = times(steady + [1.08] * FEWEST)
    assert len(changes(row)) == 1
    assert suspicion(row, changes(row)) is None
    assert suspicion(times(steady), ()) is None
    assert suspicion(times(steady[:2]), ()) is None


def test_what_is_suspected_is_beside_the_runs_since_the_last_change():
    row = times([*noisy(2, (8, 1.0), (8, 1.2)).tolist(), 1.3])
    assert [one.place for one in changes(row)] == [8]
    assert suspicion(row, changes(row)).place == 16
    back = times([*noisy(2, (8, 1.0), (8, 1.2)).tolist(), 1.0])
    assert suspicion(back, changes(back)).ratio == pytest.approx(1 / 1.2, rel=0.02)


def test_five_hundred_runs_take_a_moment():
    assert places(noisy(4, (250, 1.0), (250, 1.1))) == [250]
