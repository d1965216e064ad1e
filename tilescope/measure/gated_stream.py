"""Time launches that queue behind a spinning gate kernel, so that times exclude Python's overhead. Runs in the worker.

Launching from Python takes longer than a small kernel runs, so CUDA events around a launch would time Python. Here, all
launches are queued behind a gate kernel that spins. If the gate opens before the last launch is queued, the batch is
discarded and repeated behind a longer spin.

Each turn launches the calls in a new random order. In a fixed order, each launch leaves data in the L2 that speeds up
or slows down the next, so times can alternate between two values indefinitely. For a 64 MiB copy timed against itself
in a fixed order, an H100 gives ratios between 0.976 and 1.019, and most 95 % intervals exclude 1.

Small probe kernels before and after the timed launches read each SM's cycle counter, which keeps counting between
launches. The difference in cycles divided by the difference in global time is the average clock.
"""

import ctypes
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy import ndarray

from tilescope.compiling import instrumented
from tilescope.measure.timing import MOST_TURNS, Batch

# A launch between two events takes a microsecond or two longer than in a graph without events. Below SHORT_MS, timer
# "graph" takes one sample per LAUNCHES_PER_GRAPH launches.
SHORT_MS = 0.05
LAUNCHES_PER_GRAPH = 20

# The gate spins for _MARGIN times the expected queueing time, converted to cycles at a clock that no GPU exceeds by
# much.
_MARGIN = 1.5
_CYCLES_PER_S = 2e9

# Seconds to queue a launch with its two events from Python: the first estimate, and the bounds of later ones.
FIRST_LAUNCH_S = 40e-6
_MIN_LAUNCH_S = 10e-6
MAX_LAUNCH_S = 100e-6

# Seconds to queue a graph of any size, with a margin.
_REPLAY_S = 700e-6

_MAX_SPIN_CYCLES = 1 << 32

# The rest before a turn, as a multiple of the previous turn's duration, and its minimum.
_REST_FACTOR = 9
_MIN_REST_S = 0.01

# The queue holds about 1,000 launches and events. A sample takes up to five entries: two events, and a call of up to
# three launches, such as two copies and a kernel. The flush of a cold L2 takes up to three more (torch's sum launches
# twice and clears a buffer): at four entries per sample, 240 samples filled an H200's queue. On a full queue, Python
# would block until the gate opens.
_QUEUED = 960
_QUEUED_WARM = 5
_QUEUED_COLD = 8

# Plausible GPU clocks in MHz, and the shortest span from which a clock is computed. Some GPUs' timers tick every 1 µs,
# which would affect the clock's second digit in spans below 50 µs.
_PLAUSIBLE_MHZ = (50.0, 5000.0)
_SHORTEST_NS = 50_000

# Probe programs per SM, enough that each SM runs at least one in any order of scheduling.
_PROBES_PER_SM = 4

# Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h) for limited clocks, except idle and user settings.
_LIMITS = {
    0x04: "power limit",
    0x08: "hardware slowdown",
    0x20: "temperature, by the driver",
    0x40: "temperature, by the hardware",
    0x80: "external power brake",
}


