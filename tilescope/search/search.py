"""The order in which a sweep tries configs: an ask/tell search without a clock or threads.

1. *Explore*: check each config and time it a few times, alternately with one reference config. The search follows the
   grid's order, shuffles it, or is guided by a model that puts the best prediction first.
2. *Race*: the faster configs get more samples, round after round (successive halving).
3. *Final*: the last few configs are timed against each other until their ratios are known.

A guided search first orders configs by the model's estimate before compiling. It then compiles the next few ahead.
Predictions are corrected by their errors so far. The search tries the best of the compiled configs first, so the order
does not depend on which compile ends first.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy import ndarray

from tilescope.declare.experiment import Experiment
from tilescope.results import Failure, Final, Strategy, SweepPrediction, SweepRow
from tilescope.results.sweep import Status
from tilescope.search.ranking import (
    correct_estimates,
    encode_knobs,
    median_interval,
    rank_finalists,
)

# Samples per config while exploring. Each round of the race takes ETA times as many. With 2 % of noise, the median of
# ten pairs is within 1 %, so the first quarter contains every config within a few percent of the best.
TURNS = 10
MAX_TURNS = 160

# One in ETA configs enters the next round, with ETA times the samples, so each round takes about the same time:
# successive halving (Jamieson and Talwalkar, AISTATS 2016).
ETA = 4

FINALISTS = 6

# Configs per trial of a guided search. Small trials let the times correct the order sooner.
GUIDED_PER_TRIAL = 4

# Configs of the first trial. It is small because the other devices wait for the reference that it finds.
REFERENCE_AMONG = 4

# A guided search compiles this many configs ahead per concurrent compile, but at most MAX_AHEAD, because the first
# trial waits for all of them.
_AHEAD_PER_COMPILE = 2
MAX_AHEAD = 24

# A config improves on the fastest so far only if it is faster by this share; less is noise.
_IMPROVEMENT = 0.005

# The final can crash its worker; after this many attempts the search ends without finalists.
_MAX_FINALS = 2

# Maximum number of configs timed in turns: a stream queues about a thousand launches and events before it starts.
MAX_PER_TRIAL = 15


@dataclass(frozen=True)
class ConfigBuild:
    """The fields of a SweepRow that are known once the config is compiled."""

    registers: int
    spilled_bytes: int
    shared_bytes: int
    compile_s: float
    predicted: SweepPrediction | None


@dataclass(frozen=True)
class ConfigTrial:
    """Configs to time in turns on one device, on the same inputs.

    Attributes:
        experiments: they differ only in their config.
        phase: "explore" (check each result first, and do not time a wrong one), "race", or "final" (time until the
            ratios are known, with the library's calls in the same turns).
        reference: also timed in each turn, so that a changing clock cancels in the ratio. None: the first correct
            config of `experiments` becomes the reference.
        turns: samples of each config, except in the final.
        numbers: the configs' places in grid order.
        failed_on: for a second attempt, the index of the device on which the first attempt failed. If there is another
            device, it makes the second attempt.
    """

    experiments: tuple[Experiment, ...]
    phase: str = "race"
    reference: Experiment | None = None
    turns: int = TURNS
    numbers: tuple[int, ...] = ()
    failed_on: int | None = None


@dataclass(frozen=True)
class ConfigOutcome:
    """One config's part of a trial.

    Attributes:
        status: "timed", "checked", "wrong", or "failed" if it could not be launched and harmed no other config.
        reason: why the config was not timed, as a sentence.
        times_ms: (turns,) of one launch each; empty if it was not timed.
        reference_ms: (turns,) of the reference in the same turns.
    """

    status: Status
    reason: str = ""
    times_ms: ndarray = field(default_factory=lambda: np.empty(0))
    reference_ms: ndarray = field(default_factory=lambda: np.empty(0))


@dataclass(frozen=True)
class Outcomes:
    """The outcome of a trial.

    Attributes:
        each: in the order of the trial's experiments.
        baselines: (name, times in ms) of the library's calls in the same turns.
    """

    each: tuple[ConfigOutcome, ...]
    baselines: tuple[tuple[str, ndarray], ...] = ()


class Search:
    """A search of a list of configs on devices of one kind.

    Args:
        experiments: in grid order.
        rows: the initial state of each config: set aside, done in an earlier sweep, or "not tried" with the model's
            estimate.
        takes_times: without times, configs are only checked, one per trial, and there is no race.
        max_compiles: compiles that can run at the same time.
        devices: number of devices that carry out trials.

    Attributes:
        rows: the current state of each config.
        phase: "explore", "race", "final" or "over".
        final: the ranking of the finalists, once known.
        ended: why exploring ended: "complete", "budget" or "patience"; "" until then.
    """

    def __init__(
        self,
        experiments: Sequence[Experiment],
        strategy: Strategy,
        rows: Sequence[SweepRow],
        takes_times: bool,
        max_compiles: int,
        devices: int,
    ) -> None:
        self.experiments = experiments
        self.strategy = strategy
        self.rows = list(rows)
        self.phase = "explore"
        self.ended = ""
        self.final: Final | None = None
        self._takes_times = takes_times
        self._devices = devices
        self._is_guided = strategy.name == "guided"
        self._explored_per_trial = (
            (GUIDED_PER_TRIAL if self._is_guided else MAX_PER_TRIAL) if takes_times else 1
        )
        ahead = min(MAX_AHEAD, _AHEAD_PER_COMPILE * max_compiles) if takes_times else 0
        self._ahead = max(self._explored_per_trial, ahead)
        self._knobs = encode_knobs(experiments)
        self._built: set[int] = set()
        self._pending = [
            number for number in initial_order(strategy, rows) if rows[number].status == "not tried"
        ]
        self._racing: list[int] = []
        self._turns = TURNS
        self._finals = 0
        self._open: list[ConfigTrial] = []
        self._queue: list[ConfigTrial] = []  # second attempts, then the rest of a round of the race
        self._reference: int | None = None
        self._improved_at = 0
        self._fastest = math.inf
        # Rows that an earlier sweep timed restore its reference and its patience.
        self._next_turn = sum(row.status == "checked" for row in rows)
        timed = [
            (row.turn, n)
            for n, row in enumerate(rows)
            if row.status == "timed" and row.turn is not None
        ]
        for turn, number in sorted(timed):
            self._note_timed(number, turn)

    @property
    def upcoming(self) -> list[int]:
        """List the configs to compile, in order."""
        numbers = list(self._racing)
        if self._racing and self._reference is not None:
            numbers.append(self._reference)
        if self._remaining_budget():
            numbers += self._pending
        return [number for number in dict.fromkeys(numbers) if number not in self._built]

    @property
    def remaining(self) -> int:
        """Return an upper bound on the number of configs still to be tried."""
        return min(len(self._pending), self._remaining_budget()) + sum(
            len(trial.numbers) for trial in self._open
        )

    def add_build(self, number: int, build: ConfigBuild) -> None:
        """Record a compiled config."""
        self._built.add(number)
        row = self.rows[number]
        if row.compile_s is None:  # otherwise this compile was a cache hit
            self.rows[number] = replace(row, **vars(build))

    def drop(self, number: int, status: Status, reason: str) -> None:
        """Set a config's final status and exclude it from all further trials."""
        self.rows[number] = replace(self.rows[number], status=status, reason=reason)
        for places in (self._pending, self._racing):
            if number in places:
                places.remove(number)
        queue = self._queue
        self._queue = []
        for old in queue:
            if left := [place for place in old.numbers if place != number]:
                self._queue.append(self._trial(left, old.phase, old.turns, old.failed_on))

    def ask(self, device: int, is_last_device: bool) -> ConfigTrial | None:
        """Return a device's next trial, or None if nothing is ready or the search is over.

        Args:
            device: its index.
            is_last_device: whether no other device is left to retry the configs that failed on this one.
        """
        if self._reference is None and self._takes_times and self._open:
            return None  # every other trial needs the reference that the first trial finds
        trial = self._next_queued(device, is_last_device)
        if not trial and self.phase == "explore":
            trial = self._next_exploration()
        if not trial and self.phase == "race":
            if self._is_idle():
                self._start_round()
            trial = self._next_queued(device, is_last_device)
        if not trial and self.phase == "final":
            trial = self._next_final()
        if trial:
            self._open.append(trial)
        return trial

    def tell(
        self, trial: ConfigTrial, result: Outcomes | Failure, device: int, where: str
    ) -> list[int]:
        """Record the outcome of a trial, and return the numbers of the rows that changed.

        Args:
            where: the device's host and number, for the rows.
        """
        self._open.remove(trial)
        if isinstance(result, Failure):
            return self._handle_failure(trial, result, device)
        for number, outcome in zip(trial.numbers, result.each, strict=True):
            self.rows[number] = replace(self.rows[number], where=where)
            self._record(number, outcome, trial)
        # If a finalist could no longer be launched, the others are timed again.
        if trial.phase == "final" and all(outcome.status == "timed" for outcome in result.each):
            times_ms = [outcome.times_ms for outcome in result.each]
            self.final = rank_finalists(
                [self.rows[number] for number in trial.numbers], times_ms, result.baselines
            )
            self.phase = "over"
        return list(trial.numbers)

    def _trial(
        self, numbers: Sequence[int], phase: str, turns: int = TURNS, failed_on: int | None = None
    ) -> ConfigTrial:
        # Finalists are compared with one another, not with the reference.
        reference = (
            None
            if phase == "final" or self._reference is None
            else self.experiments[self._reference]
        )
        experiments = tuple(self.experiments[number] for number in numbers)
        return ConfigTrial(experiments, phase, reference, turns, tuple(numbers), failed_on)

    def _is_idle(self) -> bool:
        return not (self._open or self._queue)

    def _next_queued(self, device: int, is_last_device: bool) -> ConfigTrial | None:
        for trial in self._queue:
            if (is_last_device or trial.failed_on != device) and self._built.issuperset(
                trial.numbers
            ):
                self._queue.remove(trial)
                # The reference may have been found since the trial was queued.
                return self._trial(trial.numbers, trial.phase, trial.turns, trial.failed_on)
        return None

    def _remaining_budget(self) -> int:
        """Return how many more configs may be explored: 0 once a guided search has run out of patience."""
        if (
            self._is_guided
            and self._takes_times
            and self._next_turn - self._improved_at >= self.strategy.patience
        ):
            return 0
        if self.strategy.budget is None:
            return len(self._pending)
        started = sum(
            len(trial.numbers) for trial in (*self._open, *self._queue) if trial.phase == "explore"
        )
        return max(0, self.strategy.budget - self._next_turn - started)

    def _next_exploration(self) -> ConfigTrial | None:
        room = min(self._explored_per_trial, self._remaining_budget())
        if self._reference is None and self._takes_times:
            room = min(room, REFERENCE_AMONG)
        if not self._pending or not room:
            if self._is_idle():
                self._end_exploring()
            return None
        window = self._pending[: self._ahead if self._is_guided else room]
        if not self._built.issuperset(window):
            return None
        chosen = self._sort_by_estimate(window)[:room] if self._is_guided else window
        for number in chosen:
            self._pending.remove(number)
        return self._trial(chosen, "explore")

    def _sort_by_estimate(self, window: Sequence[int]) -> list[int]:
        """Sort by the corrected estimate; configs without one come last."""
        errors = [
            (number, math.log(row.relative / row.estimate))
            for number, row in enumerate(self.rows)
            if row.relative and row.estimate
        ]
        correction = correct_estimates(self._knobs, errors)

        def score(number: int) -> float:
            estimate = self.rows[number].estimate
            return math.log(estimate) + float(correction[number]) if estimate else math.inf

        return sorted(window, key=score)

    def _end_exploring(self) -> None:
        budget = self.strategy.budget
        is_spent = budget is not None and self._next_turn >= budget
        self.ended = "complete" if not self._pending else "budget" if is_spent else "patience"
        self._pending = []
        self._racing = [number for number, row in enumerate(self.rows) if row.status == "timed"]
        self.phase = "over"
        if self._racing and self._takes_times:
            self._start_round()

    def _start_round(self) -> None:
        """Keep the fastest configs, and share their trials among the devices. Start the final if few configs remain."""
        ranked = sorted(self._racing, key=lambda number: self.rows[number].relative or math.inf)
        self._racing = ranked[: max(FINALISTS, math.ceil(len(ranked) / ETA))]
        self.phase = "race" if len(self._racing) > FINALISTS else "final"
        if self.phase == "final":
            return
        self._turns = min(MAX_TURNS, ETA * self._turns)
        # The reference is in every trial
        others = [number for number in self._racing if number != self._reference]
        # Share configs equally among trials, and trials equally among devices, so that no device waits for another.
        trials = math.ceil(math.ceil(len(others) / MAX_PER_TRIAL) / self._devices) * self._devices
        shares = [others[place::trials] for place in range(trials)]
        self._queue = [self._trial(share, "race", self._turns) for share in shares if share]

    def _next_final(self) -> ConfigTrial | None:
        if not self._is_idle():
            return None
        if not self._racing or self._finals == _MAX_FINALS:
            self.phase = "over"
            return None
        if not self._built.issuperset(self._racing):
            return None
        self._finals += 1
        return self._trial(self._racing, "final")

    def _handle_failure(self, trial: ConfigTrial, failure: Failure, device: int) -> list[int]:
        """Retry each config of a failed trial alone, once. Return the configs that fail again."""
        if failure.kind == "cancelled":
            return []
        if (
            trial.failed_on is not None or failure.kind == "out_of_memory"
        ):  # every config needs the same tensors
            for number in trial.numbers:
                self.drop(number, "failed", failure.message)
            return list(trial.numbers)
        phase = "race" if trial.phase == "final" else trial.phase
        self._queue += [
            self._trial([number], phase, trial.turns, device) for number in trial.numbers
        ]
        self._queue.sort(key=lambda trial: trial.failed_on is None)
        return []

    def _record(self, number: int, outcome: ConfigOutcome, trial: ConfigTrial) -> None:
        if outcome.status != "timed":
            self.drop(number, outcome.status, outcome.reason)
            self._next_turn += outcome.status == "checked"
            return
        row = self.rows[number]
        low, high = median_interval(outcome.times_ms)
        relative = row.relative  # the final has another reference
        if trial.phase != "final":
            relative = float(np.median(outcome.times_ms / outcome.reference_ms))
        self.rows[number] = replace(
            row,
            status="timed",
            reason="",
            median_ms=float(np.median(outcome.times_ms)),
            low_ms=low,
            high_ms=high,
            samples=len(outcome.times_ms),
            relative=relative,
            turn=self._next_turn if row.turn is None else row.turn,
        )
        if row.turn is None:
            self._note_timed(number, self._next_turn)

    def _note_timed(self, number: int, turn: int) -> None:
        """Record a config's first timing. If it beats all earlier configs, reset the patience."""
        if self._reference is None:
            self._reference = number
        self._next_turn = turn + 1
        relative = self.rows[number].relative or math.inf
        if relative < (1 - _IMPROVEMENT) * self._fastest:
            self._improved_at = self._next_turn
        self._fastest = min(self._fastest, relative)


def initial_order(strategy: Strategy, rows: Sequence[SweepRow]) -> list[int]:
    """Return the indices of all configs in a strategy's order before any config is compiled."""
    if strategy.name == "random":
        return np.random.default_rng(strategy.seed).permutation(len(rows)).tolist()
    if strategy.name == "guided":
        return sorted(range(len(rows)), key=lambda number: rows[number].estimate or math.inf)
    return list(range(len(rows)))
