"""Several GPUs as a sweep's devices, through Dask's `distributed`: those of this host, or of a cluster that exists.

One worker process per GPU, with one thread and the resource GPU=1. A trial is one task, bound to its worker: when the
process dies the task is given up here, so that the search can try its configs elsewhere, and Dask's nanny starts the
process anew. Whatever can have harmed a CUDA context costs the process. `distributed` is imported where it is used.
"""

from __future__ import annotations

import os
import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from kernels.experiment import Experiment, resolve_gpu
from kernels.gpus import DEFAULT_GPU, GPUS, Gpu, visible_devices
from kernels.knobs import ConfigError
from kernels.measuring.pool import DEADLINES_S, cancelled, died
from kernels.measuring.worker import default_cache_directory
from kernels.results import Device, Failure, Strategy
from kernels.space import Space
from kernels.store import Store
from kernels.sweep import cluster_worker
from kernels.sweep.builder import LocalBuilder
from kernels.sweep.device import GONE, Outcomes, Predict, Refuse, Trial
from kernels.sweep.kept_sweep import Before, kept_and_keeper
from kernels.sweep.local_device import AT_ONCE, too_slow
from kernels.sweep.sweeping import Sweeping

# Where the scheduler of a cluster that exists is, as in tcp://host:8786.
SCHEDULER = "TILESCOPE_SCHEDULER"

# What a worker has one of.
RESOURCE = "GPU"

# Seconds for workers to come, and for one that died to be started anew.
_ARRIVAL_S = 60.0

# How often a task under way is looked at.
_LOOK_S = 0.1

# Failures after which a CUDA context can't be trusted.
_POISONS = {"cuda_error", "error", "timeout"}


def installed() -> Any:
    """The package `distributed`.

    Raises:
        ConfigError: where it is not installed, with what to do.
    """
    try:
        import distributed
    except ImportError as error:
        raise ConfigError(
            "no_distributed", "Several GPUs need the package distributed: pip install -r requirements-cluster.txt"
        ) from error
    return distributed


