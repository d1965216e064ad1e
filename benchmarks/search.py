"""How soon searches find a fast config, replayed on recorded times of every config: `python -m benchmarks.search`.

The search and the model are the real ones. The device returns samples of times that an H200 measured, so the best
config is known. Each of eight shapes has 212 configs of `matmul.grouped` in float16. The first five shapes were used to
develop the model, the last three were not. Two scripts' cases have 12 problems with 48 configs each. No GPU is needed.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from tilescope.declare.experiment import Experiment, Settings
from tilescope.declare.gpus import GPUS, Gpu
from tilescope.declare.space import Space, space_from_json
from tilescope.measure.fair_queue import Call
from tilescope.results import Device, Failure, Sweep, SweepPrediction, SweepRow
from tilescope.results.store import Store
from tilescope.results.sweep import ConfigBuild, ConfigOutcome, ConfigTrial, Outcomes
from tilescope.search.search import Task
from tilescope.search.sweep_run import SweepRun
from tilescope.search.tune import PAGE_BUDGET, SWEEPS_PER_GPU, tune

# Each line holds all configs of one shape.
RECORDED = Path(__file__).parent / "measured" / "searches_h200.jsonl"

# Each line holds all configs of one problem of a kernel.
TUNINGS = RECORDED.with_name("tunings_h200.jsonl")

# Number of timed configs after which the searches are compared.
FIRST = 8

# Turns of the finalists. On a GPU, their number depends on the noise.
FINAL_TURNS = 400

# Random orders, and seeds of the other searches' noise.
ORDERS, SEEDS = 1000, 5


@dataclass(frozen=True)
class Timed:
    """The recording of one config.

    Attributes:
        config: the values of the varied knobs, in the space's order.
        median_ms: median time of one launch; None if the result was wrong or the launch failed.
        relative: its time / the reference's, the median over all turns.
        samples: some of the ratios whose median is `relative`.
        predicted_ms: time predicted from the compiled config; None if the search estimates times before the compile.
    """

    config: tuple[int | str, ...]
    median_ms: float | None
    relative: float | None
    samples: tuple[float, ...]
    predicted_ms: float | None = None


@dataclass(frozen=True)
class Recorded:
    """The recordings of all configs of one shape that could be compiled."""

    gpu: str
    device: Device
    space: Space
    rows: dict[Experiment, Timed]


def read(path: Path) -> list[Recorded]:
    """Read the shapes of a file."""
    return [_recorded(json.loads(text)) for text in path.read_text(encoding="utf-8").splitlines()]


def _recorded(fields: dict[str, Any]) -> Recorded:
    space = space_from_json(fields["space"])
    names = [name for name, _ in space.varied]
    by_config = {
        tuple(getattr(one.config, name) for name in names): one for one in space.experiments
    }
    rows = [
        Timed(**row | {"config": tuple(row["config"]), "samples": tuple(row["samples"])})
        for row in fields["rows"]
    ]
    return Recorded(
        fields["gpu"],
        Device(**fields["device"]),
        space,
        {by_config[row.config]: row for row in rows},
    )


def read_tunings(path: Path) -> dict[str, list[Recorded]]:
    """Read each kernel's recorded problems. The samples are the recorded medians with 1 % of noise, as on an H200."""
    tunings: dict[str, list[Recorded]] = {}
    noise = [NormalDist(1, 0.01).inv_cdf((place + 0.5) / 40) for place in range(40)]
    for line in path.read_text(encoding="utf-8").splitlines():
        fields = json.loads(line)
        problem, names = Settings(**fields["problem"]), fields["knobs"]
        listed = tuple(map(tuple, fields["configs"]))
        varied = tuple(
            zip(names, map(tuple, map(dict.fromkeys, zip(*listed, strict=True))), strict=True)
        )
        current = Settings(**dict(zip(names, listed[0], strict=True)))
        space = Space(
            Experiment(f"{fields['kernel']}.py:case", problem, current), varied, listed, "recorded"
        )
        rows = {
            one: Timed(config, us / 1e3, us, tuple(us * each for each in noise), predicted / 1e3)
            for one, config, us, predicted in zip(
                space.experiments, listed, fields["median_us"], fields["predicted_us"], strict=True
            )
        }
        device = Device("cuda", "NVIDIA H200", "2.11.0", "3.6.0")
        tunings.setdefault(fields["kernel"], []).append(Recorded("H200", device, space, rows))
    return tunings


