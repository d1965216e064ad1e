"""How long does it take? Some launches in turns, on this GPU. Torch; runs in the worker."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kernels.measuring.held_stream import HeldStream
from kernels.measuring.sampling import STUDY, Effort, Samples, sampled


def in_turns(calls: Sequence[Callable[[], Any]], l2: str, timer: str, effort: Effort = STUDY) -> Samples:
    """Time some launches again and again, each once a turn, in an order that is drawn anew for each.

    Args:
        calls, l2, timer: as of HeldStream.
        effort: when enough times are taken.
    """
    return sampled(HeldStream(calls, l2, timer), effort)


def in_a_row(calls: Sequence[Callable[[], Any]], l2: str) -> np.ndarray:
    """Time some launches once each, every one queued before the first starts: (calls,) milliseconds.

    Args:
        calls, l2: as of HeldStream.
    """
    return HeldStream(calls, l2, "events").one_after_the_other()


def best_ms(call: Callable[[], Any], repeats: int = 8) -> float:
    """The fastest of a few launches: for a device's peak, where the best is what is asked for."""
    import torch

    call()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return min(times) if times else math.nan
