"""Tune a kernel: the best config of each problem, and a short list for most of them.

Each problem has a sweep. The page sweeps one problem at a time (`Sweeps`). `tune` sweeps many, with hints from the most
similar problem swept before, in this process (`LocalTuner`) or on a Dask cluster (`cluster.ClusterTuner`). Either way,
this process stores all rows as they arrive, and a repeated tuning resumes from them.
"""

import math
import textwrap
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

from tilescope.declare.experiment import Experiment, Json, distance, resolve_gpu
from tilescope.declare.gpus import Gpu
from tilescope.declare.knobs import ConfigError
from tilescope.declare.space import Space
from tilescope.measure import worker
from tilescope.measure.fair_queue import Call
from tilescope.measure.session import BoundedCache, Session
from tilescope.numbers import count_noun, percent, significant, time_unit
from tilescope.results import Sweep, SweepRow
from tilescope.results.store import Store
from tilescope.search import cases
from tilescope.search.search import Hints, Task, log_errors
from tilescope.search.sweep_run import SweepRun, make_sweep

# Of each problem, one in CONFIGS_PER_TIMED configs is timed, but at least FEWEST_TIMED.
CONFIGS_PER_TIMED = 4
FEWEST_TIMED = 8

# The page and `/sweep` time at most this many configs. On the recorded searches, timing all 212 selects no better one.
PAGE_BUDGET = 50

# Number of the most similar problem's fastest configs to try first.
_WINNERS = 3

# The distance of problems with another type or layout: that of sizes which differ by a factor of 2 ** _UNEQUAL.
_UNEQUAL = 14.0

# Sweeps in progress per GPU: while one is timed, the next two are compiled.
SWEEPS_PER_GPU = 3

# Maximum number of attempts of a sweep whose process dies; each resumes from the stored rows.
_MAX_ATTEMPTS = 3

# A config serves a problem if it is slower than the problem's best config by at most this fraction.
TOLERANCE = 0.02

# The fraction of the problems that the short list should serve.
SERVED = 0.95

# Maximum number of reasons to print.
_MAX_REASONS = 8

# Sweeps kept in memory. One of 4,096 configs takes a few megabytes.
_MAX_ENDED = 32

# Seconds between two checks for an abandoned sweep.
_CHECK_S = 0.2


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
        """Cancel all sweeps that have been submitted. Finished rows are kept."""


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


def make_relay(send: Callable[[str, Sequence[Any]], None]) -> Any:
    """Return an object that forwards a sweep's writes instead of storing them.

    Args:
        send: called with the name and the arguments of a method of `Store`.
    """

    def forward(method: str) -> Callable[..., None]:
        return lambda *arguments: send(method, arguments)

    methods = "begin_sweep", "add_to_sweep", "end_sweep"
    return SimpleNamespace(**{method: forward(method) for method in methods})


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
        self._relay = make_relay(rows.receive)
        self._runs: list[SweepRun] = []
        warm_up(session)

    def capacity(self) -> int:
        return SWEEPS_PER_GPU

    def submit(self, task: Task) -> Future[Sweep]:
        run = make_sweep(self._session, task, self._relay)
        self._runs.append(run)
        return run.start()

    def cancel(self) -> None:
        for run in self._runs:
            run.cancel()


