"""The Stream-K matmul: whole tiles in full waves, and the tiles of the last, partial wave in slices of K."""

import functools
from dataclasses import replace

import pytest

from tilescope.declare.discovery import discover
from tilescope.declare.experiment import Experiment
from tilescope.declare.gpus import GPUS
from tilescope.declare.spec import Launch
from tilescope.search.search import ConfigTrial
from tilescope.search.trial import run_trial
from visualize.predict.schedule import schedule, steps

KERNEL = discover()["matmul.stream_k"]
LARGE = {"BLOCK_M": 128, "BLOCK_N": 256, "num_warps": 8}
SMALL = {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32}

# On 9 SMs: idle SMs add; the last slices' programs add; fewer tiles than SMs; halves; no tail; odd rows; one element.
CASES = (
    ((96, 128, 256), {**SMALL, "SPLIT_K": 2}),
    ((96, 128, 256), {**SMALL, "SPLIT_K": 4}),
    ((64, 64, 1024), {**SMALL, "SPLIT_K": 16}),
    ((128, 2560, 96), {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 32, "SPLIT_K": 8}),
    ((96, 96, 256), {**SMALL, "SPLIT_K": 16}),
    ((97, 125, 131), {**SMALL, "SPLIT_K": 4, "PAD": "always"}),
    ((97, 125, 131), {**SMALL, "SPLIT_K": 4}),
    ((1, 1, 1), {**SMALL, "SPLIT_K": 16}),
)


def launch_of(shape, config, sms=132, **problem):
    gpu = replace(GPUS["H200"], sms=sms)
    return Launch(KERNEL.family.problem(*shape, **problem), KERNEL.config(**config), gpu)


def launch_twice(shape, config):
    """Run in the worker. Return the largest error, whether both results are equal, and the number of raised flags."""
    import torch

    launch = launch_of(shape, config, sms=9)
    outputs = []
    tensors = {}
    for name, spec in KERNEL.tensors(launch).items():
        stored = torch.randint(-3, 4, spec.stored).to(getattr(torch, spec.dtype_in(launch.problem)))
        tensors[name] = stored.zero_() if spec.starts_zeroed else stored
    for _ in range(2):
        tensors["C"].fill_(float("nan"))
        for kernel in KERNEL.launches(launch):
            kernel.jitted[kernel.grid(launch)](**kernel.arguments(tensors, launch))
        outputs.append(tensors["C"].clone())
    error = (outputs[0].float() - tensors["A"].float() @ tensors["B"].float()).abs().max()
    raised = tensors["flags"].count_nonzero() if "flags" in tensors else 0
    return float(error), torch.equal(*outputs), int(raised)


@pytest.mark.xdist_group("interpreted")
@pytest.mark.parametrize(("shape", "config"), CASES)
def test_each_launch_gives_the_same_exact_result_and_lowers_its_flags(session, shape, config):
    assert session.call_runner(functools.partial(launch_twice, shape, config)) == (0.0, True, 0)


@pytest.mark.xdist_group("interpreted")
def test_configs_of_a_trial_share_only_workspaces_of_equal_size(session):
    problem = KERNEL.family.problem(96, 128, 256)
    configs = (KERNEL.config(**SMALL, SPLIT_K=slices) for slices in (1, 4, 2))
    trial = ConfigTrial(
        tuple(Experiment(KERNEL.id, problem, config) for config in configs), phase="explore"
    )
    outcomes = session.call_runner(functools.partial(run_trial, trial, GPUS["H200"]))
    assert [outcome.status for outcome in outcomes.each] == ["checked"] * 3


@pytest.mark.parametrize(
    ("shape", "shared", "slices", "last"),
    [
        ((3072, 3072, 3072), 24, 4, 96),  # 288 tiles: 264 in two waves
        ((2304, 2304, 8192), 30, 4, 120),
        ((512, 512, 16384), 8, 13, 104),  # fewer tiles than SMs: one wave
        ((4096, 4096, 4096), 0, 1, 116),  # 116 tiles of 132: no split
        ((1536, 2816, 512), 0, 1, 132),  # one full wave
    ],
)
def test_the_last_wave_is_split_if_that_saves_time(shape, shared, slices, last):
    """The steps of a launch are slices. Only programs with a slice of a shared tile have a last step."""
    launch = launch_of(shape, LARGE)
    planned = schedule(KERNEL, launch)
    program = planned.tiles.program[planned.entry]
    assert planned.slices == slices
    assert int((program != program[0]).any(axis=0).sum()) == shared
    assert steps(planned).tiles[-1] == last
    assert ("split along K" in KERNEL.note(launch)) == (shared > 0)
