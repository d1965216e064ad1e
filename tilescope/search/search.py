"""The order in which a sweep tries configs: an ask/tell search without a clock or threads.

1. *Explore*: check each config and time it a few times, alternately with one reference config. The config with the
   best prediction comes first.
2. *Race*: the faster configs get more samples, round after round (successive halving).
3. *Final*: the last few configs are timed against each other until their ratios are known.

The search first orders configs by the model's estimate before compiling, and compiles the next few ahead. Without
estimates, it compiles all configs, and orders them by the times predicted from the compiled code. Estimates and
predictions are corrected by their errors so far and by the errors for a similar problem. The search waits for the
compiles and then tries the best config first, so the order does not depend on which compile ends first. Only a few
compiles that take much longer than the others are not waited for. A search that times every config needs no order, and
compiles only the next trial ahead.
"""

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy import ndarray

from tilescope.declare.experiment import Experiment
from tilescope.declare.space import Space
from tilescope.measure.timing import median_interval, pair
from tilescope.results import (
    Failure,
    Final,
    Finalist,
    LibraryRatio,
    Sweep,
    SweepRow,
)
from tilescope.results.sweep import (
    TURNS,
    ConfigBuild,
    ConfigOutcome,
    ConfigTrial,
    Outcomes,
    Status,
)

MAX_TURNS = 160

# One in ETA configs enters the next round, with ETA times the samples, so each round takes about the same time:
# successive halving (Jamieson and Talwalkar, AISTATS 2016).
ETA = 4

FINALISTS = 6

# Configs per trial while the times correct the order of the others.
GUIDED_PER_TRIAL = 4

# This many configs per concurrent compile are compiled ahead, but at most MAX_AHEAD, because the first trial waits for
# all of them.
_AHEAD_PER_COMPILE = 2
MAX_AHEAD = 24

# The search may skip one in _SKIPPED of the compiles that a trial waits for.
_SKIPPED = 10

# The final can crash its worker; after this many attempts the search ends without finalists.
_MAX_FINALS = 2

# Maximum number of configs per trial: a stream queues about a thousand launches and events before it starts.
MAX_PER_TRIAL = 15


# Ridge penalty of the correction, in samples: one wrong estimate moves its knobs' terms by at most half of its error.
_RIDGE = 1.0

# With a single time, a knob's error cannot be separated from the error common to all estimates.
_MIN_CORRECTED = 2


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
        budget: the maximum number of configs to time; None for no limit.
        earlier: the sweep of this space to continue, if it has a name.
        hints: findings for a similar problem.
    """

    space: Space
    budget: int | None = None
    earlier: Sweep | None = None
    hints: Hints = Hints()


class Search:
    """A search of a space on one device.

    Args:
        rows: the initial state of each config: set aside, done in an earlier sweep, or "not tried" with the model's
            estimate.
        takes_times: without times, all configs are only checked, one per trial, and there is no race.
        max_compiles: compiles that can run at the same time.

    Attributes:
        rows: the current state of each config.
        phase: "explore", "race", "final" or "over".
        final: the ranking of the finalists, once known.
        ended: why exploring ended: "complete" or "budget"; "" until then.
    """

    def __init__(
        self, task: Task, rows: Sequence[SweepRow], takes_times: bool, max_compiles: int
    ) -> None:
        self.experiments = task.space.experiments
        self._budget = task.budget if takes_times else None
        self.rows = list(rows)
        self.phase = "explore"
        self.ended = ""
        self.final: Final | None = None
        self._takes_times = takes_times
        self._hints = task.hints
        self._load = task.space.load
        self._has_estimates = any(row.estimate for row in rows)
        self._explored_per_trial = self._ahead = MAX_PER_TRIAL if takes_times else 1
        if self._budget is not None:
            ahead = min(MAX_AHEAD, _AHEAD_PER_COMPILE * max_compiles)
            self._ahead = max(GUIDED_PER_TRIAL, ahead) if self._has_estimates else len(rows)
            self._explored_per_trial = GUIDED_PER_TRIAL
        self._knobs = encode_knobs(self.experiments)
        self._built: set[int] = set()
        order = dict.fromkeys((*task.hints.first, *initial_order(rows)))
        self._pending = [number for number in order if rows[number].status == "not tried"]
        self._racing: list[int] = []
        self._turns = TURNS
        self._finals = 0
        self._queue: list[ConfigTrial] = []  # the rest of a round of the race, and second attempts
        # Restore an earlier sweep's reference from its timed rows
        timed = {
            row.turn: number
            for number, row in enumerate(rows)
            if row.status == "timed" and row.turn is not None
        }
        self._reference = timed[min(timed)] if timed else None
        self._next_turn = max(timed, default=-1) + 1

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
        """Return the maximum number of configs that the search may still explore."""
        return min(len(self._pending), self._remaining_budget())

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

    def set_aside_incomplete(self) -> list[int]:
        """Set aside predicted configs that write less of an output than another config. Return their indices."""
        written = {
            number: row.written
            for number, row in enumerate(self.rows)
            if row.status == "predicted" and row.written is not None
        }
        most = max(written.values(), default=0.0)
        incomplete = [number for number, share in written.items() if share < most]
        for number in incomplete:
            reason = "It writes fewer elements of an expected output than another config."
            self.drop(number, "set aside", reason)
        return incomplete

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
        return trial

    def tell(self, trial: ConfigTrial, result: Outcomes | Failure) -> list[int]:
        """Record the outcome of a trial, and return the numbers of the rows that changed."""
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
        """Return how many more configs may be explored."""
        if self._budget is None:
            return len(self._pending)
        retries = sum(len(trial.numbers) for trial in self._queue if trial.phase == "explore")
        return max(0, self._budget - self._next_turn - retries)

    def _next_exploration(self, skips_slow: bool) -> ConfigTrial | None:
        room = min(self._explored_per_trial, self._remaining_budget())
        if not self._pending or not room:
            if not self._queue:
                self._end_exploring()
            return None
        # At first, nothing corrects the estimates, so the order is known
        is_ordered = self._has_estimates and self._reference is None and not self._hints.log_errors
        window = self._pending[: room if is_ordered else self._ahead]
        built = [number for number in window if number in self._built]
        missing = len(window) - len(built)
        if missing > skips_slow * len(window) // _SKIPPED:
            return None
        chosen = self._sort_by_expectation(built)[:room]
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
        self.ended = "budget" if self._pending else "complete"
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
            self._next_turn += 1
        if self._reference is None:
            self._reference = number


def log_errors(rows: Sequence[SweepRow]) -> list[tuple[int, float]]:
    """Return (index, log(time / expected time)) of the timed rows, shifted to a mean of 0."""
    errors = {
        number: math.log(row.relative / row.expected)
        for number, row in enumerate(rows)
        if row.relative and row.expected
    }
    mean = sum(errors.values()) / max(1, len(errors))
    return [(number, error - mean) for number, error in errors.items()]


def initial_order(rows: Sequence[SweepRow]) -> list[int]:
    """Return the indices of all configs in the order in which they are compiled."""
    numbers = range(len(rows))
    if any(row.estimate for row in rows):
        return sorted(numbers, key=lambda number: rows[number].estimate or math.inf)
    # Concurrent sweeps share compiled kernels, so each sweep compiles them in another order
    seed = zlib.crc32(repr(rows[0].experiment.problem).encode())
    return np.random.default_rng(seed).permutation(numbers).tolist()


def encode_knobs(experiments: Sequence[Experiment]) -> ndarray:
    """Return the one-hot encoding of each config's varied knobs: (configs, values) of 0 and 1."""
    configs = [vars(experiment.config) for experiment in experiments]
    values = sorted({item for config in configs for item in config.items()}, key=repr)
    table = np.array(
        [[config[name] == value for name, value in values] for config in configs], dtype=float
    )
    return table[:, ~(table == table[0]).all(axis=0)]


