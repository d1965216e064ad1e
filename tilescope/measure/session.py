"""The page's side of measurements: a session owns the worker pools, the jobs in progress, and the cached results.

`Session.submit` returns a Job immediately. The job compiles in a compile worker, waits for its turn, and then works in
the one run worker. This process imports no torch and makes no CUDA context.
"""

import contextvars
import datetime
import logging
import os
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from tilescope.compiling import estimates
from tilescope.compiling.compiler import compile_experiment
from tilescope.compiling.inspection import MAX_TRIALS, inspect_experiment, try_changes
from tilescope.declare.discovery import discover
from tilescope.declare.experiment import Experiment, from_json, launch_key, launch_of, resolve_gpu
from tilescope.declare.gpus import Gpu, on_zero_gpu, this_gpu
from tilescope.declare.jit import HAS_TRITON
from tilescope.declare.knobs import ConfigError
from tilescope.inside.inspect import Inspection
from tilescope.inside.report import Inside
from tilescope.measure import counters, run, timeline, worker
from tilescope.measure.fair_queue import INTERNAL, Call, Client
from tilescope.measure.measurement import Job, Measurement
from tilescope.measure.pool import Pool, preload_triton
from tilescope.measure.zero_gpu import Lend, ZeroGpuPool, make_lend, zero_gpu
from tilescope.results import Compiled, Failure, Measured, RunResult
from tilescope.results.store import Store, machine_store

LOG = logging.getLogger("tilescope.session")

_MEASUREMENTS = run.RUN, run.CHECK, counters.COUNTERS, counters.GROUP_SIZES, timeline.TIMELINE
MEASUREMENTS: dict[str, Measurement[Any]] = {each.name: each for each in _MEASUREMENTS}

V = TypeVar("V")

# Maximum jobs in progress or queued, in total and per address. More are refused, so that no job waits for hours.
MAX_JOBS = 32
MAX_JOBS_PER_ADDRESS = 16

# Maximum size of each cache: of the results of all measurements, of compiled kernels and of inspections. A timeline, or
# a kernel with a spilling tile, takes a few megabytes. Triton's own cache on disk keeps all kernels.
MAX_RESULTS = 64


class BoundedCache(Generic[V]):
    """A thread-safe LRU cache of at most `max_size` values."""

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._values: dict[Hashable, V] = {}  # the most recently used is last
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> V | None:
        with self._lock:
            if key in self._values:
                self._values[key] = self._values.pop(key)
            return self._values.get(key)

    def put(self, key: Hashable, value: V) -> None:
        with self._lock:
            self._values.pop(key, None)
            self._values[key] = value
            if len(self._values) > self._max_size:
                del self._values[next(iter(self._values))]


