"""Configs that a search found to be fast: data, and their look-up. Standard library only.

A default says what a kernel is about and never changes; a recommended config is the fastest that was found for a shape,
a dtype and a GPU. `python -m scripts.search_configs` finds them and writes the file that is read here.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels import once
from kernels.experiment import Experiment, from_json
from kernels.gpus import GPUS, Gpu
from kernels.spec import Kernel

FILE = Path(__file__).with_name("recommended.jsonl")

# A shape's class: sizes whose ratios to those that were searched multiply to at most 2 ** OCTAVES.
OCTAVES = 3.0


@dataclass(frozen=True)
class Recommended:
    """The fastest config that a search found.

    Attributes:
        experiment: kernel, problem and config.
        gpu: the GPU of the table that it was found on.
        date: the day, ISO 8601.
        compared: configs that compiled and were timed.
        median_ms: time of one launch.
        library: the library's call that it was timed against in alternating pairs; "" where there is none.
        ratio: median over pairs of the library's time over this config's; above 1 the config is faster. None without
            a library.
    """

    experiment: Experiment
    gpu: str
    date: str
    compared: int
    median_ms: float
    library: str
    ratio: float | None

    def to_json(self) -> dict[str, Any]:
        """All of it, as `/kernels` and a line of the file give it."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**fields, "experiment": self.experiment.to_json()}


@once
def shipped() -> tuple[Recommended, ...]:
    """All that the file holds."""
    from kernels import discover

    lines = FILE.read_text(encoding="utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    return tuple(Recommended(**{**one, "experiment": from_json(one["experiment"], discover())}) for one in found)


def recommended(kernel: Kernel, problem: Any, gpu: Gpu) -> Recommended | None:
    """The config found for the nearest shape of the same kernel, dtype, layout and precision, or None.

    What was found on `gpu` goes before what was found on another GPU of its compute capability.
    """
    key = _but_sizes(kernel, problem)
    near = [
        (one.gpu != gpu.name, _octaves(problem, one.experiment.problem), number)
        for number, one in enumerate(shipped())
        if one.experiment.kernel == kernel.id
        and _but_sizes(kernel, one.experiment.problem) == key
        and GPUS[one.gpu].compute_capability == gpu.compute_capability
    ]
    within = [one for one in near if one[1] <= OCTAVES]
    return shipped()[min(within)[2]] if within else None


def _but_sizes(kernel: Kernel, problem: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(kernel.family.essential(problem)).items() if isinstance(value, str)}


def _octaves(problem: Any, other: Any) -> float:
    """How far two shapes are apart: the sum over their sizes of |log2 of the ratio|."""
    return sum(
        abs(math.log2(size / getattr(other, name))) for name, size in vars(problem).items() if isinstance(size, int)
    )
