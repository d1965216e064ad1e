"""The history of the Tune view: the runs of one experiment over time, the store's latest results, and /history."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from kernels import discover
from kernels.experiment import GPU_CHOICES, Experiment, argument_schemas, from_json
from kernels.knobs import ConfigError, knob, quote, read_fields
from kernels.measuring.session import MEASUREMENTS, Session
from kernels.results.store import ResultFilter, Store, StoredResult, StoredSweep, experiment_key
from kernels.space import Space
from visualize.predict.history import MIN_CHANGE, MIN_RUNS, Change, PastRuns
from visualize.views import slots
from visualize.views.library.view import address, payload
from visualize.views.numbers import count_noun, milliseconds, percent
from visualize.views.panel import Api, Endpoint, Panel, Slots, StreamAction
from visualize.views.prose import Mark, Sourced, headline, hint, kind_name, picture_caption, say
from visualize.views.slots import NONE, fold, plot, plot_value, slot
from visualize.views.state import Snapshot, State, query
from visualize.views.status import render_alert
from visualize.views.tables import ALL, Column, Table, experiment_columns
from visualize.views.tune import figures, text

# Runs of one experiment in the picture, and results and sweeps in the lists, which take about 0.1 ms each.
MAX_RUNS, MAX_LISTED = 1000, 500
STORE_OFF = "Results are lost when this page stops: TILESCOPE_DB is off."
UNREADABLE = "of another version of this kernel"
_CHECKS = {None: "", True: "passed", False: "failed"}


def _ms(value: float | None) -> str:
    return "" if value is None else milliseconds(value)


def _spread(result: StoredResult) -> str:
    summary = result.summary
    return "" if summary.p80_ms is None else f"{_ms(summary.p20_ms)} to {_ms(summary.p80_ms)}"


_ENDED = Column[StoredResult]("ended", "Ended (UTC)", cell=lambda result: f"{result.ended:%Y-%m-%d %H:%M}")
_DEVICE = Column[StoredResult]("device", "Device", facet="The device's own name.")
_KIND_LABELS = {kind: kind_name(kind, plural=True) for kind in MEASUREMENTS}

RUNS: Table[StoredResult] = Table(
    "runs",
    "run",
    (
        _ENDED,
        _DEVICE,
        Column("median_ms", Sourced("Time", "recorded"), attrgetter("summary.median_ms"), unit="ms"),
        Column("p20_ms", "p20 to p80", attrgetter("summary.p20_ms"), _spread),
        Column("ratio", "Library / kernel", attrgetter("summary.ratio"), unit="times"),
        Column("check", "Check", lambda result: _CHECKS[result.summary.passed]),
        Column("torch", "torch"),
        Column("triton", "triton", facet="The version of Triton."),
    ),
)
RunsView = RUNS.make_options("RunsView", __name__)


def _result_text(result: StoredResult) -> str:
    passed = result.summary.passed
    return (passed is not False and _ms(result.summary.median_ms)) or _CHECKS[passed]


RESULTS: Table[StoredResult] = Table(
    "history",
    "result",
    (
        Column("kernel", "Kernel", facet="The measured kernel."),
        Column(
            "kind", "What", cell=lambda result: kind_name(result.kind), facet="The measurement.", labels=_KIND_LABELS
        ),
        Column("result", Sourced("Result", "recorded"), attrgetter("summary.median_ms"), _result_text),
        *experiment_columns(lambda result: result.experiment),
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
            "varied", "Varied", lambda sweep: text.varied_text(sweep.swept_space) if sweep.swept_space else UNREADABLE
        ),
    ),
)
SweepsView = SWEEPS.make_options("SweepsView", __name__)


@dataclass(frozen=True)
class HistoryArguments:
    """The filters of /history, and the part of the list that a reply holds."""

    kernel: str = knob(ALL, "", "The measured kernel.", choices=(ALL, *discover()))
    device: str = knob(ALL, "", "The device's own name.", longest=100)
    kind: str = knob(ALL, "", "The kind of measurement.", choices=(ALL, *MEASUREMENTS))
    # Up to JavaScript's largest integer.
    before: int = knob(0, "", "Only results before the one of this number; 0: the latest.", low=0, high=2**53)
    limit: int = knob(50, "", "Maximum number of results in a reply.", low=1, high=500)


class HistoryPanel(Panel):
    """The runs of the current experiment over time; folded, each in numbers, and the latest results and sweeps."""

    options = (RunsView, ResultsView, SweepsView)
    uses_compiler = False
    is_compared = False

    def layout(self) -> Markup:
        return (
            slot("history-claim")
            + slots.picture(
                plot("history-plot", "The time of each stored run, from the oldest to the newest"),
                slot("history-instead"),  # replaces the plot if no run was timed
            )
            + fold("history-runs-fold", "Each run in numbers", slot("history-runs"))
            + fold("history-latest-fold", "The latest results of all Experiments", slot("history-latest"))
            + fold("history-sweeps-fold", "The latest sweeps", slot("history-sweeps"))
            + slot("history-file", "saved_file")
        )

    def draw(self, snapshot: Snapshot) -> Slots:
        state, store = snapshot.state, snapshot.store
        rows = {name: read(store, state) for name, (_, _, read) in _LISTS.items()}
        runs, sweeps = rows["history-runs"], rows["history-sweeps"]
        series = past_runs(runs, state.gpu.name)
        newest = {(sweep.space, sweep.gpu): sweep for sweep in reversed(sweeps)}

        def row_query(row: StoredResult | StoredSweep) -> str:
            if isinstance(row, StoredResult):
                return _result_query(row)
            # The page shows only the last sweep of a space.
            is_newest = newest[row.space, row.gpu] is row
            return query(sweep_address(row.swept_space)) if row.swept_space and is_newest else ""

        lists: Slots = {
            name: table.render(rows[name], state.view.of(options), lambda new: state.link(**new), row_query)
            if rows[name]
            else hint(f"No {table.noun} is stored yet.")
            for name, (table, options, _) in _LISTS.items()
        }
        return {
            "history-claim": history_headline(series, runs, store.problem)
            if store.path
            else headline("", "", STORE_OFF),
            "history-plot": picture(snapshot, series) if series else NONE,
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
            optional = {"kernel": kernel, "device": device, "kind": kind, "before": before}
            fields = {"limit": limit, **{name: value for name, value in optional.items() if value}}
            arguments = read_fields(HistoryArguments, fields, "/history")
            store, base = api.session.store, from_json(experiment) if experiment else None
            selected = read_filter(store, arguments, base)
            results = store.latest(selected, arguments.limit, arguments.before)
            series = past_runs(store.latest(runs_of(base), MAX_RUNS), "") if base else []
            sweeps = store.sweeps(arguments.limit, base.kernel if base else selected.kernel)
            return {
                "total": store.count(selected),
                "limit": arguments.limit,
                "next": results[-1].number if len(results) == arguments.limit else None,
                "history": list(map(_result_json, results)),
                "changes": [_change_json(runs, change) for runs in series for change in runs.changes],
                "sweeps": [
                    _sweep_json(sweep, space)
                    for sweep in sweeps
                    if (space := sweep.swept_space) and (base is None or space.base.problem == base.problem)
                ],
                "problem": store.problem if store.path else STORE_OFF,
            }

        return (Endpoint("history", history, schemas=argument_schemas(HistoryArguments)),)


def runs_of(experiment: Experiment) -> ResultFilter:
    """Return the filter for an experiment's runs on every device, including untimed checks."""
    return ResultFilter(("run", "check"), keys=(experiment_key(MEASUREMENTS["run"].form.key(experiment)),))


