"""The code that a Dask worker runs for a sweep: it describes its GPU, and carries out trials on it.

Values are pickled here and not by Dask: unpickling one imports Triton, which decides at import whether to interpret.
Until that is set, this module imports only the standard library.
"""

from __future__ import annotations

import functools
import os
import pickle
import signal
import socket


def dask_setup(worker: object) -> None:
    """Ignore Ctrl-C, which is meant for the process that started this worker. Dask calls this hook."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def describe(cache: str, host: str) -> bytes:
    """Return (device or failure, GPU or None, where), pickled.

    Args:
        cache, host: the client's directory of compiled kernels, and its host: workers there share the directory.
    """
    from kernels.gpus import this_gpu

    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    where = f"{socket.gethostname()}, " + (f"GPU {visible}" if visible else f"process {os.getpid()}")
    from kernels.measuring import worker

    device: object
    try:
        _start(cache, host)
        device = worker.describe()
    except Exception as error:
        device = worker.to_failure("worker", error)
    return pickle.dumps((device, this_gpu(), where))


def run_trial(payload: bytes, cache: str, host: str) -> bytes:
    """Carry out a trial; return its outcomes or a failure, pickled.

    Args:
        payload: (trial, GPU), pickled.
        cache, host: as for `describe`.
    """
    _start(cache, host)
    from kernels.measuring import worker
    from kernels.sweep import trial

    result: object
    try:
        result = trial.run_trial(*pickle.loads(payload))
    except Exception as error:
        result = worker.to_failure("time", error)
    worker.finish()
    return pickle.dumps(result)


@functools.cache
def _start(cache: str, host: str) -> None:
    """Prepare this process before Triton is imported.

    Raises:
        RuntimeError: if Triton was imported here before.
    """
    from kernels.gpus import this_gpu
    from kernels.measuring import worker

    if host != socket.gethostname():
        cache = str(worker.default_cache_directory() / "triton")
    worker.start("interpreter" if this_gpu() is None else "cuda", cache)