class TimingDevice:
    """The GPU and the host's clock, as GatedStream uses them. Tests use a fake device.

    Attributes:
        cuda: torch's API for the device.
        now: the host's clock, in seconds.
        launch_s: seconds per launch from Python: the latest measurement, clamped. An underestimate is harmless, because
            a batch whose gate opened too early is discarded.
        flush_capacities: size of the data that a flush reads, as a multiple of the L2's capacity.
    """

    now = staticmethod(time.perf_counter)
    launch_s = FIRST_LAUNCH_S
    flush_capacities = 2

    def __init__(self) -> None:
        import torch

        self.cuda = torch.cuda
        self._properties = torch.cuda.get_device_properties(0)
        programs = _PROBES_PER_SM * self._properties.multi_processor_count
        self._clocks = torch.zeros(
            (2, programs, len(instrumented.CLOCK_FIELDS)), dtype=torch.int64, device="cuda"
        )

    def probe(self, place: int) -> None:
        """Queue a reading of all SMs' cycle counters. `place` is 0 before the timed launches and 1 after them."""
        instrumented.read_clocks[(self._clocks.shape[1],)](self._clocks[place], num_warps=1)

    def clock_mhz(self) -> float | None:
        """Return the clock between the last two probes, which must have finished; None if it is implausible."""
        return clock_between(*self._clocks.cpu().numpy())

    def limits(self) -> tuple[str, ...]:
        """Return the driver's current reasons for lowering the clock; () if they can't be read."""
        return clock_limits(f"GPU-{self._properties.uuid}")

    def make_flush(self) -> Callable[[], Any]:
        """Return a function that evicts the L2's contents by reading other data."""
        import torch

        elements = max(1, self.flush_capacities * self._properties.L2_cache_size // 4)
        other = torch.zeros(elements, dtype=torch.float32, device="cuda")
        result = torch.empty((), dtype=torch.float32, device="cuda")
        return lambda: torch.sum(other, dim=0, out=result)


@functools.cache
def timing_device() -> TimingDevice:
    """Return this process's only TimingDevice."""
    return TimingDevice()


class GatedStream:
    """A `timing.Stream` on this GPU.

    Attributes:
        most_turns: turns per batch that fit in the queue. A whole graph takes one entry.

    Args:
        calls: each launches on the current stream and returns without waiting.
        l2: "warm" (launches follow each other) or "cold" (each launch follows a read that evicts the L2's contents; a
            write would leave dirty lines, which would be written back during the timed launch).
        timer: "events" (launched one by one) or "graph" (captured once and replayed). In a graph with a warm L2, if
            each call takes less than SHORT_MS, a sample is LAUNCHES_PER_GRAPH consecutive launches of one call.
        rests: whether the GPU rests before each turn, so that it runs at the clock of single launches.
        device: defaults to this GPU.
    """

    def __init__(
        self,
        calls: Sequence[Callable[[], Any]],
        l2: str,
        timer: str,
        rests: bool = False,
        device: TimingDevice | None = None,
    ) -> None:
        self._calls = calls
        self._device = device or timing_device()
        self._is_graph = timer == "graph"
        self._flush = self._device.make_flush() if l2 == "cold" else None
        self._captured: tuple[ndarray, Sequence[Any], Any] | None = None
        self._random = np.random.default_rng(0)
        self._rest_s = _MIN_REST_S if rests else 0.0
        entries = len(calls) * (_QUEUED_COLD if self._flush else _QUEUED_WARM)
        self.most_turns = (
            MOST_TURNS if self._is_graph else max(1, min(MOST_TURNS, _QUEUED // entries))
        )
        self.launches_per_sample = 1
        for call in calls:
            call()
        if (
            self._is_graph
            and self._flush is None
            and self._time(self._random_order(3)).times_ms.max() < SHORT_MS
        ):
            self.launches_per_sample = LAUNCHES_PER_GRAPH

    def batch(self, turns: int) -> Batch:
        """Launch each call once per turn, and time it.

        Raises:
            RuntimeError: if the longest spin ends before the last launch is queued.
        """
        if not self._rest_s:
            return self._batch(turns)
        batches = []
        for _ in range(turns):
            time.sleep(self._rest_s)
            batches.append(self._batch(1))
            turn_s = float(batches[-1].times_ms.sum()) / 1000
            self._rest_s = max(_MIN_REST_S, _REST_FACTOR * turn_s)
        times_ms = np.concatenate([each.times_ms for each in batches], axis=1)
        return replace(batches[-1], times_ms=times_ms)

    def _batch(self, turns: int) -> Batch:
        if not self._is_graph:
            return self._time(self._random_order(turns))
        if self._captured is None or len(self._captured[0]) != turns:
            self._captured = None  # each holds memory, so only the latest graph is kept
            order = self._random_order(turns)
            graph = self._device.cuda.CUDAGraph()
            events = self._make_events(order.size, external=True)
            with self._device.cuda.graph(graph):
                self._queue(events, order)
            self._captured = order, events, graph
        return self._time(*self._captured)

    def time_in_order(self) -> ndarray:
        """Launch each call once, in the given order, without a graph. Return (calls,) milliseconds.

        Raises:
            RuntimeError: as for `batch`.
        """
        return self._time(np.arange(len(self._calls))[np.newaxis]).times_ms[:, 0]

    def _time(self, order: ndarray, events: Sequence[Any] = (), graph: Any = None) -> Batch:
        """Queue turns, or a graph of them with its events, behind the gate.

        Args:
            order: (turns, calls), the index of the call at each position.
        """
        device = self._device
        cuda = self._device.cuda
        launches = order.size * self.launches_per_sample
        queueing_s = launches * device.launch_s if graph is None else _REPLAY_S
        spin_cycles = int(_MARGIN * queueing_s * _CYCLES_PER_S)
        while True:
            cuda.synchronize()
            cuda._sleep(spin_cycles)
            gate = cuda.Event()
            gate.record()
            device.probe(0)
            if graph is None:
                events = self._make_events(order.size, external=False)
                began = device.now()
                self._queue(events, order)
                device.launch_s = min(
                    MAX_LAUNCH_S, max(_MIN_LAUNCH_S, (device.now() - began) / launches)
                )
            else:
                graph.replay()
            device.probe(1)
            was_closed = not gate.query()
            limits = device.limits()
            cuda.synchronize()
            if was_closed or graph is not None:
                queued_ms = (
                    np.array([begin.elapsed_time(end) for begin, end in events])
                    / self.launches_per_sample
                )
                times_ms = np.empty(order.shape)
                np.put_along_axis(times_ms, order, queued_ms.reshape(order.shape), axis=1)
                return Batch(times_ms.T, device.clock_mhz(), limits)
            if spin_cycles >= _MAX_SPIN_CYCLES:
                raise RuntimeError(
                    f"{launches} launches could not be queued within {spin_cycles} cycles."
                )
            spin_cycles *= 4

    def _random_order(self, turns: int) -> ndarray:
        return self._random.permuted(np.tile(np.arange(len(self._calls)), (turns, 1)), axis=1)

    def _make_events(self, samples: int, external: bool) -> list[Any]:
        event = functools.partial(self._device.cuda.Event, enable_timing=True, external=external)
        return [(event(), event()) for _ in range(samples)]

    def _queue(self, events: Sequence[Any], order: ndarray) -> None:
        for (begin, end), number in zip(events, order.ravel(), strict=True):
            if self._flush:
                self._flush()
            begin.record()
            for _ in range(self.launches_per_sample):
                self._calls[number]()
            end.record()


def clock_between(before: ndarray, after: ndarray) -> float | None:
    """Return the clock in MHz between two readings: the median over SMs that both include; None if implausible.

    Args:
        before, after: (programs, 4) int64, CLOCK_FIELDS of each program.
    """
    before, after = (rows[rows[:, 3] == 1] for rows in (before, after))
    _, first, last = np.intersect1d(before[:, 0], after[:, 0], return_indices=True)
    spans = after[last, 1:3] - before[first, 1:3]
    spans = spans[spans[:, 1] >= _SHORTEST_NS]
    if not len(spans):
        return None
    clock = float(np.median(spans[:, 0] / spans[:, 1])) * 1000
    return clock if _PLAUSIBLE_MHZ[0] <= clock <= _PLAUSIBLE_MHZ[1] else None


def clock_limits(uuid: str, load: Callable[[str], Any] = ctypes.CDLL) -> tuple[str, ...]:
    """Return the reasons for a device's lowered clock, according to NVML; () if NVML can't read them.

    Args:
        uuid: the device, in NVML's form.
        load: loads a library by name.
    """
    device = ctypes.c_void_p()
    reasons = ctypes.c_ulonglong()
    try:
        nvml = load("libnvidia-ml.so.1")
        error = (  # each function returns 0 or an error number
            nvml.nvmlInit_v2()
            or nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(device))
            or nvml.nvmlDeviceGetCurrentClocksEventReasons(device, ctypes.byref(reasons))
        )
    except (OSError, AttributeError):  # no NVML, or a driver before 535
        return ()
    return () if error else tuple(limit for bit, limit in _LIMITS.items() if reasons.value & bit)
