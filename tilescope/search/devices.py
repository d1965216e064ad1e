"""Devices, which carry out the trials of a sweep, and the compile of a config ahead of its trial.

A sweep on several GPUs, of this host or of an existing cluster, uses Dask's `distributed`. The session itself uses this
host's first GPU. Each other GPU has one worker process with one thread and the resource GPU=1. A trial is one task,
bound to one worker. If the worker dies, its task fails. The search can then try the configs on another worker, and
Dask's nanny restarts the dead worker. A failure that may have corrupted a CUDA context also restarts the worker.
`distributed` is an optional dependency, imported only when needed.
"""

import dataclasses
import importlib.util
import os
import pickle
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol, TypeVar

from tilescope.compiling.compiler import compile_experiment
from tilescope.compiling.inspection import predict_experiment
from tilescope.declare.experiment import Experiment, launch_of
from tilescope.declare.gpus import DEFAULT_GPU, GPUS, Gpu, visible_devices, visible_gpus
from tilescope.declare.knobs import ConfigError
from tilescope.declare.spec import explain_slow_launch
from tilescope.measure.measurement import Job
from tilescope.measure.pool import DEADLINES_S, cancellation, worker_death
from tilescope.measure.session import Session
from tilescope.results import Device, Failure
from tilescope.search import cluster_worker
from tilescope.search.search import ConfigBuild, ConfigTrial, Outcomes
from tilescope.search.trial import run_trial

V = TypeVar("V")

# Failure kind of a permanently lost device: other devices take over its configs.
DEVICE_LOST = "device_gone"

# Each compile process uses hundreds of megabytes.
_MAX_COMPILES = 64

# Environment variable with the address of an existing cluster's scheduler, such as tcp://host:8786.
SCHEDULER = "TILESCOPE_SCHEDULER"

# The Dask resource. Each worker has one unit of it.
RESOURCE = "GPU"

# Maximum seconds until a worker connects, and until the nanny has restarted a worker.
ARRIVAL_S = 60.0

_POLL_S = 0.1

# Kinds of failures after which the worker's CUDA context may be corrupt.
_POISONS = {"cuda_error", "error", "timeout"}


class TrialDevice(Protocol):
    """Checks and times configs on a GPU of this machine or of a Dask worker, or checks them in the interpreter.

    Attributes:
        gpu: the device's GPU; without one, the GPU that predictions are for.
        where: host and number if a sweep has several devices, else "".
        takes_times: whether configs are timed; otherwise they are only checked, or not run at all.
    """

    gpu: Gpu
    where: str
    takes_times: bool

    def describe(self) -> Device | Failure:
        """Return the device's name and versions; start its worker if needed."""

    def refusal(self, experiment: Experiment) -> str:
        """Return why this device can't check a config, as a sentence; "" if it can."""

    def attempt(self, trial: ConfigTrial) -> Outcomes | Failure:
        """Carry out a trial, and wait for it. A Failure, such as a dead worker, concerns all configs of the trial."""

    def cancel(self) -> None:
        """Kill the current trial: its `attempt` returns a Failure."""


def concurrent_compiles() -> int:
    """Return the number of compile workers of a sweep: one per usable core, except one for the timing."""
    if hasattr(os, "sched_getaffinity"):
        usable = len(os.sched_getaffinity(0))
    else:  # macOS
        usable = os.cpu_count() or 1
    return max(1, min(_MAX_COMPILES, usable - 1))


def build(experiment: Experiment, gpu: Gpu, predicts: bool) -> ConfigBuild | Failure:
    """Compile into the cache that the run worker uses. Runs in a compile worker.

    Args:
        predicts: whether to predict the kernel's time, too, which takes as long as compiling it.
    """
    if isinstance(compiled := compile_experiment(experiment, gpu), Failure):
        return compiled
    return ConfigBuild(
        compiled.registers,
        compiled.spilled_bytes,
        compiled.shared_bytes,
        compiled.seconds,
        predict_experiment(experiment, gpu) if predicts else None,
    )


