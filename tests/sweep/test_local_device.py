"""This machine as a sweep's device: the interpreter's checks, what it refuses, cancel, and a trial's parts."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from kernels import discover
from kernels.experiment import from_json
from kernels.gpus import GPUS
from kernels.measuring.session import Session
from kernels.results import Check, Failure, SweepRow
from kernels.sweep.builder import unbuilt
from kernels.sweep.device import GONE, Trial, seconds_text
from kernels.sweep.local_device import LocalDevice
from kernels.sweep.trial import contenders, wrong_text

H200 = GPUS["H200"]


def experiment(**fields):
    return from_json({"kernel": "transpose.tiled", "problem": {"M": 65, "N": 33}, **fields}, discover())


def test_the_interpreter_checks_a_config_and_takes_no_times(session):
    base = experiment()
    device = LocalDevice(session, base, H200)
    assert (device.times, device.at_once, device.refusal(base)) == (False, 1, "")
    assert device.describe().backend == "interpreter"
    outcomes = device.attempt(Trial((base,), is_checked=True))
    (found,) = outcomes.each
    assert (found.wrong, found.failure, len(found.times_ms)) == ("", None, 0)


def test_what_the_interpreter_would_take_too_long_for_is_only_predicted(session):
    base = from_json({"kernel": "matmul.grouped", "problem": {"M": 8192, "N": 8192, "K": 8192}}, discover())
    assert "The limit is about 20 s" in LocalDevice(session, base, H200).refusal(base)


def test_another_gpus_config_is_only_predicted(session):
    base = experiment(gpu="B200")
    device = LocalDevice(session, base, GPUS["B200"])
    assert "This machine has no GPU: a config for B200 is compiled and predicted" in device.refusal(base)
    assert (device.describe().backend, device.describe().name) == ("predicted", "B200")


def test_cancelling_ends_the_trial_under_way(session):
    base = from_json({"kernel": "matmul.grouped", "problem": {"M": 512, "N": 512, "K": 2048}}, discover())
    long = replace(base, config=replace(base.config, BLOCK_M=16, BLOCK_N=16, BLOCK_K=16))
    device = LocalDevice(session, base, H200)
    outcome = []
    trial = threading.Thread(target=lambda: outcome.append(device.attempt(Trial((long,), is_checked=True))))
    trial.start()
    while device._job is None or device._job.progress.stage != "check":
        time.sleep(0.02)
    time.sleep(0.5)
    device.cancel()
    trial.join(30)
    assert isinstance(outcome[0], Failure)
    assert outcome[0].kind == "cancelled"
    assert device.attempt(Trial((base,))).kind == "cancelled"


def test_a_session_that_is_closed_meanwhile_is_a_device_that_is_lost(tmp_path):
    closed = Session(None, tmp_path)
    closed.close()
    assert LocalDevice(closed, experiment(), H200).attempt(Trial((experiment(),))).kind == GONE


def test_those_that_can_not_win_are_not_timed_again_and_the_reference_always_is():
    assert contenders(np.array([5.0, 1.0, 2.0, 2.1])) == [0, 1, 2]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"nonfinite": 3}, "3 of 1,000 elements are not finite"),
        ({"mismatched": 2}, "2 of 1,000 elements are outside what is allowed; relative RMS error 0.5 (limit 0.1)"),
        ({}, "The result is wrong: relative RMS error 0.5 (limit 0.1)."),
    ],
)
def test_what_is_wrong_with_a_result_is_told_in_a_sentence(fields, said):
    right = dict(passed=False, relative_rms=0.5, tolerance=0.1, max_abs_error=1.0, max_scaled_error=1.0, mismatched=0)
    more = dict(nonfinite=0, elements=1000, worst_index=(0, 0), worst_got=1.0, worst_expected=0.0)
    assert said in wrong_text(Check(**{**right, **more, "worst_over_allowed": 1.0, **fields}))


@pytest.mark.parametrize(
    ("kind", "status"),
    [("out_of_resources", "set aside"), ("compile_error", "set aside"), ("timeout", "set aside"),
     ("worker_died", "failed"), ("error", "failed"), ("no_triton", "failed")],
)  # fmt: skip
def test_a_compile_that_says_something_of_the_config_sets_it_aside_and_others_failed(kind, status):
    row = SweepRow(experiment(), "not tried")
    ended = unbuilt(row, Failure("compile", kind, "Why."))
    assert (ended.status, ended.reason) == (status, "Why.")
    assert unbuilt(row, Failure("compile", "cancelled", "")) is None


def test_seconds_are_told_in_two_units_at_most():
    assert [seconds_text(s) for s in (0, 59.4, 60, 3599, 3600)] == [
        "0 s",
        "59 s",
        "1 min 0 s",
        "59 min 59 s",
        "1 h 0 min",
    ]
