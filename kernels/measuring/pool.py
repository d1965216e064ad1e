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
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
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

# Seconds between two looks at the workers.
_LOOK_EVERY_S = 0.25

# Looks in which a worker must be stopped: a shell's Ctrl-Z and `fg` stop and continue it together with the page.
_STOPPED_LOOKS = 4

# Workers that are tried for a call. The second can fail if the fork server was killed together with the first.
_TRIES = 3

# prctl(2), <linux/prctl.h>.
_PR_SET_PDEATHSIG = 1

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

    def __init__(self, environment: Mapping[str, str], *arguments: Any) -> None:
        context = _context()
        self.connection, theirs = context.Pipe()
        with _PROCESSES, theirs:
            self._process = context.Process(  # type: ignore[attr-defined]
                target=_work, args=(theirs, environment, *arguments), daemon=True
            )
            self._process.start()
        self.process_id: int = self._process.pid

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


class _Slot:
    """One thread of a pool and its worker.

    Attributes:
        is_idle: the thread waits for a call.
        limit: when the worker is killed.
        reason: why the watchdog killed the worker.
        must_start: an idle worker died, and the thread has to start another.
        is_released: the worker ends when it is idle.
        looks: in which the worker was stopped, in a row.
    """

    def __init__(self) -> None:
        self.worker: Worker | None = None
        self.queued: QueuedCall[Any] | None = None
        self.is_idle = self.must_start = self.is_released = False
        self.limit, self.reason, self.looks = math.inf, "", 0


