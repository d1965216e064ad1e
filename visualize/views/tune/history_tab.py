"""The History panel: the runs of the Experiment that is set, over time, and what was measured last of all. /history."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from kernels import discover
from kernels.experiment import GPU_CHOICES, Experiment, JsonSchema, argument_schemas
from kernels.knobs import ConfigError, knob, read_fields
from kernels.measuring.session import MEASUREMENTS
from kernels.results.store import ResultFilter, Store, StoredResult, experiment_key
from visualize.predict.history import Change, PastRuns
from visualize.views import slots
from visualize.views.address import query
from visualize.views.endpoint import Api, Endpoint, answered, from_payload, view_of
from visualize.views.library.view import SHOWN_ON, payload
from visualize.views.plot import NONE, drawn
from visualize.views.prose import picture_caption
from visualize.views.slots import fold, plot, slot
from visualize.views.snapshot import Known
from visualize.views.state import short_experiment
from visualize.views.tables import ALL, Facet
from visualize.views.tune import stored_sweeps
from visualize.views.tune import text as history_text
from visualize.views.tune.figures import history_figure
from visualize.views.view import Panel, Slots

# Rows of a table, and runs of one Experiment that are drawn.
PAGE, MOST_DRAWN = 40, 1000

_PREFIX = "history_"
_LAST = 2**53  # numbers of results that JavaScript can hold
_KINDS = tuple(MEASUREMENTS)


@dataclass(frozen=True)
class HistoryView:
    """Which of the latest results are listed. Links set it, so that none of it has a control."""

    history_kernel: str = knob(ALL, "", "The kernel that was measured.", choices=(ALL, *discover()))
    history_kind: str = knob(ALL, "", "What was measured.", choices=(ALL, *_KINDS))
    history_before: int = knob(0, "", "Only results before the one of this number; 0: the latest.", low=0, high=_LAST)

    def wanted(self) -> ResultFilter:
        """What a result must have, whatever its number."""
        kinds = () if self.history_kind == ALL else (self.history_kind,)
        return ResultFilter(kinds, "" if self.history_kernel == ALL else self.history_kernel)


@dataclass(frozen=True)
class Most:
    """How much a reply holds."""

    limit: int = knob(50, "", "Results in a reply, at most.", low=1, high=500)


_DEVICE: JsonSchema = {"type": "string", "maxLength": 100, "description": "The device's own name. Default: all."}
# What /history takes besides an experiment.
SCHEMAS = {**argument_schemas(HistoryView, _PREFIX), **argument_schemas(Most), "device": _DEVICE}


class HistoryPanel(Panel):
    """The runs of the Experiment that is set, over time; folded, each in numbers, and the latest of all."""

    options = (HistoryView,)
    uses_compiler = False
    is_compared = False

    def layout(self) -> Markup:
        return Markup("").join(
            [
                slot("history-claim"),
                slots.picture(
                    plot("history-plot", "The time of each stored run, from the oldest to the newest"),
                    slot("history-instead"),  # takes the plot's place if no run was timed
                ),
                fold("history-runs-fold", "Each run in numbers", slot("history-runs")),
                fold("history-latest-fold", "The latest results of all Experiments", slot("history-latest")),
                fold("history-sweeps-fold", "The latest sweeps", slot("history-sweeps")),
            ]
        )

    def draw(self, known: Known) -> Slots:
        store = known.store
        if store.path is None:
            nothing: Slots = dict.fromkeys(
                ("history-instead", "history-runs", "history-latest", "history-sweeps"), Markup()
            )
            return {"history-claim": history_text.STORE_OFF_HEADLINE, "history-plot": NONE, **nothing}
        wanted = runs_of(known.state.experiment)
        found = store.latest(wanted, MOST_DRAWN)
        series = past_runs(found, known.state.gpu.name)
        checks = [bool(one.summary.passed) for one in found]
        source = "interpreter" if any(one.backend == "interpreter" for one in found) else "recorded"
        runs = history_text.runs_table(found[:PAGE], store.count(wanted))
        latest = listing(known)
        instead = Markup() if series else runs if found else latest
        return {
            "history-claim": history_text.history_headline(series, checks, source, store.problem),
            "history-plot": picture(known, series) if series else NONE,
            "history-instead": instead,
            "history-runs": runs,
            "history-latest": latest,
            "history-sweeps": history_text.sweeps_table(stored_sweeps.lines(store, PAGE)),
        }

    def endpoints(self, api: Api) -> tuple[Endpoint, ...]:
        def history(
            experiment: dict[str, Any] | None = None,
            kernel: str = "",
            device: str = "",
            kind: str = "",
            limit: int = Most.limit,
            before: int = HistoryView.history_before,
        ) -> dict[str, Any]:
            """Lists what this machine measured and stored, the latest first, and says when a kernel became slower.

            `history` has, per result, its kind, experiment, device, versions, the UTC time, the median with its 20th
            and 80th percentile, the library's time over it, the check, and the page's address. With an experiment, only
            its own results, and `changes` says on which device and since when its runs are slower or faster, beyond
            noise, and which versions changed with it. `sweeps` lists sweeps. `next` is the `before` of the next part.
            """
            return answered(lambda: reply(api.session.store, experiment, kernel, device, kind, limit, before))

        return (Endpoint("history", history, schemas=SCHEMAS),)


def runs_of(experiment: Experiment) -> ResultFilter:
    """The runs of an experiment on every device, those that were only checked included."""
    return ResultFilter(("run", "check"), keys=(experiment_key(MEASUREMENTS["run"].form.key(experiment)),))


def past_runs(found: Sequence[StoredResult], gpu: str) -> list[PastRuns]:
    """The runs that were timed, by device.

    Args:
        found: runs of one experiment, the latest first.
        gpu: the name of the GPU that comes first.
    """
    timed = [one for one in reversed(found) if one.summary.median_ms and one.summary.p20_ms and one.summary.p80_ms]
    by_device: dict[str, list[tuple[int, StoredResult]]] = {}
    for place, one in enumerate(timed):
        by_device.setdefault(one.device, []).append((place, one))
    order = sorted(by_device.values(), key=lambda placed: (placed[-1][1].gpu != gpu, -placed[-1][0]))
    return [_series(placed) for placed in order]


def _series(placed: Sequence[tuple[int, StoredResult]]) -> PastRuns:
    """Runs of one device, each with its place among all."""
    mine = [one for _, one in placed]
    times = {name: np.array([getattr(one.summary, name) for one in mine]) for name in ("median_ms", "p20_ms", "p80_ms")}
    return PastRuns(
        mine[0].device,
        places=np.array([place for place, _ in placed]),
        ended=tuple(one.ended for one in mine),
        versions=tuple((one.torch, one.triton) for one in mine),
        samples=tuple(one.summary.samples or 0 for one in mine),
        **times,
    )


def picture(known: Known, series: Sequence[PastRuns]) -> str:
    """The value of the plot."""
    points = [[history_text.run_label(one, place) for place in range(len(one))] for one in series]
    marked = [(one, change, history_text.change_label(one, change)) for one in series for change in one.changes]
    devices = escape(", ".join(one.device for one in series))  # Plotly takes some markup for its own
    about = picture_caption(known.state.experiment, str(devices), "recorded")
    anew = f"{query(known.state.experiment.to_address())} {sum(map(len, series))}"
    return drawn(history_figure(series, points, marked), anew, about=about)


def link(one: StoredResult) -> str:
    """Return the query that shows a stored result; "" if this version cannot read its experiment."""
    return query(address(one, one.experiment)) if one.experiment else ""


def address(one: StoredResult, experiment: Experiment) -> dict[str, Any]:
    """The state of the page that shows a stored result."""
    tab = SHOWN_ON.get(MEASUREMENTS[one.kind].form.word, "") if one.kind in MEASUREMENTS else ""
    return {**short_experiment(_placed(one, experiment)), **({"tab": tab} if tab else {})}


def _placed(one: StoredResult, experiment: Experiment) -> Experiment:
    """The experiment on the GPU that it was measured on, where the GPU table has that."""
    return dataclasses.replace(experiment, gpu=one.gpu if one.backend == "cuda" and one.gpu in GPU_CHOICES else "")


def listing(known: Known) -> Markup:
    """The latest results of all experiments that the view's filters leave, and the way to others."""
    view, store = known.state.view.of(HistoryView), known.store
    counts = store.counts()
    if not counts:
        return history_text.STORE_EMPTY
    chosen = {"kind": view.history_kind, "kernel": view.history_kernel}
    facets = [_facet(known, name, chosen, counts) for name in chosen]
    found = store.latest(view.wanted(), PAGE, view.history_before)
    total = facets[0].counts.get(view.history_kind, 0)
    newest = query(known.state.moved_to(history_before="")) if view.history_before else ""
    older = query(known.state.moved_to(history_before=found[-1].number)) if len(found) == PAGE else ""
    return history_text.results_list(facets, found, total, {"Newest": newest, "Older": older}, link)


