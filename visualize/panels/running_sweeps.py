"""The sweeps of a session: the one that runs, and the last few that ended, to be looked at and resumed."""

from __future__ import annotations

import threading
from collections import OrderedDict

from kernels.compile_cost import hopeless
from kernels.experiment import resolved_gpu
from kernels.gpus import Gpu
from kernels.knobs import ConfigError
from kernels.results import Strategy, Sweep
from kernels.runner.session import Session
from kernels.space import Space
from kernels.sweep.here import sweeping_here
from kernels.sweep.sweeping import Sweeping
from visualize.models.predicted_order import predicted

# Rows of ended sweeps that are kept in memory, of all together; the oldest sweep goes first.
MOST_ROWS = 20_000

# A sweep that nobody watches is cancelled after so many seconds: a page that is opened anew takes less.
UNWATCHED_S = 30.0

# (the space's identity, the name of its GPU)
Key = tuple[str, str]


class RunningSweeps:
    """Sweeps of one session, by space and GPU: one runs at a time, as it takes all cores and the GPU."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: tuple[Key, Sweeping] | None = None
        self._ended: OrderedDict[Key, Sweep] = OrderedDict()
        self._watchers = 0
        self._unwatched: threading.Timer | None = None
        self._session: Session | None = None

    def start(self, session: Session, space: Space, strategy: Strategy) -> Sweeping:
        """Start a sweep, from the rows that an earlier one of the same space left; or the one that runs already.

        Raises:
            ConfigError: where a sweep of another space runs, or of another strategy.
        """
        if self._session is not session:
            self._session = session
            session.before_close(self._cancel)
        key = _key(space, resolved_gpu(space.base, session.gpu))
        with self._lock:
            if self._running is not None:
                running = self._running[1]
                if self._running[0] == key and running.strategy == strategy:
                    return running
                raise ConfigError(
                    "busy",
                    f"A sweep of {running.space.size:,} configs of {running.space.base.kernel} runs on this machine; "
                    "one runs at a time. Cancel it, or wait.",
                )
            before = self._ended.get(key)
            sweeping = sweeping_here(session, space, strategy, predicted, hopeless, before.rows if before else ())
            self._running = key, sweeping
            sweeping.start()
        threading.Thread(target=self._kept, args=(key, sweeping), daemon=True).start()
        self._watch(0)
        return sweeping

    def running(self, space: Space, gpu: Gpu) -> Sweeping | None:
        """The sweep of this space that is under way."""
        with self._lock:
            return self._running[1] if self._running and self._running[0] == _key(space, gpu) else None

    def found(self, space: Space, gpu: Gpu) -> Sweep | None:
        """What is known of a space: of the sweep under way so far, else of the last one."""
        running = self.running(space, gpu)
        if running is not None:
            return running.so_far()
        with self._lock:
            return self._ended.get(_key(space, gpu))

    def watched(self) -> Watch:
        """What a reader of the sweep under way holds, so that it goes on."""
        return Watch(self)

    def _kept(self, key: Key, sweeping: Sweeping) -> None:
        """Wait for its end, and keep what it found."""
        try:
            found = sweeping.result()
        except Exception:  # a defect of ours: whoever waits for the result gets it, too
            found = sweeping.so_far()
        with self._lock:
            self._ended[key] = found
            self._ended.move_to_end(key)
            while len(self._ended) > 1 and sum(len(one.rows) for one in self._ended.values()) > MOST_ROWS:
                self._ended.popitem(last=False)
            self._running = None

    def _cancel(self) -> None:
        with self._lock:
            running = self._running
        if running is not None:
            running[1].cancel()

    def _watch(self, more: int) -> None:
        with self._lock:
            self._watchers += more
            if self._unwatched is not None:
                self._unwatched.cancel()
                self._unwatched = None
            if not self._watchers and self._running is not None:
                self._unwatched = threading.Timer(UNWATCHED_S, self._cancel_unwatched, [self._running[1]])
                self._unwatched.daemon = True
                self._unwatched.start()

    def _cancel_unwatched(self, sweeping: Sweeping) -> None:
        with self._lock:
            is_alone = not self._watchers
        if is_alone:
            sweeping.cancel()


class Watch:
    """As long as somebody is in it, the sweep under way goes on."""

    def __init__(self, sweeps: RunningSweeps) -> None:
        self._sweeps = sweeps

    def __enter__(self) -> None:
        self._sweeps._watch(+1)

    def __exit__(self, *_: object) -> None:
        self._sweeps._watch(-1)


def _key(space: Space, gpu: Gpu) -> Key:
    return space.identity, gpu.name
