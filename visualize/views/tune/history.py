"""The history of the Tune view: the runs of one experiment over time, the store's latest results, and /history."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from kernels import discover
from kernels.experiment import GPU_CHOICES, Experiment, JsonSchema, argument_schemas, from_json
from kernels.knobs import ConfigError, knob, read_fields
from kernels.measuring.session import MEASUREMENTS, Session
from kernels.results.store import ResultFilter, Store, StoredResult, experiment_key
from kernels.space import Space
from visualize.predict.history import Change, PastRuns
from visualize.views import slots
from visualize.views.address import query
from visualize.views.endpoint import Api, Endpoint
from visualize.views.library.view import SHOWN_ON, payload
from visualize.views.plot import NONE, plot_value
from visualize.views.prose import hint, picture_caption
from visualize.views.slots import fold, plot, slot
from visualize.views.snapshot import Snapshot
from visualize.views.state import State
from visualize.views.tables import ALL, Table
from visualize.views.tune import text
from visualize.views.tune.figures import history_figure
from visualize.views.tune.text import RESULTS, RUNS, SWEEPS, ListedSweep, ResultsView, RunsView, SweepsView
from visualize.views.view import Panel, Slots, StreamAction

# Runs of one experiment in the picture, and results and sweeps in the lists, which take about 0.1 ms each.
MAX_RUNS, MAX_LISTED = 1000, 500


class HistoryPanel(Panel):
    """The runs of the current experiment over time; folded, each in numbers, and the latest results and sweeps."""

    options = (RunsView, ResultsView, SweepsView)
    uses_compiler = False
    is_compared = False

    def layout(self) -> Markup:
        return Markup("").join(
            [
                slot("history-claim"),
                slots.picture(
                    plot("history-plot", "The time of each stored run, from the oldest to the newest"),
                    slot("history-instead"),  # replaces the plot if no run was timed
                ),
                fold("history-runs-fold", "Each run in numbers", slot("history-runs")),
                fold("history-latest-fold", "The latest results of all Experiments", slot("history-latest")),
                fold("history-sweeps-fold", "The latest sweeps", slot("history-sweeps")),
                slot("history-file", "saved_file"),
            ]
        )

    def draw(self, known: Snapshot) -> Slots:
        state, store = known.state, known.store
        if store.path is None:
            empty: Slots = dict.fromkeys(("history-instead", *_LISTS), "")
            return {"history-claim": text.STORE_OFF_HEADLINE, "history-plot": NONE, **empty}
        rows = {name: read(store, state) for name, (_, _, read) in _LISTS.items()}
        runs, sweeps = rows["history-runs"], rows["history-sweeps"]
        series = past_runs(runs, state.gpu.name)
        checks = [bool(run.summary.passed) for run in runs]
        source = "interpreter" if any(run.backend == "interpreter" for run in runs) else "recorded"
        newest = {(row.stored.space, row.stored.gpu): row for row in reversed(sweeps)}

        def address(row: StoredResult | ListedSweep) -> str:
            if isinstance(row, StoredResult):
                return _result_query(row)
            # The page shows only the last sweep of a space.
            is_newest = newest[row.stored.space, row.stored.gpu] is row
            return query(sweep_address(row.space)) if row.space and is_newest else ""

        lists: Slots = {
            name: table.render(rows[name], state.view.of(options), lambda new: query(state.moved_to(**new)), address)
            if rows[name]
            else hint(f"No {table.noun} is stored yet.")
            for name, (table, options, _) in _LISTS.items()
        }
        return {
            "history-claim": text.history_headline(series, checks, source, store.problem),
            "history-plot": picture(known, series) if series else NONE,
            "history-instead": "" if series else lists["history-runs" if runs else "history-latest"],
            **lists,
        }

    def actions(self) -> Mapping[str, StreamAction]:
        def save(name: str, session: Session, state: State, page: str) -> Iterator[Slots]:
            table, options, read = _LISTS[name]
            yield {"history-file": table.csv_file(read(session.store, state), state.view.of(options))}

        return {f"{table.name}-csv": StreamAction(partial(save, name)) for name, (table, _, _) in _LISTS.items()}

    def endpoints(self, api: Api) -> tuple[Endpoint, ...]:
        def history(
            experiment: dict[str, Any] | None = None,
            kernel: str = "",
            device: str = "",
            kind: str = "",
            limit: int = HistoryArguments.limit,
            before: int = HistoryArguments.before,
        ) -> dict[str, Any]:
            """Lists what this machine measured and stored, the latest first, and says when a kernel became slower.

            `history` has, per result, its kind, experiment, device, versions, the UTC time, the median with its 20th
            and 80th percentile, the library's time over it, the check, and the page's address. With an experiment, only
            its own results, and `changes` says on which device and since when its runs are slower or faster, beyond
            noise, and which versions changed with it. `sweeps` lists sweeps. `next` is the `before` of the next part.
            """
            return reply(api.session.store, experiment, kernel, device, kind, limit, before)

        return (Endpoint("history", history, schemas=SCHEMAS),)


def runs_of(experiment: Experiment) -> ResultFilter:
    """Return the filter for an experiment's runs on every device, including untimed checks."""
    return ResultFilter(("run", "check"), keys=(experiment_key(MEASUREMENTS["run"].form.key(experiment)),))


