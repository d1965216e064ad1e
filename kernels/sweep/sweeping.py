"""A sweep under way: compiles ahead, keeps each device busy, streams rows, can be cancelled.

`Search` says what is tried next; here are the threads. One hands compiles to the builder, one per device waits for its
trials. Rows are kept as they come: a cancelled sweep ends with all that was done, and another one, given these rows,
goes on from there.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

from kernels.experiment import Experiment
from kernels.gpus import Gpu
from kernels.results import Device, Failure, Strategy, Sweep, SweepRow
from kernels.space import Space
from kernels.store import Store
from kernels.sweep.builder import unbuilt
from kernels.sweep.device import (
    GONE,
    NO_WORKER,
    Build,
    Builder,
    Predict,
    Refuse,
    TrialDevice,
    no_prediction,
    nothing_refused,
)
from kernels.sweep.first_rows import first_rows
from kernels.sweep.kept_sweep import SweepKeeper
from kernels.sweep.race import Task
from kernels.sweep.search import Search
from kernels.sweep.sweep_progress import FINAL_S, Progress, Update

# Compiles that are handed over before a worker is free, so that none waits for the next.
_AHEAD = 2

# Trials that may fail one after the other before their device is given up: more than the configs of two trials, which
# are tried one by one after these failed.
_MOST_IN_A_ROW = 40

# How often a waiting thread looks whether all is over.
_LOOK_S = 0.2


class Sweeping:
    """One sweep on devices of one kind.

    Args:
        devices: of one GPU's name, at least one. They are closed in the end, as is the builder.
        predict: the model that configs are ordered by.
        refuse: which configs are not worth a compile.
        done: rows of an earlier sweep of the same space on the same kind of GPU: those that are done are skipped.
        experiments: in place of those of the space, where this is no product.
        keeper: writes it to the store as it goes on; by default nothing is written.

    Attributes:
        resumed: configs that an earlier sweep had done.
        changes: how often rows changed so far.
    """

    def __init__(
        self,
        space: Space,
        strategy: Strategy,
        devices: Sequence[TrialDevice],
        builder: Builder,
        predict: Predict = no_prediction,
        refuse: Refuse = nothing_refused,
        done: Sequence[SweepRow] = (),
        experiments: Sequence[Experiment] | None = None,
        keeper: SweepKeeper | None = None,
    ) -> None:
        self.space, self.strategy = space, strategy
        self._keeper, self._keeping = keeper or SweepKeeper(Store(None), devices[0].gpu), threading.Lock()
        self._devices, self._builder = list(devices), builder
        self._living = len(self._devices)
        gpu, times = devices[0].gpu, devices[0].times
        chosen = space.experiments if experiments is None else experiments
        rows = first_rows(chosen, space, devices[0], predict, refuse, done)
        self.resumed = len({id(row) for row in done} & {id(row) for row in rows})
        estimates = [row.predicted.ms if row.predicted else None for row in rows]
        at_once = min(one.at_once for one in devices)
        self._search = Search(chosen, strategy, estimates, rows, times, at_once, builder.at_once, len(devices))
        self._gpu = gpu
        self.changes = 0
        self._submitted: set[int] = set()
        self._compiled = 0
        self._device: Device | None = None
        self._changed: dict[int, None] = {n: None for n, row in enumerate(rows) if row.status != "not tried"}
        self._known_before = len(self._changed)
        self._moved = threading.Condition()
        self._is_cancelled = self._is_lost = False
        self._notes: list[str] = []
        self._began = 0.0
        self._first: tuple[float, int] | None = None
        self._result: Future[Sweep] = Future()

    @property
    def gpu(self) -> Gpu:
        """That configs are for."""
        return self._gpu

    @property
    def stored_name(self) -> str:
        """Its name in the store."""
        return self._keeper.name

    @property
    def has_ended(self) -> bool:
        """Whether `result` answers at once."""
        return self._result.done()

    @property
    def cores(self) -> int:
        """Compiles that can be under way at once."""
        return self._builder.at_once

    def start(self) -> None:
        """Begin, and return at once."""
        self._began = time.monotonic()
        threading.Thread(target=self._conduct, daemon=True).start()

    def cancel(self) -> None:
        """End it: what is under way is killed, what is done stays."""
        with self._moved:
            self._is_cancelled = True
            self._moved.notify_all()
        for device in self._devices:
            device.cancel()

    def result(self, timeout_s: float | None = None) -> Sweep:
        """Wait for what was found.

        Raises:
            TimeoutError: where it has not ended after `timeout_s`.
        """
        return self._result.result(timeout_s)

    def updates(self, every_s: float = 0.5) -> Iterator[Update]:
        """Yield what changed, every `every_s` and once more in the end."""
        while True:
            is_over = self._result.done()
            with self._moved:
                numbers, self._changed = list(self._changed), {}
                update = Update(tuple(self._search.rows[n] for n in numbers), self._progress())
            yield update
            if is_over:
                return
            with self._moved:
                self._moved.wait_for(self._result.done, every_s)

    @property
    def progress(self) -> Progress:
        """Where it is now."""
        with self._moved:
            return self._progress()

    def _progress(self) -> Progress:
        search = self._search
        done = sum(row.status != "not tried" for row in search.rows)
        seconds = time.monotonic() - self._began if self._began else 0.0
        timed = [row for row in search.rows if row.status == "timed"]
        best = min(timed, key=lambda row: row.relative or math.inf, default=None)
        return Progress(search.phase, done, len(search.rows), self._compiled, seconds, self._remaining_s(done), best)

    def _remaining_s(self, done: int) -> float | None:
        """What is left at the pace since the first row: before it, workers start, which they do once."""
        phase, now, since = self._search.phase, time.monotonic(), done - self._known_before
        if phase != "explore":
            return 0.0 if phase == "over" else FINAL_S
        if since < 1:
            return None
        self._first = self._first or (now, since)
        began, at_first = self._first
        if since == at_first:
            return None
        return (now - began) / (since - at_first) * self._search.left + FINAL_S * self._devices[0].times

    def so_far(self) -> Sweep:
        """What is known now, as if it ended here: `ended` is "running"."""
        with self._moved:
            return dataclasses.replace(self._found(), ended="running")

    def _conduct(self) -> None:
        """Hand out compiles until all is over; then gather what was found."""
        drivers = [threading.Thread(target=self._drive, args=one, daemon=True) for one in enumerate(self._devices)]
        try:
            self._keeper.begin(self.so_far())
            self._keep(list(self._changed))
            for driver in drivers:
                driver.start()
            while not self._is_over():
                if not self._feed():
                    with self._moved:
                        self._moved.wait(_LOOK_S)
            for driver in drivers:
                driver.join()
            found = self._found()  # no thread changes a row any more
            self._keeper.end(found)
            self._close()
        except BaseException as error:  # a defect of ours must not leave anybody waiting
            self._result.set_exception(error)
        else:
            self._result.set_result(found)
        finally:
            with self._moved:
                self._moved.notify_all()

    def _close(self) -> None:
        self._builder.close()
        for device in self._devices:
            device.close()

    def _is_over(self) -> bool:
        with self._moved:
            return self._stops() or not self._living

    def _stops(self) -> bool:
        """Whether no more is tried. With the lock held."""
        return self._is_cancelled or self._is_lost or self._search.phase == "over"

    def _feed(self) -> bool:
        """Start as many compiles as the builder can take. Returns whether there was any."""
        with self._moved:
            under_way = len(self._submitted) - self._compiled
            room = _AHEAD * self._builder.at_once - under_way
            wanted = [n for n in self._search.upcoming if n not in self._submitted][: max(0, room)]
            self._submitted.update(wanted)
        for number in wanted:
            future = self._builder.submit(self._search.experiments[number])
            future.add_done_callback(functools.partial(self._on_built, number))
        return bool(wanted)

    def _on_built(self, number: int, future: Future[Build | Failure]) -> None:
        if self._takes(number, future):
            self._keep([number])

    def _takes(self, number: int, future: Future[Build | Failure]) -> bool:
        """Take up a compile that ended. Returns whether this is all that becomes of its config."""
        error = future.exception()
        build = Failure("compile", "error", f"{type(error).__name__}: {error}") if error else future.result()
        with self._moved:
            self._compiled += 1
            row = self._search.rows[number]
            if isinstance(build, Failure) and build.kind == NO_WORKER:
                self._notes += [] if self._is_lost else [build.message]
                self._is_lost = True
                self._moved.notify_all()
                return False
            if isinstance(build, Failure):
                ended = unbuilt(row, build)
                if ended is not None:
                    self._search.built(number, ended)
                    self._tell([number])
                return ended is not None
            self._search.built(number, build)
            reason = self._devices[0].refusal(row.experiment)
            if reason:
                row = dataclasses.replace(self._search.rows[number], status="predicted", reason=reason)
                self._search.skip(number, row)
                self._tell([number])
            self._moved.notify_all()
            return bool(reason)

    def _keep(self, numbers: Sequence[int]) -> None:
        """Write rows as they are now. Waits for the disk, so never with the lock held."""
        if not numbers:
            return
        with self._keeping:  # one after the other, so that the last state of a row is written last
            with self._moved:
                rows, now = [(number, self._search.rows[number]) for number in numbers], self._progress()
            self._keeper.add(rows, now.done, now.best.median_ms if now.best else None)

    def _drive(self, place: int, device: TrialDevice) -> None:
        """Try what is asked of one device, until all is over."""
        try:
            described = device.describe()
            if isinstance(described, Failure):
                self._notes.append(described.message)
                return
            if self._device is None:
                self._device = described
                self._keeper.begin(self.so_far())
            in_a_row = 0
            while (task := self._next(place)) is not None:
                result = device.attempt(task.trial)
                in_a_row = in_a_row + 1 if isinstance(result, Failure) else 0
                with self._moved:
                    told = self._search.tell(task, result, place, device.where)
                    self._tell(told)
                self._keep(told)
                if isinstance(result, Failure) and (result.kind == GONE or in_a_row == _MOST_IN_A_ROW):
                    self._notes.append(result.message)
                    return
        except BaseException as error:
            self._notes.append(f"{type(error).__name__}: {error}")
            raise
        finally:
            with self._moved:
                self._living -= 1
                self._moved.notify_all()

    def _next(self, place: int) -> Task | None:
        """The next task of a device; waits for it. None where all is over."""
        with self._moved:
            while not self._stops():
                task = self._search.ask(place, self._living == 1)
                if task is not None:
                    return task
                self._moved.wait(_LOOK_S)
            return None

    def _tell(self, numbers: Sequence[int]) -> None:
        """Rows changed. With the lock held."""
        self._changed.update(dict.fromkeys(numbers))
        self.changes += 1
        self._moved.notify_all()

    def _found(self) -> Sweep:
        search, device = self._search, self._device
        rows = tuple(search.rows)
        is_cut = self._is_cancelled and search.phase != "over"
        ended = "cancelled" if is_cut else search.ended or "failed"
        if device is None:
            device = Device("none", self._gpu.name, torch="", triton="")
        return Sweep(
            self.space, self.strategy, device.backend, device, rows, search.final, ended,
            seconds=time.monotonic() - self._began, note=" ".join([*self._notes, *_note(self._devices[0], rows)]),
        )  # fmt: skip


def _note(device: TrialDevice, rows: Sequence[SweepRow]) -> list[str]:
    """What a reader must know of the ranking."""
    notes = []
    if not device.times:
        notes.append(
            f"Nothing was timed here: configs are ranked by the time that is predicted for {device.gpu.name} alone."
        )
    failed = sum(row.status == "failed" for row in rows)
    if failed:
        notes.append(f"{failed} of {len(rows)} configs failed, and are tried again when the sweep is resumed.")
    return notes
