"""How unlike the SMs and programs of a launch are expected to be, from its pressure on the L2: as timelines show."""

from __future__ import annotations

import numpy as np

from kernels.gpus import Gpu
from kernels.spec import DTYPE_BYTES, Kernel, Launch
from visualize.predict.bounds import l2_gbps
from visualize.predict.dispatch import Pace
from visualize.predict.reuse_constants import CONSTANTS, Constants


def expected_pace(
    kernel: Kernel, launch: Launch, programs_per_sm: int, l2_pressure: float, constants: Constants = CONSTANTS
) -> Pace:
    """The pace of a launch's programs; without a pressure on the L2, that of lockstep.

    Args:
        l2_pressure: the time that the L2 needs, over that of the next slowest resource.
    """
    if not l2_pressure:
        return Pace()
    runs_ahead = ahead(launch.gpu, l2_pressure, constants)
    by_age = 0.0
    if programs_per_sm > 1:
        room = max(0.0, constants.age_until - runs_ahead)
        by_age = constants.by_age * programs_per_sm**constants.age_power * room
        by_age *= constants.strided if _is_strided(kernel, launch, constants) else 1.0
    pressures, spreads = zip(*constants.spread, strict=True)
    spread = float(np.interp(l2_pressure, pressures, spreads))
    return Pace(runs_ahead, spread, by_age, constants.jitter * l2_pressure)


def ahead(gpu: Gpu, l2_pressure: float, constants: Constants = CONSTANTS) -> float:
    """By how much of a tile's time some SMs run ahead, where the L2 needs `l2_pressure` times as long as the next."""
    rate = l2_gbps(gpu) / gpu.sms
    slow, asked = constants.slow_rate * rate, l2_pressure * rate
    known, received = constants.asked_gbps, constants.received_gbps
    slope = (received[-1] - received[-2]) / (known[-1] - known[-2])
    most = float(np.interp(asked, known, received)) + max(0.0, asked - known[-1]) * slope
    return min(1 - slow / most, constants.most_ahead) if most > slow else 0.0


def _is_strided(kernel: Kernel, launch: Launch, constants: Constants) -> bool:
    """Whether rows of an input lie so far apart that they compete for the same parts of the L2."""
    tensors, size = kernel.family.tensors(launch.problem), DTYPE_BYTES[launch.problem.dtype]
    read = [tensors[name] for name in kernel.family.panels or ()]
    return any(one.stored[1] * size % constants.stride_bytes == 0 for one in read)
