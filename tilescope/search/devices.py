"""The device that carries out a sweep's trials, and the compile of a config before its trial."""

import dataclasses
import os
from collections.abc import Callable
from typing import Protocol, TypeVar

from tilescope.compiling.compiler import compile_experiment
from tilescope.compiling.inspection import predict_experiment
from tilescope.declare.experiment import Experiment, launch_of
from tilescope.declare.gpus import Gpu
from tilescope.declare.spec import explain_slow_launch
from tilescope.measure.measurement import Job
from tilescope.measure.pool import cancellation
from tilescope.measure.session import Session
from tilescope.results import Device, Failure
from tilescope.search.search import ConfigBuild, ConfigTrial, Outcomes
from tilescope.search.trial import run_trial

V = TypeVar("V")

# Failure kind of a permanently lost device, which ends the sweep.
DEVICE_LOST = "device_gone"

# Each compile process uses hundreds of megabytes.
_MAX_COMPILES = 64


class TrialDevice(Protocol):
    """Checks and times configs on this machine's GPU, or checks them in the interpreter.

    Attributes:
        gpu: the device's GPU; without one, the GPU that predictions are for.
        takes_times: whether configs are timed; otherwise they are only checked, or not run at all.
    """

    gpu: Gpu
    takes_times: bool

    def describe(self) -> Device | Failure:
        """Return the device's name and versions; start its worker if needed."""

    def refusal(self, experiment: Experiment) -> str:
        """Return why this device can't check a config, as a sentence; "" if it can."""

    def attempt(self, trial: ConfigTrial) -> Outcomes | Failure:
        """Carry out a trial, and wait for it. A Failure, such as a dead worker, concerns all configs of the trial."""

    def cancel(self) -> None:
        """Kill the current trial: its `attempt` returns a Failure."""


def concurrent_compiles() -> int:
    """Return the number of a sweep's compile workers: one per usable core, except one core for the timing."""
    if hasattr(os, "sched_getaffinity"):
        usable = len(os.sched_getaffinity(0))
    else:  # macOS
        usable = os.cpu_count() or 1
    return max(1, min(_MAX_COMPILES, usable - 1))


def build(experiment: Experiment, gpu: Gpu, predicts: bool) -> ConfigBuild | Failure:
    """Compile into the cache that the run worker uses. Runs in a compile worker.

    Args:
        predicts: also predict the kernel's time, which takes as long as the compile.
    """
    if isinstance(compiled := compile_experiment(experiment, gpu), Failure):
        return compiled
    return ConfigBuild(
        compiled.registers,
        compiled.spilled_bytes,
        compiled.shared_bytes,
        compiled.seconds,
        predict_experiment(experiment, gpu) if predicts else None,
    )


class LocalDevice:
    """A `TrialDevice` on a session's machine: the GPU, or the interpreter if there is none.

    Each trial is a job in the run worker's queue, so a run on the page waits for one trial, not for the whole sweep.

    Args:
        base: the experiment of the sweep's space.
        gpu: the GPU that the experiment is for.
    """

    def __init__(self, session: Session, base: Experiment, gpu: Gpu) -> None:
        self._session = session
        self._base = base
        self.gpu = gpu
        self.takes_times = session.gpu is not None and gpu == session.gpu and not session.zero_gpu
        self._interprets = session.gpu is None and base.gpu in ("", "this") and not base.is_case
        self._job: Job | None = None
        self._is_cancelled = False

    def describe(self) -> Device | Failure:
        if not (self.takes_times or self._interprets):
            return Device("predicted", self.gpu.name, torch="", triton="")
        return self._run(Job.device)

    def refusal(self, experiment: Experiment) -> str:
        if self.takes_times:
            return ""
        if self._session.zero_gpu and self.gpu == self._session.gpu:
            return "ZeroGPU lends this GPU for one run at a time: a sweep only compiles and predicts configs."
        if not self._interprets:
            here = self._session.gpu.name if self._session.gpu else "no GPU"
            return f"This machine has {here}: configs for {self.gpu.name} are only compiled and predicted."
        return explain_slow_launch(*launch_of(experiment, self.gpu))

    def attempt(self, trial: ConfigTrial) -> Outcomes | Failure:
        stage = "time" if self.takes_times else "check"
        return self._run(lambda job: job.work(stage, run_trial, trial, self.gpu))

    def _run(self, work: Callable[[Job], V]) -> V | Failure:
        """Wait for the run worker, call it, and free it for the next job."""
        self._job = job = Job(self._session, self._base, "sweep")
        if self._is_cancelled:  # `cancel` came before the job existed
            return cancellation("time")
        result = job.run(work)
        self._job = None
        if isinstance(result, Failure) and self._is_cancelled:
            return dataclasses.replace(result, kind="cancelled")
        if isinstance(result, Failure) and self._session.runner.is_closed:
            return dataclasses.replace(result, kind=DEVICE_LOST)
        return result

    def cancel(self) -> None:
        self._is_cancelled = True
        if (job := self._job) is not None:
            job.cancel()
