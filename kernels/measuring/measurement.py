"""A kind of measurement (Measurement), one in progress that the page shows (Job), and the Stages that it goes through.

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
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from kernels.compiling import compile_cost, compiler
from kernels.experiment import Experiment, launch_of
from kernels.gpus import Gpu
from kernels.measuring import worker
from kernels.measuring.fair_queue import INTERNAL, Call, Client
from kernels.measuring.pool import Stopped, cancelled
from kernels.results import Compiled, Device, Failure, Measured, records

if TYPE_CHECKING:
    from kernels.measuring.session import Session

T = TypeVar("T", bound=Measured)
V = TypeVar("V")

# Failures after which a CUDA context can't be trusted: its worker is replaced.
_POISONS = {"cuda_error", "error"}

# Compiles that one job has in flight: a page's limit would refuse more.
_MAX_COMPILES = 4


@dataclass(eq=False)
class Measurement(Generic[T]):
    """One kind of measurement. Each is listed in `session.MEASUREMENTS`.

    Attributes:
        name: what `Session.submit` calls it.
        form: how results are recorded; its key also says which experiments share one result.
        measure: measures on this machine. If it raises, the job ends with a Failure.
        not_recorded: a sentence for a machine that has `{this}` where nothing was recorded on `{gpu}`.
        refuse: raises ConfigError if the experiment can't be measured: on any machine, or if this machine interprets
            it (the last argument) in reasonable time.
        is_interpreted: a machine without a GPU measures under Triton's interpreter.
    """

    name: str
    form: records.RecordForm[T]
    measure: Callable[[Experiment, Stages], T | Failure]
    not_recorded: str = "This machine has {this}, and nothing of this experiment on {gpu} was recorded."
    refuse: Callable[[Experiment, Gpu, bool], None] | None = None
    is_interpreted: bool = False


@dataclass(frozen=True)
class Progress:
    """The state of a job: its stage, or "queued" with the number of jobs before it; seconds since it began."""

    stage: str
    before: int
    seconds: float


class Job:
    """One measurement of one experiment: its progress, its outcome in `done`, and a way to cancel it.

    Attributes:
        id: its name in the log.
        name: of the measurement.
        client: whose request it is.
        done: resolves to the result or a Failure; never to an exception.
        stages: seconds that each stage has taken.
    """

    # Notified when any job changes; guards all queues.
    _changed = threading.Condition()

    def __init__(self, experiment: Experiment, name: str = "run", client: Client = INTERNAL) -> None:
        self.id = secrets.token_hex(4)
        self.experiment, self.name, self.client = experiment, name, client
        self.done: Future[Measured | Failure] = Future()
        self.stages: dict[str, float] = {}
        self.is_cancelled = False
        self._queue: list[Job] = []
        self._stage = "queued"
        self._cancels: Sequence[Callable[[], object]] = ()
        self._began = time.perf_counter()

    @property
    def progress(self) -> Progress:
        with self._changed:
            before = self._queue.index(self) if self in self._queue else 0
            return Progress(self._stage, before, time.perf_counter() - self._began)

    def result(self, timeout_s: float | None = None) -> Measured | Failure:
        """Wait for the outcome.

        Raises:
            TimeoutError: there is none after `timeout_s`.
        """
        return self.done.result(timeout_s)

    def cancel(self) -> None:
        """Kill the stage under way with its worker, or leave the queue."""
        with self._changed:
            self.is_cancelled = True
            cancels = self._cancels
            self._changed.notify_all()
        for each in cancels:
            each()

    def updates(self, every_s: float = 0.5) -> Iterator[Progress]:
        """Yield the progress on each change and every `every_s`, until there is an outcome."""
        while not self.done.done():
            seen = self.progress
            yield seen
            with self._changed:
                now = self.progress
                if not self.done.done() and (now.stage, now.before) == (seen.stage, seen.before):
                    self._changed.wait(every_s)

    def end(self, outcome: Measured | Failure) -> None:
        self.done.set_result(outcome)
        with self._changed:
            self._changed.notify_all()

    def enter(self, stage: str) -> None:
        with self._changed:
            self._stage = stage
            self._changed.notify_all()

    def attach(self, *cancels: Callable[[], object]) -> None:
        """Set what `cancel` calls; if the job is cancelled already, call it now."""
        with self._changed:
            self._cancels = cancels
            is_cancelled = self.is_cancelled
        for each in cancels if is_cancelled else ():
            each()

    def wait_for_turn(self, queue: list[Job]) -> bool:
        """Join a queue, and wait until this job is its first or is cancelled; return whether it is its turn."""
        with self._changed:
            self._stage, self._queue = "queued", queue
            queue.append(self)
            self._changed.notify_all()
            self._changed.wait_for(lambda: queue[0] is self or self.is_cancelled)
            return not self.is_cancelled

    def leave_queue(self) -> None:
        with self._changed:
            if self in self._queue:
                self._queue.remove(self)
                self._changed.notify_all()


class Stages:
    """The stages of one job, as a measurement calls them. Workers and the GPU do the work.

    Attributes:
        gpu: the GPU that the experiment is measured on, or that the interpreter stands for.
        seconds: that each stage has taken.
    """

    def __init__(self, job: Job, session: Session, gpu: Gpu) -> None:
        self.gpu, self._job, self._session = gpu, job, session
        self.seconds = job.stages
        self._has_turn = self._used_worker = False

    def compile(self, experiment: Experiment, is_timed: bool = False) -> None:
        """Compile in a compile worker, so that the run worker finds the result in the cache.

        The interpreter needs no compile: there, nothing happens.
        """
        if self._session.gpu is None:
            return
        kernel, launch = launch_of(experiment, self.gpu)
        if refusal := compile_cost.refuse_compile(kernel, launch):
            raise Stopped(refusal)
        call = Call("compile", compiler.compile_into_cache, (experiment, self.gpu, is_timed))
        with self._entered("compile"):
            estimate_s = compile_cost.compile_seconds(kernel, launch)
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
        if not self._has_turn and not self._job.wait_for_turn(self._session.queue):
            reason = "Cancelled while waiting in the queue; nothing was launched."
            raise Stopped(Failure("launch", "cancelled", reason))
        self._has_turn = True

    def device(self) -> Device:
        """Return what the run worker runs on; starts the worker if needed."""
        return self.work("worker", worker.describe)

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

    def count(self, function: Callable[..., V], *args: object) -> V | Failure:
        """Call a function that counts with ncu in a separate process; return why there are no counts, if so.

        Args:
            function: takes `args`, and by name `cache` and `on_start` as `counters.count` does.
        """
        self.wait_for_turn()
        try:
            with self._entered("count"):
                return function(*args, cache=self._session.cache, on_start=self._job.attach)
        except Stopped as stopped:
            if self._job.is_cancelled:  # STAGES has no stage of counting
                raise Stopped(cancelled("launch")) from None
            return stopped.failure

    def find_recording(self, measurement: Measurement[T], reason: str) -> T | None:
        """Return a recording that replaces an incomplete result. Its note begins with the reason."""
        recorded = self._session.store.find(measurement, self._job.experiment, self.gpu.name)
        return replace(recorded.value, note=f"{reason} {recorded.value.note}") if recorded else None

    def end(self, failure: Failure | None) -> None:
        """Leave the machine to the next job, with a fresh run worker if this job's failure may have harmed it."""
        if self._has_turn and failure is not None and (failure.stage == "worker" or failure.kind in _POISONS):
            self._session.runner.replace()
        if self._used_worker:
            self._session.runner.release()
        self._job.leave_queue()

    def _wait(self, stage: str, *futures: Future[V | Failure]) -> list[V]:
        """Wait for all results. Cancelling the job cancels the calls, and so does a failure of one."""
        self._job.attach(*(future.cancel for future in futures))
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
    def _entered(self, stage: str) -> Iterator[None]:
        """Enter a stage and measure its seconds. A cancelled job enters none."""
        if self._job.is_cancelled:
            raise Stopped(cancelled(stage))
        self._job.enter(stage)
        began = time.perf_counter()
        try:
            yield
        finally:
            self._job.attach()
            self.seconds[stage] = time.perf_counter() - began
