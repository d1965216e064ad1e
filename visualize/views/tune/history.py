"""The endpoint /history: this machine's stored results and sweeps, and the changes in an experiment's time.

The median of one run is precise to a fraction of a percent, but it varies from run to run with clocks, temperature and
other jobs. A change must pass three rules:

1. There are at least MIN_RUNS runs on each side, up to the next change. One or two runs may have shared the GPU.
2. The intervals of the two sides do not overlap. A side's interval reaches from the median of its 20th percentiles to
   the median of its 80th percentiles, and covers the middle half of its medians (all medians of up to four runs).
3. The medians of the two sides differ by at least MIN_CHANGE, and by SCATTERS times the scatter between runs.

Binary segmentation splits the runs where the sum of squares is smallest, down to MIN_RUNS. While a split breaks a rule,
the split with the smallest change is dropped. Each remaining split moves to the nearby run that minimizes the
absolute distances to the medians of both sides. Omitted: slow drift, and episodes of fewer than MIN_RUNS runs.
"""

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy import ndarray

from tilescope.declare.discovery import discover
from tilescope.declare.experiment import GPU_CHOICES, Json, from_json
from tilescope.declare.knobs import knob
from tilescope.declare.space import Space
from tilescope.measure.session import MEASUREMENTS
from tilescope.results.store import ResultFilter, StoredResult, StoredSweep, experiment_key
from visualize.views.library.recorded import address
from visualize.views.panel import Api, select_fields
from visualize.views.state import query
from visualize.views.tables import ALL
from visualize.views.tune import text

MIN_RUNS = 3

# A fraction. Call order and the GPU's power limit change a launch's time by up to 1.5 % between runs on an H200
# (docs/measurements.md), so two runs of the same launch can differ by twice that.
MIN_CHANGE = 0.03

SCATTERS = 3.0

# A normal distribution's standard deviation divided by the median absolute difference of two draws.
_STD_PER_DIFFERENCE = 1.4826 / 2**0.5


@dataclass(frozen=True)
class ChangePoint:
    """A point in the history at which a launch became faster or slower.

    Attributes:
        place: index of the first run after the change.
        ratio: time after / time before; above 1, the launch became slower.
        low, high: the smallest and the largest ratio of the two intervals.
        before, after: number of runs on each side, up to the neighbouring changes.
    """

    place: int
    ratio: float
    low: float
    high: float
    before: int
    after: int


def find_changes(times_ms: ndarray) -> tuple[ChangePoint, ...]:
    """Return the changes in a sequence of runs, oldest first.

    Args:
        times_ms: (3, runs), the median, 20th and 80th percentile of each run, oldest first, positive.
    """
    logs = np.log(times_ms[0])
    count = times_ms.shape[1]
    scatter = _STD_PER_DIFFERENCE * float(np.median(np.abs(np.diff(logs)))) if count > 1 else 0.0
    least = max(np.log1p(MIN_CHANGE), SCATTERS * scatter)
    places = _splits(logs, 0)
    # Dropping a split affects only its neighbours.
    between = cache(lambda start, place, end: _change(times_ms, start, place, end))
    while True:
        changes = itertools.starmap(between, _sides(places, count))
        sizes = {
            c.place: abs(np.log(c.ratio))
            for c in changes
            if c.low <= 1 <= c.high or abs(np.log(c.ratio)) < least
        }
        if not sizes:
            break
        places.remove(min(sizes, key=lambda place: sizes[place]))
    return tuple(
        between(start, _refine(logs, start, place, end), end)
        for start, place, end in _sides(places, count)
    )


def _splits(logs: ndarray, start: int) -> list[int]:
    count = len(logs)
    if count < 2 * MIN_RUNS:
        return []
    sums = np.cumsum(logs - logs.mean())[:-1]
    before = np.arange(1, count)
    # Maximizing the sum of squares between the parts minimizes it within them.
    between = sums**2 * (1 / before + 1 / (count - before))
    split = MIN_RUNS + int(np.argmax(between[MIN_RUNS - 1 : count - MIN_RUNS]))
    return [*_splits(logs[:split], start), start + split, *_splits(logs[split:], start + split)]


def _sides(places: Sequence[int], count: int) -> Iterator[tuple[int, int, int]]:
    """Yield (start, place, end) for each split: runs start to place are before it, runs place to end after it."""
    edges = [0, *places, count]
    return zip(edges, places, edges[2:], strict=False)


def _refine(logs: ndarray, start: int, place: int, end: int) -> int:
    """Return the nearby split that minimizes absolute distances to both medians, because outliers distort squares."""
    near = range(max(start + MIN_RUNS, place - MIN_RUNS), min(end - MIN_RUNS, place + MIN_RUNS) + 1)
    return min(
        near,
        key=lambda at: sum(np.abs(p - np.median(p)).sum() for p in (logs[start:at], logs[at:end])),
    )


def _change(times_ms: ndarray, start: int, place: int, end: int) -> ChangePoint:
    before = times_ms[:, start:place]
    after = times_ms[:, place:end]
    least, most = _interval(before)
    low, high = _interval(after)
    ratio = statistics.median(after[0]) / statistics.median(before[0])
    return ChangePoint(place, float(ratio), low / most, high / least, place - start, end - place)