def correct_estimates(knobs: ndarray, log_errors: Sequence[tuple[int, float]]) -> ndarray:
    """Estimate how far the model is off for each config, from the configs timed so far.

    The error is modelled as a sum over knobs (eight warps take 10 % longer than estimated, say) and fitted by ridge
    regression. On the simulated times of the tests (40 seeds) with a model that is off by 20 %, this lowers the mean
    regret after eight configs from 2.7 % to 1.7 %. With a model that is off by 10 %, it stays at 0.3 to 0.4 %.

    Args:
        knobs: `encode_knobs` of all configs.
        log_errors: (index of the config, log(time / estimated time)) of the timed configs, in any unit of time.

    Returns:
        (configs,) to add to the logarithm of each estimate.
    """
    if len(log_errors) < _MIN_CORRECTED:
        return np.zeros(len(knobs))
    timed = knobs[[number for number, _ in log_errors]]
    errors = np.array([error for _, error in log_errors])
    terms = np.linalg.solve(
        timed.T @ timed + _RIDGE * np.eye(knobs.shape[1]), timed.T @ (errors - errors.mean())
    )
    return knobs @ terms


def rank_finalists(
    rows: Sequence[SweepRow], times_ms: Sequence[ndarray], baselines: Sequence[tuple[str, ndarray]]
) -> Final:
    """Rank configs that were timed in the same turns. The best is the simplest config that ties with the fastest.

    The simplest config has the fewest warps, then the fewest stages, tile elements and shared-memory bytes. It leaves
    more room for other work on the SM and depends less on this GPU.

    Args:
        times_ms: (turns,) for each row.
        baselines: (name, times) of the library's calls in the same turns.
    """
    fastest_ms = times_ms[int(np.argmin([np.median(times / times_ms[0]) for times in times_ms]))]
    ratios = [pair(times, fastest_ms) for times in times_ms]
    finalists = [
        Finalist(
            row.experiment,
            float(np.median(times)),
            len(times),
            ratio.ratio,
            ratio.low,
            ratio.high,
            is_tie=times is fastest_ms or ratio.low <= 1,
        )
        for row, times, ratio in zip(rows, times_ms, ratios, strict=True)
    ]

    def simplicity(place: int) -> tuple[float, ...]:
        config = vars(rows[place].experiment.config)
        warps, stages = (config.get(name) or 0 for name in ("num_warps", "num_stages"))
        elements = math.prod(value for name, value in config.items() if name.startswith("BLOCK"))
        return warps, stages, elements, rows[place].shared_bytes or 0, finalists[place].ratio

    best = min(
        (place for place, finalist in enumerate(finalists) if finalist.is_tie), key=simplicity
    )
    library = []
    for name, times in baselines:
        ratio = pair(times, times_ms[best])
        library.append(
            LibraryRatio(name, float(np.median(times)), ratio.ratio, ratio.low, ratio.high)
        )
    ranked = sorted(finalists, key=lambda finalist: finalist.ratio)
    return Final(tuple(ranked), rows[best].experiment, tuple(library))
