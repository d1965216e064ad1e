"""Workers that clients share: turns, the place that is kept, and what is refused. With workers that the test ends."""

from __future__ import annotations

import time

import pytest

from kernels.measuring import turns
from kernels.measuring.processes import Call
from kernels.measuring.turns import OURS, Client, Shared
from kernels.results import Failure

QUICK, SLOW = 1.0, 30.0
ANN, BEN = Client("10.0.0.1", "ann"), Client("10.0.0.2", "ben")
PATIENCE_S = 10


class Held:
    """Workers of one process that hold each call until the test ends it."""

    def __init__(self, taken):
        self._taken = taken
        self.closed = False

    def submit(self, function, stage, *args):
        call = Call(function, stage, args)
        self._taken.append(call)
        return call

    def close(self):
        self.closed = True


class Held2(Shared):
    """Two such workers.

    Attributes:
        taken: the calls that they took, in order.
    """

    def __init__(self):
        self.taken = []
        super().__init__(lambda: Held(self.taken), 2, quick_s=5.0, what="compiles")

    def ask(self, name, client, seconds=SLOW):
        return self.submit(print, "compile", name, client=client, seconds=seconds)

    def names(self, count):
        """The names of the calls that were taken, once there are so many."""
        deadline = time.monotonic() + PATIENCE_S
        while len(self.taken) < count:
            assert time.monotonic() < deadline, self.names(0)
            time.sleep(0.01)
        return [call.args[0] for call in self.taken]

    def never_more(self):
        """The names, after all that is free for them was served."""
        time.sleep(0.1)
        return self.names(0)

    def end(self, name, result="made"):
        next(call for call in self.taken if call.args[0] == name and not call.done()).set_result(result)


@pytest.fixture
def shared():
    made = Held2()
    yield made
    made.close()


def test_who_asks_for_much_waits_for_who_asks_for_little(shared):
    for number in range(4):
        shared.ask(f"ann {number}", ANN)
    assert shared.names(1) == ["ann 0"]
    shared.ask("ben", BEN)
    shared.end("ann 0")
    assert shared.names(2)[1:] == ["ben"]
    shared.end("ben")
    assert shared.names(3)[2:] == ["ann 1"]


def test_pages_of_one_address_take_turns(shared):
    other = Client(ANN.address, "other page")
    for number in range(3):
        shared.ask(f"ann {number}", ANN)
    shared.names(1)
    shared.ask("other", other)
    shared.end("ann 0")
    assert shared.names(2)[1:] == ["other"]


def test_a_place_is_kept_for_what_is_quick(shared):
    for number in range(4):
        shared.ask(f"ann {number}", ANN)
    assert shared.names(1) == ["ann 0"]
    assert shared.never_more() == ["ann 0"], "one of two places is kept"
    shared.ask("ben", BEN, QUICK)
    assert shared.names(2)[1:] == ["ben"]


def test_quick_calls_take_both_places(shared):
    for number in range(3):
        shared.ask(f"ann {number}", ANN, QUICK)
    assert shared.names(2) == ["ann 0", "ann 1"]


def test_who_is_over_its_budget_does_not_take_the_place_that_is_kept(shared):
    """An estimate can be wrong: what is said to be quick takes a minute, again and again."""
    shared._spent.add(ANN, turns.BUDGET_S + 1)
    shared.ask("ben slow", BEN)
    shared.names(1)
    shared.ask("ann", ANN, QUICK)
    assert shared.never_more() == ["ben slow"]
    shared.ask("ben", BEN, QUICK)
    assert shared.names(2)[1:] == ["ben"]
    shared.end("ben slow")
    assert shared.names(3)[2:] == ["ann"], "it waits for the others, and not for ever"


def test_what_was_spent_is_forgotten(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(turns.time, "monotonic", lambda: clock[0])
    spent = turns._Spent()
    spent.add(ANN, 40.0)
    assert spent.of(ANN) == (40.0, 40.0)
    assert spent.of(Client(ANN.address, "other")) == (40.0, 0.0)
    clock[0] += turns.HALF_LIFE_S
    spent.add(BEN, 1.0)
    assert spent.of(ANN) == (20.0, 20.0)
    clock[0] += 100 * turns.HALF_LIFE_S
    spent.add(BEN, 1.0)
    assert len(spent._seconds) == 2, "nothing is kept of clients that are long gone"


def test_a_page_has_a_bounded_number_waiting_and_hears_which(shared):
    shared.ask("ann", ANN)
    shared.names(1)
    waiting = [shared.ask(f"ann {number}", ANN) for number in range(turns.MOST_OF_A_PAGE)]
    refused = shared.ask("one more", ANN)
    assert isinstance(refused, Failure)
    assert (refused.stage, refused.kind) == ("compile", "busy")
    assert "8 compiles of this page or program wait already; at most 8 may." in refused.message
    assert not isinstance(shared.ask("ben", BEN), Failure)
    assert not isinstance(shared.ask("ours", OURS), Failure)
    waiting[-1].cancel()
    assert not isinstance(shared.ask("in its place", ANN), Failure)


def test_an_address_has_a_bounded_number_waiting_however_many_pages_it_opens(shared):
    refused = []
    for number in range(2 * turns.MOST_OF_AN_ADDRESS):
        asked = shared.ask(f"{number}", Client(ANN.address, f"page {number}"))
        refused += [asked] if isinstance(asked, Failure) else []
    assert refused
    assert "32 compiles from this address wait already; at most 32 may." in refused[0].message


def test_what_is_cancelled_while_it_waits_is_never_taken(shared):
    shared.ask("ann", ANN)
    shared.names(1)
    cancelled, kept = shared.ask("cancelled", ANN), shared.ask("kept", ANN)
    cancelled.cancel()
    shared.end("ann")
    assert shared.names(2)[1:] == ["kept"]
    shared.end("kept", "its result")
    assert kept.result(PATIENCE_S) == "its result"


def test_cancelling_what_is_under_way_ends_it(shared):
    turn = shared.ask("ann", ANN)
    shared.names(1)
    assert turn.cancel()
    assert shared.taken[0].cancelled()


def test_closing_ends_all(shared):
    waiting = [shared.ask(f"ann {number}", ANN) for number in range(3)]
    shared.names(1)
    shared.close()
    assert all(workers.closed for workers in shared._workers)
    assert all(turn.cancelled() for turn in waiting[1:])
    late = shared.ask("late", BEN)
    assert isinstance(late, Failure)
    assert late.message == "The page was closed."
