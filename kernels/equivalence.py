"""Which experiments share one result: for each, one that stands for all of them."""

from __future__ import annotations

import dataclasses

from kernels import discover
from kernels.experiment import Experiment, Run


def on_any_gpu(experiment: Experiment) -> Experiment:
    """One experiment that stands for all that differ in `gpu` alone."""
    return dataclasses.replace(experiment, gpu="")


def same_launch(experiment: Experiment, gpu: str = "") -> Experiment:
    """One experiment that stands for all with the same launch, however it is run and timed, and on whatever numbers.

    Args:
        gpu: the name of the GPU that it is for, where that matters.
    """
    problem = discover()[experiment.kernel].family.essential(experiment.problem)
    return dataclasses.replace(experiment, gpu=gpu, problem=problem, run=Run())
