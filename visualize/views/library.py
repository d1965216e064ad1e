"""The Library: a scoreboard of predictions against what GPUs counted and measured.

Endpoints: /recorded and /scoreboard.
"""

import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from markupsafe import Markup

from tilescope.caching import once
from tilescope.declare.discovery import discover, read_text
from tilescope.declare.experiment import Experiment, Json, from_json, nest
from tilescope.declare.gpus import GPUS
from tilescope.declare.knobs import knob
from tilescope.declare.spec import shape_text
from tilescope.measure.session import MEASUREMENTS
from tilescope.numbers import (
    count_noun,
    format_number,
    join_names,
    key_numbers,
    percent,
    significant,
)
from tilescope.results import records
from tilescope.results.records import Recording
from tilescope.results.scores import Score, parse_scores, shipped_scores, summarize
from visualize.views import prose, theme
from visualize.views.panel import Api, Endpoint, Panel, Slots, encode, select_fields
from visualize.views.slots import plot_value
from visualize.views.state import Snapshot, State, query
from visualize.views.theme import Figure

# The value of a filter that selects everything.
ALL = "all"

# The picture that shows a kind of recording. A kind without one opens the page's first picture.
TABS_BY_KIND = {
    "run": "result",
    "counters": "requests",
    "reuse": "dram-reads",
    "timeline": "program-order",
}


@dataclass(frozen=True)
class LaunchFilter:
    """The launches that a reply describes."""

    kernel: str = knob(ALL, "", "The kernel that was launched.", choices=(ALL, *discover()))
    gpu: str = knob(ALL, "", "The GPU that the kernel ran on.", choices=(ALL, *GPUS))

    def matches(self, kernel: str, gpu: str) -> bool:
        return self.kernel in (ALL, kernel) and self.gpu in (ALL, gpu)


@dataclass(frozen=True)
class RecordingFilter(LaunchFilter):
    """The recordings that a reply of /recorded holds."""

    kind: str = knob(ALL, "", "The kind of recording.", choices=(ALL, *TABS_BY_KIND))
    limit: int = knob(50, "", "Maximum number of recordings in a reply.", low=1, high=500)
    offset: int = knob(0, "", "Number of recordings to skip.", low=0, high=1_000_000)


def recorded_launch(recording: Recording[Any]) -> Experiment:
    """Return the recording's experiment on the GPU on which it was recorded."""
    return replace(recording.measured.experiment, gpu=recording.gpu)


def address(experiment: Experiment, kind: str) -> str:
    """Return the query that shows an experiment's result of a kind."""
    tab = {"tab": TABS_BY_KIND[kind]} if kind in TABS_BY_KIND else {}
    return query({**experiment.short_address(), **tab})


@once
def recordings() -> tuple[Json, ...]:
    """Return all recordings by kernel, kind and size."""
    rows = []
    for form in dict.fromkeys(measurement.form for measurement in MEASUREMENTS.values()):
        for recording in records.shipped(form):
            launch = recorded_launch(recording)
            recorded = form.recall(recording.measured, recording.measured.experiment, "")
            row = {
                "kind": form.word,
                "experiment": launch.short_json(),
                "gpu": launch.gpu,
                "date": recording.date,
                "numbers": [vars(number) for number in key_numbers(recorded)],
                "address": address(launch, form.word),
            }
            rows.append(row)
    order = list(discover())
    return tuple(sorted(rows, key=lambda row: order.index(row["experiment"]["kernel"])))


def _recorded(_: Api, options: RecordingFilter) -> Json:
    """Lists recordings from real GPUs: all of them, or those of one kernel, GPU or kind.

    `recorded` has, per recording, its kind, experiment, GPU, date, main numbers with units, and the page's
    address that shows it. `total` counts the whole list. A reply holds `limit` recordings, from `offset` on.
    """
    rows = [
        row
        for row in recordings()
        if options.matches(row["experiment"]["kernel"], row["gpu"])
        and options.kind in (ALL, row["kind"])
    ]
    part = rows[options.offset : options.offset + options.limit]
    page = select_fields(options, "limit", "offset")
    return {"total": len(rows), **page, "recorded": part}


