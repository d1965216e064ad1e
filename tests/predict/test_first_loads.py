"""What the first programs load in two orders: the article's numbers, and why there may be no difference."""

from __future__ import annotations

import pytest

from kernels.gpus import GPUS
from kernels.spec import Launch
from visualize.predict.first_loads import first_loads, first_programs
from visualize.predict.schedule import row_major, schedule
from visualize.predict.steps import panels, steps

ARTICLE = {"M": 576, "N": 576, "K": 288}, {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_SIZE": 3}
LARGE = {"M": 16384, "N": 16384, "K": 4096}, {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "GROUP_SIZE": 8}


def compared(kernels, problem, config, first, by="wave", kernel_id="matmul.grouped"):
    kernel = kernels[kernel_id]
    launch = Launch(kernel.family.problem(**problem), kernel.config(**config), GPUS["H200"])
    ours = schedule(kernel, launch)
    read = panels(kernel, launch, ours)
    mine, others = (steps(order, read, by) for order in (ours, row_major(ours)))
    return first_loads(mine, others, first_programs(ours, mine, first))


@pytest.mark.parametrize(
    ("launch", "first", "ours", "reference", "regions"),
    [(ARTICLE, 9, 54, 90, ((3, 3), (1, 9))), (LARGE, 132, 1600, 4288, ((8, 17), (3, 64)))],
)
def test_grouped_order_loads_fewer_blocks(kernels, launch, first, ours, reference, regions):
    for by in ("wave", "program"):
        found = compared(kernels, *launch, first, by)
        assert (found.ours, found.reference, found.regions) == (ours, reference, regions)
        assert not found.is_same_order
        assert not found.is_all


def test_without_a_number_those_are_compared_that_run_at_once(kernels):
    assert compared(kernels, *LARGE, 0).first == 132
    assert compared(kernels, *ARTICLE, 0).first == 81
    assert compared(kernels, *ARTICLE, 0).is_all
    looping = compared(kernels, {"M": 4096, "N": 4096, "K": 64}, {}, 0, kernel_id="matmul.persistent")
    assert (looping.first, looping.tiles) == (132, 1024), "the first turn of the loop"


def test_a_group_of_one_row_is_row_major_order(kernels):
    problem, config = ARTICLE
    found = compared(kernels, problem, {**config, "GROUP_SIZE": 1}, 9)
    assert found.is_same_order
    assert found.ours == found.reference == 90


def test_short_rows_make_row_major_order_the_better_one(kernels):
    config = {**LARGE[1], "GROUP_SIZE": 8}
    found = compared(kernels, {"M": 4096, "N": 4096, "K": 4096}, config, 0)
    assert (found.ours, found.reference, found.regions) == (1792, 1600, ((12, 16), (9, 16)))
    assert found.waves == (115 * 64, 99 * 64), "rows and columns of all four waves"


def test_where_each_input_is_read_once_there_is_nothing_to_compare(kernels):
    assert compared(kernels, {"M": 64, "N": 64}, {}, 0, kernel_id="transpose.tiled") is None