class ReplayedDevice:
    """A `LocalDevice` whose times are samples of the recorded ones."""

    takes_times = True

    def __init__(self, recorded: Recorded, seed: int) -> None:
        self.gpu: Gpu = GPUS[recorded.gpu]
        self._recorded, self._dice = recorded, np.random.default_rng(seed)

    def describe(self) -> Device:
        return self._recorded.device

    def refusal(self, experiment: Experiment) -> str:
        return ""

    def attempt(self, trial: ConfigTrial) -> Outcomes:
        turns = trial.turns if trial.phase != "final" else FINAL_TURNS
        reference = self._times(trial.reference or trial.experiments[0], turns)
        return Outcomes(
            tuple(self._outcome(experiment, reference, turns) for experiment in trial.experiments)
        )

    def _outcome(
        self, experiment: Experiment, reference_ms: np.ndarray, turns: int
    ) -> ConfigOutcome:
        if not self._recorded.rows[experiment].samples:
            return ConfigOutcome("wrong", "It was not timed.")
        return ConfigOutcome("timed", "", self._times(experiment, turns), reference_ms)

    def _times(self, experiment: Experiment, turns: int) -> np.ndarray:
        """Return times relative to the recorded reference, in place of ms."""
        return self._dice.choice(self._recorded.rows[experiment].samples, turns)

    def cancel(self) -> None:
        """Do nothing: a trial takes no time."""


class ReplayedBuilder:
    """A pool of compile workers that replays which configs could be compiled."""

    max_concurrency = 15

    def __init__(self, recorded: Recorded) -> None:
        self._recorded = recorded

    def submit(self, call: Call[ConfigBuild]) -> Future[ConfigBuild | Failure]:
        experiment, *_ = call.args
        result: Future[ConfigBuild | Failure] = Future()
        if experiment not in self._recorded.rows:
            result.set_result(Failure("compile", "out_of_resources", "It could not be compiled."))
            return result
        ms = self._recorded.rows[experiment].predicted_ms
        predicted = SweepPrediction(ms, "") if ms else None
        result.set_result(ConfigBuild(0, 0, 0, 0.0, predicted))
        return result

    def close(self) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class Replayed:
    """How much slower the results of searches are than the fastest config, as fractions of its time.

    Attributes:
        configs: timed configs.
        first: the fastest of the first FIRST configs of a guided search, the worst seed.
        random_first: the same for random orders: the quartiles.
        guided: the winner of a guided search, the worst seed.
        tried: the largest number of configs that a guided search timed.
        grid: the winner among all configs, the worst seed.
    """

    configs: int
    first: float
    random_first: tuple[float, float, float]
    guided: float
    tried: int
    grid: float


def replay(recorded: Recorded) -> Replayed:
    """Search a space with each budget."""
    times = {
        experiment: row.relative
        for experiment, row in recorded.rows.items()
        if row.relative is not None
    }
    best, dice = min(times.values()), random.Random(0)

    def searches(budget: int | None) -> list[Sweep]:
        return [sweep(recorded, budget, seed) for seed in range(SEEDS)]

    def slower(sweeps: list[Sweep]) -> float:
        return (
            max(math.inf if one.best is None else times[one.best.experiment] for one in sweeps)
            / best
            - 1
        )

    first, guided = searches(FIRST), searches(PAGE_BUDGET)
    chosen = [min(dice.sample(list(times.values()), FIRST)) / best - 1 for _ in range(ORDERS)]
    low, median, high = np.percentile(chosen, (25, 50, 75))
    return Replayed(
        configs=len(times),
        first=max(min(times[row.experiment] for row in timed_rows(one)) for one in first) / best
        - 1,
        random_first=(float(low), float(median), float(high)),
        guided=slower(guided),
        tried=max(len(timed_rows(one)) for one in guided),
        grid=slower(searches(None)),
    )


