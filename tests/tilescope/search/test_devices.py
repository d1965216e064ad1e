"""This machine as a sweep's device and builder: real compiles, the interpreter's checks, refusals and cancelling."""

import threading
from dataclasses import replace

import pytest
from fakes import GPU

from tests.experiments import experiment_of
from tilescope.declare.experiment import from_json
from tilescope.measure.fair_queue import Call
from tilescope.measure.run import describe_wrong_result
from tilescope.measure.session import Session
from tilescope.results import Check
from tilescope.results.sweep import ConfigTrial
from tilescope.search.cases import build
from tilescope.search.trial import DEVICE_LOST, LocalDevice

SMALL = experiment_of("transpose.tiled M=65 N=33")
LARGE = experiment_of("matmul.grouped M=8192 N=8192 K=8192")


def test_a_build_has_the_compilers_figures(session):
    call = Call("compile", build, (SMALL, GPU))
    built = session.compilers.submit(call).result(100)
    assert built.registers > 16
    assert built.shared_bytes > 0
    assert built.predicted.ms > 0


def test_the_interpreter_checks_a_config_and_takes_no_times(session):
    device = LocalDevice(session, SMALL)
    assert not device.takes_times
    assert device.refusal(SMALL) == ""
    assert device.describe().backend == "interpreter"
    (outcome,) = device.attempt(ConfigTrial((SMALL,), phase="explore")).each
    assert outcome.status == "checked"
    assert len(outcome.times_ms) == 0


@pytest.mark.parametrize(
    ("experiment", "backend", "reason"),
    [
        (LARGE, "interpreter", "The limit is about 20 s"),
        (
            replace(SMALL, gpu="B200"),
            "predicted",
            "This machine has no GPU: configs for B200 are only compiled",
        ),
    ],
    ids=["too slow for the interpreter", "another GPU"],
)
def test_a_config_that_cannot_be_checked_is_only_predicted(session, experiment, backend, reason):
    device = LocalDevice(session, experiment)
    assert device.describe().backend == backend
    assert reason in device.refusal(experiment)


def test_cancelling_kills_the_current_trial(session):
    tiles = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16}
    long = from_json(
        {"kernel": "matmul.grouped", "problem": {"M": 512, "N": 512, "K": 2048}, "config": tiles}
    )
    device = LocalDevice(session, long)
    device.describe()  # starts the worker
    threading.Timer(0.5, device.cancel).start()
    assert device.attempt(ConfigTrial((long,), phase="explore")).kind == "cancelled"
    assert device.attempt(ConfigTrial((long,))).kind == "cancelled"


def test_the_device_of_a_closed_session_is_lost(tmp_path):
    closed = Session(None, tmp_path)
    closed.close()
    assert LocalDevice(closed, SMALL).attempt(ConfigTrial((SMALL,))).kind == DEVICE_LOST


@pytest.mark.parametrize(
    ("mismatched", "nonfinite", "message"),
    [
        (0, 3, "3 of 1,000 elements are not finite"),
        (
            2,
            0,
            "2 of 1,000 elements are outside the allowed error; relative RMS error 0.5 (limit 0.1)",
        ),
        (0, 0, "The result is wrong: relative RMS error 0.5 (limit 0.1)."),
    ],
)
def test_a_wrong_result_is_described_in_a_sentence(mismatched, nonfinite, message):
    check = Check(False, 0.5, 0.1, 1.0, 1.0, mismatched, nonfinite, 1000, (0, 0), 1.0, 0.0, 1.0)
    assert message in describe_wrong_result(check)
