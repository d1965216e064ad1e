"""The Library: a scoreboard of predictions against recorded counts."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from markupsafe import Markup

from tilescope.declare.discovery import discover
from tilescope.declare.experiment import Json
from tilescope.declare.gpus import GPUS
from tilescope.declare.knobs import knob
from tilescope.declare.spec import shape_text
from tilescope.numbers import bytes_of, count_noun, join_names, percent, significant
from tilescope.results.codec import to_json
from tilescope.timing import scores as times
from visualize.views import prose, slots
from visualize.views.library.figures import scoreboard_figure
from visualize.views.library.other_kernels import (
    SOURCE,
    differences,
    render_scores,
    render_times,
    shipped_scores,
    summarize,
)
from visualize.views.library.recorded import RECORDED, address
from visualize.views.library.scoreboard import (
    ALLOWED_ERROR,
    COUNTS,
    DRAM,
    EXACT_COUNTS,
    Score,
    Scoreboard,
    scoreboard,
)
from visualize.views.panel import (
    Api,
    Endpoint,
    Panel,
    Reply,
    Slots,
    encode,
    select_fields,
)
from visualize.views.slots import NONE, plot, plot_value, slot
from visualize.views.state import Snapshot
from visualize.views.tables import ALL, Column, Table

NOUNS = {"sectors": "sector counts", "requests": "request counts", DRAM: "DRAM reads"}


_KERNEL = Column[Any](
    "kernel",
    "Kernel",
    attrgetter("experiment.kernel"),
    facet="The kernel that was launched.",
    choices=tuple(discover()),
)
_GPU = Column[Any](
    "gpu",
    "GPU",
    attrgetter("experiment.gpu"),
    facet="The GPU that the kernel ran on.",
    choices=tuple(GPUS),
)


def _config(score: Score) -> str:
    return prose.config_text(score.experiment.config)


SCORES: Table[Score] = Table(
    "score",
    "score",
    (
        Column(
            "count",
            "Count",
            facet="The count to compare.",
            choices=COUNTS,
            labels=NOUNS,
            default="sectors",
        ),
        _KERNEL,
        Column("operation", "Operation"),
        Column(
            "predicted",
            prose.Sourced("Predicted", "predicted"),
            cell=lambda score: _value(score, score.predicted),
        ),
        Column(
            "counted",
            prose.Sourced("Counted", "recorded"),
            cell=lambda score: _value(score, score.counted),
        ),
        Column(
            "error",
            "Error",
            lambda score: 100 * score.error,
            lambda score: _error(score) or "none",
            unit="%",
        ),
        _GPU,
        Column("shape", "Shape", lambda score: shape_text(score.experiment.problem)),
        Column("dtype", "Type", lambda score: prose.dtype_text(score.experiment.problem)),
        # The style sheet truncates the config, so its hover text repeats it.
        Column(
            "config", "Config", _config, lambda score: prose.Hint(_config(score), _config(score))
        ),
        # The model flags DRAM reads only.
        Column("flag", "Flag", lambda score: "flagged" if score.is_flagged else ""),
    ),
)
ScoreView = SCORES.make_options("ScoreView", __name__)


@dataclass(frozen=True)
class Part:
    """The scores that a reply of /scoreboard holds."""

    kernel: str = knob(ALL, "", _KERNEL.facet, choices=(ALL, *_KERNEL.choices))
    gpu: str = knob(ALL, "", _GPU.facet, choices=(ALL, *_GPU.choices))
    count: str = knob(ALL, "", "The count to compare.", choices=(ALL, *COUNTS))


def scores_of(counts: Sequence[str], gpu: str, kernel: str) -> Scoreboard:
    """Return the part of the scoreboard that the filters of a GPU and a kernel select."""
    return scoreboard().part(counts, *("" if value == ALL else value for value in (gpu, kernel)))


def by_error() -> list[Score]:
    """Return all scores, largest error first."""
    return sorted(scoreboard().scores, key=lambda score: -abs(score.error))


def score_address(score: Score) -> str:
    """Return the query that shows a score's launch."""
    return address(score.experiment, "reuse" if score.count == DRAM else "counters")


@functools.lru_cache(maxsize=4)
def compare_scores(options: Part) -> bytes:
    """Return the reply of /scoreboard. Without filters, it takes a second."""
    counts = COUNTS if options.count == ALL else (options.count,)
    board = scores_of(counts, options.gpu, options.kernel)
    launches = dict.fromkeys(score.experiment for score in (*board.scores, *board.lower_bounds))
    indices = {experiment: index for index, experiment in enumerate(launches)}

    def points(scores: Sequence[Score]) -> list[Json]:
        return [
            {
                "launch": indices[score.experiment],
                **select_fields(score, "operation", "count", "predicted", "counted", "error"),
                "flagged": score.is_flagged,
                "address": score_address(score),
            }
            for score in scores
        ]

    unseen = (score.error for score in times.unseen_scores())
    reply = {
        "totals": {
            name: {
                "compared": len(part.scores),
                "misses": len(part.misses),
                **select_fields(part, "exact", "launches", "gpus", "median_error"),
            }
            for name in COUNTS
            if (part := board.part((name,))).scores
        },
        "launches": [{"experiment": launch.short_json(), "gpu": launch.gpu} for launch in launches],
        "points": points(board.scores),
        "misses": points(board.misses),
        "left_out": {
            "lower_bounds": points(board.lower_bounds),
            "not_predicted": [experiment.short_json() for experiment in board.unpredicted],
        },
        "shared_memory": {
            "source": SOURCE,
            **summarize(shipped_scores()),
            "differences": list(differences(shipped_scores())),
        },
        "times": {
            "source": times.SOURCE,
            **to_json(times.summarize(unseen)),
            "ranges": {name: to_json(each) for name, each in times.stated_ranges().items()},
            "scores": to_json(times.shipped_scores()),
        },
    }
    return encode(reply)


