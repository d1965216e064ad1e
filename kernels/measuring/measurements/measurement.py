"""What a measurement is: what the session asks of each kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from kernels.experiment import Experiment
from kernels.gpus import Gpu
from kernels.results import Failure, Measured
from kernels.results.records import RecordForm
from kernels.results.stored import KnownResult

if TYPE_CHECKING:
    from kernels.measuring.stages import Stages

T = TypeVar("T", bound=Measured)


@dataclass(frozen=True)
class Incomplete(Generic[T]):
    """A result that lacks something: a recording stands in for it, where there is one.

    Attributes:
        value: what there is otherwise.
        reason: what is missing and why, in a sentence that goes before the recording's own note.
    """

    value: T | Failure
    reason: str


class Measurement(ABC, Generic[T]):
    """One kind of measurement. Each has a file of its own, and is listed in MEASUREMENTS.

    Attributes:
        name: what `Session.submit` calls it.
        form: how results are recorded; its key also says which experiments share one result.
        takes: that it takes a GPU, in words.
        missing: that nothing was recorded on `{gpu}`, in words.
        is_interpreted: Triton's interpreter does it, where the machine has no GPU.
    """

    name: str
    form: RecordForm[T]
    takes: ClassVar[str] = "This is measured on a GPU"
    missing: ClassVar[str] = "nothing of this experiment on {gpu} was recorded"
    is_interpreted: ClassVar[bool] = False

    def refuse(self, experiment: Experiment, gpu: Gpu) -> None:
        """Raise ConfigError where the experiment can't be measured so on any machine."""

    def refuse_interpreted(self, experiment: Experiment, gpu: Gpu) -> None:
        """Raise ConfigError where the interpreter can't do it in reasonable time."""

    def key(self, experiment: Experiment) -> Experiment:
        """One experiment that stands for all with the same result."""
        return self.form.key(experiment)

    @abstractmethod
    def measure(self, experiment: Experiment, stages: Stages) -> T | Incomplete[T]:
        """Measure it on this machine. Whatever raises ends as a Failure."""

    def beside(self, measured: T, recorded: Callable[[], KnownResult | None]) -> T:
        """What was measured here, as it is shown.

        Args:
            recorded: asks for what was recorded of the experiment on a GPU.
        """
        return measured

    def not_here(self, gpu: Gpu, this: Gpu | None) -> Failure:
        """That this machine, with the GPU `this` or none, can't measure it, and nothing was recorded on `gpu`."""
        here, missing = this.name if this else "none", self.missing.format(gpu=gpu.name)
        return Failure("config", "not_recorded", f"{self.takes}: this machine has {here}, and {missing}.")
