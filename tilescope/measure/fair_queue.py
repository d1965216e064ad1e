"""Fair queues: light clients go first, and one worker is reserved for short calls.

`FairQueue` orders the calls of a pool of workers, and `RequestSlots` shares the server process among client addresses.
"""

import contextvars
import math
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from tilescope.results import Failure

T = TypeVar("T")

# Maximum waiting calls per page and per address. A room full of people may share an address.
MAX_WAITING_PER_PAGE = 8
MAX_WAITING_PER_ADDRESS = 32

# The half-life of usage and the budget of an address, for calls to worker processes.
HALF_LIFE_S = 120.0
BUDGET_S = 30.0

# Usage below which a client is forgotten.
_NEGLIGIBLE_S = 1e-3

# Maximum concurrent redraws and replies in the server process. Even short ones spend half of their time waiting for the
# GIL.
MAX_REQUESTS = 6
# An address whose recent usage exceeds this many seconds of CPU time is heavy: sustained use of 10 % of a core. All
# heavy addresses together hold one slot, and use it half of the time while others are active. Opening the page takes
# 0.2 s.
REQUEST_BUDGET_S = 0.3
_REQUEST_HALF_LIFE_S = 2.0
# Seconds charged for a running request until its CPU time is known. A new address therefore holds at most three slots.
_REQUEST_ESTIMATE_S = 0.2


@dataclass(frozen=True)
class Client:
    """The source of a request: an address, and one page or program at that address."""

    address: str = ""
    page: str = ""


# This process itself. It has no address, and no limits apply to it.
INTERNAL = Client()


@dataclass(frozen=True)
class Call(Generic[T]):
    """A call that a worker process can make.

    Attributes:
        stage: a key of DEADLINES_S, named in a Failure.
        function: a module-level function, because the worker imports it by name.
        key: calls in flight with the same key share one execution; None for a call that is never shared.
    """

    stage: str
    function: Callable[..., T | Failure]
    args: tuple[Any, ...] = ()
    key: Hashable = None


@dataclass(eq=False)
class QueuedCall:
    """A call and the futures of all its waiters.

    Attributes:
        estimate_s: the call's estimated duration.
        on_result: called with the result or Failure of a call that a worker took, before any future receives it.
        context: the request's context, which tells ZeroGPU's hub who the visitor is.
        started: the time at which a worker took the call; infinity until then.
    """

    call: Call[Any]
    client: Client = INTERNAL
    estimate_s: float = 0.0
    on_result: Callable[[Any], None] | None = None
    futures: list[Future[Any]] = field(default_factory=list)
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    started: float = math.inf

    @property
    def has_waiters(self) -> bool:
        return bool(self.futures)