@contextmanager
def workers_here(devices: Sequence[str]) -> Iterator[Any]:
    """A client of a cluster on this host, one worker for each device; ended in the end.

    Args:
        devices: as CUDA_VISIBLE_DEVICES names them; an empty name hides all GPUs from its worker.
    """
    distributed = installed()
    spec = {
        f"gpu-{number}": {
            "cls": distributed.Nanny,
            "options": {
                "nthreads": 1,
                "resources": {RESOURCE: 1},
                "env": {"CUDA_VISIBLE_DEVICES": device},
                "memory_limit": 0,  # a kernel author's tensors are no reason to kill a worker
                "dashboard": False,
                "preload": [cluster_worker.__name__],
                "silence_logs": "ERROR",
            },
        }
        for number, device in enumerate(devices)
    }
    scheduler = {"cls": distributed.Scheduler, "options": {"dashboard": False, "port": 0, "host": "127.0.0.1"}}
    with (
        distributed.SpecCluster(spec, scheduler=scheduler, silence_logs="ERROR") as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


@contextmanager
def workers_of(scheduler: str) -> Iterator[Any]:
    """A client of a cluster that exists.

    Raises:
        ConfigError: where its scheduler does not answer.
    """
    distributed = installed()
    try:
        client = distributed.Client(scheduler, timeout=_ARRIVAL_S / 2, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise ConfigError("no_scheduler", f"{SCHEDULER} is {scheduler!r}; no scheduler answers there.") from error
    with client:
        yield client


@contextmanager
def client_of(gpus: int | None) -> Iterator[Any]:
    """A client of the cluster that SCHEDULER names or, without it, of one on this host.

    Args:
        gpus: of this host, so many of those that are visible; None for all.

    Raises:
        ConfigError: where there are fewer, or the scheduler does not answer.
    """
    if scheduler := os.environ.get(SCHEDULER):
        with workers_of(scheduler) as client:
            yield client
        return
    devices = visible_devices()
    if not devices or (gpus or 1) > len(devices):
        raise ConfigError("too_few_gpus", f"--gpus is {gpus or 'all'}; this host has {len(devices) or 'none'}.")
    with workers_here(devices[:gpus]) as client:
        yield client


class ClusterDevice:
    """A `TrialDevice` that is one worker of a cluster.

    Args:
        name: of the worker, which a process that is started anew keeps.
        gpu: that it has, or that an experiment is predicted for.
        cache: where this process's compiled kernels are kept.
        attempt: what a worker calls for a trial; a test's own where there is nothing to launch.
    """

    def __init__(
        self,
        client: Any,
        name: str,
        described: Device,
        gpu: Gpu,
        where: str,
        cache: str,
        attempt: Callable[[bytes, str, str], bytes] = cluster_worker.attempted,
    ) -> None:
        self._client, self._name, self._described, self._cache = client, name, described, cache
        self._attempt = attempt
        self.gpu, self.where = gpu, where
        self.times = described.backend == "cuda"
        self.at_once = AT_ONCE if self.times else 1
        self._cancelled = threading.Event()

    def describe(self) -> Device | Failure:
        """What it said when it was asked at the start."""
        return self._described

    def refusal(self, experiment: Experiment) -> str:
        """That the interpreter takes too long."""
        return "" if self.times else too_slow(experiment, self.gpu)

    def attempt(self, trial: Trial) -> Outcomes | Failure:
        """Carry out a trial on this worker. A Failure of the kind "worker_died" where it is gone, or goes meanwhile."""
        payload = pickle.dumps((trial, self.gpu))
        answer = self._called(self._attempt, DEADLINES_S["time"], payload, self._cache, socket.gethostname())
        result: Outcomes | Failure = answer if isinstance(answer, Failure) else pickle.loads(answer)
        if isinstance(result, Failure) and result.kind in _POISONS:
            self._end()
        return result

    def _called(self, function: Callable[..., bytes], deadline_s: float, *arguments: Any) -> bytes | Failure:
        """What the worker answers, or why it does not."""
        address = self._address()
        if address is None:
            lost = Failure("worker", GONE, f"{self.where} did not come back within {_ARRIVAL_S:.0f} s.")
            return cancelled("time") if self._cancelled.is_set() else lost
        task = self._client.submit(function, *arguments, workers=[address], resources={RESOURCE: 1}, pure=False)
        until = time.monotonic() + deadline_s
        while not task.done():
            gone = self._addresses().get(self._name) != address
            if gone or self._cancelled.is_set() or time.monotonic() > until:
                task.cancel()
                return self._given_up(gone, deadline_s)
            time.sleep(_LOOK_S)
        try:
            return bytes(task.result())
        except Exception as error:  # whatever the worker raised, or why Dask gave it up
            return Failure("time", "error", f"{self.where}: {type(error).__name__}: {error}")

    def _given_up(self, gone: bool, deadline_s: float) -> Failure:
        if gone:
            return died("time", self.where)
        if self._cancelled.is_set():
            self._end()
            return cancelled("time")
        self._end()
        return Failure("time", "timeout", f"The trial did not end within {deadline_s:.0f} s, so its worker was killed.")

    def _addresses(self) -> dict[str, str]:
        """The address of each worker by its name, of those that live."""
        found = self._client.scheduler_info(n_workers=-1)["workers"]
        return {str(one["name"]): address for address, one in found.items()}

    def _address(self) -> str | None:
        """This worker's address; waits for one that is being started anew. None where it does not come."""
        until = time.monotonic() + _ARRIVAL_S
        while not self._cancelled.is_set() and time.monotonic() < until:
            if (address := self._addresses().get(self._name)) is not None:
                return address
            time.sleep(_LOOK_S)
        return None

    def _end(self) -> None:
        """End the worker's process, which its nanny starts anew. A worker without a nanny stays as it is.

        It ends by itself at once, whatever its task is at: a nanny that is asked to restart it waits for the task.
        """
        address = self._addresses().get(self._name)
        if address is None or not self._client.scheduler_info(n_workers=-1)["workers"][address].get("nanny"):
            return
        self._client.run(os._exit, 1, workers=[address], on_error="ignore")
        until = time.monotonic() + _ARRIVAL_S
        while self._addresses().get(self._name) == address and time.monotonic() < until:
            time.sleep(_LOOK_S)

    def cancel(self) -> None:
        """End the trial under way, with its process."""
        self._cancelled.set()

    def close(self) -> None:
        """Nothing: the cluster is whoever's started it."""


def devices_of(client: Any, base: Experiment, cache: str) -> list[ClusterDevice]:
    """The workers of a cluster as devices of one kind.

    Args:
        base: whose `gpu` chooses, where there are several kinds.
        cache: where this process keeps compiled kernels.

    Raises:
        ConfigError: where there are none, or several kinds and the experiment names none of them.
    """
    names = _arrived(client)
    calls = [
        client.submit(
            cluster_worker.described, cache, socket.gethostname(),
            workers=[address], resources={RESOURCE: 1}, pure=False,
        )
        for address in names
    ]  # fmt: skip
    found = []
    for name, call in zip(names.values(), calls, strict=True):
        described, gpu, where = pickle.loads(call.result(DEADLINES_S["worker"]))
        if isinstance(described, Failure):
            raise ConfigError("no_worker", f"{where}: {described.message}")
        target = gpu or GPUS[base.gpu if base.gpu in GPUS else DEFAULT_GPU]
        found.append(ClusterDevice(client, name, described, target, where, cache))
    return of_one_kind(found, base)


def _arrived(client: Any) -> dict[str, str]:
    """The names of the workers that have the resource, by address; waits for the first."""
    until = time.monotonic() + _ARRIVAL_S
    while time.monotonic() < until:
        workers = client.scheduler_info(n_workers=-1)["workers"]
        if found := {a: str(one["name"]) for a, one in workers.items() if one.get("resources", {}).get(RESOURCE)}:
            return found
        time.sleep(_LOOK_S)
    raise ConfigError(
        "no_workers", f"The cluster has no worker with a GPU: start each with --nthreads 1 --resources {RESOURCE}=1."
    )


def of_one_kind(devices: Sequence[ClusterDevice], base: Experiment) -> list[ClusterDevice]:
    """Those that the experiment is for: times of different GPUs are never ranked together.

    Raises:
        ConfigError: as of `devices_of`.
    """
    kinds = {device.gpu.name: 0 for device in devices}
    for device in devices:
        kinds[device.gpu.name] += 1
    named = base.gpu if base.gpu not in ("", "this") else ""
    if named in kinds:
        return [device for device in devices if device.gpu.name == named]
    there = ", ".join(f"{count} × {name}" for name, count in kinds.items())
    if named:
        raise ConfigError("no_such_gpu", f"gpu is {named!r}; the cluster has {there}.", "gpu")
    if len(kinds) > 1:
        raise ConfigError(
            "several_gpus",
            f"The cluster has {there}; times of different GPUs are not ranked together. Name one as the experiment's "
            "gpu.",
            "gpu",
        )
    return list(devices)


def sweeping_there(
    client: Any,
    store: Store,
    space: Space,
    strategy: Strategy,
    predict: Predict,
    refuse: Refuse,
    before: Before | None = None,
) -> Sweeping:
    """A sweep on the workers of a cluster; compiles are made on this host, ahead. It is written to this host's store.

    Workers on this host find them in the cache that both share; one elsewhere compiles what it is to run itself, unless
    TILESCOPE_CACHE names a folder that both hosts see.

    Args: as of Sweeping, and:
        before: what it goes on from; None for what is stored.

    Raises:
        ConfigError: as of `devices_of`; where the GPU does not know the space's dtype.
    """
    cache = default_cache_directory() / "triton"
    devices = devices_of(client, space.base, str(cache))
    gpu = resolve_gpu(replace(space.base, gpu=""), devices[0].gpu)
    done, keeper = kept_and_keeper(store, space, gpu, before)
    return Sweeping(space, strategy, devices, LocalBuilder(gpu, predict, cache), predict, refuse, done, keeper=keeper)
