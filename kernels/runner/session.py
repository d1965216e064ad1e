"""The parent's side of runs: a queue, one run at a time on the device, progress, cancel.

`Session.submit` returns a Job at once. The job compiles in a compile worker, waits for its turn, and then
launches, checks and is timed in the one run worker. This process imports no torch and makes no CUDA context.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernels import discover, records
from kernels.compiled import compiler
from kernels.experiment import Experiment, Run, resolved_gpu
from kernels.gpus import Gpu, this_gpu
from kernels.jit import HAS_TRITON
from kernels.knobs import ConfigError
from kernels.matmul.transposed_operands import transposition, with_transposed
from kernels.results import Compiled, Counters, Device, Failure, GroupSizeStudy, LayoutStudy, RunResult, Timeline
from kernels.results.group_size_study import any_group_size
from kernels.runner import group_sizes, ncu, worker
from kernels.runner.compiles import Compiles, default_cache_directory
from kernels.runner.interpreter import refuse_what_takes_too_long
from kernels.runner.job import Job, Outcome, RunQueue
from kernels.runner.measuring import MEASUREMENTS
from kernels.runner.processes import Workers, cancelled, died, outcome
from kernels.spec import Launch

# Failures after which a CUDA context can't be trusted: its worker is replaced.
_POISONS = {"cuda_error", "error"}

# Jobs that may be under way or waiting at once; more are refused, so that nobody waits for hours.
MOST_JOBS = 32


class Session:
    """The workers of one page: compile workers, and one run worker for the device (or the interpreter)."""

    def __init__(self, gpu: Gpu | None = None, cache_directory: Path | None = None) -> None:
        self.gpu = gpu
        self.backend = "cuda" if gpu else "interpreter"
        cache = str(cache_directory or default_cache_directory() / "triton")
        self._cache = cache
        self._compilers = Workers("compile", cache, count=max(2, min(4, (os.cpu_count() or 2) // 2)))
        self._compiles = Compiles(self._compilers)
        self._runner = Workers(self.backend, cache)
        self._queue = RunQueue()
        self._jobs: set[Job] = set()
        self._device: Device | None = None
        self._counted: dict[Experiment, Counters] = {}
        self._compared: dict[Experiment, GroupSizeStudy] = {}
        self._timelines: dict[Experiment, Timeline] = {}
        self._lock = threading.Lock()

    @classmethod
    def here(cls) -> Session:
        """A session on this machine's GPU, or on the interpreter where there is none."""
        return cls(this_gpu())

    def submit(self, experiment: Experiment, what: str = "run") -> Job:
        """Start a run. What can't be run here is an outcome (a Failure) as well.

        "this" GPU on a machine without one means the interpreter, as if it were left out.

        Args:
            what: "run"; "check", which leaves a right result untimed; "layouts", which compares how B is stored;
                "counters", which counts a launch with Nsight Compute; "reuse", which compares GROUP_SIZEs; or
                "timeline", which records when each program ran.
        """
        if experiment.gpu == "this" and self.gpu is None:
            experiment = replace(experiment, gpu="")
        job = Job(experiment, what)
        try:
            measured = what in MEASUREMENTS
            immediate = self._without_measuring(experiment, what) if measured else self._without_running(experiment)
        except ConfigError as error:
            immediate = Failure("config", error.kind, str(error), error.field)
        if immediate is not None:
            job.end(immediate)
        else:
            self._jobs.add(job)
            job.done.add_done_callback(lambda _: self._jobs.discard(job))
            threading.Thread(target=self._carry_out, args=(job,), daemon=True).start()
        return job

    def compiled(
        self, experiment: Experiment, specialization: str = "launcher", wanted: Callable[[], bool] = lambda: True
    ) -> Compiled | Failure:
        """What the compiler makes of an experiment for its GPU; waits for it. Kept for the next time.

        Args:
            specialization: what the compiler is told of sizes and strides, one of `compiler.SPECIALIZATIONS`.
            wanted: asked now and then. A compile that nobody wants any more is ended, unless it is about to end anyway.

        Raises:
            ConfigError: where the experiment names a GPU that it can't be for.
        """
        gpu = resolved_gpu(experiment, self.gpu)
        if not HAS_TRITON:
            return Failure("compile", "no_triton", "Triton is not installed on this machine, so nothing is compiled.")
        return self._compiles.of(self._key(experiment), specialization, experiment, gpu, wanted)

    def compiled_before(self, experiment: Experiment, specialization: str = "launcher") -> Compiled | None:
        """What the compiler made of it, if that is known already. Returns at once."""
        return self._compiles.known(self._key(experiment), specialization)

    def counted_before(self, experiment: Experiment) -> Counters | None:
        """What was counted of it here, or else what was recorded. Returns at once."""
        key = self._key(experiment)
        return self._counted.get(key) or records.find_counters(experiment, key.gpu)

    def compared_before(self, experiment: Experiment) -> GroupSizeStudy | None:
        """What was found of its GROUP_SIZEs here, or else what was recorded. Returns at once."""
        key = self._key(experiment)
        return self._compared.get(any_group_size(key)) or records.find_reuse(experiment, key.gpu)

    def timeline_before(self, experiment: Experiment) -> Timeline | None:
        """The timeline that was taken of it here, or else the recorded one. Returns at once."""
        key = self._key(experiment)
        return self._timelines.get(key) or records.find_timeline(experiment, key.gpu)

    def _key(self, experiment: Experiment) -> Experiment:
        """The experiment without what matters to a run alone, for the GPU that it is for."""
        problem = discover()[experiment.kernel].family.essential(experiment.problem)
        return replace(experiment, gpu=resolved_gpu(experiment, self.gpu).name, problem=problem, run=Run())

    def warm_up(self) -> None:
        """Start the workers in the background, so that the first run need not wait for them."""
        if HAS_TRITON:
            self._runner.submit(worker.describe, "worker")
        if HAS_TRITON and self.gpu is not None:
            self._compilers.submit(worker.process_id, "worker")

    def ask_runner(self, question: Any) -> Any:
        """Call a function of `worker` in the run worker, between runs: `process_id`, `compiled_here`."""
        return self._runner.submit(question, "worker").result()

    def close(self) -> None:
        """Kill all workers; runs under way end as failures."""
        self._compilers.close()
        self._runner.close()

    def _without_running(self, experiment: Experiment) -> RunResult | Failure | None:
        """The recorded run of another GPU, or a Failure where this machine can't run the experiment."""
        gpu = resolved_gpu(experiment, self.gpu)
        if experiment.gpu and gpu is not self.gpu:
            recorded = records.find(experiment, gpu.name)
            here = self.gpu.name if self.gpu else "no GPU"
            return recorded or Failure(
                "config",
                "not_recorded",
                f"This machine has {here}, and no run of this experiment on {gpu.name} was recorded. "
                'Leave gpu out (or say "this") to run it here.',
                "gpu",
            )
        if not HAS_TRITON:
            return Failure(
                "worker", "no_triton", "Triton is not installed on this machine, so nothing can be run here."
            )
        if self.gpu is None:
            recorded = records.find(experiment, gpu.name)
            instead = f" Or choose gpu {gpu.name}: a run there was recorded." if recorded else ""
            kernel = discover()[experiment.kernel]
            launch = Launch(experiment.problem, experiment.config, gpu)
            refuse_what_takes_too_long(kernel, launch, instead)
        return self._busy()

    def _without_measuring(self, experiment: Experiment, what: str) -> Outcome | None:
        """What was recorded, or a Failure, where this machine can't measure it."""
        gpu, measurement = resolved_gpu(experiment, self.gpu), MEASUREMENTS[what]
        measurement.refuse(experiment, gpu)
        if self.gpu is not None and gpu is self.gpu:
            return self._busy()
        return measurement.recorded(experiment, gpu, self.gpu)

    def _busy(self) -> Failure | None:
        if len(self._jobs) < MOST_JOBS:
            return None
        return Failure("worker", "busy", f"{len(self._jobs)} runs are under way or waiting; try again in a minute.")

    def _carry_out(self, job: Job) -> None:
        try:
            result = self._stages(job)
        except Exception as error:  # a defect of ours must still end the job
            result = Failure("worker", "error", f"{type(error).__name__}: {error}")
        self._queue.leave(job)
        job.end(result)

    def _stages(self, job: Job) -> Outcome:
        if job.what == "counters":
            job.enter("compile")
            made = self.compiled(job.experiment)
            if isinstance(made, Failure):
                return made
            turn = self._turn(job)
            return turn or self._count(job, made)
        if job.what == "reuse":
            return self._compare_group_sizes(job)
        if self.gpu is not None:
            needed = [(compiler.compile_for, job.experiment)]
            if job.what == "layouts":
                others = with_transposed(job.experiment, "B"), transposition(job.experiment)
                needed += [(compiler.compile_for, other) for other in others]
            if job.what == "timeline":
                needed += [(compiler.compile_timed_for, job.experiment)]
            for compile_it, experiment in needed:
                compiled = self._stage(job, self._compilers, "compile", compile_it, experiment, self.gpu)
                if isinstance(compiled, Failure):
                    return compiled
        turn = self._turn(job)
        result = turn or self._in_turn(job)
        if isinstance(result, Failure):
            self._device = None
            if result.stage == "worker" or result.kind in _POISONS:
                self._runner.replace()
        return result

    def _turn(self, job: Job) -> Failure | None:
        """Wait for the device; a Failure where the job was cancelled meanwhile."""
        job.enter("queued")
        self._queue.join(job)
        if job.wait_for_turn():
            return None
        return Failure("launch", "cancelled", "Cancelled while waiting in the queue; nothing was launched.")

    def _in_turn(self, job: Job) -> RunResult | LayoutStudy | Timeline | Failure:
        """The stages for which a job has the run worker to itself."""
        if self._device is None:
            device = self._stage(job, self._runner, "worker", worker.describe)
            if isinstance(device, Failure):
                return device
            self._device = device
        try:
            on_device = {"layouts": self._layouts_on_device, "timeline": self._timeline_on_device}
            return on_device.get(job.what, self._on_device)(job, self._device)
        finally:
            self._runner.submit(worker.finish, "worker")

    def _on_device(self, job: Job, device: Device) -> RunResult | Failure:
        gpu = resolved_gpu(job.experiment, self.gpu)
        launched = self._stage(job, self._runner, "launch", worker.launch, job.experiment, gpu)
        if isinstance(launched, Failure):
            return launched
        checked = self._stage(job, self._runner, "check", worker.check)
        if isinstance(checked, Failure):
            return checked
        check, diff = checked
        result = RunResult(job.experiment, device.backend, device, check, diff, stages=job.stages)
        if device.backend == "interpreter":
            recorded = records.find(job.experiment, gpu.name)
            note = "Run by Triton's interpreter on the CPU: the result is checked, and there is no time to report."
            return replace(result, recorded=recorded, note=note)
        if job.what == "check":
            return replace(result, note="Checked, and not timed.")
        if not check.passed:
            return replace(result, note="The result is wrong, so it was not timed.")
        timed = self._stage(job, self._runner, "time", worker.measure)
        if isinstance(timed, Failure):
            return timed
        timing, baseline, peak, clock_mhz, note = timed
        return replace(result, timing=timing, baseline=baseline, peak=peak, clock_mhz=clock_mhz, note=note)

    def _count(self, job: Job, compiled: Compiled) -> Counters | Failure:
        """Count a launch in a process of its own; where that can't be done, what was recorded, with the reason."""
        job.enter("count")
        try:
            ((launch, rows),) = ncu.count([job.experiment], self._cache, started=job.attach)
            counted = ncu.counters(job.experiment, compiled, launch, rows)
        except ncu.CountingFailed as error:
            if job.is_cancelled:
                return cancelled("launch")
            recorded = records.find_counters(job.experiment, compiled.gpu)
            return replace(recorded, note=f"{error} {recorded.note}") if recorded else error.failure
        with self._lock:
            self._counted[self._key(job.experiment)] = counted
        return counted

    def _compare_group_sizes(self, job: Job) -> GroupSizeStudy | Failure:
        """Count and time each GROUP_SIZE; where nothing can be counted, time alone, with the reason."""
        gpu, kernel = resolved_gpu(job.experiment, self.gpu), discover()[job.experiment.kernel]
        several = group_sizes.variants(
            job.experiment, kernel, Launch(job.experiment.problem, job.experiment.config, gpu)
        )
        job.enter("compile")
        with ThreadPoolExecutor(4) as pool:
            outcomes = list(pool.map(self.compiled, several))
        made = [one for one in outcomes if isinstance(one, Compiled)]
        failed = next((one for one in outcomes if isinstance(one, Failure)), None) or self._turn(job)
        if failed:
            return failed
        job.enter("count")
        counted, tool, note = group_sizes.counted(several, self._cache, started=job.attach)
        device = self._stage(job, self._runner, "worker", worker.describe)
        if isinstance(device, Failure):
            return device
        timed = self._stage(job, self._runner, "time", worker.time_in_turns, several, gpu)
        self._runner.submit(worker.finish, "worker")
        if isinstance(timed, Failure):
            return timed
        times_ms, clock_mhz, clock_note = timed
        rows = tuple(map(group_sizes.row, several, made, counted, times_ms))
        study = GroupSizeStudy(job.experiment, "cuda", device, tool, rows, clock_mhz, f"{note} {clock_note}".strip())
        recorded = None if tool else records.find_reuse(job.experiment, gpu.name)
        if recorded:
            return replace(recorded, note=f"{note} {recorded.note}")
        with self._lock:
            self._compared[any_group_size(self._key(job.experiment))] = study
        return study

    def _layouts_on_device(self, job: Job, device: Device) -> LayoutStudy | Failure:
        gpu = resolved_gpu(job.experiment, self.gpu)
        compared = self._stage(job, self._runner, "time", worker.compare_layouts, job.experiment, gpu)
        if isinstance(compared, Failure):
            return compared
        rows, clock_mhz, note = compared
        return LayoutStudy(job.experiment, device.backend, device, rows, clock_mhz, note)

    def _timeline_on_device(self, job: Job, device: Device) -> Timeline | Failure:
        gpu = resolved_gpu(job.experiment, self.gpu)
        taken = self._stage(job, self._runner, "time", worker.timeline, job.experiment, gpu, device)
        if isinstance(taken, Timeline):
            with self._lock:
                self._timelines[self._key(job.experiment)] = taken
        return taken

    @staticmethod
    def _stage(job: Job, workers: Workers, stage: str, function: Any, *args: Any) -> Any:
        """Run one stage of a job in a worker; cancelled jobs and dead workers give a Failure."""
        if job.is_cancelled:
            return cancelled(stage)
        job.enter(stage)
        began = time.perf_counter()
        work = workers.submit(function, stage, *args)
        job.attach(work)
        value = outcome(work, stage)
        job.attach(None)
        job.stages[stage] = time.perf_counter() - began
        if isinstance(value, Failure) and value.kind == "cancelled" and not job.is_cancelled:
            return died(stage, "all workers were replaced")
        return value
