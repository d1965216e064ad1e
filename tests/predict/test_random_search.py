"""What random search is expected to have found: held to all orders of a few times."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from visualize.predict.random_search import expected_best


@pytest.mark.parametrize("times", [[5.0], [2.0, 2.0], [3.0, 1.0, 2.0], [4.0, 1.0, 1.0, 9.0, 2.5]])
def test_the_expected_best_is_the_mean_over_all_orders(times):
    orders = np.array(list(itertools.permutations(times)))
    mean = np.minimum.accumulate(orders, axis=1).mean(axis=0)
    assert expected_best(np.array(times)) == pytest.approx(mean)


def test_it_falls_from_the_mean_to_the_fastest_and_is_finite_for_thousands():
    times = np.random.default_rng(0).lognormal(0, 1, 4096)
    found = expected_best(times)
    assert found[0] == pytest.approx(times.mean())
    assert found[-1] == pytest.approx(times.min())
    assert (np.diff(found) <= 1e-12).all()


def test_no_times_are_no_numbers():
    assert expected_best(np.empty(0)).size == 0