# The scores of our kernels' recordings, in the package of kernels: predicting every launch takes too long for a page
# view. `python -m scripts.predict_records` writes the file, and tests/tilescope/oracle checks it.
FILE = "scores.jsonl"

DRAM = "dram_bytes"
# The quantities of a source line and opcode that accesses shared memory.
LINE_COUNTS = ("executions", "wavefronts", "ideal_wavefronts")


@dataclass(frozen=True)
class Model:
    """A predicted quantity.

    Attributes:
        noun: its values, in the plural.
        origin: what they are predicted from.
        source: what they are compared with.
        axis: its unit on the picture's axes.
        unit: as in `numbers.format_number`.
        allowed: a prediction is a miss if its error exceeds this fraction of the count.
        verb: how the GPU's value was obtained.
    """

    noun: str
    origin: str
    source: str
    axis: str
    unit: str = ""
    allowed: float = 0.0
    verb: str = "counted"


_LAYOUTS = "index arithmetic and layouts"
_LINES = "the executed SASS, per line"
_NSIGHT = "Nsight Compute"


def _time(noun: str, origin: str) -> Model:
    return Model(noun, origin, "times with a cold L2", "µs", "µs", 0.25, "measured")


MODELS = {
    "sectors": Model("sector counts", _LAYOUTS, _NSIGHT, "32-byte sectors"),
    "requests": Model("request counts", _LAYOUTS, _NSIGHT, "warp requests"),
    DRAM: Model("DRAM reads", "reuse distances", _NSIGHT, "bytes read", "bytes", 0.2),
    "executions": Model("shared-memory executions", _LINES, _NSIGHT, "executions"),
    "wavefronts": Model("shared-memory wavefronts", _LINES, _NSIGHT, "wavefronts"),
    "ideal_wavefronts": Model("ideal wavefronts", _LINES, _NSIGHT, "wavefronts"),
    "instructions": Model("instruction counts", "the executed SASS", _NSIGHT, "instructions"),
    "unseen_time": _time("times of unseen kernels", "constants of other kernels"),
    "examined_time": _time("times of examined kernels", "constants of other kernels"),
    "held_out_time": _time("times of held-out families", "constants of other families"),
    "time": _time("times of fitted families", "constants fitted to them, too"),
}


# Column titles of the table of models.
_HEADER = (
    "scores",
    "agreement",
    "median error",
    "9 of 10 within",
    "launches",
    "predicted from",
    "compared with",
)


@dataclass(frozen=True)
class ScoreView:
    """The scores that the page shows."""

    score_count: str = knob("sectors", "", "The predicted quantity.", choices=tuple(MODELS))


@dataclass(frozen=True)
class ScoreFilter(LaunchFilter):
    """The scores that a reply of /scoreboard holds."""

    count: str = knob(ALL, "", "The quantity to compare.", choices=(ALL, *MODELS))


@once
def scores_by_model() -> Mapping[str, list[Score]]:
    """Return the scores of our kernels' recordings, and those of other kernels."""
    scores = defaultdict[str, list[Score]](list)
    for score in (*parse_scores(read_text(FILE)), *shipped_scores()):
        scores[score.model].append(score)
    return scores


def kernel_of(score: Score) -> str:
    """Return the ID of our kernel, or the family of another one."""
    return str(score.launch.get("family", score.launch["kernel"]))


def compared_scores(model: str) -> list[Score]:
    return [score for score in scores_by_model()[model] if score.is_compared]


def is_miss(score: Score) -> bool:
    return abs(score.error) > MODELS[score.model].allowed


def score_address(score: Score) -> str:
    """Return the query that shows a score's launch; "" for a launch of another kernel."""
    if "family" in score.launch:
        return ""
    return query({**score.launch, "tab": "dram-reads" if score.model == DRAM else "requests"})


