"""Tune on several GPUs, of this host or of others, with Dask. Each sweep is a task; each GPU has one Dask worker.

A Dask worker has its own session. Compiles and launches run in the session's processes, so a corrupt CUDA context does
not end the worker. If a worker dies, another one resumes its sweeps from the rows that the client has received.
`distributed` is an optional dependency, imported only when needed.
"""

import contextlib
import importlib.util
import logging
import os
import pickle
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from tilescope.declare.experiment import Experiment
from tilescope.declare.gpus import DEFAULT_GPU, GPUS, visible_devices, visible_gpus
from tilescope.declare.knobs import ConfigError
from tilescope.measure.pool import end_with_parent
from tilescope.measure.session import Session
from tilescope.results import Sweep
from tilescope.search.search import Task
from tilescope.search.sweep_run import make_sweep
from tilescope.search.trial import concurrent_compiles
from tilescope.search.tune import SWEEPS_PER_GPU, StoredRows, make_relay, warm_up

# Environment variable with the address of an existing cluster's scheduler, such as tcp://host:8786.
SCHEDULER = "TILESCOPE_SCHEDULER"

# Environment variable with the number of workers that share this host's cores.
_WORKERS_PER_HOST = "TILESCOPE_WORKERS_PER_HOST"

# Maximum number of seconds without a worker.
ARRIVAL_S = 60.0

_POLL_S = 0.1
_LOST = "The connection to the Dask scheduler is lost. Finished rows are stored."
_ROWS = "tilescope-rows"


class ClusterLost(ConfigError):
    """The scheduler, all workers, or a worker of this host has ended."""


class ClusterTuner:
    """A `Tuner` on the GPUs of one model in a Dask cluster.

    Args:
        client: of the scheduler.
        base: the experiment whose `gpu` selects the model if there are several.
        rows: receives the rows of all sweeps.

    Raises:
        ConfigError: if no worker connects, or the GPU model is missing or ambiguous.
    """

    def __init__(self, client: Any, base: Experiment, rows: StoredRows) -> None:
        deadline = time.monotonic() + ARRIVAL_S
        while not (kinds := count_kinds(client)):
            if time.monotonic() > deadline:
                address = client.scheduler.address
                raise ConfigError(
                    "no_workers",
                    f"The cluster has no worker: start `tilescope tune --join {address}` on each host.",
                )
            time.sleep(_POLL_S)
        self._kind = select_kind(kinds, base.gpu)  # the workers' Dask resource
        self.gpu = GPUS.get(self._kind, GPUS[DEFAULT_GPU])
        self._client = client
        self._futures: list[Any] = []
        self._had_workers = time.monotonic()
        client.subscribe_topic(_ROWS, lambda event: rows.receive(*pickle.loads(event[1])))

    def capacity(self) -> int:
        workers = count_kinds(self._client)[self._kind]
        now = time.monotonic()
        if workers:
            self._had_workers = now
        elif now - self._had_workers > ARRIVAL_S:
            message = (
                f"The cluster has had no worker for {ARRIVAL_S:g} s. Finished rows are stored."
            )
            raise ClusterLost("no_workers", message)
        return SWEEPS_PER_GPU * max(1, workers)

    def submit(self, task: Task) -> Future[Sweep]:
        done: Future[Sweep] = Future()
        submitted = self._client.submit(
            run_task, pickle.dumps(task), resources={self._kind: 1}, pure=False, retries=0
        )
        self._futures.append(submitted)

        def resolve(ended: Any) -> None:
            if ended.status == "finished":
                done.set_result(pickle.loads(ended.result()))
            elif ended.status == "error":
                message = f"A task failed in its Dask worker: {ended.exception()}"
                done.set_exception(ClusterLost("task_failed", message))
            else:  # Dask cancels all tasks
                done.set_exception(ClusterLost("no_scheduler", _LOST))

        submitted.add_done_callback(resolve)
        return done

    def cancel(self) -> None:
        self._client.run(cancel_tasks, on_error="ignore")


def count_kinds(client: Any) -> Counter[str]:
    """Count the connected workers by GPU model."""
    # Not `Client.scheduler_info`: a periodic update may have overwritten its result with one that has no workers.
    workers = client.sync(client.scheduler.identity, n_workers=-1)["workers"].values()
    return Counter(kind for worker in workers for kind in worker["resources"] or {})


@contextlib.contextmanager
def connect(gpus: int) -> Iterator[Any]:
    """Yield a client of the cluster that SCHEDULER names or, if it is unset, of this host's GPUs.

    Args:
        gpus: the number of this host's GPUs; 0 for all.

    Raises:
        ConfigError: if `distributed` is not installed, the host has too few GPUs, or the scheduler does not answer or
            ends.
    """
    _check_installed()
    import dask
    import distributed

    with contextlib.ExitStack() as stack:
        if address := os.environ.get(SCHEDULER):
            client = stack.enter_context(_open_client(address, SCHEDULER))
        else:
            devices = visible_devices()
            if not devices or gpus > len(devices):
                flag = gpus or "all"
                available = len(devices) or "none"
                raise ConfigError("too_few_gpus", f"--gpus is {flag}; this host has {available}.")
            # `tune` restarts a sweep whose worker dies, so Dask must not
            settings = {"distributed.scheduler.allowed-failures": 0}
            stack.enter_context(dask.config.set(settings))
            options = {"n_workers": 0, "dashboard_address": None, "silence_logs": "CRITICAL"}
            local = stack.enter_context(distributed.LocalCluster(**options))
            client = stack.enter_context(distributed.Client(local, set_as_default=False))
            stack.enter_context(start_workers(local.scheduler_address, devices[: gpus or None]))
        client.register_worker_callbacks(setup=prepare_session)
        try:
            yield client
        except OSError as error:
            if error.errno is not None:
                raise
            # Dask's errors: CommClosedError, or a time-out while reconnecting
            raise ClusterLost("no_scheduler", _LOST) from error