def sweep(recorded: Recorded, budget: int | None, seed: int) -> Sweep:
    """Run a sweep to its end."""
    device, builder = ReplayedDevice(recorded, seed), ReplayedBuilder(recorded)
    sweeping = SweepRun(Task(recorded.space, budget), device, builder, Store(None))
    return sweeping.start().result(60)


class ReplayedTuner:
    """A `Tuner` on recorded problems."""

    def __init__(self, recorded: Sequence[Recorded], seed: int) -> None:
        self.gpu = GPUS["H200"]
        self._recorded, self._seed = {one.space: one for one in recorded}, seed

    def capacity(self) -> int:
        return SWEEPS_PER_GPU

    def submit(self, task: Task) -> Future[Sweep]:
        recorded = self._recorded[task.space]
        device, builder = ReplayedDevice(recorded, self._seed), ReplayedBuilder(recorded)
        run = SweepRun(task, device, builder, Store(None))
        done = run.start()
        done.result(60)
        return done

    def cancel(self) -> None:
        """Do nothing."""


def replay_tuning(recorded: Sequence[Recorded], seed: int) -> tuple[list[float], float]:
    """Tune. Return each problem's regret (chosen time / fastest time − 1), and the fraction of timed configs."""
    tuner = ReplayedTuner(recorded, seed)
    *_, sweeps = tune(tuner, [one.space for one in recorded], Store(None), False, False)
    done = [sweep for sweep in sweeps if sweep]
    regrets = []
    for one, sweep in zip(recorded, done, strict=True):
        assert sweep.best
        times = {experiment: row.median_ms or math.inf for experiment, row in one.rows.items()}
        regrets.append(times[sweep.best.experiment] / min(times.values()) - 1)
    return regrets, sum(len(timed_rows(one)) for one in done) / sum(len(one.rows) for one in done)


def timed_rows(sweep: Sweep) -> list[SweepRow]:
    """Return the rows of the configs that were timed."""
    return [row for row in sweep.rows if row.status == "timed"]


def main(shapes: Sequence[Recorded]) -> None:
    """Print a table in Markdown."""
    print(
        f"| M, N, K | configs | guided, after {FIRST} | random, after {FIRST}: median (quartiles) | guided, at its end "
        "| all configs: the winner |\n|---|---|---|---|---|---|"
    )
    for recorded in shapes:
        problem, result = recorded.space.base.problem, replay(recorded)
        low, median, high = (f"{100 * share:.1f}" for share in result.random_first)
        print(
            f"| {problem.M}, {problem.N}, {problem.K} | {result.configs} | +{100 * result.first:.1f} % "
            f"| +{median} % ({low} to {high}) | +{100 * result.guided:.1f} % after {result.tried} "
            f"| +{100 * result.grid:.1f} % |"
        )


def print_tunings(tunings: Mapping[str, Sequence[Recorded]]) -> None:
    """Print a table in Markdown."""
    print(
        "| kernel | problems | configs timed | chosen / fastest: mean | worst |\n|---|---|---|---|---|"
    )
    for kernel, recorded in tunings.items():
        found = [replay_tuning(recorded, seed) for seed in range(SEEDS)]
        regrets = [regret for one, _ in found for regret in one]
        timed = max(share for _, share in found)
        print(
            f"| {kernel} | {len(recorded)} | {100 * timed:.0f} % | +{100 * np.mean(regrets):.2f} % "
            f"| +{100 * max(regrets):.2f} % |"
        )


if __name__ == "__main__":
    main(read(RECORDED))
    print()
    print_tunings(read_tunings(TUNINGS))
