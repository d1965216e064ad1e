"""The current stream, held by a spinning kernel while launches are queued, so that no time holds Python's.

A launch from Python takes longer than a small kernel runs, so events around it would time the launch. Here everything
is queued behind a spin, and a batch whose queue ran dry before it was full is thrown away and repeated behind a longer
one.

In each turn the calls are launched in an order that is drawn anew. What one launch leaves in the L2 makes the next one
faster or slower, so that launches can alternate between two times for as long as they go on: of one copy of 64 MiB
beside itself, always in the same order, an H100 gives a ratio between 0.976 and 1.019, and most intervals of 95 % leave
1 out. Torch; runs in the worker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kernels.measuring.clocks import Probe, nvml
from kernels.measuring.sampling import MOST_TURNS, Batch

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

# The queue takes about a thousand launches and events: a launch and its two events for each time, with a cold L2 one
# launch more. Python waits where it is full, and the spin would be over first.
_QUEUED, _QUEUED_WARM, _QUEUED_COLD = 960, 3, 4


class HeldStream:
    """A `sampling.Stream` on this GPU.

    Attributes:
        most_turns: of a batch: as many as the queue takes. A graph is one entry.
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
        self._captured: tuple[int, Any, list[Any], np.ndarray] | None = None
        self._dice = np.random.default_rng(0)
        self._probe = Probe()
        self._driver = nvml()
        self.driver_note = self._driver if isinstance(self._driver, str) else ""
        queued = len(calls) * (_QUEUED_COLD if self._flush else _QUEUED_WARM)
        self.most_turns = MOST_TURNS if self._is_graph else max(1, min(MOST_TURNS, _QUEUED // queued))
        self.launches_per_sample = 1
        for call in calls:
            call()
        if self._is_graph and self._flush is None and self._launched(self._drawn(3), None)[0].max() < SHORT_MS:
            self.launches_per_sample = LAUNCHES_PER_GRAPH

    def batch(self, turns: int) -> Batch:
        """Launch each call once a turn, and time it.

        Raises:
            RuntimeError: where the queue runs dry before it is full, however long the stream is held.
        """
        graph = self._graph(turns) if self._is_graph else None
        times_ms, driver_mhz, limits = self._launched(graph[2] if graph else self._drawn(turns), graph)
        return Batch(times_ms / self.launches_per_sample, self._probe.megahertz(), driver_mhz, limits)

    def one_after_the_other(self) -> np.ndarray:
        """Launch each call once, as they come, without a graph: (calls,) milliseconds.

        Raises:
            RuntimeError: as `batch`.
        """
        return self._launched(np.arange(len(self._calls))[np.newaxis], None)[0][:, 0]

    def _launched(
        self, order: np.ndarray, graph: tuple[Any, list[Any], np.ndarray] | None
    ) -> tuple[np.ndarray, float | None, tuple[str, ...]]:
        """Queue turns, or a graph of them, behind a spin.

        Args:
            order: of the calls in each turn, by number: (turns, calls).

        Returns:
            Milliseconds of each sample, (calls, turns); the driver's clock, and what limits it, while they run.
        """
        import torch

        launches = order.size * self.launches_per_sample
        queued_s = launches * HeldStream.launch_s if graph is None else _REPLAY_S
        spin_cycles = int(_MARGIN * queued_s * _CYCLES_PER_S)
        while True:
            torch.cuda.synchronize()
            torch.cuda._sleep(spin_cycles)
            held = torch.cuda.Event()
            held.record()
            self._probe.launch(0)
            if graph is None:
                events = _events(order.size, external=False)
                began = time.perf_counter()
                self._queue(events, order)
                HeldStream.launch_s = min(_MOST_S, max(_LEAST_S, (time.perf_counter() - began) / launches))
            else:
                replayed, events, _ = graph
                replayed.replay()
            self._probe.launch(1)
            queue_was_full = not held.query()
            driver_mhz, limits = self._asked()
            torch.cuda.synchronize()
            if queue_was_full or graph is not None:
                queued = np.array([events[i].elapsed_time(events[i + 1]) for i in range(0, len(events), 2)])
                times_ms = np.empty(order.shape)
                np.put_along_axis(times_ms, order, queued.reshape(order.shape), axis=1)
                return times_ms.T, driver_mhz, limits
            if spin_cycles >= _LONGEST_SPIN_CYCLES:
                raise RuntimeError(f"{len(events)} events could not be queued within {spin_cycles} cycles.")
            spin_cycles *= 4

    def _asked(self) -> tuple[float | None, tuple[str, ...]]:
        """What the driver says of the clock now."""
        if isinstance(self._driver, str):
            return None, ()
        return self._driver.clock_mhz(), self._driver.limits()

    def _drawn(self, turns: int) -> np.ndarray:
        """An order for `_launched`."""
        return self._dice.permuted(np.tile(np.arange(len(self._calls)), (turns, 1)), axis=1)

    def _queue(self, events: list[Any], order: np.ndarray) -> None:
        for place, number in zip(range(0, len(events), 2), order.ravel(), strict=True):
            if self._flush is not None:
                self._flush()
            events[place].record()
            for _ in range(self.launches_per_sample):
                self._calls[number]()
            events[place + 1].record()

    def _graph(self, turns: int) -> tuple[Any, list[Any], np.ndarray]:
        """A CUDA graph of some turns, its events, and their order. The last one is kept: each holds memory."""
        import torch

        if self._captured is None or self._captured[0] != turns:
            self._captured = None
            graph, order = torch.cuda.CUDAGraph(), self._drawn(turns)
            events = _events(order.size, external=True)
            with torch.cuda.graph(graph):
                self._queue(events, order)
            self._captured = turns, graph, events, order
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