def _facet(known: Known, name: str, chosen: dict[str, str], counts: dict[tuple[str, str, str], int]) -> Facet:
    """The choices of one filter: how many results each would list with the other one as it is, and its link."""
    (other,) = (one for one in chosen if one != name)
    found = {ALL: 0}
    for (kind, kernel, _), count in counts.items():
        of = {"kind": kind, "kernel": kernel}
        if chosen[other] in (ALL, of[other]):
            found[ALL] += count
            found[of[name]] = found.get(of[name], 0) + count
    found.setdefault(chosen[name], 0)
    links = {value: query(known.state.moved_to(**{f"history_{name}": value, "history_before": ""})) for value in found}
    return Facet(name, chosen[name], found, links)


def reply(
    store: Store, experiment: object, kernel: object, device: object, kind: object, limit: object, before: object
) -> dict[str, Any]:
    """The body of /history.

    Raises:
        ConfigError: where there is no such kernel, device or kind, and for a bad experiment or a number out of range.
    """
    part = read_fields(Most, {"limit": limit}, "/history")
    view = view_of(HistoryView, _PREFIX, {"kernel": kernel, "kind": kind, "before": before}, "/history")
    chosen = from_payload(experiment) if experiment else None
    keys = tuple(dict.fromkeys(experiment_key(one.form.key(chosen)) for one in MEASUREMENTS.values())) if chosen else ()
    wanted = dataclasses.replace(view.wanted(), device=_device(store, device), keys=keys)
    found = store.latest(wanted, part.limit, view.history_before)
    series = past_runs(store.latest(runs_of(chosen), MOST_DRAWN), "") if chosen else []
    return {
        "total": store.count(wanted),
        "limit": part.limit,
        "next": found[-1].number if len(found) == part.limit else None,
        "history": [_listed(one) for one in found],
        "changes": [_change(one, change) for one in series for change in one.changes],
        "sweeps": stored_sweeps.replies(store, wanted.kernel, chosen, part.limit),
        "problem": store.problem if store.path else history_text.STORE_OFF,
    }


def _device(store: Store, device: object) -> str:
    """The device, where something of it is stored, or "" where none is named."""
    if device in ("", None):
        return ""
    stored = sorted({name for _, _, name in store.counts()})
    if device not in stored:
        there = f"stored are {', '.join(stored)}" if stored else "nothing is stored"
        raise ConfigError("not_a_choice", f"device is {str(device)[:100]!r}; {there}.", "device")
    return str(device)


def _listed(one: StoredResult) -> dict[str, Any]:
    experiment = one.experiment
    return {
        "kind": one.kind,
        "kernel": one.kernel,
        "experiment": payload(_placed(one, experiment)) if experiment else None,
        **{name: getattr(one, name) for name in ("gpu", "device", "backend", "torch", "triton")},
        "ended": one.ended.isoformat(),
        **dataclasses.asdict(one.summary),
        "address": query(address(one, experiment)) if experiment else None,
    }


def _change(series: PastRuns, change: Change) -> dict[str, Any]:
    return {
        "device": series.device,
        "since": series.ended[change.place].isoformat(),
        **{name: getattr(change, name) for name in ("ratio", "low", "high", "before", "after")},
        "versions": list(series.upgrade(change)),
    }
