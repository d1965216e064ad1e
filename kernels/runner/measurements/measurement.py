"""What a measurement is: what the session asks of each kind, and what a kind may ask of the session."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Generic, Protocol, TypeVar

from kernels import discover
from kernels.compiled import compiler
from kernels.experiment import Experiment, Run
from kernels.gpus import Gpu
from kernels.records import RecordForm
from kernels.results import Compiled, Device, Failure, Measured

T = TypeVar("T", bound=Measured)
V = TypeVar("V")


class Stages(Protocol):
    """What a measurement is given: the stages of one job, in which workers and the GPU do the work.

    A stage that fails, and one that is cancelled, ends the measurement by an exception that only the session catches.
    """

    @property
    def gpu(self) -> Gpu:
        """The GPU that the experiment is measured on or, under the interpreter, stands for."""
        ...

    def compile(
        self, experiment: Experiment, build: Callable[[Experiment, Gpu], Failure | None] = compiler.compile_for
    ) -> None:
        """Compile in a compile worker, so that the run worker finds it done. Nothing, under the interpreter."""
        ...

    def compiled(self, *experiments: Experiment) -> tuple[Compiled, ...]:
        """What the compiler makes of each experiment."""
        ...

    def wait_for_turn(self) -> None:
        """Wait until this job has the GPU to itself. The stages below do so by themselves."""
        ...

    def device(self) -> Device:
        """What the run worker runs on; starts it where needed."""
        ...

    def work(self, stage: str, function: Callable[..., V | Failure], *args: object) -> V:
        """Call a module's function in the run worker.

        Args:
            stage: one of STAGES, whose deadline holds.
            function: found by its module and name, and decorated with `worker.as_failure`.
        """
        ...

    def count(self, function: Callable[..., V], *args: object) -> V:
        """Call a function that counts with ncu, a process of its own.

        Args:
            function: takes `args`, and by name `cache` and `started` of `ncu.launched`.

        Raises:
            CountingFailed: where there are no counts, unless the job was cancelled.
        """
        ...

    @property
    def seconds(self) -> dict[str, float]:
        """How long each stage took so far."""
        ...


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

    def not_here(self, gpu: Gpu, this: Gpu | None) -> Failure:
        """That this machine, with the GPU `this` or none, can't measure it, and nothing was recorded on `gpu`."""
        here, missing = this.name if this else "none", self.missing.format(gpu=gpu.name)
        return Failure("config", "not_recorded", f"{self.takes}: this machine has {here}, and {missing}.")


def anywhere(experiment: Experiment) -> Experiment:
    """One experiment that stands for all that differ in `gpu` alone."""
    return dataclasses.replace(experiment, gpu="")


def essential(experiment: Experiment) -> Experiment:
    """One experiment that stands for all with the same launch, however it is run and timed, and on whatever numbers."""
    problem = discover()[experiment.kernel].family.essential(experiment.problem)
    return dataclasses.replace(experiment, gpu="", problem=problem, run=Run())
