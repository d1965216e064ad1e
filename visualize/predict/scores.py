"""Score predictions against recorded counts: exact scores, misses and their errors."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tilescope.declare.experiment import Experiment
from tilescope.results.counters import any_group_size

# Sectors and requests must be equal. DRAM bytes depend on timing, so their prediction is approximate.
EXACT_COUNTS = ("sectors", "requests")
DRAM = "dram_bytes"
COUNTS = (*EXACT_COUNTS, DRAM)

# An approximate prediction is a miss if its error exceeds this fraction of the count.
ALLOWED_ERROR = 0.2


@dataclass(frozen=True)
class Score:
    """One count of one recorded launch, with its prediction.

    Attributes:
        experiment: the launch; its `gpu` is the GPU on which it was counted.
        operation: a key of `counts.KINDS`, or "DRAM read".
        count: one of COUNTS.
        predicted, counted: totals over the launch.
        is_lower_bound: whether the prediction is only a lower bound, because an atomic loop retries after collisions.
        is_flagged: whether the model marked its prediction as uncertain.
    """

    experiment: Experiment
    operation: str
    count: str
    predicted: int
    counted: int
    is_lower_bound: bool = False
    is_flagged: bool = False

    @property
    def is_exact(self) -> bool:
        return self.predicted == self.counted

    @property
    def error(self) -> float:
        """The prediction's error as a fraction of the count; positive if the prediction is too large."""
        if self.counted:
            return (self.predicted - self.counted) / self.counted
        return math.inf if self.predicted else 0.0

    @property
    def is_miss(self) -> bool:
        """Whether the prediction differs from the count or, for DRAM bytes, differs by more than ALLOWED_ERROR."""
        return abs(self.error) > ALLOWED_ERROR if self.count == DRAM else not self.is_exact


@dataclass(frozen=True)
class Scoreboard:
    """Every recorded count with its prediction.

    Attributes:
        scores: scores of exact and approximate predictions.
        lower_bounds: scores of predictions that are only lower bounds.
        unpredicted: recorded launches without a shipped prediction.
    """

    scores: tuple[Score, ...]
    lower_bounds: tuple[Score, ...] = ()
    unpredicted: tuple[Experiment, ...] = ()

    def part(self, counts: Sequence[str] = COUNTS, gpu: str = "", kernel: str = "") -> "Scoreboard":
        """Return the scores of the given counts, GPU and kernel; "" selects all."""

        def matches(launch: Experiment) -> bool:
            return gpu in ("", launch.gpu) and kernel in ("", launch.kernel)

        def select(scores: Sequence[Score]) -> tuple[Score, ...]:
            return tuple(
                score for score in scores if score.count in counts and matches(score.experiment)
            )

        return Scoreboard(
            select(self.scores), select(self.lower_bounds), tuple(filter(matches, self.unpredicted))
        )

    @property
    def misses(self) -> tuple[Score, ...]:
        """The misses, largest error first."""
        return tuple(
            sorted(
                (score for score in self.scores if score.is_miss),
                key=lambda score: -abs(score.error),
            )
        )

    @property
    def exact(self) -> int:
        return sum(score.is_exact for score in self.scores)

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(sorted({score.experiment.gpu for score in self.scores}))

    @property
    def launches(self) -> int:
        """Number of compared launches. A launch whose DRAM bytes are counted for several GROUP_SIZEs counts once."""
        return len(
            {any_group_size(s.experiment) if s.count == DRAM else s.experiment for s in self.scores}
        )

    @property
    def median_error(self) -> float:
        """The median error as a fraction of the count. Requires scores."""
        return statistics.median(abs(score.error) for score in self.scores)
