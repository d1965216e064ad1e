"""Predicted DRAM reads against GPUs' counts, by GROUP_SIZE, and the recommended GROUP_SIZE against measured times.

Some constants were fitted to these counts, so the bars also hold with each shape left out of a fit.
"""

from __future__ import annotations

import csv
import re
import statistics
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from kernels.spec import DTYPE_BYTES
from tests.oracle.recorded_reuse import (
    DRAWN,
    STUDIES,
    compared,
    grid,
    left_out,
    median_error,
    rows,
    scoreboards,
    within,
)
from visualize.predict.bounds import bounds
from visualize.predict.l2 import CONSTANTS
from visualize.predict.reuse import reuse
from visualize.predict.schedule import schedule
from visualize.scoreboard.predictions import shipped

FILE = Path(__file__).parent / "h200_dram.csv"
TRUTH = list(csv.DictReader(FILE.read_text(encoding="utf-8").splitlines()))

# The Triton that predictions are shipped for; tests may run with another.
PINNED = re.search(r"triton==([\d.]+)", (FILE.parents[2] / "requirements.txt").read_text(encoding="utf-8"))

pytestmark = pytest.mark.xdist_group("reuse")


@pytest.fixture(scope="session")
def everywhere(compiled_before):
    """Every recorded launch on any GPU; predicting one compiles its kernel once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(compiled_before))
        yield compared()


@pytest.fixture(scope="session")
def launches(everywhere):
    """The launches on an H200."""
    return tuple(one for one in everywhere if one.launch.gpu.name == "H200")


@pytest.fixture(scope="session")
def sampled(launches, all_combinations):
    """Launches that are predicted here: by default every third, because each kernel must be compiled."""
    return launches if all_combinations else launches[::3]


@pytest.fixture(scope="session")
def predicted_everywhere(everywhere):
    """Every order of all launches as in the scoreboard's file, which a test below compares with the model."""
    return scoreboards(everywhere)


@pytest.fixture(scope="session")
def predicted(predicted_everywhere):
    """The orders on an H200."""
    return [row for row in predicted_everywhere if row.of.launch.gpu.name == "H200"]


def sentence(several):
    return "; ".join(f"{row.of}, GROUP_SIZE {row.group_size}: {row.error:+.0%}" for row in several)


def test_the_recordings_cover_many_shapes_tiles_and_kernels(launches):
    assert len(launches) >= 40
    assert len({one.shape for one in launches}) >= 8
    assert len({one.tile for one in launches}) >= 5
    assert len({one.kernel.id for one in launches}) >= 8
    assert len({one.launch.problem.dtype for one in launches}) >= 3
    assert len({one.schedule.resident_programs for one in launches}) >= 4
    matmuls = [one.launch.problem for one in launches if one.is_matmul]
    inputs = [problem.K * (problem.M + problem.N) * 2 for problem in matmuls]
    l2 = launches[0].launch.gpu.l2_bytes
    assert min(inputs) < 0.5 * l2 < 4 * l2 < max(inputs)


def test_every_group_size_was_counted_five_times_and_the_counts_agree(launches):
    spreads = []
    for row in (row for one in launches for row in one.rows.values()):
        assert len(row.dram_read_bytes) == len(row.dram_write_bytes) == 5
        spreads.append((max(row.dram_read_bytes) - min(row.dram_read_bytes)) / statistics.median(row.dram_read_bytes))
    assert statistics.median(spreads) < 0.01
    assert statistics.mean(spread < 0.05 for spread in spreads) > 0.8


def test_half_of_the_orders_are_within_3_percent_and_92_of_100_within_20(predicted, sampled):
    assert median_error(predicted) <= 0.025
    assert within(predicted) >= 0.92
    assert within(row for row in rows(sampled) if not row.predicted.is_drift) >= 0.95


def test_on_an_h100_too_92_of_100_orders_are_within_20_percent(predicted_everywhere):
    judged = [row for row in predicted_everywhere if row.of.launch.gpu.name == "H100"]
    assert len(judged) > 200
    assert median_error(judged) <= 0.04
    assert within(judged) >= 0.92
    assert sum(not row.is_flagged and abs(row.error) > 0.2 for row in judged) <= 2


