"""What is tried next, and what became of it: a search that is asked and told. No clock, no threads, no machine.

Three phases. *Explore*: each config is checked and timed a few times, in turns with one reference. Configs come in grid
order, shuffled, or guided: the model's order, best prediction first. *Race*: the faster ones go on with more samples,
round after round (successive halving). *Final*: the last few are timed against each other until their ratios are known.

Guided, the order before a compile is the model's rough one. Of the next few configs, compiled ahead, those are
tried first that the model predicts best, now that it knows their registers and shared memory and how far it was off for
those that were timed. So the order does not depend on which compile ends first.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from kernels.experiment import Experiment
from kernels.results import Failure, Final, Strategy, SweepRow
from kernels.sweep.correction import corrections, features
from kernels.sweep.device import Build, Outcome, Outcomes, Trial
from kernels.sweep.race import TURNS, Race, Task
from kernels.sweep.ranking import final, median_interval

# Configs that are tried together, when guided: few, so that what is found corrects the order of the next.
GUIDED_AT_ONCE = 4

# Configs of the trial that finds the reference, in which all other trials then take part.
REFERENCE_AMONG = 4

# Configs that are compiled ahead and ordered anew, when guided: so many for each compile that can be under way, but no
# more, as the first trial waits for them.
_PER_COMPILE, MOST_AHEAD = 2, 24

# An improvement is more than noise: so much of the best time so far.
_IMPROVES = 0.005

# Failures that every config would have: nothing is learned by trying again.
_OF_ALL = {"out_of_memory"}


class Search:
    """One search of a list of configs on devices of one kind.

    Args:
        experiments: in grid order.
        estimates: the model's rough times in ms, before a compile; None where it says nothing.
        rows: what is known of each at the start: set aside, done before, or not tried.
        times: whether the devices take times. If not, configs are checked, and there is no race.
        at_once: configs of one trial at most.
        compiles: that can be under way at once.
        devices: that take trials.
    """

    def __init__(
        self,
        experiments: Sequence[Experiment],
        strategy: Strategy,
        estimates: Sequence[float | None],
        rows: Sequence[SweepRow],
        times: bool = True,
        at_once: int = 15,
        compiles: int = MOST_AHEAD,
        devices: int = 1,
    ) -> None:
        self.experiments, self.strategy, self.rows = experiments, strategy, list(rows)
        self.final: Final | None = None
        self.ended = ""
        self._times = times
        self._at_once = min(at_once, GUIDED_AT_ONCE) if strategy.name == "guided" else at_once
        self._most_at_once, self._devices = at_once, devices
        self._ahead = max(self._at_once, min(MOST_AHEAD, _PER_COMPILE * compiles)) if times else self._at_once
        self._features = features(experiments)
        self._builds: dict[int, Build] = {}
        self._pending = [n for n in ordered(strategy, estimates) if self.rows[n].status == "not tried"]
        self._open: list[Task] = []
        self._retries: list[Task] = []
        self._race: Race | None = None
        self._reference: int | None = None
        self._next_turn, self._improved_at, self._fastest = 0, 0, math.inf
        self._replay()

    def _replay(self) -> None:
        """Take up what was timed before, in the order in which it was."""
        self._next_turn = sum(row.status == "checked" for row in self.rows)
        timed = [n for n, row in enumerate(self.rows) if row.status == "timed" and row.turn is not None]
        for number in sorted(timed, key=lambda n: self.rows[n].turn or 0):
            row = self.rows[number]
            self._next_turn = (row.turn or 0) + 1
            if self._reference is None:
                self._reference = number
            self._notice(row.relative or math.inf)

    @property
    def phase(self) -> str:
        """Where it is: "explore", "race", "final", or "over"."""
        if self._race is not None:
            return self._race.phase
        return "over" if self.ended else "explore"

    @property
    def upcoming(self) -> list[int]:
        """Numbers to compile, the next first."""
        wanted = [number for task in self._retries for number in task.numbers]
        if self._race is not None:
            wanted += self._race.racing + ([] if self._reference is None else [self._reference])
        if self._limit():
            wanted += self._pending
        return [number for number in dict.fromkeys(wanted) if number not in self._builds]

    @property
    def left(self) -> int:
        """Configs that are still to be tried, at most."""
        return min(len(self._pending), self._limit()) + sum(len(task.numbers) for task in self._open)

    def built(self, number: int, build: Build | SweepRow) -> None:
        """A compile ended: with a build, or with the row of a config that is set aside or failed."""
        if isinstance(build, SweepRow):
            self.rows[number] = build
            self._drop(number)
            return
        self._builds[number] = build
        row = self.rows[number]
        if row.compile_s is None:  # else it was compiled before, and is found in the cache
            facts = {name: getattr(build, name) for name in ("registers", "spilled_bytes", "shared_bytes")}
            predicted = build.predicted or row.predicted
            self.rows[number] = dataclasses.replace(row, compile_s=build.seconds, predicted=predicted, **facts)

    def skip(self, number: int, row: SweepRow) -> None:
        """A compiled config is not tried: the device can't."""
        self.rows[number] = row
        self._drop(number)

    def _drop(self, number: int) -> None:
        if number in self._pending:
            self._pending.remove(number)
        if self._race is not None:
            self._race.drop(number)

    def ask(self, device: int = 0, alone: bool = True) -> Task | None:
        """What a device is to try now; None where nothing is ready, or all is over.

        Args:
            device: its place.
            alone: it is the only one.
        """
        if self._reference is None and self._times and self._open:
            return None  # the first trial finds the reference that all others are timed with
        task = self._retry(device, alone) or (self._explore() if self._race is None else self._of_race(self._race))
        if task is not None:
            self._open.append(task)
        return task

    def _retry(self, device: int, alone: bool) -> Task | None:
        for task in self._retries:
            if (alone or task.not_on != device) and self._are_built(task.numbers):
                self._retries.remove(task)
                again = self._trial(task.numbers, task.trial.turns, task.trial.is_checked)
                return dataclasses.replace(task, trial=again)
        return None

    def _are_built(self, numbers: Sequence[int]) -> bool:
        return all(n in self._builds for n in numbers)

    def _limit(self) -> int:
        """Configs that may still be tried: what the budget leaves, or 0 once the patience is over."""
        strategy, tried = self.strategy, self._next_turn + sum(t.phase == "explore" for t in self._retries)
        if strategy.name == "guided" and self._times and self._next_turn - self._improved_at >= strategy.patience:
            return 0
        under_way = sum(len(task.numbers) for task in self._open if task.phase == "explore")
        if strategy.budget is None:
            return len(self._pending)
        return max(0, strategy.budget - tried - under_way)

    def _explore(self) -> Task | None:
        finds_reference = self._reference is None and self._times  # and all other devices wait for it
        room = min(REFERENCE_AMONG if finds_reference else self._at_once, self._at_once, self._limit())
        if not self._pending or not room:
            return self._end_exploring() if not self._open and not self._retries else None
        guided = self.strategy.name == "guided"
        window = self._pending[: self._ahead if guided else room]
        if not self._are_built(window):
            return None
        chosen = self._best_predicted(window)[:room] if guided else window
        for number in chosen:
            self._pending.remove(number)
        return Task(tuple(chosen), self._trial(chosen, TURNS, is_checked=True), "explore")

    def _best_predicted(self, window: Sequence[int]) -> list[int]:
        """By the model's prediction, corrected by what was timed; what it says nothing of comes last."""
        timed = [(n, row, row.predicted) for n, row in enumerate(self.rows) if row.relative and row.predicted]
        residuals = [(n, math.log((row.relative or 1.0) / predicted.ms)) for n, row, predicted in timed]
        correction = corrections(self._features, residuals)

        def score(number: int) -> float:
            predicted = self.rows[number].predicted
            return math.log(predicted.ms) + float(correction[number]) if predicted else math.inf

        return sorted(window, key=score)

    def _trial(self, numbers: Sequence[int], turns: int, is_checked: bool = False) -> Trial:
        reference = None if self._reference is None else self.experiments[self._reference]
        return Trial(tuple(self.experiments[n] for n in numbers), reference, turns, is_checked)

    def _end_exploring(self) -> Task | None:
        budget = self.strategy.budget is not None and self._next_turn >= self.strategy.budget
        self.ended = "complete" if not self._pending else "budget" if budget else "patience"
        self._pending = []
        timed = [number for number, row in enumerate(self.rows) if row.status == "timed"]
        if not timed or not self._times:
            return None
        self._race = Race(
            timed, self._relative, self._trial, lambda number: number == self._reference, self._most_at_once,
            self._devices,
        )  # fmt: skip
        return self._of_race(self._race)

    def _relative(self, number: int) -> float:
        return self.rows[number].relative or math.inf

    def _of_race(self, race: Race) -> Task | None:
        is_idle = not (self._open or self._retries)
        return race.ask(is_idle, self._are_built, self.experiments)

    def tell(self, task: Task, result: Outcomes | Failure, device: int = 0, where: str = "") -> list[int]:
        """What became of a task. Returns the numbers whose rows changed.

        Args:
            where: of the device.
        """
        self._open.remove(task)
        if isinstance(result, Failure):
            return self._not_tried(task, result, device)
        for number, outcome in zip(task.numbers, result.each, strict=True):
            self._found(number, outcome, where, task)
        if task.phase == "final":
            self._end(result, task)
        return list(task.numbers)

    def _not_tried(self, task: Task, failure: Failure, device: int) -> list[int]:
        """All of a task failed together: each is tried once more by itself; what then fails again is reported."""
        if failure.kind == "cancelled":
            return []
        if task.is_retry or failure.kind in _OF_ALL:
            for number in task.numbers:
                self._failed(number, failure)
            return list(task.numbers)
        phase = "race" if task.phase == "final" else task.phase
        self._retries += [
            dataclasses.replace(task, numbers=(n,), phase=phase, is_retry=True, not_on=device) for n in task.numbers
        ]
        return []

    def _failed(self, number: int, failure: Failure) -> None:
        self.rows[number] = dataclasses.replace(self.rows[number], status="failed", reason=failure.message)
        self._drop(number)

    def _found(self, number: int, outcome: Outcome, where: str, task: Task) -> None:
        """One config's part of a trial."""
        row = dataclasses.replace(self.rows[number], where=where)
        if outcome.failure is not None:
            self._failed(number, outcome.failure)
            return
        if outcome.wrong:
            self.rows[number] = dataclasses.replace(row, status="wrong", reason=outcome.wrong)
            return
        if not len(outcome.times_ms):
            reason = "Right under the interpreter, which takes no times."
            self.rows[number] = dataclasses.replace(row, status="checked", reason=reason)
            self._next_turn += 1
            return
        if self._reference is None:
            self._reference = number
        low, high = median_interval(outcome.times_ms)
        row = dataclasses.replace(
            row,
            status="timed",
            reason="",
            median_ms=float(np.median(outcome.times_ms)),
            low_ms=low,
            high_ms=high,
            samples=len(outcome.times_ms),
        )
        if task.phase != "final":  # there, the reference is another
            row = dataclasses.replace(row, relative=float(np.median(outcome.times_ms / outcome.reference_ms)))
        if row.turn is None:
            row = dataclasses.replace(row, turn=self._next_turn)
            self._next_turn += 1
            self._notice(row.relative or math.inf)
        self.rows[number] = row

    def _notice(self, relative: float) -> None:
        """Whether the config that was timed last improves on all before it."""
        if relative < (1 - _IMPROVES) * self._fastest:
            self._improved_at = self._next_turn
        self._fastest = min(self._fastest, relative)

    def _end(self, outcomes: Outcomes, task: Task) -> None:
        """The final ended. Where one of it could not be launched any more, the others are timed again."""
        if not all(len(one.times_ms) for one in outcomes.each):
            return
        experiments = [self.experiments[n] for n in task.numbers]
        self.final = final(experiments, outcomes, [self.rows[n].shared_bytes for n in task.numbers])
        if self._race is not None:
            self._race.phase = "over"


def ordered(strategy: Strategy, estimates: Sequence[float | None]) -> list[int]:
    """The numbers of all configs in the order in which a strategy tries them, before any is compiled."""
    numbers = range(len(estimates))
    if strategy.name == "random":
        return [int(n) for n in np.random.default_rng(strategy.seed).permutation(len(estimates))]
    if strategy.name == "guided":
        return sorted(numbers, key=lambda n: math.inf if estimates[n] is None else float(estimates[n] or 0.0))
    return list(numbers)
