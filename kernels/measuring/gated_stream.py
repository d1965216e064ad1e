"""Time launches that queue behind a spinning gate kernel, so that no time includes Python's. Torch; in the worker.

A launch from Python takes longer than a small kernel runs, so events around it would time the launch. Here everything
is queued behind a gate kernel that spins. If the gate opens before the queue is full, the batch is discarded and
repeated behind a longer spin.

Each turn launches the calls in a new random order. One launch leaves data in the L2 that speeds up or slows down the
next, so launches can alternate between two times indefinitely. For a 64 MiB copy timed against itself in a fixed order,
an H100 gives ratios between 0.976 and 1.019, and most 95 % intervals exclude 1.

Small probe launches before and after the timed ones read each SM's cycle counter, which runs on from launch to launch:
cycles over global time give the average clock between them.
"""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kernels.compiling.instrumented import CLOCK_FIELDS, read_clocks
from kernels.measuring.timing import MOST_TURNS, Batch

# A launch between two events takes a microsecond or two longer than in a graph without them. Below this duration, timer
# "graph" takes one sample per this many launches.
SHORT_MS, LAUNCHES_PER_GRAPH = 0.05, 20

# The gate spins this many times the expected queueing time, at a clock that no GPU exceeds by much.
_MARGIN, _CYCLES_PER_S = 1.5, 2e9

# Seconds to queue a launch with its two events from Python: the first estimate, and the bounds of later ones.
FIRST_LAUNCH_S, _MIN_LAUNCH_S, MAX_LAUNCH_S = 40e-6, 10e-6, 100e-6

# Seconds to queue a graph of any size, with a margin.
_REPLAY_S = 700e-6

_MAX_SPIN_CYCLES = 1 << 32

# The queue holds about 1,000 launches and events. A sample takes a launch and two events, and with a cold L2 one launch
# more. Python would wait for room in a full queue, and the gate would open first.
_QUEUED, _QUEUED_WARM, _QUEUED_COLD = 960, 3, 4

# Plausible GPU clocks in MHz. The timer of a slow GPU has steps of 1 µs: below 50 µs they would show in the second
# digit.
_PLAUSIBLE_MHZ = (50.0, 5000.0)
_SHORTEST_NS = 50_000

# Probe programs per SM: with several, each SM gets at least one, whatever the order.
_PROBES_PER_SM = 4

# NVML's function since driver 535, and before. The bits (nvml.h) that lower the clock; idle and a user's setting don't.
_REASONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
_LIMITS = {
    0x04: "power limit",
    0x08: "hardware slowdown",
    0x20: "temperature, by the driver",
    0x40: "temperature, by the hardware",
    0x80: "external power brake",
}
_NVML_CLOCK_SM = 1  # nvmlClockType_t


