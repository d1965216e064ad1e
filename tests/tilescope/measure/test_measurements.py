"""Rules for every measurement: names, refusals, cancels, workers after failures, and which results are kept."""

import os
from dataclasses import replace

import pytest

from tests.experiments import assert_failed, experiment_of
from tests.waiting import PATIENCE_S, until
from tilescope.declare.gpus import GPUS
from tilescope.measure.pool import DEADLINES_S
from tilescope.measure.session import MEASUREMENTS, Session
from tilescope.results import Failure, RunResult

pytestmark = pytest.mark.xdist_group("deviceless")

QUICK = experiment_of("matmul.grid_2d M=16 N=32 K=16")

# Takes the compiler half a minute for an H200: 512 sums per thread.
SLOW = experiment_of(
    "matmul.grouped M=256 N=256 K=64 BLOCK_M=256 BLOCK_N=128 BLOCK_K=16 GROUP_SIZE=1 num_warps=2"
)


@pytest.fixture(scope="module")
def deviceless(tmp_path_factory):
    """A session for an H200 that its workers don't find."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "-1")
        session = Session(GPUS["H200"], tmp_path_factory.mktemp("cache"))
        yield session
        session.close()


def fail_poisoned():
    """Return what a worker reports after an illegal access. In a run worker."""
    return Failure(
        "time",
        "cuda_error",
        "AcceleratorError: CUDA error: an illegal memory access was encountered",
    )


def fail_unharmed():
    """Return a failure that leaves the CUDA context intact. In a run worker."""
    return Failure(
        "time", "not_written_once", "1 of 2 programs did not write down one start and end."
    )


def process_of(session):
    return session.call_runner(os.getpid)


def test_a_worker_that_can_not_reach_its_device_is_replaced(deviceless):
    before = process_of(deviceless)
    outcome = deviceless.submit(QUICK, "run").result(120)
    assert isinstance(outcome, Failure), outcome
    assert outcome.stage == "worker", outcome
    assert process_of(deviceless) != before


@pytest.mark.parametrize(
    ("function", "is_replaced"), [(fail_poisoned, True), (fail_unharmed, False)]
)
def test_after_a_cuda_error_the_next_measurement_gets_a_fresh_worker(
    deviceless, made_up, function, is_replaced
):
    made_up(lambda job: job.work("time", function))
    before = process_of(deviceless)
    assert deviceless.submit(QUICK, "made_up").result(120) == function()
    assert (process_of(deviceless) != before) is is_replaced


def test_a_compile_that_fails_leaves_the_run_worker_alone(deviceless, monkeypatch):
    monkeypatch.setitem(DEADLINES_S, "compile", 1.0)
    before = process_of(deviceless)
    assert_failed(deviceless.submit(SLOW, "run"), "compile", "timeout")
    assert process_of(deviceless) == before


@pytest.mark.parametrize("name", ["tmeline", "", "Run"])
def test_an_unknown_name_is_an_error_that_lists_the_known_ones(session, name):
    for ask in (session.submit, session.find_value):
        with pytest.raises(ValueError, match="run, check, counters, reuse, timeline") as error:
            ask(QUICK, name)
        assert repr(name) in str(error.value)


@pytest.mark.parametrize("name", ["run", "reuse"])
def test_a_job_is_cancelled_while_it_compiles(deviceless, name):
    job = deviceless.submit(SLOW, name)
    until(lambda: job.progress.stage == "compile" and len(deviceless.compilers))
    job.cancel()
    assert_failed(job, "compile", "cancelled")


@pytest.mark.parametrize(
    "name", [name for name, measurement in MEASUREMENTS.items() if not measurement.is_interpreted]
)
def test_a_measurement_that_needs_a_gpu_is_refused_without_one_in_its_own_sentence(session, name):
    experiment = replace(QUICK, gpu="B200")
    for asked, gpu in ((experiment, "B200"), (QUICK, "H200")):
        sentence = MEASUREMENTS[name].not_recorded.format(this="no GPU", gpu=gpu)
        assert_failed(session.submit(asked, name), "config", "not_recorded", sentence)


RECORDED = experiment_of("transpose.row_strip")


def test_without_ncu_a_recording_replaces_the_counts(deviceless, monkeypatch):
    monkeypatch.setenv("PATH", "")
    found = deviceless.submit(RECORDED, "counters").result(PATIENCE_S)
    assert found.backend == "recorded"
    recorded = deviceless.find_value(RECORDED, "counters")
    assert found.note.startswith("ncu (Nsight Compute) is not installed on this machine")
    assert found.note.endswith(recorded.note)
    assert_failed(deviceless.submit(QUICK, "counters"), "launch", "no_ncu")
    assert deviceless.find_value(QUICK, "counters") is None


def test_a_defect_in_a_measurement_ends_its_job_and_the_next_one_runs(session, made_up):
    made_up(lambda job: {}["nothing"])
    assert_failed(session.submit(QUICK, "made_up"), "worker", "error", "KeyError")
    assert isinstance(session.submit(QUICK).result(PATIENCE_S), RunResult)
