"""The schedule against plain counting: every program, one after the other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import discover
from kernels.gpus import GPUS
from kernels.spec import ConfigError, knobs
from visualize.models.schedule import held_programs, loads, row_major, schedule, tile_map

KERNELS = tuple(discover().values())
REDUCING = tuple(kernel for kernel in KERNELS if "k" in kernel.extents(kernel.family.problem(), kernel.config()))
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
    return kernel, problem, kernel.config(**config)


def counted_loads(planned, first):
    """Blocks of A (row, step) and of B (step, column) that programs 0 … n-1 load, as sets."""
    tiles, seen, counts = planned.tiles, set(), []
    slices = int(tiles.pid_k.max()) + 1
    for program in range(min(planned.programs, first)):
        for entry in np.flatnonzero(tiles.program == program):
            m, n, k = (int(x[entry]) for x in (tiles.pid_m, tiles.pid_n, tiles.pid_k))
            for step in range(k, planned.k_blocks, slices):
                seen |= {("A", m, step), ("B", step, n)}
        counts.append(len(seen))
    return counts


@given(launches(kernels=REDUCING), st.integers(1, 80))
@settings(deadline=None, max_examples=60)
def test_loads_are_the_distinct_blocks_of_the_first_programs(launch, first):
    planned = schedule(*launch, GPUS["H200"])
    for order in (planned, row_major(planned)):
        if order.k_blocks % (int(order.tiles.pid_k.max()) + 1) == 0:
            assert loads(order, first).tolist() == counted_loads(order, first)


@given(launches(), st.sampled_from(list(GPUS.values())), st.integers(1, 4))
@settings(deadline=None, max_examples=100)
def test_waves_are_filled_one_after_the_other(launch, gpu, programs_per_sm):
    kernel, problem, config = launch
    programs_per_sm = min(programs_per_sm, held_programs(gpu, config.num_warps))
    planned = schedule(kernel, problem, config, gpu, programs_per_sm)
    waves, left = [], kernel.programs(problem, config)
    while left > 0:
        waves.append(min(left, gpu.sms * programs_per_sm))
        left -= waves[-1]
    assert planned.programs == sum(waves)
    assert planned.resident_programs == gpu.sms * programs_per_sm
    assert planned.waves == len(waves)
    assert planned.tail_programs == (waves[-1] if waves[-1] < gpu.sms * programs_per_sm else 0)
    assert planned.wave.tolist() == [wave for wave, count in enumerate(waves) for _ in range(count)]


@given(launches())
@settings(deadline=None, max_examples=60)
def test_a_tile_map_holds_each_tiles_first_program(launch):
    planned = schedule(*launch, GPUS["H200"])
    programs = tile_map(planned, np.arange(planned.programs))
    expected = {}
    for program, m, n in zip(planned.tiles.program, planned.tiles.pid_m, planned.tiles.pid_n, strict=True):
        expected.setdefault((int(m), int(n)), int(program))
    assert {place: int(program) for place, program in np.ndenumerate(programs)} == expected


@given(launches())
@settings(deadline=None, max_examples=30)
def test_row_major_has_the_same_tiles_row_by_row(launch):
    planned = schedule(*launch, GPUS["H200"])
    compared = row_major(planned)
    assert tile_map(compared, np.arange(compared.programs)).ravel().tolist() == list(range(np.prod(planned.extents)))
    assert (compared.extents, compared.k_blocks) == (planned.extents, planned.k_blocks)


def test_a_full_last_wave_has_no_tail(kernel):
    problem, config = kernel.family.problem(), kernel.config()
    programs = kernel.programs(problem, config)
    for sms, waves, tail in ((programs, 1, 0), (programs - 1, 2, 1), (programs + 1, 1, programs), (1, programs, 0)):
        planned = schedule(kernel, problem, config, replace(GPUS["H200"], sms=sms))
        assert (planned.waves, planned.tail_programs) == (waves, tail), sms


def test_nine_programs_of_nine_by_nine_tiles_load_54_blocks_in_groups_of_three_and_90_row_by_row(kernels):
    kernel = kernels["matmul.grouped"]
    problem = kernel.family.problem(M=576, N=576, K=288)
    config = kernel.config(BLOCK_M=64, BLOCK_N=64, BLOCK_K=32, GROUP_SIZE=3)
    grouped = schedule(kernel, problem, config, GPUS["H200"])
    by_group, by_row = loads(grouped), loads(row_major(grouped))
    assert (by_row[9 - 1], by_group[9 - 1]) == (90, 54)
    assert by_row[81 - 1] == by_group[81 - 1] == 2 * 81
    assert len(by_row) == len(by_group) == 81


def test_a_copy_has_no_loads_to_compare(kernels):
    for kernel in kernels.values():
        planned = schedule(kernel, kernel.family.problem(), kernel.config(), GPUS["H200"])
        assert (loads(planned) is None) == (kernel not in REDUCING)


def test_loads_end_after_the_first_1024_programs(kernel):
    if kernel not in REDUCING:
        return
    problem = kernel.family.problem(M=16384, N=16384)
    assert len(loads(schedule(kernel, problem, kernel.config(), GPUS["H200"]))) <= 1024


def test_a_sm_holds_what_its_warps_and_programs_allow():
    assert held_programs(GPUS["H200"], num_warps=1) == 32
    assert held_programs(GPUS["H200"], num_warps=4) == 16
    assert held_programs(GPUS["T4"], num_warps=4) == 8
    assert held_programs(GPUS["L4"], num_warps=16) == 3
    assert held_programs(GPUS["T4"], num_warps=64) == 1


def test_more_programs_than_a_sm_holds_are_refused(kernel):
    for gpu in GPUS.values():
        held = held_programs(gpu, kernel.config().num_warps)
        schedule(kernel, kernel.family.problem(), kernel.config(), gpu, held)
        with pytest.raises(ConfigError) as caught:
            schedule(kernel, kernel.family.problem(), kernel.config(), gpu, held + 1)
        assert (caught.value.kind, caught.value.field) == ("out_of_range", "programs_per_sm")
        assert f"programs_per_sm is {held + 1};" in str(caught.value)
        assert f"at most {held}" in str(caught.value)


def test_more_tiles_than_memory_holds_are_refused_with_the_count():
    kernel = discover()["transpose.tiled"]
    with pytest.raises(ConfigError, match="16,384 × 16,384 tiles are too many") as refusal:
        schedule(kernel, kernel.family.problem(16384, 16384), kernel.config(1, 1), GPUS["H200"])
    assert (refusal.value.kind, refusal.value.field) == ("too_many_tiles", "BLOCK_M")
