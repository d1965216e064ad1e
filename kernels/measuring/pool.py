"""Worker processes behind one fair queue: `Pool.submit` runs a call in one of them, with a deadline.

Workers are forked from a server that has imported torch, so a new one is ready in 0.3 s instead of 2.3. The server
makes no CUDA context and never imports Triton: a worker decides whether to interpret kernels when it imports Triton.
"""

from __future__ import annotations

import ctypes
import math
import multiprocessing
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from kernels.compiling.compile_cost import COMPILE_DEADLINE_S
from kernels.measuring import worker
from kernels.measuring.fair_queue import INTERNAL, Call, Client, FairQueue, QueuedCall
from kernels.results import Failure

T = TypeVar("T")

# Seconds that a worker may take for a call of each stage. Starting a worker imports torch and wakes the device.
DEADLINES_S = {
    "worker": 120.0,
    "compile": COMPILE_DEADLINE_S,
    "launch": 60.0,
    "check": 60.0,
    "time": 60.0,
    "model": 20.0,
}

# Seconds that a shared call may run although all its clients have left: it may be about to end, ending it costs its
# worker, and a slider comes back.
PATIENCE_S = 3.0

# Seconds between two looks at a worker.
_LOOK_EVERY_S = 0.25

# Looks in which a worker must be stopped: a shell's Ctrl-Z and `fg` stop and continue it together with the page.
_STOPPED_LOOKS = 4

# Seconds that a transfer may stall: a worker can be stopped in the middle of a message. A send that stalls after its
# first bytes takes twice as long to fail.
_RECEIVE_STALL_S, _SEND_STALL_S = 3, 1

# Workers that are tried for a call. The second can fail if the fork server was killed together with the first.
_TRIES = 3

# prctl(2), <linux/prctl.h>.
_PR_SET_PDEATHSIG = 1

# Only on Linux is it safe to fork after importing torch.
_CONTEXT: Any = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
_CONTEXT.set_forkserver_preload(["torch"])

# Process objects are not thread-safe: two threads that poll one can miss its exit status.
_PROCESSES = threading.RLock()