# Slot → a list, the type of its options, and its rows, the latest first.
_LISTS: dict[str, tuple[Table[Any], type, Callable[[Store, State], list[Any]]]] = {
    "history-runs": (RUNS, RunsView, lambda store, state: store.latest(runs_of(state.experiment), MAX_RUNS)),
    "history-latest": (RESULTS, ResultsView, lambda store, _: store.latest(ResultFilter(), MAX_LISTED)),
    "history-sweeps": (SWEEPS, SweepsView, lambda store, _: list(map(ListedSweep.read, store.sweeps(MAX_LISTED)))),
}


def past_runs(results: Sequence[StoredResult], gpu: str) -> list[PastRuns]:
    """Return the timed runs by device.

    Args:
        results: runs of one experiment, the latest first.
        gpu: the name of the GPU that comes first.
    """
    timed = [run for run in reversed(results) if run.summary.median_ms and run.summary.p20_ms and run.summary.p80_ms]
    by_device: dict[str, list[tuple[int, StoredResult]]] = {}
    for place, run in enumerate(timed):
        by_device.setdefault(run.device, []).append((place, run))
    order = sorted(by_device.values(), key=lambda placed: (placed[-1][1].gpu != gpu, -placed[-1][0]))
    series = []
    for placed in order:
        places, runs = zip(*placed, strict=True)
        times = [np.array([getattr(run.summary, name) for run in runs]) for name in ("median_ms", "p20_ms", "p80_ms")]
        versions, samples = tuple((run.torch, run.triton) for run in runs), tuple(r.summary.samples or 0 for r in runs)
        ended = tuple(run.ended for run in runs)
        series.append(PastRuns(runs[0].device, np.array(places), ended, versions, samples, *times))
    return series


def picture(known: Snapshot, series: Sequence[PastRuns]) -> str:
    """Return the plot's value."""
    points = [[text.run_label(runs, place) for place in range(len(runs))] for runs in series]
    changes = [(runs, change, text.change_label(runs, change)) for runs in series for change in runs.changes]
    devices = escape(", ".join(runs.device for runs in series))  # Plotly renders some markup
    about = picture_caption(known.state.experiment, str(devices), "recorded")
    zoom = f"{query(known.state.experiment.to_address())} {sum(map(len, series))}"
    return plot_value(history_figure(series, points, changes), zoom, about=about)


def _measured_experiment(result: StoredResult, experiment: Experiment) -> Experiment:
    """Return the experiment on the GPU that ran it, if the GPU table has that GPU."""
    is_known = result.backend == "cuda" and result.gpu in GPU_CHOICES
    return dataclasses.replace(experiment, gpu=result.gpu if is_known else "")


def _result_query(result: StoredResult) -> str:
    """Return the query that shows a stored result; "" if this version cannot read its experiment."""
    if result.experiment is None:
        return ""
    tab = SHOWN_ON.get(MEASUREMENTS[result.kind].form.word, "") if result.kind in MEASUREMENTS else ""
    experiment = _measured_experiment(result, result.experiment).short_address()
    return query({**experiment, **({"tab": tab} if tab else {})})


