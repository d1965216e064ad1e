"""The Library: a list of all recordings, and a scoreboard of predictions against recorded counts."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from markupsafe import Markup

from tilescope.caching import once
from tilescope.declare.discovery import discover
from tilescope.declare.experiment import Experiment, Json, JsonSchema, argument_schemas
from tilescope.declare.gpus import GPUS
from tilescope.declare.knobs import knob, read_fields
from tilescope.declare.spec import shape_text
from tilescope.measure.session import MEASUREMENTS
from tilescope.numbers import (
    Number,
    bytes_of,
    count_noun,
    join_names,
    key_numbers,
    percent,
    significant,
)
from tilescope.results import records
from tilescope.results.codec import to_json
from tilescope.timing import scores as times
from visualize.predict.scores import ALLOWED_ERROR, COUNTS, DRAM, EXACT_COUNTS, Score, Scoreboard
from visualize.views import prose, slots
from visualize.views.library.figures import scoreboard_figure
from visualize.views.library.scoreboard import recorded_launch, scoreboard
from visualize.views.library.shared_scores import (
    SOURCE,
    differences,
    render_scores,
    shipped_scores,
    summarize,
)
from visualize.views.library.time_scores import render_times
from visualize.views.panel import Api, Endpoint, Reply, Slots, encode, read_options, select_fields
from visualize.views.slots import NONE, plot, plot_value, slot
from visualize.views.state import Snapshot, query
from visualize.views.tables import ALL, Column, ListPanel, Table, experiment_columns, kind_column

# The picture that shows a kind of recording. A kind without one opens the page's first picture.
TABS_BY_KIND = {
    "run": "result",
    "timeline": "program-order",
    "counters": "requests",
    "reuse": "dram-reads",
}

# How a recording's key numbers are written, by kind and how many there are.
_RESULTS = {
    ("run", 1): "{} wrong elements",
    ("counters", 2): "{} requests, {} DRAM",
    ("reuse", 1): "{} DRAM reads",
    ("reuse", 2): "{} to {} DRAM reads",
    ("timeline", 2): "{} programs in {}",
}
NOUNS = {"sectors": "sector counts", "requests": "request counts", DRAM: "DRAM reads"}


@dataclass(frozen=True)
class Entry:
    """One recording.

    Attributes:
        kind: the word of its kind.
        experiment: what was measured, on the GPU that measured it.
        numbers: its key numbers.
    """

    kind: str
    experiment: Experiment
    date: str
    numbers: tuple[Number, ...]


def _result(entry: Entry) -> str:
    numbers = entry.numbers
    return _RESULTS.get((entry.kind, len(numbers)), ", ".join(["{}"] * len(numbers))).format(
        *numbers
    )


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

RECORDED: Table[Entry] = Table(
    "recorded",
    "recording",
    (
        _KERNEL,
        kind_column(prose.KIND_NAMES, "The kind of recording."),
        Column("result", prose.Sourced("Result", "recorded"), _result),
        *experiment_columns(
            attrgetter("experiment"), lambda entry: ("GROUP_SIZE",) if entry.kind == "reuse" else ()
        ),
        _GPU,
        Column("date", "Date"),
    ),
)
RecordedView = RECORDED.make_options("RecordedView", __name__)

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
        *experiment_columns(attrgetter("experiment")),
        # The model flags DRAM reads only.
        Column("flag", "Flag", lambda score: "flagged" if score.is_flagged else ""),
    ),
)
ScoreView = SCORES.make_options("ScoreView", __name__)


@dataclass(frozen=True)
class Part:
    """The part of the list that a reply of /recorded holds."""

    limit: int = knob(50, "", "Maximum number of recordings in a reply.", low=1, high=500)
    offset: int = knob(0, "", "Number of recordings to skip.", low=0, high=1_000_000)


# The page shows one count. The API replies with all counts unless the client names one.
_COUNT: JsonSchema = {
    "type": "string",
    "enum": list(COUNTS),
    "description": "The count to compare. Default: all.",
}


def address(experiment: Experiment, kind: str) -> str:
    """Return the query that shows an experiment's result of a kind."""
    return query(
        experiment.short_address() | ({"tab": TABS_BY_KIND[kind]} if kind in TABS_BY_KIND else {})
    )


@once
def entries() -> tuple[Entry, ...]:
    """Return all recordings by kernel, kind and size."""
    rows = []
    for form in dict.fromkeys(measurement.form for measurement in MEASUREMENTS.values()):
        for recording in records.shipped(form):
            recorded = form.recall(recording.measured, recording.measured.experiment, "")
            rows.append(
                Entry(form.word, recorded_launch(recording), recording.date, key_numbers(recorded))
            )
    order = list(discover())
    return tuple(sorted(rows, key=lambda row: order.index(row.experiment.kernel)))


def entries_for(snapshot: Snapshot) -> list[Entry]:
    """Return all recordings, those of the page's kernel first."""
    return sorted(entries(), key=lambda row: row.experiment.kernel != snapshot.state.kernel.id)


