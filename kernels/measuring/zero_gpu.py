"""A Space on ZeroGPU: its GPU, and a pool whose worker runs on a GPU that the hub lends for one job.

The hub runs a decorated function in a process that it forks, with the GPU. There the function connects to a socket of
this process and answers calls until the job is over, so that the values of one stage are there for the next. The
process may start no children. The package `spaces` is the hub's own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from markupsafe import Markup

from kernels.gpus import Gpu, gpu_or_slice
from kernels.measuring import worker
from kernels.measuring.fair_queue import QueuedCall
from kernels.measuring.pool import Pool, Stopped, Worker, cancelled, died
from kernels.results import Failure

# Calls `serve` with a GPU, in another process: the socket's path, the cache directory, seconds.
Lend = Callable[[str, str, float], None]

# Seconds that a GPU is requested for: the hub serves short requests first, and a job may end earlier.
LEASE_S = 30.0

# Seconds until a request that the hub does not answer is given up. A hub without a free GPU says so itself.
_GRANT_TIMEOUT_S = 120.0

_LOOK_EVERY_S = 0.1

# Seconds that the hub has to report how a process ended.
_REPORT_TIMEOUT_S = 2.0

# The page's first message: without it, a process whose request was given up would keep its GPU and wait for calls.
_GREETING, _GREETING_TIMEOUT_S = "calls follow", 10.0


def zero_gpu() -> Gpu:
    """Return the GPU, or the slice of one, that the hub lends; asks for no lease."""
    from spaces.config import Config

    capability = Config.zerogpu_cuda_capability_major, Config.zerogpu_cuda_capability_minor
    return gpu_or_slice(Config.zerogpu_cuda_device_name, Config.zerogpu_cuda_multi_processor_count, capability)


def make_lend() -> Lend:
    """Return `serve`, decorated for the hub. Call it once, before the page is served: the hub looks for it."""
    import spaces

    lend: Lend = spaces.GPU(serve, duration=lambda path, cache_directory, seconds: seconds)
    return lend


def serve(path: str, cache_directory: str, seconds: float) -> None:
    """Answer calls until there are no more, in the process that the hub has forked.

    Args:
        path: of the socket that calls come from.
        seconds: the longest lease; the hub reads it.
    """
    os.environ["TRITON_INTERPRET"], os.environ["TRITON_CACHE_DIR"] = "0", cache_directory
    with socket.socket(socket.AF_UNIX) as connecting:
        connecting.connect(path)
        connection: Connection[Any, Any] = Connection(connecting.detach())
    with connection:
        if not connection.poll(_GREETING_TIMEOUT_S) or connection.recv() != _GREETING:
            return
        connection.send(os.getpid())
        worker.serve(connection)
    worker.finish()


class ZeroGpuPool(Pool):
    """A pool of one worker on a lent GPU.

    Args:
        lend: calls `serve` with a GPU.
    """

    _keeps_idle_workers = False

    def __init__(self, lend: Lend, cache_directory: str) -> None:
        super().__init__("cuda", cache_directory)
        self.lend, self.cache_directory = lend, cache_directory

    def _start_worker(self, queued: QueuedCall[Any] | None) -> Worker:
        assert queued is not None
        return _LentWorker(self, queued)

    def release(self) -> None:
        """Give the GPU back as soon as the calls in flight have ended."""
        with self._changed:
            for slot in self._slots:
                slot.is_released = True
                self._end_released(slot)


class _LentWorker(Worker):
    """A GPU that the hub has lent, and the process that has it.

    Raises:
        Stopped: the hub lends no GPU, or it is no longer wanted.
    """

    def __init__(self, pool: ZeroGpuPool, queued: QueuedCall[Any]) -> None:
        self._ended: Future[None] = Future()
        self._began = time.monotonic()
        self.process_id = 0
        with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as listening:
            path = str(Path(directory, "calls"))  # only this user can open it
            listening.bind(path)
            listening.listen(1)
            listening.settimeout(_LOOK_EVERY_S)
            arguments = (self._hold_lease, pool.lend, path, pool.cache_directory, LEASE_S)
            threading.Thread(target=queued.context.run, args=arguments, daemon=True).start()
            while True:
                with contextlib.suppress(TimeoutError):
                    self.connection: Connection[Any, Any] = Connection(listening.accept()[0].detach())
                    break
                if pool.is_closed or not queued.is_wanted:
                    raise Stopped(cancelled(queued.call.stage))
                if self._ended.done():
                    raise _refused(f"No GPU was lent: {self.explain_end()}")
                if time.monotonic() - self._began > _GRANT_TIMEOUT_S:
                    raise _refused(f"No GPU was lent within {_GRANT_TIMEOUT_S:.0f} s. Try again later.")
        try:
            self.connection.send(_GREETING)
            self.process_id = self.connection.recv()
        except (EOFError, OSError) as error:
            raise Stopped(died("worker", self.explain_end())) from error

    def _hold_lease(self, lend: Lend, *arguments: Any) -> None:
        try:
            lend(*arguments)
        except BaseException as error:
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)

    def kill(self) -> None:
        if self.process_id:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process_id, signal.SIGKILL)

    def explain_end(self) -> str:
        """Return how the process ended, in the hub's words, which may be HTML."""
        with contextlib.suppress(TimeoutError):
            error = self._ended.exception(_REPORT_TIMEOUT_S)
            if error is not None:
                message = str(Markup(getattr(error, "message", error)).striptags())
                spent_s = time.monotonic() - self._began
                return (
                    f"{message}, {spent_s:.0f} s after {LEASE_S:.0f} s were requested" if spent_s > LEASE_S else message
                )
        return "its process ended"


def _refused(message: str) -> Stopped:
    return Stopped(Failure("worker", "no_gpu", message))
