"""The Stream-K matmul: whole tiles in full waves, and the tiles of the last, partial wave in slices of K."""

import functools
from dataclasses import replace

import pytest

from tests.experiments import experiment_of
from tests.tables import read_table
from tilescope.declare.experiment import launch_of
from tilescope.declare.gpus import GPUS
from tilescope.results.sweep import ConfigTrial
from tilescope.search.trial import run_trial
from visualize.predict.schedule import schedule, steps

H200 = GPUS["H200"]
SMALL = "BLOCK_M=32 BLOCK_N=32 BLOCK_K=32"
LARGE = "BLOCK_M=128 BLOCK_N=256"

# On 9 SMs.
CASES = {
    "idle SMs add": f"M=96 N=128 K=256 {SMALL} SPLIT_K=2",
    "the last slices' programs add": f"M=96 N=128 K=256 {SMALL} SPLIT_K=4",
    "fewer tiles than SMs": f"M=64 N=64 K=1024 {SMALL} SPLIT_K=16",
    "halves": f"M=128 N=2560 K=96 {LARGE} BLOCK_K=32 SPLIT_K=8",
    "no tail": f"M=96 N=96 K=256 {SMALL} SPLIT_K=16",
    "padded odd rows": f"M=97 N=125 K=131 {SMALL} SPLIT_K=4 PAD=always",
    "odd rows": f"M=97 N=125 K=131 {SMALL} SPLIT_K=4",
    "one element": f"M=1 N=1 K=1 {SMALL} SPLIT_K=16",
}


def launched(text, sms=132):
    return launch_of(experiment_of(f"matmul.stream_k {text}"), replace(H200, sms=sms))


def launch_twice(text):
    """Run in the worker. Return the largest error, whether both results are equal, and the number of raised flags."""
    import torch

    stream_k, launch = launched(text, sms=9)
    outputs = []
    tensors = {}
    for name, spec in stream_k.tensors(launch).items():
        stored = torch.randint(-3, 4, spec.stored).to(getattr(torch, spec.dtype_in(launch.problem)))
        tensors[name] = stored.zero_() if spec.starts_zeroed or spec.copy_of else stored
        if spec.copy_of:
            rows, columns = tensors[spec.copy_of].shape
            tensors[name][:rows, :columns] = tensors[spec.copy_of]
    for _ in range(2):
        tensors["C"].fill_(float("nan"))
        stream_k.jitted[stream_k.grid(launch)](**stream_k.arguments(tensors, launch))
        outputs.append(tensors["C"].clone())
    error = (outputs[0].float() - tensors["A"].float() @ tensors["B"].float()).abs().max()
    raised = tensors["flags"].count_nonzero() if "flags" in tensors else 0
    return float(error), torch.equal(*outputs), int(raised)


@pytest.mark.xdist_group("interpreted")
@pytest.mark.parametrize("text", CASES.values(), ids=CASES)
def test_each_launch_gives_the_same_exact_result_and_lowers_its_flags(session, text):
    assert session.call_runner(functools.partial(launch_twice, text)) == (0.0, True, 0)


@pytest.mark.xdist_group("interpreted")
def test_configs_of_a_trial_share_only_workspaces_of_equal_size(session):
    text = f"matmul.stream_k M=96 N=128 K=256 {SMALL}"
    experiments = tuple(experiment_of(text, SPLIT_K=slices) for slices in (1, 4, 2))
    trial = ConfigTrial(experiments, phase="explore")
    outcomes = session.call_runner(functools.partial(run_trial, trial, H200))
    assert [outcome.status for outcome in outcomes.each] == ["checked"] * 3


LAST_WAVES = """
M=3072 N=3072 K=3072 | 24 | 4 | 96 | 288 tiles: 264 in two waves
M=2304 N=2304 K=8192 | 30 | 4 | 120 |
M=512 N=512 K=16384 | 8 | 13 | 104 | fewer tiles than SMs: one wave
M=4096 N=4096 K=4096 | 0 | 1 | 116 | 116 tiles of 132: no split
M=1536 N=2816 K=512 | 0 | 1 | 132 | one full wave
"""


@pytest.mark.parametrize(("shape", "shared", "slices", "last", "why"), read_table(LAST_WAVES))
def test_the_last_wave_is_split_if_that_saves_time(shape, shared, slices, last, why):
    """The steps of a launch are slices. Only programs with a slice of a shared tile have a last step."""
    kernel, launch = launched(f"{shape} {LARGE} num_warps=8")
    planned = schedule(kernel, launch)
    program = planned.tiles.program[planned.entry]
    assert planned.slices == slices
    assert int((program != program[0]).any(axis=0).sum()) == shared
    assert steps(planned).tiles[-1] == last
    assert ("split along K" in kernel.note(launch)) == (shared > 0)
