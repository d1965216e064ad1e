"""Scores: exact counts, misses, and the parts of a scoreboard."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from kernels import discover
from kernels.experiment import from_json
from visualize.predict.scores import DRAM, EXACT_COUNTS, Score, Scoreboard


def launch(gpu="H200", kernel="matmul.grouped", **config):
    return from_json({"kernel": kernel, "gpu": gpu, "config": config}, discover())


EQUAL = Score(launch(), "load", "sectors", 100, 100)
OFF = replace(EQUAL, operation="TMA load", counted=101)
READ = Score(launch(GROUP_SIZE=1), "DRAM read", DRAM, 110, 100)


def test_a_count_is_exact_or_a_miss_however_small_its_error():
    assert (EQUAL.is_exact, EQUAL.is_miss, OFF.is_exact, OFF.is_miss) == (True, False, False, True)
    assert OFF.error == pytest.approx(-1 / 101)


def test_a_prediction_of_dram_bytes_is_a_miss_beyond_a_fifth():
    assert not READ.is_exact
    misses = [replace(READ, predicted=predicted).is_miss for predicted in (79, 80, 110, 120, 121)]
    assert misses == [True, False, False, False, True]


def test_a_count_of_zero_is_predicted_only_by_zero():
    assert replace(EQUAL, predicted=0, counted=0).error == 0
    wrong = replace(EQUAL, counted=0)
    assert wrong.error == math.inf
    assert wrong.is_miss


def test_the_largest_error_comes_first_in_either_direction():
    much, little, far_below = (replace(EQUAL, predicted=number) for number in (150, 99, 20))
    assert Scoreboard((EQUAL, little, much, far_below)).misses == (far_below, much, little)


def test_group_sizes_of_one_launch_are_one_launch_of_dram_bytes_and_several_of_sectors():
    sizes = tuple(replace(READ, experiment=launch(GROUP_SIZE=size)) for size in (1, 2, 4))
    assert Scoreboard(sizes).launches == 1
    assert Scoreboard(tuple(replace(EQUAL, experiment=score.experiment) for score in sizes)).launches == 3


def test_a_part_is_of_its_count_gpu_and_kernel_alone():
    other = replace(EQUAL, experiment=launch("H100", "transpose.flat"), count="requests")
    loop = replace(EQUAL, operation="atomic", is_lower_bound=True)
    board = Scoreboard((EQUAL, other, READ), (loop,), (launch("H100"),))
    assert board.part() == board
    assert board.part(EXACT_COUNTS).scores == (EQUAL, other)
    assert board.part(gpu="H100") == Scoreboard((other,), (), (launch("H100"),))
    assert board.part(("sectors",), "H200", "matmul.grouped") == Scoreboard((EQUAL,), (loop,))
    assert board.part(kernel="transpose.flat").scores == (other,)
    assert board.gpus == ("H100", "H200")


def test_totals_count_exact_scores_and_take_the_median_error():
    board = Scoreboard((EQUAL, OFF, READ))
    assert (board.exact, board.median_error) == (1, pytest.approx(1 / 101))
