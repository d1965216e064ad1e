"""Times taken in turns: the ratio of two calls, its interval, and a difference only where it is more than noise."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.pairs import FEWEST, pair

SEEDS = range(300)


def drawn(dice, count, ratio, noise):
    """Times of two calls of which the first takes `ratio` times as long, each with its own noise."""
    return ratio * dice.lognormal(0, noise, count), dice.lognormal(0, noise, count)


def test_less_than_the_noise_is_no_difference_and_the_inverse_ratio_is_the_inverse():
    dice = np.random.default_rng(0)
    assert not pair(dice.normal(1.001, 0.05, 20).tolist(), dice.normal(1.0, 0.05, 20).tolist()).differs
    ours, theirs = drawn(np.random.default_rng(2), 41, 0.9, 0.01)
    there, back = pair(ours, theirs), pair(theirs, ours)
    assert back.ratio == pytest.approx(1 / there.ratio)
    assert back.low == pytest.approx(1 / there.high, rel=1e-3)


@pytest.mark.parametrize("count", [20, 61, 200])
def test_the_interval_holds_the_true_ratio_in_95_of_100_runs(count):
    held = 0
    for seed in SEEDS:
        found = pair(*drawn(np.random.default_rng(seed), count, 0.98, 0.02))
        held += found.low <= 0.98 <= found.high
    assert 0.92 <= held / len(SEEDS) <= 0.99


@pytest.mark.parametrize("ratio", [0.98, 1.02])
def test_a_drift_that_hits_both_calls_cancels(ratio):
    """The clock falls by a third in the course of the run, and one run in ten is disturbed as a whole."""
    dice = np.random.default_rng(0)
    drift = np.linspace(1, 1.5, 60) * np.where(dice.random(60) < 0.1, 2.0, 1.0)
    ours, theirs = drawn(dice, 60, ratio, 0.002)
    with_drift, without = pair(ours * drift, theirs * drift), pair(ours, theirs)
    assert with_drift.ratio == pytest.approx(without.ratio, rel=1e-12)
    assert (with_drift.low, with_drift.high) == pytest.approx((without.low, without.high))
    assert with_drift.differs
    assert with_drift.noise < 0.002


def test_one_slow_launch_in_ten_moves_nothing():
    dice = np.random.default_rng(1)
    ours, theirs = drawn(dice, 200, 1.0, 0.005)
    disturbed = np.where(dice.random(200) < 0.1, 3 * ours, ours)
    assert pair(disturbed, theirs).ratio == pytest.approx(1.0, abs=0.003)


def test_times_that_all_are_a_tick_apart_are_known_to_half_a_tick():
    """6 µs in ticks of 32 ns: the median can be off by half a tick, and a bootstrap would not show it."""
    tick = 32e-6
    ours, theirs = np.full(100, 187 * tick), np.full(100, 188 * tick)
    ours[:10] += tick
    found = pair(ours, theirs)
    assert found.resolution == pytest.approx((1 / 187 + 1 / 188) / 2, rel=1e-3)
    assert found.low == pytest.approx(186 / 188, rel=2e-4)
    assert found.high == pytest.approx(1, rel=2e-4)


def test_too_few_pairs_give_all_that_there_is_between_the_least_and_the_greatest():
    found = pair([1.0, 1.2, 1.1], [1.0, 1.0, 1.0])
    assert (found.low, found.ratio, found.high) == (1.0, 1.1, 1.2)
    assert FEWEST == 6, "2 · (1/2)^6 is below 5 %, 2 · (1/2)^5 is not"


@pytest.mark.parametrize("others", [[], [1.0, 2.0]])
def test_times_that_do_not_belong_together_are_refused(others):
    with pytest.raises(ValueError, match="can't be paired"):
        pair([1.0], others)
