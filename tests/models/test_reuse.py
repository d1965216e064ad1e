"""DRAM reads by order, against plain counting: what must be read, what each wave reads, and what pace and size do."""

from __future__ import annotations

from dataclasses import astuple, replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kernels import discover
from kernels.gpus import GPUS
from kernels.spec import DTYPE_BYTES, Launch
from tests.conftest import FEW_SMS
from tests.models.test_schedule import REDUCING, launches
from visualize.models import panel_reads
from visualize.models.bounds import l2_gbps
from visualize.models.dispatch import Pace, by_pace
from visualize.models.expected_pace import ahead, expected_pace
from visualize.models.reuse import (
    MOST_WAVES,
    Reuse,
    by_group_size,
    fewest_bytes,
    group_sizes,
    read_bytes_on,
    recommended,
    reuse,
)
from visualize.models.reuse_constants import CONSTANTS
from visualize.models.schedule import schedule

H200 = GPUS["H200"]
GROUPED = discover()["matmul.grouped"]
HOSTILE = (1, 129, 577, 1000, 1023)


def launch_of(m, n, k, kernel=GROUPED, gpu=H200, dtype="float16", **config):
    return Launch(kernel.family.problem(M=m, N=n, K=k, dtype=dtype), kernel.config(**config), gpu)


def predicted(launch, pressure=0.0, kernel=GROUPED):
    return reuse(kernel, launch, schedule(kernel, launch), pressure)


def every_size(launch, pressure=0.0):
    planned = schedule(GROUPED, launch)
    return by_group_size(GROUPED, launch, planned, pressure, group_sizes(planned))


def found(read, ahead=0.0, asked=1000):
    """A prediction that reads so many bytes."""
    return Reuse(read, read, read, read, 1, asked, 1, ahead)


def test_where_all_fits_every_group_size_reads_each_input_once():
    launch = launch_of(1024, 1000, 577)
    for size, one in every_size(launch, pressure=2.0).items():
        assert one.read_bytes == pytest.approx(one.compulsory_bytes), size
        assert one.compulsory_bytes == 2 * (1024 + 1000) * 577
        assert not one.is_edge


@pytest.mark.parametrize("rows_a_wave", [1, 2, 4])
def test_row_by_row_a_b_that_does_not_fit_is_read_once_a_wave(rows_a_wave):
    """Each wave computes whole rows of tiles, so it needs all of B, and panels of A that nobody has read."""
    launch = launch_of(8192, 8192, 8192, BLOCK_M=128, BLOCK_N=128, GROUP_SIZE=1)
    launch = replace(launch, gpu=replace(H200, sms=64 * rows_a_wave))
    matrix, waves = 2 * 8192**2, 64 // rows_a_wave
    assert predicted(launch).read_bytes == pytest.approx(matrix + waves * matrix)


def test_the_output_takes_room_as_it_is_written():
    """A B of 1 MiB would be kept from wave to wave in an L2 of 3 MiB, but each wave writes 2 MiB of C."""
    launch = launch_of(8192, 8192, 64, BLOCK_M=128, BLOCK_N=128, GROUP_SIZE=1)
    matrix = 2 * 8192 * 64
    for l2_mib, times in ((3, 64), (30, 1)):
        one = predicted(replace(launch, gpu=replace(H200, sms=64, l2_bytes=l2_mib << 20)))
        assert one.read_bytes == pytest.approx(matrix + times * matrix), l2_mib


def test_by_groups_of_as_many_rows_as_columns_a_wave_reads_least():
    """A wave of 64 tiles, with all gone from wave to wave: 8 × 8 tiles need 16 panels, 1 × 64 need 65."""
    launch = launch_of(8192, 8192, 8192, BLOCK_M=128, BLOCK_N=128, gpu=replace(H200, sms=64, l2_bytes=1))
    sizes = every_size(launch)
    panel = 2 * 128 * 8192
    assert sizes[8].read_bytes == pytest.approx(64 * 16 * panel)
    assert sizes[1].read_bytes == sizes[64].read_bytes == pytest.approx(64 * 65 * panel)
    assert fewest_bytes(sizes) == 8


def added_at_most(kernel, launch):
    """Bytes of an output that each slice adds to anew."""
    problem = launch.problem
    slices = launch.config.SPLIT_K if kernel.id == "matmul.split_k_atomic" else 0
    return slices * problem.M * problem.N * DTYPE_BYTES[problem.dtype]


