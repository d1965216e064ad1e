"""The order in which clients are served, the reserved worker, and the limits. With a clock that the test sets."""

from __future__ import annotations

import pytest

from kernels.measuring.fair_queue import (
    BUDGET_S,
    HALF_LIFE_S,
    INTERNAL,
    MAX_WAITING_PER_ADDRESS,
    MAX_WAITING_PER_PAGE,
    Call,
    Client,
    FairQueue,
    QueuedCall,
)

SHORT, LONG = 1.0, 30.0
ANN, ANNS_OTHER_PAGE, BEN = Client("10.0.0.1", "a"), Client("10.0.0.1", "b"), Client("10.0.0.2", "a")


class Clock:
    """Time passes whenever it is read."""

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
    """The name of the next call, which ends at once as estimated; None if none may run."""
    if queued := queue.pop():
        queue.finish(queued, queued.estimate_s)
    return queued and queued.call.args[0]


def test_a_client_with_many_calls_waits_for_one_with_few(queue):
    for number in range(3):
        push(queue, f"ann {number}", ANN)
    assert pop(queue) == "ann 0"
    push(queue, "ben", BEN)
    assert [pop(queue) for _ in range(4)] == ["ben", "ann 1", "ann 2", None]


def test_calls_of_one_client_are_served_first_come_first_served(queue):
    push(queue, "before", ANN)
    pop(queue)
    for number in range(9):
        push(queue, number, ANN)
    assert [pop(queue) for _ in range(9)] == list(range(9))


def test_pages_of_one_address_take_turns(queue):
    for name, client in (("a 0", ANN), ("a 1", ANN), ("b", ANNS_OTHER_PAGE)):
        push(queue, name, client)
    assert [pop(queue) for _ in range(3)] == ["a 0", "b", "a 1"]


def test_an_address_with_many_pages_has_no_advantage(queue):
    for number in range(3):
        push(queue, f"ann {number}", Client(ANN.address, str(number)))
    assert pop(queue) == "ann 0"
    push(queue, "ben", BEN)
    assert pop(queue) == "ben"


def test_one_worker_is_reserved_for_short_calls(queue):
    running = push(queue, "ann 0", ANN, LONG)
    assert queue.pop() is running
    push(queue, "ann 1", ANN, LONG)
    assert queue.pop() is None
    push(queue, "ben", BEN)
    assert pop(queue) == "ben"
    queue.finish(running, 1.0)
    assert pop(queue) == "ann 1"


def test_short_calls_may_take_every_worker(queue):
    for name in "abc":
        push(queue, name, ANN)
    assert [queue.pop().call.args[0] for _ in range(2)] == ["a", "b"]


def test_a_client_over_its_budget_may_not_take_the_reserved_worker_until_its_usage_decays(queue, clock):
    """Estimates can be wrong: a call that claims to be short takes a minute."""
    push(queue, "ann", ANN)
    queue.finish(queue.pop(), 2 * BUDGET_S + 1)
    push(queue, "ben long", BEN, LONG)
    queue.pop()
    push(queue, "ann again", ANN)
    assert pop(queue) is None
    clock.now += HALF_LIFE_S + 10
    assert pop(queue) == "ann again"


def test_usage_halves_and_is_forgotten(queue, clock):
    queue.finish(push(queue, "ann", ANN, 0.0), 40.0)
    assert queue.usage == {ANN: 40.0, Client(ANN.address): 40.0}
    clock.now += HALF_LIFE_S
    queue.pop()
    assert list(queue.usage.values()) == pytest.approx([20.0] * 2, rel=1e-3)
    clock.now += 100 * HALF_LIFE_S
    queue.finish(push(queue, "ben", BEN, 0.0), 1.0)
    assert set(queue.usage) == {BEN, Client(BEN.address)}


def test_a_page_and_an_address_have_limits_that_the_refusal_names(queue):
    waiting = [push(queue, number, ANN) for number in range(MAX_WAITING_PER_PAGE)]
    assert queue.refuse(ANN).startswith("8 jobs of this page or program are queued; at most 8 may be.")
    assert [queue.refuse(client) for client in (ANNS_OTHER_PAGE, BEN, INTERNAL)] == ["", "", ""]
    for number in range(MAX_WAITING_PER_ADDRESS - MAX_WAITING_PER_PAGE):
        push(queue, number, Client(ANN.address, f"page {number}"))
    assert "32 jobs from this address are queued; at most 32 may be." in queue.refuse(ANNS_OTHER_PAGE)
    queue.waiting.remove(waiting[0])
    assert queue.refuse(ANN) == ""