class LocalDevice:
    """A `TrialDevice` on a session's machine: the GPU, or the interpreter if there is none.

    Each trial is a job in the run worker's queue, so a run on the page waits for one trial, not for the whole sweep.

    Args:
        base: the experiment of the sweep's space.
        gpu: the GPU that the experiment is for.
    """

    def __init__(self, session: Session, base: Experiment, gpu: Gpu, where: str = "") -> None:
        self._session = session
        self._base = base
        self.gpu = gpu
        self.where = where
        self.takes_times = session.gpu is not None and gpu == session.gpu and not session.zero_gpu
        self._interprets = session.gpu is None and base.gpu in ("", "this")
        self._job: Job | None = None
        self._is_cancelled = False

    def describe(self) -> Device | Failure:
        if not (self.takes_times or self._interprets):
            return Device("predicted", self.gpu.name, torch="", triton="")
        return self._run(Job.device)

    def refusal(self, experiment: Experiment) -> str:
        if self.takes_times:
            return ""
        if self._session.zero_gpu and self.gpu == self._session.gpu:
            return "ZeroGPU lends this GPU for one run at a time: a sweep only compiles and predicts configs."
        if not self._interprets:
            here = self._session.gpu.name if self._session.gpu else "no GPU"
            return f"This machine has {here}: configs for {self.gpu.name} are only compiled and predicted."
        return explain_slow_launch(*launch_of(experiment, self.gpu))

    def attempt(self, trial: ConfigTrial) -> Outcomes | Failure:
        stage = "time" if self.takes_times else "check"
        return self._run(lambda job: job.work(stage, run_trial, trial, self.gpu))

    def _run(self, work: Callable[[Job], V]) -> V | Failure:
        """Wait for the run worker, call it, and free it for the next job."""
        self._job = job = Job(self._session, self._base, "sweep")
        if self._is_cancelled:  # otherwise `cancel` finds the job
            return cancellation("time")
        result = job.run(work)
        self._job = None
        if isinstance(result, Failure) and self._is_cancelled:
            return dataclasses.replace(result, kind="cancelled")
        if isinstance(result, Failure) and self._session.runner.is_closed:
            return dataclasses.replace(result, kind=DEVICE_LOST)
        return result

    def cancel(self) -> None:
        self._is_cancelled = True
        if (job := self._job) is not None:
            job.cancel()


class ClusterDevice:
    """A cluster's worker as a `TrialDevice`.

    Args:
        client: the cluster's client, once its workers have started.
        name: the worker's name, which it keeps after a restart.
        device: the worker's device; None for a GPU of this host, which the worker describes once it has started.
        gpu: the worker's GPU; for the interpreter, the GPU that predictions are for.
        run: the worker's function that carries out a trial.
    """

    def __init__(
        self,
        client: Future[Any],
        name: str,
        device: Device | None,
        gpu: Gpu,
        where: str,
        run: Callable[[bytes], bytes] = cluster_worker.run_trial,
    ) -> None:
        self._client = client
        self._name = name
        self._device = device
        self._run = run
        self.gpu = gpu
        self.where = where
        self.takes_times = device is None or device.backend == "cuda"
        self._is_cancelled = False
        self._woken = threading.Event()  # set by a cancellation or the end of a task

    def describe(self) -> Device | Failure:
        if self._device is not None:
            return self._device
        address = self._wait_for_worker()
        if isinstance(address, Failure):
            return address
        return describe_worker(self._client.result(), address)[0]

    def refusal(self, experiment: Experiment) -> str:
        return "" if self.takes_times else explain_slow_launch(*launch_of(experiment, self.gpu))

    def attempt(self, trial: ConfigTrial) -> Outcomes | Failure:
        """Carry out a trial on this worker. Return a Failure of kind "worker_died" if the worker dies."""
        address = self._wait_for_worker()
        if isinstance(address, Failure):
            return address
        task = _submit(self._client.result(), address, self._run, pickle.dumps((trial, self.gpu)))
        task.add_done_callback(lambda _: self._woken.set())
        deadline_s = DEADLINES_S["time"]
        began = time.monotonic()
        while not task.done():
            if self._address() != address:
                return worker_death("time", self.where)
            if self._pause():
                self._restart(address)
                return cancellation("time")
            if time.monotonic() - began > deadline_s:
                self._restart(address)
                message = (
                    f"The trial did not end within {deadline_s:.0f} s, so its worker was killed."
                )
                return Failure("time", "timeout", message)
        try:
            result: Outcomes | Failure = pickle.loads(task.result())
        except Exception as error:  # raised by the worker or by Dask
            result = Failure("time", "error", f"{self.where}: {type(error).__name__}: {error}")
        if isinstance(result, Failure) and result.kind in _POISONS:
            self._restart(address)
        return result

    def _wait_for_worker(self) -> str | Failure:
        """Wait until the worker is connected, and return its address."""
        deadline = time.monotonic() + ARRIVAL_S
        while not (address := self._address()):
            if self._pause():
                return cancellation("time")
            if time.monotonic() > deadline:
                return Failure(
                    "worker", DEVICE_LOST, f"{self.where} did not connect within {ARRIVAL_S:.0f} s."
                )
        return address

    def _pause(self) -> bool:
        """Wait for the end of a task, at most `_POLL_S`. Return whether the sweep was cancelled."""
        self._woken.wait(_POLL_S)
        self._woken.clear()
        return self._is_cancelled

    def _address(self) -> str:
        """Return the worker's address, which changes at each restart; "" while the worker is not connected."""
        workers = _workers(self._client.result()) if self._client.done() else []
        return next(
            (address for address, worker in workers if str(worker["name"]) == self._name), ""
        )

    def _restart(self, address: str) -> None:
        """Make the worker's process exit, so that its nanny restarts it. A worker without a nanny keeps running.

        The process exits immediately. A restart by the nanny would wait for the task.
        """
        client = self._client.result()
        if dict(_workers(client)).get(address, {}).get("nanny"):
            client.run(os._exit, 1, workers=[address], on_error="ignore")
            deadline = time.monotonic() + ARRIVAL_S
            while self._address() == address and time.monotonic() < deadline:
                time.sleep(_POLL_S)

    def cancel(self) -> None:
        self._is_cancelled = True
        self._woken.set()


