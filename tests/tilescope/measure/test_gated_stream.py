"""The gate, the order of launches and the clock, on a fake device with a fake host clock."""

import contextlib
import functools
import time
from types import SimpleNamespace

import numpy as np
import pytest

from tests.tables import read_table
from tilescope.measure import gated_stream
from tilescope.measure.gated_stream import (
    FIRST_LAUNCH_S,
    MAX_LAUNCH_S,
    GatedStream,
    clock_between,
    clock_limits,
)
from tilescope.measure.timing import MOST_TURNS, pair


class Event:
    """A CUDA event of a fake device; it has happened once the gate before it is open."""

    def __init__(self, device, **_):
        self.device = device

    def record(self):
        self.opens_s = self.device.opens_s
        self.ms = self.device.gpu_ms

    def query(self):
        return self.device.now_s > self.opens_s

    def elapsed_time(self, end):
        return end.ms - self.ms


class FakeDevice:
    """A host whose launches take `host_s` each, and a 2 GHz GPU that spins before it runs them.

    Attributes:
        gpu_ms: the GPU's total time for launches so far.
        numbers: the calls in the order of their launches.
        replays: for each replayed graph, the number of spins before it.
    """

    def __init__(self, host_s):
        self.host_s = host_s
        self.launch_s = FIRST_LAUNCH_S
        self.now_s = 0.0
        self.opens_s = 0.0
        self.gpu_ms = 0.0
        self.spins = []
        self.replays = []
        self.numbers = []
        self.cuda = SimpleNamespace(
            Event=functools.partial(Event, self),
            CUDAGraph=lambda: SimpleNamespace(replay=lambda: self.replays.append(len(self.spins))),
            graph=lambda _: contextlib.nullcontext(),
            synchronize=lambda: None,
            _sleep=self.spin,
        )

    def spin(self, cycles):
        self.spins.append(cycles)
        self.opens_s = self.now_s + cycles / 2e9

    def launch(self, number=0, ms=1.0):
        self.now_s += self.host_s
        self.gpu_ms += ms
        self.numbers.append(number)

    def alternate(self, number):
        """Launch a call that is slow if the launch before it was fast, whichever call that was."""
        self.launch(number, 0.98 if len(self.numbers) % 2 else 1.02)

    def stream(self, calls, l2="warm", timer="events", rests=False):
        calls = [self.launch] * calls if isinstance(calls, int) else calls
        return GatedStream(calls, l2, timer, rests, self)

    def now(self):
        return self.now_s

    def make_flush(self):
        return lambda: None

    def probe(self, place):
        pass

    def clock_mhz(self):
        return 1980.0

    def limits(self):
        return ("power limit",)


@pytest.mark.parametrize("host_s", [5e-6, 40e-6, 59e-6])
def test_no_batch_of_usual_launches_is_discarded(host_s):
    device = FakeDevice(host_s)
    batch = device.stream(16).batch(20)
    assert batch.times_ms.shape == (16, 20)
    assert batch.clock_mhz == 1980.0
    assert batch.limits == ("power limit",)
    assert len(device.spins) == 1


def test_a_stream_that_rests_does_so_nine_times_as_long_as_each_turn_took(monkeypatch):
    device = FakeDevice(5e-6)
    rests = []
    # Only this module's sleeps: threads of other tests sleep, too
    clock = SimpleNamespace(**vars(time) | {"sleep": rests.append})
    monkeypatch.setattr(gated_stream, "time", clock)
    batch = device.stream(4, rests=True).batch(3)
    assert batch.times_ms.shape == (4, 3)
    assert rests == pytest.approx([0.01, 9 * 0.004, 9 * 0.004])
    assert len(device.spins) == 3, "each turn has its own gate"


@pytest.mark.parametrize("count", [2, 9, 15, 16, 28, 190])
def test_a_batch_of_any_number_of_calls_fits_in_the_queue(count):
    device = FakeDevice(5e-6)
    stream = device.stream(count)
    stream.batch(stream.most_turns)
    assert len(device.spins) == 1
    assert 5 * count * stream.most_turns <= 1000
    assert 5 * count * (stream.most_turns + 1) > 960 or stream.most_turns == MOST_TURNS


def test_with_a_cold_l2_fewer_turns_fit_and_a_graph_is_one_entry():
    device = FakeDevice(5e-6)
    assert device.stream(16, "cold").most_turns == 7
    assert (
        device.stream(9).most_turns == device.stream(320, "cold", "graph").most_turns == MOST_TURNS
    )


def test_slow_launches_get_a_longer_spin_and_the_next_stream_starts_with_it():
    device = FakeDevice(90e-6)
    device.stream(16).batch(20)
    assert len(device.spins) == 2
    device.stream(3).batch(20)
    assert len(device.spins) == 3
    assert device.spins[-1] >= 60 * 90e-6 * 2e9


def test_a_pause_of_the_host_does_not_make_later_spins_take_seconds():
    device = FakeDevice(0.01)
    device.stream(1).batch(1)
    device.host_s = 40e-6
    device.stream(16).batch(20)
    assert device.spins[-1] / 2e9 <= 1.5 * 320 * MAX_LAUNCH_S


