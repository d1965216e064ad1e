"""Worker processes with deadlines: killed and replaced when they hang or die. One pebble pool each.

They are forked from a server that has imported torch, so a new one is ready in 0.3 s and not in 2.3. The server makes
no CUDA context and never imports Triton: whether that interprets kernels is fixed when a worker imports it.
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from typing import Any, TypeVar

import pebble

from kernels.compiling.compile_cost import COMPILE_DEADLINE_S
from kernels.measuring import worker
from kernels.results import Failure

T = TypeVar("T")

# Seconds a stage may take before its worker is killed. Starting one imports torch and wakes the device.
DEADLINES_S = {
    "worker": 120.0,
    "compile": COMPILE_DEADLINE_S,
    "launch": 60.0,
    "check": 60.0,
    "time": 60.0,
    "model": 20.0,
}

# Seconds within which a worker that has nothing to do takes a call, once it has answered one: milliseconds, and more on
# a machine that is busy.
TAKEN_WITHIN_S = 5.0
_LOOK_EVERY_S = 0.5

# How the calls end that cost their worker: what comes next waits for another one to start.
_COSTS_A_WORKER = (pebble.ProcessExpired, concurrent.futures.TimeoutError, concurrent.futures.BrokenExecutor)


class Call(pebble.ProcessFuture[T]):
    """A call of a worker. Cancelling it ends the worker that has taken it."""

    def __init__(self, function: Callable[..., T], stage: str, args: tuple[Any, ...]) -> None:
        super().__init__()
        self.function, self.stage, self.args = function, stage, args
        self.passed_over = 0
        self.scheduled: pebble.ProcessFuture[T] | None = None

    def running(self) -> bool:
        """Whether a worker has taken it."""
        scheduled = self.scheduled
        return scheduled is not None and scheduled.running()

    def cancel(self) -> bool:
        is_cancelled = super().cancel()
        if is_cancelled:
            with suppress(RuntimeError):  # those who wait were told already
                self.set_running_or_notify_cancel()
            if self.scheduled is not None:
                self.scheduled.cancel()
        return is_cancelled

    def end_as(self, ended: Future[T]) -> None:
        """Take over how the pool's call ended, unless this one was cancelled meanwhile."""
        with suppress(concurrent.futures.InvalidStateError):
            if ended.cancelled():
                self.cancel()
            elif error := ended.exception():
                self.set_exception(error)
            else:
                self.set_result(ended.result())