class Stopped(Exception):
    """The Failure says why there is no result: a stage failed, a job was cancelled, no worker can be started."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Worker:
    """A process forked on this machine that answers calls (see `worker.serve`).

    Args:
        environment: of the process.
        arguments: of `worker.start`.

    Attributes:
        connection: to the process; it reports end of file when the process is gone.
        process_id: 0 while it is unknown.
    """

    process_id = _stopped_looks = 0

    def __init__(self, environment: Mapping[str, str], *arguments: Any) -> None:
        self.connection, theirs = _CONTEXT.Pipe()
        with _PROCESSES, theirs:
            self._process = _CONTEXT.Process(target=_work, args=(theirs, environment, *arguments), daemon=True)
            self._process.start()
        self.process_id = self._process.pid

    def kill(self) -> None:
        self._process.kill()

    def explain_end(self) -> str:
        """Return how the process ended; waits for it."""
        with _PROCESSES:
            self._process.join(2)
            status = self._process.exitcode
        if status is not None and status < 0:
            return f"killed by {signal.Signals(-status).name}"
        return f"exit status {status}"

    def is_stopped(self) -> bool:
        """Return whether a signal has stopped the process, in this and the last looks. Linux; elsewhere never."""
        try:
            status = Path(f"/proc/{self.process_id}/stat").read_text(encoding="utf-8")
        except OSError:
            status = ""
        self._stopped_looks = self._stopped_looks + 1 if status.rpartition(")")[2].startswith(" T") else 0
        return self._stopped_looks >= _STOPPED_LOOKS


class Slot:
    """One thread of a pool and its worker."""

    worker: Worker | None = None


class Pool:
    """Worker processes with one fair queue, started when first needed.

    A worker that dies or is stopped, busy or idle, is replaced. It costs at most the call that it had taken. Each
    worker has a thread here, which sends it calls and watches it.

    Args:
        backend, cache_directory, preload: as for `worker.start`.
        count: processes at most.
        short_s: as for `FairQueue`.
    """

    _keeps_idle_workers = True

    def __init__(
        self, backend: str, cache_directory: str, count: int = 1, preload: Sequence[str] = (), short_s: float = math.inf
    ) -> None:
        self._worker_arguments = dict(os.environ), backend, cache_directory, tuple(preload)
        self._count = count
        self._queue = FairQueue(count, short_s)
        self._slots: list[Slot] = []
        # A condition's lock is reentrant: a signal handler that closes the pool may interrupt the lock's holder. No
        # future is resolved while it is held.
        self._changed = threading.Condition()
        self.is_closed = False
        # Whether any worker has started.
        self.has_started = False

    def __len__(self) -> int:
        """Return the number of calls in flight, waiting ones included."""
        with self._changed:
            return len(self._queue.waiting) + len(self._queue.running)

    def submit(
        self,
        call: Call[T],
        client: Client = INTERNAL,
        estimate_s: float = 0.0,
        on_result: Callable[[T], None] | None = None,
    ) -> Future[T | Failure]:
        """Queue a call, or join one in flight that has the same key. Returns immediately.

        Cancel the returned future to give up. When all who share a call have, it leaves the queue or its worker is
        killed. Anything else that goes wrong is a Failure in the future: a missed deadline, a dead worker, an
        exception, a client with too many waiting calls, a closed pool.

        Args:
            estimate_s: how long the call will take.
            on_result: called with a result that is no Failure, before any future has it.
        """
        future: Future[T | Failure] = Future()
        with self._changed:
            in_flight = () if call.key is None else (*self._queue.waiting, *self._queue.running)
            queued = next((each for each in in_flight if each.call.key == call.key), None)
            if self.is_closed:
                future.set_result(_closed(call.stage))
                return future
            if queued is None:
                if refusal := self._queue.refuse(client):
                    future.set_result(Failure(call.stage, "busy", refusal))
                    return future
                queued = QueuedCall(call, client, estimate_s, on_result)
                self._queue.waiting.append(queued)
                if len(self._slots) < min(self._count, len(self)):
                    self._slots.append(Slot())
                    threading.Thread(target=self._serve, args=(self._slots[-1],), name="pool", daemon=True).start()
                self._changed.notify_all()
            queued.futures.append(future)
        joined = queued
        future.add_done_callback(lambda done: self._leave(joined, done) if done.cancelled() else None)
        return future

    def release(self) -> None:
        """Free what a worker holds, after the calls queued before."""
        self.submit(Call("worker", worker.finish))

    def replace(self) -> None:
        """Kill the workers. Calls that they have taken fail; fresh workers take the others."""
        with self._changed:
            for each in self._workers():
                each.kill()

    def close(self) -> None:
        """Kill the workers for good; calls in flight fail."""
        with self._changed:
            self.is_closed = True
            waiting, self._queue.waiting = self._queue.waiting, []
            workers = self._workers()
            for each in workers:
                each.kill()
            self._changed.notify_all()
        for queued in waiting:
            _resolve(queued.futures, _closed(queued.call.stage))
        for each in workers:
            each.explain_end()

    def _workers(self) -> list[Worker]:
        return [slot.worker for slot in self._slots if slot.worker is not None]

    def _leave(self, queued: QueuedCall[Any], future: Future[Any]) -> None:
        with suppress(RuntimeError):  # the cancelled future may have been notified
            future.set_running_or_notify_cancel()
        with self._changed:
            if not queued.is_wanted and queued in self._queue.waiting:
                self._queue.waiting.remove(queued)

    def _abandon(self, queued: QueuedCall[Any]) -> bool:
        """Return whether nobody waits for a call that has left the queue. If so, nobody joins it any longer."""
        with self._changed:
            if not queued.is_wanted:
                self._queue.running.pop(queued, None)
            return not queued.is_wanted

    def _serve(self, slot: Slot) -> None:
        """Run queued calls in the slot's worker, one after another. If a worker dies before taking a call, retry it."""
        while (queued := self._next_call(slot)) is not None:
            began = time.monotonic()
            for _ in range(_TRIES):
                result = self._attempt(slot, queued)
                is_lost = isinstance(result, Failure) and result.kind == "worker_died"
                if queued.started < math.inf or not is_lost:
                    break
            if queued.on_result is not None and not isinstance(result, Failure):
                queued.on_result(result)
            with self._changed:
                self._queue.finish(queued, time.monotonic() - began)
                self._changed.notify_all()
            _resolve(queued.futures, result)

    def _next_call(self, slot: Slot) -> QueuedCall[Any] | None:
        """Wait for the next call, and replace a worker that dies or stops until then. None if the pool is closed."""
        while not self.is_closed:
            with self._changed:
                if (queued := self._queue.pop()) is not None:
                    return queued
                has_changed = self._changed.wait(_LOOK_EVERY_S)
                current = slot.worker
            # An idle worker sends nothing, so a message would be the end of file.
            if not has_changed and current is not None and (current.connection.poll() or current.is_stopped()):
                self._drop(slot)
                if self._keeps_idle_workers:
                    try:
                        self._start(slot, None)
                    except (Stopped, EOFError, OSError):
                        self._drop(slot)
        return None

    def _attempt(self, slot: Slot, queued: QueuedCall[Any]) -> Any:
        """Return a call's result or a Failure. Start a worker if there is none; drop it if the call costs it."""
        call = queued.call
        try:
            current = slot.worker or self._start(slot, queued)
            if self._abandon(queued):
                return cancelled(call.stage)
            current.connection.send(call)
            if (refusal := self._receive(current, DEADLINES_S["worker"], queued)) is not None:
                return refusal
            queued.started = time.monotonic()  # the worker has taken the call
            return self._receive(current, call.deadline_s or DEADLINES_S[call.stage], queued)
        except Stopped as reason:
            failure = reason.failure
        except (EOFError, OSError):
            how = "before it took the work" if queued.started == math.inf else current.explain_end()
            failure = died(call.stage, how)
        except Exception as error:  # arguments that can't be sent, or an answer that can't be read
            return Failure(call.stage, "error", f"{type(error).__name__}: {error}")
        self._drop(slot)
        return _closed(call.stage) if self.is_closed else failure

    def _start_worker(self, queued: QueuedCall[Any] | None) -> Worker:
        return Worker(*self._worker_arguments)

    def _start(self, slot: Slot, queued: QueuedCall[Any] | None) -> Worker:
        """Start a worker, and wait until it is ready.

        Raises:
            Stopped: none can be started.
            EOFError, OSError: it died before it was ready.
        """
        try:
            started = self._start_worker(queued)
        except RuntimeError as error:  # a script without a main guard: each worker imports it
            raise OSError(str(error)) from error
        _limit_stalls(started.connection)
        with self._changed:
            slot.worker = started
            if self.is_closed:
                started.kill()
        started.process_id = self._receive(started, DEADLINES_S["worker"], queued)
        self.has_started = True
        return started

    def _receive(self, current: Worker, deadline_s: float, queued: QueuedCall[Any] | None) -> Any:
        """Return a worker's next message.

        Raises:
            Stopped: it missed the deadline or was stopped, or nobody waits for the call that it runs.
            EOFError, OSError: it died.
        """
        stage = queued.call.stage if queued else "worker"
        began = time.monotonic()
        while not current.connection.poll(_LOOK_EVERY_S):
            now = time.monotonic()
            if now - began > deadline_s:
                message = f"The {stage} stage did not end within {deadline_s:g} s, so its worker was killed. {_NEXT}"
                raise Stopped(Failure(stage, "timeout", message))
            if current.is_stopped():
                raise Stopped(died(stage, "it was stopped"))
            if queued and now - queued.started > (queued.call.key is not None) * PATIENCE_S and self._abandon(queued):
                raise Stopped(cancelled(stage))
        return current.connection.recv()

    def _drop(self, slot: Slot) -> None:
        with self._changed:
            if slot.worker is not None:
                slot.worker.kill()
                slot.worker = None


