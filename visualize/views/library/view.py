"""The Library: a scoreboard of predictions against what GPUs counted and measured."""

import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from markupsafe import Markup

from tilescope.caching import once
from tilescope.declare.experiment import from_json, nest
from tilescope.declare.knobs import knob
from tilescope.declare.spec import shape_text
from tilescope.numbers import count_noun, format_number, join_names, percent, significant
from tilescope.results.scores import Score, summarize
from visualize.views import prose, theme
from visualize.views.library.scoreboard import (
    ALL,
    MODELS,
    RECORDED,
    LaunchFilter,
    Model,
    ScoreFilter,
    compare_scores,
    count_launches,
    is_miss,
    kernel_of,
    list_gpus,
    score_address,
    scores_by_model,
    select_scores,
)
from visualize.views.panel import Api, Endpoint, Panel, Reply, Slots
from visualize.views.prose import table
from visualize.views.slots import NONE, plot_value
from visualize.views.state import Snapshot, State
from visualize.views.templates import template
from visualize.views.theme import Figure


def _describe_launch(score: Score) -> str:
    launch = score.launch
    if "family" in launch:
        return f"{launch['case']}, {launch['kernel']}"
    experiment = from_json(nest(launch))
    problem = experiment.problem
    config = prose.config_text(experiment.config)
    return f"{shape_text(problem)}, {prose.dtype_text(problem)}: {config}"


def _note(score: Score) -> str:
    if score.is_compared:
        return "flagged" if score.is_flagged else score.why
    return f"Not compared. {score.why}"


# The CSS class and the title of each column of the list of scores.
_COLUMNS = {
    "kernel": "Kernel",
    "part": "Part",
    "predicted": prose.Sourced("Predicted", "predicted"),
    "counted": prose.Sourced("On the GPU", "recorded"),
    "error": "Error",
    "gpu": "GPU",
    "launch": "Launch",
    "note": "Note",
}
# Maximum rows of the list. A row takes a kilobyte.
MAX_ROWS = 100

SCORES = template(
    """
<div class="recordings"><div class="facets">
{% for name, links in facets.items() if links %}
<nav aria-label="{{ columns[name] }}"><b>{{ columns[name] }}</b>
{% for value, (query, count) in links.items() %}
<a href="?{{ query }}"{% if value == chosen[name] %} aria-current="true"{% endif %}>
{{ "All" if value == all else value }} <span>{{ "{:,}".format(count) }}</span></a>
{% endfor %}
</nav>
{% endfor %}
</div><div class="quiet">{{ count }}</div>
{% if rows %}
{% call frame() %}
<thead><tr>
{% for title in columns.values() %}<th scope="col"><button type="button">{{ title }}</button></th>{% endfor %}
</tr></thead>
<tbody>
{% for row in rows %}
<tr>
{% for name, (value, cell) in row.items() %}
<td class="{{ name }}" data-value="{{ '' if value is none else value }}">{{ cell }}</td>
{% endfor %}
</tr>
{% endfor %}
</tbody>
{% endcall %}
{% endif %}
</div>
"""
)

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

    score_kernel: str = knob(ALL, "", "The kernel that was launched.", longest=100)
    score_gpu: str = knob(ALL, "", "The GPU that the kernel ran on.", longest=100)
    score_count: str = knob("sectors", "", "The predicted quantity.", choices=tuple(MODELS))


def scoreboard_of(_: Api, options: ScoreFilter) -> Reply:
    """Compares the prediction of every recorded launch with the counts from a GPU.

    `totals` has, per count (sectors, requests, dram_bytes), how many are compared, how many are equal, and the
    median error. `points` are all counts, each with the index of its launch in `launches`. `misses` are those
    that differ (DRAM bytes: by more than 20 %). `left_out` has lower bounds, because loops of atomics retry,
    and launches without a shipped prediction. `shared_memory` compares the executions and wavefronts of each
    source line of other kernels: totals, and predictions that differ or are unknown. `times` compares times.
    """
    return compare_scores(options)


