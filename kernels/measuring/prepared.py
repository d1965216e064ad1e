"""One launch made ready: fresh inputs, a poisoned output, and what its error may be. Torch; in the worker."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernels import discover
from kernels.experiment import Experiment
from kernels.measuring.check import check
from kernels.measuring.device_memory import refuse_what_does_not_fit
from kernels.numerics import values
from kernels.results import Check, Diff
from kernels.spec import Allowance, Kernel, Launch, Rounding, TensorSpec

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
        return self.ready()()

    def ready(self) -> Callable[[], Any]:
        """The launch with its grid and arguments worked out: what a loop of somebody's own would repeat."""
        setting, kernel = self.setting, self.kernel
        tensors = {**self.inputs, kernel.family.output(setting.problem): self.output}
        return functools.partial(kernel.jitted[kernel.grid(setting)], **kernel.arguments(tensors, setting))

    def check(self) -> tuple[Check, Diff]:
        """Compare the launched output with the reference."""
        tile = self.kernel.output_tile(self.setting)
        return check(self.output, self.inputs, self.kernel.family, self.allowance, tile)

    @property
    def allowance(self) -> Allowance | None:
        """What rounding explains here; None where the output must equal the reference."""
        kernel, setting = self.kernel, self.setting
        if kernel.family.allowance is None:
            return None
        distribution = self.experiment.run.distribution
        return kernel.family.allowance(Rounding(setting, kernel.roundings(setting), distribution, interprets()))


def prepare(experiment: Experiment, gpu: Gpu) -> Prepared:
    """Make fresh inputs from the experiment's seed, and an output of NaN (or zeros, where the kernel adds to it).

    Raises:
        DoesNotFit: before anything is allocated.
    """
    import torch

    kernel = discover()[experiment.kernel]
    device = "cpu" if interprets() else "cuda"
    dtype = getattr(torch, experiment.problem.dtype)
    specs = kernel.family.tensors(experiment.problem)
    if device == "cuda":
        refuse_what_does_not_fit(_most_bytes(specs.values(), dtype.itemsize), "These tensors")
    generator = torch.Generator(device).manual_seed(experiment.run.seed)
    inputs = {}
    for name, spec in specs.items():
        if spec.is_input:
            stored = values(experiment.run.distribution, spec.stored, generator, device).to(dtype)
            inputs[name] = stored.t() if spec.transposed else stored
    shape = specs[kernel.family.output(experiment.problem)].shape
    return Prepared(experiment, kernel, gpu, inputs, empty_output(kernel, shape, dtype, device))


def _most_bytes(specs: Iterable[TensorSpec], item_bytes: int) -> int:
    """What making the tensors takes at most at a time: values are drawn in float32, and then converted."""
    held = most = 0
    for spec in specs:
        elements = math.prod(spec.stored)
        held += elements * item_bytes
        most = max(most, held + (4 * elements if spec.is_input and item_bytes != 4 else 0))
    return most


def empty_output(kernel: Kernel, shape: tuple[int, int], dtype: Any, device: Any) -> Any:
    """An output that nothing was written to yet: NaN everywhere, zeros where the kernel accumulates."""
    import torch

    return torch.empty(shape, dtype=dtype, device=device).fill_(0.0 if kernel.zeroed_output else float("nan"))
