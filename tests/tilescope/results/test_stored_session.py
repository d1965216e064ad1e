"""A session stores finished measurements, and later sessions find them."""

import datetime
import re
from dataclasses import replace

import pytest

from tests.experiments import experiment_of
from tests.messages import opened
from tests.results_made_up import INTERPRETER, run
from tests.stores import put
from tilescope.declare.gpus import GPUS
from tilescope.measure.counters import COUNTERS
from tilescope.measure.run import RUN
from tilescope.measure.session import MEASUREMENTS, Session
from tilescope.results import Counters, Device, Failure, RunResult, records
from tilescope.results.store import ResultFilter, Store
from visualize.views.state import take_snapshot

QUICK = experiment_of("matmul.grouped", M=64, N=64, K=32)


@pytest.fixture
def sessions(store_path, compiled_before):
    """Return a function that starts sessions on one store, one after the other."""
    started = []

    def start(gpu=None):
        for before in started:
            before.close()
        started.append(Session(gpu, compiled_before, Store(store_path)))
        return started[-1]

    yield start
    for session in started:
        session.close()


def test_a_run_under_the_interpreter_comes_back_after_a_restart(sessions, store):
    before = sessions()
    live = before.submit(QUICK).result()
    assert isinstance(live, RunResult), live
    assert store.count(ResultFilter()) == 1
    assert before.find_value(QUICK, "run") is live, "what was measured since the start comes first"
    found = sessions().find_value(QUICK, "run")
    ended = re.match(r"Recorded earlier on this machine, (.*) UTC\. Triton's", found.note)[1]
    now = datetime.datetime.now(datetime.UTC)
    age = now - datetime.datetime.fromisoformat(f"{ended}Z")
    assert datetime.timedelta() <= age < datetime.timedelta(minutes=3)
    assert replace(found, note=live.note, diff=None) == replace(live, diff=None)
    assert found.backend == "interpreter"


def test_a_stored_check_comes_with_the_recorded_time_as_a_live_one_does(sessions, store):
    shipped = records.shipped(RUN.form)[0]
    of = shipped.measured.experiment
    gpu = "H200"
    recorded = records.find(RUN.form, of, gpu)
    put(store, run(of, None, INTERPRETER), gpu=gpu)
    back = sessions().find_value(of, "run")
    assert back.backend == "interpreter"
    assert back.recorded == recorded is not None


@pytest.mark.parametrize("name", [name for name in MEASUREMENTS if name != "check"])
def test_a_result_of_a_gpu_takes_precedence_over_shipped_ones(sessions, store, name):
    form = MEASUREMENTS[name].form
    shipped = next(recording for recording in records.shipped(form) if recording.gpu == "H200")
    device = replace(shipped.measured.device, triton="9.9")
    put(store, replace(shipped.measured, device=device), kind=MEASUREMENTS[name])
    of = shipped.measured.experiment
    found = sessions(GPUS["H200"]).find_value(of, name)
    assert (found.experiment, found.device.triton) == (of, "9.9")
    assert found.backend == found.device.backend == "recorded"
    assert found.note.startswith(f"{form.verb} earlier on this machine")
    without_gpu = sessions()
    named = replace(of, gpu="H200")
    for value in (without_gpu.find_value(named, name), without_gpu.submit(named, name).result(0)):
        assert value.device.triton == "9.9"
    assert sessions(GPUS["H100"]).find_value(replace(of, gpu="B200"), name) is None


def test_a_measurement_on_a_gpu_is_stored_under_that_gpu(sessions, monkeypatch):
    """The measurement is fake, and its result is handled like a GPU's."""
    device = Device("cuda", "NVIDIA H200", "2.13.0", "3.7.1")
    monkeypatch.setitem(
        MEASUREMENTS,
        "run",
        replace(RUN, measure=lambda job: run(job.experiment, 0.25, device)),
    )
    session = sessions(GPUS["H200"])
    assert session.submit(replace(QUICK, gpu="this")).result().timing.median_ms == 0.25
    (row,) = session.store.latest(ResultFilter(), 5)
    assert row.gpu == "H200"
    assert row.experiment == QUICK
    for spelled in ("", "this", "H200"):
        assert session.find_value(replace(QUICK, gpu=spelled), "run").backend == "cuda"
    again = sessions(GPUS["H200"]).find_value(QUICK, "run")
    assert again.timing.median_ms == 0.25
    assert again.device.triton == "3.7.1"


def test_failures_and_recordings_are_not_stored(sessions, store, monkeypatch):
    session = sessions()
    assert isinstance(session.submit(replace(QUICK, gpu="B200")).result(0), Failure)
    shipped = records.shipped(RUN.form)[0]
    assert (
        session.submit(replace(shipped.measured.experiment, gpu=shipped.gpu)).result(0).backend
        == "recorded"
    )
    monkeypatch.setenv("PATH", "")  # a recording replaces counts without ncu
    shipped = next(
        recording for recording in records.shipped(COUNTERS.form) if recording.gpu == "H200"
    )
    found = sessions(GPUS["H200"]).submit(shipped.measured.experiment, "counters").result()
    assert found.backend == "recorded"
    assert store.count(ResultFilter()) == 0


def test_counts_are_not_shown_if_an_earlier_version_counted_other_accesses(sessions, store):
    """Earlier versions counted a launch that copied A and B, too."""
    counted = next(
        each.measured
        for each in records.shipped(COUNTERS.form)
        if each.gpu == "H200" and each.measured.experiment.kernel == "matmul.grouped"
    )
    state = opened("matmul.fused_add_relu gpu=H200")
    for experiment, is_shown in ((state.experiment, False), (counted.experiment, True)):
        put(store, replace(counted, experiment=experiment), kind=COUNTERS)
        snapshot = take_snapshot(sessions(), replace(state, experiment=experiment))
        assert (snapshot.result(Counters) is not None) == is_shown