def _name_launch(score: Score) -> str:
    # DRAM reads are recorded for several GROUP_SIZEs of one launch.
    omitted = "GROUP_SIZE" if score.model == DRAM else ""
    return query({name: value for name, value in score.launch.items() if name != omitted})


def count_launches(scores: Iterable[Score]) -> int:
    return len(set(map(_name_launch, scores)))


def list_gpus(scores: Iterable[Score]) -> list[str]:
    return sorted({score.launch["gpu"] for score in scores})


@functools.lru_cache(maxsize=4)
def compare_scores(part: ScoreFilter) -> bytes:
    """Return the reply of /scoreboard. Without filters, it takes a second."""
    totals = {}
    rows = list[Json]()
    for model in MODELS:
        if part.count not in (ALL, model):
            continue
        scores = [
            score
            for score in scores_by_model()[model]
            if part.matches(kernel_of(score), score.launch["gpu"])
        ]
        rows += map(_score_json, scores)
        if compared := [score for score in scores if score.is_compared]:
            totals[model] = _total(compared)
    return encode({"totals": totals, "scores": rows})


def _score_json(score: Score) -> Json:
    return {
        **vars(score),
        "error": score.error if score.is_compared else None,
        "is_miss": score.is_compared and is_miss(score),
        "address": score_address(score),
    }


def _total(scores: Sequence[Score]) -> Json:
    return {
        "compared": len(scores),
        "misses": sum(map(is_miss, scores)),
        "exact": sum(not score.error for score in scores),
        "launches": count_launches(scores),
        "gpus": list_gpus(scores),
        "median_error": summarize(scores).median,
    }


def _scoreboard(_: Api, options: ScoreFilter) -> bytes:
    """Compares predicted values of launches with those that GPUs counted or measured.

    `totals` has, per quantity (sectors, requests, dram_bytes, time and others), how many are compared, how many
    are equal, how many are misses, and the median error. `scores` has each value with its launch. A score is a miss
    if its error exceeds the limit of its quantity: 20 % for DRAM bytes, 25 % for times, 0 for other counts.
    `why` explains a miss, or a score that is not compared.
    """
    return compare_scores(options)


def _describe_launch(score: Score) -> str:
    launch = score.launch
    if "family" in launch:
        return f"{launch['case']}, {launch['kernel']}"
    experiment = from_json(nest(launch))
    problem = experiment.problem
    config = prose.config_text(experiment.config)
    return f"{shape_text(problem)}, {prose.dtype_text(problem)}: {config}"


@functools.lru_cache(maxsize=64)
def scoreboard_picture(name: str) -> str:
    """Return the plot's value, which is the same for every experiment."""
    scores = compared_scores(name)
    model = MODELS[name]
    meta = {
        "words": [point_text(score) for score in scores],
        "addresses": list(map(score_address, scores)),
    }
    values = f"{len(scores):,} {model.noun} of {count_noun(count_launches(scores), 'launch')}"
    about = f"Tilescope's scoreboard · {values} · {join_names(list_gpus(scores))} · predicted and recorded"
    return plot_value(scoreboard_figure(scores, model), name, meta, about=about)


def agreement(scores: Sequence[Score]) -> str:
    return f"{sum(not score.error for score in scores):,} of {len(scores):,}"


@functools.cache
def _model_cells(name: str) -> tuple[str, ...]:
    model = MODELS[name]
    scores = compared_scores(name)
    errors = summarize(scores, model.allowed)
    share = f"{agreement(scores)} exact"
    if model.allowed:
        share = f"{percent(errors.within)} within {percent(model.allowed)}"
    sizes = percent(errors.median), percent(errors.high)
    source = f"{model.source}, {join_names(list_gpus(scores))}"
    return share, *sizes, f"{count_launches(scores):,}", model.origin, source