def render_scores(state: State, model: str, part: LaunchFilter) -> Markup:
    """Render a model's scores: the largest errors, then those that are not compared, then exact ones."""

    def rank(score: Score) -> tuple[bool, bool, float]:
        is_exact = score.is_compared and not score.error
        return is_exact, not score.is_compared, -abs(score.error)

    scores = sorted(select_scores(model, part), key=rank)
    count = count_noun(len(scores), "score") if scores else "No score matches."
    if len(scores) > MAX_ROWS:
        count = f"The first {MAX_ROWS} of {count}"
    facets = {name: _link_values(state, model, part, name) for name in _FACETS}
    rows = [score_cells(score) for score in scores[:MAX_ROWS]]
    return SCORES(
        facets=facets, chosen=vars(part), all=ALL, count=count, columns=_COLUMNS, rows=rows
    )


def score_cells(score: Score) -> dict[str, tuple[Any, Any]]:
    """Return the cells of a score's row by column, each after the value by which the page sorts it."""
    kernel = kernel_of(score)
    address = score_address(score)
    launch = _describe_launch(score)
    note = _note(score)
    gpu = score.launch["gpu"]
    return {
        "kernel": (kernel, prose.Link(kernel, address) if address else kernel),
        "part": (score.part, score.part),
        "predicted": (score.predicted, _value(score, score.predicted)),
        "counted": (score.counted, _value(score, score.counted)),
        "error": (100 * score.error, _error(score)),
        "gpu": (gpu, gpu),
        "launch": (launch, launch),
        "note": (note, note),
    }


# The columns that filter the list, and a score's value in each.
_FACETS: Mapping[str, Callable[[Score], str]] = {
    "kernel": kernel_of,
    "gpu": lambda score: str(score.launch["gpu"]),
}


def _link_values(
    state: State, model: str, part: LaunchFilter, name: str
) -> dict[str, tuple[str, int]]:
    """Return the address and the number of scores of each value of a filter; {} if all scores have one value."""
    chosen = getattr(part, name)
    values = sorted(set(map(_FACETS[name], scores_by_model()[model])))
    if len(values) < 2 and chosen == ALL:
        return {}
    counts = Counter(map(_FACETS[name], select_scores(model, replace(part, **{name: ALL}))))
    counts[ALL] = counts.total()
    return {
        value: (state.link(**{f"score_{name}": value}), counts[value])
        for value in dict.fromkeys([ALL, *values, chosen])
        if counts[value] or value == chosen
    }


@functools.lru_cache(maxsize=64)
def scoreboard_picture(name: str, part: LaunchFilter) -> str:
    """Return the plot's value, which is the same for every experiment."""
    scores = [score for score in select_scores(name, part) if score.is_compared]
    if not scores:
        return NONE
    model = MODELS[name]
    meta = {
        "words": [point_text(score) for score in scores],
        "addresses": list(map(score_address, scores)),
    }
    values = f"{len(scores):,} {model.noun} of {count_noun(count_launches(scores), 'launch')}"
    about = f"Tilescope's scoreboard · {values} · {join_names(list_gpus(scores))} · predicted and recorded"
    revision = f"{name} {part.gpu} {part.kernel}"
    return plot_value(scoreboard_figure(scores, model), revision, meta, about=about)


def agreement(scores: Sequence[Score]) -> str:
    return f"{sum(not score.error for score in scores):,} of {len(scores):,}"


@once
def _summarize_models() -> Mapping[str, tuple[str, ...]]:
    """Return the cells of the table of models, except its links."""
    cells = {}
    for name, model in MODELS.items():
        if scores := [score for score in scores_by_model()[name] if score.is_compared]:
            errors = summarize(scores, model.allowed)
            share = f"{agreement(scores)} exact"
            if model.allowed:
                share = f"{percent(errors.within)} within {percent(model.allowed)}"
            sizes = percent(errors.median), percent(errors.high)
            launches = f"{count_launches(scores):,}"
            source = f"{model.source}, {join_names(list_gpus(scores))}"
            cells[name] = share, *sizes, launches, model.origin, source
    return cells


