"""Share the page's own process among addresses: light ones go first, and heavy ones wait."""

import asyncio
import functools
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from kernels.knobs import ConfigError
from kernels.measuring.fair_queue import Call, Client, FairQueue, QueuedCall

F = TypeVar("F", bound=Callable[..., Any])

# Requests that run at once in the page's process: redraws, replies and pages. A short one spends half its time waiting
# for Python's lock. Heavy addresses get one turn at a time.
MAX_RUNNING = 6

# Maximum open requests of one address, which may be a classroom behind one router. An open page has two.
MAX_OPEN = 512

# Each address's share of the page's process: BURST units at once, then RATE per second. While others are active, all
# addresses that have used more share HEAVY_RATE. A unit is about 10 ms of CPU time: one request, a quarter of a queued
# event, three files, or UNIT_BYTES of a reply. A page that opens uses about 20 units.
BURST, RATE, HEAVY_RATE, UNIT_S = 50, 10, 40, 0.01
UNITS_PER_EVENT, UNITS_PER_FILE, UNIT_BYTES = 4, 0.3, 64 << 10

# Units that are charged at most, so that no address waits for minutes, and seconds for which a heavy address waits for
# light ones.
_MAX_USED, _YIELD_S = 5 * BURST, 2.0

# Seconds after its last request for which an address is active, and seconds until it is forgotten.
_ACTIVE_S, _FORGOTTEN_S = 3.0, 60.0


class Allowance:
    """Counts what each address uses, and says how long a heavy one should wait while others are active.

    Args:
        now: a clock in seconds.

    Attributes:
        heavy: addresses that have used more than BURST, until what they have used has decayed to 0.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._used: dict[str, tuple[float, float]] = {}  # units, and the time to which they have decayed
        self.heavy: set[str] = set()

    def charge(self, address: str, units: float) -> float:
        """Add to what an address has used. Return the seconds for which its next request should wait."""
        if not address:
            return 0.0
        now = self._now()
        used, before = self._used.pop(address, (0.0, now))
        if self._used and now - next(iter(self._used.values()))[1] > _FORGOTTEN_S:
            self._used = {each: entry for each, entry in self._used.items() if now - entry[1] <= _FORGOTTEN_S}
            self.heavy &= self._used.keys()
        has_company = bool(self._used) and now - next(reversed(self._used.values()))[1] < _ACTIVE_S
        rate = HEAVY_RATE / len(self.heavy) if address in self.heavy else RATE
        left = max(0.0, used - rate * (now - before))
        if not left:
            self.heavy.discard(address)
        used = min(_MAX_USED, left + units)
        if used > BURST:
            self.heavy.add(address)
        self._used[address] = used, now  # at the end: the first is the one that was active longest ago
        return max(0.0, used - BURST) * len(self.heavy) / HEAVY_RATE if has_company else 0.0


# CPU time that the current turn has used: a list of one number.
_CPU_S: ContextVar[list[float]] = ContextVar("cpu_s")


def metered(function: F) -> F:
    """Charge a function's CPU time to the current turn, in whose context it runs in a thread."""

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        began = time.thread_time()
        try:
            return function(*arguments)
        finally:
            _CPU_S.get([0.0])[0] += time.thread_time() - began

    return call  # type: ignore[return-value]


@contextmanager
def hold(counts: Counter[str], address: str) -> Iterator[None]:
    """Count a request of an address inside the block.

    Raises:
        ConfigError: too many requests of the address are open.
    """
    if counts[address] >= MAX_OPEN:
        sentence = f"{MAX_OPEN} requests of this address are open, which is the maximum. Try again later."
        raise ConfigError("busy", sentence)
    counts[address] += 1
    try:
        yield
    finally:
        counts[address] -= 1
        if not counts[address]:
            del counts[address]


# Stands for a request, which runs in this process, in a queue of calls.
_TURN: Call[None] = Call("turn", lambda: None)


class Turns:
    """Lets a few requests run at once. The next one belongs to the address with the lowest recent usage.

    Heavy addresses have one turn at a time. While a light one has a turn or waits for one, their next requests wait for
    up to `_YIELD_S`.
    """

    def __init__(self) -> None:
        self.allowance = Allowance()
        self._queue = FairQueue(MAX_RUNNING, reserved=MAX_RUNNING - 1, short_s=0.0)
        self._may_run: dict[QueuedCall[None], asyncio.Event] = {}
        self._open: Counter[str] = Counter()

    @asynccontextmanager
    async def take(self, address: str) -> AsyncIterator[None]:
        """Wait for a turn, and keep it inside the block.

        Raises:
            ConfigError: too many requests of the address are open.
        """
        with hold(self._open, address):
            estimate_s = 0.1 if address in self.allowance.heavy else 0.0
            turn, may_run, used = QueuedCall(_TURN, Client(address), estimate_s), asyncio.Event(), [0.0]
            self._queue.waiting.append(turn)
            self._may_run[turn] = may_run
            self._start()
            try:
                await may_run.wait()
                _CPU_S.set(used)
                yield
            finally:
                del self._may_run[turn]
                if turn in self._queue.running:
                    self._queue.finish(turn, used[0])
                    self.allowance.charge(address, used[0] / UNIT_S)
                else:
                    self._queue.waiting.remove(turn)
                self._start()

    async def wait_for_share(self, address: str, units: float) -> None:
        """Charge an address for its next request, and wait until it may be served. Files wait for no other address."""
        await asyncio.sleep(self.allowance.charge(address, units))
        deadline = time.monotonic() + (_YIELD_S if units > UNITS_PER_FILE else 0.0)
        while address in self.allowance.heavy and time.monotonic() < deadline and self._has_light():
            await asyncio.sleep(0.05)

    def _has_light(self) -> bool:
        return any(turn.client.address not in self.allowance.heavy for turn in self._may_run)

    def _start(self) -> None:
        while len(self._queue.running) < MAX_RUNNING and (turn := self._queue.pop()):
            self._may_run[turn].set()


# The turns of redraws, replies and pages.
TURNS = Turns()
