"""The parent's side of runs: a queue, one run at a time on the device, progress, cancel.

`Session.submit` returns a Job at once. The job compiles in a compile worker, waits for its turn, and then
launches, checks and is timed in the one run worker. This process imports no torch and makes no CUDA context.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kernels import discover, records
from kernels.experiment import Experiment, resolved_gpu
from kernels.gpus import Gpu, this_gpu
from kernels.jit import HAS_TRITON
from kernels.runner import compiler, worker
from kernels.runner.interpreter import refuse_what_takes_too_long
from kernels.runner.processes import Workers, cancelled, outcome
from kernels.runner.results import Device, Failure, RunResult
from kernels.spec import ConfigError

# Failures after which a CUDA context can't be trusted: its worker is replaced.
_POISONS = {"cuda_error", "error"}


@dataclass(frozen=True)
class Progress:
    """Where a job is: its stage, or "queued" with the number of jobs before it; seconds since it began."""

    stage: str
    before: int
    seconds: float


@dataclass
class Job:
    """One run in progress."""

    experiment: Experiment
    outcome: RunResult | Failure | None = None
    stage: str = "queued"
    before: int = 0
    stages: dict[str, float] = field(default_factory=dict)
    _started: float = field(default_factory=time.perf_counter)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _future: Any = None
    _cancelled: bool = False

    def cancel(self) -> None:
        """End the work: a stage under way is killed with its worker; a place in the queue is given up."""
        with self._changed:
            self._cancelled = True
            if self._future is not None:
                self._future.cancel()
            self._changed.notify_all()

    def updates(self, every_s: float = 0.5) -> Iterator[Progress]:
        """Yield where the job is, on each change and every `every_s`, until there is an outcome."""
        while True:
            with self._changed:
                if self.outcome is not None:
                    return
                progress = Progress(self.stage, self.before, time.perf_counter() - self._started)
            yield progress
            with self._changed:
                if self.outcome is None and (self.stage, self.before) == (progress.stage, progress.before):
                    self._changed.wait(every_s)

    def result(self) -> RunResult | Failure:
        """Wait for the outcome."""
        with self._changed:
            self._changed.wait_for(lambda: self.outcome is not None)
        assert self.outcome is not None
        return self.outcome

    def _set(self, **values: Any) -> None:
        with self._changed:
            for name, value in values.items():
                setattr(self, name, value)
            self._changed.notify_all()


class _Line:
    """First come, first served: who may use the run worker, and how many are before whom."""

    def __init__(self) -> None:
        self._jobs: list[Job] = []
        self._lock = threading.Lock()

    def join(self, job: Job) -> None:
        with self._lock:
            self._jobs.append(job)
            self._tell()

    def leave(self, job: Job) -> None:
        with self._lock:
            if job in self._jobs:
                self._jobs.remove(job)
                self._tell()

    def _tell(self) -> None:
        for place, job in enumerate(self._jobs):
            job._set(before=place)

    @staticmethod
    def wait(job: Job) -> None:
        """Wait until no job is before this one, or it is cancelled."""
        with job._changed:
            job._changed.wait_for(lambda: job.before == 0 or job._cancelled)


class Session:
    """The workers of one page: compile workers, and one run worker for the device (or the interpreter)."""

    def __init__(self, gpu: Gpu | None = None, cache_directory: Path | None = None) -> None:
        self.gpu = gpu
        self.backend = "cuda" if gpu else "interpreter"
        cache = str(cache_directory or default_cache_directory() / "triton")
        self._compilers = Workers("compile", cache, count=max(1, min(4, (os.cpu_count() or 2) // 2)))
        self._runner = Workers(self.backend, cache)
        self._line = _Line()
        self._device: Device | None = None

    @classmethod
    def here(cls) -> Session:
        """A session on this machine's GPU, or on the interpreter where there is none."""
        return cls(this_gpu())

    def submit(self, experiment: Experiment) -> Job:
        """Start a run. What can't be run here is an outcome (a Failure) as well.

        "this" GPU on a machine without one means the interpreter, as if it were left out.
        """
        if experiment.gpu == "this" and self.gpu is None:
            experiment = replace(experiment, gpu="")
        job = Job(experiment)
        try:
            immediate = self._without_running(experiment)
        except ConfigError as error:
            immediate = Failure("config", error.kind, str(error), error.field)
        if immediate is not None:
            job._set(outcome=immediate)
        else:
            self._line.join(job)
            threading.Thread(target=self._carry_out, args=(job,), daemon=True).start()
        return job

    def warm_up(self) -> None:
        """Start the workers in the background, so that the first run need not wait for them."""
        if HAS_TRITON:
            self._runner.submit(worker.describe, "worker")
        if HAS_TRITON and self.gpu is not None:
            self._compilers.submit(worker.process_id, "worker")

    def close(self) -> None:
        """Kill all workers."""
        self._compilers.stop()
        self._runner.stop()

    def _without_running(self, experiment: Experiment) -> RunResult | Failure | None:
        """The recorded run of another GPU, or a Failure where this machine can't run the experiment."""
        gpu = resolved_gpu(experiment, self.gpu)
        if experiment.gpu and gpu is not self.gpu:
            recorded = records.find(experiment, gpu.name)
            here = self.gpu.name if self.gpu else "no GPU"
            return recorded or Failure(
                "config",
                "not_recorded",
                f"This machine has {here}, and no run of this experiment on {gpu.name} was recorded. "
                'Leave gpu out (or say "this") to run it here.',
                "gpu",
            )
        if not HAS_TRITON:
            return Failure(
                "worker", "no_triton", "Triton is not installed on this machine, so nothing can be run here."
            )
        if self.gpu is None:
            recorded = records.find(experiment, gpu.name)
            instead = f" Or choose gpu {gpu.name}: a run there was recorded." if recorded else ""
            kernel = discover()[experiment.kernel]
            refuse_what_takes_too_long(kernel, experiment.problem, experiment.config, instead)
        return None

    def _carry_out(self, job: Job) -> None:
        try:
            result = self._stages(job)
        except Exception as error:  # a defect of ours must still end the job
            result = Failure("worker", "error", f"{type(error).__name__}: {error}")
            self._device = None
            self._compilers.replace()
            self._runner.replace()
        self._line.leave(job)
        job._set(outcome=result)

    def _stages(self, job: Job) -> RunResult | Failure:
        if self.gpu is not None:
            compiled = self._stage(job, self._compilers, "compile", compiler.compile_for, job.experiment, self.gpu)
            if isinstance(compiled, Failure):
                return compiled
        job._set(stage="queued")
        self._line.wait(job)
        if self._device is None:
            device = self._stage(job, self._runner, "worker", worker.describe)
            if isinstance(device, Failure):
                return device
            self._device = device
        result = self._on_device(job, self._device)
        if isinstance(result, Failure):
            self._device = None
            if result.kind in _POISONS:
                self._runner.replace()
        return result

    def _on_device(self, job: Job, device: Device) -> RunResult | Failure:
        launched = self._stage(job, self._runner, "launch", worker.launch, job.experiment)
        if isinstance(launched, Failure):
            return launched
        checked = self._stage(job, self._runner, "check", worker.check)
        if isinstance(checked, Failure):
            return checked
        check, diff = checked
        result = RunResult(job.experiment, device.backend, device, check, diff, stages=job.stages)
        if device.backend == "interpreter":
            recorded = records.find(job.experiment, resolved_gpu(job.experiment, None).name)
            note = "Run by Triton's interpreter on the CPU: the result is checked, and there is no time to report."
            result = replace(result, recorded=recorded, note=note)
        elif not check.passed:
            result = replace(result, note="The result is wrong, so it was not timed.")
        else:
            timed = self._stage(job, self._runner, "time", worker.measure)
            if isinstance(timed, Failure):
                return timed
            timing, baseline, peak, clock_mhz, note = timed
            result = replace(result, timing=timing, baseline=baseline, peak=peak, clock_mhz=clock_mhz, note=note)
        self._runner.submit(worker.finish, "worker")
        return result

    def _stage(self, job: Job, workers: Workers, stage: str, function: Any, *args: Any) -> Any:
        """Run one stage of a job in a worker; cancelled jobs and dead workers give a Failure."""
        with job._changed:
            if job._cancelled:
                return cancelled(stage)
            job._future = workers.submit(function, stage, *args)
        began = time.perf_counter()
        job._set(stage=stage)
        value = outcome(job._future, stage)
        job._set(_future=None)
        job.stages[stage] = time.perf_counter() - began
        return value


def default_cache_directory() -> Path:
    """Where compiled kernels are kept between starts: TILESCOPE_CACHE, else the user's cache directory."""
    if chosen := os.environ.get("TILESCOPE_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tilescope"
