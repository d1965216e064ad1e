"""One measurement in progress: a Job that the page shows, and the Stages that a measurement goes through.

The stages are: compile, wait for the GPU, work in the run worker, count. A failed stage or a cancelled job raises
`Stopped`, so that a measurement reads as if nothing could go wrong.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from kernels import discover
from kernels.compiling import compiler
from kernels.compiling.compile_cost import compile_seconds, explain_refusal
from kernels.experiment import Experiment
from kernels.gpus import Gpu
from kernels.measuring import worker
from kernels.measuring.fair_queue import INTERNAL, Call, Client
from kernels.measuring.ncu import CountingFailed
from kernels.measuring.pool import cancelled
from kernels.results import Compiled, Device, Failure, Measured
from kernels.spec import Kernel, Launch

if TYPE_CHECKING:
    from kernels.measuring.session import Session

V = TypeVar("V")

# Failures after which a CUDA context can't be trusted: its worker is replaced.
_POISONS = {"cuda_error", "error"}

# Compiles that one job has in flight: a page's limit would refuse more.
_MAX_COMPILES = 4


@dataclass(frozen=True)
class Progress:
    """The state of a job: its stage, or "queued" with the number of jobs before it; seconds since it began."""

    stage: str
    before: int
    seconds: float


class _Cancellable(Protocol):
    def cancel(self) -> Any: ...


class Job:
    """One measurement of one experiment: its progress, its outcome in `done`, and a way to cancel it.

    Attributes:
        id: its name in the log.
        name: of the measurement.
        client: whose request it is.
        done: resolves to the result or a Failure; never to an exception.
        stages: seconds that each stage has taken.
    """

    def __init__(self, experiment: Experiment, name: str = "run", client: Client = INTERNAL) -> None:
        self.id = secrets.token_hex(4)
        self.experiment = experiment
        self.name = name
        self.client = client
        self.done: Future[Measured | Failure] = Future()
        self.stages: dict[str, float] = {}
        self._stage, self._before = "queued", 0
        self._work: Sequence[_Cancellable] = ()
        self._cancelled = False
        self._began = time.perf_counter()
        self._changed = threading.Condition()

    @property
    def progress(self) -> Progress:
        return Progress(self._stage, self._before, time.perf_counter() - self._began)

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled

    def result(self, timeout_s: float | None = None) -> Measured | Failure:
        """Wait for the outcome.

        Raises:
            TimeoutError: there is none after `timeout_s`.
        """
        return self.done.result(timeout_s)

    def cancel(self) -> None:
        """Kill the stage under way with its worker, or leave the queue."""
        with self._changed:
            self._cancelled = True
            work = self._work
            self._changed.notify_all()
        for each in work:
            each.cancel()

    def updates(self, every_s: float = 0.5) -> Iterator[Progress]:
        """Yield the progress on each change and every `every_s`, until there is an outcome."""
        while not self.done.done():
            seen = self.progress
            yield seen
            with self._changed:
                if not self.done.done() and (self._stage, self._before) == (seen.stage, seen.before):
                    self._changed.wait(every_s)

    def end(self, outcome: Measured | Failure) -> None:
        self.done.set_result(outcome)
        with self._changed:
            self._changed.notify_all()

    def enter(self, stage: str) -> None:
        with self._changed:
            self._stage = stage
            self._changed.notify_all()

    def attach(self, *work: _Cancellable) -> None:
        """Set what `cancel` cancels; if the job is cancelled already, cancel it now."""
        with self._changed:
            self._work = work
            is_cancelled = self._cancelled
        for each in work if is_cancelled else ():
            each.cancel()

    def move(self, before: int) -> None:
        """Set the number of jobs before this one in the queue."""
        with self._changed:
            self._before = before
            self._changed.notify_all()

    def wait_for_turn(self) -> bool:
        """Wait until no job is before this one or it is cancelled; return whether it is its turn."""
        with self._changed:
            self._changed.wait_for(lambda: self._before == 0 or self._cancelled)
            return not self._cancelled


class RunQueue:
    """Jobs in the order in which they may use the run worker: first come, first served."""

    def __init__(self) -> None:
        self._jobs: list[Job] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._jobs)

    def join(self, job: Job) -> None:
        with self._lock:
            self._jobs.append(job)
            self._number()

    def leave(self, job: Job) -> None:
        with self._lock:
            if job in self._jobs:
                self._jobs.remove(job)
                self._number()

    def _number(self) -> None:
        for place, job in enumerate(self._jobs):
            job.move(place)


class Stopped(Exception):
    """A stage failed or the job was cancelled: the Failure says why there is no result."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Stages:
    """The stages of one job, as a measurement calls them. Workers and the GPU do the work.

    Attributes:
        gpu: the GPU that the experiment is measured on, or that the interpreter stands for.
    """

    def __init__(self, job: Job, session: Session, gpu: Gpu) -> None:
        self.gpu = gpu
        self._job = job
        self._session = session
        self._has_turn = False
        self._used_worker = False

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds that each stage has taken."""
        return self._job.stages

    def compile(
        self, experiment: Experiment, build: Callable[[Experiment, Gpu], Failure | None] = compiler.compile_into_cache
    ) -> None:
        """Compile in a compile worker, so that the run worker finds the result in the cache.

        The interpreter needs no compile: there, nothing happens.
        """
        if self._session.gpu is None:
            return
        kernel, launch = launch_of(experiment, self.gpu)
        if refusal := refuse_compile(kernel, launch):
            raise Stopped(refusal)
        call = Call("compile", build, (experiment, self.gpu))
        with self._entered("compile"):
            estimate_s = compile_seconds(kernel, launch)
            self._wait("compile", self._session.compilers.submit(call, self._job.client, estimate_s))

    def compiled(self, *experiments: Experiment) -> tuple[Compiled, ...]:
        """Compile each experiment, and return what the session caches."""
        compiled: list[Compiled] = []
        with self._entered("compile"):
            for first in range(0, len(experiments), _MAX_COMPILES):
                batch = experiments[first : first + _MAX_COMPILES]
                futures = [self._session.compile(each, client=self._job.client) for each in batch]
                compiled += self._wait("compile", *futures)
        return tuple(compiled)

    def wait_for_turn(self) -> None:
        """Wait until this job has the GPU to itself, and keep it. The stages below do so themselves."""
        if self._has_turn:
            return
        self._job.enter("queued")
        self._session.queue.join(self._job)
        if not self._job.wait_for_turn():
            reason = "Cancelled while waiting in the queue; nothing was launched."
            raise Stopped(Failure("launch", "cancelled", reason))
        self._has_turn = True

    def device(self) -> Device:
        """Return what the run worker runs on; starts the worker if needed."""
        self.wait_for_turn()  # the job before may cost the worker that has described its device
        if self._session.device is None:
            self._session.device = self.work("worker", worker.describe)
        return self._session.device

    def work(self, stage: str, function: Callable[..., V | Failure], *args: object) -> V:
        """Call a function in the run worker.

        Args:
            stage: one of STAGES, whose deadline applies.
            function: of a module: the worker imports it by name.
        """
        self.wait_for_turn()
        self._used_worker = True
        with self._entered(stage):
            return self._wait(stage, self._session.runner.submit(Call(stage, function, args)))[0]

    def count(self, function: Callable[..., V], *args: object) -> V:
        """Call a function that counts with ncu in a process of its own.

        Args:
            function: takes `args`, and by name `cache` and `started` as `ncu.count` does.

        Raises:
            CountingFailed: there are no counts, and the job was not cancelled.
        """
        self.wait_for_turn()
        try:
            with self._entered("count", failing="launch"):
                return function(*args, cache=self._session.cache, started=self._job.attach)
        except CountingFailed:
            if self._job.is_cancelled:
                raise Stopped(cancelled("launch")) from None
            raise

    def end(self, failure: Failure | None) -> None:
        """Leave the machine to the next job, with a fresh run worker if this job's failure may have harmed it."""
        if self._has_turn and failure is not None:
            self._session.device = None
            if failure.stage == "worker" or failure.kind in _POISONS:
                self._session.runner.replace()
        if self._used_worker:
            self._session.runner.release()
        self._session.queue.leave(self._job)

    def _wait(self, stage: str, *futures: Future[V | Failure]) -> list[V]:
        """Wait for all results. Cancelling the job cancels the calls, and so does a failure of one."""
        self._job.attach(*futures)
        results: list[V] = []
        try:
            for future in futures:
                value = future.result()
                if isinstance(value, Failure):
                    raise Stopped(value)
                results.append(value)
        except CancelledError:
            raise Stopped(cancelled(stage)) from None
        finally:
            for future in futures:
                future.cancel()
        return results

    @contextmanager
    def _entered(self, stage: str, failing: str = "") -> Iterator[None]:
        """Enter a stage and measure its seconds. A cancelled job enters none.

        Args:
            failing: the stage of STAGES that a cancel fails, if it is another.
        """
        if self._job.is_cancelled:
            raise Stopped(cancelled(failing or stage))
        self._job.enter(stage)
        began = time.perf_counter()
        try:
            yield
        finally:
            self._job.attach()
            self.seconds[stage] = time.perf_counter() - began


def launch_of(experiment: Experiment, gpu: Gpu) -> tuple[Kernel, Launch]:
    return discover()[experiment.kernel], Launch(experiment.problem, experiment.config, gpu)


def refuse_compile(kernel: Kernel, launch: Launch) -> Failure | None:
    """Return why a launch is not compiled, if that would miss its deadline."""
    reason = explain_refusal(kernel, launch)
    return Failure("compile", "too_slow_to_compile", reason) if reason else None
