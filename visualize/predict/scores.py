"""Predicted against counted, one count of a launch at a time: which are equal, and how far off the others are."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from kernels.experiment import Experiment
from kernels.results.group_size_study import any_group_size

# What is compared. The first two are exact by integer equality; DRAM's bytes depend on time, and are approximate.
EXACT_COUNTS = ("sectors", "requests")
DRAM = "dram_bytes"
COUNTS = (*EXACT_COUNTS, DRAM)

# An approximate prediction that is further off than this share of what was counted is a miss.
ALLOWED_ERROR = 0.2


@dataclass(frozen=True)
class Score:
    """One count of one recorded launch.

    Attributes:
        experiment: the launch; its `gpu` is the one that it was counted on.
        operation: a kind as of `agreement.LaunchTotals`, or "DRAM read".
        count: one of COUNTS.
        predicted, counted: over the whole launch.
        is_lower_bound: no more is claimed than a lower bound: a loop of atomics retries as often as others came first.
        is_flagged: the model said beforehand that it is unsure.
    """

    experiment: Experiment
    operation: str
    count: str
    predicted: int
    counted: int
    is_lower_bound: bool = False
    is_flagged: bool = False

    @property
    def launch(self) -> Experiment:
        """What stands for the launch: the experiment, or of DRAM's bytes the one for every GROUP_SIZE."""
        return any_group_size(self.experiment) if self.count == DRAM else self.experiment

    @property
    def is_exact(self) -> bool:
        return self.predicted == self.counted

    @property
    def error(self) -> float:
        """Of the prediction, as a share of what was counted; positive where it is too much."""
        if self.counted:
            return (self.predicted - self.counted) / self.counted
        return math.inf if self.predicted else 0.0

    @property
    def is_miss(self) -> bool:
        """Whether it is not what was claimed: equality, or of DRAM's bytes an error within ALLOWED_ERROR."""
        return abs(self.error) > ALLOWED_ERROR if self.count == DRAM else not self.is_exact


@dataclass(frozen=True)
class Scoreboard:
    """Every recorded count with its prediction.

    Attributes:
        scores: those that are judged.
        lower_bounds: those that are left out, as a lower bound is all that is claimed.
        unpredicted: recorded launches for which no prediction is shipped.
    """

    scores: tuple[Score, ...]
    lower_bounds: tuple[Score, ...] = ()
    unpredicted: tuple[Experiment, ...] = ()

    def part(self, counts: Sequence[str] = COUNTS, gpu: str = "", kernel: str = "") -> Scoreboard:
        """What is of these counts, this GPU and this kernel; "" is all."""

        def wanted(one: Experiment) -> bool:
            return gpu in ("", one.gpu) and kernel in ("", one.kernel)

        def chosen(several: tuple[Score, ...]) -> tuple[Score, ...]:
            return tuple(one for one in several if one.count in counts and wanted(one.experiment))

        unpredicted = tuple(one for one in self.unpredicted if wanted(one))
        return Scoreboard(chosen(self.scores), chosen(self.lower_bounds), unpredicted)

    @property
    def misses(self) -> tuple[Score, ...]:
        """The furthest off first."""
        return tuple(sorted((one for one in self.scores if one.is_miss), key=lambda one: -abs(one.error)))

    @property
    def exact(self) -> int:
        return sum(one.is_exact for one in self.scores)

    @property
    def gpus(self) -> tuple[str, ...]:
        """Names of the GPUs that were counted on."""
        return tuple(sorted({one.experiment.gpu for one in self.scores}))

    @property
    def launches(self) -> int:
        """Launches that were compared. DRAM's bytes are counted of a launch in several orders: it counts once."""
        return len({one.launch for one in self.scores})

    @property
    def median_error(self) -> float:
        """As a share of what was counted. There must be scores."""
        return statistics.median(abs(one.error) for one in self.scores)

    @property
    def within_allowed(self) -> float:
        """The share of scores that are no misses. There must be scores."""
        return 1 - len(self.misses) / len(self.scores)
