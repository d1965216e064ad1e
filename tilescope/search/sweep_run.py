"""A sweep in progress: compile ahead, keep the device busy, and store rows as they arrive.

`Search` chooses the next trial, and a thread has the device carry it out. A later sweep of the same space resumes from
the rows of a cancelled one.
"""

import datetime
import functools
import math
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from statistics import median

from tilescope.compiling.estimates import estimate_time, explain_spill
from tilescope.declare.experiment import Experiment, launch_of
from tilescope.declare.gpus import Gpu
from tilescope.declare.jit import HAS_TRITON
from tilescope.declare.knobs import ConfigError
from tilescope.declare.space import Space
from tilescope.declare.spec import Kernel, Launch
from tilescope.measure.fair_queue import Call
from tilescope.measure.pool import Pool
from tilescope.measure.session import Session
from tilescope.results import Device, Failure, Sweep, SweepRow
from tilescope.results.store import Store
from tilescope.results.sweep import DONE, ConfigBuild, ConfigTrial, Status
from tilescope.search.cases import build
from tilescope.search.search import Search, Task
from tilescope.search.trial import DEVICE_LOST, LocalDevice, concurrent_compiles
from tilescope.timing.constants import find_constants

# A model: (kernel, launch) → the launch's time, estimated before its compile; None if the launch does not fit.
Estimate = Callable[[Kernel, Launch], float | None]

# Compiles queued per worker: the second one keeps the worker busy until the next is submitted.
_QUEUED_PER_WORKER = 2

# Compiles in progress are slow if none has ended for _SLOW_S seconds, and for _SLOW times the median compile time.
_SLOW_S = 3.0
_SLOW = 3.0
_POLL_S = 0.5

# Consecutive failed trials after which a sweep stops using a device. Each config of a failed trial is retried alone, so
# this must exceed the number of configs in two trials.
_MAX_FAILURES = 40

# Seconds of one compile on one core (measured: matmul.grouped for an H200, triton 3.7.1, one x86 server core), of one
# config's share of a trial, and of the race and the final (both assumed). Used for estimates before a sweep starts.
COMPILE_S = 1.9
TRIAL_S = 0.1
FINAL_S = 6.0

# Kinds of compile failures that the config causes, and that keep it from launching. This machine causes all others.
_CONFIG_FAILURES = {"out_of_resources", "compile_error", "timeout"}


@dataclass(frozen=True)
class Progress:
    """The progress of a sweep.

    Attributes:
        phase: "explore", "race", "final", "cancelled" or "over".
        done: number of the `total` configs that are no longer "not tried".
        seconds: since the start.
        remaining_s: an overestimate, because the first rows include the workers' start. None before the first row.
        best: the fastest row so far; None before the first timing.
    """

    phase: str
    done: int
    total: int
    seconds: float
    remaining_s: float | None
    best: SweepRow | None


def estimate_seconds(configs: int, concurrent_compiles: int) -> float:
    """Estimate a sweep's duration before it starts: the longer of its compiles and its trials, plus the final."""
    return max(configs * COMPILE_S / concurrent_compiles, configs * TRIAL_S) + FINAL_S


