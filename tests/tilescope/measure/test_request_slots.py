"""The order in which the page's process serves requests."""

import contextvars
import threading
import time

import pytest

from tests.waiting import PATIENCE_S, until
from tilescope.measure.fair_queue import Client
from tilescope.measure.request_slots import BUDGET_S, MAX_RUNNING, RequestSlots


def compute(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Crowd:
    """Requests that run until the test ends.

    Attributes:
        running: addresses of the requests that have begun.
    """

    def __init__(self):
        self.slots = RequestSlots(lambda: 0.0)
        self.running = []
        self.end = threading.Event()

    def hold(self, address):
        self.running.append(address)
        self.end.wait(PATIENCE_S)

    def start(self, *addresses):
        return [self.slots.submit(Client(address), self.hold, address) for address in addresses]

    def call(self, address, function, *args):
        return self.slots.submit(Client(address), function, *args).result(PATIENCE_S)


@pytest.fixture
def crowd():
    made = Crowd()
    yield made
    made.end.set()


def test_addresses_that_have_used_much_cpu_time_share_one_slot(crowd):
    crowd.call("heavy", compute, 2 * BUDGET_S)
    crowd.call("also heavy", compute, 2 * BUDGET_S)
    crowd.call("sleeps", time.sleep, 2 * BUDGET_S)
    crowd.start("heavy", "heavy", "also heavy", "sleeps", "sleeps", "light")
    until(lambda: len(crowd.running) >= 4)
    assert crowd.running == ["heavy", "sleeps", "sleeps", "light"]


def test_a_heavy_address_uses_its_slot_half_of_the_time_unless_it_is_alone(crowd):
    crowd.call("heavy", compute, 2 * BUDGET_S)
    for others in ([], ["light"]):
        for address in others:
            crowd.call(address, compute, 0.01)
        began = time.monotonic()
        for _ in range(3):
            crowd.call("heavy", time.sleep, 0.5)
        took_s = time.monotonic() - began
        assert (took_s >= 2.5) == bool(others)


def test_a_new_address_gets_half_of_the_slots_before_the_cost_of_its_requests_is_known(crowd):
    crowd.start(*["new"] * 4 * MAX_RUNNING, "a", "b", "c")
    until(lambda: len(crowd.running) == MAX_RUNNING)
    assert crowd.running.count("new") == MAX_RUNNING // 2


def test_a_request_whose_client_leaves_keeps_its_slot_if_it_has_begun_and_never_begins_if_not(
    crowd,
):
    requests = crowd.start(*"abcdef", "late")
    until(lambda: len(crowd.running) == MAX_RUNNING)
    assert all(request.cancel() == (request is requests[-1]) for request in requests)
    crowd.start("later")
    assert len(crowd.running) == MAX_RUNNING
    crowd.end.set()
    until(lambda: "later" in crowd.running)
    assert "late" not in crowd.running


def test_a_request_has_its_callers_context_and_error(crowd):
    variable = contextvars.ContextVar("variable", default=0)
    variable.set(1)
    assert crowd.call("a", variable.get) == 1
    with pytest.raises(ValueError, match="invalid literal"):
        crowd.call("a", int, "x")
