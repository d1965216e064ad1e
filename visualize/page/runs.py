"""The job that each open page has under way."""

from __future__ import annotations

import threading

from kernels.experiment import Experiment
from kernels.measuring.job import Job
from kernels.measuring.session import Session
from visualize.panels.asker import asker


class Runs:
    """The job that each open page has started last."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()

    def start(self, page: str, experiment: Experiment, what: str = "run") -> Job:
        """Start a run (or what Session.submit calls otherwise) for a page; the one that it still has is cancelled."""
        job = self._session.submit(experiment, what, asker())
        with self._lock:
            before, self._jobs[page] = self._jobs.get(page), job
        if before:
            before.cancel()
        return job

    def is_latest(self, page: str, job: Job) -> bool:
        """Whether the page has started no other run since, and is still open."""
        return self._jobs.get(page) is job

    def cancel(self, page: str) -> None:
        if job := self._jobs.get(page):
            job.cancel()

    def forget(self, page: str) -> None:
        """The page was closed: nobody waits for its run."""
        with self._lock:
            job = self._jobs.pop(page, None)
        if job:
            job.cancel()
