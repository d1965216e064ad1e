"""What the Schedule tab says of waves, turns and slices is what the models count."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernels import discover
from kernels.gpus import GPUS
from kernels.spec import Launch
from visualize.models.schedule import schedule
from visualize.models.steps import steps
from visualize.text.prose import html
from visualize.text.schedule_text import loads_claim, sharing, timing

SEVEN_SMS = replace(GPUS["H200"], sms=7, name="seven")


def said(kernel_id, sizes, per_sm=1, **config):
    kernel = discover()[kernel_id]
    launch = Launch(kernel.family.problem(**sizes), kernel.config(**config), SEVEN_SMS)
    order = schedule(kernel, launch, per_sm)
    return timing(order, steps(order, None), SEVEN_SMS, per_sm), sharing(order)


def test_a_last_wave_that_is_not_full_says_how_much_of_it_and_of_the_launch_is_idle():
    tiles = {"M": 4 * 64, "N": 4 * 64, "K": 64}
    text, _ = said("matmul.grid_2d", tiles, BLOCK_M=64, BLOCK_N=64)
    assert str(text) == (
        "16 programs run in 3 waves of 7 (7 SMs of seven, 1 program per SM). "
        "The last wave holds 2 programs: 71 % of it is idle, 24 % of the launch."
    )
    assert '<b>3 waves</b> of 7 (7 SMs of seven, 1 program per SM <span class="mark assumed"' in html([text])
    assert "<b>71 %</b> of it is idle" in html([text])


def test_a_launch_of_one_wave_is_no_more_idle_than_that_wave():
    text, _ = said("matmul.grid_2d", {"M": 64, "N": 3 * 64, "K": 64}, BLOCK_M=64, BLOCK_N=64)
    assert str(text).endswith("The last wave holds 3 programs: 57 % of it is idle.")


def test_a_full_wave_is_said_to_be_full():
    text, _ = said("matmul.grid_2d", {"M": 64, "N": 14 * 64, "K": 64}, per_sm=2, BLOCK_M=64, BLOCK_N=64)
    assert str(text) == "14 programs run in 1 wave of 14 (7 SMs of seven, 2 programs per SM). The last wave is full."


def test_programs_that_loop_take_turns():
    tiles = {"M": 4 * 128, "N": 4 * 128, "K": 128}
    text, _ = said("matmul.persistent", tiles, BLOCK_M=128, BLOCK_N=128)
    assert str(text) == (
        "7 programs on 7 SMs of seven (1 program per SM) loop over 16 tiles in 3 turns of at most 7. "
        "The last turn computes 2 tiles: 71 % of it is idle, 24 % of the launch."
    )


@pytest.mark.parametrize(("kernel_id", "is_shared"), [("matmul.split_k_atomic", True), ("matmul.grid_2d", False)])
def test_only_split_k_shares_a_tile(kernel_id, is_shared):
    _, text = said(kernel_id, {"M": 64, "N": 64, "K": 512})
    assert ("8 programs, one per slice of K" in str(text)) is is_shared


def test_what_is_loaded_is_compared_with_row_major_order():
    text = loads_claim(1200, "tiles", ("A", "B"), 54, 1090)
    expected = "The first 1,200 tiles load 54 blocks of A and B in this order, 1,090 in row-major order."
    assert str(text) == expected
