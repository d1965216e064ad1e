"""Steps of a launch against plain counting, every tile, one after the other."""

from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.conftest import FEW_SMS
from tests.experiments import experiment_of, fill_sms
from tests.visualize.predict.test_schedule import REDUCING, launches
from tilescope.declare.experiment import launch_of
from tilescope.declare.gpus import GPUS
from visualize.predict.schedule import (
    first_reads,
    player_steps,
    row_major,
    schedule,
    slice_blocks,
    steps,
)

H200 = GPUS["H200"]
SMALL = st.sampled_from((1, 2, 17, 129, 300))


def plan(text, programs_per_sm=1, gpu=H200):
    """Schedule an experiment."""
    return fill_sms(schedule(*launch_of(experiment_of(text), gpu)), programs_per_sm)


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
    tiles, programs_per_sm, name
):
    text = f"matmul.grouped M={64 * tiles} N={64 * tiles} K=64 BLOCK_M=64 BLOCK_N=64"
    assert player_steps(plan(text, programs_per_sm)).name == name


def count_blocks(tiles, depth):
    """Count the distinct blocks that tiles read. A slice is `depth` blocks deep."""
    pieces = {("A", m, k) for _, m, _, k in tiles} | {("B", n, k) for _, _, n, k in tiles}
    return sum(int(depth[k]) for _, _, k in pieces)


@given(launches(kernels=REDUCING))
@example(
    launch_of(
        experiment_of("matmul.split_k_atomic M=129 N=200 K=300 BLOCK_K=64 SPLIT_K=2"), FEW_SMS
    )
)
def test_a_step_reads_the_blocks_of_its_tiles_panels(launch):
    planned = schedule(*launch)
    for order in (planned, row_major(planned)):
        made = steps(order)
        depth = slice_blocks(order)
        for step, tiles in computed(order).items():
            assert made.blocks[step] == count_blocks(tiles, depth)


def test_a_step_after_all_programs_of_a_wave_have_ended_reads_nothing():
    """Six programs in waves of two; the first two loop twice, so that the second wave has no second turn."""
    text = "matmul.persistent M=512 N=64 K=64 BLOCK_M=64 BLOCK_N=64"
    made = steps(replace(plan(text, gpu=replace(H200, sms=6)), resident_programs=2))
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
