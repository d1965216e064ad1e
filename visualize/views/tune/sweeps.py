"""The sweep that a session runs for all its clients, and the latest sweep of each space."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

from tilescope.declare.experiment import resolve_gpu
from tilescope.declare.gpus import Gpu
from tilescope.declare.knobs import ConfigError
from tilescope.declare.space import Space
from tilescope.measure.session import BoundedCache, Session
from tilescope.results import Strategy, Sweep
from tilescope.results.store import Store
from tilescope.results.sweep import ResumePoint
from tilescope.search.search import Task
from tilescope.search.sweep_run import SweepRun, make_sweep

# Sweeps kept in memory. One of 4,096 configs takes a few megabytes.
_MAX_ENDED = 32

# Seconds between two checks for an abandoned sweep.
_CHECK_S = 0.2


class Sweeps:
    """Runs one sweep at a time, because a sweep takes all cores and the GPU. Clients of the same space share it.

    Args:
        prepare: makes a sweep, as `make_sweep` does.
        abandoned_s: a sweep that no client has requested for this long is cancelled. Reloading a page takes less.
    """

    def __init__(
        self,
        prepare: Callable[..., SweepRun] = make_sweep,
        abandoned_s: float = 30.0,
    ) -> None:
        self._prepare = prepare
        self._abandoned_s = abandoned_s
        self._lock = threading.Lock()
        self._run: SweepRun | None = None
        self._seen_at_s = 0.0
        # (space, GPU) → the store's latest sweep at that time, and the latest sweep with all its rows.
        self._latest = BoundedCache[tuple[Any, tuple[Sweep, ResumePoint] | None]](_MAX_ENDED)

    def start(
        self, session: Session, space: Space, from_scratch: bool = False
    ) -> tuple[SweepRun, bool]:
        """Start a sweep, or join it if it is running.

        Args:
            from_scratch: ignore the rows of earlier sweeps.

        Returns:
            The sweep, and whether it is new.

        Raises:
            ConfigError: if another sweep is running.
        """
        with self._lock:
            if run := self._run:
                if run.space.identity == space.identity:
                    return run, False
                message = f"A sweep of {run.space.size:,} configs of {run.space.base.kernel} runs on this machine; one "
                raise ConfigError("busy", f"{message}runs at a time. Cancel it, or wait.")
            resume = ResumePoint()
            gpu = resolve_gpu(space.base, session.gpu)
            if not from_scratch and (latest := self._find_latest(session.store, space, gpu)):
                resume = latest[1]
            run = self._prepare(session, Task(space, Strategy(), resume))
            session.before_close(self.cancel)  # cancelling several times is harmless
            self._run = run
            self._seen_at_s = time.monotonic()
            done = run.start()
        threading.Thread(target=self._wait, args=(session.store, run, done), daemon=True).start()
        return run, True

    def running(self, space: Space, gpu: Gpu) -> SweepRun | None:
        """Return the running sweep if it is of this space and GPU. This call counts as a client's request for it."""
        run = self._run
        if run and (run.space.identity, run.gpu.name) == (space.identity, gpu.name):
            self._seen_at_s = time.monotonic()
            return run
        return None

    def find(self, store: Store, space: Space, gpu: Gpu) -> Sweep | None:
        """Return the running sweep's rows so far, or the latest sweep of a space by any process."""
        run = self.running(space, gpu)
        if run:
            return run.snapshot()
        latest = self._find_latest(store, space, gpu)
        return latest[0] if latest else None

    def cancel(self) -> None:
        """Cancel the running sweep."""
        if run := self._run:
            run.cancel()

    def _wait(self, store: Store, run: SweepRun, done: Future[Sweep]) -> None:
        """Wait until a sweep ends, and keep its result. Cancel it once it is abandoned."""
        try:
            while not wait([done], _CHECK_S).done:
                if time.monotonic() - self._seen_at_s > self._abandoned_s:
                    run.cancel()
            sweep = done.result()
            stored = store.latest_sweep(run.space, run.gpu)
            latest = sweep, ResumePoint(sweep.rows, run.name)
            self._latest.put((run.space.identity, run.gpu.name), (stored, latest))
        finally:
            self._run = None

    def _find_latest(
        self, store: Store, space: Space, gpu: Gpu
    ) -> tuple[Sweep, ResumePoint] | None:
        """Return the latest sweep from memory, unless the store has a newer one. Without a store, memory decides."""
        stored = store.latest_sweep(space, gpu)
        key = (space.identity, gpu.name)
        before, latest = self._latest.get(key) or (None, None)
        if stored and stored != before:
            latest = store.load_sweep(space, gpu) or latest
            self._latest.put(key, (stored, latest))
        return latest
