"""Steps of a launch against plain counting, every tile, one after the other; and the first loads of two orders."""

from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.conftest import FEW_SMS
from tests.experiments import fill_sms
from tests.visualize.predict.test_schedule import REDUCING, launches
from tilescope.declare.gpus import GPUS
from tilescope.declare.spec import Launch
from visualize.predict.schedule import (
    FirstLoads,
    first_loads,
    first_programs,
    first_reads,
    player_steps,
    row_major,
    schedule,
    slice_blocks,
    steps,
)

H200 = GPUS["H200"]
SPLIT = next(kernel for kernel in REDUCING if kernel.id == "matmul.split_k_atomic")
SMALL = st.sampled_from((1, 2, 17, 129, 300))
ARTICLE = (
    {"M": 576, "N": 576, "K": 288},
    {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_SIZE": 3},
)
LARGE = (
    {"M": 16384, "N": 16384, "K": 4096},
    {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "GROUP_SIZE": 8},
)


def columns(planned):
    """(program, pid_m, pid_n, slice) of each entry."""
    tiles = planned.tiles
    return np.stack([tiles.program, tiles.pid_m, tiles.pid_n, tiles.pid_k], axis=1).tolist()


def computed(planned):
    """Step → the (program, pid_m, pid_n, slice) that it computes, by walking through the programs."""
    found = defaultdict(list)
    taken = Counter()
    most = max(Counter(planned.tiles.program.tolist()).values())
    for entry in columns(planned):
        program = entry[0]
        found[program // planned.resident_programs * most + taken[program]].append(entry)
        taken[program] += 1
    return found


@given(launches(sizes=SMALL))
def test_a_step_computes_the_next_tile_of_each_program_of_a_wave(launch):
    planned = schedule(*launch)
    made = steps(planned)
    expected = computed(planned)
    assert made.tiles.tolist() == [len(expected[step]) for step in range(max(expected) + 1)]
    in_time = [columns(planned)[entry] for entry in made.entries]
    assert in_time == [tile for step in sorted(expected) for tile in expected[step]]
    timed = [tile[1:] for tile in columns(made.timed)]
    assert timed == [tile[1:] for tile in in_time], "each tile as a program"
    played = player_steps(planned)
    assert played.entries.tolist() == made.entries.tolist()
    if played.name != made.name:
        assert set(played.tiles.tolist()) == {1}
        assert played.name == ("program" if planned.turns == 1 else "tile")


@pytest.mark.parametrize(
    ("tiles", "programs_per_sm", "name"), [(9, 1, "program"), (32, 1, "wave"), (32, 8, "program")]
)
def test_a_players_steps_are_single_programs_if_these_are_few_or_all_in_one_wave(
    kernels, tiles, programs_per_sm, name
):
    kernel = kernels["matmul.grouped"]
    problem = kernel.family.problem(M=tiles * 64, N=tiles * 64, K=64)
    launch = Launch(problem, kernel.config(BLOCK_M=64, BLOCK_N=64), H200)
    assert player_steps(fill_sms(schedule(kernel, launch), programs_per_sm)).name == name


@given(launches(kernels=REDUCING))
@example(
    (
        SPLIT,
        Launch(
            SPLIT.family.problem(M=129, N=200, K=300), SPLIT.config(BLOCK_K=64, SPLIT_K=2), FEW_SMS
        ),
    )
)
def test_a_step_reads_the_blocks_of_its_tiles_panels(launch):
    planned = schedule(*launch)
    for order in (planned, row_major(planned)):
        made = steps(order)
        depth = slice_blocks(order)
        for step, tiles in computed(order).items():
            pieces = {("A", m, k) for _, m, _, k in tiles} | {("B", n, k) for _, _, n, k in tiles}
            assert made.blocks[step] == sum(int(depth[k]) for _, _, k in pieces)


def test_a_step_after_all_programs_of_a_wave_have_ended_reads_nothing(kernels):
    """Six programs in waves of two; the first two loop twice, so that the second wave has no second turn."""
    kernel = kernels["matmul.persistent"]
    gpu = replace(H200, sms=6)
    launch = Launch(
        kernel.family.problem(M=8 * 64, N=64, K=64), kernel.config(BLOCK_M=64, BLOCK_N=64), gpu
    )
    made = steps(replace(schedule(kernel, launch), resident_programs=2))
    assert made.tiles.tolist() == [2, 2, 2, 0, 2]
    assert made.blocks.tolist() == [3, 3, 3, 0, 3]


@given(launches(kernels=REDUCING))
def test_the_first_read_is_the_first_in_time(launch):
    planned = schedule(*launch)
    a, b = first_reads(steps(planned))
    first_a = {}
    first_b = {}
    for step, tiles in sorted(computed(planned).items()):
        for _, m, n, k in tiles:
            first_a.setdefault((m, k), step)
            first_b.setdefault((k, n), step)
    assert {place: int(planned.step[entry]) for place, entry in np.ndenumerate(a)} == first_a
    assert {place: int(planned.step[entry]) for place, entry in np.ndenumerate(b)} == first_b


@pytest.mark.parametrize(
    ("kernel_id", "n", "config", "per_sm", "name", "tiles", "slots", "idle"),
    [
        (
            "matmul.grouped",
            2048,
            {"BLOCK_M": 64, "BLOCK_N": 64},
            1,
            "wave",
            [132] * 7 + [100],
            132,
            32,
        ),
        (
            "matmul.grouped",
            2048,
            {"BLOCK_M": 64, "BLOCK_N": 64},
            2,
            "wave",
            [264] * 3 + [232],
            264,
            32,
        ),
        ("matmul.grouped", 2048, {"BLOCK_M": 64, "BLOCK_N": 64}, 8, "wave", [1024], 1056, 32),
        # One program per SM, even if an SM would hold two.
        ("matmul.persistent", 4096, {}, 2, "turn", [132] * 3 + [116], 132, 16),
    ],
)
def test_the_last_step_is_idle_if_it_has_fewer_tiles_than_slots(
    kernels, kernel_id, n, config, per_sm, name, tiles, slots, idle
):
    kernel = kernels[kernel_id]
    launch = Launch(kernel.family.problem(M=2048, N=n, K=64), kernel.config(**config), H200)
    made = steps(fill_sms(schedule(kernel, launch), per_sm))
    assert made.name == name
    assert made.tiles.tolist() == tiles
    assert made.slots == slots
    assert (made.tail_idle, made.idle) == pytest.approx((idle / slots, idle / slots / len(tiles)))


BY_ROW = ARTICLE[0], {**ARTICLE[1], "GROUP_SIZE": 1}
SHORT_ROWS = {"M": 4096, "N": 4096, "K": 4096}, LARGE[1]


@pytest.mark.parametrize(
    ("launch", "wanted", "expected"),
    [
        (ARTICLE, 9, FirstLoads(9, 81, 54, 90, ((3, 3), (1, 9)), False, (162, 162))),
        (BY_ROW, 9, FirstLoads(9, 81, 90, 90, ((1, 9), (1, 9)), True, (162, 162))),
        # By default, the programs that run at once are compared.
        (ARTICLE, 0, FirstLoads(81, 81, 162, 162, ((9, 9), (9, 9)), False, (162, 162))),
        (
            SHORT_ROWS,
            0,
            FirstLoads(132, 512, 1792, 1600, ((12, 16), (9, 16)), False, (115 * 64, 99 * 64)),
        ),
        (LARGE, 0, FirstLoads(132, 8192, 1600, 4288, ((8, 17), (3, 64)), False, (107200, 266432))),
    ],
)
def test_the_first_programs_are_compared_with_row_major_order(kernels, launch, wanted, expected):
    kernel = kernels["matmul.grouped"]
    (problem, config) = launch
    planned = schedule(
        kernel, Launch(kernel.family.problem(**problem), kernel.config(**config), H200)
    )
    for divide in (steps, player_steps):
        own, reference = (divide(order) for order in (planned, row_major(planned)))
        compared = first_loads(own, reference, first_programs(planned, own, wanted))
        assert compared == (replace(expected, wave_blocks=None) if own.is_single else expected)


def test_the_first_turn_of_a_loop_is_compared_by_default(kernels):
    kernel = kernels["matmul.persistent"]
    planned = schedule(
        kernel, Launch(kernel.family.problem(M=4096, N=4096, K=64), kernel.config(), H200)
    )
    assert first_programs(planned, steps(planned), 0) == 132
