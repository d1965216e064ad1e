"""One measurement in progress, and the line in which runs wait for the one worker."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from kernels.experiment import Experiment
from kernels.measuring.turns import OURS, Client
from kernels.results import Failure, Measured


@dataclass(frozen=True)
class Progress:
    """Where a job is: its stage, or "queued" with the number of jobs before it; seconds since it began."""

    stage: str
    before: int
    seconds: float


class _Work(Protocol):
    """A call under way."""

    def cancel(self) -> Any: ...


class Job:
    """One measurement of one experiment: where it is, its outcome in `done`, and a way to end it.

    Attributes:
        id: what the log calls it.
        name: of the measurement.
        client: who asked for it.
        done: resolves to the result or a Failure; never to an exception.
        stages: seconds that each stage took so far.
    """

    def __init__(self, experiment: Experiment, name: str = "run", client: Client = OURS) -> None:
        self.id = secrets.token_hex(4)
        self.experiment = experiment
        self.name = name
        self.client = client
        self.done: Future[Measured | Failure] = Future()
        self.stages: dict[str, float] = {}
        self._stage, self._before = "queued", 0
        self._work: _Work | None = None
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
            TimeoutError: where there is none after `timeout_s`.
        """
        return self.done.result(timeout_s)

    def cancel(self) -> None:
        """End the work: a stage under way is killed with its worker; a place in the line is given up."""
        with self._changed:
            self._cancelled = True
            if self._work is not None:
                self._work.cancel()
            self._changed.notify_all()

    def updates(self, every_s: float = 0.5) -> Iterator[Progress]:
        """Yield where the job is, on each change and every `every_s`, until there is an outcome."""
        while not self.done.done():
            seen = self.progress
            yield seen
            with self._changed:
                if not self.done.done() and (self._stage, self._before) == (seen.stage, seen.before):
                    self._changed.wait(every_s)

    def end(self, outcome: Measured | Failure) -> None:
        """Give the job its outcome."""
        self.done.set_result(outcome)
        with self._changed:
            self._changed.notify_all()

    def enter(self, stage: str) -> None:
        with self._changed:
            self._stage = stage
            self._changed.notify_all()

    def attach(self, work: _Work | None) -> None:
        """The call that `cancel` ends; cancelled at once where that was asked for before."""
        with self._changed:
            self._work = work
            if work is not None and self._cancelled:
                work.cancel()

    def move(self, before: int) -> None:
        """Another place in the line."""
        with self._changed:
            self._before = before
            self._changed.notify_all()

    def wait_for_turn(self) -> bool:
        """Wait until no job is before this one, or it is cancelled. Returns whether it is its turn."""
        with self._changed:
            self._changed.wait_for(lambda: self._before == 0 or self._cancelled)
            return not self._cancelled


class RunQueue:
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
            job.move(place)
