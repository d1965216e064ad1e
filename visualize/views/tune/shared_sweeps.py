"""The sweep that a session runs for all its clients, and the latest sweep of each space."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tilescope.declare.experiment import resolve_gpu
from tilescope.declare.gpus import Gpu
from tilescope.declare.knobs import ConfigError
from tilescope.declare.space import Space
from tilescope.measure.session import BoundedCache, Session
from tilescope.results import Strategy, Sweep
from tilescope.results.store import Store
from tilescope.results.sweep import ResumePoint
from tilescope.search.sweep_run import SweepRun, sweep_here

# Sweeps kept in memory. One of 4,096 configs takes a few megabytes.
_MAX_ENDED = 8

# Seconds between two checks for watchers.
_CHECK_S = 0.2


class SharedSweeps:
    """Runs one sweep at a time, because a sweep takes all cores and the GPU. Clients of the same space share it.

    A sweep is cancelled once all its watchers have left, or if it has no watcher for `unwatched_s`.

    Args:
        prepare: makes a sweep, as `sweep_here` does.
        unwatched_s: longer than reloading a page takes.
    """

    def __init__(
        self,
        prepare: Callable[..., SweepRun] = sweep_here,
        unwatched_s: float = 30.0,
    ) -> None:
        self._prepare = prepare
        self._unwatched_s = unwatched_s
        self._lock = threading.RLock()
        self._run: SweepRun | None = None
        self._watchers: Counter[str] = Counter()
        self._left: set[str] = set()
        self._last_watched = 0.0
        self._is_cancelled = False
        # (space, GPU) → the store's latest sweep at that time, and the latest sweep with all its rows.
        self._latest = BoundedCache[tuple[Any, tuple[Sweep, ResumePoint] | None]](_MAX_ENDED)

    def start(
        self,
        session: Session,
        spaces: Sequence[Space],
        strategy: Strategy,
        watcher: str = "",
        from_scratch: bool = False,
    ) -> SweepRun:
        """Start a search that sweeps some spaces in order, or join it if it is running.

        Args:
            watcher: the page or API call that starts it.
            from_scratch: ignore the rows of earlier sweeps.

        Raises:
            ConfigError: if another search is running.
        """
        first, *others = spaces
        with self._lock:
            if self._run:
                identities = [space.identity for space in spaces]
                if self._run.strategy == strategy and self._run.space.identity in identities:
                    self._left.discard(watcher)
                    return self._run
                swept = self._run.space
                message = f"A sweep of {swept.size:,} configs of {swept.base.kernel} runs on this machine; one runs at "
                raise ConfigError("busy", f"{message}a time. Cancel it, or wait.")
            session.before_close(self._cancel)  # cancelling several times is harmless
            self._left = set()
            self._is_cancelled = False
            self._last_watched = time.monotonic()
            run = self._begin(session, first, strategy, from_scratch)
        threading.Thread(
            target=self._drive, args=(session, run, others, from_scratch), daemon=True
        ).start()
        return run

    def running(self, space: Space, gpu: Gpu) -> SweepRun | None:
        """Return the running sweep if it is of this space and GPU."""
        run = self._run
        if run and (run.space.identity, run.gpu.name) == (space.identity, gpu.name):
            return run
        return None

    def find(self, store: Store, space: Space, gpu: Gpu) -> Sweep | None:
        """Return the running sweep's rows so far, or the latest sweep of a space by any process."""
        run = self.running(space, gpu)
        if run:
            return run.snapshot()
        latest = self._find_latest(store, space, gpu)
        return latest[0] if latest else None

    @contextmanager
    def watched(self, watcher: str) -> Iterator[None]:
        """Keep the running sweep alive, unless the watcher has left it."""
        with self._lock:
            self._watchers[watcher] += 1
        try:
            yield
        finally:
            with self._lock:
                self._watchers[watcher] -= 1
                self._last_watched = time.monotonic()

    def leave(self, watcher: str) -> int:
        """Stop watching the running search, and cancel it if it has no other watcher.

        Returns:
            The number of other watchers.
        """
        with self._lock:
            self._left.add(watcher)
            others = len(self._active_watchers())
            if not others:
                self._cancel()
            return others

    def _active_watchers(self) -> set[str]:
        return {watcher for watcher, count in self._watchers.items() if count} - self._left

    def _cancel(self) -> None:
        with self._lock:
            self._is_cancelled = True
            if self._run:
                self._run.cancel()

    def _begin(
        self, session: Session, space: Space, strategy: Strategy, from_scratch: bool
    ) -> SweepRun:
        resume = ResumePoint()
        gpu = resolve_gpu(space.base, session.gpu)
        if not from_scratch and (latest := self._find_latest(session.store, space, gpu)):
            resume = latest[1]
        self._run = self._prepare(session, space, strategy, resume)
        self._run.start()
        return self._run

    def _drive(
        self, session: Session, run: SweepRun, spaces: list[Space], from_scratch: bool
    ) -> None:
        """Wait for a run's end, then sweep the other spaces unless the search was cancelled or failed."""
        try:
            while True:
                for _ in run.updates(_CHECK_S):
                    with self._lock:
                        idle_s = time.monotonic() - self._last_watched
                        if not self._active_watchers() and idle_s > self._unwatched_s:
                            self._cancel()
                sweep = run.result()
                stored = session.store.latest_sweep(run.space, run.gpu)
                latest = sweep, ResumePoint(sweep.rows, run.name)
                self._latest.put((run.space.identity, run.gpu.name), (stored, latest))
                with self._lock:
                    if not spaces or self._is_cancelled or sweep.ended in ("cancelled", "failed"):
                        return
                    run = self._begin(session, spaces.pop(0), run.strategy, from_scratch)
        finally:
            with self._lock:
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
