"""The order in which clients are served, the reserved worker, and the limits. The test sets the clock."""

import contextvars
import threading
import time

import pytest

from tests.tables import read_table
from tests.waiting import PATIENCE_S, until
from tilescope.measure import fair_queue
from tilescope.measure.fair_queue import (
    INTERNAL,
    MAX_REQUESTS,
    REQUEST_BUDGET_S,
    Call,
    Client,
    FairQueue,
    QueuedCall,
    RequestSlots,
)

SHORT = 1.0
LONG = 30.0
ANN = Client("10.0.0.1", "a")
ANNS_OTHER_PAGE = Client("10.0.0.1", "b")
BEN = Client("10.0.0.2", "a")


class Clock:
    """A clock that advances with each reading."""

    now = 100.0

    def __call__(self):
        self.now += 0.01
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def queue(clock):
    return FairQueue(2, short_s=5.0, now=clock)


def push(queue, name, client=INTERNAL, estimate_s=SHORT):
    queued = QueuedCall(Call("compile", print, (name,)), client, estimate_s)
    queue.waiting.append(queued)
    return queued


def pop(queue):
    """Finish the next call after its estimated time, and return its name; None if no call may run."""
    if queued := queue.pop():
        queue.finish(queued, queued.estimate_s)
    return queued and queued.call.args[0]


# The clients that wait before the first call is served, those that come later, and the numbers of the calls in order.
TURNS = """
aaa | b | [0, 3, 1, 2] | a client with many calls waits for one with few
a | aaaa | [0, 1, 2, 3, 4] | a client's calls are served first come first served
aaA | | [0, 2, 1] | pages of one address take turns
xyz | b | [0, 3, 1, 2] | an address with many pages has no advantage
"""
CLIENTS = {"a": ANN, "A": ANNS_OTHER_PAGE, "b": BEN}


@pytest.mark.parametrize(("first", "later", "served", "why"), read_table(TURNS))
def test_the_client_with_the_lowest_recent_usage_goes_first(queue, first, later, served, why):
    clients = [CLIENTS.get(name) or Client(ANN.address, name) for name in first + later]
    for number, client in enumerate(clients):
        push(queue, number, client)
        if number == len(first) - 1:
            assert pop(queue) == served[0]
    assert [pop(queue) for _ in served] == [*served[1:], None]


def test_one_worker_is_reserved_for_short_calls(queue):
    running = push(queue, "ann 0", ANN, LONG)
    assert queue.pop() is running
    push(queue, "ann 1", ANN, LONG)
    assert queue.pop() is None
    push(queue, "ben", BEN)
    assert pop(queue) == "ben"
    queue.finish(running, 1.0)
    assert pop(queue) == "ann 1"


def test_a_client_over_its_budget_may_not_take_the_reserved_worker_until_its_usage_decays(
    queue, clock
):
    """Estimates can be wrong: a call that claims to be short takes a minute."""
    push(queue, "ann", ANN)
    queue.finish(queue.pop(), 2 * fair_queue.BUDGET_S + 1)
    push(queue, "ben long", BEN, LONG)
    queue.pop()
    push(queue, "ann again", ANN)
    assert pop(queue) is None
    clock.now += fair_queue.HALF_LIFE_S + 10
    assert pop(queue) == "ann again"


def test_a_page_and_an_address_have_limits_that_the_refusal_names(queue):
    waiting = [push(queue, number, ANN) for number in range(fair_queue.MAX_WAITING_PER_PAGE)]
    assert queue.explain_refusal(ANN).startswith(
        "8 jobs from this page or program are queued; the limit is 8."
    )
    assert [queue.explain_refusal(client) for client in (ANNS_OTHER_PAGE, BEN, INTERNAL)] == [
        "",
        "",
        "",
    ]
    for number in range(fair_queue.MAX_WAITING_PER_ADDRESS - fair_queue.MAX_WAITING_PER_PAGE):
        push(queue, number, Client(ANN.address, f"page {number}"))
    assert "32 jobs from this address are queued; the limit is 32." in queue.explain_refusal(
        ANNS_OTHER_PAGE
    )
    queue.waiting.remove(waiting[0])
    assert queue.explain_refusal(ANN) == ""


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
    crowd.call("heavy", compute, 2 * REQUEST_BUDGET_S)
    crowd.call("also heavy", compute, 2 * REQUEST_BUDGET_S)
    crowd.call("sleeps", time.sleep, 2 * REQUEST_BUDGET_S)
    crowd.start("heavy", "heavy", "also heavy", "sleeps", "sleeps", "light")
    until(lambda: len(crowd.running) >= 4)
    assert crowd.running == ["heavy", "sleeps", "sleeps", "light"]


def test_a_heavy_address_uses_its_slot_half_of_the_time_unless_it_is_alone(crowd):
    crowd.call("heavy", compute, 2 * REQUEST_BUDGET_S)
    for others in ([], ["light"]):
        for address in others:
            crowd.call(address, compute, 0.01)
        began = time.monotonic()
        for _ in range(3):
            crowd.call("heavy", time.sleep, 0.3)
        took_s = time.monotonic() - began
        assert (took_s >= 1.5) == bool(others)


def test_a_new_address_gets_half_of_the_slots_before_the_cost_of_its_requests_is_known(crowd):
    crowd.start(*["new"] * 4 * MAX_REQUESTS, "a", "b", "c")
    until(lambda: len(crowd.running) == MAX_REQUESTS)
    assert crowd.running.count("new") == MAX_REQUESTS // 2


def test_a_request_whose_client_leaves_keeps_its_slot_if_it_has_begun_and_never_begins_if_not(
    crowd,
):
    requests = crowd.start(*"abcdef", "late")
    until(lambda: len(crowd.running) == MAX_REQUESTS)
    assert all(request.cancel() == (request is requests[-1]) for request in requests)
    crowd.start("later")
    assert len(crowd.running) == MAX_REQUESTS
    crowd.end.set()
    until(lambda: "later" in crowd.running)
    assert "late" not in crowd.running


def test_a_request_has_its_callers_context_and_error(crowd):
    variable = contextvars.ContextVar("variable", default=0)
    variable.set(1)
    assert crowd.call("a", variable.get) == 1
    with pytest.raises(ValueError, match="invalid literal"):
        crowd.call("a", int, "x")
