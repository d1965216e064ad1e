"""The few cases that stand for all combinations: every pair is among them, and the cheap ones are taken."""

from __future__ import annotations

import itertools

from tests.covering import covering, pairs_of

CASES = list(itertools.product("abcde", range(4), ("x", "y", "z"), (True, False)))


def pairs(cases):
    places = list(itertools.combinations(range(len(cases[0])), 2))
    return {(i, j, case[i], case[j]) for case in cases for i, j in places}


def test_every_pair_of_values_is_covered_by_a_fraction_of_all_cases():
    chosen = covering(CASES)
    assert pairs(chosen) == pairs(CASES)
    assert set(chosen) <= set(CASES)
    assert 5 * 4 <= len(chosen) <= 30 < len(CASES) == 120


def test_pairs_that_no_case_holds_are_not_asked_for():
    legal = [case for case in CASES if not (case[0] == "a" and case[1] > 1)]
    assert pairs(covering(legal)) == pairs(legal)


def test_of_cases_that_cover_as_much_the_cheapest_are_taken():
    chosen = covering(CASES, cost=lambda case: 100.0 if case[2] == "z" else 1.0)
    assert pairs(chosen) == pairs(CASES)
    assert sum(case[2] == "z" for case in chosen) == 5, "as few as let z meet the five letters"


def test_only_the_places_that_are_named_must_meet_and_values_take_turns():
    chosen = covering(CASES, together=((0, 0), (1, 2)))
    assert {case[0] for case in chosen} == set("abcde")
    assert {case[1:3] for case in chosen} == set(itertools.product(range(4), "xyz"))
    assert len(chosen) == 12
    assert {case[3] for case in chosen} == {True, False}


def test_the_same_cases_are_taken_every_time():
    assert covering(CASES) == covering(list(CASES))


def test_parameters_are_all_cases_of_which_the_others_are_marked():
    parameters = pairs_of(CASES)
    assert [tuple(one.values) for one in parameters] == CASES
    assert [tuple(one.values) for one in parameters if not one.marks] == covering(CASES)
    assert {mark.name for one in parameters for mark in one.marks} == {"all_combinations"}
