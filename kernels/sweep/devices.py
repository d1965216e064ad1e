"""A builder, which compiles a sweep's configs ahead, and devices, which carry out its trials."""

import dataclasses
import os
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, TypeVar

from kernels.accesses import CompiledFacts
from kernels.compiling.compiler import compile_experiment
from kernels.experiment import Experiment, launch_of
from kernels.gpus import Gpu
from kernels.jit import HAS_TRITON
from kernels.knobs import ConfigError
from kernels.measuring.fair_queue import Call
from kernels.measuring.interpreter import explain_slow_launch
from kernels.measuring.measurement import Job, Stages
from kernels.measuring.pool import Pool, Stopped, cancellation
from kernels.measuring.session import Session
from kernels.results import Device, Failure, Prediction
from kernels.spec import Kernel, Launch
from kernels.sweep.search import Build, Outcomes, Trial
from kernels.sweep.trial import run_trial

V = TypeVar("V")

# A model: kernel, launch and its compiled facts (None before the compile) → the predicted time of one launch.
Predict = Callable[[Kernel, Launch, CompiledFacts | None], Prediction | None]

# Failure kind of a permanently lost device: other devices take over its configs.
DEVICE_LOST = "device_gone"

# Each compile process uses hundreds of megabytes.
_MAX_COMPILES = 64


class TrialDevice(Protocol):
    """Checks and times configs on a GPU of this machine or of a Dask worker, or checks them in the interpreter.

    Attributes:
        gpu: the device's GPU; without one, the GPU that predictions are for.
        where: host and number if a sweep has several devices, else "".
        takes_times: whether configs are timed; otherwise they are only checked, or not run at all.
    """

    gpu: Gpu
    where: str
    takes_times: bool

    def describe(self) -> Device | Failure:
        """Return the device's name and versions; start its worker if needed."""

    def refusal(self, experiment: Experiment) -> str:
        """Return why this device can't check a config, as a sentence; "" if it can."""

    def attempt(self, trial: Trial) -> Outcomes | Failure:
        """Carry out a trial, and wait for it. A Failure, such as a dead worker, concerns all configs of the trial."""

    def cancel(self) -> None:
        """Kill the current trial: its `attempt` returns a Failure."""


def concurrent_compiles() -> int:
    """Return the number of compile workers of a sweep: one per usable core, except one for the timing."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1  # macOS
    return max(1, min(_MAX_COMPILES, usable - 1))


def build(experiment: Experiment, gpu: Gpu, predict: Predict) -> Build | Failure:
    """Compile into the shared cache, and predict the compiled kernel's time. Runs in a compile worker."""
    if isinstance(compiled := compile_experiment(experiment, gpu), Failure):
        return compiled
    try:
        predicted = predict(*launch_of(experiment, gpu), compiled)
    except ConfigError:  # too many tiles for the model
        predicted = None
    return Build(compiled.registers, compiled.spilled_bytes, compiled.shared_bytes, compiled.seconds, predicted)


class Builder:
    """Compiles configs in worker processes, into the cache that the run worker uses.

    Args:
        predict: a module-level function, because workers import it by name.
        cache: directory of compiled kernels.

    Raises:
        ConfigError: Triton is not installed.
    """

    def __init__(self, gpu: Gpu, predict: Predict, cache: str) -> None:
        if not HAS_TRITON:
            raise ConfigError("no_triton", "Triton is not installed on this machine, so a sweep can't compile.")
        self._gpu, self._predict = gpu, predict
        self.max_concurrency = concurrent_compiles()
        self._pool = Pool("compile", cache, self.max_concurrency)

    def submit(self, experiment: Experiment) -> Future[Build | Failure]:
        return self._pool.submit(Call("compile", build, (experiment, self._gpu, self._predict)))

    def close(self) -> None:
        self._pool.close()


class LocalDevice:
    """A `TrialDevice` on a session's machine: the GPU, or the interpreter if there is none.

    Each trial is a job in the run worker's queue, so a run on the page waits for one trial and not for the whole sweep.

    Args:
        base: the experiment of the sweep's space.
        gpu: the GPU that the experiment is for.
    """

    where = ""

    def __init__(self, session: Session, base: Experiment, gpu: Gpu) -> None:
        self._session, self._base, self.gpu = session, base, gpu
        self.takes_times = session.gpu is not None and gpu == session.gpu and not session.zero_gpu
        self._interprets = session.gpu is None and base.gpu in ("", "this")
        self._job: Job | None = None
        self._is_cancelled = False

    def describe(self) -> Device | Failure:
        if not (self.takes_times or self._interprets):
            return Device("predicted", self.gpu.name, torch="", triton="")
        return self._run(lambda stages: stages.device())

    def refusal(self, experiment: Experiment) -> str:
        if self.takes_times:
            return ""
        if self._session.zero_gpu and self.gpu == self._session.gpu:
            return "ZeroGPU lends this GPU for one run at a time: a sweep only compiles and predicts configs."
        if not self._interprets:
            here = self._session.gpu.name if self._session.gpu else "no GPU"
            return f"This machine has {here}: configs for {self.gpu.name} are only compiled and predicted."
        return explain_slow_launch(*launch_of(experiment, self.gpu))

    def attempt(self, trial: Trial) -> Outcomes | Failure:
        stage = "time" if self.takes_times else "check"
        return self._run(lambda stages: stages.work(stage, run_trial, trial, self.gpu))

    def _run(self, work: Callable[[Stages], V]) -> V | Failure:
        """Wait for the run worker, call it, and free it for the next job."""
        self._job = job = Job(self._base, "sweep")
        if self._is_cancelled:  # otherwise `cancel` finds the job
            return cancellation("time")
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
        return dataclasses.replace(failure, kind=DEVICE_LOST) if self._session.runner.is_closed else failure

    def cancel(self) -> None:
        self._is_cancelled = True
        if (job := self._job) is not None:
            job.cancel()
