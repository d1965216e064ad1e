"""The history of the Tune view: the runs of one experiment over time, the store's latest results, and /history."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np
from markupsafe import Markup, escape

from kernels import discover
from kernels.experiment import GPU_CHOICES, Experiment, Json, argument_schemas, from_json
from kernels.knobs import ConfigError, knob, quote, read_fields
from kernels.measuring.session import MEASUREMENTS
from kernels.results.store import ResultFilter, Store, StoredResult, StoredSweep, experiment_key
from kernels.space import Space
from visualize.numbers import milliseconds
from visualize.predict.history import PastRuns
from visualize.views import slots
from visualize.views.library.view import address
from visualize.views.panel import Api, Endpoint, Slots, read_options, select_fields
from visualize.views.prose import Sourced, headline, picture_caption
from visualize.views.slots import NONE, fold, plot, plot_value, slot
from visualize.views.state import Snapshot, query
from visualize.views.status import render_alert
from visualize.views.tables import (
    ALL,
    UNREADABLE,
    Column,
    ListPanel,
    Lists,
    Table,
    experiment_columns,
    kind_column,
)
from visualize.views.tune import figures, text

# Runs of one experiment in the picture, and results and sweeps in the lists, which take about 0.1 ms each.
MAX_RUNS = 1000
MAX_LISTED = 500
STORE_OFF = "Results are lost when the server stops: TILESCOPE_DB is off."
_CHECKS = {None: "", True: "passed", False: "failed"}


def _spread(result: StoredResult) -> str:
    low, high = result.summary.p20_ms, result.summary.p80_ms
    return "" if low is None or high is None else f"{milliseconds(low)} to {milliseconds(high)}"


def _result_text(result: StoredResult) -> str:
    passed = result.summary.passed
    median_ms = result.summary.median_ms
    return _CHECKS[passed] if passed is False or median_ms is None else milliseconds(median_ms)


_ENDED = Column[StoredResult](
    "ended", "Ended (UTC)", cell=lambda result: f"{result.ended:%Y-%m-%d %H:%M}"
)
_DEVICE = Column[StoredResult]("device", "Device", facet="The device's own name.")

RUNS: Table[StoredResult] = Table(
    "runs",
    "run",
    (
        _ENDED,
        _DEVICE,
        Column(
            "median_ms", Sourced("Time", "recorded"), attrgetter("summary.median_ms"), unit="ms"
        ),
        Column("p20_ms", "p20 to p80", attrgetter("summary.p20_ms"), _spread),
        Column("ratio", "Library / kernel", attrgetter("summary.ratio"), unit="times"),
        Column("check", "Check", lambda result: _CHECKS[result.summary.passed]),
        Column("torch", "torch"),
        Column("triton", "triton", facet="The version of Triton."),
    ),
)
RunsView = RUNS.make_options("RunsView", __name__)


RESULTS: Table[StoredResult] = Table(
    "history",
    "result",
    (
        Column("kernel", "Kernel", facet="The measured kernel.", choices=tuple(discover())),
        kind_column(MEASUREMENTS, "The kind of measurement."),
        Column(
            "result", Sourced("Result", "recorded"), attrgetter("summary.median_ms"), _result_text
        ),
        *experiment_columns(attrgetter("experiment")),
        _DEVICE,
        _ENDED,
    ),
)
ResultsView = RESULTS.make_options("ResultsView", __name__)

SWEEPS: Table[StoredSweep] = Table(
    "sweeps",
    "sweep",
    (
        Column("kernel", "Kernel", facet="The kernel."),
        *experiment_columns(lambda sweep: sweep.swept_space and sweep.swept_space.base)[:2],
        Column("gpu", "GPU", facet="The GPU."),
        Column("done", "Configs", cell=lambda sweep: f"{sweep.done:,} of {sweep.total:,}"),
        Column("best_ms", Sourced("Best", "recorded"), unit="ms"),
        Column("ended", "Ended", facet="How the sweep ended."),
        Column("began", "Began (UTC)", cell=lambda sweep: f"{sweep.began:%Y-%m-%d %H:%M}"),
        Column(
            "varied",
            "Varied",
            lambda sweep: text.varied_text(sweep.swept_space) if sweep.swept_space else UNREADABLE,
        ),
    ),
)
SweepsView = SWEEPS.make_options("SweepsView", __name__)


@dataclass(frozen=True)
class Part:
    """The part of the list that a reply of /history holds."""

    # Up to JavaScript's largest integer.
    before: int = knob(
        0, "", "Only results before the one of this number; 0: the latest.", low=0, high=2**53
    )
    limit: int = knob(50, "", "Maximum number of results in a reply.", low=1, high=500)


def runs_of(experiment: Experiment) -> ResultFilter:
    """Return the filter for an experiment's runs on every device, including untimed checks."""
    return ResultFilter(
        ("run", "check"), keys=(experiment_key(MEASUREMENTS["run"].form.key(experiment)),)
    )


