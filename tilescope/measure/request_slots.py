"""Share the server process fairly among client addresses: light clients go first."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from tilescope.measure.fair_queue import Call, Client, FairQueue, QueuedCall

T = TypeVar("T")

# Maximum concurrent redraws and replies in the server process. Even short ones spend half of their time waiting for the
# GIL.
MAX_RUNNING = 6

# An address whose recent usage exceeds BUDGET_S seconds of CPU time is heavy: sustained use of 10 % of a core. All
# heavy addresses together hold one slot, and use it half of the time while others are active. Opening the page takes
# 0.2 s.
BUDGET_S = 0.3
HALF_LIFE_S = 2.0

# Seconds charged for a running request until its CPU time is known. A new address therefore holds at most three slots.
_ESTIMATED_S = 0.2


class RequestSlots:
    """Threads for at most MAX_RUNNING concurrent requests. The address with the lowest recent usage goes next.

    Args:
        now: a clock in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._queue = FairQueue(
            MAX_RUNNING, MAX_RUNNING - 1, now=now, half_life_s=HALF_LIFE_S, budget_s=BUDGET_S
        )
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(MAX_RUNNING, "request")

    def submit(self, client: Client, function: Callable[..., T], *args: Any) -> Future[T]:
        """Call a function in a thread, and charge the client for the thread's CPU time.

        A cancelled call that has begun holds its slot until the function returns.
        """
        call: Call[Any] = Call("request", function, args)
        request = QueuedCall(call, client, _ESTIMATED_S, futures=[Future()])
        with self._lock:
            self._queue.waiting.append(request)
            self._start()
        return request.futures[0]

    def _start(self) -> None:
        while len(self._queue.running) < MAX_RUNNING and (request := self._queue.pop()):
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
        if self._must_rest(request):
            time.sleep(time.monotonic() - began)
        with self._lock:
            self._queue.finish(request, used_s)
            self._start()

    def _must_rest(self, request: QueuedCall) -> bool:
        with self._lock:
            is_heavy = self._queue.running[request]
            return is_heavy and any(
                client.address != request.client.address for client in self._queue.usage
            )


# The slots of redraws and replies.
REQUEST_SLOTS = RequestSlots()
