"""How long the stream is held while launches are queued: on a device and a clock that are made up."""

from __future__ import annotations

import contextlib

import pytest
import torch

from kernels.runner import held_stream
from kernels.runner.held_stream import HeldStream


class Host:
    """Launches that take `launch_s` each from Python, behind spins of a GPU that runs at 2 GHz."""

    def __init__(self, launch_s: float) -> None:
        self.launch_s, self.now, self.held_until = launch_s, 0.0, 0.0
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
                self.at = host.held_until

            def query(self):
                return host.now > self.at

            def elapsed_time(self, _):
                return 1.0

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
