"""One launch, prepared: fresh inputs, a poisoned output, and the error that rounding allows. Torch; in the worker."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernels import discover
from kernels.experiment import Experiment
from kernels.measuring.check import check, require_memory
from kernels.numerics import values
from kernels.results import Check, Diff
from kernels.spec import Allowance, Kernel, Launch, Rounding

if TYPE_CHECKING:
    from kernels.gpus import Gpu


def interprets() -> bool:
    """Return whether this process runs kernels under Triton's interpreter. This is fixed when the process starts."""
    return os.environ["TRITON_INTERPRET"] == "1"


@dataclass
class Prepared:
    """The tensors of one launch as the kernel addresses them: a transposed operand is a view of what is stored."""

    experiment: Experiment
    kernel: Kernel
    gpu: Gpu
    inputs: dict[str, Any]
    output: Any

    @property
    def setting(self) -> Launch:
        return Launch(self.experiment.problem, self.experiment.config, self.gpu)

    def launch(self) -> Any:
        """Launch once without waiting. Return Triton's compiled kernel, unless interpreted."""
        return self.ready()()

    def ready(self) -> Callable[[], Any]:
        """Return the launch with its grid and arguments bound, to call in a loop."""
        setting, kernel = self.setting, self.kernel
        tensors = {**self.inputs, kernel.family.output(setting.problem): self.output}
        return functools.partial(kernel.jitted[kernel.grid(setting)], **kernel.arguments(tensors, setting))

    def check(self) -> tuple[Check, Diff]:
        """Compare the output with the reference."""
        tile = self.kernel.output_tile(self.setting)
        return check(self.output, self.inputs, self.kernel.family, self.allowance, tile)

    @property
    def allowance(self) -> Allowance | None:
        """The error that rounding explains; None if the output must equal the reference."""
        kernel, setting = self.kernel, self.setting
        if kernel.family.allowance is None:
            return None
        distribution = self.experiment.run.distribution
        return kernel.family.allowance(Rounding(setting, kernel.roundings(setting), distribution, interprets()))


def prepare(experiment: Experiment, gpu: Gpu) -> Prepared:
    """Make inputs from the experiment's seed, and an output of NaN, or of zeros for a kernel that accumulates into it.

    Raises:
        InsufficientMemory: before anything is allocated.
    """
    import torch

    kernel = discover()[experiment.kernel]
    device = "cpu" if interprets() else "cuda"
    dtype = getattr(torch, experiment.problem.dtype)
    specs = kernel.family.tensors(experiment.problem)
    if device == "cuda":
        held = peak = 0  # values are drawn in float32 and then converted, one tensor at a time
        for spec in specs.values():
            elements = math.prod(spec.stored)
            held += elements * dtype.itemsize
            peak = max(peak, held + (4 * elements if spec.is_input and dtype.itemsize != 4 else 0))
        require_memory(peak, "These tensors")
    generator = torch.Generator(device).manual_seed(experiment.run.seed)
    inputs = {}
    for name, spec in specs.items():
        if spec.is_input:
            stored = values(experiment.run.distribution, spec.stored, generator, device).to(dtype)
            inputs[name] = stored.t() if spec.transposed else stored
    shape = specs[kernel.family.output(experiment.problem)].shape
    poison = 0.0 if kernel.zeroed_output else float("nan")
    return Prepared(experiment, kernel, gpu, inputs, torch.empty(shape, dtype=dtype, device=device).fill_(poison))