# Slot → a list, the type of its options, and its rows, the latest first.
_LISTS: dict[str, tuple[Table[Any], type, Callable[[Store, State], list[Any]]]] = {
    "history-runs": (RUNS, RunsView, lambda store, state: store.latest(runs_of(state.experiment), MAX_RUNS)),
    "history-latest": (RESULTS, ResultsView, lambda store, _: store.latest(ResultFilter(), MAX_LISTED)),
    "history-sweeps": (SWEEPS, SweepsView, lambda store, _: store.sweeps(MAX_LISTED)),
}


def past_runs(results: Sequence[StoredResult], gpu: str) -> list[PastRuns]:
    """Return the timed runs by device.

    Args:
        results: runs of one experiment, the latest first.
        gpu: the name of the GPU that comes first.
    """
    timed = [run for run in reversed(results) if run.summary.median_ms and run.summary.p20_ms and run.summary.p80_ms]
    latest = {run.device: (run.gpu != gpu, -place) for place, run in enumerate(timed)}
    series = []
    for device in sorted(latest, key=latest.__getitem__):
        places = [place for place, run in enumerate(timed) if run.device == device]
        runs = [timed[place] for place in places]
        times = [np.array([getattr(run.summary, name) for run in runs]) for name in ("median_ms", "p20_ms", "p80_ms")]
        versions, samples = tuple((run.torch, run.triton) for run in runs), tuple(r.summary.samples or 0 for r in runs)
        series.append(PastRuns(device, np.array(places), tuple(r.ended for r in runs), versions, samples, *times))
    return series