class HistoryPanel(ListPanel):
    """The runs of the current experiment over time; folded, each in numbers, and the latest results and sweeps."""

    options = (RunsView, ResultsView, SweepsView)
    lists: ClassVar[Lists] = (
        (
            "history-runs",
            RUNS,
            lambda snapshot: snapshot.store.latest(runs_of(snapshot.state.experiment), MAX_RUNS),
        ),
        (
            "history-latest",
            RESULTS,
            lambda snapshot: snapshot.store.latest(ResultFilter(), MAX_LISTED),
        ),
        ("history-sweeps", SWEEPS, lambda snapshot: snapshot.store.sweeps(MAX_LISTED)),
    )

    def layout(self) -> Markup:
        times = plot("history-plot", "The time of each stored run, from the oldest to the newest")
        return (
            slot("history-headline")
            # "history-instead" replaces the plot if no run was timed.
            + slots.picture(times, slot("history-instead"))
            + fold("history-runs-fold", "Each run in numbers", slot("history-runs"))
            + fold(
                "history-latest-fold",
                "The latest results of all Experiments",
                slot("history-latest"),
            )
            + fold("history-sweeps-fold", "The latest sweeps", slot("history-sweeps"))
        )

    def draw(self, snapshot: Snapshot) -> Slots:
        store = snapshot.store
        rows = {name: read(snapshot) for name, _, read in self.lists}
        runs = rows["history-runs"]
        series = past_runs(runs, snapshot.state.gpu.name)
        newest = {(sweep.space, sweep.gpu): sweep for sweep in reversed(rows["history-sweeps"])}

        def row_address(row: StoredResult | StoredSweep) -> str:
            if isinstance(row, StoredResult):
                return result_address(row)
            # The page shows only the last sweep of a space.
            is_newest = newest[row.space, row.gpu] is row
            return sweep_address(row.swept_space) if row.swept_space and is_newest else ""

        lists: Slots = {
            name: table.render(rows[name], snapshot.state, row_address)
            for name, table, _ in self.lists
        }
        lead = text.history_headline(series, runs) if store.path else headline("", "", STORE_OFF)
        return {
            "history-headline": render_alert(store.problem) + lead if store.problem else lead,
            "history-plot": picture(snapshot, series) if series else NONE,
            "history-instead": ""
            if series
            else lists["history-runs" if runs else "history-latest"],
            **lists,
        }

    def endpoints(self, api: Api) -> tuple[Endpoint, ...]:
        def history(
            experiment: Json | None = None,
            kernel: str = "",
            device: str = "",
            kind: str = "",
            limit: int = Part.limit,
            before: int = Part.before,
        ) -> Json:
            """Lists this machine's stored results, latest first, and says when a kernel became slower.

            `history` has, per result, its kind, experiment, device, versions, the UTC time, the median with its 20th
            and 80th percentile, the library's time over it, the check, and the page's address. With an experiment, only
            its own results, and `changes` says on which device and since when its runs are slower or faster, beyond
            noise, and which versions changed with it. `sweeps` lists sweeps. `next` is the `before` of the next part.
            """
            view = read_options(
                ResultsView,
                "history_",
                {"kernel": kernel, "device": device, "kind": kind},
                "/history",
            )
            part = read_fields(Part, {"limit": limit, "before": before}, "/history")
            store = api.session.store
            base = from_json(experiment) if experiment else None
            selected = read_filter(store, view, base)
            results = store.latest(selected, part.limit, part.before)
            series = past_runs(store.latest(runs_of(base), MAX_RUNS), "") if base else []
            sweeps = store.sweeps(part.limit, base.kernel if base else selected.kernel)
            return {
                "total": store.count(selected),
                "limit": part.limit,
                "next": results[-1].number if len(results) == part.limit else None,
                "history": list(map(_result_json, results)),
                "changes": [
                    {
                        "device": runs.device,
                        "since": runs.ended[change.place].isoformat(),
                        **select_fields(change, "ratio", "low", "high", "before", "after"),
                        "versions": list(runs.upgrade(change)),
                    }
                    for runs in series
                    for change in runs.changes
                ],
                "sweeps": [
                    _sweep_json(sweep, space)
                    for sweep in sweeps
                    if (space := sweep.swept_space)
                    and (base is None or space.base.problem == base.problem)
                ],
                "problem": store.problem if store.path else STORE_OFF,
            }

        return (
            Endpoint(
                "history", history, schemas=RESULTS.schemas(ResultsView) | argument_schemas(Part)
            ),
        )


def past_runs(results: Sequence[StoredResult], gpu: str) -> list[PastRuns]:
    """Return the timed runs by device.

    Args:
        results: runs of one experiment, the latest first.
        gpu: the name of the GPU that comes first.
    """
    timed = [
        run
        for run in reversed(results)
        if run.summary.median_ms and run.summary.p20_ms and run.summary.p80_ms
    ]
    latest = {run.device: (run.gpu != gpu, -place) for place, run in enumerate(timed)}
    series = []
    for device in sorted(latest, key=latest.__getitem__):
        places = [place for place, run in enumerate(timed) if run.device == device]
        runs = [timed[place] for place in places]
        times = [
            np.array([getattr(run.summary, name) for run in runs])
            for name in ("median_ms", "p20_ms", "p80_ms")
        ]
        versions = tuple((run.torch, run.triton) for run in runs)
        samples = tuple(r.summary.samples or 0 for r in runs)
        series.append(
            PastRuns(
                device, np.array(places), tuple(r.ended for r in runs), versions, samples, *times
            )
        )
    return series


def picture(snapshot: Snapshot, series: Sequence[PastRuns]) -> str:
    """Return the plot's value."""
    experiment = snapshot.state.experiment
    devices = escape(", ".join(runs.device for runs in series))  # Plotly renders some markup
    about = picture_caption(experiment, str(devices), "recorded")
    zoom = f"{query(experiment.to_address())} {sum(map(len, series))}"
    return plot_value(figures.history_figure(series), zoom, about=about)


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


def read_filter(store: Store, view: Any, base: Experiment | None) -> ResultFilter:
    """Return the filter that the arguments of /history describe.

    Args:
        view: a ResultsView.
        base: the experiment whose results are listed; None for all.

    Raises:
        ConfigError: no result of this device is stored.
    """
    values = (view.history_kernel, view.history_device, view.history_kind)
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
