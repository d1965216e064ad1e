"""The same product with an operand stored transposed."""

from __future__ import annotations

import dataclasses

from kernels.experiment import Experiment
from kernels.knobs import ConfigError
from kernels.matmul.problem import Problem


def with_transposed(experiment: Experiment, operand: str) -> Experiment:
    """The same product, with "A" or "B" stored as its transpose, or no longer so.

    Raises:
        ConfigError: where the experiment is no product.
    """
    problem = experiment.problem
    if not isinstance(problem, Problem):
        raise ConfigError(
            "not_a_choice", f"kernel is {experiment.kernel}, which takes no layout; a matmul does.", "kernel"
        )
    a, b = tuple(problem.layout)
    other = {"N": "T", "T": "N"}
    layout = other[a] + b if operand == "A" else a + other[b]
    return dataclasses.replace(experiment, problem=dataclasses.replace(problem, layout=layout))
