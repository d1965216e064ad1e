"""The Library: a scoreboard of predictions against what GPUs counted and measured."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from tilescope.caching import once
from tilescope.declare.experiment import from_json, nest
from tilescope.declare.knobs import knob
from tilescope.declare.spec import shape_text
from tilescope.numbers import count_noun, format_number, join_names, percent, significant
from tilescope.results.scores import Score, summarize
from visualize.views import prose, slots
from visualize.views.library.figures import scoreboard_figure
from visualize.views.library.recorded import RECORDED, Part
from visualize.views.library.scoreboard import (
    MODELS,
    Model,
    ScoredPart,
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
from visualize.views.slots import NONE, plot, plot_value, slot
from visualize.views.state import Snapshot, State
from visualize.views.tables import ALL, Column, Table, table


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


SCORES: Table[Score] = Table(
    "score",
    "score",
    (
        Column("kernel", "Kernel", kernel_of, facet="The kernel that was launched."),
        Column("part", "Part"),
        Column(
            "predicted",
            prose.Sourced("Predicted", "predicted"),
            cell=lambda score: _value(score, score.predicted),
        ),
        Column(
            "counted",
            prose.Sourced("On the GPU", "recorded"),
            cell=lambda score: _value(score, score.counted),
        ),
        Column(
            "error",
            "Error",
            lambda score: 100 * score.error,
            lambda score: _error(score),
            unit="%",
        ),
        Column(
            "gpu",
            "GPU",
            lambda score: score.launch["gpu"],
            facet="The GPU that the kernel ran on.",
        ),
        Column("launch", "Launch", _describe_launch),
        Column("note", "Note", _note),
    ),
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
ScoreView = SCORES.make_options("ScoreView", __name__)


@dataclass(frozen=True)
class ModelView:
    """The model whose scores the page shows."""

    score_count: str = knob("sectors", "", "The predicted quantity.", choices=tuple(MODELS))


def by_error(model: str) -> list[Score]:
    """Return the scores of a model: the largest errors, then those that are not compared, then exact ones."""

    def rank(score: Score) -> tuple[bool, bool, float]:
        is_exact = score.is_compared and not score.error
        return is_exact, not score.is_compared, -abs(score.error)

    return sorted(scores_by_model()[model], key=rank)


class ScoreboardPanel(Panel):
    """Predictions against what GPUs counted and measured."""

    options = (ScoreView, ModelView)
    uses_compiler = False
    is_compared = False

    def layout(self) -> Markup:
        picture = slots.picture(
            plot(
                "scoreboard-plot",
                "Each value: predicted on the x-axis, counted or measured on the y-axis",
            )
        )
        lists = slot("scoreboard-models") + slot("scoreboard-rows")
        return slot("scoreboard-headline") + picture + lists

    def draw(self, snapshot: Snapshot) -> Slots:
        state = snapshot.state
        name = state.view.of(ModelView).score_count
        view = state.view.of(ScoreView)
        part = Part(view.score_kernel, view.score_gpu)
        return {
            "scoreboard-headline": scoreboard_headline(select_scores(name, part), MODELS[name]),
            "scoreboard-plot": scoreboard_picture(name, part),
            "scoreboard-models": render_models(state, name),
            "scoreboard-rows": prose.hint("Click a point of a recorded launch to open it.")
            + SCORES.render(by_error(name), state, score_address),
        }

    def endpoints(self) -> tuple[Endpoint, ...]:
        return Endpoint("scoreboard", scoreboard_of, options=ScoredPart), RECORDED


def scoreboard_of(_: Api, options: ScoredPart) -> Reply:
    """Compares the prediction of every recorded launch with the counts from a GPU.

    `totals` has, per count (sectors, requests, dram_bytes), how many are compared, how many are equal, and the
    median error. `points` are all counts, each with the index of its launch in `launches`. `misses` are those
    that differ (DRAM bytes: by more than 20 %). `left_out` has lower bounds, because loops of atomics retry,
    and launches without a shipped prediction. `shared_memory` compares the executions and wavefronts of each
    source line of other kernels: totals, and predictions that differ or are unknown. `times` compares times.
    """
    return compare_scores(options)


@functools.lru_cache(maxsize=64)
def scoreboard_picture(name: str, part: Part) -> str:
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
