"""Times taken in turns: a difference is one only where it is more than the noise."""

import numpy as np
import pytest

from visualize.models.pairs import pair


def test_the_same_times_do_not_differ():
    found = pair([1.0, 1.1, 0.9], [1.0, 1.1, 0.9])
    assert found.ratio == 1
    assert not found.differs


def test_a_drifting_clock_hides_no_difference_between_times_taken_in_turns():
    """Both slow down by half in the course of the run; one takes 2 % longer in each turn."""
    clock = np.linspace(1, 1.5, 40)
    found = pair((1.02 * clock).tolist(), clock.tolist())
    assert found.differs
    assert found.ratio == pytest.approx(1.02)


def test_less_than_the_noise_is_no_difference():
    dice = np.random.default_rng(0)
    ours, theirs = dice.normal(1.001, 0.05, 20), dice.normal(1.0, 0.05, 20)
    assert not pair(ours.tolist(), theirs.tolist()).differs


def test_more_turns_make_less_noise():
    dice = np.random.default_rng(1)
    noises = [pair(dice.normal(1, 0.05, n).tolist(), dice.normal(1, 0.05, n).tolist()).noise for n in (10, 1000)]
    assert noises[1] < noises[0] / 3


@pytest.mark.parametrize("others", [[], [1.0, 2.0]])
def test_times_that_do_not_belong_together_are_refused(others):
    with pytest.raises(ValueError, match="can't be paired"):
        pair([1.0], others)
