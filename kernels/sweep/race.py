"""The race of those that were timed: rounds of more samples for fewer configs, then the final. No clock, no machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernels.experiment import Experiment
from kernels.measuring.timing import Effort
from kernels.sweep.device import Trial
from kernels.sweep.ranking import ETA, FINALISTS, survivors

# Samples of each config while exploring; ETA times as many in each round of the race. Of ten pairs with 2 % of noise
# the median is within 1 %: no config within a few per cent of the best is far from the first quarter.
TURNS = 10

# A round of the race is no longer than this.
_MOST_TURNS = 160

# The finalists are timed until their ratios are known to 0.1 %, or this is over.
FINAL_EFFORT = Effort(half_width=0.001, fewest=40, most=2000, least_ms=200.0, most_s=4.0, warm_s=0.5)


@dataclass(frozen=True)
class Task:
    """Something to try.

    Attributes:
        numbers: of the trial's experiments, in its order.
        phase: "explore", "race" or "final".
        is_retry: it is tried a second time.
        not_on: a device (by its place) that should not try it, if there is another; None for any.
    """

    numbers: tuple[int, ...]
    trial: Trial
    phase: str
    is_retry: bool = False
    not_on: int | None = None


class Race:
    """Who is still in it, and what is to be timed next.

    Args:
        numbers: of the configs that were timed.
        relative: number → its time over the reference's, as it is known now.
        trial: (numbers, turns) → their trial beside the reference.
        reference: number → whether it is the reference, which takes part in every trial anyway.
        at_once: configs of one trial at most.
        devices: that trials are shared among.

    Attributes:
        racing: who is still in it.
        phase: "race", "final" or "over".
        tasks: of this round that no device has taken yet.
    """

    def __init__(
        self,
        numbers: Sequence[int],
        relative: Callable[[int], float],
        trial: Callable[[Sequence[int], int], Trial],
        reference: Callable[[int], bool],
        at_once: int,
        devices: int = 1,
    ) -> None:
        self.racing = list(numbers)
        self.phase = "race"
        self._relative, self._trial, self._is_reference, self._at_once = relative, trial, reference, at_once
        self._devices = devices
        self._turns = TURNS
        self.tasks: list[Task] = []
        self._finals = 0
        self._next_round()

    def _next_round(self) -> None:
        """Those that go on; where these are few enough, the final."""
        ranked = survivors([(number, self._relative(number)) for number in self.racing])
        self.racing = ranked
        if len(ranked) <= FINALISTS:
            self.phase = "final"
            return
        self._turns = min(_MOST_TURNS, ETA * self._turns)
        others = [number for number in ranked if not self._is_reference(number)]
        trials = math.ceil(math.ceil(len(others) / self._at_once) / self._devices) * self._devices
        for place in range(trials):  # of the same number of configs, so that no device waits for another's
            if numbers := tuple(others[place::trials]):
                self.tasks.append(Task(numbers, self._trial(numbers, self._turns), "race"))

    def drop(self, number: int) -> None:
        """It failed: it is out, also of what is still to be timed in this round."""
        if number in self.racing:
            self.racing.remove(number)
        left = [(tuple(n for n in task.numbers if n != number), task.trial.turns) for task in self.tasks]
        self.tasks = [Task(numbers, self._trial(numbers, turns), "race") for numbers, turns in left if numbers]

    def ask(
        self, is_idle: bool, are_built: Callable[[Sequence[int]], bool], experiments: Sequence[Experiment]
    ) -> Task | None:
        """What is to be timed now.

        Args:
            is_idle: nothing is under way or to be tried again: the round is over, if none of it is left.
            are_built: whether some numbers are compiled.
            experiments: by number.
        """
        for task in self.tasks:
            if are_built(task.numbers):
                self.tasks.remove(task)
                return task
        if self.tasks or not is_idle or self.phase == "over":
            return None
        if self.phase == "race":
            self._next_round()
            return self.ask(is_idle, are_built, experiments)
        if not self.racing or self._finals > 1:  # the final took its worker with it, twice
            self.phase = "over"
            return None
        if not are_built(self.racing):
            return None
        self._finals += 1
        trial = Trial(tuple(experiments[n] for n in self.racing), effort=FINAL_EFFORT, with_library=True)
        return Task(tuple(self.racing), trial, "final")
