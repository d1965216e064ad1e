"""The functions that a Dask worker runs for a sweep: describe its GPU, and carry out a trial on it.

This module pickles values itself, because unpickling a trial imports Triton, and Triton decides at import whether to
interpret. Until `_start` has set that, this module imports only the standard library.
"""

import functools
import os
import pickle
import signal
import socket


def dask_setup(worker: object) -> None:
    """Ignore Ctrl-C, which is meant for the process that started this worker. Dask calls this hook in a new worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def describe() -> bytes:
    """Return (device or failure, GPU or None, where), pickled."""
    from tilescope.declare.gpus import this_gpu
    from tilescope.measure import worker

    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    where = f"{socket.gethostname()}, " + (
        f"GPU {visible}" if visible else f"process {os.getpid()}"
    )
    device: object
    try:
        _start()
        device = worker.describe()
    except Exception as error:
        device = worker.to_failure("worker", error)
    return pickle.dumps((device, this_gpu(), where))


def run_trial(payload: bytes) -> bytes:
    """Carry out a trial; return its outcomes or a failure, pickled.

    Args:
        payload: (trial, GPU), pickled.
    """
    _start()
    from tilescope.measure import worker
    from tilescope.search import trial

    result: object
    try:
        result = trial.run_trial(*pickle.loads(payload))
    except Exception as error:
        result = worker.to_failure("time", error)
    worker.finish()
    return pickle.dumps(result)


@functools.cache
def _start() -> None:
    """Prepare this process before Triton is imported.

    Raises:
        RuntimeError: if Triton was already imported.
    """
    from tilescope.declare.gpus import this_gpu
    from tilescope.measure import worker

    backend = "interpreter" if this_gpu() is None else "cuda"
    worker.start(backend, str(worker.default_cache_directory() / "triton"))
