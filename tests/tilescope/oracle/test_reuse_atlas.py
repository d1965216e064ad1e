"""Predicted DRAM reads against GPUs' counts, by GROUP_SIZE, and the recommended GROUP_SIZE against measured times.

Some constants were fitted to these counts, so the bars also hold with each shape left out of a fit.
"""

import statistics
from dataclasses import replace

import pytest

from benchmarks import recorded_reuse
from benchmarks.recorded_reuse import DRAWN, STUDIES, median_error, rows, within
from tests.tables import read_table
from tilescope.compiling.compiler import compile_experiment
from tilescope.compiling.inspection import capture_launch
from tilescope.declare.experiment import launch_of
from tilescope.declare.spec import DTYPE_BYTES
from tilescope.evaluate.captured import count_launch
from tilescope.inside.execution import execute
from tilescope.inside.threads import make_launch
from tilescope.results.counters import with_group_size
from tilescope.sass.instructions import parse_sass
from tilescope.timing.constants import find_constants
from tilescope.timing.l2 import CONSTANTS
from tilescope.timing.launches import describe_launch
from visualize.predict.reuse import DramTraffic, time_resources

pytestmark = pytest.mark.xdist_group("reuse")


@pytest.fixture(scope="session")
def everywhere(compiled_before):
    """Every recorded launch on any GPU; predicting one compiles its kernel once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(compiled_before))
        yield recorded_reuse.recorded_launches()


@pytest.fixture(scope="session")
def sampled_everywhere(everywhere, all_combinations):
    """Launches that are predicted here: by default every third, because each kernel must be compiled."""
    return everywhere if all_combinations else everywhere[::3]


@pytest.fixture(scope="session")
def sampled(sampled_everywhere):
    """Those on an H200."""
    return [each for each in sampled_everywhere if each.launch.gpu.name == "H200"]


@pytest.fixture(scope="session")
def shipped_rows(everywhere):
    """Every order of all launches as in the scoreboard's file, which a test below compares with the model."""
    return recorded_reuse.scoreboards(everywhere)


def on(gpu, judged):
    return [row for row in judged if row.of.launch.gpu.name == gpu]


def sentence(judged):
    return "; ".join(f"{row.of}, GROUP_SIZE {row.group_size}: {row.error:+.0%}" for row in judged)


def misses(judged):
    """The rows further off than 20 % without a flag."""
    return [row for row in judged if not row.is_flagged and abs(row.error) > 0.2]


def test_the_recordings_cover_kernels_and_inputs_below_and_above_the_l2(everywhere):
    launches = [each for each in everywhere if each.launch.gpu.name == "H200"]
    assert len({each.kernel.id for each in launches}) >= 8
    matmuls = [each.launch.problem for each in launches if each.is_matmul]
    inputs = [problem.K * (problem.M + problem.N) * 2 for problem in matmuls]
    l2 = launches[0].launch.gpu.l2_bytes
    assert min(inputs) < 0.5 * l2 < 4 * l2 < max(inputs)


def test_without_drift_95_of_100_orders_are_within_20_percent(sampled):
    assert within(row for row in rows(sampled) if not row.predicted.is_drift) >= 0.95


def test_the_scoreboards_predictions_are_the_models(shipped_rows, sampled_everywhere):
    """If the model changes, `python -m scripts.predict_records` regenerates them."""
    shipped = {(row.of, row.group_size): row for row in shipped_rows}
    assert len(shipped) == sum(len(study.measured.rows) for study in STUDIES)
    for row in rows(sampled_everywhere):
        of_file = shipped[row.of, row.group_size]
        assert of_file.is_flagged == row.is_flagged
        assert of_file.read_bytes == pytest.approx(row.read_bytes, rel=1e-6), str(row.of)


def test_the_compiled_launch_reads_as_much_as_its_declared_order(sampled):
    """The Order view uses declarations, the predicted time uses addresses. Both ask the same model of the L2."""
    differences = []
    for like in sampled[:12:4]:
        size = like.rows and next(iter(like.rows))
        experiment = with_group_size(like.study.experiment, size)
        kernel, launch = launch_of(experiment, like.launch.gpu)
        capture = capture_launch(kernel, launch)
        compiled = compile_experiment(experiment, like.launch.gpu)
        declared = DramTraffic(kernel, launch, compiled).own.read_bytes
        differences.append(predict_reads(capture, like.launch.gpu) / declared - 1)
    assert statistics.median(map(abs, differences)) < 0.02, differences
    assert max(map(abs, differences)) < 0.2, differences


def predict_reads(capture, gpu):
    """Return the bytes that the launch of a capture is predicted to read from DRAM."""
    (launch,) = capture.content.launches
    counts = count_launch(capture, launch)
    inputs = make_launch(capture, launch, counts)
    executions = execute(parse_sass(capture.read_code(0, "sass")), inputs)
    constants, _ = find_constants(gpu)
    return describe_launch(capture, launch, counts, executions, constants).traffic.read_bytes