class Session:
    """Compiles and measures experiments on this machine, and caches the results.

    Args:
        gpu: this machine's GPU; None for Triton's interpreter.
        store: keeps results across restarts; by default, results are not stored.
        lend: on ZeroGPU, calls `zero_gpu.serve` with a GPU that is lent for one job.
        compilers: maximum number of compile workers; by default half the cores, at most 4.

    Attributes:
        backend: "cuda" or "interpreter".
        cache: directory of compiled kernels.
        compilers: compile workers.
        runner: the one run worker.
        jobs: measurements in progress or queued.
        queue: jobs that use or wait for the run worker.
        zero_gpu: whether the GPU is lent for one job at a time.
    """

    def __init__(
        self,
        gpu: Gpu | None = None,
        cache_directory: Path | None = None,
        store: Store | None = None,
        lend: Lend | None = None,
        compilers: int | None = None,
    ) -> None:
        self.gpu = gpu
        self.backend = "cuda" if gpu else "interpreter"
        self.store = store or Store(None)
        self.cache = str(cache_directory or worker.default_cache_directory() / "triton")
        count = compilers or max(2, min(4, (os.cpu_count() or 2) // 2))
        self.compilers = Pool("compile", self.cache, count, short_s=estimates.QUICK_COMPILE_S)
        self.runner = ZeroGpuPool(lend, self.cache) if lend else Pool(self.backend, self.cache)
        self.queue: list[Job] = []
        self.zero_gpu = lend is not None
        self.jobs: set[Job] = set()
        self._closing = ExitStack()
        self._measured: BoundedCache[Measured] = BoundedCache(MAX_RESULTS)
        self._compiled: BoundedCache[Compiled | Failure] = BoundedCache(MAX_RESULTS)
        self._inspected: BoundedCache[Inspection | Failure] = BoundedCache(MAX_RESULTS)

    @classmethod
    def here(cls, compilers: int | None = None) -> "Session":
        """Make a session on this machine's GPU, or on the interpreter if there is none, with this machine's store.

        Args:
            compilers: as for Session.
        """
        store = machine_store(worker.default_cache_directory())
        if on_zero_gpu():
            return cls(zero_gpu(), store=store, lend=make_lend(), compilers=compilers)
        if gpu := this_gpu():
            preload_triton()
        return cls(gpu, store=store, compilers=compilers)

    def submit(
        self,
        experiment: Experiment,
        name: str = "run",
        client: Client = INTERNAL,
        interprets_any_gpu: bool = False,
    ) -> Job:
        """Start a measurement. If this machine can't make it and has no recording, the job's outcome is a Failure.

        On a machine without a GPU, the GPU "this" selects the interpreter, as does an experiment that names no GPU.

        Args:
            name: the measurement's name, one of MEASUREMENTS.
            client: the client that sent the request, for the queue of compiles.
            interprets_any_gpu: whether a machine without a GPU also interprets a launch for the GPU that the experiment
                names. If that would take too long, the job's outcome is a recording, if there is one.

        Raises:
            ValueError: there is no such measurement.
        """
        measurement = _get_measurement(name)
        if experiment.gpu == "this" and self.gpu is None:
            experiment = replace(experiment, gpu="")
        job = Job(self, experiment, name, client)
        try:
            immediate = self._answer_immediately(
                experiment, measurement, client, interprets_any_gpu
            )
        except ConfigError as error:
            immediate = Failure("config", error.kind, str(error), error.field)
        if immediate is not None:
            job.done.set_result(immediate)
        else:
            self.jobs.add(job)
            job.done.add_done_callback(lambda _: self.jobs.discard(job))
            # ZeroGPU's hub identifies the visitor by the request's context
            context = contextvars.copy_context()
            threading.Thread(
                target=context.run, args=(self._carry_out, job, measurement), daemon=True
            ).start()
        return job

    def find_value(self, experiment: Experiment, name: str) -> Any:
        """Return the latest result of this process, or else a stored or shipped result, or None. Return immediately.

        Args:
            name: the measurement's name, one of MEASUREMENTS. It determines the result's type.

        Raises:
            ConfigError: as for `resolve_gpu`.
            ValueError: there is no such measurement.
        """
        measurement = _get_measurement(name)
        gpu = resolve_gpu(experiment, self.gpu)
        recorded = self.store.find(measurement, experiment, gpu.name)
        # Without a GPU, a named GPU's recording says more than the interpreter's check.
        is_enough = recorded is not None and self.gpu is None and experiment.gpu != ""
        if not is_enough and self._measures(measurement, experiment, gpu, interprets_any_gpu=True):
            live = self._measured.get((name, measurement.form.key(experiment), gpu.name))
            if live is not None:
                return live
            if self.gpu is None and (
                earlier := self.store.find(measurement, experiment, gpu.name, "interpreter")
            ):
                return self._add_recorded(measurement, earlier, gpu)
        return recorded

    def compile(
        self, experiment: Experiment, client: Client = INTERNAL
    ) -> Future[Compiled | Failure]:
        """Compile an experiment for its GPU, or take the result from the cache. Return immediately.

        Cancel the returned future to give up. A compile without waiters is killed after a few seconds.

        Raises:
            ConfigError: as for `resolve_gpu`.
        """
        launch = launch_of(experiment, resolve_gpu(experiment, self.gpu))
        outcome = self.find_compiled(experiment) or estimates.refuse_compile(*launch)
        if not HAS_TRITON:
            outcome = Failure(
                "compile", "no_triton", "Triton is not installed here, so nothing is compiled."
            )
        if outcome is None:
            return self._submit_compile(client, self._compiled.put, compile_experiment, experiment)
        done: Future[Compiled | Failure] = Future()
        done.set_result(outcome)
        return done

    def inspect(
        self, experiment: Experiment, client: Client = INTERNAL
    ) -> Future[Inspection | Failure]:
        """Compile an experiment for its GPU, and inspect its programs. Return immediately: see `compile`."""
        return self._submit_compile(client, self._inspected.put, inspect_experiment, experiment)

    def try_changes(
        self, experiment: Experiment, inspection: Inspection, client: Client = INTERNAL
    ) -> Future[Inside | Failure]:
        """Compile changes that may speed up an inspected experiment. `find_inspection` then returns their times.

        Return immediately: see `compile`.
        """
        inside, executions = inspection

        def cache(key: Hashable, changed: Any) -> None:
            self._inspected.put(key, (changed, executions))

        return self._submit_compile(
            client, cache, try_changes, experiment, inside, compiles=MAX_TRIALS
        )

    def _submit_compile(
        self,
        client: Client,
        cache: Callable[[Hashable, Any], None],
        function: Callable[..., V],
        experiment: Experiment,
        *args: Any,
        compiles: int = 1,
    ) -> Future[V | Failure]:
        """Call function(experiment, gpu, *args) in a compile worker. Equal calls in flight share one execution.

        Args:
            cache: called with the experiment's key and the result.
            compiles: maximum number of compiles in the call.
        """
        gpu = resolve_gpu(experiment, self.gpu)
        key = self._launch_key(experiment)

        def on_result(result: V | Failure) -> None:
            # Other failures may depend on this machine or its load.
            if not isinstance(result, Failure) or result.kind == "out_of_resources":
                cache(key, result)

        call = Call("compile", function, (experiment, gpu, *args), (function, key))
        seconds = compiles * estimates.compile_seconds(*launch_of(experiment, gpu))
        return self.compilers.submit(call, client, seconds, on_result)

    def find_inspection(self, experiment: Experiment) -> Inspection | Failure | None:
        """Return the result of `inspect`, or why its config does not fit on the GPU, if cached. Return immediately."""
        return self._inspected.get(self._launch_key(experiment))

    def find_compiled(self, experiment: Experiment) -> Compiled | Failure | None:
        """Return a compiled kernel, or why its config does not fit on the GPU, if cached. Return immediately."""
        return self._compiled.get(self._launch_key(experiment))

    def _launch_key(self, experiment: Experiment) -> Experiment:
        return launch_key(experiment, resolve_gpu(experiment, self.gpu).name)

    def warm_up(self) -> None:
        """Start the workers and read the recordings in the background, so that no request waits for them."""
        # Not a daemon: a daemon thread inside Pydantic's code at Python's exit would abort the process.
        threading.Thread(target=self._read_recordings).start()
        if HAS_TRITON and not self.zero_gpu:
            self.runner.submit(Call("worker", worker.describe))
        if HAS_TRITON and self.gpu is not None:
            self.compilers.submit(Call("worker", os.getpid))

    def _read_recordings(self) -> None:
        first = from_json({"kernel": next(iter(discover()))})
        for measurement in MEASUREMENTS.values():
            self.store.find(measurement, first, "H200")

    def call_runner(self, function: Callable[[], Any]) -> Any:
        """Call a module-level function in the run worker, between stages, and return its result."""
        return self.runner.submit(Call("worker", function)).result()

    def ping_runner(self) -> Future[int | Failure] | None:
        """Return the run worker's process id as a future; None on ZeroGPU, where each job starts a worker."""
        return None if self.zero_gpu else self.runner.submit(Call("worker", os.getpid))

    def before_close(self, close: Callable[[], None]) -> None:
        """Register a function that `close` calls first."""
        self._closing.callback(close)

    def close(self) -> None:
        """Kill all workers, and close the store. Jobs in progress fail."""
        self._closing.close()
        self.compilers.close()
        self.runner.close()
        self.store.close()

    def _answer_immediately(
        self,
        experiment: Experiment,
        measurement: Measurement[Any],
        client: Client,
        interprets_any_gpu: bool,
    ) -> Measured | Failure | None:
        """Return a recording or a Failure if this machine can't measure the experiment; None if it can."""
        gpu = resolve_gpu(experiment, self.gpu)
        is_measured = self._measures(measurement, experiment, gpu, interprets_any_gpu)
        recorded = self.store.find(measurement, experiment, gpu.name)
        try:
            if measurement.refuse is not None:
                measurement.refuse(experiment, gpu, is_measured and HAS_TRITON and self.gpu is None)
        except ConfigError:
            if not (interprets_any_gpu and recorded):
                raise
            is_measured = False
        if not is_measured:
            if recorded:
                return recorded
            reason = measurement.not_recorded.format(
                this=self.gpu.name if self.gpu else "no GPU", gpu=gpu.name
            )
            return Failure(
                "config", "not_recorded", reason, "gpu" if measurement.is_interpreted else ""
            )
        if not HAS_TRITON:
            return Failure(
                "worker", "no_triton", "Triton is not installed here, so nothing can be run."
            )
        addresses = [job.client.address for job in [*self.jobs]]
        limits = [(len(addresses), MAX_JOBS, "")]
        if client.address:
            ours = addresses.count(client.address)
            limits.append((ours, MAX_JOBS_PER_ADDRESS, " from this address"))
        for count, limit, source in limits:
            if count >= limit:
                state = f"{count} runs{source} are in progress or waiting; the limit is {limit}"
                return Failure("worker", "busy", f"{state}. Try again in a minute.")
        return None

    def _carry_out(self, job: Job, measurement: Measurement[Any]) -> None:
        gpu = job.gpu
        result = job.run(measurement.measure)
        # Store the result after the next job may begin, but before the page shows it, so that no shown result is lost.
        try:
            result = self._add_recorded(measurement, result, gpu)
            if not isinstance(result, Failure) and result.backend == self.backend:
                self._measured.put(
                    (measurement.name, measurement.form.key(job.experiment), gpu.name), result
                )
                self.store.put(measurement, gpu.name, result, datetime.datetime.now(datetime.UTC))
        except Exception:  # the page shows the result even if a bug in the store loses it
            LOG.exception("A result of %s could not be stored.", measurement.name)
        _log(job, result, gpu)
        job.done.set_result(result)

    def _add_recorded(self, measurement: Measurement[Any], value: V, gpu: Gpu) -> V:
        """Add a GPU's recorded run to a run by the interpreter, which has no times."""
        if not isinstance(value, RunResult) or value.backend != "interpreter":
            return value
        recorded = self.store.find(measurement, value.experiment, gpu.name)
        return replace(value, recorded=recorded)

    def _measures(
        self,
        measurement: Measurement[Any],
        experiment: Experiment,
        gpu: Gpu,
        interprets_any_gpu: bool,
    ) -> bool:
        """Return whether this machine measures the experiment: on its GPU or, without one, under the interpreter."""
        if self.gpu is None:
            return measurement.is_interpreted and (interprets_any_gpu or not experiment.gpu)
        return gpu is self.gpu


def _log(job: Job, result: Measured | Failure, gpu: Gpu) -> None:
    """Log one record per finished job."""
    fields: dict[str, object] = {
        "run": job.id,
        "measurement": job.name,
        "gpu": gpu.name,
        "outcome": "ok",
        "experiment": job.experiment.to_json(),
        "stages_s": {n: round(s, 3) for n, s in job.stages.items()},
    }
    if isinstance(result, Failure):
        fields |= {"outcome": result.kind, "failed_in": result.stage}
    LOG.info("A job has ended.", extra={"fields": fields})


def _get_measurement(name: str) -> Measurement[Any]:
    if name not in MEASUREMENTS:
        raise ValueError(
            f"There is no measurement {name!r}; the measurements are {', '.join(MEASUREMENTS)}."
        )
    return MEASUREMENTS[name]
