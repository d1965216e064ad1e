"""Run every kernel that takes strides on operands that are slices of larger tensors, in every layout. In a worker."""

from __future__ import annotations

import itertools
from typing import NamedTuple

# Two tiles by two and three steps of K, with ragged edges; two tiles and two steps, in whole vectors of 8.
SHAPES = ((33, 35, 77), (40, 24, 48))


class Case(NamedTuple):
    what: str
    kernel: str
    passed: bool


def sliced(tensor, margin):
    """The same values in a window of a larger tensor, whose other elements are not finite."""
    import torch

    rows, columns = tensor.shape
    larger = torch.full((rows + 3, columns + margin), float("nan"), device=tensor.device).to(tensor.dtype)
    window = larger[2 : 2 + rows, margin // 2 : margin // 2 + columns]
    window.copy_(tensor)
    return window


def run(kernel, launch, margin, device):
    """Launch on slices, and check."""
    import torch

    from kernels.measuring.check import check

    dtype = getattr(torch, launch.problem.dtype)
    generator = torch.Generator(device).manual_seed(7)
    output = kernel.family.output(launch.problem)
    tensors = {}
    for name, spec in kernel.family.tensors(launch.problem).items():
        values = torch.randn(spec.stored, generator=generator, device=device)
        values = values if spec.is_input else torch.full_like(values, 0.0 if kernel.zeroed_output else float("nan"))
        stored = sliced(values.to(dtype), margin)
        tensors[name] = stored.t() if spec.transposed else stored
    kernel.jitted[kernel.grid(launch)](**kernel.arguments(tensors, launch))
    allowed = kernel.family.allowance(launch, kernel.roundings(launch), "normal", device == "cpu")
    inputs = {name: tensor for name, tensor in tensors.items() if name != output}
    return check(tensors[output], inputs, kernel.family, allowed)[0]


def cases(backend, takes_all):
    """Of all combinations, or of every pair of shape, margin and layout."""
    from kernels import discover
    from kernels.gpus import GPUS, this_gpu
    from kernels.matmul.problem import LAYOUTS
    from kernels.spec import Launch
    from tests.covering import covering

    gpu = this_gpu() if backend == "cuda" else GPUS["H200"]
    found = []
    for kernel in discover().values():
        if "stride_am" not in getattr(kernel.jitted, "arg_names", ()):
            continue
        split = {"SPLIT_K": 1 if "race" in kernel.id else 2} if hasattr(kernel.config, "SPLIT_K") else {}
        every = list(itertools.product(SHAPES, (5, 16), LAYOUTS))
        for shape, margin, layout in every if takes_all else covering(every):
            problem = kernel.family.problem(*shape, "float16", layout)
            config = kernel.config(BLOCK_M=32, BLOCK_N=32, BLOCK_K=32, **split)
            result = run(kernel, Launch(problem, config, gpu), margin, "cuda" if backend == "cuda" else "cpu")
            found.append(Case(f"{kernel.id} {shape} {layout}, {margin} columns more", kernel.id, result.passed))
    return found
