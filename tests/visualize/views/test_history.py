"""Changes in the times of past runs: steps are found in place, and noise is not reported."""

import numpy as np
import pytest

from visualize.views.tune.history import MIN_CHANGE, MIN_RUNS, find_changes

SEEDS = range(200)


def changes(medians, spread=0.004):
    """Changes of runs whose 20th and 80th percentile are that share from the median."""
    median_ms = np.asarray(medians, dtype=float)
    return find_changes(np.stack([median_ms, median_ms * (1 - spread), median_ms * (1 + spread)]))


def noisy(seed, *parts, scatter=0.005):
    """Runs in parts (count, time) that scatter as much as a GPU's runs."""
    dice = np.random.default_rng(seed)
    return np.concatenate(
        [level * (1 + scatter * dice.standard_normal(count)) for count, level in parts]
    )


def places(medians, **more):
    return [change.place for change in changes(medians, **more)]


def test_a_step_is_one_change_with_its_ratio_and_the_runs_on_each_side():
    steady = [1.00, 1.01, 1.00, 0.99]
    slow = [1.08, 1.09, 1.07, 1.08]
    (change,) = changes(steady + slow)
    assert change.place == 4
    assert change.before == 4
    assert change.after == 4
    assert change.ratio == pytest.approx(1.08)
    assert 1 < change.low < change.ratio < change.high
    (faster,) = changes(slow + steady)
    assert faster.low < faster.ratio < faster.high < 1


@pytest.mark.parametrize(("scatter", "share"), [(0.005, 0.97), (0.01, 0.9)])
@pytest.mark.parametrize("count", [MIN_RUNS, 5, 20])
def test_a_step_of_eight_percent_is_found_in_place(count, scatter, share):
    found = [places(noisy(seed, (count, 1.0), (count, 1.08), scatter=scatter)) for seed in SEEDS]
    assert sum(row == [count] for row in found) >= share * len(SEEDS)


@pytest.mark.parametrize("scatter", [0.003, 0.01])
@pytest.mark.parametrize("count", [2 * MIN_RUNS, 12, 60])
def test_noise_is_no_change(count, scatter):
    assert sum(
        bool(places(noisy(seed, (count, 1.0), scatter=scatter))) for seed in SEEDS
    ) < 0.01 * len(SEEDS)


def test_a_step_is_no_change_within_the_runs_own_intervals_their_scatter_or_the_least_change():
    steps = noisy(0, (8, 1.0), (8, 1.06), scatter=0.001)
    assert places(steps) == [8]
    assert places(steps, spread=0.05) == []
    assert places(noisy(3, (8, 1.0), (8, 1.05), scatter=0.03)) == []
    assert places([1.0] * 9 + [1.0 + MIN_CHANGE / 2] * 9, spread=0.0) == []
    assert places([1.0] * 9 + [1.0 + MIN_CHANGE * 1.1] * 9, spread=0.0) == [9]


@pytest.mark.parametrize("place", range(20))
def test_an_outlier_is_no_change_and_moves_none(place):
    """Except right before a change, where the outlier may belong to it."""
    for parts, expected in ([((20, 1.0),), []], [((10, 1.0), (10, 1.06)), [10]]):
        medians = noisy(7, *parts)
        medians[place] *= 1.5
        assert places(medians) == expected or (expected and place in (8, 9))


def test_several_changes_are_all_found_and_the_runs_between_them_counted():
    found = changes(noisy(5, (10, 1.0), (10, 1.10), (10, 1.0)))
    assert [(c.place, c.before, c.after, c.ratio > 1) for c in found] == [
        (10, 10, 10, True),
        (20, 10, 10, False),
    ]


def test_equal_times_and_few_runs_have_no_change():
    assert changes([1.0] * 60) == ()
    assert not any(changes(np.linspace(1.0, 3.0, count)) for count in range(2 * MIN_RUNS))


def test_one_step_is_found_among_five_hundred_runs():
    assert places(noisy(4, (250, 1.0), (250, 1.1))) == [250]