def sweep_address(space: Space) -> dict[str, Any]:
    """Return the page's state that shows the last sweep of a space."""
    return {**space.base.short_address(), "tab": "sweep", "sweep_vary": text.varied_text(space)}


# /history


@dataclass(frozen=True)
class HistoryArguments:
    """The filters of /history, and the part of the list that a reply holds."""

    kernel: str = knob(ALL, "", "The kernel that was measured.", choices=(ALL, *discover()))
    kind: str = knob(ALL, "", "What was measured.", choices=(ALL, *MEASUREMENTS))
    before: int = knob(
        0, "", "Only results before the one of this number; 0: the latest.", low=0, high=2**53
    )  # JavaScript's largest integer
    limit: int = knob(50, "", "Results in a reply, at most.", low=1, high=500)


SCHEMAS: dict[str, JsonSchema] = {
    **argument_schemas(HistoryArguments),
    "device": {"type": "string", "maxLength": 100, "description": "The device's own name. Default: all."},
}


def reply(
    store: Store, experiment: object, kernel: object, device: object, kind: object, limit: object, before: object
) -> dict[str, Any]:
    """Return the body of /history.

    Raises:
        ConfigError: for an unknown kernel, device or kind, a bad experiment, or a number out of range.
    """
    given = {name: value for name, value in (("kernel", kernel), ("kind", kind), ("before", before)) if value}
    filters = read_fields(HistoryArguments, {"limit": limit, **given}, "/history")
    part: int = filters.limit
    kernel, kinds = "" if filters.kernel == ALL else filters.kernel, () if filters.kind == ALL else (filters.kind,)
    chosen = from_json(experiment) if experiment else None
    keys = tuple(dict.fromkeys(experiment_key(m.form.key(chosen)) for m in MEASUREMENTS.values())) if chosen else ()
    wanted = ResultFilter(kinds, kernel, _read_device(store, device), keys)
    results = store.latest(wanted, part, filters.before)
    series = past_runs(store.latest(runs_of(chosen), MAX_RUNS), "") if chosen else []
    sweeps = [ListedSweep.read(sweep) for sweep in store.sweeps(part, chosen.kernel if chosen else kernel)]
    return {
        "total": store.count(wanted),
        "limit": part,
        "next": results[-1].number if len(results) == part else None,
        "history": [_result_json(result) for result in results],
        "changes": [_change_json(runs, change) for runs in series for change in runs.changes],
        "sweeps": [
            _sweep_json(sweep, sweep.space)
            for sweep in sweeps
            if sweep.space and (chosen is None or sweep.space.base.problem == chosen.problem)
        ],
        "problem": store.problem if store.path else text.STORE_OFF,
    }


def _read_device(store: Store, device: object) -> str:
    if device in ("", None):
        return ""
    stored = sorted({name for _, _, name in store.counts()})
    if device not in stored:
        names = f"stored are {', '.join(stored)}" if stored else "nothing is stored"
        raise ConfigError("not_a_choice", f"device is {str(device)[:100]!r}; {names}.", "device")
    return str(device)


def _result_json(result: StoredResult) -> dict[str, Any]:
    experiment = result.experiment
    return {
        "kind": result.kind,
        "kernel": result.kernel,
        "experiment": payload(_measured_experiment(result, experiment)) if experiment else None,
        **{name: getattr(result, name) for name in ("gpu", "device", "backend", "torch", "triton")},
        "ended": result.ended.isoformat(),
        **dataclasses.asdict(result.summary),
        "address": _result_query(result) or None,
    }


def _change_json(series: PastRuns, change: Change) -> dict[str, Any]:
    return {
        "device": series.device,
        "since": series.ended[change.place].isoformat(),
        **{name: getattr(change, name) for name in ("ratio", "low", "high", "before", "after")},
        "versions": list(series.upgrade(change)),
    }


def _sweep_json(sweep: ListedSweep, space: Space) -> dict[str, Any]:
    stored = sweep.stored
    return {
        "experiment": payload(space.base),
        "vary": {name: list(values) for name, values in space.varied},
        **{name: getattr(stored, name) for name in ("gpu", "triton", "done", "total", "best_ms", "ended")},
        "began": stored.began.isoformat(),
        "address": query(sweep_address(space)),
    }
