"""DRAM reads by order, against plain counting: compulsory reads, what each wave reads, and recommended sizes."""

from dataclasses import astuple, replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.experiments import experiment_of, fill_sms, launch_from
from tests.visualize.predict.test_schedule import REDUCING, launches
from tilescope.declare.experiment import launch_of
from tilescope.declare.gpus import GPUS
from tilescope.declare.spec import DTYPE_BYTES
from visualize.predict.reuse import (
    Reuse,
    by_group_size,
    fewest_bytes,
    group_sizes,
    recommended,
    reuse,
)
from visualize.predict.schedule import max_programs_per_sm, schedule

H200 = GPUS["H200"]
LARGE = "matmul.grouped M=8192 N=8192 K=8192"
HOSTILE = (1, 129, 577, 1000, 1023)


def plan(text, **gpu):
    """Schedule a launch on an H200, some of whose properties are replaced."""
    return schedule(*launch_of(experiment_of(text), replace(H200, **gpu)))


def found(read, ahead=0.0):
    """A prediction of these reads."""
    return Reuse(read, read, read, read, 1, 1000, 1, ahead)


def test_the_written_output_takes_room():
    """A B of 1 MiB would be kept from wave to wave in an L2 of 3 MiB, but each wave writes 2 MiB of C."""
    text = "matmul.grouped M=8192 N=8192 K=64 BLOCK_M=128 BLOCK_N=128 GROUP_SIZE=1"
    matrix = 2 * 8192 * 64
    for l2_mib, times in ((3, 64), (30, 1)):
        prediction = reuse(plan(text, sms=64, l2_bytes=l2_mib << 20), 0.0)
        assert prediction.read_bytes == pytest.approx(matrix + times * matrix, rel=0.02), l2_mib


def added_at_most(kernel, launch):
    """Most bytes of an output that slices read to add to it."""
    problem = launch.problem
    slices = launch.config.SPLIT_K if kernel.id == "matmul.split_k_atomic" else 0
    return slices * problem.M * problem.N * DTYPE_BYTES[problem.dtype]


SMALL = st.sampled_from((1, 2, 9, 64, 129, 300))


