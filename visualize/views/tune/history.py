"""The endpoint /history: this machine's stored results and sweeps, and the changes in an experiment's time."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilescope.declare.discovery import discover
from tilescope.declare.experiment import GPU_CHOICES, Experiment, Json, from_json
from tilescope.declare.knobs import ConfigError, knob, quote
from tilescope.declare.space import Space
from tilescope.measure.session import MEASUREMENTS
from tilescope.results.store import ResultFilter, Store, StoredResult, StoredSweep, experiment_key
from visualize.predict.history import find_changes
from visualize.views.library.recorded import address
from visualize.views.panel import Api, select_fields
from visualize.views.state import query
from visualize.views.tables import ALL
from visualize.views.tune import text

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


def runs_of(experiment: Experiment) -> ResultFilter:
    """Return the filter for an experiment's runs on every device, including untimed checks."""
    return ResultFilter(
        ("run", "check"), keys=(experiment_key(MEASUREMENTS["run"].form.key(experiment)),)
    )


def history(api: Api, experiment: Json | None = None, *, options: Part) -> Json:
    """Lists this machine's stored results, latest first, and says when a kernel became slower.

    `history` has, per result, its kind, experiment, device, versions, the UTC time, the median with its 20th
    and 80th percentile, the library's time over it, the check, and the page's address. With an experiment, only
    its own results, and `changes` says on which device and since when its runs are slower or faster, beyond
    noise, and which versions changed with it. `sweeps` lists sweeps. `next` is the `before` of the next part.
    """
    base = from_json(experiment) if experiment else None
    store = api.session.store
    selected = read_filter(store, options, base)
    results = store.latest(selected, options.limit, options.before)
    sweeps = store.sweeps(options.limit, base.kernel if base else selected.kernel)
    return {
        "total": store.count(selected),
        "limit": options.limit,
        "next": results[-1].number if len(results) == options.limit else None,
        "history": list(map(_result_json, results)),
        "changes": _changes(store.latest(runs_of(base), MAX_RUNS)) if base else [],
        "sweeps": [
            _sweep_json(sweep, space)
            for sweep in sweeps
            if (space := sweep.swept_space) and (base is None or space.base.problem == base.problem)
        ],
        "problem": store.problem if store.path else STORE_OFF,
    }


def _changes(results: Sequence[StoredResult]) -> list[Json]:
    """Return the changes in an experiment's time, by device. The latest result comes first."""
    runs = defaultdict[str, list[StoredResult]](list)
    for result in reversed(results):
        if result.summary.median_ms and result.summary.p20_ms and result.summary.p80_ms:
            runs[result.device].append(result)
    return [
        {
            "device": device,
            "since": timed[change.place].ended.isoformat(),
            **select_fields(change, "ratio", "low", "high", "before", "after"),
            "versions": _upgrades(*timed[change.place - 1 : change.place + 1]),
        }
        for device, timed in runs.items()
        for change in find_changes(np.array([_times_ms(run) for run in timed]).T)
    ]


def _times_ms(run: StoredResult) -> tuple[float | None, ...]:
    return run.summary.median_ms, run.summary.p20_ms, run.summary.p80_ms


def _upgrades(before: StoredResult, after: StoredResult) -> list[str]:
    pairs = [(name, getattr(before, name), getattr(after, name)) for name in ("torch", "triton")]
    return [f"{name} {old} → {new}" for name, old, new in pairs if old != new]


def measured_experiment(result: StoredResult) -> Experiment | None:
    """Return a result's experiment on the GPU that ran it, if the GPU table has that GPU; None if it is unreadable."""
    is_listed = result.backend == "cuda" and result.gpu in GPU_CHOICES
    return result.experiment and replace(result.experiment, gpu=result.gpu if is_listed else "")


def result_address(result: StoredResult) -> str:
    """Return the query that shows a stored result; "" if this version cannot read its experiment."""
    experiment = measured_experiment(result)
    measurement = MEASUREMENTS.get(result.kind)
    return address(experiment, measurement.form.word if measurement else "") if experiment else ""


def sweep_address(space: Space) -> str:
    """Return the query that shows the last sweep of a space."""
    return query(
        {**space.base.short_address(), "tab": "sweep", "sweep_vary": text.varied_text(space)}
    )


def read_filter(store: Store, part: Part, base: Experiment | None) -> ResultFilter:
    """Return the filter that the arguments of /history describe.

    Args:
        base: the experiment whose results are listed; None for all.

    Raises:
        ConfigError: no result of this device is stored.
    """
    values = (part.kernel, part.device, part.kind)
    kernel, device, kind = ("" if value == ALL else value for value in values)
    stored = store.devices() if device else []
    if device and device not in stored:
        names = f"stored are {', '.join(stored)}" if stored else "nothing is stored"
        raise ConfigError("not_a_choice", f"device is {quote(device)}; {names}.", "device")
    keys = (
        tuple(dict.fromkeys(experiment_key(m.form.key(base)) for m in MEASUREMENTS.values()))
        if base
        else ()
    )
    return ResultFilter((kind,) if kind else (), kernel, device, keys)


def _result_json(result: StoredResult) -> Json:
    experiment = measured_experiment(result)
    return {
        **select_fields(result, "kind", "kernel"),
        "experiment": experiment and experiment.short_json(),
        **select_fields(result, "gpu", "device", "backend", "torch", "triton"),
        "ended": result.ended.isoformat(),
        **vars(result.summary),
        "address": result_address(result) or None,
    }


def _sweep_json(sweep: StoredSweep, space: Space) -> Json:
    return {
        "experiment": space.base.short_json(),
        "vary": {name: list(values) for name, values in space.varied},
        **select_fields(sweep, "gpu", "triton", "done", "total", "best_ms", "ended"),
        "began": sweep.began.isoformat(),
        "address": sweep_address(space),
    }
