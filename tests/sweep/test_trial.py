"""A trial as the run worker carries it out on a GPU, with launches and a stream that make their times up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from fakes import grid

from kernels.measuring.timing import Effort
from kernels.results import Check, Failure
from kernels.sweep import trial as trials
from kernels.sweep.device import Trial

FAST, SLOW, WRONG, REFUSED, DEADLY = grid({"BLOCK_M": [16, 32, 64, 128, 256]}).experiments
MS = {FAST: 1.0, SLOW: 5.0, WRONG: 0.1, REFUSED: 0.1, DEADLY: 0.1}
RIGHT = Check(True, 0, 0, 0, 0, 0, 0, 1000, (0, 0), 0, 0, 0)


@dataclass
class Launches:
    """What `prepare` makes: launches of a config with a known time."""

    experiment: Any
    output: Any
    kernel: Any
    allowance: Any = None

    def launch(self):
        if self.experiment == REFUSED:
            raise ValueError("Too many resources.\nAnd more.")
        if self.experiment == DEADLY:
            raise torch.AcceleratorError("an illegal memory access")
        LAUNCHED.append(self.experiment)

    def ready(self):
        return self.experiment

    def check(self):
        assert torch.isnan(self.output).all(), "it was not poisoned"
        return replace(RIGHT, passed=self.experiment != WRONG, mismatched=int(self.experiment == WRONG)), None


LAUNCHED: list[Any] = []
STREAMS: list[Any] = []


class Stream:
    """In place of a held stream: each turn is slower than the one before, for all calls alike."""

    launches_per_sample, driver_note = 1, ""

    def __init__(self, calls, l2, timer):
        assert (l2, timer) == ("warm", "events")
        self.calls, self.turns, self.most_turns = calls, 0, 2
        STREAMS.append(calls)

    def batch(self, turns):
        assert 0 < turns <= self.most_turns, "a stream holds no more"
        slower = 1 + 0.01 * np.arange(self.turns, self.turns + turns)
        self.turns += turns
        times_ms = np.array([[MS.get(call, 2.0)] for call in self.calls]) * slower
        return type("Batch", (), {"times_ms": times_ms, "clock_mhz": 1.0, "driver_mhz": None, "limits": ()})


@pytest.fixture(autouse=True)
def made_up(monkeypatch):
    """No GPU: launches, the stream, the library and the wait are made up."""
    LAUNCHED.clear()
    STREAMS.clear()
    kernel = type("Kernel", (), {"zeroed_output": False, "family": None})
    monkeypatch.setattr(trials, "prepare", lambda one, gpu: Launches(one, torch.zeros(4), kernel))
    monkeypatch.setattr(trials, "GatedStream", Stream)
    monkeypatch.setattr(trials, "interprets", lambda: False)
    monkeypatch.setattr(trials, "_library", lambda first: {"torch.matmul": "the library"})
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


def attempted(*experiments, **fields):
    return trials.attempted(Trial(experiments, **fields), None)


class Writing(Launches):
    """A launch that writes what RESULTS says, and notes each check."""

    def launch(self):
        assert torch.isnan(self.output).all(), "it was not poisoned"
        self.output.fill_(RESULTS[self.experiment][0])

    @property
    def allowance(self):
        return RESULTS[self.experiment][1]

    @allowance.setter
    def allowance(self, _):
        """As the field's default sets it."""

    def check(self):
        CHECKED.append(self.experiment)
        return replace(RIGHT, passed=self.experiment != WRONG), None


RESULTS = {FAST: (1.0, "a"), SLOW: (1.0, "a"), WRONG: (7.0, "a"), REFUSED: (1.0, "b"), DEADLY: (1.1, "a")}
CHECKED: list[Any] = []


def test_what_equals_a_right_output_bit_for_bit_is_right_where_as_much_is_allowed(monkeypatch):
    kernel = type("Kernel", (), {"zeroed_output": False, "family": None})
    output = torch.zeros(4)
    monkeypatch.setattr(trials, "prepare", lambda one, gpu: Writing(one, output, kernel))
    found = attempted(WRONG, FAST, SLOW, REFUSED, DEADLY, WRONG, SLOW, is_checked=True).each
    assert CHECKED == [WRONG, FAST, REFUSED, DEADLY, WRONG]
    assert [bool(one.wrong) for one in found] == [True, False, False, False, False, True, False]


def test_the_first_right_one_becomes_the_reference_and_a_wrong_one_has_no_times():
    wrong, fast = attempted(WRONG, FAST, is_checked=True, turns=10).each
    assert wrong.wrong.startswith("The result is wrong: 1 of 1,000 elements")
    assert len(wrong.times_ms) == 0
    assert len(fast.times_ms) == 10
    assert (fast.times_ms == fast.reference_ms).all()
    assert STREAMS[-1] == [FAST]


def test_a_given_reference_is_timed_in_each_turn_and_is_no_outcome():
    (fast,) = attempted(FAST, reference=SLOW, turns=7).each
    assert STREAMS[-1] == [SLOW, FAST]
    assert np.allclose(fast.times_ms / fast.reference_ms, 1 / 5)
    assert len(fast.times_ms) == 7


def test_one_that_can_not_win_keeps_its_one_sample_with_the_references_of_that_turn():
    fast, slow = attempted(FAST, SLOW, turns=10).each
    assert STREAMS[-1] == [FAST]
    assert slow.times_ms.tolist() == [5.0]
    assert slow.reference_ms.tolist() == [1.0]
    assert len(fast.times_ms) == 10


def test_many_turns_are_queued_in_parts():
    several = grid({"BLOCK_M": [16], "num_warps": [4], "GROUP_SIZE": list(range(5, 20))}).experiments
    found = attempted(*several, reference=FAST, turns=160)
    assert {len(one.times_ms) for one in found.each} == {160}
    assert all(np.allclose(one.times_ms / one.reference_ms, 2.0) for one in found.each)


def test_finalists_are_timed_until_known_beside_the_library_however_slow_they_are():
    effort = Effort(half_width=0.001, fewest=40, most=60, least_ms=1.0, most_s=1.0, warm_s=0.0)
    found = attempted(FAST, SLOW, effort=effort, with_library=True)
    fast, slow = found.each
    assert len(fast.times_ms) == len(slow.times_ms) >= 40
    ((name, library_ms),) = found.baselines
    assert name == "torch.matmul"
    assert np.allclose(library_ms / fast.times_ms, 2.0)


def test_one_that_can_not_be_launched_fails_alone():
    refused, fast = attempted(REFUSED, FAST, is_checked=True).each
    assert refused.failure.kind == "error"
    assert refused.failure.message == "It could not be launched: ValueError: Too many resources."
    assert len(fast.times_ms) == 10


def test_an_error_of_the_device_fails_all():
    found = attempted(FAST, DEADLY, is_checked=True)
    assert isinstance(found, Failure)
    assert (found.stage, found.kind) == ("time", "cuda_error")


def test_where_none_is_right_nothing_is_timed():
    (wrong,) = attempted(WRONG, is_checked=True).each
    assert wrong.wrong
    assert STREAMS == []


def test_what_is_not_checked_is_launched_once_before_it_is_timed():
    attempted(FAST, SLOW)
    assert LAUNCHED == [FAST, SLOW]
