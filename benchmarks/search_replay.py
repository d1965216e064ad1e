"""Sweeps on a device that answers with recorded times, so that the best is known, and how far each strategy is from it.

The real search runs, with the real model's order; what it is told of a config are samples of its recorded times.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from benchmarks.search_times import Found
from kernels.compiling.compile_cost import explain_spill
from kernels.experiment import Experiment
from kernels.gpus import GPUS, Gpu
from kernels.results import Device, Failure, Prediction, Strategy, Sweep, SweepRow
from kernels.sweep.device import NO_TIMES, Build, Outcome, Outcomes, Trial
from kernels.sweep.sweeping import Sweeping
from visualize.predict.launch_time import predict_time

# Configs that are timed before we look how good the best of them is.
FIRST = 8

# Turns of the finalists: how many it takes on a GPU depends on the noise.
FINAL_TURNS = 400

# Orders of a random search, and seeds of the noise of the others.
ORDERS, SEEDS = 1000, 5


class ReplayedDevice:
    """A `TrialDevice` whose times are samples of those recorded."""

    where, times, at_once = "", True, 15

    def __init__(self, found: Found, seed: int) -> None:
        self.gpu: Gpu = GPUS[found.gpu]
        self._found, self._dice = found, np.random.default_rng(seed)

    def describe(self) -> Device:
        return self._found.device

    def refusal(self, experiment: Experiment) -> str:
        return ""

    def attempt(self, trial: Trial) -> Outcomes:
        turns = trial.turns if trial.effort is None else FINAL_TURNS
        reference = self._times(trial.reference or trial.experiments[0], turns)
        return Outcomes(tuple(self._outcome(experiment, reference, turns) for experiment in trial.experiments))

    def _outcome(self, experiment: Experiment, reference_ms: np.ndarray, turns: int) -> Outcome:
        if not self._found.rows[experiment].samples:
            return Outcome(NO_TIMES, NO_TIMES, wrong="It was not timed.")
        return Outcome(self._times(experiment, turns), reference_ms)

    def _times(self, experiment: Experiment, turns: int) -> np.ndarray:
        """Times over the recorded reference's, in its place."""
        return self._dice.choice(self._found.rows[experiment].samples, turns)

    def cancel(self) -> None:
        """Nothing: a trial takes no time."""

    def close(self) -> None:
        """Nothing is held."""


class ReplayedBuilder:
    """A `Builder` that knows which configs could be compiled, and what the model then predicted."""

    at_once = 15

    def __init__(self, found: Found) -> None:
        self._found = found

    def submit(self, experiment: Experiment) -> Future[Build | Failure]:
        result: Future[Build | Failure] = Future()
        row = self._found.rows.get(experiment)
        if row is None:
            result.set_result(Failure("compile", "out_of_resources", "It could not be compiled."))
        else:
            ms = row.predicted_ms
            prediction = None if ms is None else Prediction(ms, "recorded", (("recorded", ms),))
            result.set_result(Build(0, 0, 0, 0.0, prediction))
        return result

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True)
class Replayed:
    """How far from the fastest config the searches of one space ended, as shares of its time.

    Attributes:
        configs: that were timed.
        first: the fastest of FIRST timed configs, guided, the worst seed.
        random_first: the same of random orders: the quartiles.
        guided: in the end, guided, the worst seed; `tried`: the configs that this took, the most of all seeds.
        grid: of the winner among all, the worst seed.
    """

    found: Found
    configs: int
    first: float
    random_first: tuple[float, float, float]
    guided: float
    tried: int
    grid: float


def replayed(found: Found) -> Replayed:
    """Search a space by each strategy."""
    times = {one: row.relative for one, row in found.rows.items() if row.relative is not None}
    best = min(times.values())
    first = [swept(found, Strategy("guided", budget=FIRST), seed) for seed in range(SEEDS)]
    guided = [swept(found, Strategy("guided"), seed) for seed in range(SEEDS)]
    grid = [swept(found, Strategy("grid"), seed) for seed in range(SEEDS)]
    return Replayed(
        found,
        len(times),
        first=max(min(times[row.experiment] for row in _timed(sweep)) for sweep in first) / best - 1,
        random_first=_random_first([times[row.experiment] for row in _timed(grid[0])], best),
        guided=max(_won(sweep, times) for sweep in guided) / best - 1,
        tried=max(len(_timed(sweep)) for sweep in guided),
        grid=max(_won(sweep, times) for sweep in grid) / best - 1,
    )


def swept(found: Found, strategy: Strategy, seed: int) -> Sweep:
    """A sweep to its end."""
    sweeping = Sweeping(
        found.space, strategy, [ReplayedDevice(found, seed)], ReplayedBuilder(found), predict_time, explain_spill
    )
    sweeping.start()
    return sweeping.result(60)


def _timed(sweep: Sweep) -> list[SweepRow]:
    return [row for row in sweep.rows if row.status == "timed"]


def _won(sweep: Sweep, times: dict[Experiment, float]) -> float:
    """The recorded time of the config that won."""
    return math.inf if sweep.best is None else times[sweep.best.experiment]


def _random_first(times: Sequence[float], best: float) -> tuple[float, float, float]:
    """The best of FIRST configs at random, over the best of all, less 1: the quartiles over many orders."""
    dice = random.Random(0)
    found = [min(dice.sample(times, FIRST)) / best - 1 for _ in range(ORDERS)]
    low, median, high = np.percentile(found, (25, 50, 75))
    return float(low), float(median), float(high)


def report(found: Sequence[Replayed]) -> str:
    """A table in Markdown."""
    lines = [
        f"| M, N, K | configs | guided, after {FIRST} | random, after {FIRST}: median (quartiles) | guided, at its end "
        "| all configs: the winner |",
        "|---|---|---|---|---|---|",
    ]
    for one in found:
        problem = one.found.space.base.problem
        low, median, high = (f"{100 * share:.1f}" for share in one.random_first)
        lines.append(
            f"| {', '.join(str(getattr(problem, name)) for name in 'MNK')} | {one.configs} | +{100 * one.first:.1f} % "
            f"| +{median} % ({low} to {high}) | +{100 * one.guided:.1f} % after {one.tried} "
            f"| +{100 * one.grid:.1f} % |"
        )
    return "\n".join(lines)