class GatedStream:
    """A `timing.Stream` on this GPU.

    Attributes:
        most_turns: turns per batch that fit in the queue. A graph is one entry.
        launch_s: seconds per launch from Python, as last measured in this process. It is bounded: a batch whose gate
            opened too early is discarded.

    Args:
        calls: each launches on the current stream and returns without waiting.
        l2: "warm" (launches follow each other) or "cold" (other data is read through the L2 before each. Read, not
            written: dirty lines would be written back during the timed launch).
        timer: "events" (launched one by one) or "graph" (captured once and replayed). In a graph with a warm L2, if
            each call takes less than SHORT_MS, a sample is LAUNCHES_PER_GRAPH consecutive launches of one call.
        flush_capacities: for a cold L2, bytes read before each launch, in L2 capacities.
        probe, driver: read the clock; by default this GPU's.
    """

    launch_s = FIRST_LAUNCH_S

    def __init__(
        self,
        calls: Sequence[Callable[[], Any]],
        l2: str,
        timer: str,
        flush_capacities: int = 2,
        probe: ClockProbe | None = None,
        driver: Nvml | None = None,
    ) -> None:
        self._calls = calls
        self._flush = _l2_flush(flush_capacities) if l2 == "cold" else None
        self._is_graph = timer == "graph"
        self._captured: tuple[int, Any, list[Any], np.ndarray] | None = None
        self._dice = np.random.default_rng(0)
        self._probe = probe or ClockProbe()
        self._driver = driver or open_nvml()
        self.driver_note = self._driver.note
        entries = len(calls) * (_QUEUED_COLD if self._flush else _QUEUED_WARM)
        self.most_turns = MOST_TURNS if self._is_graph else max(1, min(MOST_TURNS, _QUEUED // entries))
        self.launches_per_sample = 1
        for call in calls:
            call()
        if self._is_graph and self._flush is None and self._time(self._random_order(3))[0].max() < SHORT_MS:
            self.launches_per_sample = LAUNCHES_PER_GRAPH

    def batch(self, turns: int) -> Batch:
        """Launch each call once per turn, and time it.

        Raises:
            RuntimeError: if the longest spin ends before the queue is full.
        """
        if self._is_graph:
            graph, events, order = self._capture(turns)
            times_ms, driver_mhz, limits = self._time(order, graph, events)
        else:
            times_ms, driver_mhz, limits = self._time(self._random_order(turns))
        return Batch(times_ms / self.launches_per_sample, self._probe.megahertz(), driver_mhz, limits)

    def time_in_order(self) -> np.ndarray:
        """Launch each call once, in the given order, without a graph: (calls,) milliseconds.

        Raises:
            RuntimeError: as `batch`.
        """
        return self._time(np.arange(len(self._calls))[np.newaxis])[0][:, 0]

    def _time(
        self, order: np.ndarray, graph: Any = None, events: Sequence[Any] = ()
    ) -> tuple[np.ndarray, float | None, tuple[str, ...]]:
        """Queue turns, or a graph of them, behind the gate.

        Args:
            order: (turns, calls), the number of the call at each place.

        Returns:
            Milliseconds per sample, (calls, turns); the driver's clock and its limits during the batch.
        """
        import torch

        launches = order.size * self.launches_per_sample
        queueing_s = launches * GatedStream.launch_s if graph is None else _REPLAY_S
        spin_cycles = int(_MARGIN * queueing_s * _CYCLES_PER_S)
        while True:
            torch.cuda.synchronize()
            torch.cuda._sleep(spin_cycles)
            gate = torch.cuda.Event()
            gate.record()
            self._probe.launch(0)
            if graph is None:
                events = _events(order.size, external=False)
                began = time.perf_counter()
                self._queue(events, order)
                launch_s = (time.perf_counter() - began) / launches
                GatedStream.launch_s = min(MAX_LAUNCH_S, max(_MIN_LAUNCH_S, launch_s))
            else:
                graph.replay()
            self._probe.launch(1)
            was_closed = not gate.query()
            driver_mhz, limits = self._driver.clock_mhz(), self._driver.limits()
            torch.cuda.synchronize()
            if was_closed or graph is not None:
                queued = np.array([events[i].elapsed_time(events[i + 1]) for i in range(0, len(events), 2)])
                times_ms = np.empty(order.shape)
                np.put_along_axis(times_ms, order, queued.reshape(order.shape), axis=1)
                return times_ms.T, driver_mhz, limits
            if spin_cycles >= _MAX_SPIN_CYCLES:
                raise RuntimeError(f"{len(events)} events could not be queued within {spin_cycles} cycles.")
            spin_cycles *= 4

    def _random_order(self, turns: int) -> np.ndarray:
        return self._dice.permuted(np.tile(np.arange(len(self._calls)), (turns, 1)), axis=1)

    def _queue(self, events: Sequence[Any], order: np.ndarray) -> None:
        for place, number in zip(range(0, len(events), 2), order.ravel(), strict=True):
            if self._flush is not None:
                self._flush()
            events[place].record()
            for _ in range(self.launches_per_sample):
                self._calls[number]()
            events[place + 1].record()

    def _capture(self, turns: int) -> tuple[Any, list[Any], np.ndarray]:
        """Return a CUDA graph of some turns, its events and their order. Keeps only the latest: each holds memory."""
        import torch

        if self._captured is None or self._captured[0] != turns:
            self._captured = None
            graph, order = torch.cuda.CUDAGraph(), self._random_order(turns)
            events = _events(order.size, external=True)
            with torch.cuda.graph(graph):
                self._queue(events, order)
            self._captured = turns, graph, events, order
        return self._captured[1:]


def _events(samples: int, external: bool) -> list[Any]:
    import torch

    return [torch.cuda.Event(enable_timing=True, external=external) for _ in range(2 * samples)]


def _l2_flush(capacities: int) -> Callable[[], Any]:
    """Return a call that reads other data through the L2, a multiple of its capacity."""
    import torch

    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    other = torch.zeros(max(1, capacities * l2_bytes // 4), dtype=torch.float32, device="cuda")
    result = torch.empty((), dtype=torch.float32, device="cuda")
    return lambda: torch.sum(other, dim=0, out=result)


class ClockProbe:
    """Reads all SMs' cycle counters before and after the timed launches."""

    def __init__(self) -> None:
        import torch

        self._programs = _PROBES_PER_SM * torch.cuda.get_device_properties(0).multi_processor_count
        self._records = [
            torch.zeros((self._programs, len(CLOCK_FIELDS)), dtype=torch.int64, device="cuda") for _ in range(2)
        ]

    def launch(self, place: int) -> None:
        """Queue a reading: 0 before the timed launches, 1 after them."""
        read_clocks[(self._programs,)](self._records[place], num_warps=1)

    def megahertz(self) -> float | None:
        """Return the clock between the last two readings, which must have ended."""
        before, after = (record.cpu().numpy() for record in self._records)
        return clock_between(before, after)


def clock_between(before: np.ndarray, after: np.ndarray) -> float | None:
    """Return the clock in MHz between two readings: the median over SMs in both; None if none is plausible.

    Args:
        before, after: (programs, 4) int64, CLOCK_FIELDS of each program.
    """
    first, last = (
        {int(sm): (cycles, time_ns) for sm, cycles, time_ns, written in rows if written == 1}
        for rows in (before, after)
    )
    spans = np.array([np.subtract(last[sm], first[sm]) for sm in sorted(first.keys() & last.keys())]).reshape(-1, 2)
    spans = spans[spans[:, 1] >= _SHORTEST_NS]
    if not len(spans):
        return None
    clock = float(np.median(spans[:, 0] / spans[:, 1])) * 1000
    return clock if _PLAUSIBLE_MHZ[0] <= clock <= _PLAUSIBLE_MHZ[1] else None


class Nvml:
    """The driver's management library for one device.

    Args:
        uuid: the device, in NVML's form.
        library: libnvidia-ml, as loaded by ctypes.

    Attributes:
        note: why NVML can't be used; "" if it can.
    """

    def __init__(self, uuid: str, library: Any = None) -> None:
        self._library, self._device, self.note = library, ctypes.c_void_p(), ""
        try:
            self._library = library or ctypes.CDLL("libnvidia-ml.so.1")
            self._call("nvmlInit_v2")
            self._call("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(self._device))
        except (OSError, AttributeError, RuntimeError) as reason:
            self.note = f"NVML is not available: {reason}"

    def clock_mhz(self) -> float | None:
        """Return the SM clock over the past tenths of a second; None if it may not be read."""
        return self._read("nvmlDeviceGetClockInfo", ctypes.c_uint(), _NVML_CLOCK_SM)

    def limits(self) -> tuple[str, ...]:
        """Return why the clock is lowered now; () if that may not be read."""
        bits = next((bits for name in _REASONS if (bits := self._read(name, ctypes.c_ulonglong())) is not None), 0)
        return tuple(limit for bit, limit in _LIMITS.items() if int(bits) & bit)

    def _read(self, name: str, value: Any, *arguments: Any) -> float | None:
        try:
            self._call(name, self._device, *arguments, ctypes.byref(value))
        except (RuntimeError, AttributeError):  # not permitted, not in this driver, or no NVML
            return None
        return float(value.value)

    def _call(self, name: str, *arguments: Any) -> None:
        if status := getattr(self._library, name)(*arguments):
            raise RuntimeError(f"{name} gave {status}")


@functools.cache
def open_nvml() -> Nvml:
    """Return NVML for torch's device."""
    import torch

    return Nvml(f"GPU-{torch.cuda.get_device_properties(0).uuid}")
