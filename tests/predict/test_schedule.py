"""The schedule against plain counting: every program, one after the other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels import discover
from kernels.gpus import GPUS
from kernels.knobs import ConfigError, knobs
from kernels.spec import Launch
from tests.conftest import FEW_SMS
from visualize.predict.schedule import held_programs, loads, row_major, schedule, tile_map

KERNELS = tuple(discover().values())
H200 = GPUS["H200"]


def default(kernel, gpu=H200, **problem):
    """A launch of the kernel's default config."""
    return Launch(kernel.family.problem(**problem), kernel.config(), gpu)


REDUCING = tuple(kernel for kernel in KERNELS if "k" in kernel.extents(default(kernel)))
SIZES = st.sampled_from((1, 2, 9, 64, 129, 448, 577, 1000, 1023))


@st.composite
def launches(draw, kernels=KERNELS):
    """A kernel, a problem of at most some thousand tiles, and a config."""
    kernel = draw(st.sampled_from(kernels))
    fields = [name for name in "MNK" if name in knobs(kernel.family.problem)]
    problem = kernel.family.problem(**{name: draw(SIZES) for name in fields})
    config = {}
    for name, knob in knobs(kernel.config).items():
        allowed = (
            [c for c in knob.choices if c >= 16 or not name.startswith("BLOCK")]
            if knob.choices
            else range(knob.low, knob.high + 1)
        )
        config[name] = draw(st.sampled_from(allowed))
    return kernel, Launch(problem, kernel.config(**config), draw(st.sampled_from((H200, GPUS["T4"], FEW_SMS))))