class RecordedPanel(ListPanel):
    """All recordings, each with a link to the state that shows it."""

    options = (RecordedView,)
    lists = (("recorded", RECORDED, entries_for),)

    def layout(self) -> Markup:
        return slot("recorded-headline") + slots.picture(slot("recorded"))

    def draw(self, snapshot: Snapshot) -> Slots:
        state = snapshot.state
        table = RECORDED.render(
            entries_for(snapshot), state, lambda row: address(row.experiment, row.kind)
        )
        return {
            "recorded-headline": recorded_headline(state.link(tab="scoreboard")),
            "recorded": table,
        }

    def endpoints(self, api: Api) -> tuple[Endpoint, ...]:
        def recorded(
            kernel: str = "",
            gpu: str = "",
            kind: str = "",
            limit: int = Part.limit,
            offset: int = Part.offset,
        ) -> Json:
            """Lists recordings from real GPUs: all of them, or those of one kernel, GPU or kind.

            `recorded` has, per recording, its kind, experiment, GPU, date, main numbers with units, and the page's
            address that shows it. `total` counts the whole list. A reply holds `limit` recordings, from `offset` on.
            """
            part = read_fields(Part, {"limit": limit, "offset": offset}, "/recorded")
            view = read_options(
                RecordedView, "recorded_", {"kernel": kernel, "gpu": gpu, "kind": kind}, "/recorded"
            )
            rows = RECORDED.select(entries(), vars(view))
            return {
                "total": len(rows),
                **vars(part),
                "recorded": [
                    {
                        "kind": row.kind,
                        "experiment": row.experiment.short_json(),
                        "gpu": row.experiment.gpu,
                        "date": row.date,
                        "numbers": [vars(number) for number in row.numbers],
                        "address": address(row.experiment, row.kind),
                    }
                    for row in rows[part.offset : part.offset + part.limit]
                ],
            }

        return (
            Endpoint(
                "recorded",
                recorded,
                schemas=RECORDED.schemas(RecordedView) | argument_schemas(Part),
            ),
        )


def scores_of(counts: Sequence[str], gpu: str, kernel: str) -> Scoreboard:
    """Return the part of the scoreboard that the filters of a GPU and a kernel select."""
    return scoreboard().part(counts, *("" if value == ALL else value for value in (gpu, kernel)))


def by_error(snapshot: Snapshot) -> list[Score]:
    """Return all scores, largest error first."""
    return sorted(scoreboard().scores, key=lambda score: -abs(score.error))


def score_address(score: Score) -> str:
    """Return the query that shows a score's launch."""
    return address(score.experiment, "reuse" if score.count == DRAM else "counters")


@functools.lru_cache(maxsize=4)
def compare_scores(view: Any, has_count: bool) -> bytes:
    """Return the reply of /scoreboard. Without filters, it takes a second."""
    board = scores_of(
        (view.score_count,) if has_count else COUNTS, view.score_gpu, view.score_kernel
    )
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


class ScoreboardPanel(ListPanel):
    """All recorded counts against their predictions."""

    options = (ScoreView,)
    lists = (("scoreboard-rows", SCORES, by_error),)

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
        rows = SCORES.render(by_error(snapshot), snapshot.state, score_address)
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

    def endpoints(self, api: Api) -> tuple[Endpoint, ...]:
        def scoreboard_of(kernel: str = "", gpu: str = "", count: str = "") -> Reply:
            """Compares the prediction of every recorded launch with the counts from a GPU.

            `totals` has, per count (sectors, requests, dram_bytes), how many are compared, how many are equal, and the
            median error. `points` are all counts, each with the index of its launch in `launches`. `misses` are those
            that differ (DRAM bytes: by more than 20 %). `left_out` has lower bounds, because loops of atomics retry,
            and launches without a shipped prediction. `shared_memory` compares the executions and wavefronts of each
            source line of other kernels: totals, and predictions that differ or are unknown. `times` compares times.
            """
            view = read_options(
                ScoreView, "score_", {"kernel": kernel, "gpu": gpu, "count": count}, "/scoreboard"
            )
            return compare_scores(view, bool(count))

        return (
            Endpoint(
                "scoreboard", scoreboard_of, schemas=SCORES.schemas(ScoreView) | {"count": _COUNT}
            ),
        )


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


def recorded_headline(scoreboard_address: str) -> Markup:
    """Return how many predictions agree, and what is recorded."""
    gpus = join_names(sorted({entry.experiment.gpu for entry in entries()}))
    return prose.headline(
        agreement(scoreboard().part(EXACT_COUNTS)),
        "sector and request counts are predicted exactly",
        f"{len(entries()):,} recordings, viewable without a GPU.",
        f"They are from {gpus}. Each row is a run, a timeline, the counts of a launch, or a study of its GROUP_SIZE. "
        "Click one to open it.",
        prose.say(
            "{} shows each prediction next to its count.",
            prose.Link("The scoreboard", scoreboard_address),
        ),
    )


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
