"""Who goes on, who ties, and who is the simplest: how times that were taken in turns are compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from kernels.experiment import Experiment
from kernels.pairs import FEWEST, pair
from kernels.results import AgainstLibrary, Final, Finalist
from kernels.sweep.device import Outcomes

# Of the configs that are timed in one round of the race, one in so many goes on to the next, with so many times more
# samples: successive halving (Jamieson and Talwalkar, AISTATS 2016), which gives each round about the same time.
ETA = 4

# So many are timed to the end, against each other.
FINALISTS = 6

# z of a 95 % interval.
_Z95 = 1.96


def median_interval(times_ms: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of a median, from order statistics; of fewer than FEWEST times, the least and the greatest.

    >>> median_interval(np.arange(1.0, 102.0))
    (41.0, 61.0)
    """
    ranked, count = np.sort(times_ms), len(times_ms)
    if count < FEWEST:
        return float(ranked[0]), float(ranked[-1])
    # The number of times below the median is binomial.
    reach = _Z95 * math.sqrt(count) / 2
    low, high = math.floor((count - 1) / 2 - reach), math.ceil((count - 1) / 2 + reach)
    return float(ranked[max(0, low)]), float(ranked[min(count - 1, high)])


def simplicity(experiment: Experiment, shared_bytes: int | None) -> tuple[int, int, int, int]:
    """What is compared, in this order, where times tie: warps, stages, elements of the tile, shared memory.

    Fewer of each leave more room for what runs beside the kernel, and depend less on this GPU.
    """
    config = experiment.config
    return config.num_warps, config.num_stages, _tile_elements(config), shared_bytes or 0


def _tile_elements(config: Any) -> int:
    """The product of the blocks that a config names."""
    return math.prod(value for name, value in vars(config).items() if name.startswith("BLOCK"))


def survivors(relative: Sequence[tuple[int, float]], at_least: int = FINALISTS) -> list[int]:
    """The numbers that go on to the next round, the fastest first.

    Args:
        relative: (number, time over the reference's) of those that took part.
        at_least: so many go on, where there are as many.
    """
    ranked = [number for number, _ in sorted(relative, key=lambda one: one[1])]
    return ranked[: max(at_least, math.ceil(len(ranked) / ETA))]


def final(experiments: Sequence[Experiment], outcomes: Outcomes, shared_bytes: Sequence[int | None]) -> Final:
    """Rank what was timed in turns to the end.

    Args:
        experiments, shared_bytes: of the finalists, in the order of the outcomes. All have times.
    """
    times = [one.times_ms for one in outcomes.each]
    first = int(np.argmin([np.median(ms / times[0]) for ms in times]))
    found = [_finalist(one, ms, times[first]) for one, ms in zip(experiments, times, strict=True)]
    tied = [place for place, one in enumerate(found) if one.is_tie]
    best = min(tied, key=lambda place: (*simplicity(experiments[place], shared_bytes[place]), found[place].ratio))
    ranked = sorted(found, key=lambda one: one.ratio)
    return Final(tuple(ranked), experiments[best], _library(outcomes, times[best]))


def _finalist(experiment: Experiment, times_ms: np.ndarray, fastest_ms: np.ndarray) -> Finalist:
    ratio = pair(times_ms, fastest_ms)
    tie = times_ms is fastest_ms or ratio.low <= 1
    return Finalist(
        experiment, float(np.median(times_ms)), len(times_ms), ratio.ratio, ratio.low, ratio.high, is_tie=tie
    )


def _library(outcomes: Outcomes, best_ms: np.ndarray) -> tuple[AgainstLibrary, ...]:
    """The library's calls beside the best config."""
    found = []
    for name, times_ms in outcomes.baselines:
        ratio = pair(times_ms, best_ms)
        found.append(AgainstLibrary(name, float(np.median(times_ms)), ratio.ratio, ratio.low, ratio.high))
    return tuple(found)
