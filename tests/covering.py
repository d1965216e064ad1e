"""Pairwise testing: a few of all combinations, in which every pair of values still occurs.

Most defects need only one value, or two together, to appear. So the default test run covers pairs, and
`--all-combinations` covers every combination.
"""

import itertools

import numpy as np
import pytest


def covering(cases, cost=lambda case: 1.0, together=None):
    """Cases that hold every pair of values that any case holds, chosen greedily: the most new pairs per cost first.

    Args:
        cases: tuples of one length; each place is a factor.
        cost: of one case, above 0.
        together: the places whose values must meet; all of them by default. A place with itself asks for each value.
    """
    cases = list(cases)
    places = list(itertools.combinations_with_replacement(range(len(cases[0])), 2))
    numbers = {}
    pairs = np.array(
        [
            [numbers.setdefault((i, j, case[i], case[j]), len(numbers)) for i, j in places]
            for case in cases
        ]
    )
    wanted = [
        places.index(pair) for pair in together or itertools.combinations(range(len(cases[0])), 2)
    ]
    costs = np.array([cost(case) for case in cases])
    uses = np.zeros(len(numbers), dtype=int)
    chosen = set()
    while (new := (uses[pairs[:, wanted]] == 0).sum(axis=1)).any():
        # Of cases that are as good, the one whose values have met the least.
        gains = new / costs
        best = min(
            np.flatnonzero(gains == gains.max()).tolist(),
            key=lambda place: uses[pairs[place]].sum(),
        )
        chosen.add(best)
        uses[pairs[best]] += 1
    return [cases[place] for place in sorted(chosen)]


def pairs_of(cases, cost=lambda case: 1.0, together=None):
    """All cases as parameters, of which a run without `--all-combinations` takes those that hold every pair."""
    cases = list(cases)
    chosen = set(covering(cases, cost, together))
    return [
        pytest.param(*case, marks=[] if case in chosen else pytest.mark.all_combinations)
        for case in cases
    ]
