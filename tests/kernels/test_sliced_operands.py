"""Matmuls are right on operands that are slices of larger tensors, in every layout."""

import functools
import itertools

import pytest
import torch

from kernels.matmul.problem import LAYOUTS
from tests.covering import covering
from tilescope.declare.discovery import discover
from tilescope.declare.gpus import GPUS, this_gpu
from tilescope.declare.spec import Launch
from tilescope.measure.check import check

# The worker that interprets the contract's cases runs these as well.
pytestmark = pytest.mark.xdist_group("interpreted")

# Two tiles by two and three steps of K, with ragged edges; two tiles and two steps, in whole vectors of 8.
SHAPES = ((33, 35, 77), (40, 24, 48))


def slice_of_larger(tensor, margin):
    """Return the same values in a window of a larger tensor whose other elements are not finite."""
    rows, columns = tensor.shape
    larger = torch.full((rows + 3, columns + margin), float("nan"), device=tensor.device).to(
        tensor.dtype
    )
    window = larger[2 : 2 + rows, margin // 2 : margin // 2 + columns]
    window.copy_(tensor)
    return window


def check_slices(kernel, launch, margin, device):
    generator = torch.Generator(device).manual_seed(7)
    operands = kernel.family.tensors(launch.problem)
    output = kernel.family.output(launch.problem)
    tensors = {}
    for name, spec in kernel.tensors(launch).items():
        values = torch.zeros(spec.stored, device=device)
        if spec.is_input:
            values.normal_(generator=generator)
        elif name == output and not kernel.zeroed_output:
            values.fill_(float("nan"))
        stored = values.to(getattr(torch, spec.dtype_in(launch.problem)))
        if name in operands:
            stored = slice_of_larger(stored, margin)
        tensors[name] = stored.t() if spec.transposed else stored
    kernel.jitted[kernel.grid(launch)](**kernel.arguments(tensors, launch))
    capability = None if device == "cpu" else launch.gpu.compute_capability
    allowed = kernel.family.allowance(
        launch.problem, kernel.roundings(launch), "normal", capability
    )
    inputs = {name: tensors[name] for name in operands if name != output}
    return check(tensors[output], inputs, kernel.family, allowed)[0]


def check_cases(kernel_id, device, takes_all):
    """Run in the worker. Return the failed cases, of all combinations or of every pair of shape, margin and layout."""
    kernel = discover()[kernel_id]
    gpu = this_gpu() if device == "cuda" else GPUS["H200"]
    split = (
        {"SPLIT_K": 1 if "race" in kernel.id else 2} if hasattr(kernel.config, "SPLIT_K") else {}
    )
    config = kernel.config(BLOCK_M=32, BLOCK_N=32, BLOCK_K=32, **split)
    every = list(itertools.product(SHAPES, (5, 16), LAYOUTS))
    return [
        (shape, margin, layout)
        for shape, margin, layout in (every if takes_all else covering(every))
        if not check_slices(
            kernel,
            Launch(kernel.family.problem(*shape, "float16", layout), config, gpu),
            margin,
            device,
        ).passed
    ]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("kernel_id", [name for name in discover() if name.startswith("matmul.")])
def test_slices_of_larger_tensors_are_multiplied_right(
    request, kernel_id, device, all_combinations
):
    session = request.getfixturevalue("gpu" if device == "cuda" else "session")
    takes_all = all_combinations or device == "cuda"
    assert session.call_runner(functools.partial(check_cases, kernel_id, device, takes_all)) == []
