"""A pool of worker processes with one fair queue. `Pool.submit` runs a call in a worker, with a deadline.

Workers are forked from a server that has imported torch, so a new worker is ready in 0.3 s instead of 2.3 s. The server
creates no CUDA context. Importing Triton fixes whether a process interprets kernels, so the server imports Triton only
after `preload_triton`, and interpreters then start on their own.
"""

import ctypes
import functools
import math
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
from multiprocessing import forkserver, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from tilescope.compiling.estimates import COMPILE_DEADLINE_S
from tilescope.measure import worker
from tilescope.measure.fair_queue import INTERNAL, Call, Client, FairQueue, QueuedCall
from tilescope.results import Failure, Stopped

T = TypeVar("T")

# Seconds that a worker may take for a call, by stage. Time spent waiting for a CPU core does not count (Linux only).
# Stage "worker" imports torch and initializes the device.
DEADLINES_S = {
    "worker": 120.0,
    "compile": COMPILE_DEADLINE_S,
    "launch": 60.0,
    "check": 60.0,
    "time": 60.0,
    "model": 20.0,
}

# A call with a key is not killed in its first PATIENCE_S seconds, even if all its clients have left. Killing it costs a
# worker, and a user who drags a slider often returns to the same value.
PATIENCE_S = 3.0

# Seconds between two polls of a worker.
_POLL_S = 0.25

# Consecutive polls that must find a worker stopped. Ctrl-Z and `fg` in a shell stop and continue it with the page.
_STOPPED_POLLS = 4

# Seconds for which a transfer may stall: a worker can be stopped in the middle of a message. A send that stalls after
# its first bytes takes twice as long to fail.
_RECEIVE_STALL_S = 3
_SEND_STALL_S = 1

# Maximum number of workers tried per call. If the fork server was killed together with the first worker, the second
# also fails.
_TRIES = 3

# prctl(2), <linux/prctl.h>.
_PR_SET_PDEATHSIG = 1

# Forking after importing torch is safe only on Linux.
_CONTEXT: Any = get_context("forkserver" if sys.platform == "linux" else "spawn")
_CONTEXT.set_forkserver_preload(["torch"])
_INTERPRETING: Any = _CONTEXT  # starts interpreters

# Process objects are not thread-safe: two threads that poll one can miss its exit status.
_PROCESSES = threading.RLock()


def preload_triton() -> None:
    """Let the fork server import Triton when it starts, so that the first compile in a worker is faster."""
    global _INTERPRETING
    _INTERPRETING = get_context("spawn")
    _CONTEXT.set_forkserver_preload(["torch", worker.PRELOADED])


def start_fork_server() -> None:
    """Start the fork server before its first worker (Linux only): its imports take seconds."""
    if sys.platform == "linux":
        forkserver.ensure_running()


class Worker:
    """A process on this machine that answers calls (see `worker.serve`).

    Args:
        environment: the process's environment variables.
        arguments: the arguments of `worker.start`.

    Attributes:
        connection: a connection to the process, which reports end of file once the process has ended.
        process_id: 0 until it is known.
        is_ready: whether the process has started.
    """

    is_ready = False
    process_id = _stopped_polls = 0

    def __init__(self, environment: Mapping[str, str], backend: str, *arguments: Any) -> None:
        context = _INTERPRETING if backend == "interpreter" else _CONTEXT
        self.connection, theirs = context.Pipe()
        with _PROCESSES, theirs:
            self._process = context.Process(
                target=_run_worker, args=(theirs, environment, backend, *arguments), daemon=True
            )
            self._process.start()
        self.process_id = self._process.pid

    def kill(self) -> None:
        self._process.kill()

    def explain_end(self) -> str:
        """Wait for the process to end, and return how it ended."""
        with _PROCESSES:
            self._process.join(2)
            status = self._process.exitcode
        if status is not None and status < 0:
            return f"killed by {signal.Signals(-status).name}"
        return f"exit status {status}"

    def is_stopped(self) -> bool:
        """Poll the process. Return whether the last _STOPPED_POLLS polls found it stopped by a signal (Linux only)."""
        self._stopped_polls = self._stopped_polls + 1 if _is_stopped(self.process_id) else 0
        return self._stopped_polls >= _STOPPED_POLLS

    def waited_s(self) -> float:
        """Return the seconds for which the process has waited for a CPU core; 0 if unknown."""
        try:
            _, waited_ns, _ = Path(f"/proc/{self.process_id}/schedstat").read_text().split()
        except OSError:
            return 0.0
        return int(waited_ns) / 1e9