def picture(snapshot: Snapshot, series: Sequence[PastRuns]) -> str:
    """Return the plot's value."""
    points = [[run_label(runs, place) for place in range(len(runs))] for runs in series]
    changes = [(runs, change, change_label(runs, change)) for runs in series for change in runs.changes]
    devices = escape(", ".join(runs.device for runs in series))  # Plotly renders some markup
    about = picture_caption(snapshot.state.experiment, str(devices), "recorded")
    zoom = f"{query(snapshot.state.experiment.to_address())} {sum(map(len, series))}"
    return plot_value(figures.history_figure(series, points, changes), zoom, about=about)


def _measured_experiment(result: StoredResult, experiment: Experiment) -> Experiment:
    """Return the experiment on the GPU that ran it, if the GPU table has that GPU."""
    is_listed = result.backend == "cuda" and result.gpu in GPU_CHOICES
    return dataclasses.replace(experiment, gpu=result.gpu if is_listed else "")


def _result_query(result: StoredResult) -> str:
    """Return the query that shows a stored result; "" if this version cannot read its experiment."""
    if result.experiment is None:
        return ""
    kind = MEASUREMENTS[result.kind].form.word if result.kind in MEASUREMENTS else ""
    return query(address(_measured_experiment(result, result.experiment), kind))


def sweep_address(space: Space) -> dict[str, Any]:
    """Return the page's state that shows the last sweep of a space."""
    return {**space.base.short_address(), "tab": "sweep", "sweep_vary": text.varied_text(space)}


def history_headline(series: Sequence[PastRuns], runs: Sequence[StoredResult], problem: str) -> Markup:
    """Render the last change of the experiment's time, or its latest time, or its checks.

    Args:
        series: timed runs by device, the page's GPU first.
        runs: all runs, timed or not.
        problem: why the store cannot be used, or "".
    """
    warning = render_alert(problem) if problem else Markup()
    if series:
        return warning + _times_headline(*series)
    if runs:
        checks = [bool(run.summary.passed) for run in runs]
        source = "interpreter" if any(run.backend == "interpreter" for run in runs) else "recorded"
        note = "On a GPU, times are stored, too." if source == "interpreter" else "None of these runs was timed."
        return warning + headline(f"{sum(checks):,} of {len(checks):,}", say("checks passed {}", Mark(source)), note)
    how = "Press Run (Ctrl+Enter) to store a result of this machine. Recorded lists results of other machines."
    return warning + headline("No runs", "of this Experiment are stored", how)


