"""This machine as a sweep's device: the interpreter's checks, what it refuses, cancel, and a trial's parts."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from fakes import FakeBuilder, grid, swept

from kernels.experiment import from_json
from kernels.gpus import GPUS
from kernels.measuring.session import Session
from kernels.results import Check, Failure, Strategy
from kernels.sweep.devices import DEVICE_LOST, LocalDevice
from kernels.sweep.search import Trial
from kernels.sweep.trial import describe_wrong_result

H200 = GPUS["H200"]


def experiment(**fields):
    return from_json({"kernel": "transpose.tiled", "problem": {"M": 65, "N": 33}, **fields})


def test_the_interpreter_checks_a_config_and_takes_no_times(session):
    base = experiment()
    device = LocalDevice(session, base, H200)
    assert (device.takes_times, device.refusal(base)) == (False, "")
    assert device.describe().backend == "interpreter"
    outcomes = device.attempt(Trial((base,), phase="explore"))
    (found,) = outcomes.each
    assert (found.status, len(found.times_ms)) == ("checked", 0)


def test_what_the_interpreter_would_take_too_long_for_is_only_predicted(session):
    base = from_json({"kernel": "matmul.grouped", "problem": {"M": 8192, "N": 8192, "K": 8192}})
    assert "The limit is about 20 s" in LocalDevice(session, base, H200).refusal(base)


def test_another_gpus_config_is_only_predicted(session):
    base = experiment(gpu="B200")
    device = LocalDevice(session, base, GPUS["B200"])
    assert "This machine has no GPU: configs for B200 are compiled and predicted" in device.refusal(base)
    assert (device.describe().backend, device.describe().name) == ("predicted", "B200")


def test_cancelling_kills_the_current_trial(session):
    base = from_json({"kernel": "matmul.grouped", "problem": {"M": 512, "N": 512, "K": 2048}})
    long = replace(base, config=replace(base.config, BLOCK_M=16, BLOCK_N=16, BLOCK_K=16))
    device = LocalDevice(session, base, H200)
    device.describe()  # the worker has started
    threading.Timer(0.5, device.cancel).start()
    outcome = device.attempt(Trial((long,), phase="explore"))
    assert isinstance(outcome, Failure)
    assert outcome.kind == "cancelled"
    assert device.attempt(Trial((base,))).kind == "cancelled"


def test_a_session_that_is_closed_meanwhile_is_a_device_that_is_lost(tmp_path):
    closed = Session(None, tmp_path)
    closed.close()
    assert LocalDevice(closed, experiment(), H200).attempt(Trial((experiment(),))).kind == DEVICE_LOST


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"nonfinite": 3}, "3 of 1,000 elements are not finite"),
        ({"mismatched": 2}, "2 of 1,000 elements are outside the allowed error; relative RMS error 0.5 (limit 0.1)"),
        ({}, "The result is wrong: relative RMS error 0.5 (limit 0.1)."),
    ],
)
def test_what_is_wrong_with_a_result_is_told_in_a_sentence(fields, said):
    right = dict(passed=False, relative_rms=0.5, tolerance=0.1, max_abs_error=1.0, max_scaled_error=1.0, mismatched=0)
    more = dict(nonfinite=0, elements=1000, worst_index=(0, 0), worst_got=1.0, worst_expected=0.0)
    assert said in describe_wrong_result(Check(**{**right, **more, "worst_over_allowed": 1.0, **fields}))


@pytest.mark.parametrize(
    ("kind", "status"),
    [("out_of_resources", "set aside"), ("compile_error", "set aside"), ("timeout", "set aside"),
     ("worker_died", "failed"), ("error", "failed"), ("no_triton", "failed")],
)  # fmt: skip
def test_a_compile_failure_due_to_the_config_sets_it_aside_and_others_fail_it(kind, status):
    failure = Failure("compile", kind, "Why.")
    within = grid({"BLOCK_M": [16, 32, 64]})
    builder = FakeBuilder(failures=lambda experiment: failure if experiment == within.experiments[1] else None)
    rows = swept(Strategy("grid"), within=within, builder=builder).rows
    assert [row.status for row in rows] == ["timed", status, "timed"]
    assert rows[1].reason == "Why."
