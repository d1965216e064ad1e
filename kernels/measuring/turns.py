"""Workers that several clients share: they are served in turns, and a place is kept for what is quick.

The next call is that of the client whose calls have taken the least time lately: of an address first, then of one page
among those of an address. So whoever asks for much waits for those who ask for little, and nobody for ever.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from kernels.measuring.processes import Call, Workers
from kernels.results import Failure

T = TypeVar("T")

# Calls that may wait at once for one page, and for all that ask from one address: a room full of people may be one.
MOST_OF_A_PAGE, MOST_OF_AN_ADDRESS = 8, 32

# Seconds after which half of what a client's calls took is forgotten.
HALF_LIFE_S = 120.0

# Seconds of work, so forgotten, within which a client's calls may take the place that is kept, as estimates can be
# wrong.
BUDGET_S = 30.0


@dataclass(frozen=True)
class Client:
    """Who asks: an address, and one page or program there. Without an address: this process itself, without bounds."""

    address: str = ""
    page: str = ""


OURS = Client()


class Turn(Call[T]):
    """A call that waits for its turn. Cancelling it gives up its place, or ends the worker that has taken it."""

    def __init__(
        self, function: Callable[..., T], stage: str, args: tuple[Any, ...], client: Client, seconds: float, number: int
    ) -> None:
        super().__init__(function, stage, args)
        self.client, self.seconds, self.number = client, seconds, number


class Shared:
    """Workers of one role, one process each, that clients share.

    Args:
        make: makes one process' Workers.
        count: of processes; one of several is kept for quick calls.
        quick_s: seconds that a quick call is estimated to take at most.
        what: the calls' name in a refusal.
    """

    def __init__(self, make: Callable[[], Workers], count: int, quick_s: float, what: str) -> None:
        self._workers = [make() for _ in range(count)]
        self._free = list(self._workers)
        self._quick_s, self._what = quick_s, what
        self._waiting: list[Turn[Any]] = []
        self._slow = 0
        self._spent = _Spent()
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._closed = False
        self._server: threading.Thread | None = None

    def submit(
        self, function: Callable[..., T], stage: str, *args: Any, client: Client = OURS, seconds: float = 0.0
    ) -> Turn[T] | Failure:
        """Queue a call; its deadline runs from when a worker takes it.

        A Failure where its client has too many waiting, and after `close`.

        Args:
            seconds: that it takes, estimated.
        """
        with self._changed:
            if self._closed:
                return Failure(stage, "cancelled", "The page was closed.")
            if refusal := self._refusal(client, stage):
                return refusal
            turn = Turn(function, stage, args, client, seconds, next(self._numbers))
            self._waiting.append(turn)
            if self._server is None:
                # A thread of its own: to start a process takes time, and who asks may be the page's event loop.
                self._server = threading.Thread(target=self._serve, name=f"serves {self._what}", daemon=True)
                self._server.start()
            self._changed.notify_all()
        return turn

    @property
    def open(self) -> int:
        """Calls that are under way or waiting."""
        with self._changed:
            waiting = sum(not turn.done() for turn in self._waiting)
            return waiting + len(self._workers) - len(self._free)

    def close(self) -> None:
        """Kill the processes for good; calls that are open are cancelled."""
        with self._changed:
            self._closed = True
            left, self._waiting = self._waiting, []
            self._changed.notify_all()
        for turn in left:
            turn.cancel()
        for workers in self._workers:
            workers.close()

    def _refusal(self, client: Client, stage: str) -> Failure | None:
        if not client.address:
            return None
        waiting = [turn.client for turn in self._waiting if not turn.done()]
        of_page, of_address = waiting.count(client), sum(one.address == client.address for one in waiting)
        if of_page >= MOST_OF_A_PAGE:
            said = f"{of_page} {self._what} of this page or program wait already; at most {MOST_OF_A_PAGE} may."
        elif of_address >= MOST_OF_AN_ADDRESS:
            said = f"{of_address} {self._what} from this address wait already; at most {MOST_OF_AN_ADDRESS} may."
        else:
            return None
        return Failure(stage, "busy", f"{said} Try again when some have ended.")

    def _serve(self) -> None:
        while True:
            with self._changed:
                while not self._closed and (turn := self._next()) is None:
                    self._changed.wait()
                if self._closed or turn is None:
                    return
                self._waiting.remove(turn)
                is_slow = not self._is_quick(turn)
                self._slow += is_slow
                workers = self._free.pop()
                self._spent.add(turn.client, turn.seconds)
            self._start(turn, workers, is_slow)

    def _start(self, turn: Turn[Any], workers: Workers, is_slow: bool) -> None:
        began = time.monotonic()

        def ended(call: Future[Any]) -> None:
            with self._changed:
                self._free.append(workers)
                self._slow -= is_slow
                self._spent.add(turn.client, time.monotonic() - began - turn.seconds)
                self._changed.notify_all()
            turn.end_as(call)

        try:
            call = workers.submit(turn.function, turn.stage, *turn.args)
        except RuntimeError:  # closed meanwhile
            turn.cancel()
            return
        turn.scheduled = call
        call.add_done_callback(ended)
        if turn.cancelled():
            call.cancel()

    def _next(self) -> Turn[Any] | None:
        """The call that is served next, where a worker is free for it."""
        self._waiting = [turn for turn in self._waiting if not turn.done()]
        if not self._free:
            return None
        keeps_place = len(self._workers) > 1 and self._slow >= len(self._workers) - 1
        may = [turn for turn in self._waiting if not keeps_place or self._is_quick(turn)]
        return min(may, key=lambda turn: (*self._spent.of(turn.client), turn.number), default=None)

    def _is_quick(self, turn: Turn[Any]) -> bool:
        """Whether it may take the place that is kept."""
        is_within = not turn.client.address or self._spent.of(turn.client)[0] <= BUDGET_S
        return is_within and turn.seconds <= self._quick_s


class _Spent:
    """Seconds of work that clients' calls took lately."""

    def __init__(self) -> None:
        self._seconds: dict[Client, float] = {}
        self._at = time.monotonic()

    def add(self, client: Client, seconds: float) -> None:
        now = time.monotonic()
        left = 0.5 ** ((now - self._at) / HALF_LIFE_S)
        self._at = now
        self._seconds = {one: spent * left for one, spent in self._seconds.items() if spent * left > _FORGOTTEN_S}
        for one in (client, Client(client.address)):
            self._seconds[one] = max(0.0, self._seconds.get(one, 0.0) + seconds)

    def of(self, client: Client) -> tuple[float, float]:
        """Of its address, and of itself."""
        return self._seconds.get(Client(client.address), 0.0), self._seconds.get(client, 0.0)


_FORGOTTEN_S = 1e-3
