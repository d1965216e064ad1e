"""The gate, the order of launches and the clock: on a fake device and a fake host clock."""

from __future__ import annotations

import contextlib
import functools

import numpy as np
import pytest
import torch

from kernels.measuring import gated_stream
from kernels.measuring.gated_stream import MAX_LAUNCH_S, GatedStream, Nvml, clock_between
from kernels.measuring.timing import MOST_TURNS
from kernels.pairs import pair


class Host:
    """A host whose launches take `launch_s` each, and a 2 GHz GPU that spins before it runs them.

    Attributes:
        gpu_ms: the GPU's total time for launches so far.
        numbers: the calls in the order of their launches.
    """

    def __init__(self, launch_s: float) -> None:
        self.launch_s, self.now, self.gate_opens, self.gpu_ms = launch_s, 0.0, 0.0, 0.0
        self.spins: list[int] = []
        self.replays: list[int] = []
        self.numbers: list[int] = []

    def spin(self, cycles: int) -> None:
        self.spins.append(cycles)
        self.gate_opens = self.now + cycles / 2e9

    def launch(self, number: int = 0, ms: float = 1.0) -> None:
        self.now += self.launch_s
        self.gpu_ms += ms
        self.numbers.append(number)

    def alternate(self, number: int) -> None:
        """A launch that is slow if the launch before was fast, whichever call it was."""
        self.launch(number, 0.98 if len(self.numbers) % 2 else 1.02)

    def stream(self, calls, l2="warm", timer="events"):
        calls = [self.launch] * calls if isinstance(calls, int) else calls
        return GatedStream(calls, l2, timer, probe=Probe(), driver=Nvml("GPU-1", object()))


class Probe:
    def launch(self, _):
        pass

    def megahertz(self):
        return 1980.0


@pytest.fixture
def host(monkeypatch):
    """Launch time → a host that stands in for torch's GPU and the clock."""

    def install(launch_s):
        host = Host(launch_s)

        class Event:
            def __init__(self, **_):
                pass

            def record(self):
                self.opens, self.ms = host.gate_opens, host.gpu_ms

            def query(self):
                return host.now > self.opens

            def elapsed_time(self, end):
                return end.ms - self.ms

        class Graph:
            def replay(self):
                host.replays.append(len(host.spins))

        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr(torch.cuda, "_sleep", host.spin)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
        monkeypatch.setattr(torch.cuda, "graph", lambda _: contextlib.nullcontext())
        monkeypatch.setattr("time.perf_counter", lambda: host.now)
        monkeypatch.setattr(GatedStream, "launch_s", gated_stream.FIRST_LAUNCH_S)
        return host

    return install


@pytest.mark.parametrize("launch_s", [5e-6, 40e-6, 59e-6])
def test_no_batch_of_usual_launches_is_discarded(host, launch_s):
    host = host(launch_s)
    assert host.stream(16).batch(20).times_ms.shape == (16, 20)
    assert len(host.spins) == 1


@pytest.mark.parametrize("count", [2, 15, 16, 28, 320])
def test_a_batch_of_any_number_of_calls_fits_in_the_queue(host, count):
    host = host(5e-6)
    stream = host.stream(count)
    stream.batch(stream.most_turns)
    assert len(host.spins) == 1
    assert 3 * count * stream.most_turns <= 1000
    assert 3 * count * (stream.most_turns + 1) > 960 or stream.most_turns == MOST_TURNS


def test_with_a_cold_l2_fewer_turns_fit_and_a_graph_is_one_entry(host, monkeypatch):
    monkeypatch.setattr(gated_stream, "_l2_flush", lambda _: lambda: None)
    host = host(5e-6)
    assert host.stream(16, "cold").most_turns == 15
    assert host.stream(16).most_turns == host.stream(320, "cold", "graph").most_turns == MOST_TURNS


def test_slow_launches_get_a_longer_spin_and_the_next_stream_starts_with_it(host):
    host = host(90e-6)
    host.stream(16).batch(20)
    assert len(host.spins) == 2
    host.stream(3).batch(20)
    assert len(host.spins) == 3
    assert host.spins[-1] >= 60 * 90e-6 * 2e9


def test_a_pause_of_the_host_does_not_make_later_spins_take_seconds(host):
    host = host(0.01)
    host.stream(1).batch(1)
    host.launch_s = 40e-6
    host.stream(16).batch(20)
    assert host.spins[-1] / 2e9 <= 1.5 * 320 * MAX_LAUNCH_S


