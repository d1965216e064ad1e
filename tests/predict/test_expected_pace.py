"""How unlike SMs and programs are expected to be: what timelines show, at its ends and in between."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kernels import discover
from kernels.gpus import GPUS
from kernels.spec import Launch
from visualize.predict.dispatch import Pace, by_pace
from visualize.predict.expected_pace import ahead, expected_pace
from visualize.predict.reuse import reuse
from visualize.predict.reuse_constants import CONSTANTS
from visualize.predict.schedule import schedule

H100, H200 = GPUS["H100"], GPUS["H200"]
GROUPED = discover()["matmul.grouped"]


def launch_of(n=5120, k=7552, layout="NN", dtype="float16", gpu=H200):
    return Launch(GROUPED.family.problem(M=7936, N=n, K=k, layout=layout, dtype=dtype), GROUPED.config(), gpu)


def test_without_a_pressure_on_the_l2_programs_stay_in_lockstep():
    assert expected_pace(GROUPED, launch_of(), 8, 0.0) == Pace()


@pytest.mark.parametrize(
    ("gpu", "pressure", "low", "high"),
    [
        (H200, 1.11, 0.0, 0.0),  # 128 × 128 tiles
        (H200, 1.67, 0.05, 0.15),  # 64 × 128 and 128 × 64
        (H200, 2.22, 0.24, 0.30),  # 64 × 64
        (H100, 1.22, 0.06, 0.10),
        (H100, 1.83, 0.16, 0.25),
        (H100, 2.44, 0.30, 1 / 3),
    ],
)
def test_some_sms_run_ahead_by_as_much_as_was_seen(gpu, pressure, low, high):
    assert low <= ahead(gpu, pressure) <= high


@pytest.mark.parametrize("gpu", [H100, H200])
def test_they_run_ahead_ever_more_and_by_a_third_at_most(gpu):
    several = [ahead(gpu, pressure) for pressure in np.arange(0, 8, 0.05)]
    assert several == sorted(several)
    assert several[0] == 0
    assert several[-1] == CONSTANTS.most_ahead
    assert max(np.diff(several)) < 0.05, "without a jump"


def test_on_a_slower_l2_the_same_programs_run_ahead_more():
    """They ask for the same, whatever the L2 delivers."""
    asked = 2.0 * H200.l2_gbps_per_sm
    slower = replace(H200, l2_gbps_per_sm=60.0)
    assert ahead(slower, asked / 60.0) > ahead(H200, 2.0)


def test_the_other_sms_differ_most_where_the_l2_is_pressed_but_not_wholly():
    spreads = {pressure: expected_pace(GROUPED, launch_of(), 4, pressure).spread for pressure, _ in CONSTANTS.spread}
    assert spreads[0.0] == 0
    assert max(spreads, key=lambda pressure: spreads[pressure]) == 1.75
    assert expected_pace(GROUPED, launch_of(), 4, 9.0).spread == spreads[2.3]
    assert expected_pace(GROUPED, launch_of(), 4, 0.45).spread == pytest.approx(spreads[0.9] / 2)


def test_programs_of_a_sm_come_apart_the_more_of_them_there_are():
    """Timelines show 0.013 to 0.018 of four programs, and 0.055 of eight."""
    alone, two, four = (expected_pace(GROUPED, launch_of(), number, 1.67).by_age for number in (1, 2, 4))
    eight = expected_pace(GROUPED, launch_of(), 8, 2.22).by_age
    assert alone == 0 < two < 0.008 < four < 0.02
    assert eight == pytest.approx(0.055, rel=0.1)
    assert expected_pace(GROUPED, launch_of(gpu=H100), 8, 2.44).by_age == pytest.approx(0.035, rel=0.1)


@pytest.mark.parametrize(
    ("changed", "is_strided"),
    [
        ({}, False),
        ({"n": 4096}, True),
        ({"n": 8192}, True),
        ({"k": 4096}, True),
        ({"n": 6144}, False),
        ({"n": 4096, "k": 7552, "layout": "NT"}, False),  # B's rows are along K
        ({"n": 2048, "dtype": "float32"}, True),
    ],
)
def test_rows_a_multiple_of_8_kib_apart_keep_programs_closer(changed, is_strided):
    usual, this = (expected_pace(GROUPED, launch_of(**change), 8, 2.22).by_age for change in ({}, changed))
    assert this == pytest.approx(usual * (CONSTANTS.strided if is_strided else 1))


def test_jitter_grows_with_the_pressure():
    assert (
        expected_pace(GROUPED, launch_of(), 1, 2.0).jitter == 2 * expected_pace(GROUPED, launch_of(), 1, 1.0).jitter > 0
    )


@pytest.mark.parametrize("programs_per_sm", [1, 2, 8, 16, 32])
@pytest.mark.parametrize("pressure", [0.5, 1.1, 2.2, 9.0])
def test_no_tile_takes_less_than_no_time_however_many_programs_a_sm_holds(programs_per_sm, pressure):
    launch = replace(launch_of(), config=GROUPED.config(num_warps=1))
    pace = expected_pace(GROUPED, launch, programs_per_sm, pressure)
    planned = schedule(GROUPED, launch, programs_per_sm)
    for by in (1.0, 1.3):
        run = by_pace(planned, Pace(*(by * value for value in vars(pace).values())))
        assert run.took.min() > 0.05
        assert np.diff(run.begun[np.argsort(planned.tiles.program)]).min() >= 0, "in launch order"
    assert 0 < reuse(GROUPED, launch, planned, pressure).read_bytes < 1e12
