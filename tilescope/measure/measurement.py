"""Kinds of measurements (`Measurement`), and measurements in progress (`Job`).

The stages of a job are: compile, wait for the GPU, work in the run worker, count. A failed stage or a cancelled job
raises `Stopped`, so a measurement needs no error handling of its own.
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

from tilescope.compiling import compiler, estimates
from tilescope.declare.experiment import Experiment, launch_of, resolve_gpu
from tilescope.declare.gpus import Gpu
from tilescope.measure import worker
from tilescope.measure.fair_queue import INTERNAL, Call, Client
from tilescope.measure.pool import cancellation
from tilescope.results import Compiled, Device, Failure, Measured, Stopped, records

if TYPE_CHECKING:
    from tilescope.measure.session import Session

T = TypeVar("T", bound=Measured)
V = TypeVar("V")

# Kinds of failures that may corrupt the CUDA context, so the worker is replaced.
_POISONS = {"cuda_error", "error"}

# Maximum compiles that one job has in flight. More could exceed the limit of waiting calls per page.
_MAX_COMPILES = 4


@dataclass(eq=False)
class Measurement(Generic[T]):
    """A kind of measurement, listed in `session.MEASUREMENTS`.

    Attributes:
        name: the measurement's name in `Session.submit`.
        form: how results are recorded. Experiments with the same key share one result.
        measure: measures a job's experiment on this machine. If it raises, the job ends with a Failure.
        not_recorded: the message if this machine, which has `{this}`, can't measure and has no recording on `{gpu}`.
        refuse: raises ConfigError if no machine can measure the experiment or, if the last argument says that this
            machine would interpret it, if the interpreter would take too long.
        is_interpreted: whether a machine without a GPU measures under Triton's interpreter.
    """

    name: str
    form: records.RecordForm[T]
    measure: Callable[[Job], T | Failure]
    not_recorded: str
    refuse: Callable[[Experiment, Gpu, bool], None] | None = None
    is_interpreted: bool = False


@dataclass(frozen=True)
class JobProgress:
    """A job's stage, or "queued" with the number of jobs before it, and the seconds since it began."""

    stage: str
    before: int
    seconds: float


