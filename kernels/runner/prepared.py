"""One launch made ready: fresh inputs, a poisoned output, and what the kernel does to numbers. Torch; in the worker."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernels import discover
from kernels.experiment import Experiment
from kernels.results import Check, Diff
from kernels.runner.check import Arithmetic, check
from kernels.spec import DTYPE_BYTES, Kernel, Launch

if TYPE_CHECKING:
    from kernels.gpus import Gpu


def interprets() -> bool:
    """Whether this process runs kernels under Triton's interpreter: fixed when it starts."""
    return os.environ["TRITON_INTERPRET"] == "1"


@dataclass
class Prepared:
    """Tensors of one launch, as the kernel sees them: views, where they are stored as their transpose."""

    experiment: Experiment
    kernel: Kernel
    gpu: Gpu
    inputs: dict[str, Any]
    output: Any

    @property
    def setting(self) -> Launch:
        return Launch(self.experiment.problem, self.experiment.config, self.gpu)

    def launch(self) -> Any:
        """Launch once, and return without waiting: Triton's compiled kernel, where one was launched."""
        setting, kernel = self.setting, self.kernel
        tensors = {**self.inputs, kernel.family.output(setting.problem): self.output}
        return kernel.jitted[kernel.grid(setting)](**kernel.arguments(tensors, setting))

    def check(self) -> tuple[Check, Diff]:
        """Compare the launched output with the reference."""
        family, tile = self.kernel.family, self.kernel.output_tile(self.setting)
        return check(self.output, self.inputs, family.reference, self.arithmetic, tile)

    @property
    def arithmetic(self) -> Arithmetic:
        """What the kernel does to numbers here."""
        problem, on_gpu = self.experiment.problem, not interprets()
        operands = "exact"
        # Small whole numbers lose no bits as tf32. Matrix units multiply float32 from compute capability 8.0 on.
        if problem.dtype == "float32" and self.experiment.run.distribution not in ("integers", "zeros"):
            precision = getattr(problem, "precision", "ieee")
            matrix_units = on_gpu and self.gpu.compute_capability >= (8, 0)
            if precision == "tf32_rounded" or (precision in ("tf32", "tf32x3") and matrix_units):
                operands = precision
        return Arithmetic(
            dtype=problem.dtype,
            reduction=self.kernel.family.reduction(problem),
            operands=operands,
            roundings=self.kernel.roundings(self.setting),
            coarse_sums=DTYPE_BYTES[problem.dtype] == 1 and on_gpu and self.gpu.compute_capability < (10, 0),
        )


def prepare(experiment: Experiment, gpu: Gpu) -> Prepared:
    """Make fresh inputs from the experiment's seed, and an output of NaN (or zeros, where the kernel adds to it)."""
    import torch

    kernel = discover()[experiment.kernel]
    device = "cpu" if interprets() else "cuda"
    dtype = getattr(torch, experiment.problem.dtype)
    specs = kernel.family.tensors(experiment.problem)
    generator = torch.Generator(device).manual_seed(experiment.run.seed)
    inputs = {}
    for name, spec in specs.items():
        if spec.is_input:
            stored = _values(experiment.run.distribution, spec.stored, generator, device).to(dtype)
            inputs[name] = stored.t() if spec.transposed else stored
    shape = specs[kernel.family.output(experiment.problem)].shape
    return Prepared(experiment, kernel, gpu, inputs, empty_output(kernel, shape, dtype, device))


def empty_output(kernel: Kernel, shape: tuple[int, int], dtype: Any, device: Any) -> Any:
    """An output that nothing was written to yet: NaN everywhere, zeros where the kernel accumulates."""
    import torch

    return torch.empty(shape, dtype=dtype, device=device).fill_(0.0 if kernel.zeroed_output else float("nan"))


def _values(distribution: str, shape: tuple[int, int], generator: Any, device: str) -> Any:
    """float32 values: normal (0, 1), uniform in [-1, 1), integers from -4 to 4, or zeros."""
    import torch

    empty = torch.empty(shape, dtype=torch.float32, device=device)
    if distribution == "normal":
        return empty.normal_(generator=generator)
    if distribution == "uniform":
        return empty.uniform_(-1, 1, generator=generator)
    if distribution == "integers":
        return empty.random_(-4, 5, generator=generator)
    return empty.zero_()
