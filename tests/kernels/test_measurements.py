"""What holds for every measurement: its name, refusals, cancel, what a failure costs, and which results are kept."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import replace

import pytest

from kernels import discover
from kernels.experiment import Run, from_json
from kernels.gpus import GPUS
from kernels.measuring import worker
from kernels.measuring.measurements import MEASUREMENTS
from kernels.measuring.measurements.measurement import Incomplete
from kernels.measuring.session import Session
from kernels.results import Failure, RunResult
from tests.waiting import until

pytestmark = pytest.mark.xdist_group("deviceless")

QUICK = from_json({"kernel": "matmul.grid_2d", "problem": {"M": 16, "N": 32, "K": 16}}, discover())

# Takes the compiler half a minute for an H200: 512 sums per thread.
SLOW = from_json(
    {
        "kernel": "matmul.grouped",
        "problem": {"M": 256, "N": 256, "K": 64},
        "config": {"BLOCK_M": 256, "BLOCK_N": 128, "BLOCK_K": 16, "GROUP_SIZE": 1, "num_warps": 2},
    },
    discover(),
)


FULL = pytest.mark.all_combinations


@pytest.fixture(scope="module")
def deviceless(tmp_path_factory):
    """A session for an H200 that its workers don't find."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "-1")
        session = Session(GPUS["H200"], tmp_path_factory.mktemp("cache"))
        yield session
        session.close()


def poisoned():
    """What a worker says after an illegal access. In a run worker."""
    return Failure("time", "cuda_error", "AcceleratorError: CUDA error: an illegal memory access was encountered")


def unharmed():
    """A failure that leaves the CUDA context as it was. In a run worker."""
    return Failure("time", "not_written_once", "1 of 2 programs did not write down one start and end.")


def process_of(session):
    return session.ask_runner(worker.process_id)


@pytest.mark.parametrize("name", ["run", pytest.param("reuse", marks=FULL)])
def test_a_worker_that_can_not_reach_its_device_is_replaced(deviceless, name):
    before = process_of(deviceless)
    outcome = deviceless.submit(QUICK, name).result(120)
    assert isinstance(outcome, Failure), outcome
    assert outcome.stage == "worker", outcome
    assert process_of(deviceless) != before


@pytest.mark.parametrize(
    "name", [name if name in ("run", "reuse") else pytest.param(name, marks=FULL) for name in MEASUREMENTS]
)
def test_after_a_cuda_error_the_next_measurement_gets_a_fresh_worker(deviceless, monkeypatch, name):
    measurement = MEASUREMENTS[name]
    for function, is_replaced in ((poisoned, True), (unharmed, False)):
        before = process_of(deviceless)
        measure = lambda experiment, stages, function=function: stages.work("time", function)  # noqa: E731
        monkeypatch.setattr(measurement, "measure", measure)
        assert deviceless.submit(QUICK, name).result(120) == function()
        assert (process_of(deviceless) != before) is is_replaced, function.__name__


def test_a_compile_that_fails_leaves_the_worker_of_another_run_alone(deviceless, monkeypatch):
    failure = Failure("compile", "error", "RuntimeError: no space left")
    failed = Future()
    failed.set_result(failure)
    monkeypatch.setattr(deviceless._machine.compiles, "asked", lambda *_: failed)
    before = process_of(deviceless)
    assert deviceless.submit(QUICK, "counters").result(60) == failure
    assert process_of(deviceless) == before


@pytest.mark.parametrize("name", ["tmeline", "", "Run"])
def test_an_unknown_name_is_an_error_that_lists_those_there_are(session, name):
    for ask in (session.submit, session.known):
        with pytest.raises(ValueError, match="run, check, counters, reuse, timeline") as error:
            ask(QUICK, name)
        assert repr(name) in str(error.value)


@pytest.mark.parametrize("name", ["run", "counters", "reuse"])
def test_a_job_is_cancelled_while_it_compiles(deviceless, name):
    job = deviceless.submit(SLOW, name)
    until(lambda: job.progress.stage == "compile")
    time.sleep(0.5)
    job.cancel()
    outcome = job.result(20)
    assert isinstance(outcome, Failure)
    assert (outcome.stage, outcome.kind) == ("compile", "cancelled")


@pytest.mark.parametrize("name", [name for name, one in MEASUREMENTS.items() if not one.is_interpreted])
def test_what_takes_a_gpu_is_refused_without_one_in_its_own_words(session, name):
    experiment = replace(QUICK, gpu="B200")
    for asked, gpu in ((experiment, "B200"), (QUICK, "H200")):
        outcome = session.submit(asked, name).result(0)
        assert isinstance(outcome, Failure)
        assert (outcome.stage, outcome.kind) == ("config", "not_recorded")
        assert outcome.message.startswith(MEASUREMENTS[name].takes)
        assert f"this machine has none, and {MEASUREMENTS[name].missing.format(gpu=gpu)}." in outcome.message


def test_a_result_is_known_until_as_many_others_have_been_used_since(session, tmp_path, monkeypatch):
    monkeypatch.setattr("kernels.measuring.session.MOST_KEPT", 2)
    other = Session(None, tmp_path)
    other._machine.close()
    monkeypatch.setattr(other, "_machine", session._machine)  # whose worker has been started
    first, second, third = (replace(QUICK, run=Run(seed=seed)) for seed in (1, 2, 3))
    results = [other.submit(experiment).result(60) for experiment in (first, second)]
    assert other.known(first, "run") is results[0]
    other.submit(third).result(60)
    assert other.known(second, "run") is None
    assert other.known(first, "run") is results[0]
    assert other.known(first, "check") is None
    assert other.known(replace(first, gpu="H200"), "run") is None, "it was interpreted here"


RECORDED = from_json({"kernel": "transpose.row_strip"}, discover())


@pytest.mark.parametrize("value", [Failure("launch", "no_ncu", "Nothing is counted."), "what there is"], ids=str)
def test_a_recording_stands_in_for_a_result_that_lacks_something(deviceless, monkeypatch, value):
    """Where there is none, what there is is given, and kept where it is no Failure."""
    incomplete = Incomplete(value, "There is no ncu.")
    monkeypatch.setattr(MEASUREMENTS["counters"], "measure", lambda *_: incomplete)
    found = deviceless.submit(RECORDED, "counters").result(60)
    assert found.backend == "recorded"
    assert found.note == f"There is no ncu. {deviceless.known(RECORDED, 'counters').note}"
    assert deviceless.submit(QUICK, "counters").result(60) == value
    assert deviceless.known(QUICK, "counters") == (None if isinstance(value, Failure) else value)


def test_a_defect_in_a_measurement_ends_its_job_and_the_next_one_runs(session, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(MEASUREMENTS["run"], "measure", lambda *_: {}["nothing"])
        outcome = session.submit(QUICK).result(60)
    assert isinstance(outcome, Failure)
    assert (outcome.stage, outcome.kind) == ("worker", "error")
    assert "KeyError" in outcome.message
    assert isinstance(session.submit(QUICK).result(60), RunResult)
