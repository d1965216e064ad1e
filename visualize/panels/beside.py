"""Processes beside the page's own, in which predictions of large launches are made: seconds, and up to a gigabyte.

What is cheap is predicted where it is asked for: a slider must not wait for a process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from kernels.measuring.processes import Workers
from kernels.measuring.session import Session
from kernels.measuring.turns import Shared, Turn
from kernels.measuring.under_way import UnderWay
from kernels.results import Failure
from visualize.panels.asker import asker
from visualize.state.known import Known

V = TypeVar("V")

# Seconds of a core up to which a prediction is made where it is asked for.
NEAR_S = 0.3

# A prediction that takes no longer may take the place that is kept for quick ones.
_QUICK_S = 2.0

_PROCESSES = 2

# Seconds after the first page was opened: by then a browser has drawn it.
_WARM_UP_AFTER_S = 3.0


class Beside:
    """What is predicted beside the page's process: clients in turns, the same work once for all who wait for it."""

    def __init__(self, session: Session) -> None:
        self._workers = Shared(
            lambda: Workers("model", session.machine.cache, preload=(__name__, "visualize.page.tab_drawing")),
            count=_PROCESSES,
            quick_s=_QUICK_S,
            what="predictions",
        )
        self._under_way: UnderWay[object, Any] = UnderWay("model")
        self._warming: threading.Timer | None = None
        session.before_close(self._close)

    def warm_up(self) -> None:
        """Have a process start soon, once: the first prediction would wait for what it imports, 3 to 5 s."""
        if self._warming is None:
            self._warming = threading.Timer(_WARM_UP_AFTER_S, self._workers.submit, (_nothing, "model"))
            self._warming.daemon = True
            self._warming.start()

    def asked(self, function: Callable[..., V], known: Known, *others: Any, seconds: float) -> Future[V | Failure]:
        """Call function(known, *others) in another process. Who wants the outcome no more cancels it.

        Args:
            function: of a module: the process finds it by name.
            others: values that can be compared and sent.
            seconds: that it takes, estimated.
        """

        def start() -> Turn[V | Failure] | Failure:
            return self._workers.submit(function, "model", known, *others, client=asker(), seconds=seconds)

        several = [one for one in (known, *others) if isinstance(one, Known)]
        plain = [one for one in others if not isinstance(one, Known)]
        return self._under_way.joined((function, *plain, *(one.identity for one in several)), start)

    def _close(self) -> None:
        if self._warming:
            self._warming.cancel()
        self._workers.close()


def _nothing() -> None:
    """The call of a process that is to be ready."""
