"""What only a GPU can measure, and what stands in for it where there is none: a recording, or a sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kernels import records
from kernels.experiment import Experiment
from kernels.gpus import Gpu
from kernels.matmul.transposed_operands import with_transposed
from kernels.results import Counters, Failure, GroupSizeStudy, LayoutStudy, Timeline
from kernels.runner.timeline import refuse_too_many


@dataclass(frozen=True)
class Measurement:
    """One kind of them.

    Attributes:
        find: (experiment, GPU's name) → what was recorded, or None.
        takes: that it takes a GPU, in words.
        missing: that nothing was recorded on `{gpu}`, in words.
        refuse: raises ConfigError where the experiment can't be measured so on any GPU.
    """

    find: Callable[[Experiment, str], LayoutStudy | Counters | GroupSizeStudy | Timeline | None]
    takes: str
    missing: str
    refuse: Callable[[Experiment, Gpu], Any] = lambda experiment, gpu: None

    def recorded(self, experiment: Experiment, gpu: Gpu, this: Gpu | None) -> Any:
        """What was recorded on `gpu`, or a Failure that says that `this` machine can't measure it."""
        here, missing = this.name if this else "none", self.missing.format(gpu=gpu.name)
        return self.find(experiment, gpu.name) or Failure(
            "config", "not_recorded", f"{self.takes}: this machine has {here}, and {missing}."
        )


MEASUREMENTS = {
    "layouts": Measurement(
        records.find_layouts,
        "Layouts are compared on a GPU",
        "no comparison of this experiment on {gpu} was recorded",
        refuse=lambda experiment, gpu: with_transposed(experiment, "B"),
    ),
    "counters": Measurement(
        records.find_counters,
        "Counting takes the GPU itself",
        "no counts of this experiment on {gpu} were recorded",
    ),
    "reuse": Measurement(
        records.find_reuse,
        "GROUP_SIZEs are compared on a GPU",
        "no comparison of this experiment on {gpu} was recorded",
    ),
    "timeline": Measurement(
        records.find_timeline,
        "A timeline is taken on a GPU",
        "none of this experiment on {gpu} was recorded",
        refuse=refuse_too_many,
    ),
}