def _check_installed() -> None:
    if importlib.util.find_spec("distributed") is None:
        message = 'Several GPUs need the package distributed: pip install "tilescope[cluster]"'
        raise ConfigError("no_distributed", message)


def _open_client(address: str, setting: str) -> Any:
    """Return a client of a scheduler.

    Args:
        setting: the name of the address for error messages.
    """
    import distributed
    from distributed.comm.addressing import get_address_host

    try:
        get_address_host(address)
    except ValueError as error:
        message = f"{setting} must be an address such as tcp://host:8786 (got {address!r})."
        raise ConfigError("bad_address", message) from error
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    try:
        return distributed.Client(address, timeout=ARRIVAL_S / 2, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        message = f"No scheduler answers at {address!r} ({setting})."
        raise ConfigError("no_scheduler", message) from error


def select_kind(kinds: Counter[str], named: str) -> str:
    """Return the GPU model to use, because times of different models are never ranked together.

    Raises:
        ConfigError: if the cluster lacks the named model, or has several models and none is named.
    """
    present = ", ".join(f"{count} × {name}" for name, count in kinds.items())
    if named in kinds:
        return named
    if named not in ("", "this"):
        raise ConfigError("no_such_gpu", f"gpu is {named!r}, but the cluster has {present}.", "gpu")
    if len(kinds) > 1:
        reason = f"The cluster has {present}; times of different GPUs are not ranked together."
        raise ConfigError("several_gpus", f"{reason} Choose one with --gpu.", "gpu")
    return next(iter(kinds))


@contextlib.contextmanager
def start_workers(address: str, devices: Sequence[str]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start one Dask worker per device, and kill the workers at the end.

    Args:
        address: the scheduler's address.
        devices: as CUDA_VISIBLE_DEVICES names them; "" hides all GPUs from a worker.
    """
    kinds = [gpu.name for gpu in visible_gpus()] or ["none"] * len(devices)
    workers = []
    for device, kind in zip(devices, kinds, strict=False):
        environment = {
            "CUDA_VISIBLE_DEVICES": device,
            "DASK_LOGGING__DISTRIBUTED": "error",
            _WORKERS_PER_HOST: str(len(devices)),
        }
        flags = ["--nthreads", str(SWEEPS_PER_GPU), "--resources", f"{kind}={SWEEPS_PER_GPU}"]
        command = [sys.executable, "-m", "distributed.cli.dask_worker", address, *flags]
        command += ["--no-nanny", "--no-dashboard", "--memory-limit", "0"]
        workers.append(
            subprocess.Popen(
                command,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # a signal to the command's group lets it cancel their sweeps
                preexec_fn=end_with_parent,
            )
        )
    try:
        yield workers
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def join(address: str) -> None:
    """Work for a scheduler with all GPUs of this host, until it ends or until Ctrl+C.

    Raises:
        ConfigError: if `distributed` is not installed, the scheduler does not answer, or a worker is killed.
    """
    _check_installed()
    _open_client(address, "--join").close()
    with (
        start_workers(address, visible_devices() or [""]) as workers,
        contextlib.suppress(KeyboardInterrupt),
    ):
        if min(worker.wait() for worker in workers) < 0:
            raise ClusterLost("worker_died", "A Dask worker of this host was killed.")


# The functions below run in a Dask worker.


# Tasks that start together must share a session: two run workers would time on the same GPU.
_starting = threading.Lock()
# By the hash of the script's code, because compile workers import a script only once. None: not used yet.
_sessions: dict[str | None, Session] = {}


def prepare_session() -> None:
    """Start this process's session before the first task."""
    with _starting:
        if not _sessions:
            _sessions[None] = _start_session()


def _find_session(source: str) -> Session:
    with _starting:
        if source not in _sessions:
            is_prepared = None in _sessions
            _sessions[source] = _sessions.pop(None) if is_prepared else _start_session()
        return _sessions[source]


def _start_session() -> Session:
    sharing = int(os.environ.get(_WORKERS_PER_HOST, "1"))
    session = Session.here(max(1, concurrent_compiles() // sharing))
    warm_up(session)
    return session


_runs = list[Any]()


def run_task(payload: bytes) -> bytes:
    """Run a sweep, and send its rows to the client as they arrive. Return the pickled `Sweep`.

    Args:
        payload: a pickled `Task`.
    """
    from distributed import get_worker

    worker = get_worker()
    task: Task = pickle.loads(payload)
    relay = make_relay(lambda *message: worker.log_event(_ROWS, pickle.dumps(message)))
    run = make_sweep(_find_session(task.space.source), task, relay)
    _runs.append(run)
    return pickle.dumps(run.start().result())


def cancel_tasks() -> None:
    """Cancel this worker's sweeps."""
    for run in _runs:
        run.cancel()
