"""The current stream, held by a spinning kernel while launches are queued, so that no time holds Python's.

A launch from Python takes longer than a small kernel runs, so events around it would time the launch. Here everything
is queued behind a spin, and a batch whose queue ran dry before it was full is thrown away and repeated behind a longer
one. Torch; runs in the worker.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kernels.runner.clocks import Probe, nvml
from kernels.runner.sampling import Batch

# A launch between two events of its own takes a microsecond or two more than in a graph without them. Where that
# shows, timer "graph" takes one time of so many launches.
SHORT_MS, LAUNCHES_PER_GRAPH = 0.05, 20

# The spin takes so many times what the launches of a batch are taken to take, at a clock that no GPU exceeds by much.
_MARGIN, _CYCLES_PER_S = 1.5, 2e9

# Seconds that a launch between its two events takes from Python, before any was timed; and what it may be taken for.
_LAUNCH_S, _LEAST_S, _MOST_S = 40e-6, 10e-6, 100e-6

# Seconds to queue a graph, whatever is in it: more than it takes.
_REPLAY_S = 700e-6

_LONGEST_SPIN_CYCLES = 1 << 32


class HeldStream:
    """A `sampling.Stream` on this GPU.

    Attributes:
        launch_s: seconds that a launch took from Python when some were queued last in this process, bounded: a batch
            whose queue ran dry is discarded.

    Args:
        calls: each launches on the current stream and returns without waiting.
        l2: "warm" (launches follow each other) or "cold" (other data is read through the L2 before each. Read, not
            written: dirty lines would be written back during the launch that is timed).
        timer: "events" (launched one by one) or "graph" (captured once and replayed). In a graph with a warm L2, where
            each call takes less than SHORT_MS, one time is that of LAUNCHES_PER_GRAPH launches of one call in a row.
    """

    launch_s = _LAUNCH_S

    def __init__(self, calls: Sequence[Callable[[], Any]], l2: str, timer: str) -> None:
        self._calls = calls
        self._flush = flusher() if l2 == "cold" else None
        self._is_graph = timer == "graph"
        self._captured: tuple[int, Any, list[Any]] | None = None
        self._probe = Probe()
        self._driver = nvml()
        self.driver_note = self._driver if isinstance(self._driver, str) else ""
        self.launches_per_sample = 1
        for call in calls:
            call()
        if self._is_graph and self._flush is None and self._launched(3, None)[0].max() < SHORT_MS:
            self.launches_per_sample = LAUNCHES_PER_GRAPH

    def batch(self, turns: int) -> Batch:
        """Launch each call once a turn, and time it.

        Raises:
            RuntimeError: where the queue runs dry before it is full, however long the stream is held.
        """
        times_ms, driver_mhz, limits = self._launched(turns, self._graph(turns) if self._is_graph else None)
        return Batch(times_ms / self.launches_per_sample, self._probe.megahertz(), driver_mhz, limits)

    def _launched(
        self, turns: int, graph: tuple[Any, list[Any]] | None
    ) -> tuple[np.ndarray, float | None, tuple[str, ...]]:
        """Queue turns, or a graph of them, behind a spin.

        Returns:
            Milliseconds of each sample, (calls, turns); the driver's clock, and what limits it, while they run.
        """
        import torch

        launches = turns * len(self._calls) * self.launches_per_sample
        queued_s = launches * HeldStream.launch_s if graph is None else _REPLAY_S
        spin_cycles = int(_MARGIN * queued_s * _CYCLES_PER_S)
        while True:
            torch.cuda.synchronize()
            torch.cuda._sleep(spin_cycles)
            held = torch.cuda.Event()
            held.record()
            self._probe.launch(0)
            if graph is None:
                events = _events(turns * len(self._calls), external=False)
                began = time.perf_counter()
                self._queue(events)
                HeldStream.launch_s = min(_MOST_S, max(_LEAST_S, (time.perf_counter() - began) / launches))
            else:
                replayed, events = graph
                replayed.replay()
            self._probe.launch(1)
            queue_was_full = not held.query()
            driver_mhz, limits = self._asked()
            torch.cuda.synchronize()
            if queue_was_full or graph is not None:
                times = [events[i].elapsed_time(events[i + 1]) for i in range(0, len(events), 2)]
                return np.array(times).reshape(-1, len(self._calls)).T, driver_mhz, limits
            if spin_cycles >= _LONGEST_SPIN_CYCLES:
                raise RuntimeError(f"{len(events)} events could not be queued within {spin_cycles} cycles.")
            spin_cycles *= 4

    def _asked(self) -> tuple[float | None, tuple[str, ...]]:
        """What the driver says of the clock now."""
        if isinstance(self._driver, str):
            return None, ()
        return self._driver.clock_mhz(), self._driver.limits()

    def _queue(self, events: list[Any]) -> None:
        for place, call in zip(range(0, len(events), 2), itertools.cycle(self._calls), strict=False):
            if self._flush is not None:
                self._flush()
            events[place].record()
            for _ in range(self.launches_per_sample):
                call()
            events[place + 1].record()

    def _graph(self, turns: int) -> tuple[Any, list[Any]]:
        """A CUDA graph of some turns, and the events inside it. The last one is kept: each holds memory of its own."""
        import torch

        if self._captured is None or self._captured[0] != turns:
            self._captured = None
            events = _events(turns * len(self._calls), external=True)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._queue(events)
            self._captured = turns, graph, events
        return self._captured[1:]


def _events(samples: int, external: bool) -> list[Any]:
    import torch

    return [torch.cuda.Event(enable_timing=True, external=external) for _ in range(2 * samples)]


def flusher(capacities: int = 2) -> Callable[[], Any]:
    """A call that reads some of the L2's capacities of other data through it."""
    import torch

    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    other = torch.zeros(max(1, capacities * l2_bytes // 4), dtype=torch.float32, device="cuda")
    result = torch.empty((), dtype=torch.float32, device="cuda")
    return lambda: torch.sum(other, dim=0, out=result)
