"""The run worker where a GPU is lent for a call at a time, as ZeroGPU does.

The hub runs the decorated function in a process that it forks for it, with the GPU. There it connects to a socket of
ours and answers calls until the job's turn is over, so that what one stage holds is there for the next. A worker that
hangs is killed; after that, or if it dies, the hub forks a new one. Nothing is started inside that process: it may have
no children.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import contextvars
import os
import queue
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from markupsafe import Markup

from kernels.measuring import worker
from kernels.measuring.processes import DEADLINES_S, died
from kernels.results import Failure

T = TypeVar("T")

# Carries out `serve`, with a GPU, in another process: socket's path, cache directory, seconds.
Lend = Callable[[str, str, float], None]

# Seconds that a GPU is asked for: the hub places short requests before long ones, and stops none that is done sooner.
LEASE_S = 30.0

# Seconds until a lease is given up that nobody grants. A hub that has no GPU free says so by itself.
GRANTED_WITHIN_S = 120.0

_LOOK_EVERY_S = 0.1

# Seconds in which the hub says what became of a process that is gone.
_LAST_WORDS_S = 2.0

# What the page sends first, so that a process that it gave up meanwhile does not wait for calls with a GPU in hand.
_GREETING, _GREETED_WITHIN_S = "calls follow", 10.0


class LeasedCall(Future[T]):
    """A call of the leased worker. Cancelling it ends the worker that has taken it."""

    def __init__(self, function: Callable[..., T], stage: str, args: tuple[Any, ...]) -> None:
        super().__init__()
        self.function, self.stage, self.args = function, stage, args
        self.context = contextvars.copy_context()  # the hub knows by it who asks
        self.is_unwanted = False

    def cancel(self) -> bool:
        self.is_unwanted = True
        return super().cancel() or not self.done()


class LeasedWorkers:
    """One worker on a lent GPU, with the methods of `processes.Workers`.

    Args:
        lend: calls `serve` where there is a GPU.
        cache_directory: of compiled kernels.
    """

    # Whether a GPU is lent for each job: then nothing may ask the worker just to see how it is.
    is_leased = True

    def __init__(self, lend: Lend, cache_directory: str) -> None:
        self._lend, self._cache = lend, cache_directory
        self._in_hand: LeasedCall[Any] | None = None
        self._calls: queue.SimpleQueue[LeasedCall[Any] | None] = queue.SimpleQueue()
        self._lease: _Lease | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def submit(self, function: Callable[..., T], stage: str, *args: Any) -> LeasedCall[T]:
        """Queue a call; its deadline runs from when the worker takes it.

        Raises:
            RuntimeError: after `close`.
        """
        call = LeasedCall(function, stage, args)
        with self._lock:
            if self._closed:
                raise RuntimeError("The workers were closed.")
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="leases a GPU", daemon=True)
                self._thread.start()
            self._calls.put(call)
        return call

    def release(self) -> None:
        """Give the GPU back, once the calls before are answered."""
        self._calls.put(None)

    def replace(self) -> None:
        """Kill the process that has the GPU."""
        if lease := self._lease:
            lease.kill()

    def close(self) -> None:
        """The same, for good."""
        with self._lock:
            self._closed = True
        if call := self._in_hand:
            call.is_unwanted = True  # it may wait for a lease still
        self.replace()

    def _work(self) -> None:
        while True:
            call = self._calls.get()
            if call is None:
                if self._lease is not None:
                    self._lease.end()
                    self._lease = None
            elif call.set_running_or_notify_cancel():
                self._in_hand = call
                self._answer(call)
                self._in_hand = None

    def _answer(self, call: LeasedCall[Any]) -> None:
        try:
            if self._lease is None:
                self._lease = _Lease(self._lend, self._cache, call)
            call.set_result(self._lease.call(call))
        except BaseException as error:
            if self._lease is not None:
                self._lease.kill()
                self._lease = None
            if isinstance(error, _Refused):
                call.set_result(Failure("worker", "no_gpu", str(error)))
            elif isinstance(error, concurrent.futures.BrokenExecutor):
                call.set_result(died(call.stage, str(error)))
            else:
                call.set_exception(error)


class _Refused(Exception):
    """The hub lends no GPU, and why."""


class _Lease:
    """A GPU that was lent, and the process that has it.

    Raises:
        _Refused: where none is lent.
        concurrent.futures.CancelledError: where the call is not wanted any more.
    """

    def __init__(self, lend: Lend, cache: str, call: LeasedCall[Any]) -> None:
        self._ended: Future[None] = Future()
        self._began = time.monotonic()
        self._process_id = 0
        with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as listening:
            path = str(Path(directory, "calls"))  # which nobody but us may open
            listening.bind(path)
            listening.listen(1)
            listening.settimeout(_LOOK_EVERY_S)
            arguments = (lend, path, cache, LEASE_S)
            threading.Thread(target=call.context.run, args=(self._lent, *arguments), daemon=True).start()
            self._connection = self._accepted(listening, call)
        try:
            self._connection.send(_GREETING)
            self._process_id = self._connection.recv()
        except (EOFError, OSError) as error:
            raise concurrent.futures.BrokenExecutor(self._how_it_ended()) from error

    def _lent(self, lend: Lend, *arguments: Any) -> None:
        """Have the GPU, for as long as it takes."""
        try:
            lend(*arguments)
        except BaseException as error:
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)

    def _accepted(self, listening: socket.socket, call: LeasedCall[Any]) -> Connection[Any, Any]:
        begun = time.monotonic()
        while time.monotonic() - begun < GRANTED_WITHIN_S:
            with contextlib.suppress(TimeoutError):
                return Connection(listening.accept()[0].detach())
            if call.is_unwanted:
                raise concurrent.futures.CancelledError
            if self._ended.done():
                raise _Refused(f"No GPU was lent: {self._how_it_ended()}")
        raise _Refused(f"No GPU was lent within {GRANTED_WITHIN_S:.0f} s. Try again later.")

    def call(self, call: LeasedCall[Any]) -> Any:
        """What the function returns there.

        Raises:
            TimeoutError: where its deadline is missed.
            concurrent.futures.CancelledError: where it was cancelled.
            concurrent.futures.BrokenExecutor: where the worker is gone.
        """
        deadline = time.monotonic() + DEADLINES_S[call.stage]
        try:
            self._connection.send((call.function, call.args))
            while not self._connection.poll(_LOOK_EVERY_S):
                if call.is_unwanted:
                    raise concurrent.futures.CancelledError
                if time.monotonic() > deadline:
                    raise TimeoutError
            is_value, found = self._connection.recv()
        except (EOFError, ConnectionError) as error:
            raise concurrent.futures.BrokenExecutor(self._how_it_ended()) from error
        if not is_value:
            raise RuntimeError(found)
        return found

    def _how_it_ended(self) -> str:
        """In the hub's words, which may be HTML."""
        with contextlib.suppress(TimeoutError):
            error = self._ended.exception(_LAST_WORDS_S)
            if error is not None:
                said = str(Markup(getattr(error, "message", error)).striptags())
                spent = time.monotonic() - self._began
                return f"{said}, {spent:.0f} s after {LEASE_S:.0f} s were asked for" if spent > LEASE_S else said
        return "its process ended"

    def end(self) -> None:
        """Let the process give the GPU back."""
        with contextlib.suppress(OSError):
            self._connection.send(None)
        self._connection.close()

    def kill(self) -> None:
        """Kill the process, whatever it does."""
        with contextlib.suppress(ProcessLookupError):
            if self._process_id:
                os.kill(self._process_id, signal.SIGKILL)


def serve(path: str, cache_directory: str, seconds: float) -> None:
    """Answer calls until there are no more. Where the GPU is, in a process that the hub has forked.

    Args:
        path: of the socket that calls come from.
        seconds: that it may take: the hub reads them.
    """
    os.environ["TRITON_INTERPRET"], os.environ["TRITON_CACHE_DIR"] = "0", cache_directory
    with socket.socket(socket.AF_UNIX) as connecting:
        connecting.connect(path)
        connection: Connection[Any, Any] = Connection(connecting.detach())
    with connection:
        if not connection.poll(_GREETED_WITHIN_S) or connection.recv() != _GREETING:
            return
        connection.send(os.getpid())
        while (call := connection.recv()) is not None:
            function, args = call
            try:
                answer = True, function(*args)
            except Exception as error:  # what is raised here must be named there, and may not be known there
                answer = False, f"{type(error).__name__}: {error}"
            connection.send(answer)
    worker.finish()