def render_models(state: State, chosen: str) -> Markup:
    """Render a line per model. Its link shows the model's scores."""
    rows = []
    for name, model in MODELS.items():
        link = prose.Link(model.noun, state.link(score_count=name))
        rows.append((prose.Strong(model.noun) if name == chosen else link, *_model_cells(name)))
    return prose.table(_HEADER, rows, "Scores of all models")


def scoreboard_headline(scores: Sequence[Score], model: Model) -> Markup:
    """Return how well the predictions of a model agree with some scores."""
    compared = [score for score in scores if score.is_compared]
    place = f"{count_noun(count_launches(compared), 'launch')} on {join_names(list_gpus(compared))}"
    errors = summarize(compared, model.allowed)
    number = agreement(compared)
    what = f"{model.noun} agree exactly"
    sentence = prose.say("{}, {} by Nsight Compute.", place, prose.Mark(model.verb))
    more = [f"Predicted from {model.origin}."]
    if model.allowed:
        number = percent(errors.median)
        what = f"median error of {model.noun}"
        sentence = prose.say(
            "{:,} values of {}: {} are {} within {} of the value {}.",
            len(compared),
            place,
            percent(errors.within),
            prose.Mark("predicted"),
            percent(model.allowed),
            prose.Mark(model.verb),
        )
        more.append(f"Nine of ten errors are at most {percent(errors.high)}.")
    if flagged := sum(score.is_flagged for score in compared):
        others = sum(is_miss(score) and not score.is_flagged for score in compared)
        more.append(
            f"The model flags {flagged:,} as uncertain, without seeing the counts. "
            f"Unflagged ones outside this range: {others:,}."
        )
    if left_out := len(scores) - len(compared):
        more.append(f"Not compared: {left_out:,}. The reply of /scoreboard says why.")
    return prose.headline(number, what, sentence, *more)


def point_text(score: Score) -> str:
    """Return a point's hover text, with Plotly's line breaks."""
    model = MODELS[score.model]
    values = f"predicted <b>{_value(score, score.predicted)}</b>, {model.verb} <b>{_value(score, score.counted)}</b>"
    return "<br>".join(
        (
            f"<b>{score.part or model.noun}</b> of {kernel_of(score)}, {score.launch['gpu']}",
            _describe_launch(score).replace(": ", "<br>"),
            f"{values}, error {_error(score)}",
        )
    )


def _value(score: Score, value: float | None) -> str:
    return "unknown" if value is None else format_number(value, MODELS[score.model].unit)


def _error(score: Score) -> str:
    if score.predicted is None:
        return "unknown"
    sign = "+" if score.error > 0 else "−"
    return f"{sign}{significant(abs(100 * score.error), 2)}\u00a0%" if score.error else "none"


# Points of recorded sectors and requests are coloured by operation, others by whether the model flags them.
_COLORS = theme.OPERATIONS | {"prediction": theme.MODEL, "flagged": theme.CATEGORIES[7]}
_OUTLINE = {"color": "rgba(15,23,42,0.5)", "width": 0.7}
# Fractions of the height: errors fill the part below _ERRORS_TOP, counts the part above _COUNTS_BOTTOM.
_ERRORS_TOP = 0.19
_COUNTS_BOTTOM = 0.24
_MIN_ERROR_RANGE_PERCENT = 5.0


