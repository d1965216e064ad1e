"""What one call from Python costs, on the host's clock: to enqueue a launch, and to wait for it. No CUDA here."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from kernels.results import LaunchOverhead

# Calls of each kind, fewer where the kernel takes long: no more than the GPU's queue holds (about 1,000 launches), so
# that no call waits for room in it.
_MOST_ENQUEUED, _MOST_WAITED, _FEWEST = 200, 50, 5
_BUDGET_MS = 100.0


def launch_overhead(
    call: Callable[[], Any],
    synchronize: Callable[[], Any],
    kernel_ms: float,
    now: Callable[[], float] = time.perf_counter,
) -> LaunchOverhead:
    """Call many times without waiting, then one at a time.

    Args:
        call: launches, and returns without waiting.
        synchronize: waits until all launches have ended.
        kernel_ms: how long the launch takes.
        now: seconds.
    """
    affordable = int(_BUDGET_MS / kernel_ms)
    enqueued = max(_FEWEST, min(_MOST_ENQUEUED, affordable))
    waited = max(_FEWEST, min(_MOST_WAITED, affordable))
    synchronize()
    enqueue_ms = [_taken_ms(call, now) for _ in range(enqueued)]
    synchronize()

    def call_and_wait() -> None:
        call()
        synchronize()

    synchronized_ms = [_taken_ms(call_and_wait, now) for _ in range(waited)]
    return LaunchOverhead(statistics.median(enqueue_ms), statistics.median(synchronized_ms), enqueued)


def _taken_ms(call: Callable[[], Any], now: Callable[[], float]) -> float:
    began = now()
    call()
    return (now() - began) * 1000
