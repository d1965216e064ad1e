"""Offer a config for a problem: the one that a search found, or the one expected to be the fastest.

A kernel's published default config never changes. `python -m scripts.search_configs FILE` appends lines in the format
of recommended.jsonl.
"""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from tilescope.caching import once
from tilescope.compiling.estimates import estimate_shared_bytes, estimate_time
from tilescope.declare.discovery import read_text
from tilescope.declare.experiment import Experiment, Json
from tilescope.declare.gpus import GPUS, Gpu
from tilescope.declare.knobs import knobs
from tilescope.declare.spec import DTYPE_BYTES, Kernel, Launch, shape_text
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
        median_ms: time of one launch; None if the launch has changed since.
        library: the library call that it was timed against, in alternating pairs; "" if there is none.
        ratio: median over pairs of library time / config time; above 1, the config is faster. None without a library
            call, or without `median_ms`.
    """

    experiment: codec.MeasuredExperiment
    gpu: str
    date: str
    compared: int
    median_ms: float | None
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


# The values of an offer's origin.
FOUND = "found for this shape"
NEIGHBOUR = "found for a neighbouring shape"
RANKED = "ranked first by the model"
PUBLISHED = "published default"

# Standard tiles: BLOCK_M, BLOCK_N, bytes of BLOCK_K, num_warps, maximum num_stages. On an H200, 22 tiles of
# matmul.stream_k were timed at 26 random float16 shapes. The best of the first four is at most 6 % slower than the best
# of all, 0.5 % on average. The fifth is for GPUs with less shared memory.
_TILES = (
    (128, 256, 128, 8, 4), (256, 128, 128, 8, 4), (128, 128, 128, 4, 5), (64, 128, 256, 4, 4), (64, 128, 128, 4, 5)
)  # fmt: skip

# The model cannot rank times that differ by less than this share: half of its error in recorded searches.
_TIE = 0.07


@dataclass(frozen=True)
class Offer:
    """A config for a problem, and how it was obtained.

    Attributes:
        origin: FOUND, NEIGHBOUR, RANKED or PUBLISHED.
        search: the search that found the config; None if no search did.
    """

    experiment: Experiment
    origin: str
    search: Recommended | None

    def to_json(self) -> Json:
        """Return the API's payload. The search's fields are None if no search found the config."""
        search = (
            vars(self.search)
            if self.search
            else dict.fromkeys(field.name for field in fields(Recommended))
        )
        return {
            **search,
            "experiment": self.experiment.to_json(),
            "shape": shape_text(self.experiment.problem),
            "origin": self.origin,
            "searched_shape": self.search and shape_text(self.search.experiment.problem),
        }


def offers(kernel: Kernel, gpu: Gpu) -> list[Offer]:
    """Return the configs that searches found for the kernel, and an offer for each preset problem without one."""
    found = [
        Offer(search.experiment, FOUND, search)
        for search in shipped()
        if search.experiment.kernel == kernel.id
    ]
    problems = dict.fromkeys(kernel.family.problem(**preset.problem) for preset in kernel.presets)
    offered = (offer(kernel, problem, gpu) for problem in problems)
    return found + [each for each in offered if each and each.origin != FOUND]


# Each move of a slider asks again, mostly for the same problem; an offer takes milliseconds.
@lru_cache(maxsize=256)
def offer(kernel: Kernel, problem: Any, gpu: Gpu) -> Offer | None:
    """Return the config that a search found for the problem, or else the one expected to be the fastest.

    The candidates are configs found for similar problems and, for matmuls, standard tiles; the first wins a tie. Return
    None if no candidate fits on the GPU.
    """
    searches = similar(kernel, problem, gpu)
    if searches and octaves(problem, searches[0].experiment.problem) == 0:
        return Offer(searches[0].experiment, FOUND, searches[0])
    candidates: dict[Any, Recommended | None] = {}
    for search in searches:
        candidates.setdefault(_padded(kernel, search.experiment.config, problem, gpu), search)
    for config in _standard_configs(kernel, problem, gpu):
        candidates.setdefault(config, None)
    estimates = {
        config: estimate
        for config in candidates
        if (estimate := estimate_time(kernel, Launch(problem, config, gpu)))
    }
    if not estimates:
        return None
    limit = (1 + _TIE) * min(estimates.values())
    best = next(config for config, estimate in estimates.items() if estimate <= limit)
    return Offer(
        Experiment(kernel.id, problem, best),
        NEIGHBOUR if candidates[best] else RANKED,
        candidates[best],
    )


def _standard_configs(kernel: Kernel, problem: Any, gpu: Gpu) -> Iterator[Any]:
    """Yield the standard tiles, each with the most stages that fit in shared memory."""
    names = "BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages"
    if not kernel.family.panels or not set(names) <= set(knobs(kernel.config)):
        return
    for rows, columns, step_bytes, warps, most in _TILES:
        tile = rows, columns, step_bytes // DTYPE_BYTES[problem.dtype], warps
        for stages in range(most, 1, -1):
            config = _padded(
                kernel,
                kernel.config(**dict(zip(names, (*tile, stages), strict=True))),
                problem,
                gpu,
            )
            if (
                estimate_shared_bytes(kernel, Launch(problem, config, gpu))
                <= gpu.shared_bytes_per_program
            ):
                yield config
                break


def _padded(kernel: Kernel, config: Any, problem: Any, gpu: Gpu) -> Any:
    """Return the config with PAD "auto" if that changes a launch of `problem`."""
    if not hasattr(config, "PAD"):
        return config
    padded = dataclasses.replace(config, PAD="auto")
    notes = [kernel.note(Launch(problem, each, gpu)) for each in (config, padded)]
    return config if notes[0] == notes[1] else padded