def scoreboard_figure(scores: Sequence[Score], model: Model) -> Figure:
    """Draw one point per score on logarithmic axes. Exact predictions lie on the diagonal, and at 0 % below.

    The customdata of a point is its index in `scores`. Scores with a zero are omitted, because a logarithmic axis
    cannot show it.
    """
    values = np.array(
        [(score.predicted or 0, score.counted, 100 * score.error) for score in scores]
    )
    names = np.array([_name_color(score) for score in scores])
    is_drawn = (values[:, :2] > 0).all(axis=1)
    counts = values[is_drawn, :2] if is_drawn.any() else np.ones((1, 2))
    ends = counts.min() / 2, 2 * counts.max()
    error_range = 1.25 * max(_MIN_ERROR_RANGE_PERCENT, np.abs(values[is_drawn, 2]).max(initial=0))
    traces = [_allowed_band(ends, model.allowed)] if model.allowed else []
    for place, (name, color) in enumerate(_COLORS.items()):
        (indices,) = np.nonzero(is_drawn & (names == name))
        if len(indices):
            x, y, errors = values[indices].T
            # Later traces have smaller points, so that a point stays visible under another operation's.
            marker = {"color": color, "size": 12 - place, "opacity": 0.9, "line": _OUTLINE}
            hover = "%{text}<extra></extra>"
            shared = dict(customdata=indices, legendgroup=name, hovertemplate=hover)
            below = dict(marker={**marker, "size": 7}, yaxis="y2", showlegend=False)
            traces.append(theme.scatter(name, x, y, "markers", marker=marker, **shared))
            traces.append(theme.scatter(name, x, errors, "markers", **shared | below))
    return theme.figure(
        f"{model.noun[0].upper()}{model.noun[1:]}: predicted against {model.verb}",
        traces,
        hovermode="closest",
        margin={"l": 70},
        **_layout(model, ends, error_range),
    )


def _name_color(score: Score) -> str:
    if score.is_flagged:
        return "flagged"
    return score.part if score.part in theme.OPERATIONS else "prediction"


def _allowed_band(ends: tuple[float, float], allowed: float) -> Figure:
    """Draw the area of predictions that are no misses."""
    low, high = np.array(ends) / (1 + allowed), np.array(ends) / (1 - allowed)
    x, y = [*ends, *ends[::-1]], [*low, *high[::-1]]
    style: Figure = dict(line={"width": 0}, fill="toself", fillcolor="rgba(91,108,230,0.14)")
    return theme.scatter(f"within {percent(allowed)}", x, y, **style, hoverinfo="skip")


def _layout(model: Model, ends: tuple[float, float], error_range: float) -> Figure:
    log = dict(type="log", range=np.log10(ends), dtick=1, tickformat="~s", automargin=True)
    errors = dict(range=[-error_range, error_range], domain=[0, _ERRORS_TOP], nticks=5)
    zero = dict(zeroline=True, zerolinecolor=theme.BORDER)
    legend = dict(bgcolor=theme.NOTHING, itemsizing="constant", tracegroupgap=0)
    above = dict(yref="paper", x=0.005, y=1, yanchor="top")  # far above the diagonal: no points
    return dict(
        xaxis=theme.axis(f"{model.axis}, predicted", **log, anchor="y2"),
        yaxis=theme.axis(f"{model.axis}, {model.verb}", **log, domain=[_COUNTS_BOTTOM, 1]),
        yaxis2=theme.axis("error, %", **errors, **zero, automargin=True),
        legend=legend | above,
        **theme.diagonal(*ends, f"predicted = {model.verb}", theme.HARDWARE),
    )


class ScoreboardPanel(Panel):
    """Predictions against what GPUs counted and measured."""

    layout = """
{{ slot("scoreboard-headline") }}
<div class="row picture">
{{ plot("scoreboard-plot", "Each value: predicted on the x-axis, counted or measured on the y-axis") }}
</div>
{{ slot("scoreboard-models") }}
"""
    options = (ScoreView,)
    endpoints = (
        Endpoint("scoreboard", _scoreboard, options=ScoreFilter),
        Endpoint("recorded", _recorded, options=RecordingFilter),
    )
    uses_compiler = False
    is_compared = False

    def draw(self, snapshot: Snapshot) -> Slots:
        name = snapshot.state.view.of(ScoreView).score_count
        return {
            "scoreboard-headline": scoreboard_headline(scores_by_model()[name], MODELS[name]),
            "scoreboard-plot": scoreboard_picture(name),
            "scoreboard-models": prose.hint("Click a point of a recorded launch to open it.")
            + render_models(snapshot.state, name),
        }
