"""Scores: exact counts, misses, and the parts of a scoreboard."""

import math
from dataclasses import replace

import pytest

from tilescope.declare.experiment import from_json
from visualize.views.library.scoreboard import DRAM, EXACT_COUNTS, Score, Scoreboard


def launch(gpu="H200", kernel="matmul.grouped", **config):
    return from_json({"kernel": kernel, "gpu": gpu, "config": config})


EQUAL = Score(launch(), "load", "sectors", 100, 100)
READ = Score(launch(GROUP_SIZE=1), "DRAM read", DRAM, 110, 100)


def test_exact_counts_must_be_equal_and_dram_bytes_within_a_fifth():
    pairs = ((100, 100), (100, 101), (0, 0), (100, 0))
    exact = [replace(EQUAL, predicted=predicted, counted=counted) for predicted, counted in pairs]
    assert [score.error for score in exact] == [0, pytest.approx(-1 / 101), 0, math.inf]
    assert [score.is_miss for score in exact] == [False, True, False, True]
    assert [replace(READ, predicted=n).is_miss for n in (79, 80, 120, 121)] == [
        True,
        False,
        False,
        True,
    ]


def test_the_largest_error_comes_first_in_either_direction():
    much, little, far_below = (replace(EQUAL, predicted=number) for number in (150, 99, 20))
    assert Scoreboard((EQUAL, little, much, far_below)).misses == (far_below, much, little)


def test_group_sizes_of_one_launch_are_one_launch_of_dram_bytes_and_several_of_sectors():
    sizes = tuple(replace(READ, experiment=launch(GROUP_SIZE=size)) for size in (1, 2, 4))
    assert Scoreboard(sizes).launches == 1
    assert (
        Scoreboard(tuple(replace(EQUAL, experiment=score.experiment) for score in sizes)).launches
        == 3
    )


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
    board = Scoreboard((EQUAL, replace(EQUAL, counted=101), READ))
    assert board.exact == 1
    assert board.median_error == pytest.approx(1 / 101)
