"""How programs go along, and what they read so: apart as is expected, held together by DRAM, in lockstep, staggered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernels import discover
from kernels.spec import DTYPE_BYTES
from tests.predict.test_reuse import GROUPED, H200, launch_of
from visualize.predict.dispatch import Pace, by_pace
from visualize.predict.expected_pace import ahead, expected_pace
from visualize.predict.reuse import read_bytes_on, reuse
from visualize.predict.reuse_constants import CONSTANTS
from visualize.predict.schedule import schedule


def test_a_launch_whose_course_is_known_reads_what_that_course_fetches():
    """That of programs which come apart as is expected reads as is predicted; in lockstep it reads less."""
    launch = launch_of(8192, 8192, 8192, BLOCK_M=64, BLOCK_N=64, GROUP_SIZE=8)
    planned = schedule(GROUPED, launch, 8)
    expected = expected_pace(GROUPED, launch, 8, 2.2)
    known = read_bytes_on(GROUPED, launch, planned, by_pace(planned, expected))
    assert known == pytest.approx(reuse(GROUPED, launch, planned, 2.2).read_bytes)
    assert read_bytes_on(GROUPED, launch, planned, by_pace(planned, Pace())) < 0.9 * known


def of_ways(launch, programs_per_sm, pressure):
    """What is predicted, what lockstep reads, what each at its own pace, and how far apart programs are held."""
    planned = schedule(GROUPED, launch, programs_per_sm)
    one, together = (reuse(GROUPED, launch, planned, pressed) for pressed in (pressure, 0.0))
    own = read_bytes_on(
        GROUPED, launch, planned, by_pace(planned, expected_pace(GROUPED, launch, programs_per_sm, pressure))
    )
    row_bytes = launch.problem.K * DTYPE_BYTES[launch.problem.dtype]
    apart = 1 / (1 + own / one.asked_bytes * CONSTANTS.wait_bytes / row_bytes)
    return one, together.read_bytes, own, apart


def test_programs_that_share_a_column_panel_come_apart_the_less_the_more_they_miss():
    """Unless the L2 holds up all: then, and where they share none, each goes on at its own pace."""
    launch = launch_of(8192, 8192, 8192, BLOCK_M=64, BLOCK_N=128, GROUP_SIZE=128)
    one, together, own, apart = of_ways(launch, 4, 1.67)
    assert 0.4 < apart < 0.8
    assert one.read_bytes == pytest.approx(together + apart * (own - together))
    assert one.otherwise_bytes >= own * (1 - 1e-9)
    low = of_ways(launch, 4, 0.9)
    assert low[0].read_bytes == pytest.approx(low[1]), "where the L2 is not pressed they stay together"
    high, _, own, _ = of_ways(launch, 4, 2.2)
    assert high.read_bytes == pytest.approx(own)
    row_by_row = replace(launch, config=replace(launch.config, GROUP_SIZE=1))
    alone, _, own, _ = of_ways(row_by_row, 4, 1.67)
    assert alone.read_bytes == pytest.approx(own), "they share none"


def test_where_the_l2_is_hardly_pressed_misses_hold_all_programs_back():
    launch = launch_of(12544, 10752, 8576, BLOCK_M=128, BLOCK_N=128, GROUP_SIZE=1)
    costs = []
    for group_size in (1, 8, 64):
        this = replace(launch, config=replace(launch.config, GROUP_SIZE=group_size))
        one, together, own, apart = of_ways(this, 2, 1.11)
        costs.append(own > together)
        assert one.read_bytes == pytest.approx(together + apart * (own - together) if own > together else own)
    assert costs == [True, False, True]


def test_a_tile_that_takes_longer_is_held_back_less():
    """A float8 tile takes as long as a float16 tile of half the K."""
    shares = []
    for k, dtype in ((4096, "float16"), (8192, "float16"), (8192, "float8_e4m3fn")):
        launch = launch_of(12544, 10752, k, dtype=dtype, BLOCK_M=128, BLOCK_N=128, GROUP_SIZE=1)
        one, together, own, _ = of_ways(launch, 1, 1.11)
        apart = (one.read_bytes - together) / (own - together)
        shares.append((1 / apart - 1) * one.asked_bytes / own)
    assert shares == pytest.approx([2 * shares[1], shares[1], 2 * shares[1]])


def test_programs_that_loop_stay_in_lockstep():
    """As timelines show: apart from how many tiles each computes, most of their SMs end at about the same time."""
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
