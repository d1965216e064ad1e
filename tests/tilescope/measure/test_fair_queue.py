"""The order in which clients are served, the reserved worker, and the limits. The test sets the clock."""

import pytest

from tilescope.measure import fair_queue
from tilescope.measure.fair_queue import INTERNAL, Call, Client, FairQueue, QueuedCall

SHORT = 1.0
LONG = 30.0
ANN = Client("10.0.0.1", "a")
ANNS_OTHER_PAGE = Client("10.0.0.1", "b")
BEN = Client("10.0.0.2", "a")
ANNS_PAGES = [Client(ANN.address, page) for page in "xyz"]


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


@pytest.mark.parametrize(
    ("first", "later", "served"),
    [
        pytest.param(
            [ANN] * 3, [BEN], [0, 3, 1, 2], id="a client with many calls waits for one with few"
        ),
        pytest.param(
            [ANN],
            [ANN] * 9,
            list(range(10)),
            id="a client's calls are served first come first served",
        ),
        pytest.param(
            [ANN, ANN, ANNS_OTHER_PAGE], [], [0, 2, 1], id="pages of one address take turns"
        ),
        pytest.param(
            ANNS_PAGES, [BEN], [0, 3, 1, 2], id="an address with many pages has no advantage"
        ),
    ],
)
def test_the_client_with_the_lowest_recent_usage_goes_first(queue, first, later, served):
    for number, client in enumerate(first):
        push(queue, number, client)
    assert pop(queue) == served[0]
    for number, client in enumerate(later, len(first)):
        push(queue, number, client)
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


def test_short_calls_may_take_every_worker(queue):
    for name in "abc":
        push(queue, name, ANN)
    assert [queue.pop().call.args[0] for _ in range(2)] == ["a", "b"]


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


def test_usage_halves_and_is_forgotten(queue, clock):
    queue.finish(push(queue, "ann", ANN, 0.0), 40.0)
    assert queue.usage == {ANN: 40.0, Client(ANN.address): 40.0}
    clock.now += fair_queue.HALF_LIFE_S
    queue.pop()
    assert list(queue.usage.values()) == pytest.approx([20.0] * 2, rel=1e-3)
    clock.now += 100 * fair_queue.HALF_LIFE_S
    queue.finish(push(queue, "ben", BEN, 0.0), 1.0)
    assert set(queue.usage) == {BEN, Client(BEN.address)}


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
