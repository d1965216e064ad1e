"""A trial with launches and a stream of known times, as the run worker carries it out on a GPU."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from fakes import grid

from tests.tilescope.measure.test_timing import Stream
from tilescope.results.sweep import ConfigTrial
from tilescope.search.trial import carry_out

FAST, SLOW, WRONG, REFUSED, DEADLY = grid({"BLOCK_M": [16, 32, 64, 128, 256]}).experiments
MS = {FAST: 1.0, SLOW: 5.0, WRONG: 0.1, REFUSED: 0.1, DEADLY: 0.1}


@dataclass
class Launches:
    """A prepared launch of one config: the value that it writes, and its allowed error."""

    experiment: Any
    log: Any
    output: Any
    writes: float = 1.0
    allowance: Any = None

    def launch(self):
        if self.experiment == REFUSED:
            raise ValueError("Too many resources.\nAnd more.")
        if self.experiment == DEADLY:
            raise torch.AcceleratorError("an illegal memory access")
        self.log.launched.append((self.experiment, bool(torch.isnan(self.output).all())))
        self.output.fill_(self.writes)

    def bind(self):
        return self.experiment

    def poison(self):
        self.output.fill_(float("nan"))

    @property
    def outputs(self):
        return [self.output]

    def explain_wrong(self):
        self.log.checked.append(self.experiment)
        return "The result is wrong." if self.experiment == WRONG else ""


class Log:
    """Runs trials, and logs launches, checks and timed calls."""

    def __init__(self):
        self.launched = []
        self.checked = []
        self.timed = []
        self.output = torch.zeros(4)

    def run(self, *experiments, writes=None, allowed=None, **fields):
        def prepare(experiment):
            return Launches(
                experiment,
                self,
                self.output,
                (writes or {}).get(experiment, 1.0),
                (allowed or {}).get(experiment),
            )

        trial = ConfigTrial(experiments, **fields)
        library = {"torch.matmul": "the library"} if trial.phase == "final" else {}
        return carry_out(trial, prepare, library, self.stream)

    def stream(self, calls):
        self.timed.append(list(calls))
        return Stream([MS.get(call, 2.0) for call in calls], drift=1.01, most_turns=2)


@pytest.fixture
def log():
    return Log()


def test_an_output_equal_to_a_correct_one_needs_no_check_where_the_same_error_is_allowed(log):
    writes = {WRONG: 7.0, SLOW: 1.0}
    found = log.run(
        WRONG, FAST, SLOW, WRONG, writes=writes, allowed={FAST: "a", SLOW: "a"}, phase="explore"
    ).each
    assert log.checked == [WRONG, FAST, WRONG]
    assert [outcome.status for outcome in found] == ["wrong", "timed", "timed", "wrong"]
    other = Log()
    other.run(FAST, SLOW, allowed={FAST: "a", SLOW: "b"}, phase="explore")
    assert other.checked == [FAST, SLOW]
    differs = Log()
    differs.run(FAST, SLOW, writes={SLOW: 1.1}, phase="explore")
    assert differs.checked == [FAST, SLOW]


def test_each_checked_launch_writes_on_a_poisoned_output(log):
    log.run(FAST, WRONG, SLOW, phase="explore")
    assert log.launched == [(FAST, True), (WRONG, True), (SLOW, True)]


def test_a_given_reference_is_timed_in_each_turn_and_is_no_outcome(log):
    (fast,) = log.run(FAST, reference=SLOW, turns=7).each
    assert log.timed[-1] == [SLOW, FAST]
    assert np.allclose(fast.times_ms / fast.reference_ms, 1 / 5)
    assert len(fast.times_ms) == 7


def test_a_hopeless_config_keeps_its_first_sample_beside_the_reference_of_that_turn(log):
    fast, slow = log.run(FAST, SLOW, turns=10).each
    assert log.timed[-1] == [FAST]
    assert slow.times_ms.tolist() == [5.0]
    assert slow.reference_ms.tolist() == [1.0]
    assert len(fast.times_ms) == 10


def test_many_turns_are_queued_in_batches(log):
    experiments = grid({"BLOCK_M": [16], "GROUP_SIZE": list(range(5, 20))}).experiments
    found = log.run(*experiments, reference=FAST, turns=160)
    assert {len(outcome.times_ms) for outcome in found.each} == {160}
    assert all(np.allclose(outcome.times_ms / outcome.reference_ms, 2.0) for outcome in found.each)


def test_finalists_are_timed_until_known_beside_the_library_even_if_slow(log):
    found = log.run(FAST, SLOW, phase="final")
    fast, slow = found.each
    assert len(fast.times_ms) == len(slow.times_ms) >= 40
    ((name, library_ms),) = found.baselines
    assert name == "torch.matmul"
    assert np.allclose(library_ms / fast.times_ms, 2.0)


def test_a_config_that_cannot_be_launched_fails_alone(log):
    refused, fast = log.run(REFUSED, FAST, phase="explore").each
    assert refused.status == "failed"
    assert refused.reason == "It could not be launched: ValueError: Too many resources."
    assert len(fast.times_ms) == 10


def test_a_device_error_fails_the_whole_trial(log):
    with pytest.raises(torch.AcceleratorError):
        log.run(FAST, DEADLY, phase="explore")


def test_nothing_is_timed_if_every_result_is_wrong(log):
    (wrong,) = log.run(WRONG, phase="explore").each
    assert wrong.status == "wrong"
    assert log.timed == []


def test_unchecked_configs_are_launched_once_before_they_are_timed(log):
    log.run(FAST, SLOW)
    assert [experiment for experiment, _ in log.launched] == [FAST, SLOW]