def test_the_scoreboards_predictions_are_the_models(everywhere, all_combinations):
    """If the model changes, `python -m scripts.predict_records` regenerates them."""
    several = [one for one in shipped() if one.reads]
    for one, launch, recording in list(zip(several, everywhere, STUDIES, strict=True))[:: 1 if all_combinations else 3]:
        made = rows([launch])
        assert one.experiment == replace(recording.measured.experiment, gpu=recording.gpu)
        assert one.triton == PINNED[1], "Triton has changed since they were written"
        assert [(size, flagged) for size, _, flagged in one.reads] == [(row.group_size, row.is_flagged) for row in made]
        bytes_read = [row.predicted.read_bytes for row in made]
        assert [number for _, number, _ in one.reads] == pytest.approx(bytes_read, rel=1e-6), str(launch)


def test_nearly_all_orders_that_are_further_off_are_flagged(predicted):
    """All but four of 78, up to 26 % off; 42 % are flagged."""
    plain = [row for row in predicted if not row.is_flagged]
    assert len(plain) > 0.57 * len(predicted), "a flag on everything would say nothing"
    missed = [row for row in plain if abs(row.error) > 0.2]
    assert len(missed) <= 4, sentence(missed)
    assert all(abs(row.error) < 0.27 for row in missed), sentence(missed)
    assert median_error(plain) < 0.008


@dataclass(frozen=True)
class Draw:
    """Launches with shapes drawn at random, a tile each, and the bars for them.

    Attributes:
        median, within: the median error, and the share of orders within 20 %.
        missed: orders further off without a flag.
    """

    gpu: str
    name: str
    median: float
    within: float
    missed: int


@pytest.mark.parametrize(
    "draw",
    [
        Draw("H200", "first", 0.033, 0.92, 1),
        Draw("H200", "second", 0.032, 0.94, 0),
        Draw("H200", "third", 0.042, 0.93, 2),
        Draw("H200", "fourth", 0.05, 0.92, 0),
        Draw("H200", "fifth", 0.042, 0.94, 0),
        Draw("H100", "first", 0.046, 0.94, 2),
        Draw("H100", "fourth", 0.034, 0.91, 0),
    ],
    ids=lambda draw: f"{draw.name} on {draw.gpu}",
)
def test_of_launches_drawn_at_random_nine_of_ten_orders_are_within_20_percent(predicted_everywhere, draw):
    shapes = DRAWN[draw.name]
    judged = [row for row in predicted_everywhere if row.of.launch.gpu.name == draw.gpu and row.of.shape in shapes]
    assert {row.of.shape for row in judged} == set(shapes)
    assert len(judged) > 50
    assert median_error(judged) <= draw.median
    assert within(judged) >= draw.within
    missed = [row for row in judged if not row.is_flagged and abs(row.error) > 0.2]
    assert len(missed) <= draw.missed, sentence(missed)
    regrets = {str(row.of): row.of.regret for row in judged}
    assert max(regrets.values()) < 0.02, "the recommended GROUP_SIZE"


def test_nearly_all_are_within_a_factor_of_two(predicted_everywhere):
    """All but one order, which is 2.04 times the count."""
    off = [row for row in predicted_everywhere if not 0.5 < row.read_bytes / row.counted < 2]
    assert len(off) <= 1, sentence(off)


@pytest.mark.parametrize(
    ("changes", "most"),
    [
        ({"drift": 0.0, "jitter": 0.0, "ahead_slope": 0.0}, 0.72),
        ({"drift": 0.0}, 0.77),
        ({"ahead_slope": 0.0}, 0.88),
        ({"ways": 600}, 0.86),
    ],
)
def test_without_an_effect_fewer_orders_are_within_20_percent(sampled, changes, most):
    """So the model holds the bars above, and not what any model would say."""
    assert within(rows(sampled, replace(CONSTANTS, **changes))) < most


def test_float8_programs_are_staggered_from_the_start(sampled):
    drifting, staggered = (
        [row for row in rows(sampled, each) if row.of.launch.problem.dtype.startswith("float8")]
        for each in (replace(CONSTANTS, staggered_warps=1000), CONSTANTS)
    )
    assert within(drifting) < 0.5 < 0.8 < within(staggered)


def test_with_each_shape_left_out_of_a_fit_the_bars_hold(sampled):
    candidates = grid(drift=(0.005, 0.007, 0.009), jitter=(0.004, 0.008), ways=(16, 32))
    judged = left_out([rows(sampled, each) for each in candidates])
    assert len(judged) == len(rows(sampled))
    assert median_error(judged) <= 0.05
    assert within(judged) >= 0.87


def test_no_count_is_below_what_must_be_read(sampled):
    """Caches are flushed before each count, so each input is read once at least."""
    for row in rows(sampled):
        assert row.counted > 0.99 * row.predicted.compulsory_bytes, row


