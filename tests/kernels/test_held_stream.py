"""How long the stream is held while launches are queued: on a device and a clock that are made up."""

from __future__ import annotations

import contextlib
import functools

import numpy as np
import pytest
import torch

from kernels.measuring import held_stream
from kernels.measuring.held_stream import HeldStream
from kernels.measuring.sampling import MOST_TURNS
from kernels.pairs import pair


class Host:
    """Launches that take `launch_s` each from Python, behind spins of a GPU that runs at 2 GHz.

    Attributes:
        gpu_ms: how long the GPU's launches took together.
    """

    def __init__(self, launch_s: float) -> None:
        self.launch_s, self.now, self.held_until, self.gpu_ms = launch_s, 0.0, 0.0, 0.0
        self.spins: list[int] = []

    def spin(self, cycles: int) -> None:
        self.spins.append(cycles)
        self.held_until = self.now + cycles / 2e9

    def launch(self) -> None:
        self.now += self.launch_s


@pytest.fixture
def on(monkeypatch):
    """A host → the same, in place of torch's GPU and the clock."""

    def install(host):
        class Event:
            def __init__(self, **_):
                pass

            def record(self):
                self.at, self.ms = host.held_until, host.gpu_ms

            def query(self):
                return host.now > self.at

            def elapsed_time(self, end):
                return end.ms - self.ms

        class Probe:
            def launch(self, _):
                pass

            def megahertz(self):
                return 1980.0

        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr(torch.cuda, "_sleep", host.spin)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(held_stream, "Probe", Probe)
        monkeypatch.setattr(held_stream, "nvml", lambda: "no driver")
        monkeypatch.setattr(held_stream.time, "perf_counter", lambda: host.now)
        monkeypatch.setattr(HeldStream, "launch_s", held_stream._LAUNCH_S)
        return host

    return install


@pytest.mark.parametrize("launch_s", [5e-6, 40e-6, 59e-6])
def test_a_usual_launch_makes_no_batch_run_in_vain(on, launch_s):
    host = on(Host(launch_s))
    stream = HeldStream([host.launch] * 16, "warm", "events")
    assert stream.batch(20).times_ms.shape == (16, 20)
    assert len(host.spins) == 1


@pytest.mark.parametrize("count", [2, 15, 16, 28, 320])
def test_a_batch_of_any_number_of_calls_fits_in_the_queue(on, count):
    host = on(Host(5e-6))
    stream = HeldStream([host.launch] * count, "warm", "events")
    stream.batch(stream.most_turns)
    assert len(host.spins) == 1
    assert 3 * count * stream.most_turns <= 1000
    assert 3 * count * (stream.most_turns + 1) > 960 or stream.most_turns == MOST_TURNS


def test_with_a_cold_l2_fewer_turns_fit_and_a_graph_is_one_entry(on, monkeypatch):
    monkeypatch.setattr(held_stream, "flusher", lambda: lambda: None)
    host = on(Host(5e-6))
    assert HeldStream([host.launch] * 16, "cold", "events").most_turns == 15
    assert HeldStream([host.launch] * 16, "warm", "events").most_turns == MOST_TURNS
    assert HeldStream([host.launch] * 320, "cold", "graph").most_turns == MOST_TURNS


def test_slow_launches_are_held_longer_and_that_is_remembered_by_the_next_stream(on):
    host = on(Host(90e-6))
    HeldStream([host.launch] * 16, "warm", "events").batch(20)
    assert len(host.spins) == 2
    HeldStream([host.launch] * 3, "warm", "events").batch(20)
    assert len(host.spins) == 3
    assert host.spins[-1] >= 60 * 90e-6 * 2e9


def test_a_pause_of_python_does_not_hold_later_batches_for_seconds(on):
    host = on(Host(40e-6))
    host.launch_s = 0.01
    HeldStream([host.launch], "warm", "events").batch(1)
    host.launch_s = 40e-6
    HeldStream([host.launch] * 16, "warm", "events").batch(20)
    assert host.spins[-1] / 2e9 <= 1.5 * 320 * held_stream._MOST_S


class Copies:
    """Copies of which every other one is slower, whoever launches them: what one leaves in the L2 delays the next."""

    def __init__(self, host: Host, count: int) -> None:
        self.host, self.launched = host, 0
        self.calls = [functools.partial(self.launch, number) for number in range(count)]
        self.numbers: list[int] = []

    def launch(self, number: int) -> None:
        self.host.launch()
        self.numbers.append(number)
        self.launched += 1
        self.host.gpu_ms += 1.02 if self.launched % 2 else 0.98


@pytest.mark.parametrize("timer", ["events", "graph"])
def test_launches_that_alternate_between_two_times_make_none_of_two_equal_calls_faster(on, monkeypatch, timer):
    graph = type("Graph", (), {"replay": lambda _: None})
    monkeypatch.setattr(torch.cuda, "CUDAGraph", graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda _: contextlib.nullcontext())
    host = on(Host(1e-6))
    stream = HeldStream(Copies(host, 2).calls, "warm", timer)
    times = np.concatenate([stream.batch(turns).times_ms for turns in range(10, 20)], axis=1)
    found = pair(*times)
    assert found.low <= 1 <= found.high
    assert times.mean(1) == pytest.approx([1, 1], abs=0.01)


def test_each_call_gets_its_own_times_whatever_the_order(on):
    host = on(Host(1e-6))

    def taking(ms):
        def call():
            host.launch()
            host.gpu_ms += ms

        return call

    times = HeldStream([taking(ms) for ms in (1.0, 2.0, 3.0)], "warm", "events").batch(20).times_ms
    assert times == pytest.approx(np.repeat([[1.0], [2.0], [3.0]], 20, axis=1))


def test_one_after_the_other_they_are_launched_as_they_come(on):
    host = on(Host(1e-6))
    copies = Copies(host, 8)
    stream = HeldStream(copies.calls, "warm", "events")
    copies.numbers.clear()
    times = stream.one_after_the_other()
    assert copies.numbers == list(range(8))
    assert times == pytest.approx([1.02, 0.98] * 4)


def test_what_can_not_be_queued_in_time_is_an_error(on):
    host = on(Host(10.0))
    with pytest.raises(RuntimeError, match=r"could not be queued within \d+ cycles"):
        HeldStream([host.launch], "warm", "events").batch(3)


def test_a_graph_is_one_thing_to_queue_however_many_launches_are_in_it(on, monkeypatch):
    host = on(Host(40e-6))
    replays = []
    graph = type("Graph", (), {"replay": lambda self: replays.append(len(host.spins))})
    monkeypatch.setattr(torch.cuda, "CUDAGraph", graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda _: contextlib.nullcontext())
    stream = HeldStream([host.launch] * 3, "warm", "graph")
    begun = len(host.spins)
    assert stream.batch(20).times_ms.shape == (3, 20)
    assert replays == [begun + 1], "once, behind one spin"
    assert host.spins[-1] / 2e9 < 0.002
