"""Tune a kernel over many problems: a sweep for each, with hints from the most similar problem that has been swept.

Sweeps run in this process (`LocalTuner`) or in those of a Dask cluster (`cluster.ClusterTuner`). Either way, all rows
are stored here as they arrive, so the same tuning later resumes from them.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Protocol

from tilescope.declare.gpus import Gpu
from tilescope.declare.space import Space
from tilescope.measure import worker
from tilescope.measure.fair_queue import Call
from tilescope.measure.session import Session
from tilescope.results import Strategy, Sweep
from tilescope.results.store import Store
from tilescope.results.sweep import ResumePoint
from tilescope.search import cases
from tilescope.search.search import Hints, log_errors
from tilescope.search.sweep_run import SweepRun, make_sweep

# One in this many configs is timed, but at least FEWEST_TIMED.
TIMED_SHARE = 4
FEWEST_TIMED = 8

# Configs of a similar problem that are tried first.
_WINNERS = 3

# Sweeps in progress per GPU: while one is timed, the next is compiled.
SWEEPS_PER_GPU = 2

# A sweep whose process dies is started again from its stored rows, so often.
_TRIES = 3


@dataclass(frozen=True)
class Task:
    """The arguments of one sweep."""

    space: Space
    strategy: Strategy
    resume: ResumePoint
    hints: Hints


class Tuner(Protocol):
    """Runs sweeps on GPUs of one kind.

    Attributes:
        gpu: the GPU that times the configs or, without one, that predictions are for.
    """

    gpu: Gpu

    def capacity(self) -> int:
        """Return the number of sweeps that can be in progress."""

    def submit(self, task: Task) -> Future[Sweep]:
        """Start a sweep. The future raises an exception if its process dies."""

    def cancel(self) -> None:
        """End all sweeps. Rows that are done are kept."""


class StoredRows:
    """Writes the rows of sweeps to a store as they arrive, and counts them.

    Attributes:
        done: number of configs that are done, by the sweep's name.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.done: dict[str, int] = {}

    def receive(self, method: str, arguments: Sequence[Any]) -> None:
        """Call a method of the store."""
        getattr(self._store, method)(*arguments)
        if method == "add_to_sweep":
            name, _, done, _ = arguments
            self.done[name] = done


class Relay(Store):
    """A store whose rows are written elsewhere.

    Args:
        send: called with the name of a method and its arguments.
    """

    def __init__(self, send: Callable[[str, Sequence[Any]], None]) -> None:
        super().__init__(None)
        self._send = send

    def begin_sweep(self, *arguments: Any) -> bool:
        self._send("begin_sweep", arguments)
        return True

    def add_to_sweep(self, *arguments: Any) -> bool:
        self._send("add_to_sweep", arguments)
        return True

    def end_sweep(self, *arguments: Any) -> bool:
        self._send("end_sweep", arguments)
        return True


class LocalTuner:
    """A `Tuner` on a session's GPU. It starts the session's workers at once."""

    def __init__(self, session: Session, gpu: Gpu, rows: StoredRows) -> None:
        self.gpu = gpu
        self._session = session
        self._relay = Relay(rows.receive)
        self._threads = ThreadPoolExecutor(SWEEPS_PER_GPU)
        self._runs: list[SweepRun] = []
        self._is_cancelled = False
        for _ in range(session.compilers.max_concurrency):
            session.compilers.submit(Call("worker", cases.warm_up))
        if session.gpu:
            session.runner.submit(Call("worker", worker.describe))

    def capacity(self) -> int:
        return SWEEPS_PER_GPU

    def submit(self, task: Task) -> Future[Sweep]:
        return self._threads.submit(self._run, task)

    def _run(self, task: Task) -> Sweep:
        session = self._session
        run = make_sweep(
            session, task.space, task.strategy, task.resume, session.compilers, self._relay, task.hints
        )  # fmt: skip
        self._runs.append(run)
        run.start()
        if self._is_cancelled:
            run.cancel()
        return run.result()

    def cancel(self) -> None:
        self._is_cancelled = True
        for run in self._runs:
            run.cancel()


def choose_strategy(space: Space, load: str, tries_all: bool) -> Strategy:
    """Return the strategy of a space's sweep."""
    if tries_all:
        return Strategy("grid", load=load)
    budget = max(FEWEST_TIMED, math.ceil(space.size / TIMED_SHARE))
    return Strategy("guided", budget=budget, patience=budget, load=load)


def tune(
    tuner: Tuner,
    spaces: Sequence[Space],
    store: Store,
    *,
    load: str = "sustained",
    tries_all: bool = False,
    is_anew: bool = False,
) -> Iterator[list[Sweep | None]]:
    """Sweep the spaces. Yield the sweeps that have ended, in the order of the spaces, each half second.

    Args:
        spaces: they have the same configs, of different problems.
        load: as in `Strategy`.
        tries_all: whether to time every config.
        is_anew: whether to ignore stored rows.
    """
    sweeps: list[Sweep | None] = [None] * len(spaces)
    tries = [0] * len(spaces)
    waiting = list(range(len(spaces)))
    running = dict[Future[Sweep], int]()
    while waiting or running:
        capacity = tuner.capacity()
        while waiting and len(running) < capacity:
            number = waiting.pop(0)
            space = spaces[number]
            stored = None if is_anew and not tries[number] else store.load_sweep(space, tuner.gpu)
            resume = stored[1] if stored else ResumePoint()
            strategy = choose_strategy(space, load, tries_all)
            hints = find_hints(space, [sweep for sweep in sweeps if sweep])
            running[tuner.submit(Task(space, strategy, resume, hints))] = number
        for future in wait(running, 0.5, FIRST_COMPLETED).done:
            number = running.pop(future)
            tries[number] += 1
            if future.exception() and tries[number] < _TRIES:
                waiting.insert(0, number)
            else:
                sweep = sweeps[number] = future.result()
                if sweep.ended == "cancelled":
                    waiting.clear()
        yield sweeps


def find_hints(space: Space, swept: Sequence[Sweep]) -> Hints:
    """Return what the sweep of the most similar problem says. The current config is tried first."""
    experiments = space.experiments
    first = [experiments.index(space.base)] if space.base in experiments else []
    timed = [sweep for sweep in swept if sweep.is_timed]
    if not timed:
        return Hints(tuple(first))
    nearest = min(timed, key=lambda sweep: distance(space, sweep.space))
    numbers = {id(row): number for number, row in enumerate(nearest.rows)}
    first += [numbers[id(row)] for row in nearest.ranked[:_WINNERS]]
    return Hints(tuple(dict.fromkeys(first)), tuple(log_errors(nearest.rows)))


def distance(space: Space, other: Space) -> float:
    """Return how different two spaces' problems are: the logarithms of their sizes' ratios, added up."""
    total = 0.0
    for name, value in vars(space.base.problem).items():
        else_value = vars(other.base.problem)[name]
        if isinstance(value, int | float) and value > 0 and else_value > 0:
            total += abs(math.log(value / else_value))
        else:
            total += 10 * (value != else_value)
    return total