def too_many_waves():
    """A draw of `launches` with more waves than are modelled: 65,536 programs, seven at a time."""
    kernel = discover()["matmul.split_k_atomic"]
    return kernel, launch_of(1023, 1023, 577, kernel, FEW_SMS, BLOCK_M=16, BLOCK_N=16, SPLIT_K=16)


@given(launches(kernels=REDUCING))
@example(too_many_waves())
def test_without_an_l2_every_wave_reads_the_panels_of_its_tiles(case):
    kernel, launch = case
    launch = replace(launch, gpu=replace(launch.gpu, l2_bytes=1))
    planned = schedule(kernel, launch)
    read = reuse(kernel, launch, planned, 0.0)
    if planned.step.max() >= MOST_WAVES:
        assert read is None
        return
    tiles, config, problem, size = planned.tiles, launch.config, launch.problem, DTYPE_BYTES[launch.problem.dtype]
    long, total = -(-planned.k_blocks // planned.slices) * config.BLOCK_K, 0
    for step in range(planned.step.max() + 1):
        now = planned.step == step
        for pid, block, whole in ((tiles.pid_m, config.BLOCK_M, problem.M), (tiles.pid_n, config.BLOCK_N, problem.N)):
            for place, part in {*zip(pid[now].tolist(), tiles.pid_k[now].tolist(), strict=True)}:
                deep = max(0, min(problem.K, (part + 1) * long) - part * long)
                total += min(block, whole - place * block) * deep * size
    once = read.compulsory_bytes - (problem.M + problem.N) * problem.K * size
    assert read.read_bytes == pytest.approx(total + once + added_at_most(kernel, launch))


@given(launches(kernels=REDUCING), st.sampled_from((0.0, 1.0, 1.4, 3.0)), st.sampled_from((1, 1 << 18, 60 << 20)))
@example(too_many_waves(), 0.0, 1)
def test_no_less_than_compulsory_is_read_and_no_more_than_asked(case, pressure, l2_bytes):
    kernel, launch = case
    launch = replace(launch, gpu=replace(launch.gpu, l2_bytes=l2_bytes))
    one = predicted(launch, pressure, kernel)
    if one is None:
        assert schedule(kernel, launch).step.max() >= MOST_WAVES
        return
    slack = 1 + 1e-9
    assert one.compulsory_bytes <= slack * one.low_bytes
    assert one.low_bytes <= slack * one.read_bytes
    assert one.read_bytes <= slack * one.high_bytes
    assert one.high_bytes <= slack * (one.asked_bytes + added_at_most(kernel, launch))


@pytest.mark.parametrize("kernel", REDUCING, ids=lambda kernel: kernel.id)
@pytest.mark.parametrize("m", HOSTILE)
def test_panels_clipped_at_edges_and_slices_of_k_make_up_a_and_b_exactly(kernel, m):
    dtype = "float16"
    for n, k in zip(HOSTILE, reversed(HOSTILE), strict=True):
        for cut in ((1,), (4,), (16,)) if "SPLIT_K" in vars(kernel.config()) else ((),):
            launch = launch_of(m, n, k, kernel, dtype=dtype, **dict(zip(("SPLIT_K",), cut, strict=False)))
            more = m * n if kernel.id == "matmul.fused_add_relu" else 0
            one = predicted(launch, 0.0, kernel)
            assert one.compulsory_bytes == 2 * (m * k + k * n + more), (n, k, cut)
            assert one.write_bytes == 2 * m * n


def test_another_input_is_asked_for_once_and_an_output_that_is_added_to_by_the_l2_alone():
    """64 tiles of 128 × 128, all in the L2."""
    output, asked = 2 * 1024**2, 2 * 64 * 256 * 1024
    for name, once, added in (("grouped", 0, 0), ("fused_add_relu", output, 0), ("split_k_atomic", 0, output)):
        kernel = discover()[f"matmul.{name}"]
        one = predicted(launch_of(1024, 1024, 1024, kernel, BLOCK_M=128, BLOCK_N=128), 0.0, kernel)
        assert one.compulsory_bytes == 4 * 1024**2 + once, name
        assert one.read_bytes == one.compulsory_bytes + added, name
        assert one.asked_bytes == asked + once, name


def test_slices_read_what_they_add_to_anew_where_it_is_gone():
    kernel = discover()["matmul.split_k_atomic"]
    launch = launch_of(1024, 1024, 1024, kernel, BLOCK_M=128, BLOCK_N=128, SPLIT_K=4)
    kept, gone = (predicted(replace(launch, gpu=replace(H200, l2_bytes=mib << 20)), 0.0, kernel) for mib in (60, 1))
    assert gone.read_bytes - kept.read_bytes >= 3 * 2 * 1024**2


def test_a_group_larger_than_all_rows_is_all_rows():
    launch = launch_of(4096, 16384, 4096, BLOCK_M=128, BLOCK_N=128)
    planned = schedule(GROUPED, launch)
    for pressure in (0.0, 1.5):
        all_rows, more, most = by_group_size(GROUPED, launch, planned, pressure, (32, 33, 1024)).values()
        assert all_rows == more == most


@pytest.mark.parametrize("pressure", [0.0, 1.5, 2.5])
def test_each_of_several_sizes_is_what_it_is_by_itself_however_many_are_looked_at_together(pressure, monkeypatch):
    launch = launch_of(4096, 8192, 4096)
    planned = schedule(GROUPED, launch)
    sizes = by_group_size(GROUPED, launch, planned, pressure, range(1, 12))
    for size, one in sizes.items():
        alone = predicted(replace(launch, config=replace(launch.config, GROUP_SIZE=size)), pressure)
        assert astuple(one) == pytest.approx(astuple(alone))
    monkeypatch.setattr(panel_reads, "_MOST_CELLS", 1)
    assert by_group_size(GROUPED, launch, planned, pressure, range(1, 12)) == sizes


def test_a_launch_whose_course_is_known_reads_what_that_course_fetches():
    """That of programs which come apart as is expected reads as is predicted; in lockstep it reads less."""
    launch = launch_of(8192, 8192, 8192, BLOCK_M=64, BLOCK_N=64, GROUP_SIZE=8)
    planned = schedule(GROUPED, launch, 8)
    expected = expected_pace(GROUPED, launch, 8, 2.2)
    known = read_bytes_on(GROUPED, launch, planned, by_pace(planned, expected))
    assert known == pytest.approx(reuse(GROUPED, launch, planned, 2.2).read_bytes)
    assert read_bytes_on(GROUPED, launch, planned, by_pace(planned, Pace())) < 0.9 * known


def of_ways(launch, programs_per_sm, pressure):
    """What is predicted, what lockstep reads, what each at its own pace, and how busy DRAM would be then."""
    planned = schedule(GROUPED, launch, programs_per_sm)
    one, together = (reuse(GROUPED, launch, planned, pressed) for pressed in (pressure, 0.0))
    own = read_bytes_on(
        GROUPED, launch, planned, by_pace(planned, expected_pace(GROUPED, launch, programs_per_sm, pressure))
    )
    busy = own / one.asked_bytes * min(1.0, pressure) * l2_gbps(launch.gpu) / launch.gpu.dram_gbps
    return one, together.read_bytes, own, busy


def test_programs_that_share_a_column_panel_come_apart_the_less_the_busier_dram_is():
    """Unless the L2 holds up all: then, and where they share none, each goes on at its own pace."""
    launch = launch_of(8192, 8192, 8192, BLOCK_M=64, BLOCK_N=128, GROUP_SIZE=128)
    one, together, own, busy = of_ways(launch, 4, 1.67)
    apart = 1 / (1 + CONSTANTS.held_wait * busy)
    assert 0.4 < apart < 0.8
    assert one.read_bytes == pytest.approx(together + apart * (own - together))
    assert one.otherwise_bytes >= own * (1 - 1e-9)
    slow_dram = replace(launch, gpu=replace(H200, dram_gbps=1e-9))
    assert of_ways(slow_dram, 4, 1.67)[0].read_bytes == pytest.approx(together)
    unknown = replace(launch, gpu=replace(H200, dram_gbps=0.0))
    planned = schedule(GROUPED, unknown, 4)
    assert reuse(GROUPED, unknown, planned, 1.67).read_bytes == pytest.approx(own)
    low = of_ways(launch, 4, 0.9)
    assert low[0].read_bytes == pytest.approx(low[1]), "where the L2 is not pressed they stay together"
    high, _, own, _ = of_ways(launch, 4, 2.2)
    assert high.read_bytes == pytest.approx(own)
    row_by_row = replace(launch, config=replace(launch.config, GROUP_SIZE=1))
    alone, _, own, _ = of_ways(row_by_row, 4, 1.67)
    assert alone.read_bytes == pytest.approx(own), "they share none"


def test_where_the_l2_is_hardly_pressed_a_busy_dram_holds_all_programs_back():
    busy_one = launch_of(12544, 10752, 8576, BLOCK_M=128, BLOCK_N=128, GROUP_SIZE=1)
    one, together, own, busy = of_ways(busy_one, 2, 1.11)
    assert busy > CONSTANTS.calm_from + 0.2
    apart = 1 / (1 + CONSTANTS.calm_wait * (busy - CONSTANTS.calm_from))
    assert one.read_bytes == pytest.approx(together + apart * (own - together))
    strided = launch_of(12544, 12288, 8576, BLOCK_M=128, BLOCK_N=128, GROUP_SIZE=1)
    one, together, own, busy = of_ways(strided, 2, 1.11)
    apart = 1 / (1 + CONSTANTS.calm_wait * (CONSTANTS.strided_busy * busy - CONSTANTS.calm_from))
    assert one.read_bytes == pytest.approx(together + apart * (own - together))
    idle_one = replace(busy_one, config=replace(busy_one.config, GROUP_SIZE=8))
    one, _, own, busy = of_ways(idle_one, 2, 1.11)
    assert busy < CONSTANTS.calm_from
    assert one.read_bytes == pytest.approx(own)


def test_programs_that_loop_stay_in_lockstep():
    """As timelines show: all SMs have ended within a part in 2,000."""
    looping = discover()["matmul.persistent"]
    launch = launch_of(16384, 16384, 4096, looping, BLOCK_M=128, BLOCK_N=256, GROUP_SIZE=8)
    planned = schedule(looping, launch, 1)
    assert planned.turns > 2
    assert reuse(looping, launch, planned, 1.1) == reuse(looping, launch, planned, 0.0)


def test_without_staging_waves_dissolve_a_little_even_where_the_l2_is_not_pressed():
    launch = launch_of(13312, 10240, 9216, BLOCK_M=128, BLOCK_N=256, GROUP_SIZE=2)
    planned = schedule(GROUPED, launch, 1)
    staged, one, more = (reuse(GROUPED, launch, planned, pressure) for pressure in (0.0, 0.5, 0.9))
    assert staged.read_bytes == staged.otherwise_bytes < one.read_bytes < more.read_bytes < 1.5 * staged.read_bytes
    assert not one.ahead


def test_what_hangs_on_how_far_programs_go_along_together_is_said():
    """At 7936³, groups of 32 rows of 64 × 64 tiles: their A is kept if most go along; of 1024³, all fits."""
    for sides, size, is_so in ((7936, 32, True), (1024, 32, False)):
        launch = launch_of(sides, sides, sides, BLOCK_M=64, BLOCK_N=64, GROUP_SIZE=size)
        one = reuse(GROUPED, launch, schedule(GROUPED, launch, 8), 2.2)
        assert one.is_drift == is_so
        ratio = max(one.read_bytes, one.otherwise_bytes) / min(one.read_bytes, one.otherwise_bytes)
        assert (ratio > 1.18) == is_so


@pytest.mark.parametrize(
    ("dtype", "num_warps", "programs_per_sm", "is_apart"),
    [
        ("float32", 8, 2, True),
        ("float8_e4m3fn", 4, 4, True),
        ("float32", 4, 2, False),
        ("float32", 16, 1, False),
        ("float16", 8, 2, False),
    ],
)
def test_float32_and_float8_programs_of_many_warps_are_evenly_apart(dtype, num_warps, programs_per_sm, is_apart):
    """Of 8192 × 8192, row by row, each wave's B comes more often than once where the programs of a SM are apart."""
    launch = launch_of(8192, 8192, 8192, dtype=dtype, BLOCK_M=128, BLOCK_N=128, GROUP_SIZE=1, num_warps=num_warps)
    planned = schedule(GROUPED, launch, programs_per_sm)
    one, staged = (reuse(GROUPED, launch, planned, pressure) for pressure in (1.0, 0.0))
    together, never = (
        reuse(GROUPED, launch, planned, pressure, False, replace(CONSTANTS, staggered_warps=1000))
        for pressure in (0.0, 1.0)
    )
    assert (staged.read_bytes > 1.5 * together.read_bytes) == is_apart
    assert (one == staged) == is_apart, "whatever the pressure"
    assert (one.otherwise_bytes == together.read_bytes) == is_apart
    assert (one == never) != is_apart


def test_programs_that_are_apart_do_not_run_ahead_and_those_alone_on_their_sm_are_not_apart():
    grouped = launch_of(8192, 8192, 8192, dtype="float32", BLOCK_M=128, BLOCK_N=128, num_warps=8)
    assert reuse(GROUPED, grouped, schedule(GROUPED, grouped, 2), 2.0).ahead == 0
    assert reuse(GROUPED, grouped, schedule(GROUPED, grouped, 1), 2.0).ahead == ahead(H200, 2.0)
    looping = discover()["matmul.persistent"]
    launch = launch_of(8192, 8192, 8192, looping, dtype="float32", BLOCK_M=128, BLOCK_N=128, num_warps=8)
    planned = schedule(looping, launch, 2)
    assert planned.programs == planned.sms
    never = reuse(looping, launch, planned, 2.0, False, replace(CONSTANTS, staggered_warps=1000))
    assert reuse(looping, launch, planned, 2.0) == never


def test_what_hangs_on_the_l2s_exact_size_is_at_the_edge():
    """Row by row, a B of half an L2 may just fit; one of a tenth or of four times its size leaves no doubt."""
    flags = {}
    for n, k in ((1024, 1024), (4096, 4096), (16384, 8192)):
        flags[2 * n * k] = predicted(launch_of(16384, n, k, BLOCK_M=128, BLOCK_N=128, GROUP_SIZE=1)).is_edge
    assert flags == {2 << 20: False, 32 << 20: True, 256 << 20: False}


def test_group_sizes_are_all_up_to_all_rows_and_of_large_launches_some():
    for m, n, rows in ((8192, 8192, 128), (1000, 1023, 16), (1, 16384, 1)):
        assert group_sizes(schedule(GROUPED, launch_of(m, n, 64), 8)) == tuple(range(1, rows + 1))
    large = launch_of(16384, 16384, 64, BLOCK_M=16, BLOCK_N=32)
    some = group_sizes(schedule(GROUPED, large))
    assert some[0] == 1
    assert some[-1] == 1024
    assert set(some) >= {1 << exponent for exponent in range(11)}
    assert len(some) < 100
    ragged = group_sizes(schedule(GROUPED, launch_of(16000, 16384, 64, BLOCK_M=16, BLOCK_N=32)))
    assert ragged[-1] == 1000, "all rows, though no power of two"


def test_of_sizes_that_read_equally_few_bytes_the_largest_is_taken():
    assert fewest_bytes({1: found(9), 2: found(7), 4: found(7.2), 8: found(7), 16: found(8)}) == 8
    assert fewest_bytes({8: found(7), 2: found(7)}) == 8


def test_where_the_l2_holds_nothing_up_the_fewest_bytes_are_recommended():
    launch = launch_of(8192, 8192, 8192)
    for sizes in (every_size(launch), {1: found(9), 2: found(7), 4: found(8, asked=10**9)}):
        assert recommended(sizes, launch) == fewest_bytes(sizes)


def test_where_the_l2_holds_programs_up_the_largest_of_those_that_spare_dram_is_recommended():
    launch = launch_of(8192, 8192, 8192)
    sizes = {1: found(900, 1.0), 4: found(10, 1.0), 32: found(90, 1.0), 64: found(500, 1.0)}
    assert recommended(sizes, launch) == 32
    assert recommended(sizes, replace(launch, gpu=replace(H200, dram_gbps=0))) == 4
    assert recommended({size: replace(one, read_bytes=900 + size) for size, one in sizes.items()}, launch) == 1


def test_a_copy_reads_its_input_once_and_its_output_where_it_writes_parts_of_sectors(kernels):
    kernel = kernels["transpose.tiled"]
    launch = Launch(kernel.family.problem(), kernel.config(), H200)
    whole, in_parts = (reuse(kernel, launch, schedule(kernel, launch), 0.0, parts) for parts in (False, True))
    assert whole.read_bytes == whole.compulsory_bytes == 1024 * 1024 * 4
    assert in_parts.read_bytes == 2 * whole.read_bytes


def test_more_waves_than_memory_holds_are_not_looked_at():
    for rows, answered in ((MOST_WAVES, True), (MOST_WAVES + 1, False)):
        launch = launch_of(16 * rows, 16, 16, BLOCK_M=16, BLOCK_N=16, gpu=replace(H200, sms=1))
        assert (predicted(launch) is not None) == answered
        assert (len(by_group_size(GROUPED, launch, schedule(GROUPED, launch), 0.0, (1,))) == 1) == answered
