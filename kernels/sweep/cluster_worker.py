"""What a Dask worker does for a sweep: it says what it is, and carries out trials on its own GPU.

Values come pickled: to read one imports Triton, and whether that interprets must be set before. Nothing but the
standard library is imported until then.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket

_started: str = ""


def dask_setup(worker: object) -> None:
    """Called by Dask in a worker of this host: Ctrl+C is for the process that was started, which ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def described(cache: str, host: str) -> bytes:
    """(device or failure, GPU or None, where), pickled.

    Args:
        cache, host: where the client keeps compiled kernels, and its host: workers there find what it compiled.
    """
    from kernels.gpus import this_gpu

    gpu = this_gpu()
    try:
        _start("interpreter" if gpu is None else "cuda", cache, host)
    except RuntimeError as error:
        from kernels.results import Failure

        return pickle.dumps((Failure("worker", "error", str(error)), gpu, place()))
    from kernels.measuring.worker import describe

    return pickle.dumps((describe(), gpu, place()))


def attempted(payload: bytes, cache: str, host: str) -> bytes:
    """Carry out a trial: outcomes or a failure, pickled.

    Args:
        payload: (trial, GPU) pickled.
        cache, host: as of `described`.
    """
    from kernels.gpus import this_gpu

    _start("interpreter" if this_gpu() is None else "cuda", cache, host)
    from kernels.measuring.worker import finish
    from kernels.sweep.trial import attempted as carried_out

    trial, gpu = pickle.loads(payload)
    result = carried_out(trial, gpu)
    finish()
    return pickle.dumps(result)


def place() -> str:
    """This worker's host, and which of its GPUs it has."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return f"{socket.gethostname()}, GPU {visible}" if visible else f"{socket.gethostname()}, process {os.getpid()}"


def _start(backend: str, cache: str, host: str) -> None:
    """Once per process: set what must be set before Triton is imported.

    Raises:
        RuntimeError: where somebody else imported Triton here before, or the backend is another than it was.
    """
    global _started
    if _started == backend:
        return
    from kernels.measuring import worker

    if host != socket.gethostname():
        from kernels.measuring.worker import default_cache_directory

        cache = str(default_cache_directory() / "triton")
    worker.start(backend, cache)
    _started = backend