def _interval(times_ms: ndarray) -> tuple[float, float]:
    """Return a side's interval according to the second rule."""
    ranked = np.sort(times_ms[0])
    quarter = (times_ms.shape[1] - 1) // 4
    low, high = (statistics.median(percentiles) for percentiles in times_ms[1:])
    return float(min(ranked[quarter], low)), float(max(ranked[-1 - quarter], high))


# Stored runs of an experiment in which changes are searched.
MAX_RUNS = 1000
STORE_OFF = "Results are lost when the server stops: TILESCOPE_DB is off."


@dataclass(frozen=True)
class Part:
    """The results that a reply of /history lists."""

    kernel: str = knob(ALL, "", "The measured kernel.", choices=(ALL, *discover()))
    device: str = knob(ALL, "", "The device's own name.", longest=100)
    kind: str = knob(ALL, "", "The kind of measurement.", choices=(ALL, *MEASUREMENTS))
    limit: int = knob(50, "", "Maximum number of results in a reply.", low=1, high=500)
    # Up to JavaScript's largest integer.
    before: int = knob(
        0, "", "Only results before the one of this number; 0: the latest.", low=0, high=2**53
    )


def history(api: Api, experiment: Json | None = None, *, options: Part) -> Json:
    """Lists this machine's stored results, latest first, and says when a kernel became slower.

    `history` has, per result, its kind, experiment, device, versions, the UTC time, the median with its 20th
    and 80th percentile, the library's time over it, the check, and the page's address. With an experiment, only
    its own results, and `changes` says on which device and since when its runs are slower or faster, beyond
    noise, and which versions changed with it. `sweeps` lists sweeps. `next` is the `before` of the next part.
    """
    base = from_json(experiment) if experiment else None
    keys = {name: experiment_key(m.form.key(base)) for name, m in MEASUREMENTS.items() if base}
    chosen = select_fields(options, "kind", "kernel", "device").items()
    allowed = {name: (value,) for name, value in chosen if value != ALL}
    selected = ResultFilter(**allowed, key=tuple(keys.values()))
    store = api.session.store
    results = store.latest(selected, options.limit, options.before)
    sweeps = store.sweeps(options.limit, (base.kernel,) if base else selected.kernel)
    changes: list[Json] = []
    if base:
        runs = ResultFilter(("run", "check"), key=(keys["run"],))
        changes = list(_changes(store.latest(runs, MAX_RUNS)))
    return {
        "total": store.count(selected),
        "limit": options.limit,
        "next": results[-1].number if len(results) == options.limit else None,
        "history": list(map(_result_json, results)),
        "changes": changes,
        "sweeps": [
            _sweep_json(sweep, space)
            for sweep in sweeps
            if (space := sweep.swept_space) and (base is None or space.base.problem == base.problem)
        ],
        "problem": store.problem if store.path else STORE_OFF,
    }


def _changes(results: Sequence[StoredResult]) -> Iterator[Json]:
    """Yield the changes in an experiment's time, by device. The latest result comes first."""
    runs = defaultdict[str, list[StoredResult]](list)
    for result in reversed(results):
        if result.summary.median_ms and result.summary.p20_ms and result.summary.p80_ms:
            runs[result.device].append(result)
    for device, timed in runs.items():
        times = [(run.summary.median_ms, run.summary.p20_ms, run.summary.p80_ms) for run in timed]
        for change in find_changes(np.array(times).T):
            before, after = (vars(run) for run in timed[change.place - 1 : change.place + 1])
            yield {
                "device": device,
                "since": after["ended"].isoformat(),
                **select_fields(change, "ratio", "low", "high", "before", "after"),
                "versions": [
                    f"{name} {before[name]} → {after[name]}"
                    for name in ("torch", "triton")
                    if before[name] != after[name]
                ],
            }


def _result_json(result: StoredResult) -> Json:
    experiment = result.experiment
    link = None
    if experiment:
        # The GPU that ran it, if the GPU table has that GPU.
        is_listed = result.backend == "cuda" and result.gpu in GPU_CHOICES
        experiment = replace(experiment, gpu=result.gpu if is_listed else "")
        measurement = MEASUREMENTS.get(result.kind)
        link = address(experiment, measurement.form.word if measurement else "")
    return {
        **select_fields(result, "kind", "kernel", "gpu", "device", "backend", "torch", "triton"),
        "experiment": experiment and experiment.short_json(),
        "ended": result.ended.isoformat(),
        **vars(result.summary),
        "address": link,
    }


def _sweep_json(sweep: StoredSweep, space: Space) -> Json:
    tab = {"tab": "sweep", "sweep_vary": text.varied_text(space)}
    return {
        "experiment": space.base.short_json(),
        "vary": {name: list(values) for name, values in space.varied},
        **select_fields(sweep, "gpu", "triton", "done", "total", "best_ms", "ended"),
        "began": sweep.began.isoformat(),
        "address": query({**space.base.short_address(), **tab}),
    }
