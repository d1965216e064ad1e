"""Runs on a real GPU: the largest sides, every way to measure time, and workers that die or hang during a run."""

import os
import signal
import time

import pytest

from tests.experiments import experiment_of
from tilescope.declare.discovery import discover
from tilescope.declare.experiment import launch_of
from tilescope.measure.pool import DEADLINES_S
from tilescope.results import Counters, Failure, RunResult
from visualize.predict.agreement import LaunchCosts, count_of

pytestmark = pytest.mark.gpu

MATMUL = "matmul.grouped M=1024 N=1024 K=1024"


def run(session, text, **others):
    return session.submit(experiment_of(text, **others)).result()


def assert_right(result):
    assert isinstance(result, RunResult), result
    assert result.check.passed, result.check


@pytest.mark.parametrize("kernel", list(discover()))
@pytest.mark.parametrize(
    "shape", [(16384, 577, 129), (129, 16384, 577), (577, 129, 16384), (16384, 16384, 33)], ids=str
)
def test_sides_of_16384_are_right(gpu, kernel, shape):
    names = [name for name in "MNK" if name in vars(discover()[kernel].family.problem())]
    # One slice of K, where more would race.
    config = {"SPLIT_K": 1} if kernel == "matmul.split_k_race" else {}
    assert_right(run(gpu, kernel, **dict(zip(names, shape, strict=False)), **config))


@pytest.mark.idle_gpu
@pytest.mark.parametrize("timer", ["events", "graph"])
@pytest.mark.parametrize("l2", ["warm", "cold"])
def test_every_way_to_take_time_gives_samples_of_both(gpu, l2, timer):
    result = run(gpu, MATMUL, l2=l2, timer=timer)
    assert_right(result)
    timing = result.timing
    baseline = result.baseline
    peak = result.peak
    assert timing.samples >= 10
    assert 0 < timing.p20_ms <= timing.median_ms <= timing.p80_ms
    assert timing.tflops == pytest.approx(2 * 1024**3 / timing.median_ms / 1e9)
    assert baseline.ratio == pytest.approx(baseline.timing.median_ms / timing.median_ms, rel=0.05)
    assert baseline.ratio_low <= baseline.ratio <= baseline.ratio_high
    assert 0 < peak.share < 1.1
    assert result.clock_mhz is None or result.clock_mhz > 100


@pytest.mark.idle_gpu
def test_events_and_a_graph_agree_on_a_launch_of_a_tenth_of_a_millisecond(gpu):
    """A time that included launch overhead would differ."""
    runs = [
        run(gpu, f"transpose.tiled M=8192 N=8192 timer={timer}") for timer in ("events", "graph")
    ]
    times = [result.timing.median_ms for result in runs]
    assert times[0] == pytest.approx(times[1], rel=0.1)


def test_a_worker_killed_in_the_middle_is_a_failure_and_the_next_run_succeeds(gpu):
    assert_right(run(gpu, MATMUL))
    process_id = gpu.call_runner(os.getpid)
    job = gpu.submit(experiment_of("matmul.grid_2d M=16384 N=16384 K=16384"))
    assert any(progress.stage in ("launch", "check", "time") for progress in job.updates())
    time.sleep(0.05)  # the worker has taken the job; if it died earlier, another would run the job
    os.kill(process_id, signal.SIGKILL)
    outcome = job.result()
    assert isinstance(outcome, Failure), outcome
    assert outcome.kind == "worker_died"
    assert_right(run(gpu, MATMUL))


def test_a_stage_that_misses_its_deadline_is_a_timeout_and_the_next_run_succeeds(gpu, monkeypatch):
    monkeypatch.setitem(DEADLINES_S, "time", 0.05)
    outcome = run(gpu, "matmul.grid_2d M=8192 N=8192 K=8192")
    assert isinstance(outcome, Failure), outcome
    assert outcome.stage == "time"
    assert outcome.kind == "timeout"
    monkeypatch.undo()
    assert_right(run(gpu, MATMUL))


def test_a_config_that_needs_too_much_shared_memory_is_refused_with_the_figures(gpu):
    config = "BLOCK_M=256 BLOCK_N=256 BLOCK_K=128 num_stages=8 num_warps=8"
    outcome = run(gpu, f"{MATMUL} {config}")
    assert isinstance(outcome, Failure), outcome
    assert outcome.stage == "compile"
    assert outcome.kind == "out_of_resources"
    assert f"{gpu.gpu.shared_bytes_per_program:,}" in outcome.message


@pytest.mark.parametrize(
    "text",
    [
        "matmul.grouped M=1000 N=520 K=333",
        "matmul.split_k_atomic dtype=float32",
        "matmul.persistent",
        "transpose.tiled M=64 N=64 BLOCK_M=4 BLOCK_N=8",
        "transpose.flat M=200 N=333",
    ],
)
def test_a_count_on_this_machine_is_what_the_model_predicts(gpu, text):
    experiment = experiment_of(text)
    counted = gpu.submit(experiment, "counters").result()
    assert isinstance(counted, Counters), counted
    assert counted.backend == "cuda"
    assert gpu.find_value(experiment, "counters") is counted
    compiled = gpu.compile(experiment).result()
    assert counted.compiled.operations == compiled.operations
    assert counted.launch["registers"] == compiled.registers
    found = LaunchCosts(*launch_of(experiment, gpu.gpu), compiled, counted)
    kinds = {count.agreement for op in found.predicted if (count := count_of(op, found))}
    assert kinds <= {"equal", "undercounted", "overcounted"}
    for op, names in (("load", ("ld",)), ("store", ("st",)), ("atomic", ("red", "atom"))):
        mine = [o.launch for o in found.predicted if o.access.op == op and o.compiled.layout]
        for what in ("requests", "sectors"):
            assert sum(getattr(cost, what) for cost in mine) == sum(
                counted.launch[f"{n}_{what}"] for n in names
            )