def test_nearly_all_orders_that_are_further_off_are_flagged(shipped_rows):
    """All but four of 78, up to 26 % off; 42 % are flagged. The next test limits the number."""
    judged = on("H200", shipped_rows)
    plain = [row for row in judged if not row.is_flagged]
    missed = misses(judged)
    assert len(plain) > 0.57 * len(judged), "a flag on everything would say nothing"
    assert all(abs(row.error) < 0.27 for row in missed), sentence(missed)
    assert median_error(plain) < 0.008


BARS = """
H200 |        | 0.025 | 0.92 | 4
H100 |        | 0.04  | 0.92 | 2
H200 | first  | 0.033 | 0.92 | 1
H200 | second | 0.032 | 0.94 | 0
H200 | third  | 0.042 | 0.93 | 2
H200 | fourth | 0.05  | 0.92 | 0
H200 | fifth  | 0.042 | 0.94 | 0
H100 | first  | 0.046 | 0.94 | 2
H100 | fourth | 0.034 | 0.91 | 0
"""


@pytest.mark.parametrize(
    ("gpu", "name", "most_median", "fewest_within", "most_missed"), read_table(BARS)
)
def test_nine_of_ten_orders_are_within_20_percent_in_each_random_draw_too(
    shipped_rows, gpu, name, most_median, fewest_within, most_missed
):
    judged = [row for row in on(gpu, shipped_rows) if not name or row.of.shape in DRAWN[name]]
    assert not name or {row.of.shape for row in judged} == set(DRAWN[name])
    assert len(judged) > 50
    assert median_error(judged) <= most_median
    assert within(judged) >= fewest_within
    assert len(misses(judged)) <= most_missed, sentence(misses(judged))


def test_nearly_all_are_within_a_factor_of_two(shipped_rows):
    """All but one order, which is 2.04 times the count."""
    off = [row for row in shipped_rows if not 0.5 < row.read_bytes / row.counted < 2]
    assert len(off) <= 1, sentence(off)


def test_float8_programs_are_staggered_from_the_start(sampled):
    float8 = [each for each in sampled if each.launch.problem.dtype.startswith("float8")]
    assert (
        within(rows(float8, replace(CONSTANTS, staggered_warps=1000)))
        < 0.5
        < 0.8
        <= within(rows(float8))
    )


@pytest.mark.all_combinations
def test_with_each_shape_left_out_of_a_fit_the_bars_hold(sampled):
    candidates = recorded_reuse.grid(drift=(0.005, 0.007, 0.009), ways=(16, 32))
    judged = recorded_reuse.left_out([rows(sampled, each) for each in candidates])
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
    for row in rows(sampled):
        problem = row.of.launch.problem
        counted = row.of.rows[row.group_size]
        # Sectors in parts; copies of 4 bytes and loads into registers, which go through the L1.
        if row.of.is_matmul and problem.M != 6000 and DTYPE_BYTES[problem.dtype] == 2:
            assert counted.received_bytes == row.predicted.requested_bytes, (
                str(row.of),
                row.group_size,
            )
            assert counted.l2_read_bytes <= counted.received_bytes
            exact += 1
    assert exact > 60


def test_a_launch_takes_at_least_what_each_resource_needs(sampled):
    """At the higher of the datasheet's clock and the measured one.

    The L2's rate is that of long launches; short ones, at a higher clock, and blocks of K as long as a line
    are up to a fifth faster.
    """
    for each in (each for each in sampled if each.is_matmul):
        clock = max(each.study.clock_mhz, each.launch.gpu.clock_mhz)
        for size, row in each.rows.items():
            dram = statistics.median(row.dram_read_bytes) + statistics.median(row.dram_write_bytes)
            operations = each.traffic.operations
            found = time_resources(each.kernel, each.launch, operations, row.received_bytes, clock)
            assert list(found) == ["L2", "load and store", "arithmetic"]
            found["DRAM"] = dram / each.launch.gpu.dram_gbps / 1e6
            for name, ms in found.items():
                allowed = 0.84 if name == "L2" else 1.0
                assert each.times_ms[size] > allowed * ms, (str(each), size, name)


def test_the_recommended_group_size_is_within_2_percent_of_the_fastest(sampled_everywhere):
    """Of the sizes that were timed. One launch of 168 is further off, by 4.4 %.

    Its fastest order reads 2.8 times as many bytes as the recommended one.
    """
    regrets = {str(each): each.regret for each in sampled_everywhere if None not in each.rows}
    assert sum(regret > 0.02 for regret in regrets.values()) <= 1, regrets
    assert max(regrets.values()) < 0.045, regrets


def test_on_every_shape_the_best_tile_with_its_recommended_group_size_is_within_2_percent_of_the_best_there_is(
    sampled,
):
    compared = [each for each in sampled if None not in each.rows]
    for shape, dtype in {(each.shape, each.launch.problem.dtype) for each in compared}:
        alike = [
            each for each in compared if (each.shape, each.launch.problem.dtype) == (shape, dtype)
        ]
        if len(alike) == 1:
            continue  # of shapes that were drawn at random one tile was counted
        best = min(min(each.times_ms.values()) for each in alike)
        assert min(each.recommended_ms for each in alike) <= 1.02 * best, shape
