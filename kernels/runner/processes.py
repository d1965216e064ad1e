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
from collections.abc import Callable, Mapping
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from typing import Any, TypeVar

import pebble

from kernels.results import Failure
from kernels.runner import worker

T = TypeVar("T")

# Seconds a stage may take before its worker is killed. Starting one imports torch and wakes the device.
DEADLINES_S = {"worker": 120.0, "compile": 60.0, "launch": 60.0, "check": 60.0, "time": 60.0}


class Workers:
    """`count` processes of one role, started when first needed."""

    def __init__(self, backend: str, cache_directory: str, count: int = 1) -> None:
        self._make = lambda: pebble.ProcessPool(
            max_workers=count,
            initializer=_start,
            initargs=(backend, cache_directory, dict(os.environ)),
            context=_context(),
        )
        self._pool = self._make()
        self._open: set[pebble.ProcessFuture[Any]] = set()
        self._closed = False
        self._lock = threading.RLock()

    def submit(self, function: Callable[..., T], stage: str, *args: Any) -> pebble.ProcessFuture[T]:
        """Queue a call; its deadline runs from when a worker takes it.

        Raises:
            RuntimeError: after `close`.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError("The workers were closed.")
            try:
                future = self._pool.schedule(function, args=args, timeout=DEADLINES_S[stage])
            except RuntimeError:  # a worker that dies idle (the kernel was short of memory, say) breaks its pool
                self.replace()
                future = self._pool.schedule(function, args=args, timeout=DEADLINES_S[stage])
            self._open.add(future)
        future.add_done_callback(self._open.discard)
        return future

    @property
    def open(self) -> int:
        """Calls that are under way or waiting."""
        return len(self._open)

    def replace(self) -> None:
        """Kill the processes and make fresh ones when next needed. Calls that are still open are cancelled."""
        with self._lock:
            self._stop()
            self._pool = self._make()

    def close(self) -> None:
        """Kill the processes for good."""
        with self._lock:
            self._closed = True
            self._stop()

    def _stop(self) -> None:
        for future in tuple(self._open):  # a stopped pool would leave them open for ever
            future.cancel()
        self._pool.stop()
        self._pool.join()


def _context() -> BaseContext:
    """How processes are started."""
    if sys.platform != "linux":  # forking after an import of torch is safe on Linux alone
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    return context


def _start(backend: str, cache_directory: str, environment: Mapping[str, str]) -> None:
    """Make a new process a worker. The server has the environment of the time when it was started."""
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # pebble's handler waits for Python's lock, which a compile holds
    if sys.platform == "linux":
        _end_with_the_page()
    worker.start(backend, cache_directory)


def _end_with_the_page() -> None:
    """Let the kernel kill this process when the server ends, which it does when the page's process is gone.

    A worker in the middle of a compile holds Python's lock, and would notice nothing itself. Each worker has an end of
    the pipe by which the server knows that it is wanted: the page's alone is to count.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]


# prctl(2), <linux/prctl.h>.
_PR_SET_PDEATHSIG = 1


def outcome(future: pebble.ProcessFuture[T | Failure], stage: str) -> T | Failure:
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
