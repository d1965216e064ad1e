"""This machine as a sweep's device: its GPU in the session's run worker; the interpreter where there is none.

A trial waits for its turn like any job, and lets the next one go before the trial after it: runs that somebody starts
on the page meanwhile wait for a batch, and not for a sweep.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar

from kernels import discover
from kernels.experiment import Experiment
from kernels.gpus import Gpu
from kernels.knobs import ConfigError
from kernels.measuring.interpreter import refuse_slow_launch
from kernels.measuring.pool import cancelled
from kernels.measuring.session import Session
from kernels.measuring.stages import Job, Stages, Stopped
from kernels.results import Device, Failure
from kernels.spec import Launch
from kernels.sweep.device import GONE, Outcomes, Trial
from kernels.sweep.trial import attempted

V = TypeVar("V")

# Configs that are timed in turns: a stream holds about a thousand launches and events before it starts.
AT_ONCE = 15


class LocalDevice:
    """A `TrialDevice` on the machine of a session.

    Args:
        base: the experiment that configs are of.
        gpu: that the experiment is for.
    """

    where = ""

    def __init__(self, session: Session, base: Experiment, gpu: Gpu) -> None:
        self._session, self._base, self.gpu = session, base, gpu
        self.times = session.gpu is not None and gpu == session.gpu and not session.zero_gpu
        self._interprets = session.gpu is None and base.gpu in ("", "this")
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
        if self._session.zero_gpu and self.gpu == self._session.gpu:
            return "This GPU is lent for one run at a time: a sweep's configs are compiled and predicted, and not run."
        if not self._interprets:
            here = self._session.gpu.name if self._session.gpu else "no GPU"
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
        stages = Stages(job, self._session, self.gpu)
        failure: Failure | None = None
        try:
            return work(stages)
        except Stopped as stopped:
            failure = stopped.failure
        finally:
            self._job = None
            stages.end(failure)
        if self._is_cancelled:
            return dataclasses.replace(failure, kind="cancelled")
        return dataclasses.replace(failure, kind=GONE) if self._session.runner.is_closed else failure

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
