"""The stages of one job on a machine: compile, wait for the GPU, work in the run worker, count.

A stage that fails, and a job that is cancelled, unwind a measurement by `Stopped`, so that it reads as if nothing went
wrong. Which failures cost the run worker is decided here, for all measurements.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from kernels import discover
from kernels.compiling import compiler
from kernels.compiling.compile_cost import QUICK_COMPILE_S, compile_seconds
from kernels.experiment import Experiment
from kernels.gpus import Gpu
from kernels.measuring import worker
from kernels.measuring.compiles import Compiles, refused_compile, waited_for
from kernels.measuring.job import Job, RunQueue
from kernels.measuring.leased import LeasedCall, LeasedWorkers, Lend
from kernels.measuring.ncu import CountingFailed
from kernels.measuring.processes import Call, Workers, cancelled, died, outcome
from kernels.measuring.turns import Shared
from kernels.results import Compiled, Device, Failure
from kernels.spec import Launch

V = TypeVar("V")

# Failures after which a CUDA context can't be trusted: its worker is replaced.
_POISONS = {"cuda_error", "error"}

# Compiles of one job that are under way at once.
_SEVERAL = 4


class Machine:
    """What the jobs of a session share: compile workers, one run worker for the device, and the line for it.

    Args:
        lend: where a GPU is lent for a call at a time: how.

    Attributes:
        gpu: this machine's; None where Triton's interpreter runs the kernels.
        device: what the run worker runs on, once it has said so.
    """

    runner: Workers | LeasedWorkers

    def __init__(self, gpu: Gpu | None, cache: Path, lend: Lend | None = None) -> None:
        self.gpu = gpu
        self.backend = "cuda" if gpu else "interpreter"
        self.cache = str(cache)
        self.compilers = Shared(
            lambda: Workers("compile", self.cache),
            count=max(2, min(4, (os.cpu_count() or 2) // 2)),
            quick_s=QUICK_COMPILE_S,
            what="compiles",
        )
        self.compiles = Compiles(self.compilers)
        self.runner = LeasedWorkers(lend, self.cache) if lend else Workers(self.backend, self.cache)
        self.queue = RunQueue()
        self.device: Device | None = None

    def close(self) -> None:
        """Kill all workers."""
        self.compilers.close()
        self.runner.close()


class Stopped(Exception):
    """A stage failed, or the job was cancelled: why there is no result."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Stages:
    """What a measurement is given: the stages of one job, in which workers and the GPU do the work.

    Attributes:
        gpu: the GPU that the experiment is measured on or, under the interpreter, stands for.
    """

    def __init__(self, job: Job, machine: Machine, gpu: Gpu) -> None:
        self.gpu = gpu
        self._job = job
        self._machine = machine
        self._has_turn = False
        self._used_worker = False

    @property
    def seconds(self) -> dict[str, float]:
        """How long each stage took so far."""
        return self._job.stages

    def compile(
        self, experiment: Experiment, build: Callable[[Experiment, Gpu], Failure | None] = compiler.compile_into_cache
    ) -> None:
        """Compile in a compile worker, so that the run worker finds it done. Nothing, under the interpreter."""
        if self._machine.gpu is None:
            return
        launch = Launch(experiment.problem, experiment.config, self.gpu)
        kernel = discover()[experiment.kernel]
        if refused := refused_compile(kernel, launch):
            raise Stopped(refused)
        with self._entered("compile"):
            work = self._machine.compilers.submit(
                *(build, "compile", experiment, self.gpu),
                client=self._job.client,
                seconds=compile_seconds(kernel, launch),
            )
            self._outcome(_unless_failed(work), "compile")

    def compiled(self, *experiments: Experiment) -> tuple[Compiled, ...]:
        """What the compiler makes of each experiment, which is kept."""

        def compiled(experiment: Experiment) -> Compiled | Failure:
            asked = self._machine.compiles.asked(experiment, self.gpu, "launcher", self._job.client)
            return waited_for(asked, lambda: not self._job.is_cancelled)

        with self._entered("compile"), ThreadPoolExecutor(_SEVERAL) as pool:
            outcomes = list(pool.map(compiled, experiments))
        return tuple(_unless_failed(one) for one in outcomes)

    def wait_for_turn(self) -> None:
        """Wait until this job has the GPU to itself, and keep it. The stages below do so by themselves."""
        if self._has_turn:
            return
        self._job.enter("queued")
        self._machine.queue.join(self._job)
        if not self._job.wait_for_turn():
            reason = "Cancelled while waiting in the queue; nothing was launched."
            raise Stopped(Failure("launch", "cancelled", reason))
        self._has_turn = True

    def device(self) -> Device:
        """What the run worker runs on; starts it where needed."""
        self.wait_for_turn()  # the job before may cost the worker that has said so
        if self._machine.device is None:
            self._machine.device = self.work("worker", worker.describe)
        return self._machine.device

    def work(self, stage: str, function: Callable[..., V | Failure], *args: object) -> V:
        """Call a function in the run worker.

        Args:
            stage: one of STAGES, whose deadline holds.
            function: of a module, decorated with `worker.as_failure`: the worker finds it by name.
        """
        self.wait_for_turn()
        self._used_worker = True
        with self._entered(stage):
            return self._outcome(self._machine.runner.submit(function, stage, *args), stage)

    def count(self, function: Callable[..., V], *args: object) -> V:
        """Call a function that counts with ncu, a process of its own.

        Args:
            function: takes `args`, and by name `cache` and `started` as `ncu.count` does.

        Raises:
            CountingFailed: where there are no counts, unless the job was cancelled.
        """
        self.wait_for_turn()
        try:
            with self._entered("count", failing="launch"):
                return function(*args, cache=self._machine.cache, started=self._job.attach)
        except CountingFailed:
            if self._job.is_cancelled:
                raise Stopped(cancelled("launch")) from None
            raise

    def end(self, failure: Failure | None) -> None:
        """Leave the machine to the next job: with a fresh run worker, where this job's failure may have harmed it."""
        try:
            if self._has_turn and failure is not None:
                self._machine.device = None
                if failure.stage == "worker" or failure.kind in _POISONS:
                    self._machine.runner.replace()
            if self._used_worker:
                self._machine.runner.release()
        finally:
            self._machine.queue.leave(self._job)

    def _outcome(self, work: Call[V | Failure] | LeasedCall[V | Failure], stage: str) -> V:
        """Wait for a call, which a cancel of the job ends."""
        self._job.attach(work)
        value = outcome(work, stage)
        if isinstance(value, Failure) and value.kind == "cancelled" and not self._job.is_cancelled:
            value = died(stage, "all workers were replaced")
        return _unless_failed(value)

    @contextmanager
    def _entered(self, stage: str, failing: str = "") -> Iterator[None]:
        """The job is in a stage, whose seconds are taken. A job that was cancelled enters none.

        Args:
            failing: the stage of STAGES that a cancel strikes, where it is another.
        """
        if self._job.is_cancelled:
            raise Stopped(cancelled(failing or stage))
        self._job.enter(stage)
        began = time.perf_counter()
        try:
            yield
        finally:
            self._job.attach(None)
            self.seconds[stage] = time.perf_counter() - began


def _unless_failed(value: V | Failure) -> V:
    if isinstance(value, Failure):
        raise Stopped(value)
    return value
