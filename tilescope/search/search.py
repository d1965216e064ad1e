"""The order in which a sweep tries configs: an ask/tell search without a clock or threads.

1. *Explore*: check each config and time it a few times, alternately with one reference config. The search follows the
   grid's order, shuffles it, or is guided by a model that puts the best prediction first.
2. *Race*: the faster configs get more samples, round after round (successive halving).
3. *Final*: the last few configs are timed against each other until their ratios are known.

A guided search first orders configs by the model's estimate before compiling, and compiles the next few ahead. Without
estimates, it compiles all configs, and orders them by the times predicted from the compiled code. Estimates and
predictions are corrected by their errors so far and by the errors for a similar problem. The search waits for the
compiles and then tries the best config first, so the order does not depend on which compile ends first. Only a few
compiles that take much longer than the others are not waited for.
"""

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy import ndarray

from tilescope.declare.experiment import Experiment
from tilescope.declare.space import Space
from tilescope.results import Failure, Final, Strategy, SweepPrediction, SweepRow
from tilescope.results.sweep import ResumePoint, Status
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

# A guided search compiles this many configs ahead per concurrent compile, but at most MAX_AHEAD, because the first
# trial waits for all of them.
_AHEAD_PER_COMPILE = 2
MAX_AHEAD = 24

# The search may skip one in _SKIPPED of the compiles that a trial waits for.
_SKIPPED = 10

# A config improves on the fastest so far only if it is faster by this share; less is noise.
_IMPROVEMENT = 0.005

# The final can crash its worker; after this many attempts the search ends without finalists.
_MAX_FINALS = 2