class Workers:
    """`count` processes of one role, started when first needed.

    A call that no worker takes, because all of them died or were stopped while they had nothing to do, is given to
    fresh ones, once. A thread looks after that: a pool can't be replaced by a thread of its own.

    Args:
        backend, preload: as of `worker.start`.
    """

    def __init__(self, backend: str, cache_directory: str, count: int = 1, preload: Sequence[str] = ()) -> None:
        self._make = lambda: pebble.ProcessPool(
            max_workers=count,
            initializer=_start,
            initargs=(backend, cache_directory, tuple(preload), dict(os.environ)),
            context=_context(),
        )
        self._pool = self._make()
        self._open: set[Call[Any]] = set()
        self._closed = False
        # Held for a moment each time: no callback is called, and no pool waited for, by who holds it. A signal may
        # strike its holder, and close: so it can be held again.
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._keeper: threading.Thread | None = None
        # Whether a worker has answered since it started; and whether one died, which may leave its pool's pipe locked.
        self._is_ready = self._is_tainted = False
        self._idle_since = time.monotonic()

    # Whether a GPU is lent for each job, as in `leased`.
    is_leased = False

    def release(self) -> None:
        """Have a worker let go of what it holds, once the calls before are answered."""
        self.submit(worker.finish, "worker")

    def submit(self, function: Callable[..., T], stage: str, *args: Any) -> Call[T]:
        """Queue a call; its deadline runs from when a worker takes it.

        Raises:
            RuntimeError: after `close`.
        """
        call = Call(function, stage, args)
        with self._lock:
            if self._closed:
                raise RuntimeError("The workers were closed.")
            if not self._open:
                self._idle_since = time.monotonic()
            self._open.add(call)
            if self._keeper is None:
                self._keeper = threading.Thread(target=self._look_after, name="looks after workers", daemon=True)
                self._keeper.start()
            pool = self._pool
        call.add_done_callback(self._open.discard)
        self._schedule(call, pool)
        self._wake.set()
        return call

    def replace(self) -> None:
        """Kill the processes and make fresh ones when next needed. Calls that are still open are cancelled."""
        with self._lock:
            old, left = self._swapped()
        for call in left:  # a stopped pool would leave them open for ever
            call.cancel()
        _stop(old)

    def close(self) -> None:
        """Kill the processes for good."""
        with self._lock:
            self._closed = True
        self._wake.set()
        self.replace()

    def _schedule(self, call: Call[Any], pool: pebble.ProcessPool) -> None:
        try:
            scheduled = pool.schedule(call.function, args=call.args, timeout=DEADLINES_S[call.stage])
        except RuntimeError as error:  # a worker that dies idle (the kernel was short of memory, say) breaks its pool
            self._pass_over(call, error)
            return
        call.scheduled = scheduled
        scheduled.add_done_callback(lambda ended: self._ended(call, ended))
        if call.cancelled():
            scheduled.cancel()

    def _ended(self, call: Call[Any], ended: Future[Any]) -> None:
        """A call of the pool has ended. In a thread of the pool's."""
        if call.scheduled is not ended:
            return  # it was given to fresh workers
        error = None if ended.cancelled() else ended.exception()
        self._is_ready = not (ended.cancelled() or isinstance(error, _COSTS_A_WORKER))
        self._is_tainted |= isinstance(error, pebble.ProcessExpired)
        self._idle_since = time.monotonic()
        if isinstance(error, concurrent.futures.BrokenExecutor):
            self._pass_over(call, error)
        else:
            call.end_as(ended)
        self._wake.set()

    def _pass_over(self, call: Call[Any], error: BaseException) -> None:
        """No worker took the call: it is left to fresh ones, unless these took it no more than the first."""
        call.scheduled = None
        call.passed_over += 1
        if call.passed_over > 1 or self._closed:
            with suppress(concurrent.futures.InvalidStateError):
                call.set_exception(concurrent.futures.BrokenExecutor(str(error)))

    def _look_after(self) -> None:
        while not self._closed:
            self._wake.wait(_LOOK_EVERY_S if self._open else None)
            self._wake.clear()
            left = tuple(self._open)
            if any(call.running() for call in left):
                self._idle_since = time.monotonic()
            elif self._is_tainted or any(call.scheduled is None and call.passed_over for call in left):
                self._give_to_fresh_ones()
            elif left and self._is_stuck():
                for call in left:
                    self._pass_over(call, TimeoutError("No worker takes calls."))
                self._give_to_fresh_ones()

    def _is_stuck(self) -> bool:
        """Whether calls wait although no worker is at work: they are stopped, or can't reach their end of the pipe."""
        patience_s = TAKEN_WITHIN_S if self._is_ready else DEADLINES_S["worker"]
        return time.monotonic() - self._idle_since > patience_s

    def _give_to_fresh_ones(self) -> None:
        with self._lock:
            old, left = self._swapped()
            pool = self._pool
        _stop(old)
        for call in left:
            if not call.done():
                self._schedule(call, pool)

    def _swapped(self) -> tuple[pebble.ProcessPool, tuple[Call[Any], ...]]:
        """Put a fresh pool in the place of this one: what it was, and the calls that are open."""
        old, self._pool = self._pool, self._make()
        self._is_ready = self._is_tainted = False
        self._idle_since = time.monotonic()
        left = tuple(self._open)
        for call in left:
            call.scheduled = None
        return old, left


def _stop(pool: pebble.ProcessPool) -> None:
    """Kill a pool's processes; not from a thread of its own."""
    pool.stop()
    pool.join()


def _context() -> BaseContext:
    """How processes are started."""
    if sys.platform != "linux":  # forking after an import of torch is safe on Linux alone
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    return context


def _start(backend: str, cache_directory: str, preload: Sequence[str], environment: Mapping[str, str]) -> None:
    """Make a new process a worker. The server has the environment of the time when it was started."""
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # pebble's handler waits for Python's lock, which a compile holds
    if sys.platform == "linux":
        _end_with_the_page()
    worker.start(backend, cache_directory, preload)


def _end_with_the_page() -> None:
    """Let the kernel kill this process when the server ends, which it does when the page's process is gone.

    A worker in the middle of a compile holds Python's lock, and would notice nothing itself. Each worker has an end of
    the pipe by which the server knows that it is wanted: the page's alone is to count.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]


# prctl(2), <linux/prctl.h>.
_PR_SET_PDEATHSIG = 1


def outcome(future: Future[T | Failure], stage: str) -> T | Failure:
    """Wait for a call. A missed deadline, a dead worker and a cancel are Failures of the stage that they struck."""
    try:
        return future.result()
    except concurrent.futures.TimeoutError:
        return Failure(
            stage,
            "timeout",
            f"The {stage} stage did not end within {DEADLINES_S[stage]:.0f} s, so its worker was killed. {_NEXT}",
        )
    except concurrent.futures.CancelledError:
        return cancelled(stage)
    except pebble.ProcessExpired as death:
        return died(stage, _how(death.exitcode))
    except concurrent.futures.BrokenExecutor:
        return died(stage, "before it took the work")


def cancelled(stage: str) -> Failure:
    return Failure(stage, "cancelled", f"Cancelled in the {stage} stage; the work was ended.")


def died(stage: str, how: str) -> Failure:
    return Failure(stage, "worker_died", f"The worker died in the {stage} stage ({how}). {_NEXT}")


_NEXT = "The next run gets a fresh one."


def _how(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        return f"killed by {signal.Signals(-exitcode).name}"
    return f"exit status {exitcode}"