@pytest.mark.parametrize("timer", ["events", "graph"])
def test_launches_that_alternate_between_two_times_make_neither_of_two_equal_calls_faster(host, timer):
    host = host(1e-6)
    stream = host.stream([functools.partial(host.alternate, number) for number in range(2)], timer=timer)
    times = np.concatenate([stream.batch(turns).times_ms for turns in range(10, 20)], axis=1)
    ratio = pair(*times)
    assert ratio.low <= 1 <= ratio.high
    assert times.mean(1) == pytest.approx([1, 1], abs=0.01)


def test_each_call_gets_its_own_times_whatever_the_order(host):
    host = host(1e-6)
    times = host.stream([functools.partial(host.launch, ms=ms) for ms in (1.0, 2.0, 3.0)]).batch(20).times_ms
    assert times == pytest.approx(np.repeat([[1.0], [2.0], [3.0]], 20, axis=1))


def test_in_order_each_call_is_launched_once(host):
    host = host(1e-6)
    stream = host.stream([functools.partial(host.alternate, number) for number in range(8)])
    assert stream.time_in_order() == pytest.approx([1.02, 0.98] * 4)
    assert host.numbers == [*range(8), *range(8)]


def test_launches_that_cannot_be_queued_in_time_are_an_error(host):
    host = host(10.0)
    with pytest.raises(RuntimeError, match=r"could not be queued within \d+ cycles"):
        host.stream(1).batch(3)


def test_a_graph_of_many_launches_is_queued_once_behind_one_spin(host):
    host = host(40e-6)
    stream = host.stream(3, timer="graph")
    before = len(host.spins)
    assert stream.batch(20).times_ms.shape == (3, 20)
    assert host.replays == [before + 1]
    assert host.spins[-1] / 2e9 < 0.002


def readings(sms, start_cycles, time_ns, mhz):
    """What a probe records on some SMs, whose counters have different offsets."""
    rows = [(sm, 1000 * sm + start_cycles + time_ns * mhz // 1000, 5_000_000 + time_ns, 1) for sm in sms]
    return np.array(rows, dtype=np.int64)


def test_the_clock_is_cycles_over_time_on_the_sms_in_both_readings():
    before, after = readings([0, 1, 2, 3], 7, 0, 1755), readings([2, 3, 4, 4], 7, 400_000, 1755)
    assert clock_between(before, after) == pytest.approx(1755, rel=1e-3)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (readings([0], 0, 0, 1755), readings([1], 0, 400_000, 1755)),
        (readings([0], 0, 0, 1755), readings([0], 0, 20_000, 1755)),
        (readings([0], 0, 0, 1755), readings([0], 0, 400_000, 9)),
        (readings([0], 0, 0, 1755), readings([0], 0, 400_000, 90_000)),
        (np.zeros((4, 4), dtype=np.int64), readings([0], 0, 400_000, 1755)),
    ],
    ids=["no SM in both", "too short", "a counter that stops", "a counter that restarts", "never written"],
)
def test_an_implausible_clock_is_none(before, after):
    assert clock_between(before, after) is None


class Library:
    """A driver's library that knows one device, with the function names of drivers before 535."""

    def __init__(self, reasons=0x4, may_read=True):
        self.reasons, self.may_read = reasons, may_read

    def nvmlInit_v2(self):
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid, device):
        device._obj.value = 7
        return 0 if uuid == b"GPU-1" else 6

    def nvmlDeviceGetClockInfo(self, device, kind, value):
        value._obj.value = 1755
        return 0 if self.may_read and (device.value, kind) == (7, 1) else 3

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, device, value):
        value._obj.value = self.reasons
        return 0 if self.may_read else 3


@pytest.mark.parametrize(
    ("reasons", "limits"),
    [
        (0x4, ("power limit",)),
        (0x4 | 0x40, ("power limit", "temperature, by the hardware")),
        (0x1 | 0x2 | 0x100, ()),  # idle, or a clock that a user set
    ],
)
def test_the_driver_reports_its_clock_and_its_limits(reasons, limits):
    driver = Nvml("GPU-1", Library(reasons))
    assert (driver.clock_mhz(), driver.limits()) == (1755.0, limits)


def test_a_driver_without_permission_or_with_an_unknown_device_reports_nothing():
    driver = Nvml("GPU-1", Library(may_read=False))
    assert (driver.clock_mhz(), driver.limits()) == (None, ())
    assert Nvml("MIG-2", Library()).note == "NVML is not available: nvmlDeviceGetHandleByUUID gave 6"
