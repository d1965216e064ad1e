"""Predicted DRAM reads against what GPUs counted, by GROUP_SIZE, and the recommended one against measured times.

The model's constants were read from timelines, and fitted to them and to counts, so the bars are held again with each
shape left out of the fit, and on launches that were drawn at random and counted afterwards, on an H200 and on an H100.
"""

from __future__ import annotations

import csv
import re
import statistics
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import pytest

from kernels.spec import DTYPE_BYTES
from tests.covering import covering
from tests.oracle.recorded_reuse import (
    DRAWN,
    STUDIES,
    UNSEEN,
    compared,
    grid,
    left_out,
    median_error,
    rows,
    scoreboards,
    within,
)
from visualize.predict.bounds import bounds
from visualize.predict.reuse import reuse
from visualize.predict.reuse_constants import CONSTANTS, Constants
from visualize.predict.schedule import schedule
from visualize.scoreboard.predictions import shipped

FILE = Path(__file__).parent / "h200_dram.csv"
TRUTH = list(csv.DictReader(FILE.read_text(encoding="utf-8").splitlines()))

# The Triton that predictions are shipped for; tests may run with another.
PINNED = re.search(r"triton==([\d.]+)", (FILE.parents[2] / "requirements.txt").read_text(encoding="utf-8"))

pytestmark = pytest.mark.xdist_group("reuse")

# Three of the constants, of three or fewer values each: coarse, so that it is quick.
COARSE = grid(evicted_at=(0.58, 0.64), by_age=(0.0014, 0.0018, 0.0022), wait_bytes=(36_000.0, 48_000.0))


@pytest.fixture(scope="session")
def everywhere(compiled_before):
    """Every launch that was compared, on any GPU; what is asked of a kernel compiles it once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(compiled_before))
        yield compared()


@pytest.fixture(scope="session")
def launches(everywhere):
    """Those on an H200, which the constants are of."""
    return tuple(one for one in everywhere if one.launch.gpu.name == "H200")


@pytest.fixture(scope="session")
def sampled(launches, all_combinations):
    """Those that are predicted anew: by default every third one, as all kernels must be compiled for that."""
    return launches if all_combinations else launches[::3]


@pytest.fixture(scope="session")
def predicted_everywhere(everywhere):
    """Every order of all launches, as the scoreboard's file has them; it is held to the model below."""
    return scoreboards(everywhere)


@pytest.fixture(scope="session")
def predicted(predicted_everywhere):
    """Those on an H200."""
    return [row for row in predicted_everywhere if row.of.launch.gpu.name == "H200"]


def sentence(several):
    return "; ".join(f"{row.of}, GROUP_SIZE {row.group_size}: {row.error:+.0%}" for row in several)


def test_enough_was_compared(launches):
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


def test_half_of_the_orders_are_within_3_percent_and_95_of_100_within_20(predicted, sampled):
    assert median_error(predicted) <= 0.03
    assert within(predicted) >= 0.95
    assert within(row for row in rows(sampled) if not row.predicted.is_drift) >= 0.95


def test_the_scoreboards_predictions_are_these(everywhere, all_combinations):
    """Where the model changes, `python -m scripts.predict_records` writes them anew."""
    several = [one for one in shipped() if one.reads]
    for one, launch, recording in list(zip(several, everywhere, STUDIES, strict=True))[:: 1 if all_combinations else 3]:
        made = rows([launch])
        assert one.experiment == replace(recording.measured.experiment, gpu=recording.gpu)
        assert one.triton == PINNED[1], "Triton has changed since they were written"
        assert [(size, flagged) for size, _, flagged in one.reads] == [(row.group_size, row.is_flagged) for row in made]
        bytes_read = [row.predicted.read_bytes for row in made]
        assert [number for _, number, _ in one.reads] == pytest.approx(bytes_read, rel=1e-6), str(launch)


def test_what_is_further_off_is_flagged(predicted):
    """But for six orders of 49, up to 37 % off; 32 % are flagged."""
    plain = [row for row in predicted if not row.is_flagged]
    assert len(plain) > 0.675 * len(predicted), "a flag on everything would say nothing"
    missed = [row for row in plain if abs(row.error) > 0.2]
    assert len(missed) <= 6, sentence(missed)
    assert all(abs(row.error) < 0.38 for row in missed), sentence(missed)
    assert median_error(plain) < 0.016


def test_on_three_shapes_that_an_earlier_model_had_not_seen_most_holds(predicted):
    judged = [row for row in predicted if row.of.shape in UNSEEN]
    assert len(judged) > 100
    assert median_error(judged) <= 0.021
    assert within(judged) >= 0.96


@dataclass(frozen=True)
class Draw:
    """Launches drawn at random, a tile each, and what is held of them.

    Attributes:
        median, within: the median error, and the share within 20 %.
        plain: the share without a flag.
        missed: how many orders without a flag are further off.
        slower: how many launches are more than 2 % slower with the recommended GROUP_SIZE than with the best; and by
            how much at most.
    """

    gpu: str
    shapes: tuple[tuple[int, int, int], ...]
    median: float
    within: float
    plain: float
    missed: int
    slower: tuple[int, float]