def tune(
    tuner: Tuner, spaces: Sequence[Space], store: Store, tries_all: bool, from_scratch: bool
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
            continues = not from_scratch or attempts[number]
            earlier = store.load_sweep(space, tuner.gpu) if continues else None
            budget = max(FEWEST_TIMED, math.ceil(space.size / CONFIGS_PER_TIMED))
            hints = find_hints(space, [sweep for sweep in sweeps if sweep])
            task = Task(space, None if tries_all else budget, earlier, hints)
            running[tuner.submit(task)] = number
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


class Sweeps:
    """Runs one sweep at a time, because a sweep uses all cores and the GPU. Every page with its space and GPU shows it.

    Args:
        prepare: makes a sweep, as `make_sweep` does.
        abandoned_s: a sweep that no client has requested for this long is cancelled. Reloading a page takes less.
    """

    def __init__(
        self,
        prepare: Callable[..., SweepRun] = make_sweep,
        abandoned_s: float = 30.0,
    ) -> None:
        self._prepare = prepare
        self._abandoned_s = abandoned_s
        self._lock = threading.Lock()
        self._run: SweepRun | None = None
        self._seen_at_s = 0.0
        # (space, GPU) → the store's latest sweep at that time, and the latest sweep with all its rows.
        self._latest = BoundedCache[tuple[Any, Sweep | None]](_MAX_ENDED)

    def start(self, session: Session, space: Space, from_scratch: bool = False) -> SweepRun:
        """Start a sweep.

        Args:
            from_scratch: ignore the rows of earlier sweeps.

        Raises:
            ConfigError: if a sweep is running.
        """
        with self._lock:
            if run := self._run:
                message = f"A sweep of {run.space.size:,} configs of {run.space.base.kernel} runs on this machine; one "
                raise ConfigError("busy", f"{message}runs at a time. Cancel it, or wait.")
            gpu = resolve_gpu(space.base, session.gpu)
            earlier = None if from_scratch else self._find_latest(session.store, space, gpu)
            run = self._prepare(session, Task(space, PAGE_BUDGET, earlier))
            session.before_close(self.cancel)  # cancelling several times is harmless
            self._run = run
            self._seen_at_s = time.monotonic()
            done = run.start()
        threading.Thread(target=self._wait, args=(session.store, run, done), daemon=True).start()
        return run

    def running(self, space: Space, gpu: Gpu) -> SweepRun | None:
        """Return the running sweep if it is of this space and GPU. This call counts as a client's request for it."""
        run = self._run
        if run and (run.space.identity, run.gpu.name) == (space.identity, gpu.name):
            self._seen_at_s = time.monotonic()
            return run
        return None

    def find(self, store: Store, space: Space, gpu: Gpu) -> Sweep | None:
        """Return the running sweep's rows so far, or the latest sweep of a space by any process."""
        run = self.running(space, gpu)
        return run.snapshot() if run else self._find_latest(store, space, gpu)

    def cancel(self) -> None:
        """Cancel the running sweep."""
        if run := self._run:
            run.cancel()

    def _wait(self, store: Store, run: SweepRun, done: Future[Sweep]) -> None:
        """Wait until a sweep ends, and keep its result. Cancel it once it is abandoned."""
        try:
            while not wait([done], _CHECK_S).done:
                if time.monotonic() - self._seen_at_s > self._abandoned_s:
                    run.cancel()
            sweep = done.result()
            stored = store.latest_sweep(run.space, run.gpu)
            self._latest.put((run.space.identity, run.gpu.name), (stored, sweep))
        finally:
            self._run = None

    def _find_latest(self, store: Store, space: Space, gpu: Gpu) -> Sweep | None:
        """Return the latest sweep from memory, unless the store has a newer one. Without a store, memory decides."""
        stored = store.latest_sweep(space, gpu)
        key = (space.identity, gpu.name)
        before, latest = self._latest.get(key) or (None, None)
        if stored and stored != before:
            latest = store.load_sweep(space, gpu) or latest
            self._latest.put(key, (stored, latest))
        return latest


def find_hints(space: Space, swept: Sequence[Sweep]) -> Hints:
    """Return hints from the sweep of the most similar problem. The current config is tried first."""
    experiments = space.experiments
    first = [experiments.index(space.base)] if space.base in experiments else []
    timed = [sweep for sweep in swept if sweep.is_timed]
    if not timed:
        return Hints(tuple(first))
    problem = vars(space.base.problem)
    nearest = min(
        timed, key=lambda sweep: distance(problem, vars(sweep.experiment.problem), _UNEQUAL)
    )
    numbers = {id(row): number for number, row in enumerate(nearest.rows)}
    first += [numbers[id(row)] for row in nearest.ranked[:_WINNERS]]
    return Hints(tuple(dict.fromkeys(first)), tuple(log_errors(nearest.rows)))


def varying_names(spaces: Sequence[Space]) -> list[str]:
    """Return the names of the parameters that differ between problems; if none differs, all names."""
    problems = [vars(space.base.problem) for space in spaces]
    first = problems[0]
    names = [name for name in first if any(each[name] != first[name] for each in problems)]
    return names or list(first)


def short_list(sweeps: Sequence[Sweep]) -> tuple[list[Experiment], float]:
    """Return a few configs that serve most problems, and the fraction of the problems that they serve.

    Greedy: each config serves the most problems that are not served yet; ties go to the config that is fastest on them.
    """
    slowdowns = [[sweep.slowdown(row) for row in sweep.rows] for sweep in sweeps]
    left = set(range(len(sweeps)))
    chosen = list[Experiment]()
    while len(left) > (1 - SERVED) * len(sweeps):
        ranks = []
        for number in range(len(sweeps[0].rows)):
            times = [slowdowns[problem][number] for problem in left]
            good = [time for time in times if time <= 1 + TOLERANCE]
            ranks.append((-len(good), sum(good), number))
        best = min(ranks)[2]
        served = {problem for problem in left if slowdowns[problem][best] <= 1 + TOLERANCE}
        if not served:
            break
        left -= served
        chosen.append(sweeps[0].rows[best].experiment)
    return chosen, 1 - len(left) / len(sweeps)


def tuned_json(sweeps: Sequence[Sweep]) -> Json:
    """Return the result as JSON, as docs/tune.md describes it."""
    first = sweeps[0]
    configs, served = short_list(sweeps)
    return {
        "kernel": first.experiment.kernel,
        "gpu": first.rows[0].device,
        "device": vars(first.device),
        "l2": first.experiment.run.l2,
        "load": first.space.load,
        "is_timed": first.is_timed,
        "problems": [_problem_json(sweep) for sweep in sweeps],
        "short_list": [config_json(each) for each in configs],
        "served": served,
    }


def config_json(experiment: Experiment) -> Json:
    return dict(vars(experiment.config))


def _problem_json(sweep: Sweep) -> Json:
    current = current_row(sweep)
    best = sweep.best
    return {
        "problem": dict(vars(sweep.experiment.problem)),
        "best": best and config_json(best.experiment),
        "gain": current and _finite(sweep.slowdown(current)),
        "ended": sweep.ended,
        "seconds": sweep.seconds,
        "note": sweep.note,
        "configs": [_row_json(sweep, row) for row in sweep.rows],
    }


def _row_json(sweep: Sweep, row: SweepRow) -> Json:
    return {
        "config": config_json(row.experiment),
        "status": row.status,
        "reason": row.reason,
        "median_ms": row.median_ms,
        "predicted_ms": row.predicted and row.predicted.ms,
        "slowdown": _finite(sweep.slowdown(row)),
        "samples": row.samples,
        "registers": row.registers,
        "spilled_bytes": row.spilled_bytes,
        "shared_bytes": row.shared_bytes,
    }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def current_row(sweep: Sweep) -> SweepRow | None:
    """Return the row of the base's own config; None if the space does not contain it."""
    rows = (row for row in sweep.rows if row.experiment == sweep.space.base)
    return next(rows, None)


def tuned_text(sweeps: Sequence[Sweep]) -> str:
    """Return the result as text: a line per problem, and the short list."""
    first = sweeps[0]
    base = first.experiment
    source = "timed" if first.is_timed else "predicted, not timed"
    how = f"{base.run.l2} L2, {first.space.load} load" if first.is_timed else f"{base.run.l2} L2"
    title = f"{Path(base.kernel).name} on {first.rows[0].device}, {source} ({how})"
    names = varying_names([sweep.space for sweep in sweeps])
    knobs = [name for name, values in first.space.varied if len(values) > 1]
    ratios = "current / best", "next / best"
    rows = [[*names, *knobs, "time", *ratios, *["timed"] * first.is_timed]]
    rows += [_cells(sweep, names, knobs) for sweep in sweeps]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    notes = dict.fromkeys(line for sweep in sweeps for line in sweep.note.splitlines())
    dropped = _explain_dropped(sweeps)
    return "\n".join([title, "", *lines, "", *notes, *dropped, *short_list_lines(sweeps)])


def short_list_lines(sweeps: Sequence[Sweep]) -> list[str]:
    """Return a sentence about the short list, and its configs as lines to copy; no lines for an empty list."""
    configs, served = short_list(sweeps)
    if not configs:
        return []
    few = "this config" if len(configs) == 1 else f"one of these {len(configs)} configs"
    share = f"{round(served * len(sweeps))} of {count_noun(len(sweeps), 'problem')}"
    best = f"the best by {sweeps[0].source} time"
    return [
        f"For {share}, {few} is within {percent(TOLERANCE)} of {best}. For @triton.autotune:",
        *(each.config_line(sweeps[0].space.parameters) for each in configs),
    ]


def sweep_unit(sweep: Sweep) -> tuple[str, float]:
    """Choose the unit of a sweep's times by its best time. Return it, and the factor that converts from ms."""
    return time_unit(sweep.time_ms(sweep.best) if sweep.best else 1.0)


def _cells(sweep: Sweep, names: Sequence[str], knobs: Sequence[str]) -> list[str]:
    problem = [str(vars(sweep.experiment.problem)[name]) for name in names]
    best = sweep.best
    if best is None:
        return [*problem, *("" for _ in knobs), "–", "", "", *[""] * sweep.is_timed]
    config = [str(vars(best.experiment.config)[name]) for name in knobs]
    ms = sweep.time_ms(best)
    unit, scale = sweep_unit(sweep)
    current = current_row(sweep)
    gain = sweep.slowdown(current) if current else math.inf
    ties = sum(each.is_tie for each in sweep.final.finalists) - 1 if sweep.final else 0
    others = sorted(sweep.slowdown(row) for row in sweep.ranked[1:])
    next_best = "" if not others else "tie" if ties > 0 else f"{others[0]:.3f}"
    time = f"{significant(ms * scale, 3)} {unit}" if math.isfinite(ms) else "–"
    gain_text = f"{gain:.2f}" if math.isfinite(gain) else "–"
    timed = [f"{sweep.count('timed')} of {len(sweep.rows)}"] * sweep.is_timed
    return [*problem, *config, time, gain_text, next_best, *timed]


def _explain_dropped(sweeps: Sequence[Sweep]) -> list[str]:
    """Return a line for each reason why configs have no time, with the numbers of configs and problems."""
    reasons = defaultdict[tuple[str, str], list[tuple[int, int]]](list)
    for problem, sweep in enumerate(sweeps):
        for config, row in enumerate(sweep.rows):
            status: str = row.status
            reason = textwrap.shorten(row.reason, 160, placeholder=" …")
            if status == "predicted" and row.expected is None:
                status = "without a predicted time"
            elif status == "not tried" and sweep.ended == "cancelled":
                reason = "The sweep was cancelled."
            elif status not in ("set aside", "failed", "wrong"):
                continue
            reasons[status, reason].append((problem, config))
    lines = []
    for (status, reason), places in reasons.items():
        problems, configs = map(len, map(set, zip(*places, strict=True)))
        where = f" for {problems} of {len(sweeps)} problems" if len(sweeps) > 1 else ""
        lines.append(f"{count_noun(configs, 'config')} {status}{where}: {reason}")
    if hidden := len(lines[_MAX_REASONS:]):
        lines[_MAX_REASONS:] = [
            f"{count_noun(hidden, 'more reason')}: see the JSON that --out writes."
        ]
    return lines
