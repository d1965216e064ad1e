"""Scores: what is exact, what is a miss, and what of a scoreboard is of one GPU, kernel and count."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from kernels import discover
from kernels.experiment import from_json
from visualize.predict.scores import DRAM, EXACT_COUNTS, Score, Scoreboard


def launch(gpu="H200", kernel="matmul.grouped", **config):
    return from_json({"kernel": kernel, "gpu": gpu, "config": config}, discover())


ONE = Score(launch(), "load", "sectors", 100, 100)
OFF = replace(ONE, operation="TMA load", counted=101)
READ = Score(launch(GROUP_SIZE=1), "DRAM read", DRAM, 110, 100)


def test_a_count_is_exact_or_a_miss_whatever_little_it_is_off():
    assert ONE.is_exact
    assert not ONE.is_miss
    assert OFF.is_miss
    assert OFF.error == pytest.approx(-1 / 101)


def test_a_prediction_of_dram_bytes_is_a_miss_beyond_a_fifth():
    assert not READ.is_exact
    assert not READ.is_miss
    assert not replace(READ, predicted=120).is_miss
    assert replace(READ, predicted=121).is_miss
    assert replace(READ, predicted=79).is_miss


def test_where_nothing_was_counted_only_nothing_is_right():
    assert replace(ONE, predicted=0, counted=0).error == 0
    wrong = replace(ONE, counted=0)
    assert wrong.error == math.inf
    assert wrong.is_miss


def test_the_furthest_off_comes_first_in_either_direction():
    much, little, far_below = (replace(ONE, predicted=number) for number in (150, 99, 20))
    assert Scoreboard((ONE, little, much, far_below)).misses == (far_below, much, little)


def test_orders_of_one_launch_are_one_launch_but_counted_launches_that_differ_in_group_size_are_two():
    orders = tuple(replace(READ, experiment=launch(GROUP_SIZE=size)) for size in (1, 2, 4))
    assert Scoreboard(orders).launches == 1
    assert Scoreboard(tuple(replace(ONE, experiment=one.experiment) for one in orders)).launches == 3


def test_a_part_is_of_its_count_gpu_and_kernel_alone():
    other = replace(ONE, experiment=launch("H100", "transpose.flat"), count="requests")
    loop = replace(ONE, operation="atomic", is_lower_bound=True)
    board = Scoreboard((ONE, other, READ), (loop,), (launch("H100"),))
    assert board.part() == board
    assert board.part(EXACT_COUNTS).scores == (ONE, other)
    assert board.part(gpu="H100") == Scoreboard((other,), (), (launch("H100"),))
    assert board.part(("sectors",), "H200", "matmul.grouped") == Scoreboard((ONE,), (loop,))
    assert board.part(kernel="transpose.flat").scores == (other,)
    assert board.gpus == ("H100", "H200")


def test_totals_say_how_many_agree_and_how_far_off_they_are():
    board = Scoreboard((ONE, OFF, READ))
    assert board.exact == 1
    assert board.median_error == pytest.approx(1 / 101)
    assert board.within_allowed == pytest.approx(2 / 3)
