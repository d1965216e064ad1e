"""What a picture says of itself once it is taken from the page: the Experiment in a line, and where it is from."""

from __future__ import annotations

import dataclasses

from kernels.experiment import Experiment, Run
from visualize.text.words import SOURCES, enumerated


def about(experiment: Experiment, gpu: str, *sources: str) -> str:
    """Kernel, problem, config, what of the run is not the default, GPU, and the marks.

    >>> from kernels import discover
    >>> from kernels.experiment import from_json
    >>> about(from_json({"kernel": "transpose.flat"}, discover()), "H200", "recorded")
    'transpose.flat · M 1024, N 1024, float32 · BLOCK 1024, num_warps 4, num_stages 3 · H200 · recorded'

    Args:
        gpu: the name of the GPU that it is of.
        sources: marks, as of `words.mark`.

    Raises:
        ValueError: for a mark that there is not, or none at all.
    """
    if not sources or not set(sources) <= set(SOURCES):
        raise ValueError(f"A picture comes from {sources!r}; allowed are {', '.join(SOURCES)}.")
    run = {name: value for name, value in vars(experiment.run).items() if value != getattr(Run(), name)}
    parts = [
        experiment.kernel,
        _listed(dataclasses.asdict(experiment.problem)),
        _listed(dataclasses.asdict(experiment.config)),
        _listed(run),
        gpu,
        enumerated(list(dict.fromkeys(sources))),
    ]
    return " · ".join(filter(None, parts))


def _listed(fields: dict[str, int | str]) -> str:
    return ", ".join(f"{name} {value}" if isinstance(value, int) else value for name, value in fields.items())
