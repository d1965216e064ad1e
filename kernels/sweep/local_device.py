"""This machine as a sweep's device: its GPU in the session's run worker; the interpreter where there is none.

A trial waits for its turn like any job, and lets the next one go before the trial after it: runs that somebody starts
on the page meanwhile wait for a batch, and not for a sweep.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from kernels import discover
from kernels.experiment import Experiment
from kernels.gpus import Gpu
from kernels.knobs import ConfigError
from kernels.measuring.interpreter import refuse_slow_launch
from kernels.measuring.job import Job
from kernels.measuring.processes import cancelled
from kernels.measuring.stages import Machine, Stages, Stopped
from kernels.results import Device, Failure
from kernels.spec import Launch
from kernels.sweep.device import GONE, Outcomes, Trial
from kernels.sweep.trial import attempted

V = TypeVar("V")

# Configs that are timed in turns: a stream holds about a thousand launches and events before it starts.
AT_ONCE = 15


class LocalDevice:
    """A `TrialDevice` on a session's machine.

    Args:
        base: the experiment that configs are of.
        gpu: that the experiment is for.
    """

    where = ""

    def __init__(self, machine: Machine, base: Experiment, gpu: Gpu) -> None:
        self._machine, self._base, self.gpu = machine, base, gpu
        self._is_lent = machine.runner.is_leased
        self.times = machine.gpu is not None and gpu == machine.gpu and not self._is_lent
        self._interprets = machine.gpu is None and base.gpu in ("", "this")
        self.at_once = AT_ONCE if self.times else 1
        self._job: Job | None = None
        self._is_cancelled = False

    def describe(self) -> Device | Failure:
        """What the run worker runs on; where configs are only predicted, the GPU that they are predicted for."""
        if not (self.times or self._interprets):
            return Device("predicted", self.gpu.name, torch="", triton="")
        return self._in_turn(lambda stages: stages.device())

    def refusal(self, experiment: Experiment) -> str:
        """That this machine has another GPU or none, or that the interpreter takes too long."""
        if self.times:
            return ""
        if self._is_lent and self.gpu == self._machine.gpu:
            return "This GPU is lent for one run at a time: a sweep's configs are compiled and predicted, and not run."
        if not self._interprets:
            here = self._machine.gpu.name if self._machine.gpu else "no GPU"
            return f"This machine has {here}: a config for {self.gpu.name} is compiled and predicted, and not run."
        return too_slow(experiment, self.gpu)

    def attempt(self, trial: Trial) -> Outcomes | Failure:
        """Carry out a trial in the run worker."""
        stage = "time" if self.times else "check"
        return self._in_turn(lambda stages: stages.work(stage, attempted, trial, self.gpu))

    def _in_turn(self, work: Callable[[Stages], V]) -> V | Failure:
        """Call the run worker when this machine is free, and leave it to the next job."""
        if self._is_cancelled:
            return cancelled("time")
        job = Job(self._base, "sweep")
        self._job = job
        stages = Stages(job, self._machine, self.gpu)
        failure: Failure | None = None
        try:
            return work(stages)
        except Stopped as stopped:
            failure = stopped.failure
        except RuntimeError as closed:
            failure = Failure("worker", GONE, str(closed))
        finally:
            self._job = None
            with suppress(RuntimeError):  # the session was closed meanwhile
                stages.end(failure)
        return dataclasses.replace(failure, kind="cancelled") if self._is_cancelled else failure

    def cancel(self) -> None:
        """End the trial under way, with its worker."""
        self._is_cancelled = True
        if self._job is not None:
            self._job.cancel()

    def close(self) -> None:
        """Nothing: the machine is the session's."""


def too_slow(experiment: Experiment, gpu: Gpu) -> str:
    """That the interpreter takes too long, as a sentence; "" where it does not."""
    launch = Launch(experiment.problem, experiment.config, gpu)
    try:
        refuse_slow_launch(discover()[experiment.kernel], launch)
    except ConfigError as error:
        return str(error)
    return ""
