"""Steps of a launch against plain counting, every tile, one after the other; and the first loads of two orders."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given

from kernels.gpus import GPUS
from kernels.spec import DTYPE_BYTES, Launch
from tests.conftest import FEW_SMS
from tests.predict.test_schedule import REDUCING, launches
from visualize.predict.schedule import loads, row_major, schedule, slice_blocks
from visualize.predict.steps import first_loads, first_programs, first_reads, panels, steps

H200 = GPUS["H200"]
SPLIT = next(kernel for kernel in REDUCING if kernel.id == "matmul.split_k_atomic")
ARTICLE = {"M": 576, "N": 576, "K": 288}, {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_SIZE": 3}
LARGE = {"M": 16384, "N": 16384, "K": 4096}, {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "GROUP_SIZE": 8}


def columns(tiles, entries=slice(None)):
    """(program, pid_m, pid_n, slice) of each entry."""
    return list(
        zip(*(x[entries].tolist() for x in (tiles.program, tiles.pid_m, tiles.pid_n, tiles.pid_k)), strict=True)
    )


def computed(planned):
    """Step → the (program, pid_m, pid_n, slice) that it computes, by walking through the programs."""
    found, taken = defaultdict(list), Counter()
    most = max(Counter(planned.tiles.program.tolist()).values())
    for entry in columns(planned.tiles):
        program = entry[0]
        found[program // planned.resident_programs * most + taken[program]].append(entry)
        taken[program] += 1
    return found


@given(launches())
def test_a_step_computes_the_next_tile_of_each_program_of_a_wave(launch):
    planned = schedule(*launch)
    for order in (planned, row_major(planned)):
        made, expected = steps(order), computed(order)
        assert made.tiles.tolist() == [len(expected[step]) for step in range(max(expected) + 1)]
        entries = slice(None) if made.entries is None else made.entries
        assert columns(order.tiles, entries) == [tile for step in sorted(expected) for tile in expected[step]]
        for step in expected.values():
            assert len({tile[0] for tile in step}) == len(step), "a program computes one tile at a time"


@given(launches())
def test_program_by_program_each_step_computes_the_next_tile_in_time(launch):
    planned = schedule(*launch)
    made = steps(planned, "program")
    assert set(made.tiles.tolist()) == {1}
    assert np.array_equal(made.timed.place, steps(planned).timed.place), "only where the steps end differs"
    assert made.name == ("program" if planned.turns == 1 else "tile")


@pytest.mark.parametrize(("tiles", "programs_per_sm", "name"), [(9, 1, "program"), (32, 1, "wave"), (32, 8, "program")])
def test_auto_steps_are_single_programs_if_these_are_few_or_all_in_one_wave(kernels, tiles, programs_per_sm, name):
    kernel = kernels["matmul.grouped"]
    problem = kernel.family.problem(M=tiles * 64, N=tiles * 64, K=64)
    launch = Launch(problem, kernel.config(BLOCK_M=64, BLOCK_N=64), H200)
    assert steps(schedule(kernel, launch, programs_per_sm), "auto").name == name


@given(launches(kernels=REDUCING))
@example((SPLIT, Launch(SPLIT.family.problem(M=129, N=200, K=300), SPLIT.config(BLOCK_K=64, SPLIT_K=2), FEW_SMS)))
def test_a_step_reads_the_blocks_of_its_tiles_panels(launch):
    planned = schedule(*launch)
    for order in (planned, row_major(planned)):
        made, depth = steps(order), slice_blocks(order)
        for step, tiles in computed(order).items():
            pieces = {("A", m, k) for _, m, _, k in tiles} | {("B", n, k) for _, _, n, k in tiles}
            assert made.blocks[step] == sum(int(depth[k]) for _, _, k in pieces)


def test_a_step_after_all_programs_of_a_wave_have_ended_reads_nothing(kernels):
    """Six programs in waves of two; the first two loop twice, so that the second wave has no second turn."""
    kernel = kernels["matmul.persistent"]
    gpu = replace(H200, sms=6)
    launch = Launch(kernel.family.problem(M=8 * 64, N=64, K=64), kernel.config(BLOCK_M=64, BLOCK_N=64), gpu)
    made = steps(replace(schedule(kernel, launch), resident_programs=2))
    assert made.tiles.tolist() == [2, 2, 2, 0, 2]
    assert made.blocks.tolist() == [3, 3, 3, 0, 3]


@given(launches(kernels=REDUCING))
def test_panels_hold_the_bytes_of_a_and_b_that_each_tile_and_slice_covers(launch):
    kernel, launch = launch
    planned = schedule(kernel, launch)
    read, problem, config = panels(kernel, launch, planned), launch.problem, launch.config
    length = -(-planned.k_blocks // planned.slices) * config.BLOCK_K
    for side, block, total in (
        (read.row_bytes, config.BLOCK_M, problem.M),
        (read.column_bytes, config.BLOCK_N, problem.N),
    ):
        elements = [
            min(block, total - pid * block) * max(0, min(length, problem.K - piece * length))
            for pid in range(-(-total // block))
            for piece in range(planned.slices)
        ]
        assert side.tolist() == [count * DTYPE_BYTES[problem.dtype] for count in elements]


@given(launches(kernels=REDUCING))
def test_the_first_read_is_the_first_in_time(launch):
    planned = schedule(*launch)
    a, b = first_reads(steps(planned))
    first_a, first_b = {}, {}
    for step, tiles in sorted(computed(planned).items()):
        for _, m, n, k in tiles:
            first_a.setdefault((m, k), step)
            first_b.setdefault((k, n), step)
    assert {place: int(planned.step[entry]) for place, entry in np.ndenumerate(a)} == first_a
    assert {place: int(planned.step[entry]) for place, entry in np.ndenumerate(b)} == first_b


@given(launches(kernels=REDUCING))
def test_a_launch_loads_as_many_blocks_in_time_as_in_launch_order(launch):
    planned = schedule(*launch)
    timed = steps(planned).timed
    assert loads(timed, np.array([timed.programs])) == loads(planned, np.array([planned.programs]))


@pytest.mark.parametrize(
    ("programs_per_sm", "waves", "tail", "tail_idle", "idle"),
    [(1, 8, 100, 32 / 132, 32 / 1056), (2, 4, 232, 32 / 264, 32 / 1056), (8, 1, 1024, 32 / 1056, 32 / 1056)],
)
def test_more_programs_per_sm_make_fewer_waves(kernels, programs_per_sm, waves, tail, tail_idle, idle):
    kernel = kernels["matmul.grouped"]
    problem, config = kernel.family.problem(M=2048, N=2048, K=64), kernel.config(BLOCK_M=64, BLOCK_N=64)
    planned = schedule(kernel, Launch(problem, config, H200), programs_per_sm)
    assert (planned.waves, planned.tail_programs) == (waves, tail)
    made = steps(planned)
    assert (made.tail_idle, made.idle) == pytest.approx((tail_idle, idle))


def test_the_last_turn_of_a_loop_is_idle_if_it_has_fewer_tiles_than_programs(kernels):
    kernel = kernels["matmul.persistent"]
    problem = kernel.family.problem(M=2048, N=4096, K=64)
    made = steps(schedule(kernel, Launch(problem, kernel.config(), H200), programs_per_sm=2))
    assert (made.name, len(made.tiles), int(made.tiles[-1])) == ("turn", 4, 116)
    assert made.slots == 132, "one program per SM, though an SM would hold two"
    assert (made.tail_idle, made.idle) == pytest.approx((16 / 132, 16 / (4 * 132)))


def compared(kernels, problem, config, first, by="wave", kernel_id="matmul.grouped"):
    kernel = kernels[kernel_id]
    planned = schedule(kernel, Launch(kernel.family.problem(**problem), kernel.config(**config), H200))
    own, reference = (steps(order, by) for order in (planned, row_major(planned)))
    return first_loads(own, reference, first_programs(planned, own, first))


@pytest.mark.parametrize(
    ("launch", "first", "blocks", "reference", "regions"),
    [(ARTICLE, 9, 54, 90, ((3, 3), (1, 9))), (LARGE, 132, 1600, 4288, ((8, 17), (3, 64)))],
)
def test_grouped_order_loads_fewer_blocks(kernels, launch, first, blocks, reference, regions):
    for by in ("wave", "program"):
        found = compared(kernels, *launch, first, by)
        assert (found.blocks, found.row_major_blocks, found.regions) == (blocks, reference, regions)
        assert (found.first, found.is_same_order) == (first, False)
        assert found.tiles > first
        assert (found.wave_blocks is None) == (by == "program")


def test_the_programs_that_run_at_once_are_compared_by_default(kernels):
    assert compared(kernels, *LARGE, 0).first == 132
    small = compared(kernels, *ARTICLE, 0)
    assert (small.first, small.tiles) == (81, 81)
    looping = compared(kernels, {"M": 4096, "N": 4096, "K": 64}, {}, 0, kernel_id="matmul.persistent")
    assert (looping.first, looping.tiles) == (132, 1024), "the first turn of the loop"


def test_a_group_of_one_row_is_row_major_order(kernels):
    found = compared(kernels, ARTICLE[0], {**ARTICLE[1], "GROUP_SIZE": 1}, 9)
    assert (found.is_same_order, found.blocks, found.row_major_blocks) == (True, 90, 90)


def test_short_rows_make_row_major_order_the_better_one(kernels):
    found = compared(kernels, {"M": 4096, "N": 4096, "K": 4096}, LARGE[1], 0)
    assert (found.blocks, found.row_major_blocks, found.regions) == (1792, 1600, ((12, 16), (9, 16)))
    assert found.wave_blocks == (115 * 64, 99 * 64), "rows and columns of all four waves"


def test_a_copy_has_no_first_loads_to_compare(kernels):
    assert compared(kernels, {"M": 64, "N": 64}, {}, 0, kernel_id="transpose.tiled") is None
