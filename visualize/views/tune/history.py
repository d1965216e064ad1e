"""The endpoint /history: this machine's stored results and sweeps."""

from dataclasses import dataclass, replace

from tilescope.declare.discovery import discover
from tilescope.declare.experiment import GPU_CHOICES, Json, from_json
from tilescope.declare.knobs import knob
from tilescope.declare.space import Space
from tilescope.measure.session import MEASUREMENTS
from tilescope.results.store import ResultFilter, StoredResult, StoredSweep, experiment_key
from visualize.views.library.scoreboard import address
from visualize.views.panel import Api, select_fields
from visualize.views.state import query
from visualize.views.tables import ALL
from visualize.views.tune import text

STORE_OFF = "Results are lost when the server stops: TILESCOPE_DB is off."


@dataclass(frozen=True)
class HistoryOptions:
    """The options of /history, which select the results of a reply."""

    kernel: str = knob(ALL, "", "The measured kernel.", choices=(ALL, *discover()))
    device: str = knob(ALL, "", "The device's own name.", longest=100)
    kind: str = knob(ALL, "", "The kind of measurement.", choices=(ALL, *MEASUREMENTS))
    limit: int = knob(50, "", "Maximum number of results in a reply.", low=1, high=500)
    # Up to JavaScript's largest integer.
    before: int = knob(
        0, "", "Only results before the result of this number; 0: the latest.", low=0, high=2**53
    )


def history(api: Api, experiment: Json | None = None, *, options: HistoryOptions) -> Json:
    """Lists this machine's stored results, latest first.

    `history` has, per result, the kind, experiment, device, versions, UTC time, median with 20th and 80th
    percentile, the library's time divided by the median, the check, and the page's address. With an experiment, it
    lists only that experiment's results. `sweeps` lists sweeps. `next` is the `before` of the next page.
    """
    base = from_json(experiment) if experiment else None
    keys = {name: experiment_key(m.form.key(base)) for name, m in MEASUREMENTS.items() if base}
    chosen = select_fields(options, "kind", "kernel", "device").items()
    allowed = {name: (value,) for name, value in chosen if value != ALL}
    selected = ResultFilter(**allowed, key=tuple(keys.values()))
    store = api.session.store
    results = store.latest(selected, options.limit, options.before)
    sweeps = store.sweeps(options.limit, (base.kernel,) if base else selected.kernel)
    return {
        "total": store.count(selected),
        "limit": options.limit,
        "next": results[-1].number if len(results) == options.limit else None,
        "history": list(map(_result_json, results)),
        "sweeps": [
            _sweep_json(sweep, space)
            for sweep in sweeps
            if (space := sweep.swept_space)
            and not space.base.is_case
            and (base is None or space.base.problem == base.problem)
        ],
        "problem": store.problem if store.path else STORE_OFF,
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
        **result.summary,
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
