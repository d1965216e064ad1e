"""Keys of results: experiments that share a result have equal keys."""

from __future__ import annotations

import dataclasses

from kernels import discover
from kernels.experiment import Experiment, Run


def on_any_gpu(experiment: Experiment) -> Experiment:
    """Return the key shared by all experiments that differ only in `gpu`."""
    return dataclasses.replace(experiment, gpu="")


def same_launch(experiment: Experiment, gpu: str = "") -> Experiment:
    """Return the key shared by all experiments with the same launch, whatever their inputs and timing.

    Args:
        gpu: name of the GPU, if the result depends on it.
    """
    problem = discover()[experiment.kernel].family.essential(experiment.problem)
    return dataclasses.replace(experiment, gpu=gpu, problem=problem, run=Run())
