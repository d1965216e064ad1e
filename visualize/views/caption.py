"""What is on show, in a line: for a picture that is taken from the page, and for a stage."""

from __future__ import annotations

import dataclasses

from kernels.experiment import Experiment, Run
from kernels.spec import shape_text
from visualize.views.numbers import SOURCES, enumerated


def about(experiment: Experiment, gpu: str, *sources: str) -> str:
    """Kernel, problem, config, what of the run is not the default, GPU, and the marks.

    >>> from kernels.experiment import from_json
    >>> about(from_json({"kernel": "transpose.flat"}), "H200", "recorded")
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


def title(experiment: Experiment, gpu: str) -> str:
    """What is on show, for a stage: kernel, shape, type and GPU.

    >>> from kernels.experiment import from_json
    >>> title(from_json({"kernel": "matmul.grouped"}), "H200")
    'matmul.grouped · 512 × 512 × 512 float16 · H200'
    """
    problem = experiment.problem
    return f"{experiment.kernel} · {shape_text(problem)} {problem.dtype} · {gpu}"


def _listed(fields: dict[str, int | str]) -> str:
    return ", ".join(f"{name} {value}" if isinstance(value, int) else value for name, value in fields.items())
