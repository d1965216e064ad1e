"""What a sweep needs of what runs it: compiles ahead, and trials of some configs in turns. Values and protocols alone.

The search knows no machine: a session's GPU, the interpreter, a GPU of another host and a test's made-up times are all
a `TrialDevice`.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kernels.experiment import Experiment
from kernels.gpus import Gpu
from kernels.lanes import CompiledFacts
from kernels.measuring.timing import Effort
from kernels.results import Device, Failure, Prediction
from kernels.spec import Kernel, Launch

# A model's time of one launch: before it is compiled (None), and after. Handed to a sweep, which knows no model.
Predict = Callable[[Kernel, Launch, CompiledFacts | None], Prediction | None]

# Why a config is not worth a compile, as a sentence; "" where it is.
Refuse = Callable[[Kernel, Launch], str]


# The kind of a Failure that says that a device is lost for good: others go on with what it was to try.
GONE = "device_gone"

# The kind of a Failure that says that nothing can be compiled here, whatever the config.
NO_WORKER = "no_worker"


def no_prediction(kernel: Kernel, launch: Launch, compiled: CompiledFacts | None) -> Prediction | None:
    """The `Predict` of a sweep that has no model: grid order."""
    return None


def nothing_refused(kernel: Kernel, launch: Launch) -> str:
    """The `Refuse` of a sweep that compiles whatever the family takes."""
    return ""


@dataclass(frozen=True)
class Build:
    """What the compiler made of a config, without its texts, and what the model then predicts.

    Attributes:
        registers, spilled_bytes, shared_bytes: as of CompiledFacts.
        seconds: that the compiler took.
    """

    registers: int
    spilled_bytes: int
    shared_bytes: int
    seconds: float
    predicted: Prediction | None


@dataclass(frozen=True)
class Trial:
    """Configs that are timed in turns on one device, on the same inputs.

    Attributes:
        experiments: they differ in their config alone.
        reference: is timed in each turn, too, so that what slows all cancels; None where the first right one of
            `experiments` becomes it.
        turns: samples of each config.
        is_checked: each result is checked first, and a wrong one is not timed.
        effort: in place of `turns`, when enough times are taken; for the finalists.
        with_library: the library's calls are timed in the same turns.
    """

    experiments: tuple[Experiment, ...]
    reference: Experiment | None = None
    turns: int = 10
    is_checked: bool = False
    effort: Effort | None = None
    with_library: bool = False


@dataclass(frozen=True)
class Outcome:
    """What a trial found of one config.

    Attributes:
        times_ms: (turns,), of one launch; empty where it was not timed.
        reference_ms: (turns,), the reference's in the same turns.
        wrong: that its result is wrong, as a sentence; "" where it is right or was not checked.
        failure: why it could not be tried, where that harmed no other.
    """

    times_ms: np.ndarray
    reference_ms: np.ndarray
    wrong: str = ""
    failure: Failure | None = None


NO_TIMES = np.empty(0)


@dataclass(frozen=True)
class Outcomes:
    """What a trial found.

    Attributes:
        each: of the trial's experiments, in their order.
        baselines: the library's calls by name, (turns,) ms each, in the turns of all.
    """

    each: tuple[Outcome, ...]
    baselines: tuple[tuple[str, np.ndarray], ...] = ()


class TrialDevice(Protocol):
    """What checks and times configs: one GPU of one process, or what stands for it.

    Attributes:
        gpu: that it is, or that predictions are for.
        where: host and number, where there are several; else "".
        times: whether it takes times; without, results are checked at most.
        at_once: configs of one trial at most, the reference left out.
    """

    gpu: Gpu
    where: str
    times: bool
    at_once: int

    def describe(self) -> Device | Failure:
        """What it is, in its own words; starts it where needed."""
        ...

    def refusal(self, experiment: Experiment) -> str:
        """Why this device can't even check it, as a sentence; "" where it can."""
        ...

    def attempt(self, trial: Trial) -> Outcomes | Failure:
        """Carry out a trial; waits for it. A Failure is of all of its configs: the worker died, or was harmed."""
        ...

    def cancel(self) -> None:
        """End what is under way: its `attempt` returns a Failure."""
        ...

    def close(self) -> None:
        """Let go of what this sweep used."""
        ...


class Builder(Protocol):
    """What compiles ahead, several at a time.

    Attributes:
        at_once: compiles that can be under way.
    """

    at_once: int

    def submit(self, experiment: Experiment) -> Future[Build | Failure]:
        """Start a compile."""
        ...

    def close(self) -> None:
        """End what is under way and waiting, and let go of the processes."""
        ...


def seconds_text(seconds: float) -> str:
    """A time as it is read aloud.

    >>> seconds_text(42.4), seconds_text(200), seconds_text(4000)
    ('42 s', '3 min 20 s', '1 h 6 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
