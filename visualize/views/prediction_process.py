"""Separate processes for predictions of large launches, which take seconds and up to 1.2 GB.

The page's process makes quick predictions itself, because a slider must not wait for another process.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from tilescope.measure.fair_queue import Call, Client
from tilescope.measure.pool import Pool
from tilescope.measure.session import Session
from tilescope.results import Failure
from visualize.views.state import Snapshot

V = TypeVar("V")

# Maximum core seconds of a prediction in the page's process.
NEAR_S = 0.3

# Maximum estimate of a prediction that may use the reserved process.
_SHORT_S = 2.0

_PROCESSES = 2


class PredictionProcess:
    """A pool of processes that predict, for all clients of a session.

    Attributes:
        warm_up_after_s: seconds from the first page view to the first process, so that the browser draws first.
    """

    warm_up_after_s = 3.0

    def __init__(self, session: Session) -> None:
        self.pool = Pool(
            "model", session.cache, _PROCESSES, (__name__, "visualize.web.redraw"), _SHORT_S
        )
        self._timer: threading.Timer | None = None
        session.before_close(self._close)

    def warm_up(self) -> None:
        """Start a process in the background, so that the first prediction need not wait 3 to 5 s for imports.

        Later calls do nothing.
        """
        if self._timer is None:
            self._timer = threading.Timer(
                self.warm_up_after_s, self.pool.submit, (Call("model", os.getpid),)
            )
            self._timer.daemon = True
            self._timer.start()

    def submit(
        self,
        function: Callable[..., V],
        snapshot: Snapshot,
        *args: Any,
        client: Client,
        estimate_s: float,
    ) -> Future[V | Failure]:
        """Call function(snapshot, *args) in another process. Cancel the returned future to give up.

        Args:
            function: a module-level function.
            args: hashable values.
        """
        identities = (
            arg.identity if isinstance(arg, Snapshot) else arg for arg in (snapshot, *args)
        )
        call = Call("model", function, (snapshot, *args), (function, *identities))
        return self.pool.submit(call, client, estimate_s)

    def _close(self) -> None:
        if self._timer:
            self._timer.cancel()
        self.pool.close()
