"""How long does it take? Kernel and library in turns, every launch queued before the first one starts.

A launch from Python takes longer than a small kernel runs, so events around it would time the launch. Here the
stream is first held by a spinning kernel, everything is queued behind it, and a batch whose queue ran dry
before it was full is thrown away and repeated behind a longer spin. Torch; runs in the worker.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels.results import Timing

BUDGET_MS = 200.0
MOST_MS = 10_000.0
MIN_SAMPLES, MAX_SAMPLES, BATCH = 10, 200, 20
_LONGEST_SPIN_CYCLES = 1 << 32


@dataclass(frozen=True)
class Samples:
    """Milliseconds of each launch, (calls, samples), taken in turns; the SM clock read meanwhile, or why it wasn't."""

    times_ms: np.ndarray
    clock_mhz: int | None
    clock_note: str


def timing(samples_ms: np.ndarray, work: int, minimal_bytes: int) -> Timing:
    """Median and spread of `samples_ms`; the rate of `work` operations or, where there are none, of `minimal_bytes`."""
    p20, median, p80 = (float(x) for x in np.percentile(samples_ms, (20, 50, 80)))
    return Timing(
        median_ms=median,
        p20_ms=p20,
        p80_ms=p80,
        samples=len(samples_ms),
        tflops=work / median / 1e9 if work else None,
        gbps=None if work else minimal_bytes / median / 1e6,
    )


def in_turns(calls: Sequence[Callable[[], Any]], l2: str, timer: str) -> Samples:
    """Time some launches, one after the other, again and again.

    Args:
        calls: each launches on the current stream and returns without waiting.
        l2: "warm" (launches follow each other) or "cold" (other data is read through the L2 before each. Read, not
            written: dirty lines would be written back during the launch that is timed).
        timer: "events" (launched one by one) or "graph" (captured once and replayed).
    """
    flush = _flusher() if l2 == "cold" else None
    for call in calls:
        call()
    stream = _HeldStream()
    one_turn_ms = stream.batch_ms(calls, flush, 3, None)[0].sum(axis=0).mean()
    fewest = min(MIN_SAMPLES, max(3, int(MOST_MS / one_turn_ms)))
    count = int(min(MAX_SAMPLES, max(fewest, BUDGET_MS / max(one_turn_ms, 1e-3))))
    replay = _captured(calls, flush, min(count, BATCH)) if timer == "graph" else None
    batches: list[np.ndarray] = []
    clocks: list[int] = []
    note = ""
    while sum(batch.shape[1] for batch in batches) < count:
        batch, clock, note = stream.batch_ms(calls, flush, min(count, BATCH), replay)
        batches.append(batch)
        if clock:
            clocks.append(clock)
    return Samples(np.concatenate(batches, axis=1), int(np.median(clocks)) if clocks else None, note)


def in_a_row(calls: Sequence[Callable[[], Any]], l2: str) -> Samples:
    """Time some launches once each, one after the other, every one queued before the first starts.

    Args:
        calls, l2: as of `in_turns`.
    """
    flush = _flusher() if l2 == "cold" else None
    for call in calls:
        call()
    return Samples(*_HeldStream().batch_ms(calls, flush, 1, None))


def _events(launches: int, external: bool) -> list[Any]:
    import torch

    return [torch.cuda.Event(enable_timing=True, external=external) for _ in range(2 * launches)]


def _queue(calls: Sequence[Callable[[], Any]], flush: Any, events: list[Any]) -> None:
    for place, call in zip(range(0, len(events), 2), itertools.cycle(calls), strict=False):
        if flush is not None:
            flush()
        events[place].record()
        call()
        events[place + 1].record()


def _captured(calls: Sequence[Callable[[], Any]], flush: Any, turns: int) -> tuple[Any, list[Any]]:
    """A CUDA graph of `turns` turns, and the events inside it."""
    import torch

    events = _events(turns * len(calls), external=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _queue(calls, flush, events)
    return graph, events


class _HeldStream:
    """The current stream, held by a spinning kernel while a batch is queued. How long a spin that takes is kept."""

    def __init__(self) -> None:
        self._spin_cycles = 1 << 21

    def batch_ms(
        self, calls: Sequence[Callable[[], Any]], flush: Any, turns: int, replay: tuple[Any, list[Any]] | None
    ) -> tuple[np.ndarray, int | None, str]:
        """Times of one batch, (calls, turns) milliseconds, and the clock while it ran.

        Raises:
            RuntimeError: where the queue runs dry before it is full, however long the stream is held.
        """
        import torch

        while True:
            torch.cuda.synchronize()
            torch.cuda._sleep(self._spin_cycles)
            held = torch.cuda.Event()
            held.record()
            if replay is None:
                events = _events(turns * len(calls), external=False)
                _queue(calls, flush, events)
            else:
                graph, events = replay
                graph.replay()
            queue_was_full = not held.query()
            clock, note = _sm_clock_mhz()
            torch.cuda.synchronize()
            if queue_was_full or replay is not None:
                times = [events[i].elapsed_time(events[i + 1]) for i in range(0, len(events), 2)]
                return np.array(times).reshape(-1, len(calls)).T, clock, note
            if self._spin_cycles >= _LONGEST_SPIN_CYCLES:
                raise RuntimeError(f"{len(events)} events could not be queued within {self._spin_cycles} cycles.")
            self._spin_cycles *= 4


def _flusher() -> Callable[[], Any]:
    """A call that reads twice the L2's capacity."""
    import torch

    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    other = torch.zeros(max(1, 2 * l2_bytes // 4), dtype=torch.float32, device="cuda")
    result = torch.empty((), dtype=torch.float32, device="cuda")
    return lambda: torch.sum(other, dim=0, out=result)


def _sm_clock_mhz() -> tuple[int | None, str]:
    import torch

    try:
        return int(torch.cuda.clock_rate()), ""
    except Exception as reason:  # NVML raises its own kinds, and not every host lets it be asked
        return None, f"The SM clock could not be read: {reason}"


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