class SweepRun:
    """One sweep on one device. After `start`, wait for `result`.

    Args:
        builder: compile workers, which several sweeps may share.
        store: the store for the rows.
        estimate: the model that orders configs before they are compiled.
        closes_builder: close the compile workers at the end of the sweep.

    Attributes:
        name: the sweep's name in the store.
        changes: number of times that rows changed.
    """

    def __init__(
        self,
        task: Task,
        device: LocalDevice,
        builder: Pool,
        store: Store,
        estimate: Estimate = estimate_time,
        closes_builder: bool = False,
    ) -> None:
        self.space = task.space
        self._budget = task.budget
        self.gpu = device.gpu
        self._takes_times = device.takes_times
        self._trial_device = device
        self._builder = builder
        self._closes_builder = closes_builder
        self._store = store
        earlier = task.earlier if task.earlier and task.earlier.name else None
        self.name = earlier.name if earlier else uuid.uuid4().hex
        done = earlier.rows if earlier else ()
        rows = initial_rows(task.space, self.gpu, self._takes_times, estimate, done)
        self.changes = 0
        self._search = Search(task, rows, self._takes_times, builder.max_concurrency)
        self._done_before = sum(row.status != "not tried" for row in rows)
        self._submitted: set[int] = set()
        self._died: set[int] = set()
        self._compiled = 0
        self._compiled_at = 0.0
        self._device = Device("none", self.gpu.name, torch="", triton="")
        self._notes: list[str] = []
        self._is_cancelled = self._has_stopped = False
        self._began = 0.0
        self._began_at = datetime.datetime.now(datetime.UTC)
        self._condition = threading.Condition()  # its lock is reentrant
        self._result: Future[Sweep] = Future()

    def start(self) -> Future[Sweep]:
        """Start the sweep, and return its result as a future immediately."""
        self._began = time.monotonic()
        threading.Thread(target=self._run, daemon=True, name="sweep").start()
        return self._result

    def cancel(self) -> None:
        """Kill the trial and the compiles in progress; keep the rows that are done."""
        with self._condition:
            self._is_cancelled = True
            self._condition.notify_all()
        self._trial_device.cancel()

    def result(self, timeout_s: float | None = None) -> Sweep:
        """Wait for the end.

        Raises:
            TimeoutError: if the sweep has not ended after `timeout_s`.
        """
        return self._result.result(timeout_s)

    @property
    def progress(self) -> Progress:
        with self._condition:
            rows = self._search.rows
            done = sum(row.status != "not tried" for row in rows)
            seconds = time.monotonic() - self._began if self._began else 0.0
            timed = [row for row in rows if row.status == "timed"]
            best = min(timed, key=lambda row: row.relative or math.inf, default=None)
            new = done - self._done_before
            phase = "cancelled" if self._is_cancelled else self._search.phase
            remaining_s: float | None = None if self._is_cancelled else FINAL_S
            if phase == "over":
                remaining_s = 0.0
            if phase == "explore":
                remaining_s = (
                    seconds / new * self._search.remaining + FINAL_S * self._takes_times
                    if new
                    else None
                )
            return Progress(phase, done, len(rows), seconds, remaining_s, best)

    def snapshot(self) -> Sweep:
        """Return the sweep so far. Its `ended` is "running" while the device is in use."""
        with self._condition:
            search = self._search
            ended = search.ended or "failed"
            if not self._has_stopped:
                ended = "running"
            elif self._is_cancelled and search.phase != "over":
                ended = "cancelled"
            notes = list(self._notes)
            if not self._takes_times:
                is_checked = any(row.status == "checked" for row in search.rows)
                unchecked = "" if is_checked else ", and no result was checked"
                notes.append(
                    f"Nothing was timed here{unchecked}: configs are ranked by their predicted time on {self.gpu.name} "
                    f"with a {self.space.base.run.l2} L2."
                )
                notes.append(find_constants(self.gpu)[1])
            if any(row.status == "failed" for row in search.rows):
                notes.append("A resumed sweep tries failed configs again.")
            return Sweep(
                self.space,
                self._device,
                tuple(search.rows),
                search.final,
                ended,
                time.monotonic() - self._began,
                "\n".join(filter(None, notes)),
                self.name,
                self._budget,
            )

    def _run(self) -> None:
        thread = threading.Thread(target=self._drive, daemon=True)
        try:
            with self._condition:
                self._store_header()
                self._store_rows(
                    [
                        number
                        for number, row in enumerate(self._search.rows)
                        if row.status != "not tried"
                    ]
                )
            thread.start()
            while numbers := self._wait_for_compiles_to_submit():
                for number in numbers:
                    experiment = self._search.experiments[number]
                    call = Call("compile", build, (experiment, self.gpu, self._takes_times))
                    future = self._builder.submit(call)
                    future.add_done_callback(functools.partial(self._on_compiled, number))
            thread.join()
            sweep = self.snapshot()
            self._store.end_sweep(self.name, sweep)
            if self._closes_builder:
                self._builder.close()
            self._result.set_result(sweep)
        except BaseException as error:  # a bug must not make callers of `result` wait forever
            self._result.set_exception(error)

    def _wait_for_compiles_to_submit(self) -> list[int]:
        """Wait until the builder has room. Return the configs to compile next; empty if the sweep is over."""
        with self._condition:
            while not self._has_stopped and not self._is_over():
                room = (
                    _QUEUED_PER_WORKER * self._builder.max_concurrency
                    - len(self._submitted)
                    + self._compiled
                )
                upcoming = [
                    number for number in self._search.upcoming if number not in self._submitted
                ]
                if numbers := upcoming[: max(0, room)]:
                    self._submitted.update(numbers)
                    return numbers
                self._condition.wait()
            return []

    def _drive(self) -> None:
        """Carry out trials until the sweep is over or the device has failed too often."""
        try:
            described = self._trial_device.describe()
            if isinstance(described, Failure):
                self._notes.append(described.message)
                return
            with self._condition:
                self._device = described
                self._store_header()
            failures = 0
            while (trial := self._next_trial()) is not None:
                result = self._trial_device.attempt(trial)
                with self._condition:
                    self._store_rows(self._search.tell(trial, result))
                    self._condition.notify_all()
                failures = failures + 1 if isinstance(result, Failure) else 0
                if isinstance(result, Failure) and (
                    result.kind == DEVICE_LOST or failures == _MAX_FAILURES
                ):
                    self._notes.append(result.message)
                    return
        except BaseException as error:
            self._notes.append(f"{type(error).__name__}: {error}")
            raise
        finally:
            with self._condition:
                self._has_stopped = True
                self._condition.notify_all()

    def _next_trial(self) -> ConfigTrial | None:
        """Wait for the next trial. Return None once the sweep is over."""
        with self._condition:
            while not self._is_over():
                phase = self._search.phase
                trial = self._search.ask(self._compiles_slowly())
                if self._search.phase != phase:
                    self._condition.notify_all()
                if trial is not None:
                    return trial
                if not self._is_over():
                    self._condition.wait(_POLL_S)
            return None

    def _on_compiled(self, number: int, future: Future[ConfigBuild | Failure]) -> None:
        """Pass a compile's outcome to the search. Drop a config that failed or that the device can't check."""
        outcome = future.result()
        status: Status = "predicted"
        with self._condition:
            if self._has_stopped:
                return
            has_died = isinstance(outcome, Failure) and outcome.kind == "worker_died"
            if has_died and number not in self._died:  # compile it once more
                self._died.add(number)
                self._submitted.remove(number)
                self._condition.notify_all()
                return
            self._compiled += 1
            self._compiled_at = time.monotonic()
            if isinstance(outcome, ConfigBuild):
                self._search.add_build(number, outcome)
                reason = self._trial_device.refusal(self._search.experiments[number])
                reason = reason and (outcome.reason or reason)
            else:
                status = "set aside" if outcome.kind in _CONFIG_FAILURES else "failed"
                reason = "" if outcome.kind == "cancelled" else outcome.message
            if reason:
                self._search.drop(number, status, reason)
                self._store_rows([number, *self._search.set_aside_incomplete()])
            self._condition.notify_all()

    # The caller of the methods below holds the lock of `_condition`.

    def _compiles_slowly(self) -> bool:
        times_s = [row.compile_s for row in self._search.rows if row.compile_s]
        limit_s = max(_SLOW_S, _SLOW * median(times_s or [0.0]))
        return time.monotonic() - self._compiled_at > limit_s

    def _is_over(self) -> bool:
        return self._is_cancelled or self._search.phase == "over"

    def _store_header(self) -> None:
        self._store.begin_sweep(self.name, self.gpu, self._began_at, self.snapshot())

    def _store_rows(self, numbers: Sequence[int]) -> None:
        """Store the current state of rows before any reader can see them."""
        if numbers:
            progress = self.progress
            rows = {number: self._search.rows[number] for number in numbers}
            best_ms = progress.best.median_ms if progress.best else None
            self._store.add_to_sweep(self.name, rows, progress.done, best_ms)
            self.changes += 1