@given(launches(kernels=REDUCING, sizes=SMALL))
def test_without_an_l2_every_wave_reads_the_panels_of_its_tiles(case):
    kernel, launch = case
    launch = replace(launch, gpu=replace(launch.gpu, l2_bytes=1))
    planned = schedule(kernel, launch)
    read = reuse(planned, 0.0)
    tiles = planned.tiles
    config = launch.config
    problem = launch.problem
    size = DTYPE_BYTES[launch.problem.dtype]
    long = -(-planned.k_blocks // planned.slices) * config.BLOCK_K
    total = 0
    for step in range(planned.step.max() + 1):
        now = planned.step == step
        for pid, block, whole in (
            (tiles.pid_m, config.BLOCK_M, problem.M),
            (tiles.pid_n, config.BLOCK_N, problem.N),
        ):
            for place, part in {*zip(pid[now].tolist(), tiles.pid_k[now].tolist(), strict=True)}:
                deep = max(0, min(problem.K, (part + 1) * long) - part * long)
                total += min(block, whole - place * block) * deep * size
    once = read.compulsory_bytes - (problem.M + problem.N) * problem.K * size
    assert read.read_bytes == pytest.approx(total + once + added_at_most(kernel, launch))


@given(
    launches(kernels=REDUCING),
    st.sampled_from((0.0, 1.0, 1.4, 3.0)),
    st.sampled_from((1, 1 << 18, 60 << 20)),
)
def test_no_less_than_compulsory_is_read_and_no_more_than_asked(case, pressure, l2_bytes):
    kernel, launch = case
    launch = replace(launch, gpu=replace(launch.gpu, l2_bytes=l2_bytes))
    prediction = reuse(schedule(kernel, launch), pressure)
    slack = 1 + 1e-9
    assert prediction.compulsory_bytes <= slack * prediction.low_bytes
    assert prediction.low_bytes <= slack * prediction.read_bytes
    assert prediction.read_bytes <= slack * prediction.high_bytes
    assert prediction.high_bytes <= slack * (
        prediction.requested_bytes + added_at_most(kernel, launch)
    )


@pytest.mark.parametrize("kernel", REDUCING, ids=lambda kernel: kernel.id)
@pytest.mark.parametrize("m", HOSTILE)
def test_panels_clipped_at_edges_and_slices_of_k_make_up_a_and_b_exactly(kernel, m):
    slices = "SPLIT_K=1", "SPLIT_K=4", "SPLIT_K=16"
    for n, k in zip(HOSTILE, reversed(HOSTILE), strict=True):
        for config in slices if "SPLIT_K" in vars(kernel.config()) else ("",):
            planned = plan(f"{kernel.id} M={m} N={n} K={k} {config}")
            more = m * n if kernel.id == "matmul.fused_add_relu" else 0
            prediction = reuse(planned, 0.0)
            assert prediction.compulsory_bytes == 2 * (m * k + k * n + more), (n, k, config)
            workspaces = sum(
                spec.stored_bytes(planned.launch.problem)
                for spec in kernel.workspaces(planned.launch).values()
            )
            assert prediction.write_bytes == 2 * m * n + workspaces


def test_an_input_without_panels_is_requested_once_and_the_l2_alone_reads_an_output_that_it_adds_to():
    """64 tiles of 128 × 128, all in the L2."""
    output = 2 * 1024**2
    asked = 2 * 64 * 256 * 1024
    for name, once, added in (
        ("grouped", 0, 0),
        ("fused_add_relu", output, 0),
        ("split_k_atomic", 0, output),
    ):
        text = f"matmul.{name} M=1024 N=1024 K=1024 BLOCK_M=128 BLOCK_N=128"
        prediction = reuse(plan(text), 0.0)
        assert prediction.compulsory_bytes == 4 * 1024**2 + once, name
        assert prediction.read_bytes == pytest.approx(prediction.compulsory_bytes + added), name
        assert prediction.requested_bytes == asked + once, name


@pytest.mark.parametrize("pressure", [0.0, 1.5, 2.5])
def test_a_size_is_predicted_alike_alone_and_among_others(pressure):
    text = "matmul.grouped M=4096 N=8192 K=4096"
    sizes = by_group_size(plan(text), pressure, range(1, 12))
    for size, prediction in sizes.items():
        alone = reuse(plan(f"{text} GROUP_SIZE={size}"), pressure)
        assert astuple(prediction) == pytest.approx(astuple(alone))


def test_inputs_about_as_large_as_the_l2_holds_are_flagged_as_its_edge():
    """Row by row, a B of 40 % of an L2 may just fit twice; a B of a tenth or of four times its size leaves no doubt."""
    flags = {}
    for n, k in ((1024, 1024), (3072, 4096), (16384, 8192)):
        text = f"matmul.grouped M=16384 N={n} K={k} BLOCK_M=128 BLOCK_N=128 GROUP_SIZE=1"
        flags[2 * n * k] = reuse(plan(text), 0.0).is_edge
    assert flags == {2 << 20: False, 24 << 20: True, 256 << 20: False}


def test_every_group_size_is_compared_up_to_all_rows_and_in_large_launches_some():
    for m, n, rows in ((8192, 8192, 128), (1000, 1023, 16), (1, 16384, 1)):
        planned = fill_sms(plan(f"matmul.grouped M={m} N={n} K=64"), 8)
        assert group_sizes(planned) == tuple(range(1, rows + 1))
    large = "matmul.grouped N=16384 K=64 BLOCK_M=16 BLOCK_N=32"
    some = group_sizes(plan(f"{large} M=16384"))
    assert some[0] == 1
    assert some[-1] == 1024
    assert set(some) >= {1 << exponent for exponent in range(11)}
    assert len(some) < 100
    ragged = group_sizes(plan(f"{large} M=16000"))
    assert ragged[-1] == 1000, "all rows, though no power of two"


def test_the_largest_of_the_sizes_that_read_the_fewest_bytes_is_named():
    assert fewest_bytes({1: found(9), 2: found(7), 4: found(7.2), 8: found(7), 16: found(8)}) == 8
    assert fewest_bytes({8: found(7), 2: found(7)}) == 8


def test_if_the_l2_is_not_the_limit_the_smallest_group_that_reads_nearly_the_fewest_bytes_is_recommended():
    kernel, launch = launch_from(LARGE)
    sizes = {1: found(90), 4: found(70), 8: found(81), 16: found(70), 32: found(75)}
    assert recommended(kernel, launch, sizes) == 8, (
        "4 is less than half of the size with the fewest bytes"
    )
    assert recommended(kernel, launch, sizes | {8: found(82)}) == 16, (
        "over 1.16 times the fewest bytes"
    )
    assert recommended(kernel, launch, sizes | {1: found(80)}) == 16, "no size makes a difference"


def test_if_the_l2_is_the_limit_the_largest_size_that_leaves_dram_time_is_recommended():
    kernel, launch = launch_from(f"{LARGE} BLOCK_M=64 BLOCK_N=64")
    sizes = {1: found(900, 1.0), 4: found(40, 1.0), 32: found(80, 1.0), 64: found(110, 1.0)}
    assert recommended(kernel, launch, sizes) == 32
    wide = launch_from(f"{LARGE} BLOCK_M=64 BLOCK_N=128")
    assert recommended(*wide, sizes) == 64, "B has the larger share"
    assert recommended(kernel, replace(launch, gpu=replace(H200, dram_gbps=0)), sizes) == 4
    hardly = {size: replace(each, ahead=0.09) for size, each in sizes.items()}
    assert recommended(kernel, launch, hardly) == 4, (
        "programs request too little more than the L2 delivers"
    )
    alike = {size: replace(each, read_bytes=900 + size) for size, each in sizes.items()}
    assert recommended(kernel, launch, alike) == 1


def test_a_copy_reads_its_input_once_and_its_output_where_it_writes_parts_of_sectors():
    whole, in_parts = (reuse(plan("transpose.tiled"), 0.0, parts) for parts in (False, True))
    assert whole.read_bytes == whole.compulsory_bytes == 1024 * 1024 * 4
    assert in_parts.read_bytes == 2 * whole.read_bytes


@pytest.mark.parametrize("k", [1, 8])
def test_many_thousand_waves_read_as_few_waves_do(k):
    """Each wave of 64 tiles is a row that reads one panel of A and all of B, whether B stays in the L2 or not."""
    kernel, row = launch_from(
        f"matmul.grouped M=16 N=1024 K={16 * k} BLOCK_M=16 BLOCK_N=16 GROUP_SIZE=1"
    )
    for waves in (1024, 10_000):
        problem = replace(row.problem, M=16 * waves)
        for l2_bytes, times in ((1, waves), (60 << 20, 1)):
            gpu = replace(H200, sms=64, l2_bytes=l2_bytes)
            planned = schedule(kernel, replace(row, problem=problem, gpu=gpu))
            read = reuse(planned, 0.0).read_bytes
            assert read == pytest.approx(2 * 16 * k * (16 * waves + times * 1024), rel=0.01), (
                waves,
                l2_bytes,
            )


# An earlier model raised an IndexError.
ONE_ROW_OF_ONE_WARP = launch_from(
    "matmul.fused_add_relu M=1 N=1536 K=8192 dtype=bfloat16 BLOCK_M=64 BLOCK_N=64 BLOCK_K=32 num_warps=1 num_stages=4"
)


@given(
    launches(sizes=st.sampled_from((1, 2, 17, 1536))),
    st.sampled_from((0.0, 0.8, 1.3, 2.4, 20.0)),
    st.integers(1, 32),
)
@example(ONE_ROW_OF_ONE_WARP, 2.4, 13)
@example(ONE_ROW_OF_ONE_WARP, 20.0, 32)
def test_degenerate_shapes_are_predicted(case, pressure, per_sm):
    """One row, column or element; fewer tiles than SMs; a single program."""
    kernel, launch = case
    most = max_programs_per_sm(launch.gpu, launch.config.num_warps)
    planned = fill_sms(schedule(kernel, launch), min(per_sm, most))
    prediction = reuse(planned, pressure)
    assert prediction.compulsory_bytes <= (1 + 1e-9) * prediction.read_bytes
    if hasattr(launch.config, "GROUP_SIZE") and planned.panels is not None:
        sizes = by_group_size(planned, pressure, group_sizes(planned))
        assert recommended(kernel, launch, sizes) in sizes
        own = sizes[min(launch.config.GROUP_SIZE, planned.extents[0])]
        assert own.read_bytes == pytest.approx(prediction.read_bytes)