# Maximum number of configs per trial: a stream queues about a thousand launches and events before it starts.
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
        is_retry: whether the first attempt failed.
        load: as in `Space`.
    """

    experiments: tuple[Experiment, ...]
    phase: str = "race"
    reference: Experiment | None = None
    turns: int = TURNS
    numbers: tuple[int, ...] = ()
    is_retry: bool = False
    load: str = "sustained"


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


@dataclass(frozen=True)
class Hints:
    """Findings of a search of the same configs for a similar problem.

    Attributes:
        first: indices of the configs to try first.
        log_errors: (index, log(time / expected time)) of the configs that the search timed, with a mean of 0.
    """

    first: tuple[int, ...] = ()
    log_errors: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Task:
    """The arguments of one sweep.

    Attributes:
        resume: rows of an earlier sweep of this space, and the stored sweep to continue.
        hints: findings for a similar problem.
    """

    space: Space
    strategy: Strategy
    resume: ResumePoint = ResumePoint()
    hints: Hints = Hints()


class Search:
    """A search of a space on one device.

    Args:
        rows: the initial state of each config: set aside, done in an earlier sweep, or "not tried" with the model's
            estimate.
        takes_times: without times, configs are only checked, one per trial, and there is no race.
        max_compiles: compiles that can run at the same time.

    Attributes:
        rows: the current state of each config.
        phase: "explore", "race", "final" or "over".
        final: the ranking of the finalists, once known.
        ended: why exploring ended: "complete", "budget" or "patience"; "" until then.
    """

    def __init__(
        self, task: Task, rows: Sequence[SweepRow], takes_times: bool, max_compiles: int
    ) -> None:
        self.experiments = task.space.experiments
        self.strategy = task.strategy
        self.rows = list(rows)
        self.phase = "explore"
        self.ended = ""
        self.final: Final | None = None
        self._takes_times = takes_times
        self._hints = task.hints
        self._load = task.space.load
        self._is_guided = task.strategy.name == "guided"
        self._explored_per_trial = (
            (GUIDED_PER_TRIAL if self._is_guided else MAX_PER_TRIAL) if takes_times else 1
        )
        self._has_estimates = any(row.estimate for row in rows)
        ahead = (
            min(MAX_AHEAD, _AHEAD_PER_COMPILE * max_compiles) if self._has_estimates else len(rows)
        )
        self._ahead = max(self._explored_per_trial, ahead if takes_times else 0)
        self._knobs = encode_knobs(self.experiments)
        self._built: set[int] = set()
        order = dict.fromkeys((*task.hints.first, *initial_order(task.strategy, rows)))
        self._pending = [number for number in order if rows[number].status == "not tried"]
        self._racing: list[int] = []
        self._turns = TURNS
        self._finals = 0
        self._open: ConfigTrial | None = None
        self._queue: list[ConfigTrial] = []  # the rest of a round of the race, and second attempts
        self._reference: int | None = None
        self._improved_at = 0
        self._fastest = math.inf
        # Rows that an earlier sweep timed restore its reference and its patience.
        self._next_turn = sum(row.status == "checked" for row in rows)
        timed = {
            row.turn: number
            for number, row in enumerate(rows)
            if row.status == "timed" and row.turn is not None
        }
        for turn, number in sorted(timed.items()):
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
        open_now = len(self._open.numbers) if self._open else 0
        return min(len(self._pending), self._remaining_budget()) + open_now

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
                self._queue.append(self._trial(left, old.phase, old.turns, old.is_retry))

    def ask(self, skips_slow: bool) -> ConfigTrial | None:
        """Return the next trial, or None if nothing is ready or the search is over.

        Args:
            skips_slow: whether the compiles in progress take much longer than the others.
        """
        trial = self._next_queued()
        if not trial and self.phase == "explore":
            trial = self._next_exploration(skips_slow)
        if not trial and self.phase == "race":
            if not self._queue:
                self._start_round()
            trial = self._next_queued()
        if not trial and self.phase == "final":
            trial = self._next_final()
        # Finalists are compared with one another, not with the reference.
        if trial and trial.phase != "final" and self._reference is not None:
            trial = replace(trial, reference=self.experiments[self._reference])
        self._open = trial
        return trial

    def tell(self, trial: ConfigTrial, result: Outcomes | Failure) -> list[int]:
        """Record the outcome of a trial, and return the numbers of the rows that changed."""
        self._open = None
        if isinstance(result, Failure):
            return self._handle_failure(trial, result)
        for number, outcome in zip(trial.numbers, result.each, strict=True):
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
        self, numbers: Sequence[int], phase: str, turns: int = TURNS, is_retry: bool = False
    ) -> ConfigTrial:
        experiments = tuple(self.experiments[number] for number in numbers)
        return ConfigTrial(experiments, phase, None, turns, tuple(numbers), is_retry, self._load)

    def _next_queued(self) -> ConfigTrial | None:
        for trial in self._queue:
            if self._built.issuperset(trial.numbers):
                self._queue.remove(trial)
                return trial
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
        retries = sum(len(trial.numbers) for trial in self._queue if trial.phase == "explore")
        return max(0, self.strategy.budget - self._next_turn - retries)

    def _next_exploration(self, skips_slow: bool) -> ConfigTrial | None:
        room = min(self._explored_per_trial, self._remaining_budget())
        if not self._pending or not room:
            if not self._queue:
                self._end_exploring()
            return None
        # At first, nothing corrects the estimates, so the order is known
        is_ordered = self._has_estimates and self._reference is None and not self._hints.log_errors
        window = self._pending[: self._ahead if self._is_guided and not is_ordered else room]
        built = [number for number in window if number in self._built]
        missing = len(window) - len(built)
        if missing > skips_slow * len(window) // _SKIPPED:
            return None
        window = built
        chosen = self._sort_by_expectation(window)[:room] if self._is_guided else window
        for number in chosen:
            self._pending.remove(number)
        return self._trial(chosen, "explore")

    def _sort_by_expectation(self, window: Sequence[int]) -> list[int]:
        """Sort hinted configs first, then by corrected expected time. Configs without an expected time come last."""
        errors = [*log_errors(self.rows), *self._hints.log_errors]
        correction = correct_estimates(self._knobs, errors)

        def score(number: int) -> tuple[bool, float]:
            time = self.rows[number].expected
            corrected = math.log(time) + float(correction[number]) if time else math.inf
            return number not in self._hints.first, corrected

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
        """Keep the fastest configs. Start the final if few remain."""
        ranked = sorted(self._racing, key=lambda number: self.rows[number].relative or math.inf)
        self._racing = ranked[: max(FINALISTS, math.ceil(len(ranked) / ETA))]
        self.phase = "race" if len(self._racing) > FINALISTS else "final"
        if self.phase == "final":
            return
        self._turns = min(MAX_TURNS, ETA * self._turns)
        # The reference is in every trial
        others = [number for number in self._racing if number != self._reference]
        trials = math.ceil(len(others) / MAX_PER_TRIAL)
        shares = [others[place::trials] for place in range(trials)]
        self._queue = [self._trial(share, "race", self._turns) for share in shares if share]

    def _next_final(self) -> ConfigTrial | None:
        if self._queue:
            return None
        if not self._racing or self._finals == _MAX_FINALS:
            self.phase = "over"
            return None
        if not self._built.issuperset(self._racing):
            return None
        self._finals += 1
        return self._trial(self._racing, "final")

    def _handle_failure(self, trial: ConfigTrial, failure: Failure) -> list[int]:
        """Retry each config of a failed trial alone, once. Return the configs that fail again."""
        if failure.kind == "cancelled":
            return []
        if trial.is_retry or failure.kind == "out_of_memory":  # every config needs the same tensors
            for number in trial.numbers:
                self.drop(number, "failed", failure.message)
            return list(trial.numbers)
        phase = "race" if trial.phase == "final" else trial.phase
        self._queue += [self._trial([number], phase, trial.turns, True) for number in trial.numbers]
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


def log_errors(rows: Sequence[SweepRow]) -> list[tuple[int, float]]:
    """Return (index, log(time / expected time)) of the timed rows, shifted to a mean of 0."""
    errors = {
        number: math.log(row.relative / row.expected)
        for number, row in enumerate(rows)
        if row.relative and row.expected
    }
    mean = sum(errors.values()) / max(1, len(errors))
    return [(number, error - mean) for number, error in errors.items()]


def initial_order(strategy: Strategy, rows: Sequence[SweepRow]) -> list[int]:
    """Return the indices of all configs in a strategy's order before any config is compiled."""
    numbers = list(range(len(rows)))
    if strategy.name == "grid":
        return numbers
    seed = strategy.seed
    if strategy.name == "guided":
        if any(row.estimate for row in rows):
            return sorted(numbers, key=lambda number: rows[number].estimate or math.inf)
        # Concurrent sweeps share compiled kernels, so each sweep compiles them in another order
        seed = zlib.crc32(repr(rows[0].experiment.problem).encode())
    return np.random.default_rng(seed).permutation(numbers).tolist()