# Pace was read from timelines of other launches, and of the first three draws on an H200. The fourth was counted a step
# before the model was done, which was then within 20 % of 93 % of its orders, and of 91 % on an H100. The fifth was
# counted once it was done.
DRAWS = {
    "first": Draw("H200", DRAWN["first"], 0.038, 0.96, 0.72, 0, (1, 0.046)),
    "second": Draw("H200", DRAWN["second"], 0.031, 0.97, 0.61, 1, (0, 0.02)),
    "third": Draw("H200", DRAWN["third"], 0.049, 0.935, 0.54, 1, (2, 0.028)),
    "fourth": Draw("H200", DRAWN["fourth"], 0.036, 0.97, 0.62, 0, (0, 0.02)),
    "fifth": Draw("H200", DRAWN["fifth"], 0.036, 0.96, 0.66, 0, (0, 0.005)),
    "first, on an H100": Draw("H100", DRAWN["first"], 0.036, 0.94, 0.69, 1, (2, 0.042)),
    "fourth, on an H100": Draw("H100", DRAWN["fourth"], 0.045, 0.915, 0.64, 1, (2, 0.049)),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_on_launches_drawn_at_random_nine_of_ten_orders_are_within_20_percent(predicted_everywhere, draw):
    judged = [row for row in predicted_everywhere if (row.of.launch.gpu.name, row.of.shape) in draw_of(draw)]
    assert {row.of.shape for row in judged} == set(draw.shapes)
    assert len(judged) > 50
    assert median_error(judged) <= draw.median
    assert within(judged) >= draw.within
    plain = [row for row in judged if not row.is_flagged]
    assert len(plain) >= draw.plain * len(judged)
    missed = [row for row in plain if abs(row.error) > 0.2]
    assert len(missed) <= draw.missed, sentence(missed)
    regrets = {str(row.of): row.of.regret for row in judged}
    several, most = draw.slower
    assert sum(regret > 0.02 for regret in regrets.values()) <= several, regrets
    assert max(regrets.values()) < most


def draw_of(draw):
    return {(draw.gpu, shape) for shape in draw.shapes}


def test_nearly_all_are_within_a_factor_of_two(predicted_everywhere):
    """But for an order of float8."""
    off = [row for row in predicted_everywhere if not 0.5 < row.read_bytes / row.counted < 2]
    assert len(off) <= 1, sentence(off)


def test_the_constants_matter(sampled):
    """So that the bars above are held by the model, and not by what any model would say."""
    lockstep = replace(CONSTANTS, spread=((0.0, 0.0), (1.0, 0.0)), by_age=0.0, most_ahead=0.0, jitter=0.0)
    assert within(rows(sampled, lockstep)) < 0.7
    assert within(row for row in rows(sampled, replace(CONSTANTS, by_age=0.0)) if row.of.pressure > 2) < 0.65
    assert within(row for row in rows(sampled, replace(CONSTANTS, wait_bytes=0.0)) if 1 < row.of.pressure < 2) < 0.9
    never_apart = rows(sampled, replace(CONSTANTS, staggered_warps=1000))
    assert within(row for row in never_apart if row.of.launch.problem.dtype.startswith("float8")) < 0.7


def test_on_a_shape_that_no_constant_was_fitted_to_the_bars_hold(sampled, all_combinations):
    """Three constants are fitted anew to all other shapes, for each."""
    candidates = COARSE if all_combinations else [Constants(*one) for one in covering(map(astuple, COARSE))]
    judged = left_out([rows(sampled, one) for one in candidates])
    assert len(judged) == len(rows(sampled))
    assert median_error(judged) <= 0.05
    assert within(judged) >= 0.88
    assert within(row for row in judged if not row.is_flagged) >= 0.97


def test_no_count_is_below_what_must_be_read(sampled):
    """Caches are flushed before each count, so each input is read once at least."""
    for row in rows(sampled):
        assert row.counted > 0.99 * row.predicted.compulsory_bytes, row


def test_sms_receive_what_all_programs_ask_for(sampled):
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
            found = bounds(one.kernel, one.launch, one.schedule, one.operations, dram, row.received_bytes, clock)
            assert [bound.name for bound in found] == ["DRAM", "L2", "load and store", "arithmetic", "tail wave"]
            for bound in found[:-1]:
                allowed = 0.84 if bound.name == "L2" else 1.0
                assert one.times_ms[size] > allowed * bound.ms, (str(one), size, bound)


def test_the_recommended_group_size_is_within_2_percent_of_the_fastest(sampled):
    """Of those timed. In all launches but three, with 64 × 128 tiles: 4.4, 2.6 and 2.5 % off."""
    slower = {str(one): one.regret for one in sampled if None not in one.rows and one.regret > 0.02}
    assert len(slower) <= 3, slower
    assert all(regret < 0.05 for regret in slower.values()), slower


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

    Three of ten counts differ from the records' by 15 to 48 %. Of the others all predictions are within 20 % of both.
    All but two are within 20 % of these, all but one of the records.
    """
    several = list(truth(launches))
    assert len(several) == 10
    alike = [one for one in several if one[1] == pytest.approx(one[0], rel=0.1)]
    assert len(alike) == 7
    for counted, recorded, found in alike:
        assert found.read_bytes == pytest.approx(counted, rel=0.2)
        assert found.read_bytes == pytest.approx(recorded, rel=0.2)
    errors = [abs(found.read_bytes / counted - 1) for counted, _, found in several]
    assert statistics.median(errors) < 0.16
    assert sum(error > 0.2 for error in errors) <= 2
    recorded_errors = [abs(found.read_bytes / recorded - 1) for _, recorded, found in several]
    assert sum(error > 0.2 for error in recorded_errors) <= 1
