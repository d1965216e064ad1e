"""Share the server process fairly among client addresses: light clients go first, and heavy clients are throttled."""

import asyncio
import functools
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

from tilescope.declare.knobs import ConfigError
from tilescope.measure.fair_queue import Call, Client, FairQueue, QueuedCall

P = ParamSpec("P")
T = TypeVar("T")

# Maximum concurrent requests in the server process: redraws, replies and pages. Even short requests spend half of their
# time waiting for the GIL. At most one of these slots serves heavy addresses.
MAX_RUNNING = 6

# Maximum open requests per address. A classroom behind one router shares an address. An open page holds at most two
# requests: one for its content, and one for an action.
MAX_OPEN = 512

# An address is heavy if it uses more than BURST units at once and then RATE units per second. While other addresses are
# active, all heavy addresses share HEAVY_RATE. A unit is about 10 ms of CPU time. A message or a page costs 1 unit, an
# API call 4, a file 0.3 (0.1 if it is the page's own, which is in memory), and each UNIT_BYTES of a reply 1. Opening
# the page costs about 20.
BURST = 30
RATE = 10
HEAVY_RATE = 40
UNIT_S = 0.01
UNITS_PER_EVENT = 4
UNITS_PER_FILE = 0.3
UNITS_PER_ASSET = 0.1
UNIT_BYTES = 64 << 10

# Maximum level of a bucket, which bounds a request's delay, and maximum seconds for which a heavy address yields to
# light ones.
_MAX_LEVEL = 8 * BURST
_YIELD_S = 2.0

# Seconds for which an address counts as active after its last request, and seconds until its usage is forgotten.
_ACTIVE_S = 3.0
_FORGOTTEN_S = 60.0

# Units charged for a running request until its CPU time is known. A new address therefore holds at most two slots, and
# an address near BURST holds one.
_ESTIMATED_UNITS = 20


class LeakyBuckets:
    """A leaky bucket per address. Computes how long a heavy address must wait while other addresses are active.

    Args:
        now: a clock in seconds.

    Attributes:
        heavy: addresses that have exceeded BURST units. Each stays here until its bucket is empty or forgotten.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._buckets: dict[
            str, tuple[float, float]
        ] = {}  # level in units, last update; least recently active first
        self.heavy: set[str] = set()

    def charge(self, address: str, units: float) -> float:
        """Add the units of a request to its address's bucket. Return the seconds by which to delay the request."""
        if not address:
            return 0.0
        now = self._now()
        level, updated = self._buckets.pop(address, (0.0, now))
        for oldest, (_, last) in [*self._buckets.items()]:
            if now - last <= _FORGOTTEN_S:
                break
            del self._buckets[oldest]
            self.heavy.discard(oldest)
        _, latest = next(reversed(self._buckets.values()), (0.0, -math.inf))
        rate = HEAVY_RATE / len(self.heavy) if address in self.heavy else RATE
        level = max(0.0, level - rate * (now - updated))
        if not level:
            self.heavy.discard(address)
        level = min(_MAX_LEVEL, level + units)
        if level > BURST:
            self.heavy.add(address)
        self._buckets[address] = level, now
        return (
            max(0.0, level - BURST) * len(self.heavy) / HEAVY_RATE
            if now - latest < _ACTIVE_S
            else 0.0
        )

    def is_light(self, address: str, running_units: float) -> bool:
        """Return whether an address stays within BURST units if its running requests use `running_units`."""
        level, _ = self._buckets.get(address, (0.0, 0.0))
        return address not in self.heavy and level + running_units <= BURST


# CPU seconds used by the current slot, in a list because the contexts of its threads are copies and must share it.
_CPU_S: ContextVar[list[float]] = ContextVar("cpu_s")


def charge_cpu_time(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap a function to charge its thread's CPU time to the slot that the calling context holds."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        began = time.thread_time()
        try:
            return function(*args, **kwargs)
        finally:
            _CPU_S.get([0.0])[0] += time.thread_time() - began

    return call


@contextmanager
def limit_open(counts: Counter[str], address: str) -> Iterator[None]:
    """Count an open request of an address for the duration of the block.

    Raises:
        ConfigError: the address already has MAX_OPEN requests.
    """
    if counts[address] >= MAX_OPEN:
        sentence = f"This address already has {MAX_OPEN} open requests, which is the maximum. Try again later."
        raise ConfigError("busy", sentence)
    counts[address] += 1
    try:
        yield
    finally:
        counts[address] -= 1
        if not counts[address]:
            del counts[address]


# FairQueue schedules Calls for worker processes. Requests run in this process, so each queues this placeholder.
_PLACEHOLDER: Call[None] = Call("request", lambda: None)


class _RequestQueue(FairQueue):
    """The requests that wait for a slot or hold one. All slots except one are reserved for light addresses."""

    def __init__(self, buckets: LeakyBuckets) -> None:
        super().__init__(MAX_RUNNING, reserved=MAX_RUNNING - 1)
        self._buckets = buckets

    def _is_short(self, queued: QueuedCall) -> bool:
        address = queued.client.address
        running_s = sum(each.estimate_s for each in self.running if each.client == queued.client)
        is_light = not address or self._buckets.is_light(address, running_s / UNIT_S)
        return is_light and super()._is_short(queued)


class RequestSlots:
    """Runs at most MAX_RUNNING requests at a time. The address with the lowest recent usage goes next.

    All heavy addresses together hold at most one slot. An address's running requests count as usage.
    """

    def __init__(self) -> None:
        self.buckets = LeakyBuckets()
        self._queue = _RequestQueue(self.buckets)
        self._may_run: dict[QueuedCall, asyncio.Event] = {}
        self._open: Counter[str] = Counter()

    @asynccontextmanager
    async def acquire(
        self, address: str, estimated_units: float = _ESTIMATED_UNITS
    ) -> AsyncIterator[None]:
        """Wait for a slot, and hold it for the duration of the block.

        Raises:
            ConfigError: the address already has MAX_OPEN requests.
        """
        with limit_open(self._open, address):
            request = QueuedCall(_PLACEHOLDER, Client(address), estimated_units * UNIT_S)
            may_run = asyncio.Event()
            used_s = [0.0]
            self._queue.waiting.append(request)
            self._may_run[request] = may_run
            self._start()
            try:
                await may_run.wait()
                _CPU_S.set(used_s)
                yield
            finally:
                del self._may_run[request]
                if request in self._queue.running:
                    self._queue.finish(request, used_s[0])
                    self.buckets.charge(address, used_s[0] / UNIT_S)
                else:
                    self._queue.waiting.remove(request)
                self._start()

    async def throttle(self, address: str, units: float) -> None:
        """Charge an address for a request, and delay the request if the address is heavy.

        Unless the request is for a file, a heavy address then yields while a light one uses or awaits a slot, for up to
        `_YIELD_S`.
        """
        await asyncio.sleep(self.buckets.charge(address, units))
        deadline = time.monotonic() + (_YIELD_S if units > UNITS_PER_FILE else 0.0)
        while address in self.buckets.heavy and time.monotonic() < deadline and self._has_light():
            await asyncio.sleep(0.05)

    def _has_light(self) -> bool:
        return any(request.client.address not in self.buckets.heavy for request in self._may_run)

    def _start(self) -> None:
        while len(self._queue.running) < MAX_RUNNING and (request := self._queue.pop()):
            self._may_run[request].set()


# The slots of redraws, replies and pages.
REQUEST_SLOTS = RequestSlots()
