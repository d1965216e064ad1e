"""Tune a kernel over many problems. Each problem has a sweep, with hints from the most similar problem swept before.

Sweeps run in this process (`LocalTuner`) or on a Dask cluster (`cluster.ClusterTuner`). Either way, this process stores
all rows as they arrive, and a repeated tuning resumes from them.
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

# One in CONFIGS_PER_TIMED configs is timed, but at least FEWEST_TIMED.
CONFIGS_PER_TIMED = 4
FEWEST_TIMED = 8

# Number of the most similar problem's fastest configs to try first.
_WINNERS = 3

# Sweeps in progress per GPU: while one is timed, the next two are compiled.
SWEEPS_PER_GPU = 3

# Maximum number of attempts of a sweep whose process dies; each resumes from the stored rows.
_MAX_ATTEMPTS = 3


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
        gpu: the GPU that times the configs; if nothing is timed, the GPU that predictions are for.
    """

    gpu: Gpu

    def capacity(self) -> int:
        """Return the maximum number of concurrent sweeps."""

    def submit(self, task: Task) -> Future[Sweep]:
        """Start a sweep. The future raises an exception if its process dies."""

    def cancel(self) -> None:
        """Cancel all sweeps. Finished rows are kept."""


class StoredRows:
    """Writes the rows of sweeps to a store as they arrive, and counts them.

    Attributes:
        done: sweep name → number of finished configs.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.done: dict[str, int] = {}

    def receive(self, method: str, arguments: Sequence[Any]) -> None:
        """Call a method of the store by name."""
        getattr(self._store, method)(*arguments)
        if method == "add_to_sweep":
            name, _, done, _ = arguments
            self.done[name] = done


class Relay(Store):
    """A store that forwards writes instead of storing rows.

    Args:
        send: called with a method's name and arguments.
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


def warm_up(session: Session) -> None:
    """Start a session's workers in the background."""
    for _ in range(session.compilers.max_concurrency):
        session.compilers.submit(Call("worker", cases.warm_up))
    if session.gpu:
        session.runner.submit(Call("worker", worker.describe))


class LocalTuner:
    """A `Tuner` on a session's GPU. The constructor starts the session's workers."""

    def __init__(self, session: Session, gpu: Gpu, rows: StoredRows) -> None:
        self.gpu = gpu
        self._session = session
        self._relay = Relay(rows.receive)
        self._threads = ThreadPoolExecutor(SWEEPS_PER_GPU)
        self._runs: list[SweepRun] = []
        self._is_cancelled = False
        warm_up(session)

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


def choose_strategy(space: Space, tries_all: bool) -> Strategy:
    """Return the strategy for a sweep of a space."""
    if tries_all:
        return Strategy("grid")
    budget = max(FEWEST_TIMED, math.ceil(space.size / CONFIGS_PER_TIMED))
    return Strategy("guided", budget=budget, patience=budget)


def tune(
    tuner: Tuner,
    spaces: Sequence[Space],
    store: Store,
    *,
    tries_all: bool = False,
    from_scratch: bool = False,
) -> Iterator[list[Sweep | None]]:
    """Sweep the spaces. Every half second, yield a sweep per space: None until it has ended.

    Args:
        spaces: the same configs of different problems.
        tries_all: whether to time every config.
        from_scratch: ignore the rows of earlier sweeps.
    """
    sweeps: list[Sweep | None] = [None] * len(spaces)
    attempts = [0] * len(spaces)
    waiting = list(range(len(spaces)))
    running = dict[Future[Sweep], int]()
    while waiting or running:
        capacity = tuner.capacity()
        while waiting and len(running) < capacity:
            number = waiting.pop(0)
            space = spaces[number]
            stored = (
                None
                if from_scratch and not attempts[number]
                else store.load_sweep(space, tuner.gpu)
            )
            resume = stored[1] if stored else ResumePoint()
            strategy = choose_strategy(space, tries_all)
            hints = find_hints(space, [sweep for sweep in sweeps if sweep])
            running[tuner.submit(Task(space, strategy, resume, hints))] = number
        for future in wait(running, 0.5, FIRST_COMPLETED).done:
            number = running.pop(future)
            attempts[number] += 1
            if future.exception() and attempts[number] < _MAX_ATTEMPTS:
                waiting.insert(0, number)
            else:
                sweep = sweeps[number] = future.result()
                if sweep.ended == "cancelled":
                    waiting.clear()
        yield sweeps


def find_hints(space: Space, swept: Sequence[Sweep]) -> Hints:
    """Return hints from the sweep of the most similar problem. The current config is tried first."""
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
    """Return how different two problems are: the sum of |log(ratio)| of their sizes, plus 10 per other difference."""
    total = 0.0
    for name, value in vars(space.base.problem).items():
        other_value = vars(other.base.problem)[name]
        if isinstance(value, int | float) and value > 0 and other_value > 0:
            total += abs(math.log(value / other_value))
        else:
            total += 10 * (value != other_value)
    return total
