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
from tests.predict.test_schedule import REDUCING, launches
from visualize.predict import panel_reads
from visualize.predict.reuse import (
    MOST_WAVES,
    Reuse,
    by_group_size,
    fewest_bytes,
    group_sizes,
    recommended,
    reuse,
)
from visualize.predict.schedule import schedule

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
    hardly = {size: replace(one, ahead=0.09) for size, one in sizes.items()}
    assert recommended(hardly, launch) == 4, "it holds them up too little"
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
