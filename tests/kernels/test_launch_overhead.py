"""What a call from Python costs, on a host and a GPU whose clock the test moves."""

from __future__ import annotations

import pytest

from kernels.measuring.overhead import launch_overhead


class Machine:
    """A host that takes 30 µs per call, and a GPU that runs one launch after the other."""

    def __init__(self, kernel_s, enqueue_s=30e-6, wake_s=5e-6):
        self.kernel_s, self.enqueue_s, self.wake_s = kernel_s, enqueue_s, wake_s
        self.now_s = self.free_s = 0.0
        self.launches = 0

    def now(self):
        return self.now_s

    def call(self):
        self.launches += 1
        self.now_s += self.enqueue_s
        self.free_s = max(self.free_s, self.now_s) + self.kernel_s

    def synchronize(self):
        self.now_s = max(self.now_s, self.free_s) + self.wake_s


def measured(machine):
    return launch_overhead(machine.call, machine.synchronize, machine.kernel_s * 1000, machine.now)


@pytest.mark.parametrize("kernel_s", [7e-6, 1.4e-3])
def test_a_call_costs_what_the_host_takes_and_not_what_the_kernel_takes(kernel_s):
    cost = measured(Machine(kernel_s))
    assert cost.enqueue_ms == pytest.approx(0.030)
    assert cost.synchronized_ms == pytest.approx(0.035 + kernel_s * 1000)


def test_the_first_call_that_wakes_something_up_does_not_count():
    machine = Machine(7e-6)
    plain = machine.call

    def call():
        machine.now_s += 0.01 if machine.launches == 0 else 0.0
        plain()

    assert launch_overhead(call, machine.synchronize, 0.007, machine.now).enqueue_ms == pytest.approx(0.030)


@pytest.mark.parametrize(("kernel_s", "calls"), [(7e-6, 200), (2e-3, 50), (0.5, 5)])
def test_a_long_kernel_is_called_fewer_times(kernel_s, calls):
    machine = Machine(kernel_s)
    assert measured(machine).calls == calls
    assert machine.launches <= calls + 50