class FairQueue:
    """The waiting and the running calls of a pool.

    The next call comes from the client with the lowest recent usage: by address, then by page, then first come, first
    served. Heavy clients wait for light ones, and no client starves. Not thread-safe.

    Args:
        workers: number of calls that can run at a time.
        reserved: number of workers that take only short calls. At least one worker takes calls of any length.
        short_s: calls with a longer estimate are long.
        now: a clock in seconds.
        half_life_s: seconds after which half of a client's usage is forgotten.
        budget_s: seconds of usage above which an address loses access to the reserved workers, because its estimates
            may be too low.

    Attributes:
        waiting: calls in order of arrival.
        running: call that a worker has taken → whether the call is long.
        usage: recent seconds of work per client and per address. Negligible usage is forgotten.
    """

    def __init__(
        self,
        workers: int,
        reserved: int = 1,
        short_s: float = math.inf,
        now: Callable[[], float] = time.monotonic,
        half_life_s: float = HALF_LIFE_S,
        budget_s: float = BUDGET_S,
    ) -> None:
        self._half_life_s = half_life_s
        self._budget_s = budget_s
        self._most_long = max(1, workers - reserved)
        self._short_s = short_s
        self._now = now
        self.waiting: list[QueuedCall] = []
        self.running: dict[QueuedCall, bool] = {}
        self.usage: dict[Client, float] = {}
        self._updated = now()

    def explain_refusal(self, client: Client) -> str:
        """Return a sentence that says why the client may not queue another call; "" if it may."""
        if not client.address:
            return ""
        clients = [queued.client for queued in self.waiting]
        for count, limit, source in (
            (clients.count(client), MAX_WAITING_PER_PAGE, "from this page or program"),
            (
                sum(c.address == client.address for c in clients),
                MAX_WAITING_PER_ADDRESS,
                "from this address",
            ),
        ):
            if count >= limit:
                return f"{count} jobs {source} are queued; the limit is {limit}. Try again when some have finished."
        return ""

    def pop(self) -> QueuedCall | None:
        """Return the call that a free worker takes next; None if no call may run now."""
        self._decay()
        is_reserved = sum(self.running.values()) >= self._most_long
        eligible = [queued for queued in self.waiting if not is_reserved or self._is_short(queued)]
        if not eligible:
            return None
        queued = min(eligible, key=lambda queued: self._usage_of(queued.client))
        self.waiting.remove(queued)
        self.running[queued] = not self._is_short(queued)
        self._charge(queued.client, queued.estimate_s)
        return queued

    def finish(self, queued: QueuedCall, seconds: float) -> None:
        """Free the call's worker, and charge the client for the seconds that the call took."""
        self.running.pop(queued, None)
        self._charge(queued.client, seconds - queued.estimate_s)

    def _is_short(self, queued: QueuedCall) -> bool:
        is_within_budget = (
            not queued.client.address or self._usage_of(queued.client)[0] <= self._budget_s
        )
        return is_within_budget and queued.estimate_s <= self._short_s

    def _usage_of(self, client: Client) -> tuple[float, float]:
        """Return the usage of the client's address and of its page, as of the last decay."""
        return self.usage.get(Client(client.address), 0.0), self.usage.get(client, 0.0)

    def _charge(self, client: Client, seconds: float) -> None:
        self._decay()
        for entry in {client, Client(client.address)}:
            self.usage[entry] = max(0.0, self.usage.get(entry, 0.0) + seconds)

    def _decay(self) -> None:
        """Decay the usage of all clients to the same time, so that ties stay ties."""
        now = self._now()
        factor = 0.5 ** ((now - self._updated) / self._half_life_s)
        self._updated = now
        self.usage = {
            entry: s * factor for entry, s in self.usage.items() if s * factor > _NEGLIGIBLE_S
        }


class RequestSlots:
    """Threads for at most MAX_REQUESTS concurrent requests. The address with the lowest recent usage goes next.

    Args:
        now: a clock in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._queue = FairQueue(
            MAX_REQUESTS,
            MAX_REQUESTS - 1,
            now=now,
            half_life_s=_REQUEST_HALF_LIFE_S,
            budget_s=REQUEST_BUDGET_S,
        )
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(MAX_REQUESTS, "request")

    def submit(self, client: Client, function: Callable[..., T], *args: Any) -> Future[T]:
        """Call a function in a thread, and charge the client for the thread's CPU time.

        A cancelled call that has begun holds its slot until the function returns.
        """
        call: Call[Any] = Call("request", function, args)
        request = QueuedCall(call, client, _REQUEST_ESTIMATE_S, futures=[Future()])
        with self._lock:
            self._queue.waiting.append(request)
            self._start()
        return request.futures[0]

    def _start(self) -> None:
        while len(self._queue.running) < MAX_REQUESTS and (request := self._queue.pop()):
            self._threads.submit(self._run, request)

    def _run(self, request: QueuedCall) -> None:
        began = time.monotonic()
        began_cpu_s = time.thread_time()
        future = request.futures[0]
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(request.context.run(request.call.function, *request.call.args))
            except BaseException as error:
                future.set_exception(error)
        used_s = time.thread_time() - began_cpu_s
        with self._lock:
            others = {client.address for client in self._queue.usage} - {request.client.address}
            must_rest = others and self._queue.running[request]
        if must_rest:
            time.sleep(time.monotonic() - began)
        with self._lock:
            self._queue.finish(request, used_s)
            self._start()


# The slots of redraws and replies.
REQUEST_SLOTS = RequestSlots()
