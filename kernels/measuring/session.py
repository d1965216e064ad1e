"""The parent's side of measurements: a queue, one job at a time on the device, progress, cancel.

`Session.submit` returns a Job at once. The job compiles in a compile worker, waits for its turn, and then works in the
one run worker. This process imports no torch and makes no CUDA context.
"""

from __future__ import annotations

import contextvars
import datetime
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernels import discover
from kernels.experiment import Experiment, from_json, resolve_gpu
from kernels.gpus import Gpu, on_zero_gpu, this_gpu
from kernels.jit import HAS_TRITON
from kernels.knobs import ConfigError
from kernels.measuring import worker, zero_gpu
from kernels.measuring.bounded_cache import BoundedCache
from kernels.measuring.cache_directory import default_cache_directory
from kernels.measuring.compiles import waited_for
from kernels.measuring.job import Job
from kernels.measuring.leased import Lend
from kernels.measuring.measurements import MEASUREMENTS
from kernels.measuring.measurements.measurement import Incomplete, Measurement
from kernels.measuring.stages import Machine, Stages, Stopped
from kernels.measuring.turns import OURS, Client
from kernels.results import Compiled, Failure, Measured
from kernels.store import Archive, Found, Store, machine_store

LOG = logging.getLogger("tilescope.session")

# Jobs that may be under way or waiting at once; more are refused, so that nobody waits for hours.
MOST_JOBS = 32

# Results that are kept, of all kinds together. The largest, a timeline, takes some megabytes.
MOST_KEPT = 64


