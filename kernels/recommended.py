"""Look up fast configs that a search found. Standard library only.

A kernel's published default config never changes. A recommended config is the fastest that a search found for a shape,
dtype and GPU.
`python -m scripts.search_configs` writes the file.
"""

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels import once
from kernels.experiment import Experiment, from_json
from kernels.gpus import GPUS, Gpu
from kernels.spec import Kernel, Launch

FILE = Path(__file__).with_name("recommended.jsonl")

# The largest distance between two shapes that share a config: their size ratios multiply to at most 2 ** OCTAVES.
OCTAVES = 3.0


@dataclass(frozen=True)
class Recommended:
    """The fastest config that a search found.

    Attributes:
        experiment: kernel, problem and config.
        gpu: the table's name of the GPU that ran the search.
        date: the date in ISO 8601.
        compared: number of configs that compiled and were timed.
        median_ms: time of one launch.
        library: the library call that it was timed against, in alternating pairs; "" if there is none.
        ratio: median over pairs of library time / config time; above 1, the config is faster. None without a library
            call.
    """

    experiment: Experiment
    gpu: str
    date: str
    compared: int
    median_ms: float
    library: str
    ratio: float | None

    def to_json(self) -> dict[str, Any]:
        """Return all fields, as the reply of `/kernels` and the file contain them."""
        return {**vars(self), "experiment": self.experiment.to_json()}


@once
def shipped() -> tuple[Recommended, ...]:
    """Return all recommended configs in the file."""
    rows = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
    return tuple(Recommended(**{**row, "experiment": from_json(row["experiment"])}) for row in rows)


def recommend(kernel: Kernel, problem: Any, gpu: Gpu) -> Recommended | None:
    """Return the config of the nearest shape with the same kernel, dtype, layout and precision, or None.

    Configs found on `gpu` take precedence over configs of other GPUs with its compute capability.
    """

    def text_fields(problem: Any) -> dict[str, str]:
        fields = vars(kernel.family.essential(problem))
        return {name: value for name, value in fields.items() if isinstance(value, str)}

    near = [
        (found.gpu != gpu.name, distance, number)
        for number, found in enumerate(shipped())
        if found.experiment.kernel == kernel.id
        and text_fields(found.experiment.problem) == text_fields(problem)
        and GPUS[found.gpu].compute_capability == gpu.compute_capability
        and (distance := _octaves(problem, found.experiment.problem)) <= OCTAVES
    ]
    if not near:
        return None
    found = shipped()[min(near)[2]]
    return dataclasses.replace(found, experiment=_padded(kernel, found.experiment, problem, gpu))


def _padded(kernel: Kernel, found: Experiment, problem: Any, gpu: Gpu) -> Experiment:
    """Return the experiment with PAD "auto" if that changes a launch of `problem`."""
    if not hasattr(found.config, "PAD"):
        return found
    config = dataclasses.replace(found.config, PAD="auto")
    as_found, padded = (kernel.note(Launch(problem, each, gpu)) for each in (found.config, config))
    return found if as_found == padded else dataclasses.replace(found, config=config)


def _octaves(problem: Any, other: Any) -> float:
    """Return the distance between two shapes: the sum of |log2 of the ratio| over their sizes."""
    sizes = ((size, getattr(other, name)) for name, size in vars(problem).items() if isinstance(size, int))
    return sum(abs(math.log2(size / other_size)) for size, other_size in sizes)
