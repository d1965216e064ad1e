"""Runs on a real GPU: the largest sides, counts, and workers that die or hang during a run."""

import os
import signal
import time

import pytest

from tests.experiments import assert_failed, experiment_of, run
from tests.waiting import until
from tilescope.declare.discovery import discover
from tilescope.declare.experiment import launch_of
from tilescope.results import Counters
from visualize.predict.costs import LaunchCosts, count_of

pytestmark = pytest.mark.gpu

MATMUL = "matmul.grouped M=1024 N=1024 K=1024"


@pytest.mark.parametrize("kernel", list(discover()))
@pytest.mark.parametrize(
    "shape", [(16384, 577, 129), (129, 16384, 577), (577, 129, 16384), (16384, 16384, 33)], ids=str
)
def test_sides_of_16384_are_right(gpu, kernel, shape):
    names = [name for name in "MNK" if name in vars(discover()[kernel].family.problem())]
    # One slice of K, where more would race.
    config = {"SPLIT_K": 1} if kernel == "matmul.split_k_race" else {}
    run(gpu, kernel, **dict(zip(names, shape, strict=False)), **config)


@pytest.mark.parametrize("kernel", ["persistent", "stream_k", "fused_add_relu"])
@pytest.mark.parametrize("layout", ["NN", "TT"])
@pytest.mark.parametrize("timer", ["events", "graph"])
def test_products_of_padded_copies_are_right(gpu, kernel, layout, timer):
    text = f"matmul.{kernel} M=129 N=577 K=131 layout={layout} timer={timer} PAD=always"
    assert run(gpu, text).timing.median_ms > 0


@pytest.mark.idle_gpu
@pytest.mark.parametrize("timer", ["events", "graph"])
def test_the_time_includes_the_copies_of_a_padded_launch(gpu, timer):
    if not gpu.gpu.has_tma:
        pytest.skip("This GPU has no descriptors, so nothing is copied.")
    odd, even = (
        run(gpu, f"matmul.persistent M={side} N=64 K={side} l2=cold timer={timer} PAD=always")
        for side in (8191, 8192)
    )
    copied_bytes = 2 * 2 * 8191**2
    added_ms = odd.timing.median_ms - even.timing.median_ms
    # The L2 may still hold part of the copy.
    assert added_ms > 0.75 * copied_bytes / gpu.gpu.dram_gbps / 1e6


def test_a_worker_killed_in_the_middle_is_a_failure_and_the_next_run_succeeds(gpu):
    run(gpu, MATMUL)
    process_id = gpu.call_runner(os.getpid)
    job = gpu.submit(experiment_of("matmul.grid_2d M=16384 N=16384 K=16384"))
    until(lambda: job.progress.stage in ("launch", "check", "time"))
    time.sleep(0.05)  # the worker has taken the job; if it died earlier, another would run the job
    os.kill(process_id, signal.SIGKILL)
    failure = job.result()
    assert_failed(job, failure.stage, "worker_died")
    run(gpu, MATMUL)


@pytest.mark.parametrize(
    "text",
    [
        "matmul.grouped M=1000 N=520 K=333",
        "matmul.split_k_atomic dtype=float32",
        "matmul.persistent",
        "matmul.persistent M=129 N=577 K=577 PAD=always",
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