def render_models(state: State, chosen: str) -> Markup:
    """Render a line per model. Its link shows the model's scores."""
    rows = []
    for name, cells in _summarize_models().items():
        noun = MODELS[name].noun
        reset = {"score_kernel": ALL, "score_gpu": ALL}
        link = prose.Link(noun, state.link(score_count=name, **reset))
        rows.append((prose.Strong(noun) if name == chosen else link, *cells))
    return table(_HEADER, rows, "Scores of all models")


def scoreboard_headline(scores: Sequence[Score], model: Model) -> Markup:
    """Return how well the predictions of a model agree with some scores."""
    compared = [score for score in scores if score.is_compared]
    if not compared:
        return prose.headline(
            "", "", f"No {model.noun} of this kernel were {model.verb} on this GPU."
        )
    place = f"{count_noun(count_launches(compared), 'launch')} on {join_names(list_gpus(compared))}"
    errors = summarize(compared, model.allowed)
    more = [f"Predicted from {model.origin}."]
    if not model.allowed:
        number = agreement(compared)
        what = f"{model.noun} agree exactly"
        sentence = prose.say("{}, {} by Nsight Compute.", place, prose.Mark(model.verb))
    else:
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
        more.append(f"Not compared: {left_out:,}. The list says why.")
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
            shared = {
                "marker": marker,
                "customdata": indices,
                "legendgroup": name,
                "hovertemplate": "%{text}<extra></extra>",
            }
            below = {"marker": {**marker, "size": 7}, "yaxis": "y2", "showlegend": False}
            traces.append(theme.scatter(name, x, y, "markers", **shared))
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
    return theme.scatter(
        f"within {percent(allowed)}",
        [*ends, *ends[::-1]],
        [*low, *high[::-1]],
        line={"width": 0},
        fill="toself",
        fillcolor="rgba(91,108,230,0.14)",
        hoverinfo="skip",
    )


def _layout(model: Model, ends: tuple[float, float], error_range: float) -> Figure:
    log = {
        "type": "log",
        "range": [math.log10(end) for end in ends],
        "dtick": 1,
        "tickformat": "~s",
    }
    return dict(
        xaxis=theme.axis(f"{model.axis}, predicted", **log, anchor="y2", automargin=True),
        yaxis=theme.axis(
            f"{model.axis}, {model.verb}", **log, domain=[_COUNTS_BOTTOM, 1], automargin=True
        ),
        yaxis2=theme.axis(
            "error, %",
            range=[-error_range, error_range],
            domain=[0, _ERRORS_TOP],
            nticks=5,
            zeroline=True,
            zerolinecolor=theme.BORDER,
            automargin=True,
        ),
        **theme.diagonal(*ends, f"predicted = {model.verb}", theme.HARDWARE),
        # Where no point can be: far above the diagonal.
        legend={
            "yref": "paper",
            "bgcolor": theme.NOTHING,
            "itemsizing": "constant",
            "tracegroupgap": 0,
            "x": 0.005,
            "y": 1,
            "yanchor": "top",
        },
    )


class ScoreboardPanel(Panel):
    """Predictions against what GPUs counted and measured."""

    layout = """
{{ slot("scoreboard-headline") }}
<div class="row picture">
{{ plot("scoreboard-plot", "Each value: predicted on the x-axis, counted or measured on the y-axis") }}
</div>
{{ slot("scoreboard-models") }}{{ slot("scoreboard-rows") }}
"""
    options = (ScoreView,)
    endpoints = Endpoint("scoreboard", scoreboard_of, options=ScoreFilter), RECORDED
    uses_compiler = False
    is_compared = False

    def draw(self, snapshot: Snapshot) -> Slots:
        state = snapshot.state
        view = state.view.of(ScoreView)
        name = view.score_count
        part = LaunchFilter(view.score_kernel, view.score_gpu)
        return {
            "scoreboard-headline": scoreboard_headline(select_scores(name, part), MODELS[name]),
            "scoreboard-plot": scoreboard_picture(name, part),
            "scoreboard-models": render_models(state, name),
            "scoreboard-rows": prose.hint("Click a point of a recorded launch to open it.")
            + render_scores(state, name, part),
        }