@pytest.mark.parametrize("timer", ["events", "graph"])
def test_launches_that_alternate_between_two_times_make_neither_of_two_equal_calls_faster(timer):
    device = FakeDevice(1e-6)
    stream = device.stream(
        [functools.partial(device.alternate, number) for number in range(2)], timer=timer
    )
    times = np.concatenate([stream.batch(turns).times_ms for turns in range(10, 20)], axis=1)
    ratio = pair(*times)
    assert ratio.low <= 1 <= ratio.high
    assert times.mean(1) == pytest.approx([1, 1], abs=0.01)


def test_in_order_each_call_is_launched_once():
    device = FakeDevice(1e-6)
    stream = device.stream([functools.partial(device.alternate, number) for number in range(8)])
    assert stream.time_in_order() == pytest.approx([1.02, 0.98] * 4)
    assert device.numbers == [*range(8), *range(8)]


def test_launches_that_cannot_be_queued_in_time_are_an_error():
    with pytest.raises(RuntimeError, match=r"could not be queued within \d+ cycles"):
        FakeDevice(10.0).stream(1).batch(3)


def test_a_graph_of_many_launches_is_queued_once_behind_one_spin():
    device = FakeDevice(40e-6)
    stream = device.stream(3, timer="graph")
    before = len(device.spins)
    assert stream.batch(20).times_ms.shape == (3, 20)
    assert device.replays == [before + 1]
    assert device.spins[-1] / 2e9 < 0.002


def test_a_sample_of_a_graph_of_short_calls_is_the_mean_of_20_launches():
    device = FakeDevice(1e-6)
    stream = device.stream(
        [functools.partial(device.launch, ms=ms) for ms in (0.01, 0.02)], timer="graph"
    )
    assert stream.launches_per_sample == 20
    assert stream.batch(5).times_ms == pytest.approx(np.repeat([[0.01], [0.02]], 5, axis=1))
    assert len(device.numbers) == 2 + 3 * 2 + 5 * 2 * 20, (
        "one each to compile, three turns to choose, and the graph"
    )


def readings(sms, time_ns, mhz=1755):
    """Return what a probe records on some SMs, whose counters have different offsets."""
    rows = [(sm, 1000 * sm + 7 + time_ns * mhz // 1000, 5_000_000 + time_ns, 1) for sm in sms]
    return np.array(rows, dtype=np.int64)


# The SMs of two readings, the time between them, the counters' rate, and the clock.
READINGS = """
[0, 1, 2, 3] | [2, 3, 4, 4] | 400_000 | 1755 | 1755 | two SMs in both
[0] | [1] | 400_000 | 1755 | None | no SM in both
[0] | [0] | 20_000 | 1755 | None | too short
[0] | [0] | 400_000 | 9 | None | it stops
[0] | [0] | 400_000 | 90_000 | None | it restarts
"""


@pytest.mark.parametrize(("first", "second", "time_ns", "rate", "mhz", "why"), read_table(READINGS))
def test_the_clock_is_cycles_over_time_on_the_sms_in_both_readings_and_none_if_implausible(
    first, second, time_ns, rate, mhz, why
):
    after = readings(second, time_ns, rate)
    assert clock_between(readings(first, 0), after) == (mhz and pytest.approx(mhz, rel=1e-3))
    assert clock_between(np.zeros((4, 4), dtype=np.int64), after) is None, "never written"


class Library:
    """A fake NVML that has one device."""

    def __init__(self, reasons, may_read=True):
        self.reasons = reasons
        self.may_read = may_read

    def nvmlInit_v2(self):
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid, device):
        device._obj.value = 7
        return 0 if uuid == b"GPU-1" else 6

    def nvmlDeviceGetCurrentClocksEventReasons(self, device, value):
        value._obj.value = self.reasons
        return 0 if self.may_read and device.value == 7 else 3


def missing(name):
    raise OSError(f"{name}: cannot open shared object file")


@pytest.mark.parametrize(
    ("uuid", "load", "limits"),
    [
        ("GPU-1", lambda _: Library(0x4), ("power limit",)),
        ("GPU-1", lambda _: Library(0x4 | 0x40), ("power limit", "temperature, by the hardware")),
        ("GPU-1", lambda _: Library(0x1 | 0x2 | 0x100), ()),
        ("GPU-1", lambda _: Library(0x4, may_read=False), ()),
        ("MIG-2", lambda _: Library(0x4), ()),
        ("GPU-1", lambda _: SimpleNamespace(nvmlInit_v2=lambda: 9), ()),
        ("GPU-1", lambda _: object(), ()),
        ("GPU-1", missing, ()),
    ],
    ids=[
        "one",
        "two",
        "idle or a user's",
        "not permitted",
        "unknown device",
        "no driver",
        "old driver",
        "no NVML",
    ],
)
def test_the_drivers_limits_are_read_where_they_can_be(uuid, load, limits):
    assert clock_limits(uuid, load) == limits
