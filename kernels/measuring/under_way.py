"""Work under way: done once for all who wait for the same, and ended where nobody does any more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Generic, TypeVar

from kernels.measuring.processes import outcome
from kernels.measuring.turns import Turn
from kernels.results import Failure

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

# Seconds that work may go on that nobody wants any more: ending it costs its worker, and another one's start.
PATIENCE_S = 3.0


class _Work(Generic[V]):
    """What several may wait for."""

    def __init__(self, turn: Turn[V | Failure], stage: str) -> None:
        self.turn, self.stage = turn, stage
        self.waiting: list[Future[V | Failure]] = []
        self.began = time.monotonic()


class UnderWay(Generic[K, V]):
    """Work of shared workers, by what it is.

    Args:
        stage: of the work, one of DEADLINES_S.
        keep: told of each result, before those who wait are.
    """

    def __init__(self, stage: str, keep: Callable[[K, V], None] = lambda *_: None) -> None:
        self._stage, self._keep = stage, keep
        self._work: dict[K, _Work[V]] = {}
        self._lock = threading.Lock()

    def joined(self, key: K, start: Callable[[], Turn[V | Failure] | Failure]) -> Future[V | Failure]:
        """The outcome of work, which is started where there is none yet. Returns at once, and waits without a thread.

        Who wants it no more cancels what is returned. Work that nobody wants is ended, unless it is about to end.
        """
        asked: Future[V | Failure] = Future()
        with self._lock:
            work = self._work.get(key)
            is_new = work is None
            if work is None:
                turn = start()
                if isinstance(turn, Failure):
                    asked.set_result(turn)
                    return asked
                self._work[key] = work = _Work(turn, self._stage)
            work.waiting.append(asked)
        joined = work
        asked.add_done_callback(lambda one: self._left(key, joined) if one.cancelled() else None)
        if is_new:
            joined.turn.add_done_callback(lambda _: self._ended(key, joined))
        return asked

    def _ended(self, key: K, work: _Work[V]) -> None:
        """Tell all who wait."""
        result: V | Failure
        try:
            result = outcome(work.turn, work.stage)
        except Exception as error:  # a defect of ours, or an answer that can't be read: nobody may wait for ever
            result = Failure(work.stage, "error", f"{type(error).__name__}: {error}")
        if not isinstance(result, Failure):
            self._keep(key, result)
        with self._lock:
            if self._work.get(key) is work:
                del self._work[key]
            waiting, work.waiting = work.waiting, []
        for asked in waiting:
            with suppress(InvalidStateError):  # cancelled
                asked.set_result(result)

    def _left(self, key: K, work: _Work[V]) -> None:
        """One who waited has left. The last one ends the work, at once where it has not begun."""
        if all(asked.cancelled() for asked in tuple(work.waiting)):
            left_s = PATIENCE_S - (time.monotonic() - work.began) if work.turn.running() else 0.0
            timer = threading.Timer(max(0.0, left_s), self._end_unwanted, (key, work))
            timer.daemon = True
            timer.start()

    def _end_unwanted(self, key: K, work: _Work[V]) -> None:
        with self._lock:
            if any(not asked.cancelled() for asked in work.waiting):
                return
            if self._work.get(key) is work:
                del self._work[key]
        work.turn.cancel()
