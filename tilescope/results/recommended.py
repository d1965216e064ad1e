"""Look up fast configs that searches found.

A kernel's published default config never changes. `python -m scripts.search_configs FILE` appends lines in the format
of recommended.jsonl.
"""

import math
from dataclasses import dataclass
from typing import Any

from tilescope.caching import once
from tilescope.declare.discovery import read_text
from tilescope.declare.gpus import GPUS, Gpu
from tilescope.declare.spec import Kernel
from tilescope.results import codec

FILE = "recommended.jsonl"


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

    experiment: codec.MeasuredExperiment
    gpu: str
    date: str
    compared: int
    median_ms: float
    library: str
    ratio: float | None


@once
def shipped() -> tuple[Recommended, ...]:
    """Return all recommended configs in the file."""
    lines = codec.parse_lines(read_text(FILE), FILE)
    return tuple(codec.from_json(Recommended, fields, place) for place, fields in lines)


def similar(kernel: Kernel, problem: Any, gpu: Gpu) -> list[Recommended]:
    """Return configs found for the same kernel, dtype, layout, precision and compute capability, nearest shape first.

    At equal distance, configs found on `gpu` come first.
    """

    def text_fields(problem: Any) -> dict[str, str]:
        fields = vars(kernel.family.essential(problem))
        return {name: value for name, value in fields.items() if isinstance(value, str)}

    similar = [
        search
        for search in shipped()
        if search.experiment.kernel == kernel.id
        and text_fields(search.experiment.problem) == text_fields(problem)
        and GPUS[search.gpu].compute_capability == gpu.compute_capability
    ]
    return sorted(
        similar,
        key=lambda search: (octaves(problem, search.experiment.problem), search.gpu != gpu.name),
    )


def octaves(problem: Any, other: Any) -> float:
    """Return the distance between two shapes: the sum of |log2 of the ratio| over their sizes."""
    sizes = (
        (size, getattr(other, name))
        for name, size in vars(problem).items()
        if isinstance(size, int)
    )
    return sum(abs(math.log2(size / other_size)) for size, other_size in sizes)
