"""What the Schedule tab says of waves, turns and slices is what the models count."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from kernels import discover
from kernels.gpus import GPUS
from kernels.spec import Launch
from visualize.predict.schedule import FirstLoads, schedule, steps
from visualize.text.residency import residents
from visualize.text.schedule_text import Bought, loads_headline, sharing, timing
from visualize.views.prose import Link, html

SEVEN_SMS = replace(GPUS["H200"], sms=7, name="seven")


def said(kernel_id, sizes, per_sm=1, **config):
    kernel = discover()[kernel_id]
    launch = Launch(kernel.family.problem(**sizes), kernel.config(**config), SEVEN_SMS)
    order = schedule(kernel, launch, per_sm)
    return timing(order, steps(order), SEVEN_SMS, per_sm), sharing(order)


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


def test_the_table_by_programs_per_sm_has_the_idle_shares_of_the_last_and_of_all_waves():
    kernel = discover()["matmul.grid_2d"]
    launch = Launch(kernel.family.problem(M=256, N=256, K=64), kernel.config(BLOCK_M=64, BLOCK_N=64), SEVEN_SMS)
    text = re.sub(r"<[^>]*>", " ", residents(schedule(kernel, launch), launch, None))
    rows = [
        " ".join(text.split()).find(row)
        for row in ("3 2 of 7 71 % 24 %", "2 2 of 14 86 % 43 %", "1 16 of 28 43 % 43 %")
    ]
    assert -1 < rows[0] < rows[1] < rows[2], text


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


DIFFERENT = FirstLoads(9, 81, 54, 90, ((3, 3), (1, 9)), False, None)


def claimed(found, bought=None, what="program"):
    """The large number and the words beside it; the sentence; what is folded."""
    text = loads_headline(found, what, ("A", "B"), bought, ("And more.",))
    number, claim, more = re.fullmatch(
        '<div class="headline"><p class="number">(.*?)</p><p class="claim">(.*?)</p>'
        "<details>.*?<p>(.*?)</p></details></div>",
        text,
    ).groups()
    plain = [re.sub(r" <span class=\"mark.*?</span>", "", part) for part in (number, claim, more)]
    return [re.sub(r"<[^>]*>", "", part) for part in plain]


def test_fewer_blocks_are_the_number_and_rows_and_columns_the_reason():
    number, claim, more = claimed(DIFFERENT)
    assert number == "54 blocks of A and B instead of 90"
    assert claim == "The first 9 programs need 3 rows of A and 3 columns of B; row-major order needs 1 and 9."
    assert more == "And more."


def test_more_blocks_are_said_and_explained():
    found = FirstLoads(132, 512, 1792, 1600, ((12, 16), (9, 16)), False, (7360, 6336))
    number, claim, more = claimed(found)
    assert number == "1,792 blocks for the first 132 programs; row-major order needs 1,600"
    assert claim == "C is only 16 tiles wide, so grouping saves no blocks. Reuse shows what reaches DRAM."
    assert more.startswith(
        "The first 132 programs need 12 rows of A and 16 columns of B; row-major order needs 9 and 16."
    )
    assert "Added up over all waves: 7,360 blocks; in row-major order 6,336." in more


@pytest.mark.parametrize(
    ("same", "first", "said"),
    [
        (True, 9, "No difference: this is row-major order."),
        (False, 81, "No difference: all 81 programs run at once, so each block is loaded whatever the order."),
        (False, 1, "No difference for the first 1 program: both orders need equally many rows"),
    ],
)
def test_no_difference_is_said_with_its_reason(same, first, said):
    number, claim, _ = claimed(replace(DIFFERENT, blocks=90, is_same_order=same, first=first))
    assert number == "90 blocks in either order"
    assert claim.startswith(said)


def test_what_fewer_blocks_buy_is_the_claim_where_it_was_counted():
    link = Link("All sizes", "tab=reuse")
    bought = Bought((8.6e9, 2.55e9), (8.53e9, 2.86e9), (3.70, 3.56), "recorded", link)
    _, claim, more = claimed(DIFFERENT, bought)
    assert (
        claim == "The first 9 programs share more blocks: DRAM reads fall from 8.6 to 2.5 GB; the time hardly changes."
    )
    assert "Predicted: 8.53 and 2.86 GB." in more
    assert "Time: 3.70 ms in row-major order, 3.56 ms in this one. All sizes" in more
    assert "falls by 50 %" in claimed(DIFFERENT, replace(bought, times_ms=(2.0, 1.0)))[1]
    assert "grows by 50 %" in claimed(DIFFERENT, replace(bought, times_ms=(2.0, 3.0)))[1]


def test_a_claim_has_at_most_25_words():
    link = Link("All sizes", "tab=reuse")
    bought = Bought((8.6e9, 2.55e9), (8.53e9, 2.86e9), (3.70, 3.56), "recorded", link)
    worse = replace(DIFFERENT, blocks=91)
    alike = [replace(DIFFERENT, blocks=90, first=first) for first in (9, 81)]
    for found, buys in ((DIFFERENT, bought), (DIFFERENT, None), (worse, None), *((one, None) for one in alike)):
        assert len(claimed(found, buys)[1].split()) <= 25
