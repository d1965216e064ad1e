"""Which config a kernel is benchmarked with: one place, that everything asks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernels.results import RunResult
    from kernels.spec import Kernel


def chosen(kernel: Kernel, problem: Any, gpu: str) -> tuple[Any, str]:
    """The config of the fastest recorded run that is most like this, and where that is from; else the default.

    Runs of the same kernel and type are alike. Nearer in shape counts first, then the same GPU, then speed.

    Args:
        problem: of the kernel's family.
        gpu: a name of the GPU table.
    """
    from kernels import records
    from kernels.runner.measurements.run_measurement import RUN

    def apart(one: Any) -> tuple[float, bool, float]:
        run: RunResult = one.measured
        assert run.timing is not None
        speed = (run.timing.tflops or 0) + (run.timing.gbps or 0)
        return _distance(run.experiment.problem, problem), one.gpu != gpu, -speed

    alike = [
        one
        for one in records.shipped(RUN.form)
        if one.measured.experiment.kernel == kernel.id
        and one.measured.timing
        and one.measured.experiment.problem.dtype == problem.dtype
    ]
    if not alike:
        return kernel.config(), "default"
    best = min(alike, key=apart)
    sizes = " × ".join(str(size) for size in _sides(best.measured.experiment.problem))
    return best.measured.experiment.config, f"recorded on {best.gpu} for {sizes}"


def _sides(problem: Any) -> list[int]:
    return [size for size in vars(problem).values() if isinstance(size, int)]


def _distance(one: Any, other: Any) -> float:
    """How far two shapes are from each other: powers of two, over all sides."""
    return sum(abs(math.log2(a / b)) for a, b in zip(_sides(one), _sides(other), strict=True))
