"""Steps of a launch against plain counting: every tile, one after the other."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from kernels.gpus import GPUS
from kernels.spec import DTYPE_BYTES, Launch
from tests.conftest import FEW_SMS
from tests.predict.test_schedule import REDUCING, default, launches
from visualize.predict.schedule import loads, loads_at, row_major, schedule, slice_blocks
from visualize.predict.steps import first_reads, panels, steps, with_programs_per_sm


def cut(kernel, launch):
    """A schedule, its panels, its steps."""
    planned = schedule(kernel, launch)
    read = panels(kernel, launch, planned)
    return planned, read, steps(planned, read)


def computed(planned):
    """Step → the (program, pid_m, pid_n, slice) that it computes, by walking through the programs."""
    found, taken = defaultdict(list), Counter()
    most = max(Counter(planned.tiles.program.tolist()).values())
    tiles = planned.tiles
    for entry in zip(*(x.tolist() for x in (tiles.program, tiles.pid_m, tiles.pid_n, tiles.pid_k)), strict=True):
        program = entry[0]
        found[program // planned.resident_programs * most + taken[program]].append(entry)
        taken[program] += 1
    return found


def slice_length(planned, problem, block_k, piece):
    """Elements along K of a slice."""
    length = -(-planned.k_blocks // planned.slices) * block_k
    return max(0, min(length, problem.K - piece * length))


@given(launches())
def test_a_step_computes_the_next_tile_of_each_program_of_a_wave(launch):
    planned, _, made = cut(*launch)
    expected = computed(planned)
    assert made.tiles.tolist() == [len(expected[step]) for step in range(max(expected) + 1)]
    for order in (planned, row_major(planned)):
        parts = steps(order, None)
        tiles = order.tiles
        entries = slice(None) if parts.entries is None else parts.entries
        in_order = [x[entries].tolist() for x in (tiles.program, tiles.pid_m, tiles.pid_n, tiles.pid_k)]
        expected = computed(order)
        assert list(zip(*in_order, strict=True)) == [tile for step in sorted(expected) for tile in expected[step]]
        for step in expected.values():
            assert len({tile[0] for tile in step}) == len(step), "a program computes one tile at a time"


@given(launches())
def test_program_by_program_each_step_computes_the_next_tile_in_time(launch):
    planned, read, by_wave = cut(*launch)
    made = steps(planned, read, "program")
    assert set(made.tiles.tolist()) == {1}
    assert np.array_equal(made.timed.place, by_wave.timed.place), "only where the steps end differs"
    assert made.name == ("program" if planned.turns == 1 else "tile")


@pytest.mark.parametrize(("tiles", "programs_per_sm", "name"), [(9, 1, "program"), (32, 1, "wave"), (32, 8, "program")])
def test_single_programs_are_stepped_where_they_are_few_or_all_in_one_wave(kernels, tiles, programs_per_sm, name):
    kernel = kernels["matmul.grouped"]
    problem = kernel.family.problem(M=tiles * 64, N=tiles * 64, K=64)
    launch = Launch(problem, kernel.config(BLOCK_M=64, BLOCK_N=64), GPUS["H200"])
    assert steps(schedule(kernel, launch, programs_per_sm), None, "auto").name == name


@given(launches(kernels=REDUCING))
def test_a_step_touches_the_panels_of_its_tiles(launch):
    kernel, launch = launch
    planned, read, _ = cut(kernel, launch)
    problem, config = launch.problem, launch.config
    for order in (planned, row_major(planned)):
        made = steps(order, read)
        for step, tiles in computed(order).items():
            rows = {(m, k) for _, m, _, k in tiles if slice_length(order, problem, config.BLOCK_K, k)}
            columns = {(n, k) for _, _, n, k in tiles if slice_length(order, problem, config.BLOCK_K, k)}
            held = sum(
                min(size, total - place * size) * slice_length(order, problem, config.BLOCK_K, k)
                for side, size, total in ((rows, config.BLOCK_M, problem.M), (columns, config.BLOCK_N, problem.N))
                for place, k in side
            )
            depth = slice_blocks(order)
            assert made.blocks[step] == sum(int(depth[k]) for _, k in (*rows, *columns))
            assert made.panel_bytes[step] == held * DTYPE_BYTES[problem.dtype]


def test_a_step_in_which_all_programs_of_a_wave_have_ended_touches_nothing(kernels):
    """Six programs in waves of two; the first two loop twice, so that the second wave has no second turn."""
    kernel = kernels["matmul.persistent"]
    launch = Launch(kernel.family.problem(M=8 * 64, N=64, K=64), kernel.config(BLOCK_M=64, BLOCK_N=64), GPUS["H200"])
    launch = replace(launch, gpu=replace(launch.gpu, sms=6))
    planned = replace(schedule(kernel, launch), resident_programs=2)
    made = steps(planned, panels(kernel, launch, planned))
    assert made.tiles.tolist() == [2, 2, 2, 0, 2]
    assert planned.k_blocks == 1
    assert made.blocks.tolist() == [3, 3, 3, 0, 3]
    assert made.panel_bytes.tolist() == [2 * 64 * held for held in (192, 192, 192, 0, 192)]


@given(launches(kernels=REDUCING))
def test_all_panels_together_are_a_and_b(launch):
    _, read, _ = cut(*launch)
    problem = launch[1].problem
    size = DTYPE_BYTES[problem.dtype]
    assert read.row_bytes.sum() == problem.M * problem.K * size
    assert read.column_bytes.sum() == problem.K * problem.N * size


@given(launches(kernels=REDUCING))
def test_the_first_touch_is_the_first_in_time(launch):
    planned, _, made = cut(*launch)
    a, b = first_reads(made)
    first_a, first_b = {}, {}
    for step, tiles in sorted(computed(planned).items()):
        for _, m, n, k in tiles:
            first_a.setdefault((m, k), step)
            first_b.setdefault((k, n), step)
    assert {place: int(planned.step[entry]) for place, entry in np.ndenumerate(a)} == first_a
    assert {place: int(planned.step[entry]) for place, entry in np.ndenumerate(b)} == first_b


@given(launches(kernels=REDUCING))
def test_loads_at_a_few_n_are_those_of_the_whole_curve(launch):
    planned, _, made = cut(*launch)
    counts = np.unique(np.geomspace(1, min(planned.programs, 1024), 7).astype(int))
    assert loads_at(planned, counts).tolist() == loads(planned)[counts - 1].tolist()
    timed = made.timed
    assert loads_at(timed, np.array([timed.programs])) == loads_at(planned, np.array([planned.programs]))


def test_programs_are_dealt_out_to_sms_one_after_the_other(kernel):
    planned = schedule(kernel, default(kernel, FEW_SMS))
    for wave in range(planned.waves):
        programs = np.unique(planned.tiles.program[planned.wave == wave])
        held = np.bincount(planned.sm_of(programs), minlength=planned.sms)
        assert held.max() - held.min() <= 1
        assert held.max() <= planned.resident_programs // planned.sms


@pytest.mark.parametrize(
    ("programs_per_sm", "waves", "tail", "tail_idle", "idle"),
    [(1, 8, 100, 32 / 132, 32 / 1056), (2, 4, 232, 32 / 264, 32 / 1056), (8, 1, 1024, 32 / 1056, 32 / 1056)],
)
def test_more_programs_a_sm_make_fewer_waves(kernels, programs_per_sm, waves, tail, tail_idle, idle):
    kernel = kernels["matmul.grouped"]
    problem, config = kernel.family.problem(M=2048, N=2048, K=64), kernel.config(BLOCK_M=64, BLOCK_N=64)
    planned = schedule(kernel, Launch(problem, config, GPUS["H200"]))
    held = with_programs_per_sm(planned, programs_per_sm)
    assert (held.waves, held.tail_programs) == (waves, tail)
    assert (held.tail_idle, held.idle) == pytest.approx((tail_idle, idle))
    made = steps(held, None)
    assert (made.tail_idle, made.idle) == pytest.approx((tail_idle, idle))


def test_the_last_turn_of_a_loop_is_idle_where_it_has_fewer_tiles_than_programs(kernels):
    kernel = kernels["matmul.persistent"]
    problem = kernel.family.problem(M=2048, N=4096, K=64)
    planned = schedule(kernel, Launch(problem, kernel.config(), GPUS["H200"]), programs_per_sm=2)
    made = steps(planned, None)
    assert (made.name, len(made.tiles), int(made.tiles[-1])) == ("turn", 4, 116)
    assert made.slots == 132, "one program a SM, though a SM would hold two"
    assert made.tail_idle == pytest.approx(16 / 132)
    assert made.idle == pytest.approx(16 / (4 * 132))