def explain_refusal(experiment: Experiment, gpu: Gpu) -> str:
    """Return why a sweep does not compile a config: the family rejects it, or it spills. "" if a sweep compiles it."""
    if experiment.is_case:
        return ""
    kernel, launch = launch_of(experiment, gpu)
    try:
        kernel.family.refuse(launch.problem, launch.config)
    except ConfigError as error:
        return str(error)
    return explain_spill(kernel, launch)


def initial_rows(
    space: Space, gpu: Gpu, takes_times: bool, estimate: Estimate, earlier: Sequence[SweepRow]
) -> list[SweepRow]:
    """Make a row for each config. Reuse the earlier rows that are done for this GPU."""
    # A machine that takes times retries configs that were only checked or predicted.
    done = {status for status in DONE if not takes_times or status not in ("checked", "predicted")}
    rows = {row.experiment: row for row in earlier if row.device == gpu.name and row.status in done}
    for experiment in space.experiments:
        if experiment in rows:
            continue
        if reason := explain_refusal(experiment, gpu):
            rows[experiment] = SweepRow(experiment, "set aside", reason, gpu.name)
        else:
            expected = None if experiment.is_case else estimate(*launch_of(experiment, gpu))
            rows[experiment] = SweepRow(experiment, "not tried", device=gpu.name, estimate=expected)
    return [rows[experiment] for experiment in space.experiments]


def make_sweep(session: Session, task: Task, relay: Store | None = None) -> SweepRun:
    """Prepare a sweep on the session's GPU. Without one, configs are only checked in the interpreter, or predicted.

    Args:
        relay: receives the rows of a sweep that shares the session's compile workers with others; None for a sweep with
            its own workers, whose rows the session's store receives.

    Raises:
        ConfigError: if the space's GPU does not support its dtype, or is "this" on a machine without a GPU, or if
            Triton is not installed.
    """
    device = LocalDevice(session, task.space.base)
    if not HAS_TRITON:
        reason = "Triton is not installed on this machine, so a sweep can't compile."
        raise ConfigError("no_triton", reason)
    if relay:
        return SweepRun(task, device, session.compilers, relay)
    own = Pool("compile", session.cache, concurrent_compiles())
    return SweepRun(task, device, own, session.store, closes_builder=True)