class Job:
    """One measurement of one experiment. It can be watched and cancelled.

    A measurement calls the job's stages; worker processes do the work.

    Attributes:
        id: the job's name in the log.
        name: the measurement's name.
        client: the client that requested it.
        done: resolves to the result or a Failure, never to an exception.
        stages: seconds that each stage has taken.
    """

    # Notified when a queue changes or a job is cancelled; guards all queues.
    _changed = threading.Condition()

    def __init__(
        self,
        session: Session,
        experiment: Experiment,
        name: str = "run",
        client: Client = INTERNAL,
    ) -> None:
        self.id = secrets.token_hex(4)
        self.experiment = experiment
        self.name = name
        self.client = client
        self.done: Future[Measured | Failure] = Future()
        self.stages: dict[str, float] = {}
        self.is_cancelled = False
        self._session = session
        self._has_turn = self._used_worker = False
        self._stage = "queued"
        self._cancels: Sequence[Callable[[], object]] = ()
        self._began = time.perf_counter()

    @property
    def gpu(self) -> Gpu:
        """The GPU that measures the experiment; for the interpreter, the GPU that predictions are for."""
        return resolve_gpu(self.experiment, self._session.gpu)

    @property
    def progress(self) -> JobProgress:
        with self._changed:
            queue = self._session.queue
            before = queue.index(self) if self in queue else 0
            return JobProgress(self._stage, before, time.perf_counter() - self._began)

    def result(self, timeout_s: float | None = None) -> Measured | Failure:
        """Wait for the outcome.

        Raises:
            TimeoutError: there is no outcome after `timeout_s`.
        """
        return self.done.result(timeout_s)

    def cancel(self) -> None:
        """Kill the worker of the current stage, or leave the queue."""
        with self._changed:
            self.is_cancelled = True
            cancels = self._cancels
            self._changed.notify_all()
        for each in cancels:
            each()

    def run(self, measure: Callable[[Job], V | Failure]) -> V | Failure:
        """Return the result of a function that calls the stages. Then hand the machine to the next job.

        Replace the run worker if this job's failure may have corrupted it.
        """
        try:
            result = measure(self)
        except Stopped as stopped:
            result = stopped.failure
        except Exception as error:  # a bug must still end the job
            result = Failure("worker", "error", f"{type(error).__name__}: {error}")
        may_be_corrupt = isinstance(result, Failure) and (
            result.stage == "worker" or result.kind in _POISONS
        )
        if self._has_turn and may_be_corrupt:
            self._session.runner.replace()
        if self._used_worker:
            self._session.runner.submit(Call("worker", worker.finish))
        with self._changed:
            if self in self._session.queue:
                self._session.queue.remove(self)
                self._changed.notify_all()
        return result

    def compile(self, is_timed: bool = False) -> None:
        """Compile the experiment in a compile worker, so that the run worker finds the result in the cache.

        Do nothing under the interpreter, which needs no compiled kernel.
        """
        if self._session.gpu is None:
            return
        kernel, launch = launch_of(self.experiment, self.gpu)
        if refusal := estimates.refuse_compile(kernel, launch):
            raise Stopped(refusal)
        call = Call("compile", compiler.compile_into_cache, (self.experiment, self.gpu, is_timed))
        with self._in_stage("compile"):
            estimate_s = estimates.compile_seconds(kernel, launch)
            self._wait("compile", self._session.compilers.submit(call, self.client, estimate_s))

    def compile_all(self, *experiments: Experiment) -> tuple[Compiled, ...]:
        """Return each experiment's compiled kernel, from the session's cache if possible."""
        compiled: list[Compiled] = []
        with self._in_stage("compile"):
            for first in range(0, len(experiments), _MAX_COMPILES):
                batch = experiments[first : first + _MAX_COMPILES]
                futures = [self._session.compile(each, client=self.client) for each in batch]
                compiled += self._wait("compile", *futures)
        return tuple(compiled)

    def device(self) -> Device:
        """Return the run worker's device. Start the worker if needed."""
        return self.work("worker", worker.describe)

    def work(self, stage: str, function: Callable[..., V | Failure], *args: object) -> V:
        """Call a function in the run worker, which this job then occupies until it ends.

        Args:
            stage: one of DEADLINES_S. Its deadline applies.
            function: a module-level function, because the worker imports it by name.
        """
        self._wait_for_turn()
        self._used_worker = True
        with self._in_stage(stage):
            return self._wait(stage, self._session.runner.submit(Call(stage, function, args)))[0]

    def count(self, function: Callable[..., V], *args: object) -> V | Failure:
        """Call a function that counts with ncu in a separate process. Return its counts, or a Failure.

        Args:
            function: takes `args`, and the keyword arguments `cache` and `on_start` of `counters.count`.
        """
        self._wait_for_turn()
        try:
            with self._in_stage("count"):
                return function(*args, cache=self._session.cache, on_start=self._attach)
        except Stopped as stopped:
            if self.is_cancelled:  # a Failure has no counting stage
                raise Stopped(cancellation("launch")) from None
            return stopped.failure

    def find_recording(self, measurement: Measurement[T], reason: str) -> T | None:
        """Return a recording that replaces an incomplete result. Its note begins with the reason."""
        recorded = self._session.store.find(measurement, self.experiment, self.gpu.name)
        return replace(recorded, note=f"{reason} {recorded.note}") if recorded else None

    def _wait_for_turn(self) -> None:
        """Wait for exclusive use of the GPU, and keep it until the job ends."""
        if self._has_turn:
            return
        queue = self._session.queue
        with self._changed:
            self._stage = "queued"
            queue.append(self)
            self._changed.wait_for(lambda: queue[0] is self or self.is_cancelled)
            self._has_turn = not self.is_cancelled
        if not self._has_turn:
            reason = "Cancelled while waiting in the queue; nothing was launched."
            raise Stopped(Failure("launch", "cancelled", reason))

    def _attach(self, *cancels: Callable[[], object]) -> None:
        """Set the functions that `cancel` calls. If the job is already cancelled, call them now."""
        with self._changed:
            self._cancels = cancels
            is_cancelled = self.is_cancelled
        for each in cancels if is_cancelled else ():
            each()

    def _wait(self, stage: str, *futures: Future[V | Failure]) -> list[V]:
        """Wait for all results. If the job is cancelled or one call fails, cancel the other calls."""
        self._attach(*(future.cancel for future in futures))
        results = []
        try:
            for future in futures:
                value = future.result()
                if isinstance(value, Failure):
                    raise Stopped(value)
                results.append(value)
        except CancelledError:
            raise Stopped(cancellation(stage)) from None
        finally:
            for future in futures:
                future.cancel()
        return results

    @contextmanager
    def _in_stage(self, stage: str) -> Iterator[None]:
        """Time a stage. A cancelled job enters no further stage."""
        if self.is_cancelled:
            raise Stopped(cancellation(stage))
        self._stage = stage
        began = time.perf_counter()
        try:
            yield
        finally:
            self._attach()
            self.stages[stage] = time.perf_counter() - began