class Pool:
    """Worker processes with one fair queue, started when first needed.

    A worker that dies or is stopped, busy or idle, is replaced. It costs at most the call that it had taken. Each
    worker has a thread here, which waits for its answers. A watchdog enforces deadlines.

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
        self._shared: dict[Any, QueuedCall[Any]] = {}
        self._slots: list[_Slot] = []
        # A condition's lock is reentrant: a signal handler that closes the pool may interrupt the lock's holder. No
        # future is resolved while it is held.
        self._changed = threading.Condition()
        self._look = threading.Event()
        self.is_closed = False
        # Whether any worker has started.
        self.has_started = False

    def __len__(self) -> int:
        """Return the number of calls in flight, waiting ones included."""
        with self._changed:
            return len(self._queue) + sum(slot.queued is not None for slot in self._slots)

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
            queued = self._shared.get(call.key)
            if queued is None:
                if self.is_closed:
                    future.set_result(_closed(call.stage))
                    return future
                if refusal := self._queue.refuse(client):
                    future.set_result(Failure(call.stage, "busy", refusal))
                    return future
                queued = QueuedCall(call, client, estimate_s, on_result)
                self._queue.push(queued)
                if call.key is not None:
                    self._shared[call.key] = queued
                free = sum(slot.queued is None for slot in self._slots)
                if free < len(self._queue) and len(self._slots) < self._count:
                    self._add_slot()
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
            for slot in self._slots:
                if slot.worker is not None:
                    slot.worker.kill()

    def close(self) -> None:
        """Kill the workers for good; calls in flight fail."""
        with self._changed:
            self.is_closed = True
            waiting = self._queue.clear()
            self._shared.clear()
            workers = [slot.worker for slot in self._slots if slot.worker is not None]
            for each in workers:
                each.kill()
            self._changed.notify_all()
        self._look.set()
        for queued in waiting:
            _resolve(queued.futures, _closed(queued.call.stage))
        for each in workers:
            each.explain_end()

    def _add_slot(self) -> None:
        if not self._slots:
            threading.Thread(target=self._watch, name="pool watchdog", daemon=True).start()
        slot = _Slot()
        self._slots.append(slot)
        threading.Thread(target=self._serve, args=(slot,), name="pool slot", daemon=True).start()

    def _leave(self, queued: QueuedCall[Any], future: Future[Any]) -> None:
        with suppress(RuntimeError):  # the cancelled future may have been notified
            future.set_running_or_notify_cancel()
        with self._changed:
            if not queued.is_wanted and self._queue.discard(queued):
                self._forget(queued)
        self._look.set()

    def _forget(self, queued: QueuedCall[Any]) -> None:
        """Let no more clients join a call."""
        if self._shared.get(queued.call.key) is queued:
            del self._shared[queued.call.key]

    def _serve(self, slot: _Slot) -> None:
        """Run queued calls in the slot's worker, one after another. If a worker dies before taking a call, retry it."""
        while (queued := self._next_call(slot)) is not None:
            call, began, result = queued.call, time.monotonic(), None
            for _ in range(_TRIES):
                try:
                    current = slot.worker or self._start(slot, queued)
                    if not queued.is_wanted:
                        result = cancelled(call.stage)
                        break
                    current.connection.send(call)
                    if (result := current.connection.recv()) is None:  # no refusal: the worker has taken the call
                        queued.started = time.monotonic()
                        slot.limit = queued.started + DEADLINES_S[call.stage]
                        result = current.connection.recv()
                    break
                except Stopped as reason:
                    result = reason.failure
                    break
                except (EOFError, OSError):
                    result = self._explain_loss(slot, queued)
                    if queued.started < math.inf or self.is_closed or result.kind != "worker_died":
                        break
                except Exception as error:  # arguments that can't be sent, or an answer that can't be read
                    result = Failure(call.stage, "error", f"{type(error).__name__}: {error}")
                    break
            if queued.on_result is not None and not isinstance(result, Failure):
                queued.on_result(result)
            with self._changed:
                slot.queued, slot.limit, slot.reason = None, math.inf, ""
                self._queue.finish(queued, time.monotonic() - began)
                self._forget(queued)
                self._end_released(slot)
                self._changed.notify_all()
            _resolve(queued.futures, result)

    def _next_call(self, slot: _Slot) -> QueuedCall[Any] | None:
        """Wait for the next call, and replace a worker that dies while it waits. None if the pool is closed."""
        while True:
            with self._changed:
                slot.is_idle = True
                while not self.is_closed and not slot.must_start and (queued := self._queue.pop()) is None:
                    self._changed.wait()
                slot.is_idle = False
                if self.is_closed:
                    return None
                if not slot.must_start:
                    slot.queued = queued
                    return queued
                slot.must_start = False
            try:
                self._start(slot, None)
            except (EOFError, OSError):
                self._lose(slot)

    def _start_worker(self, queued: QueuedCall[Any] | None) -> Worker:
        return Worker(*self._worker_arguments)

    def _start(self, slot: _Slot, queued: QueuedCall[Any] | None) -> Worker:
        """Start a worker, and wait until it is ready.

        Raises:
            Stopped: none can be started.
            EOFError, OSError: it died before it was ready.
        """
        slot.limit = time.monotonic() + DEADLINES_S["worker"]
        try:
            started = self._start_worker(queued)
        except RuntimeError as error:  # a script without a main guard: each worker imports it
            raise OSError(str(error)) from error
        with self._changed:
            slot.worker, slot.looks = started, 0
            if self.is_closed:
                started.kill()
        started.connection.recv()
        self.has_started = True
        slot.limit = math.inf
        return started

    def _explain_loss(self, slot: _Slot, queued: QueuedCall[Any]) -> Failure:
        """Return why the worker of a slot is gone, as a Failure of the call."""
        lost, reason = self._lose(slot)
        stage = queued.call.stage
        if self.is_closed:
            return _closed(stage)
        if reason == "cancelled":
            return cancelled(stage)
        if reason == "timeout":
            limit_s = DEADLINES_S[stage if queued.started < math.inf else "worker"]
            message = f"The {stage} stage did not end within {limit_s:g} s, so its worker was killed. {_NEXT}"
            return Failure(stage, "timeout", message)
        if queued.started == math.inf:
            return died(stage, "before it took the work")
        return died(stage, reason or (lost.explain_end() if lost else ""))

    def _lose(self, slot: _Slot) -> tuple[Worker | None, str]:
        """Kill the worker of a slot; return it, and why the watchdog had killed it already."""
        with self._changed:
            lost, slot.worker = slot.worker, None
            reason, slot.reason, slot.limit = slot.reason, "", math.inf
            if lost is not None:
                lost.kill()
        return lost, reason

    def _end_released(self, slot: _Slot) -> None:
        if slot.is_released and slot.queued is None and not len(self._queue):
            slot.is_released = False
            ended, slot.worker = slot.worker, None
            if ended is not None:
                with suppress(OSError):
                    ended.connection.send(None)
                ended.connection.close()

    def _watch(self) -> None:
        """Kill workers that miss a deadline, are stopped, or do what nobody waits for; notice idle ones that died."""
        while not self.is_closed:
            self._look.wait(_LOOK_EVERY_S)
            self._look.clear()
            with self._changed:
                for slot in self._slots:
                    if slot.worker is not None:
                        self._look_at(slot, slot.worker)

    def _look_at(self, slot: _Slot, current: Worker) -> None:
        now, queued = time.monotonic(), slot.queued
        slot.looks = slot.looks + 1 if _is_stopped(current.process_id) else 0
        if slot.is_idle and current.connection.poll():  # end of file: no answer is due
            slot.worker, slot.must_start = None, self._keeps_idle_workers
            self._changed.notify_all()
        elif now > slot.limit:
            slot.reason = "timeout"
            current.kill()
        elif slot.looks >= _STOPPED_LOOKS:
            slot.reason = "" if slot.is_idle else "it was stopped"
            current.kill()
        elif queued is not None and not queued.is_wanted:
            patience_s = 0.0 if queued.call.key is None else PATIENCE_S
            if now - queued.started > patience_s:
                self._forget(queued)
                slot.reason = "cancelled"
                current.kill()


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


def _is_stopped(process_id: int) -> bool:
    """Whether a signal has stopped a process. Linux; elsewhere only a deadline ends such a worker."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "T"
    except (OSError, IndexError):
        return False


def _context() -> BaseContext:
    if sys.platform != "linux":  # only on Linux is it safe to fork after importing torch
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    return context


def _work(connection: Connection[Any, Any], environment: Mapping[str, str], *arguments: Any) -> None:
    """Be a worker. The fork server has the environment of the time when it was started."""
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the page, which ends the workers
    if sys.platform == "linux":
        _die_with_the_page()
    worker.start(*arguments)
    worker.serve(connection)


def _die_with_the_page() -> None:
    """Have Linux kill this process when the fork server ends, which it does when the page's process is gone.

    A worker that compiles holds Python's lock and would notice nothing itself. The server ends when all copies of a
    pipe's end are closed: the workers close theirs, so that only the page's counts.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]
