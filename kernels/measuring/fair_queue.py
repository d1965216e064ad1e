"""A fair queue of calls: light clients go first, and one worker is reserved for short calls."""

import asyncio
import contextvars
import functools
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from kernels.knobs import ConfigError
from kernels.results import Failure

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

# Maximum waiting calls per page and per address. A room full of people may share an address.
MAX_WAITING_PER_PAGE, MAX_WAITING_PER_ADDRESS = 8, 32

# Requests that run at once in the page's process: redraws, replies and pages. A short one spends half its time waiting
# for Python's lock. Heavy addresses get one turn at a time.
MAX_RUNNING = 6

# Maximum open requests of one address, which may be a classroom behind one router. An open page has two.
MAX_OPEN = 512

# Seconds after which half of a client's usage is forgotten.
HALF_LIFE_S = 120.0

# Seconds of usage above which an address loses access to the reserved worker, because its estimates may be too low.
BUDGET_S = 30.0

# Usage below which a client is forgotten.
_NEGLIGIBLE_S = 1e-3


@dataclass(frozen=True)
class Client:
    """The source of a request: an address, and one page or program there."""

    address: str = ""
    page: str = ""


# This process itself. It has no address, and no limits apply to it.
INTERNAL = Client()


@dataclass(frozen=True)
class Call(Generic[T]):
    """A call that a worker process can make.

    Attributes:
        stage: one of DEADLINES_S; a Failure names it.
        function: a module-level function, because the worker imports it by name.
        key: calls in flight with the same key share one execution; None for a call that is never shared.
        deadline_s: seconds that a worker may take; None for the stage's entry in DEADLINES_S.
    """

    stage: str
    function: Callable[..., T | Failure]
    args: tuple[Any, ...] = ()
    key: Hashable = None
    deadline_s: float | None = None


@dataclass(eq=False)
class QueuedCall(Generic[T]):
    """A call and the futures of all its waiters.

    Attributes:
        estimate_s: the call's estimated duration.
        on_result: called with a result that is not a Failure, before any future receives it.
        context: the request's context, by which ZeroGPU's hub identifies the visitor.
        started: the time at which a worker took the call; infinity until then.
    """

    call: Call[T]
    client: Client = INTERNAL
    estimate_s: float = 0.0
    on_result: Callable[[T], None] | None = None
    futures: list[Future[T | Failure]] = field(default_factory=list)
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    started: float = math.inf

    @property
    def has_waiters(self) -> bool:
        return not all(future.cancelled() for future in self.futures)


class FairQueue:
    """Calls that wait for a worker, and calls that a worker has taken.

    The next call belongs to the client with the lowest recent usage: by address, then by page, then first come, first
    served. Heavy clients wait for light ones, and no client starves. Not thread-safe.

    Args:
        workers: number of calls that can run at a time.
        reserved: number of workers for short calls alone, if there are more workers.
        short_s: calls with a longer estimate are long.
        now: a clock in seconds.

    Attributes:
        waiting: calls in order of arrival.
        running: calls that workers have taken, and whether each is long.
        usage: seconds of recent work of each client and of each address. Negligible usage is forgotten.
    """

    def __init__(
        self, workers: int, reserved: int = 1, short_s: float = math.inf, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._most_long, self._short_s, self._now = max(1, workers - reserved), short_s, now
        self._workers = workers
        self.waiting: list[QueuedCall[Any]] = []
        self.running: dict[QueuedCall[Any], bool] = {}
        self.usage: dict[Client, float] = {}
        self._updated = now()

    def explain_refusal(self, client: Client) -> str:
        """Return why the client may queue no more calls, as a sentence; "" if it may."""
        if not client.address:
            return ""
        clients = [queued.client for queued in self.waiting]
        for count, limit, source in (
            (clients.count(client), MAX_WAITING_PER_PAGE, "from this page or program"),
            (sum(c.address == client.address for c in clients), MAX_WAITING_PER_ADDRESS, "from this address"),
        ):
            if count >= limit:
                return f"{count} jobs {source} are queued; the limit is {limit}. Try again when some have finished."
        return ""

    def pop(self) -> QueuedCall[Any] | None:
        """Return the call that a free worker takes next; None if no call may run now."""
        self._decay()
        is_reserved = self._workers > 1 and sum(self.running.values()) >= self._most_long
        eligible = [queued for queued in self.waiting if not is_reserved or self._is_short(queued)]
        if not eligible:
            return None
        queued = min(eligible, key=lambda queued: self._usage_of(queued.client))
        self.waiting.remove(queued)
        self.running[queued] = not self._is_short(queued)
        self._charge(queued.client, queued.estimate_s)
        return queued

    def finish(self, queued: QueuedCall[Any], seconds: float) -> None:
        """Free the call's worker, and charge the client for the seconds that the call took."""
        self.running.pop(queued, None)
        self._charge(queued.client, seconds - queued.estimate_s)

    def _is_short(self, queued: QueuedCall[Any]) -> bool:
        is_within_budget = not queued.client.address or self._usage_of(queued.client)[0] <= BUDGET_S
        return is_within_budget and queued.estimate_s <= self._short_s

    def _usage_of(self, client: Client) -> tuple[float, float]:
        """Return the usage of the client's address, and of its page, at the last decay."""
        return self.usage.get(Client(client.address), 0.0), self.usage.get(client, 0.0)

    def _charge(self, client: Client, seconds: float) -> None:
        self._decay()
        for entry in (client, Client(client.address)):
            self.usage[entry] = max(0.0, self.usage.get(entry, 0.0) + seconds)

    def _decay(self) -> None:
        """Decay the usage of all clients to the same time, so that ties stay ties."""
        now = self._now()
        factor = 0.5 ** ((now - self._updated) / HALF_LIFE_S)
        self._updated = now
        self.usage = {entry: s * factor for entry, s in self.usage.items() if s * factor > _NEGLIGIBLE_S}


# What an address may use of the page's process: BURST units at once, then RATE per second. While others are active, all
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
    """Tells an address that uses much to wait while others are active.

    Args:
        now: a clock in seconds.

    Attributes:
        heavy: addresses that have used more than BURST, until all is forgiven.
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
        others = [at for _, at in self._used.values()]
        if others and now - others[0] > _FORGOTTEN_S:
            self._used = {each: entry for each, entry in self._used.items() if now - entry[1] <= _FORGOTTEN_S}
            self.heavy &= self._used.keys()
        has_company = bool(others) and now - others[-1] < _ACTIVE_S
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