def _is_stopped(process_id: int | None) -> bool:
    try:
        status = Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return status.rpartition(")")[2].startswith(" T")


@functools.cache
def watch_fork_server() -> None:
    """Start a thread that kills the fork server when it is stopped (Linux only).

    A stopped fork server would block the start of every worker. Killing it ends its workers, and multiprocessing starts
    a new one for the next worker.
    """

    def watch() -> None:
        stopped_polls = 0
        while True:
            time.sleep(_POLL_S)
            stopped_polls = stopped_polls + 1 if _is_stopped(_fork_server_id()) else 0
            if stopped_polls >= _STOPPED_POLLS:
                kill_fork_server()

    threading.Thread(target=watch, name="fork server", daemon=True).start()


def kill_fork_server() -> None:
    """Kill the fork server, and with it all workers, without waiting for a lock (Linux only)."""
    if process_id := _fork_server_id():
        with suppress(ProcessLookupError):
            os.kill(process_id, signal.SIGKILL)


def _fork_server_id() -> int | None:
    return forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]


class Pool:
    """Worker processes with one fair queue. A worker is started when first needed.

    The pool replaces a worker that dies or is stopped, whether busy or idle. At most the call that the worker had taken
    is lost. One thread per worker sends it calls and monitors it.

    Args:
        backend, cache_directory, preload: as for `worker.start`.
        count: maximum number of processes (`max_concurrency`).
        short_s: as for `FairQueue`.
    """

    _keeps_idle_workers = True

    def __init__(
        self,
        backend: str,
        cache_directory: str,
        count: int = 1,
        preload: Sequence[str] = (),
        short_s: float = math.inf,
    ) -> None:
        self._worker_arguments = dict(os.environ), backend, cache_directory, tuple(preload)
        self.max_concurrency = count
        self._queue = FairQueue(count, short_s=short_s)
        self._threads = 0
        self._workers: dict[int, Worker] = {}  # by the number of their thread
        # The lock must be reentrant, as a Condition's is: a signal handler that closes the pool may interrupt the
        # thread that holds the lock. No future is resolved under this lock.
        self._changed = threading.Condition()
        self.is_closed = False

    @property
    def has_ready_worker(self) -> bool:
        with self._changed:
            return any(each.is_ready for each in self._workers.values())

    def __len__(self) -> int:
        """Return the number of calls in flight, including waiting calls."""
        with self._changed:
            return len(self._queue.waiting) + len(self._queue.running)

    def submit(
        self,
        call: Call[T],
        client: Client = INTERNAL,
        estimate_s: float = 0.0,
        on_result: Callable[[T | Failure], None] | None = None,
    ) -> Future[T | Failure]:
        """Queue a call, or join a call in flight that has the same key. Return immediately.

        Cancel the returned future to give up. Once all futures of a call are cancelled, the call leaves the queue, or
        its worker is killed. Every other problem resolves the future to a Failure: a missed deadline, a dead worker, an
        exception, a client with too many waiting calls, or a closed pool.

        Args:
            estimate_s: the call's estimated duration.
            on_result: called with the result or Failure of a call that a worker took, before any future receives it.
        """
        future: Future[T | Failure] = Future()
        with self._changed:
            in_flight = () if call.key is None else (*self._queue.waiting, *self._queue.running)
            queued = next((each for each in in_flight if each.call.key == call.key), None)
            if self.is_closed:
                future.set_result(_closed_failure(call.stage))
                return future
            if queued is None:
                if refusal := self._queue.explain_refusal(client):
                    future.set_result(Failure(call.stage, "busy", refusal))
                    return future
                queued = QueuedCall(call, client, estimate_s, on_result)
                self._queue.waiting.append(queued)
                if self._threads < min(self.max_concurrency, len(self)):
                    watch_fork_server()
                    threading.Thread(
                        target=self._serve, args=(self._threads,), name="pool", daemon=True
                    ).start()
                    self._threads += 1
                self._changed.notify_all()
            queued.futures.append(future)
        future.add_done_callback(functools.partial(self._leave, queued))
        return future

    def replace(self) -> None:
        """Kill the workers. Calls that they have taken fail, and new workers take the waiting calls."""
        with self._changed:
            for each in self._workers.values():
                each.kill()

    def close(self) -> None:
        """Kill the workers without replacement. Calls in flight fail."""
        with self._changed:
            self.is_closed = True
            waiting = self._queue.waiting
            self._queue.waiting = []
            workers = [*self._workers.values()]
            self.replace()
            self._changed.notify_all()
        for queued in waiting:
            _resolve(queued, _closed_failure(queued.call.stage))
        for each in workers:
            each.explain_end()

    def _leave(self, queued: QueuedCall, future: Future[Any]) -> None:
        if not future.cancelled():
            return
        with suppress(RuntimeError):  # the cancelled future may already be notified
            future.set_running_or_notify_cancel()
        with self._changed:
            queued.futures = [each for each in queued.futures if each is not future]
            if not queued.has_waiters and queued in self._queue.waiting:
                self._queue.waiting.remove(queued)

    def _abandon(self, queued: QueuedCall) -> bool:
        """Abandon a running call that has no waiters, so that no client joins it. Return whether it was abandoned."""
        with self._changed:
            if not queued.has_waiters:
                self._queue.running.pop(queued, None)
            return not queued.has_waiters

    def _serve(self, thread: int) -> None:
        """Run queued calls in the thread's worker, one by one. Retry a call if its worker dies before taking it."""
        while queued := self._next_call(thread):
            began = time.monotonic()
            for _ in range(_TRIES):
                result = self._attempt(thread, queued)
                is_lost = isinstance(result, Failure) and result.kind == "worker_died"
                if queued.started < math.inf or not is_lost:
                    break
                time.sleep(_POLL_S)  # a killed fork server may take a moment to end
            if queued.on_result:
                queued.on_result(result)
            with self._changed:
                self._queue.finish(queued, time.monotonic() - began)
                self._changed.notify_all()
            _resolve(queued, result)

    def _next_call(self, thread: int) -> QueuedCall | None:
        """Wait for the next call; None once closed. Replace the worker if it dies or stops in the meantime."""
        while not self.is_closed:
            with self._changed:
                if queued := self._queue.pop():
                    return queued
                has_changed = self._changed.wait(_POLL_S)
                current = self._workers.get(thread)
            # An idle worker sends nothing, so readable data means end of file.
            if not has_changed and current and (current.connection.poll() or current.is_stopped()):
                self._drop(thread)
                if self._keeps_idle_workers:
                    # Start a worker. The call has no waiters, so it is not sent.
                    self._attempt(thread, QueuedCall(Call("worker", os.getpid)))
        return None

    def _attempt(self, thread: int, queued: QueuedCall) -> Any:
        """Return a call's result or a Failure. Start a worker if there is none. Drop it if it dies or is killed."""
        call = queued.call
        try:
            current = self._workers.get(thread) or self._start(thread, queued)
            if self._abandon(queued):
                return cancellation(call.stage)
            current.connection.send(call)
            if refusal := self._receive(current, DEADLINES_S["worker"], queued):
                return refusal
            queued.started = time.monotonic()  # the worker has taken the call
            return self._receive(current, DEADLINES_S[call.stage], queued)
        except Stopped as reason:
            failure = reason.failure
        except (EOFError, OSError):
            how = (
                "before it accepted the call"
                if queued.started == math.inf
                else current.explain_end()
            )
            failure = worker_death(call.stage, how)
        except Exception as error:  # the arguments or the result can't be pickled
            return Failure(call.stage, "error", f"{type(error).__name__}: {error}")
        self._drop(thread)
        return _closed_failure(call.stage) if self.is_closed else failure

    def _start_worker(self, queued: QueuedCall) -> Worker:
        return Worker(*self._worker_arguments)

    def _start(self, thread: int, queued: QueuedCall) -> Worker:
        """Start a worker, and wait until it is ready.

        Raises:
            Stopped: no worker can be started.
            EOFError, OSError: the worker died before it was ready.
        """
        try:
            started = self._start_worker(queued)
        except RuntimeError as error:  # a script without a main guard: each worker imports it
            raise OSError(str(error)) from error
        _limit_stalls(started.connection)
        with self._changed:
            self._workers[thread] = started
            if self.is_closed:
                started.kill()
        started.process_id = self._receive(started, DEADLINES_S["worker"], queued)
        started.is_ready = True
        return started

    def _receive(self, current: Worker, deadline_s: float, queued: QueuedCall) -> Any:
        """Return a worker's next message.

        Raises:
            Stopped: the worker missed the deadline or was stopped, or its call has no waiters left.
            EOFError, OSError: the worker died.
        """
        stage = queued.call.stage
        began = time.monotonic() - current.waited_s()
        while not current.connection.poll(_POLL_S):
            now = time.monotonic()
            if now - current.waited_s() - began > deadline_s:
                message = f"The {stage} stage did not end within {deadline_s:g} s, so its worker was killed. {_NEXT}"
                raise Stopped(Failure(stage, "timeout", message))
            if current.is_stopped():
                raise Stopped(worker_death(stage, "it was suspended"))
            may_kill = now - queued.started > (queued.call.key is not None) * PATIENCE_S
            if may_kill and self._abandon(queued):
                raise Stopped(cancellation(stage))
        return current.connection.recv()

    def _drop(self, thread: int) -> None:
        with self._changed:
            if dropped := self._workers.pop(thread, None):
                dropped.kill()