class ScoreboardPanel(Panel):
    """All recorded counts against their predictions."""

    options = (ScoreView,)
    uses_compiler = False
    is_compared = False

    def layout(self) -> Markup:
        picture = slots.picture(
            plot(
                "scoreboard-plot",
                "Each recorded count: predicted on the x-axis, counted on the y-axis",
            )
        )
        lists = slot("scoreboard-shared") + slot("scoreboard-rows")
        return slot("scoreboard-headline") + picture + lists

    def draw(self, snapshot: Snapshot) -> Slots:
        view = snapshot.state.view.of(ScoreView)
        count = view.score_count
        launches = (view.score_gpu, view.score_kernel)
        board = scores_of((count,), *launches)
        rows = SCORES.render(by_error(), snapshot.state, score_address)
        return {
            "scoreboard-headline": scoreboard_headline(
                board, count, scores_of(EXACT_COUNTS, *launches)
            ),
            "scoreboard-plot": scoreboard_picture(count, *launches),
            "scoreboard-rows": prose.hint(
                "Click a point to open its launch.", _excluded_atomics(board)
            )
            + rows,
            "scoreboard-shared": render_scores() + render_times(),
        }

    def endpoints(self) -> tuple[Endpoint, ...]:
        return Endpoint("scoreboard", scoreboard_of, options=Part), RECORDED


def scoreboard_of(_: Api, options: Part) -> Reply:
    """Compares the prediction of every recorded launch with the counts from a GPU.

    `totals` has, per count (sectors, requests, dram_bytes), how many are compared, how many are equal, and the
    median error. `points` are all counts, each with the index of its launch in `launches`. `misses` are those
    that differ (DRAM bytes: by more than 20 %). `left_out` has lower bounds, because loops of atomics retry,
    and launches without a shipped prediction. `shared_memory` compares the executions and wavefronts of each
    source line of other kernels: totals, and predictions that differ or are unknown. `times` compares times.
    """
    return compare_scores(options)


@functools.lru_cache(maxsize=64)
def scoreboard_picture(count: str, gpu: str, kernel: str) -> str:
    """Return the plot's value, which is the same for every experiment."""
    board = scores_of((count,), gpu, kernel)
    if not board.scores:
        return NONE
    meta = {
        "words": list(map(point_text, board.scores)),
        "addresses": list(map(score_address, board.scores)),
    }
    figure = scoreboard_figure(board.scores, count)
    scores = f"{len(board.scores):,} {NOUNS[count]} of {count_noun(board.launches, 'launch')}"
    about = f"Tilescope's scoreboard · {scores} · {join_names(board.gpus)} · predicted and recorded"
    return plot_value(figure, f"{count} {gpu} {kernel}", meta, about=about)


def agreement(board: Scoreboard) -> str:
    return f"{board.exact:,} of {len(board.scores):,}"


def scoreboard_headline(board: Scoreboard, count: str, exact_counts: Scoreboard) -> Markup:
    """Return how well the predictions of one count agree.

    Args:
        board: scores of `count` only.
        exact_counts: scores of sectors and requests for the same GPU and kernel.
    """
    total = len(board.scores)
    misses = board.misses
    if not total:
        return prose.headline("", "", f"No {NOUNS[count]} of this kernel were counted on this GPU.")
    launches = count_noun(board.launches, "launch")
    gpus = join_names(board.gpus)
    if count == DRAM:
        sentence = prose.say(
            "{:,} program orders of {} on {}: {} are {} within {} of the bytes {}. DRAM reads depend on timing.",
            total,
            launches,
            gpus,
            percent(1 - len(misses) / total),
            prose.Mark("predicted"),
            percent(ALLOWED_ERROR),
            prose.Mark("counted"),
        )
        flagged = sum(score.is_flagged for score in board.scores)
        others = sum(not score.is_flagged for score in misses)
        doubt = (
            f"The model flags {flagged:,} as uncertain, without seeing the counts. "
            f"Unflagged ones outside this range: {others:,}."
        )
        return prose.headline(
            percent(board.median_error), "median error of DRAM reads", sentence, doubt
        )
    sentence = prose.say("{} on {}, {} by Nsight Compute.", launches, gpus, prose.Mark("counted"))
    how = "The predictions come from index arithmetic and the compiler's layouts."
    both = f"Sectors and requests together: {agreement(exact_counts)} agree exactly."
    more = how, both, _excluded_atomics(board)
    return prose.headline(agreement(board), f"{NOUNS[count]} agree exactly", sentence, *more)


def point_text(score: Score) -> str:
    """Return a point's hover text, with Plotly's line breaks."""
    launch = score.experiment
    error = f", {_error(score)}".removesuffix(", ")
    return "<br>".join(
        (
            f"<b>{score.operation}</b> of {launch.kernel}, {launch.gpu}",
            f"{shape_text(launch.problem)}, {prose.dtype_text(launch.problem)}",
            prose.config_text(launch.config),
            f"predicted <b>{_value(score, score.predicted)}</b>, counted <b>{_value(score, score.counted)}</b>{error}",
        )
    )


def _excluded_atomics(board: Scoreboard) -> str:
    launches = len({score.experiment for score in board.lower_bounds})
    return (
        f"Not compared: {count_noun(launches, 'launch')} whose atomics retry." if launches else ""
    )


def _value(score: Score, value: int) -> str:
    return bytes_of(value) if score.count == DRAM else f"{value:,}"


def _error(score: Score) -> str:
    sign = "+" if score.error > 0 else "−"
    return "" if score.is_exact else f"{sign}{significant(abs(100 * score.error), 2)}\u00a0%"