def counted_loads(planned, first):
    """Blocks of A (row, step) and of B (step, column) that programs 0 … n-1 load, as sets."""
    tiles, seen, counts = planned.tiles, set(), []
    length = -(-planned.k_blocks // planned.slices)
    for program in range(min(planned.programs, first)):
        for entry in np.flatnonzero(tiles.program == program):
            m, n, k = (int(x[entry]) for x in (tiles.pid_m, tiles.pid_n, tiles.pid_k))
            for step in range(k * length, min((k + 1) * length, planned.k_blocks)):
                seen |= {("A", m, step), ("B", step, n)}
        counts.append(len(seen))
    return counts


@given(launches(kernels=REDUCING), st.integers(1, 80))
def test_loads_are_the_distinct_blocks_of_the_first_programs(launch, first):
    planned = schedule(*launch)
    for order in (planned, row_major(planned)):
        assert loads(order, first).tolist() == counted_loads(order, first)


@given(launches(), st.integers(1, 4))
def test_waves_are_filled_one_after_the_other(launch, programs_per_sm):
    kernel, launch = launch
    gpu = launch.gpu
    programs_per_sm = min(programs_per_sm, held_programs(gpu, launch.config.num_warps))
    planned = schedule(kernel, launch, programs_per_sm)
    waves, left = [], kernel.programs(launch)
    while left > 0:
        waves.append(min(left, gpu.sms * programs_per_sm))
        left -= waves[-1]
    assert planned.programs == sum(waves)
    assert planned.resident_programs == gpu.sms * programs_per_sm
    assert planned.waves == len(waves)
    assert planned.tail_programs == (waves[-1] if waves[-1] < gpu.sms * programs_per_sm else 0)
    of_program = np.array([wave for wave, count in enumerate(waves) for _ in range(count)])
    assert np.array_equal(planned.wave, of_program[planned.tiles.program])


@given(launches())
def test_a_tile_map_holds_each_tiles_first_program(launch):
    planned = schedule(*launch)
    programs = tile_map(planned, planned.tiles.program)
    expected = {}
    for program, m, n in zip(planned.tiles.program, planned.tiles.pid_m, planned.tiles.pid_n, strict=True):
        expected.setdefault((int(m), int(n)), int(program))
    assert {place: int(program) for place, program in np.ndenumerate(programs)} == expected


@given(launches())
def test_row_major_has_the_same_tiles_row_by_row(launch):
    planned = schedule(*launch)
    compared = row_major(planned)
    tiles = compared.tiles
    assert (compared.extents, compared.k_blocks, compared.slices) == (planned.extents, planned.k_blocks, planned.slices)
    for piece in range(planned.slices):
        mine = tiles.pid_k == piece
        turn = np.concatenate([np.arange(n) for n in np.unique(tiles.program[mine], return_counts=True)[1]])
        order = np.lexsort((tiles.program[mine], turn))
        places = tiles.pid_m[mine] * planned.extents[1] + tiles.pid_n[mine]
        assert places[order].tolist() == list(range(np.prod(planned.extents)))
    if planned.k_blocks:
        assert np.array_equal(tiles.program, planned.tiles.program)
        assert np.array_equal(tiles.pid_k, planned.tiles.pid_k)


def test_a_full_last_wave_has_no_tail(kernel):
    tiles = len(kernel.tiles(np.arange(kernel.programs(default(kernel))), default(kernel)).program)
    programs = kernel.programs(default(kernel, replace(H200, sms=1)))
    if programs == 1 < tiles:  # persistent: as many programs as SMs
        assert schedule(kernel, default(kernel, FEW_SMS)).tail_programs == 0
        return
    for sms, waves, tail in ((programs, 1, 0), (programs - 1, 2, 1), (programs + 1, 1, programs), (1, programs, 0)):
        planned = schedule(kernel, default(kernel, replace(H200, sms=sms)))
        assert (planned.waves, planned.tail_programs) == (waves, tail), sms


def test_nine_programs_of_nine_by_nine_tiles_load_54_blocks_in_groups_of_three_and_90_row_by_row(kernels):
    kernel = kernels["matmul.grouped"]
    problem = kernel.family.problem(M=576, N=576, K=288)
    config = kernel.config(BLOCK_M=64, BLOCK_N=64, BLOCK_K=32, GROUP_SIZE=3)
    grouped = schedule(kernel, Launch(problem, config, H200))
    by_group, by_row = loads(grouped), loads(row_major(grouped))
    assert (by_row[9 - 1], by_group[9 - 1]) == (90, 54)
    assert by_row[81 - 1] == by_group[81 - 1] == 2 * 81
    assert len(by_row) == len(by_group) == 81


def test_a_copy_has_no_loads_to_compare(kernels):
    for kernel in kernels.values():
        planned = schedule(kernel, default(kernel))
        assert (loads(planned) is None) == (kernel not in REDUCING)


def test_loads_end_after_the_first_1024_programs(kernel):
    if kernel not in REDUCING:
        return
    assert len(loads(schedule(kernel, default(kernel, M=16384, N=16384)))) <= 1024


def test_a_sm_holds_what_its_warps_and_programs_allow():
    assert held_programs(GPUS["H200"], num_warps=1) == 32
    assert held_programs(GPUS["H200"], num_warps=4) == 16
    assert held_programs(GPUS["T4"], num_warps=4) == 8
    assert held_programs(GPUS["L4"], num_warps=16) == 3
    assert held_programs(GPUS["T4"], num_warps=64) == 1


def test_more_programs_than_a_sm_holds_are_refused(kernel):
    for gpu in GPUS.values():
        held = held_programs(gpu, kernel.config().num_warps)
        schedule(kernel, default(kernel, gpu), held)
        with pytest.raises(ConfigError) as caught:
            schedule(kernel, default(kernel, gpu), held + 1)
        assert (caught.value.kind, caught.value.field) == ("out_of_range", "programs_per_sm")
        assert f"programs_per_sm is {held + 1};" in str(caught.value)
        assert f"at most {held}" in str(caught.value)


def test_more_tiles_than_memory_holds_are_refused_with_the_count():
    kernel = discover()["transpose.tiled"]
    with pytest.raises(ConfigError, match="16,384 × 16,384 tiles are too many") as refusal:
        schedule(kernel, Launch(kernel.family.problem(16384, 16384), kernel.config(1, 1), H200))
    assert (refusal.value.kind, refusal.value.field) == ("too_many_tiles", "BLOCK_M")