def _resolve(queued: QueuedCall, result: Any) -> None:
    # A call and its futures refer to each other. This cycle would keep the result until the next full collection.
    futures = queued.futures
    queued.futures = []
    for future in futures:
        with suppress(InvalidStateError):  # cancelled
            future.set_result(result)


def cancellation(stage: str) -> Failure:
    return Failure(stage, "cancelled", f"Cancelled in the {stage} stage.")


def worker_death(stage: str, how: str) -> Failure:
    return Failure(stage, "worker_died", f"The worker died in the {stage} stage ({how}). {_NEXT}")


def _closed_failure(stage: str) -> Failure:
    return Failure(stage, "cancelled", "Tilescope is shutting down.")


_NEXT = "The next run gets a new worker."


def _limit_stalls(connection: "Connection[Any, Any]") -> None:
    """Make a stalled transfer raise BlockingIOError."""
    with socket.socket(fileno=os.dup(connection.fileno())) as stream:
        for option, seconds in (
            (socket.SO_RCVTIMEO, _RECEIVE_STALL_S),
            (socket.SO_SNDTIMEO, _SEND_STALL_S),
        ):
            stream.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", seconds, 0))


def end_with_parent() -> None:
    """Have Linux kill this process when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _run_worker(
    connection: "Connection[Any, Any]", environment: Mapping[str, str], *arguments: Any
) -> None:
    """Run a worker. Set its environment, because the fork server has the environment from the time of its start.

    When the page's process ends, the fork server exits, and Linux then kills this process. A compiling worker holds the
    GIL and could not notice the exit itself. The fork server lives until all copies of its keep-alive pipe are closed.
    Workers therefore close theirs, so that only the page's copy keeps it alive.
    """
    os.environ.clear()
    os.environ.update(environment)
    # A terminal's Ctrl-C is for the page, which kills the workers
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Keep what scripts print out of the command's own output
    with suppress(OSError):  # the shell closed it: `2>&-`
        os.dup2(2, 1)
    end_with_parent()
    alive_fd = forkserver._forkserver._forkserver_alive_fd  # type: ignore[attr-defined]
    if alive_fd is not None:
        os.close(alive_fd)
    worker.start(*arguments)
    with suppress(BrokenPipeError):  # a command that refuses its arguments ends at once
        connection.send(os.getpid())  # ready
        worker.serve(connection)