def _resolve(futures: Sequence[Future[Any]], result: Any) -> None:
    for future in futures:
        with suppress(InvalidStateError):  # cancelled
            future.set_result(result)


def cancelled(stage: str) -> Failure:
    return Failure(stage, "cancelled", f"Cancelled in the {stage} stage; the work was ended.")


def died(stage: str, how: str) -> Failure:
    return Failure(stage, "worker_died", f"The worker died in the {stage} stage ({how}). {_NEXT}")


def _closed(stage: str) -> Failure:
    return Failure(stage, "cancelled", "The page was closed.")


_NEXT = "The next run gets a fresh one."


def _limit_stalls(connection: Connection[Any, Any]) -> None:
    """Let a stalled transfer raise BlockingIOError."""
    with socket.socket(fileno=os.dup(connection.fileno())) as stream:
        for option, seconds in ((socket.SO_RCVTIMEO, _RECEIVE_STALL_S), (socket.SO_SNDTIMEO, _SEND_STALL_S)):
            stream.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", seconds, 0))


def _work(connection: Connection[Any, Any], environment: Mapping[str, str], *arguments: Any) -> None:
    """Be a worker. The fork server has the environment of the time when it was started.

    Linux kills this process when the fork server ends, which it does when the page's process is gone. A worker that
    compiles holds Python's lock and would notice nothing itself. The server ends when all copies of a pipe's end are
    closed: the workers close theirs, so that only the page's counts.
    """
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the page, which ends the workers
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]
    worker.start(*arguments)
    connection.send(os.getpid())  # ready
    worker.serve(connection)
