"""Support for Hugging Face's ZeroGPU: a pool whose worker runs on a GPU that the hub lends for one job.

The hub forks a process that has the GPU, and runs a decorated function there. The function connects to a socket of this
process and answers calls until the job is over, so each stage finds the previous stage's values. The forked process may
not start child processes. The hub provides the package `spaces`.
"""

import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Client, Connection
from typing import Any

from markupsafe import Markup

from tilescope.declare.gpus import Gpu, gpu_or_slice
from tilescope.measure import worker
from tilescope.measure.fair_queue import QueuedCall
from tilescope.measure.pool import Pool, Worker, cancellation
from tilescope.results import Failure, Stopped

# Calls `serve` in another process that has a GPU, with the socket's path, the cache directory and the lease in seconds.
Lend = Callable[[str, str, float], None]

# Seconds for which a GPU is requested. The hub serves short requests first, and a job may end earlier.
LEASE_S = 30.0

# Seconds until an unanswered request is abandoned. A hub without a free GPU answers that it has none.
_GRANT_TIMEOUT_S = 120.0

_POLL_S = 0.1

# Seconds that the hub has to report how a process ended.
_REPORT_TIMEOUT_S = 2.0

# Seconds that a process waits for its first call. A process whose request was abandoned must not keep its GPU.
_FIRST_CALL_TIMEOUT_S = 10.0


def zero_gpu() -> Gpu:
    """Return the GPU, or the slice of a GPU, that the hub lends. This does not request a lease."""
    from spaces.config import Config

    capability = Config.zerogpu_cuda_capability_major, Config.zerogpu_cuda_capability_minor
    return gpu_or_slice(
        Config.zerogpu_cuda_device_name, Config.zerogpu_cuda_multi_processor_count, capability
    )


def make_lend() -> Lend:
    """Return `serve`, decorated for the hub. Call this once, before the page is served, so that the hub finds it."""
    import spaces

    return spaces.GPU(serve, duration=lambda path, cache_directory, seconds: seconds)


def serve(path: str, cache_directory: str, seconds: float) -> None:
    """Answer calls until the connection closes. Runs in the process that the hub forks.

    Args:
        path: path of the socket that sends calls.
        seconds: the longest lease; the hub reads it.
    """
    os.environ |= {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": cache_directory}
    with Client(path, "AF_UNIX") as connection:
        connection.send(os.getpid())
        if connection.poll(_FIRST_CALL_TIMEOUT_S):
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
        self.lend = lend
        self.cache_directory = cache_directory

    def _start_worker(self, queued: QueuedCall) -> Worker:
        return _LentWorker(self, queued)

    def _attempt(self, thread: int, queued: QueuedCall) -> Any:
        """Make a call. A call of `worker.finish` returns the GPU to the hub instead."""
        if queued.call.function is not worker.finish:
            return super()._attempt(thread, queued)
        with self._changed:
            if returned := self._workers.pop(thread, None):
                returned.connection.close()
        return None


class _LentWorker(Worker):
    """The process that runs on a lent GPU.

    Raises:
        Stopped: the hub lends no GPU, or the call has no waiters left.
    """

    def __init__(self, pool: ZeroGpuPool, queued: QueuedCall) -> None:
        self._error: BaseException | None = None
        self._began = time.monotonic()
        with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as listening:
            path = f"{directory}/calls"  # only this user can open it
            listening.bind(path)
            listening.listen(1)
            listening.settimeout(_POLL_S)
            arguments = (self._hold_lease, pool.lend, path, pool.cache_directory, LEASE_S)
            self._lease = threading.Thread(target=queued.context.run, args=arguments, daemon=True)
            self._lease.start()
            while True:
                with suppress(TimeoutError):
                    self.connection: Connection[Any, Any] = Connection(
                        listening.accept()[0].detach()
                    )
                    break
                if pool.is_closed or not queued.has_waiters:
                    raise Stopped(cancellation(queued.call.stage))
                if not self._lease.is_alive():
                    raise _refused(f"ZeroGPU granted no GPU: {self.explain_end()}")
                if time.monotonic() - self._began > _GRANT_TIMEOUT_S:
                    raise _refused(
                        f"ZeroGPU granted no GPU within {_GRANT_TIMEOUT_S:.0f} s. Try again later."
                    )

    def _hold_lease(self, lend: Lend, *arguments: Any) -> None:
        try:
            lend(*arguments)
        except BaseException as error:
            self._error = error

    def kill(self) -> None:
        if self.process_id:
            with suppress(ProcessLookupError):
                os.kill(self.process_id, signal.SIGKILL)

    def explain_end(self) -> str:
        """Return how the process ended, in the hub's words without their HTML tags."""
        self._lease.join(_REPORT_TIMEOUT_S)
        if self._error is None:
            return "its process ended"
        message = str(Markup(getattr(self._error, "message", self._error)).striptags())  # noqa: S704
        spent_s = time.monotonic() - self._began
        return (
            f"{message}, {spent_s:.0f} s after {LEASE_S:.0f} s were requested"
            if spent_s > LEASE_S
            else message
        )


def _refused(message: str) -> Stopped:
    return Stopped(Failure("worker", "no_gpu", message))
