"""The sweeps of a session: the one that runs, who takes part in it, and the last few that ended."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kernels.experiment import resolve_gpu
from kernels.gpus import Gpu
from kernels.knobs import ConfigError
from kernels.measuring.session import Session
from kernels.results import Strategy, Sweep
from kernels.results.store import Store, StoredSweep
from kernels.results.sweep import ResumePoint
from kernels.space import Space
from kernels.sweep.sweep_run import SweepRun, sweep_here
from visualize.predict.launch_time import predict_time

# (the space's identity, the name of its GPU)
Key = tuple[str, str]


@dataclass(frozen=True)
class _Ended:
    """A sweep in memory.

    Attributes:
        sweep: None where there is none that this version can read.
        stored: the latest sweep of its space in the store; if it differs now, the store has something newer.
        resume_point: for the next sweep of the space.
    """

    stored: StoredSweep | None
    sweep: Sweep | None
    resume_point: ResumePoint


class RunningSweeps:
    """Sweeps of one session, by space and GPU: one runs at a time, as it takes all cores and the GPU.

    Who follows the one that runs takes part in it, until they leave. Once nobody does, it is ended.

    Args:
        prepare: makes a sweep of a space.
        unwatched_s: after so many seconds a sweep that nobody takes part in is cancelled. To reload a page takes less.
        max_rows: of ended sweeps that are kept in memory, of all together; the oldest sweep goes first.
    """

    def __init__(
        self,
        prepare: Callable[..., SweepRun] = sweep_here,
        unwatched_s: float = 30.0,
        max_rows: int = 20_000,
    ) -> None:
        self._prepare, self._unwatched_s, self._max_rows = prepare, unwatched_s, max_rows
        self._lock = threading.Lock()
        self._running: tuple[Key, SweepRun] | None = None
        # Of one search: a sweep for each size so far. The last one is under way.
        self._search: list[SweepRun] = []
        self._ended: OrderedDict[Key, _Ended] = OrderedDict()
        self._followers: Counter[str] = Counter()
        self._left: set[str] = set()
        self._unwatched: threading.Timer | None = None
        self._session: Session | None = None

    def start(
        self,
        session: Session,
        space: Space,
        strategy: Strategy,
        who: str = "",
        anew: bool = False,
        then: Sequence[Space] = (),
    ) -> SweepRun:
        """Start a sweep, from the rows that an earlier one of the same space left; or take part in the one that runs.

        Args:
            who: starts it: the name of an open page, or of a call.
            anew: leaves the earlier rows aside.
            then: are swept after it, one after the other, unless it is cancelled.

        Raises:
            ConfigError: where a sweep of another space runs, or of another strategy.
        """
        if self._session is not session:
            self._session = session
            session.before_close(self._cancel)
        gpu = resolve_gpu(space.base, session.gpu)
        keys = [_key(one, gpu) for one in (space, *then)]
        before = None if anew else self._last(session.store, space, gpu)
        with self._lock:
            if self._running is not None:
                running = self._running[1]
                if self._running[0] in keys and running.strategy == strategy:
                    self._left.discard(who)
                    return running
                raise ConfigError(
                    "busy",
                    f"A sweep of {running.space.size:,} configs of {running.space.base.kernel} runs on this machine; "
                    "one runs at a time. Cancel it, or wait.",
                )
            self._left, self._search = set(), []
            sweeping = self._begun(session, space, strategy, before)
        args = session, gpu, sweeping, space, list(then), anew
        threading.Thread(target=self._kept, args=args, daemon=True).start()
        self._follow("", 0)
        return sweeping

    def _begun(self, session: Session, space: Space, strategy: Strategy, before: _Ended | None) -> SweepRun:
        """A sweep that has just been started. With the lock held."""
        resume = before.resume_point if before else ResumePoint()
        sweeping = self._prepare(session, space, strategy, predict_time, resume)
        self._running = _key(space, sweeping.gpu), sweeping
        self._search.append(sweeping)
        sweeping.start()
        return sweeping

    def running(self, space: Space, gpu: Gpu) -> SweepRun | None:
        """The sweep of this space that is under way."""
        with self._lock:
            return self._running[1] if self._running and self._running[0] == _key(space, gpu) else None

    def found(self, store: Store, space: Space, gpu: Gpu) -> Sweep | None:
        """What is known of a space: of the sweep under way so far, else of the last one, here or as it is stored."""
        running = self.running(space, gpu)
        if running is not None:
            return running.snapshot()
        last = self._last(store, space, gpu)
        return last.sweep if last else None

    def is_over(self, store: Store, space: Space, gpu: Gpu) -> bool:
        """Whether a sweep of a space went to its end, and another would go on from it."""
        last = self._last(store, space, gpu)
        return (
            last is not None
            and last.sweep is not None
            and last.sweep.final is not None
            and bool(last.resume_point.rows)
        )

    def knows(self, store: Store, space: Space, gpu: Gpu) -> bool:
        """Whether `found` finds anything, without reading its rows."""
        with self._lock:
            is_here = _key(space, gpu) in self._ended
        return is_here or self.running(space, gpu) is not None or store.latest_sweep(space, gpu) is not None

    def leave(self, sweeping: SweepRun, who: str) -> int:
        """Take no part in a sweep any more. Once nobody does, it is cancelled, or what came after it in its search.

        Returns:
            How many others there are.
        """
        with self._lock:
            self._left.add(who)
            others = len(self._taking_part())
            under_way = self._search[-1] if sweeping in self._search else sweeping
        if not others:
            under_way.cancel()
        return others

    def followed(self, who: str) -> Follower:
        """What a follower of the sweep under way holds, so that it goes on."""
        return Follower(self, who)

    def _taking_part(self) -> set[str]:
        """With the lock held."""
        return set(self._followers) - self._left

    def _last(self, store: Store, space: Space, gpu: Gpu) -> _Ended | None:
        """The last sweep of a space that ended: the one in memory, unless another is stored by now."""
        key, stored = _key(space, gpu), store.latest_sweep(space, gpu)
        with self._lock:
            here = self._ended.get(key)
        if stored is None or (here is not None and here.stored == stored):
            return here
        read = store.load_sweep(space, gpu)
        if read is not None:
            return self._remembered(key, _Ended(stored, *read))
        return self._remembered(key, replace(here, stored=stored) if here else _Ended(stored, None, ResumePoint()))

    def _remembered(self, key: Key, ended: _Ended) -> _Ended:
        with self._lock:
            self._ended[key] = ended
            self._ended.move_to_end(key)
            while len(self._ended) > 1 and self._rows() > self._max_rows:
                self._ended.popitem(last=False)
        return ended

    def _rows(self) -> int:
        return sum(len(one.sweep.rows) for one in self._ended.values() if one.sweep)

    def _kept(
        self, session: Session, gpu: Gpu, sweeping: SweepRun, space: Space, then: list[Space], anew: bool
    ) -> None:
        """Wait for its end, and keep what it found; so for each that is to follow."""
        try:
            while self._ended_well(session.store, space, gpu, sweeping) and then:
                space = then.pop(0)
                before = None if anew else self._last(session.store, space, gpu)
                with self._lock:
                    if self._left and not self._taking_part():
                        break  # cancelled between two sweeps
                    sweeping = self._begun(session, space, sweeping.strategy, before)
                self._follow("", 0)
        finally:
            with self._lock:
                self._running = None

    def _ended_well(self, store: Store, space: Space, gpu: Gpu, sweeping: SweepRun) -> bool:
        """Wait for a sweep's end, and keep what it found. Returns whether another may follow."""
        try:
            found = sweeping.result()
        except Exception:  # a defect of ours: whoever waits for the result gets it, too
            found = sweeping.snapshot()
        resume_point = ResumePoint(found.rows, sweeping.name)
        self._remembered(_key(space, gpu), _Ended(store.latest_sweep(space, gpu), found, resume_point))
        return found.ended not in ("cancelled", "failed", "running")

    def _cancel(self) -> None:
        with self._lock:
            running = self._running
        if running is not None:
            running[1].cancel()

    def _follow(self, who: str, more: int) -> None:
        with self._lock:
            self._followers[who] += more
            self._followers += Counter()  # without those who are gone
            if self._unwatched is not None:
                self._unwatched.cancel()
                self._unwatched = None
            if not self._taking_part() and self._running is not None:
                self._unwatched = threading.Timer(self._unwatched_s, self._cancel_unwatched, [self._running[1]])
                self._unwatched.daemon = True
                self._unwatched.start()

    def _cancel_unwatched(self, sweeping: SweepRun) -> None:
        with self._lock:
            is_alone = not self._taking_part()
        if is_alone:
            sweeping.cancel()


class Follower:
    """As long as somebody is in it, and has not left, the sweep under way goes on."""

    def __init__(self, sweeps: RunningSweeps, who: str) -> None:
        self._sweeps, self._who = sweeps, who

    def __enter__(self) -> None:
        self._sweeps._follow(self._who, +1)

    def __exit__(self, *_: object) -> None:
        self._sweeps._follow(self._who, -1)


def _key(space: Space, gpu: Gpu) -> Key:
    return space.identity, gpu.name