class Session:
    """What one page measures with: the machine's workers, the jobs under way, and the results of those that ended.

    Args:
        gpu: this machine's; None for Triton's interpreter.
        store: where what is measured is kept, and read from after a restart; by default nowhere.
        lend: where a GPU is lent for a call at a time: how.
    """

    def __init__(
        self,
        gpu: Gpu | None = None,
        cache_directory: Path | None = None,
        store: Store | None = None,
        lend: Lend | None = None,
    ) -> None:
        self.gpu = gpu
        self.store = store or Store(None)
        self._archive = Archive(self.store)
        self._machine = Machine(gpu, cache_directory or default_cache_directory() / "triton", lend)
        self.backend = self._machine.backend
        self._jobs: set[Job] = set()
        self._ends: list[Callable[[], None]] = []
        self._measured: BoundedCache[tuple[str, Experiment], Measured] = BoundedCache(MOST_KEPT)

    @property
    def machine(self) -> Machine:
        """What its jobs share: for what runs many trials by itself, a sweep."""
        return self._machine

    @classmethod
    def here(cls) -> Session:
        """A session on this machine's GPU, or on the interpreter where there is none, with this machine's store."""
        store = machine_store(default_cache_directory())
        if on_zero_gpu():
            return cls(zero_gpu.its_gpu(), store=store, lend=zero_gpu.lend())
        return cls(this_gpu(), store=store)

    def submit(self, experiment: Experiment, name: str = "run", client: Client = OURS) -> Job:
        """Start a measurement. What can't be measured here is an outcome (a Failure) as well.

        "this" GPU on a machine without one means the interpreter, as if it were left out.

        Args:
            name: of the measurement, one of MEASUREMENTS.
            client: who asks, for compiles that are served in turns.

        Raises:
            ValueError: where there is no such measurement.
        """
        measurement = _named(name)
        if experiment.gpu == "this" and self.gpu is None:
            experiment = replace(experiment, gpu="")
        job = Job(experiment, name, client)
        try:
            immediate = self._without_measuring(experiment, measurement)
        except ConfigError as error:
            immediate = Failure("config", error.kind, str(error), error.field)
        if immediate is not None:
            job.end(immediate)
        else:
            self._jobs.add(job)
            job.done.add_done_callback(lambda _: self._jobs.discard(job))
            context = contextvars.copy_context()  # of the request: a hub that lends GPUs counts by who asked
            threading.Thread(target=context.run, args=(self._carry_out, job, measurement), daemon=True).start()
        return job

    def known(self, experiment: Experiment, name: str) -> Any:
        """The value of `found`, or None."""
        found = self.found(experiment, name)
        return found and found.value

    def found(self, experiment: Experiment, name: str) -> Found | None:
        """The last result that was measured here since the start, or else one of an earlier day: stored, or shipped.

        Returns at once.

        Args:
            name: of the measurement, one of MEASUREMENTS, whose type the result has.

        Raises:
            ConfigError: where the experiment names a GPU that it can't be for.
            ValueError: where there is no such measurement.
        """
        measurement, gpu = _named(name), resolve_gpu(experiment, self.gpu)
        if self._measures(measurement, experiment, gpu):
            live = self._measured.get((name, measurement.key(experiment)))
            if live is not None:
                return Found(live)
            if self.gpu is None and (earlier := self._archive.interpreted(measurement, experiment, gpu.name)):
                return replace(earlier, value=self._beside_recorded(measurement, earlier.value, gpu))
        return self._archive.find(measurement, experiment, gpu.name)

    def compiled(
        self,
        experiment: Experiment,
        specialization: str = "launcher",
        wanted: Callable[[], bool] = lambda: True,
        client: Client = OURS,
    ) -> Compiled | Failure:
        """What the compiler makes of an experiment for its GPU; waits for it. Kept for the next time.

        Args:
            specialization: what the compiler is told of sizes and strides, one of `compiler.SPECIALIZATIONS`.
            wanted: asked now and then. A compile that nobody wants any more is ended, unless it is about to end anyway.
            client: who asks: clients are served in turns.

        Raises:
            ConfigError: where the experiment names a GPU that it can't be for.
        """
        return waited_for(self.compiling(experiment, specialization, client), wanted)

    def compiling(
        self, experiment: Experiment, specialization: str = "launcher", client: Client = OURS
    ) -> Future[Compiled | Failure]:
        """The same, without waiting, and without a thread. Who wants it no more cancels it.

        Arguments as of `compiled`.

        Raises:
            ConfigError: where the experiment names a GPU that it can't be for.
        """
        gpu = resolve_gpu(experiment, self.gpu)
        if HAS_TRITON:
            return self._machine.compiles.asked(experiment, gpu, specialization, client)
        none: Future[Compiled | Failure] = Future()
        none.set_result(
            Failure("compile", "no_triton", "Triton is not installed on this machine, so nothing is compiled.")
        )
        return none

    def compiled_before(self, experiment: Experiment, specialization: str = "launcher") -> Compiled | None:
        """What the compiler made of it, if that is known already. Returns at once."""
        return self._machine.compiles.known(experiment, resolve_gpu(experiment, self.gpu), specialization)

    def warm_up(self) -> None:
        """Start the workers and read the recordings in the background, so that nobody has to wait for them."""
        # No daemon: one that is still in Pydantic's code when Python ends would abort the process.
        threading.Thread(target=self._read_recordings).start()
        if HAS_TRITON and not self._machine.runner.is_leased:
            self._machine.runner.submit(worker.describe, "worker")
        if HAS_TRITON and self.gpu is not None:
            self._machine.compilers.submit(worker.process_id, "worker")

    def _read_recordings(self) -> None:
        first = from_json({"kernel": next(iter(discover()))}, discover())
        for measurement in MEASUREMENTS.values():
            self._archive.find(measurement, first, "H200")

    def ask_runner(self, question: Callable[[], Any]) -> Any:
        """Call a function of `worker` in the run worker, between jobs: `process_id`, `compiled_here`."""
        return self._machine.runner.submit(question, "worker").result()

    def asking_runner(self) -> Future[int] | None:
        """The run worker's process id, once it answers; for who can't wait. None where it is started for each job."""
        if self._machine.runner.is_leased:
            return None
        return self._machine.runner.submit(worker.process_id, "worker")

    @property
    def jobs(self) -> int:
        """Measurements that are under way or waiting."""
        return len(self._jobs)

    def before_close(self, end: Callable[[], None]) -> None:
        """Have something that uses this session's machine ended first when it is closed."""
        self._ends.append(end)

    def close(self) -> None:
        """Kill all workers; jobs under way end as failures. What was measured is stored."""
        for end in self._ends:
            end()
        self._machine.close()
        self.store.close()

    def _without_measuring(self, experiment: Experiment, measurement: Measurement[Any]) -> Measured | Failure | None:
        """What was recorded, or a Failure, where this machine can't measure the experiment; None where it can."""
        gpu = resolve_gpu(experiment, self.gpu)
        measurement.refuse(experiment, gpu)
        if not self._measures(measurement, experiment, gpu):
            recorded = self._archive.find(measurement, experiment, gpu.name)
            return recorded.value if recorded else measurement.not_here(gpu, self.gpu)
        if not HAS_TRITON:
            return Failure(
                "worker", "no_triton", "Triton is not installed on this machine, so nothing can be run here."
            )
        if self.gpu is None:
            measurement.refuse_interpreted(experiment, gpu)
        if len(self._jobs) < MOST_JOBS:
            return None
        return Failure("worker", "busy", f"{len(self._jobs)} runs are under way or waiting; try again in a minute.")

    def _carry_out(self, job: Job, measurement: Measurement[Any]) -> None:
        gpu = resolve_gpu(job.experiment, self.gpu)
        stages = Stages(job, self._machine, gpu)
        result: Measured | Failure
        try:
            result = self._completed(measurement.measure(job.experiment, stages), measurement, job.experiment, gpu)
        except Stopped as stopped:
            result = stopped.failure
        except Exception as error:  # a defect of ours must still end the job
            result = Failure("worker", "error", f"{type(error).__name__}: {error}")
        with suppress(RuntimeError):  # the session was closed meanwhile
            stages.end(result if isinstance(result, Failure) else None)
        if not isinstance(result, Failure):
            # Before anybody sees it, so that what was seen is not lost; and after the next job may begin.
            self._store(result, measurement, gpu)
        _log(job, result, gpu)
        job.end(result)

    def _store(self, result: Measured, measurement: Measurement[Any], gpu: Gpu) -> None:
        """Store what was measured now. A defect in that goes to the log: the result is shown all the same."""
        try:
            if result.backend == self.backend:
                self.store.put(measurement, gpu.name, result, datetime.datetime.now(datetime.UTC))
        except Exception:
            LOG.exception("A result of %s was not stored.", measurement.name)

    def _completed(
        self,
        measured: Measured | Incomplete[Any],
        measurement: Measurement[Any],
        experiment: Experiment,
        gpu: Gpu,
    ) -> Measured | Failure:
        """What was measured, which is kept; where it lacks something, the recording if there is one."""
        value: Measured | Failure
        if isinstance(measured, Incomplete):
            recorded = self._archive.find(measurement, experiment, gpu.name)
            if recorded is not None:
                return replace(recorded.value, note=f"{measured.reason} {recorded.value.note}")
            value = measured.value
        else:
            value = measured
        if not isinstance(value, Failure):
            value = self._beside_recorded(measurement, value, gpu)
            self._measured.put((measurement.name, measurement.key(experiment)), value)
        return value

    def _beside_recorded(self, measurement: Measurement[Any], value: Measured, gpu: Gpu) -> Measured:
        """What was measured here, with what was recorded on a GPU where the measurement shows both."""
        return measurement.beside(value, lambda: self._archive.find(measurement, value.experiment, gpu.name))

    def _measures(self, measurement: Measurement[Any], experiment: Experiment, gpu: Gpu) -> bool:
        """Whether this machine itself measures the experiment: on its GPU or, without one, under the interpreter."""
        if self.gpu is None:
            return measurement.is_interpreted and not experiment.gpu
        return gpu is self.gpu


def _log(job: Job, result: Measured | Failure, gpu: Gpu) -> None:
    """One record of a job that has ended."""
    fields: dict[str, object] = {"run": job.id, "measurement": job.name, "gpu": gpu.name, "outcome": "ok"}
    fields |= {"experiment": job.experiment.to_json(), "stages_s": {n: round(s, 3) for n, s in job.stages.items()}}
    if isinstance(result, Failure):
        fields |= {"outcome": result.kind, "failed_in": result.stage}
    LOG.info("A job has ended.", extra={"fields": fields})


def _named(name: str) -> Measurement[Any]:
    if name not in MEASUREMENTS:
        raise ValueError(f"There is no measurement {name!r}; there are {', '.join(MEASUREMENTS)}.")
    return MEASUREMENTS[name]