def test_sms_receive_the_bytes_that_all_programs_request(sampled):
    """To the byte, where rows begin at multiples of a sector; elsewhere sectors are received more often than once."""
    exact = 0
    for one in sampled:
        asked = one.predicted()
        if not one.is_matmul or one.launch.problem.M == 6000 or DTYPE_BYTES[one.launch.problem.dtype] != 2:
            continue  # sectors in parts; copies of 4 bytes and loads into registers, which go through the L1
        for size, row in one.rows.items():
            assert row.received_bytes == asked[size].asked_bytes, (str(one), size)
            assert row.l2_read_bytes <= row.received_bytes
            exact += 1
    assert exact > 60


def test_a_launch_takes_at_least_what_each_resource_needs(sampled):
    """At the higher of the datasheet's clock and the measured one.

    The L2's rate is that of long launches; short ones, at a higher clock, and blocks of K as long as a line
    are up to a fifth faster.
    """
    for one in sampled:
        if not one.is_matmul:
            continue
        clock = max(one.clock_mhz, one.launch.gpu.clock_mhz)
        for size, row in one.rows.items():
            dram = statistics.median(row.dram_read_bytes) + statistics.median(row.dram_write_bytes)
            found = bounds(one.kernel, one.launch, one.operations, dram, row.received_bytes, clock)
            assert [bound.name for bound in found] == ["DRAM", "L2", "load and store", "arithmetic", "tail wave"]
            for bound in found[:-1]:
                allowed = 0.84 if bound.name == "L2" else 1.0
                assert one.times_ms[size] > allowed * bound.ms, (str(one), size, bound)


def test_the_recommended_group_size_is_within_3_percent_of_the_fastest(everywhere):
    """Of the sizes that were timed. One launch of 168 is further off, by 4.4 %.

    Its fastest order reads 2.8 times as many bytes as the recommended one.
    """
    slower = {str(each): each.regret for each in everywhere if None not in each.rows and each.regret > 0.02}
    assert len(slower) <= 1, slower
    assert all(regret < 0.045 for regret in slower.values()), slower


def test_on_every_shape_the_best_tile_with_its_recommended_group_size_is_within_2_percent_of_the_best_there_is(
    sampled,
):
    compared = [one for one in sampled if None not in one.rows]
    for shape, dtype in {(one.shape, one.launch.problem.dtype) for one in compared}:
        alike = [one for one in compared if (one.shape, one.launch.problem.dtype) == (shape, dtype)]
        if len(alike) == 1:
            continue  # of shapes that were drawn at random one tile was counted
        best = min(min(one.times_ms.values()) for one in alike)
        assert min(one.recommended_ms for one in alike) <= 1.02 * best, shape


def truth(launches):
    """Each row of the file: bytes as counted there, as recorded, and as predicted for the file's resident programs."""
    for row in TRUTH:
        values = dict(zip(row["parameters"].split(), row["values"].split(), strict=True))
        sizes = {name: int(value) for name, value in values.items() if name != "dtype"}
        like = next(
            one
            for one in launches
            if (one.kernel.id, one.launch.problem.dtype) == ("matmul.grouped", "float16")
            and one.shape == tuple(sizes[name] for name in "MNK")
            and one.tile == (sizes["BLOCK_M"], sizes["BLOCK_N"])
        )
        launch = replace(like.launch, config=replace(like.launch.config, GROUP_SIZE=sizes["GROUP_SIZE"]))
        planned = schedule(like.kernel, launch, int(row["resident_programs_per_sm"]), "compiled")
        found = reuse(like.kernel, launch, planned, like.pressure)
        recorded = statistics.median(like.rows[sizes["GROUP_SIZE"]].dram_read_bytes)
        assert planned.resident_programs == like.schedule.resident_programs
        yield int(row["dram_read_bytes"]), recorded, found


def test_another_file_of_counts_agrees_as_far_as_it_agrees_with_the_records(launches):
    """It was counted with several metrics at once: caches warm from the pass before, another state in each.

    Three of ten counts differ from the records' by 15 to 48 %. Of the others, all predictions but one are within 20 %
    of both, and the model flags it.
    """
    counts = list(truth(launches))
    alike = [each for each in counts if each[1] == pytest.approx(each[0], rel=0.1)]
    assert (len(counts), len(alike)) == (10, 7)
    off = [
        predicted
        for counted, recorded, predicted in alike
        if not all(predicted.read_bytes == pytest.approx(count, rel=0.2) for count in (counted, recorded))
    ]
    assert [predicted.is_drift for predicted in off] == [True]
    assert statistics.median(abs(predicted.read_bytes / counted - 1) for counted, _, predicted in counts) < 0.16