def _times_headline(runs: PastRuns, *others: PastRuns) -> Markup:
    more = [f"Before: {_change_text(runs, change)}." for change in runs.changes[:-1]]
    more.append(
        f"A change is at least {percent(MIN_CHANGE)}, exceeds the intervals and the scatter of the runs, and shows in "
        f"{count_noun(MIN_RUNS, 'run')} on each side."
    )
    for other in others:
        count = count_noun(len(other), "run")
        last = f"{count}, the latest {milliseconds(float(other.median_ms[-1]))}; no change"
        if other.changes:
            last = f"{_change_text(other, other.changes[-1])}, in {count}"
        more.append(f"On {other.device}: {last}.")
    if not runs.changes:
        what = say("in the latest of {} on {} {}", count_noun(len(runs), "run"), runs.device, Mark("recorded"))
        spread = max(float(np.ptp(runs.median_ms) / runs.median_ms.mean()) / 2, 0.0001)
        sentence = f"No change since {runs.ended[0]:%Y-%m-%d}: the medians lie within ± {percent(spread)}."
        if len(runs) == 1:
            sentence = "It is the only run so far. Each further run adds a point to the picture."
        return headline(milliseconds(float(runs.median_ms[-1])), what, sentence, *more)
    change = runs.changes[-1]
    number, word = _ratio(change)
    what = say("{} since {:%Y-%m-%d} on {} {}", word, runs.ended[change.place], runs.device, Mark("recorded"))
    upgrade = " and ".join(runs.upgrade(change))
    cause = f"It coincides with {upgrade}." if upgrade else "The versions of torch and triton are the same."
    before, after = (milliseconds(ms) for _, _, ms in runs.levels[-2:])
    levels = f"{count_noun(change.before, 'run')} took {before}, then {change.after:,} took {after}."
    return headline(number, what, f"{cause} {levels}", *more)


def _ratio(change: Change) -> tuple[str, str]:
    return (f"{change.ratio:.2f} ×", "slower") if change.is_slower else (f"{1 / change.ratio:.2f} ×", "faster")


def _change_text(runs: PastRuns, change: Change) -> str:
    upgrade = " and ".join(runs.upgrade(change))
    cause = f", with {upgrade}" if upgrade else ""
    return f"{' '.join(_ratio(change))} since {runs.ended[change.place]:%Y-%m-%d}{cause}"


def change_label(runs: PastRuns, change: Change) -> str:
    """Return the label of a change in the picture: "1.08 × slower<br>triton 3.6.0 → 3.7.1"."""
    return "<br>".join([" ".join(_ratio(change)), *map(escape, runs.upgrade(change))])


def run_label(runs: PastRuns, place: int) -> str:
    """Return the label of a run, with Plotly's line breaks. Plotly renders some markup, so names are escaped."""
    (torch, triton), device = map(escape, runs.versions[place]), escape(runs.device)
    median, low, high = (milliseconds(float(ms[place])) for ms in (runs.median_ms, runs.p20_ms, runs.p80_ms))
    return (
        f"<b>{median}</b>, p20 to p80: {low} to {high}<br>"
        f"{runs.ended[place]:%Y-%m-%d %H:%M} UTC, median of {runs.samples[place]:,}<br>"
        f"{device}, torch {torch}, triton {triton}"
    )


def read_filter(store: Store, arguments: HistoryArguments, base: Experiment | None) -> ResultFilter:
    """Return the filter that arguments of /history describe.

    Args:
        base: the experiment whose results are listed; None for all.

    Raises:
        ConfigError: no result of this device is stored.
    """
    values = (arguments.kernel, arguments.device, arguments.kind)
    kernel, device, kind = ("" if value == ALL else value for value in values)
    stored = sorted({name for _, _, name in store.counts()}) if device else []
    if device and device not in stored:
        names = f"stored are {', '.join(stored)}" if stored else "nothing is stored"
        raise ConfigError("not_a_choice", f"device is {quote(device)}; {names}.", "device")
    keys = tuple(dict.fromkeys(experiment_key(m.form.key(base)) for m in MEASUREMENTS.values())) if base else ()
    return ResultFilter((kind,) if kind else (), kernel, device, keys)


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


def _sweep_json(sweep: StoredSweep, space: Space) -> dict[str, Any]:
    return {
        "experiment": payload(space.base),
        "vary": {name: list(values) for name, values in space.varied},
        **{name: getattr(sweep, name) for name in ("gpu", "triton", "done", "total", "best_ms", "ended")},
        "began": sweep.began.isoformat(),
        "address": query(sweep_address(space)),
    }