@contextmanager
def connect(
    gpus: int | None, base: Experiment, session: Session
) -> Iterator[Sequence[TrialDevice]]:
    """Yield devices of one kind: those of the cluster that SCHEDULER names or, if it is unset, this host's GPUs.

    The session uses this host's first GPU, so a sweep begins as early as on a single GPU. The other GPUs' workers start
    in the background: while all cores compile, they need seconds longer to import Dask and Triton.

    Args:
        gpus: the number of this host's visible GPUs to use; None for all.
        base: its `gpu` selects the kind if there are several.

    Raises:
        ConfigError: if `distributed` is not installed, the host has too few GPUs, the scheduler does not answer, or the
            devices do not fit `base` (see `find_devices`).
    """
    if importlib.util.find_spec("distributed") is None:
        message = 'Several GPUs need the package distributed: pip install "tilescope[cluster]"'
        raise ConfigError("no_distributed", message)
    if scheduler := os.environ.get(SCHEDULER):
        import distributed

        try:
            client = distributed.Client(scheduler, timeout=ARRIVAL_S / 2, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise ConfigError(
                "no_scheduler", f"No scheduler answers at {scheduler!r} ({SCHEDULER})."
            ) from error
        with client:
            yield find_devices(client, base)
        return
    names = visible_devices()
    found = visible_gpus()
    if not found or (gpus or 1) > len(found):
        raise ConfigError(
            "too_few_gpus", f"--gpus is {gpus or 'all'}; this host has {len(found) or 'none'}."
        )
    # The thread ends before the cluster is stopped.
    with ExitStack() as stack, ThreadPoolExecutor(1) as thread:
        started = thread.submit(stack.enter_context, start_workers(names[1:gpus]))
        where = [f"{socket.gethostname()}, GPU {name}" for name in names[:gpus]]
        own = LocalDevice(session, base, found[0], where[0])
        others = [
            ClusterDevice(started, f"gpu-{number}", None, gpu, place)
            for number, (gpu, place) in enumerate(zip(found[1:gpus], where[1:], strict=True))
        ]
        yield select_kind([own, *others], base)


@contextmanager
def start_workers(devices: Sequence[str]) -> Iterator[Any]:
    """Start a cluster on this host with one worker per device, and stop it at the end.

    Args:
        devices: as CUDA_VISIBLE_DEVICES names them; "" hides all GPUs from a worker.
    """
    import distributed

    common = {
        "nthreads": 1,
        "resources": {RESOURCE: 1},
        "dashboard": False,
        "silence_logs": "ERROR",
        "preload": [cluster_worker.__name__],
        "memory_limit": 0,  # never kill a worker for its large tensors
    }
    spec = {
        f"gpu-{number}": {
            "cls": distributed.Nanny,
            "options": {**common, "env": {"CUDA_VISIBLE_DEVICES": device}},
        }
        for number, device in enumerate(devices)
    }
    scheduler = {
        "cls": distributed.Scheduler,
        "options": {"dashboard": False, "port": 0, "host": "127.0.0.1"},
    }
    with (
        distributed.SpecCluster(spec, scheduler=scheduler, silence_logs="ERROR") as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


def describe_worker(client: Any, address: str) -> tuple[Device | Failure, Gpu | None, str]:
    """Return a worker's device, GPU and location. A worker's first call takes seconds."""
    call = _submit(client, address, cluster_worker.describe)
    described: tuple[Device | Failure, Gpu | None, str] = pickle.loads(
        call.result(DEADLINES_S["worker"])
    )
    return described


def _workers(client: Any) -> list[tuple[str, Any]]:
    """Return (address, description) of each connected worker that has the resource."""
    # Not `Client.scheduler_info`: a periodic update without workers may have overwritten its result.
    workers = client.sync(client.scheduler.identity, n_workers=-1)["workers"]
    return [
        (address, worker)
        for address, worker in workers.items()
        if (worker["resources"] or {}).get(RESOURCE)
    ]


def _submit(client: Any, address: str, function: Callable[..., bytes], *args: object) -> Any:
    return client.submit(function, *args, workers=[address], resources={RESOURCE: 1}, pure=False)


def find_devices(client: Any, base: Experiment) -> list[TrialDevice]:
    """Return a cluster's workers with one kind of GPU as devices. Wait until the first worker connects.

    Args:
        base: its `gpu` selects the kind if there are several.

    Raises:
        ConfigError: if there are no workers, none of the named kind, or several kinds and the experiment names none.
    """
    deadline = time.monotonic() + ARRIVAL_S
    while not (workers := _workers(client)):
        if time.monotonic() > deadline:
            fix = f"start each with --nthreads 1 --resources {RESOURCE}=1"
            raise ConfigError("no_workers", f"The cluster has no worker with a GPU: {fix}.")
        time.sleep(_POLL_S)
    with ThreadPoolExecutor(len(workers)) as threads:
        described = list(threads.map(lambda found: describe_worker(client, found[0]), workers))
    connected: Future[Any] = Future()
    connected.set_result(client)
    devices = list[TrialDevice]()
    for (_, worker), (device, gpu, where) in zip(workers, described, strict=True):
        if isinstance(device, Failure):
            raise ConfigError("no_worker", f"{where}: {device.message}")
        target = gpu or GPUS[base.gpu if base.gpu in GPUS else DEFAULT_GPU]
        devices.append(ClusterDevice(connected, str(worker["name"]), device, target, where))
    return select_kind(devices, base)


def select_kind(devices: Sequence[TrialDevice], base: Experiment) -> list[TrialDevice]:
    """Select the devices of one kind of GPU, because times of different GPUs are never ranked together.

    Raises:
        ConfigError: if the named kind does not exist, or there are several kinds and none is named.
    """
    counts = Counter(device.gpu.name for device in devices)
    named = base.gpu if base.gpu not in ("", "this") else ""
    if named in counts:
        return [device for device in devices if device.gpu.name == named]
    present = ", ".join(f"{count} × {name}" for name, count in counts.items())
    if named:
        raise ConfigError("no_such_gpu", f"gpu is {named!r}, but the cluster has {present}.", "gpu")
    if len(counts) > 1:
        reason = f"The cluster has {present}; times of different GPUs are not ranked together."
        raise ConfigError(
            "several_gpus", f"{reason} Set the experiment's gpu to one of them.", "gpu"
        )
    return list(devices)
