"""The Library: a list of all recordings, and a scoreboard of predictions against recorded counts."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from markupsafe import Markup

from kernels import discover, once
from kernels.experiment import Experiment, JsonSchema, argument_schemas, nest
from kernels.knobs import knob, read_fields
from kernels.measuring.session import MEASUREMENTS, Session
from kernels.results import records
from visualize.predict.scores import COUNTS, DRAM, EXACT_COUNTS, Score, Scoreboard
from visualize.views import slots
from visualize.views.address import query
from visualize.views.endpoint import Api, Endpoint, read_options
from visualize.views.library import text
from visualize.views.library.figures import scoreboard_figure
from visualize.views.library.scoreboard import recorded_launch, scoreboard
from visualize.views.library.text import Entry
from visualize.views.numbers import count_noun, join_names
from visualize.views.plot import NONE, plot_value
from visualize.views.slots import plot, slot
from visualize.views.snapshot import Snapshot
from visualize.views.state import State
from visualize.views.summaries import key_numbers
from visualize.views.tables import ALL, Table
from visualize.views.view import Panel, Slots, StreamAction

# The picture that shows a kind of recording. A kind without one opens the page's first picture.
SHOWN_ON = {"run": "result", "timeline": "schedule", "counters": "coalescing", "reuse": "reuse"}

# Kinds of recordings, in the order of the list.
KINDS = tuple(dict.fromkeys(measurement.form.word for measurement in MEASUREMENTS.values()))

RECORDED = Table[Entry]("recorded", "recording", text.RECORDED_COLUMNS)
RecordedView = RECORDED.make_options("RecordedView", __name__)

SCORES = Table[Score]("score", "score", text.SCORE_COLUMNS)
ScoreView = SCORES.make_options("ScoreView", __name__)


@dataclass(frozen=True)
class Part:
    """The part of the list that a reply of /recorded holds."""

    limit: int = knob(50, "", "Recordings in a reply, at most.", low=1, high=500)
    offset: int = knob(0, "", "Recordings of the list that are skipped.", low=0, high=1_000_000)


@dataclass(frozen=True)
class ScoreCount:
    score_count: str = knob("sectors", "", "What is compared.", choices=COUNTS)


RECORDED_SCHEMAS = argument_schemas(RecordedView, "recorded_") | argument_schemas(Part)
# The page shows one count. The API replies with all counts unless the client names one.
_COUNT: JsonSchema = {"type": "string", "enum": list(COUNTS), "description": "What is compared. Default: all."}
SCORE_SCHEMAS = {**argument_schemas(ScoreView, "score_"), "count": _COUNT}
for _schemas in (RECORDED_SCHEMAS, SCORE_SCHEMAS):
    del _schemas["sort"], _schemas["page"]


def payload(experiment: Experiment) -> dict[str, Any]:
    """Return an experiment as the API takes it, without the kernel's defaults."""
    return {name: value for name, value in nest(experiment.short_address()).items() if value}


def address(experiment: Experiment, kind: str) -> dict[str, Any]:
    """Return the state of the page that shows a recording."""
    return experiment.short_address() | ({"tab": SHOWN_ON[kind]} if kind in SHOWN_ON else {})


@once
def entries() -> tuple[Entry, ...]:
    """Return all recordings by kernel, kind and size."""
    rows = [
        Entry(
            form.word,
            recorded_launch(recording),
            recording.date,
            key_numbers(form.recall(recording.measured, recording.measured.experiment, "")),
        )
        for form in dict.fromkeys(measurement.form for measurement in MEASUREMENTS.values())
        for recording in records.shipped(form)
    ]
    order = list(discover())
    return tuple(sorted(rows, key=lambda row: (order.index(row.kernel), KINDS.index(row.kind))))


def entries_for(state: State) -> list[Entry]:
    """Return all recordings, those of the page's kernel first."""
    return sorted(entries(), key=lambda row: row.kernel != state.kernel.id)


class RecordedPanel(Panel):
    """All recordings, each with a link to the state that shows it."""

    options = (RecordedView,)
    uses_compiler = False
    is_compared = False

    def layout(self) -> Markup:
        return slot("recorded-claim") + slots.picture(slot("recorded")) + slot("recorded-file", "saved_file")

    def draw(self, known: Snapshot) -> Slots:
        state = known.state
        gpus = sorted({row.gpu for row in entries()})
        table = RECORDED.render(
            entries_for(state),
            state.view.of(RecordedView),
            lambda options: query(state.moved_to(**options)),
            lambda row: query(address(row.experiment, row.kind)),
        )
        exact, board = scoreboard().part(EXACT_COUNTS), query(state.moved_to(tab="scoreboard"))
        return {"recorded-claim": text.recorded_headline(len(entries()), gpus, exact, board), "recorded": table}

    def actions(self) -> Mapping[str, StreamAction]:
        def save(session: Session, state: State, page: str) -> Iterator[Slots]:
            yield {"recorded-file": RECORDED.csv_file(entries_for(state), state.view.of(RecordedView))}

        return {"recorded-csv": StreamAction(save)}

    def endpoints(self, api: Api) -> tuple[Endpoint, ...]:
        def recorded(
            kernel: str = "", gpu: str = "", kind: str = "", limit: int = Part.limit, offset: int = Part.offset
        ) -> dict[str, Any]:
            """Lists recordings from real GPUs: all of them, or those of one kernel, GPU or kind.

            `recorded` has, per recording, its kind, experiment, GPU, date, main numbers with units, and the page's
            address that shows it. `total` counts the whole list. A reply holds `limit` recordings, from `offset` on.
            """
            return recorded_reply(kernel, gpu, kind, limit, offset)

        return (Endpoint("recorded", recorded, schemas=RECORDED_SCHEMAS),)


def recorded_reply(
    kernel: object = "", gpu: object = "", kind: object = "", limit: object = Part.limit, offset: object = Part.offset
) -> dict[str, Any]:
    """Return the body of /recorded.

    Raises:
        ConfigError: an argument is not allowed.
    """
    part = read_fields(Part, {"limit": limit, "offset": offset}, "/recorded")
    view = read_options(RecordedView, "recorded_", {"kernel": kernel, "gpu": gpu, "kind": kind}, "/recorded")
    rows = RECORDED.select(entries(), view)
    return {
        "total": len(rows),
        "limit": part.limit,
        "offset": part.offset,
        "recorded": [
            {
                "kind": row.kind,
                "experiment": payload(row.experiment),
                "gpu": row.gpu,
                "date": row.date,
                "numbers": [vars(number) for number in row.numbers],
                "address": query(address(row.experiment, row.kind)),
            }
            for row in rows[part.offset : part.offset + part.limit]
        ],
    }


class ScoreboardPanel(Panel):
    """All recorded counts against their predictions."""

    options = (ScoreCount, ScoreView)
    uses_compiler = False
    is_compared = False

    def layout(self) -> Markup:
        label = "Each recorded count: predicted across, counted upwards"
        picture = slots.picture(plot("scoreboard-plot", label))
        return slot("scoreboard-claim") + picture + slot("scoreboard-rows") + slot("scoreboard-file", "saved_file")

    def draw(self, known: Snapshot) -> Slots:
        state = known.state
        count, view = state.view.of(ScoreCount).score_count, state.view.of(ScoreView)
        board = _part((count,), view)

        def link(options: Mapping[str, object]) -> str:
            return query(state.moved_to(**options))

        links = [
            (name, len(scoreboard().part((name,)).scores), link({"score_count": name, "score_page": 1}), name == count)
            for name in COUNTS
        ]
        rows = SCORES.render(_by_error(count), view, link, lambda score: query(score_address(score)))
        return {
            "scoreboard-claim": text.scoreboard_headline(board, count, _part(EXACT_COUNTS, view)),
            "scoreboard-plot": scoreboard_picture(count, replace(view, score_sort="", score_page=1)),
            "scoreboard-rows": text.scoreboard_notes(board, links) + rows,
        }

    def actions(self) -> Mapping[str, StreamAction]:
        def save(session: Session, state: State, page: str) -> Iterator[Slots]:
            count = state.view.of(ScoreCount).score_count
            yield {"scoreboard-file": SCORES.csv_file(_by_error(count), state.view.of(ScoreView))}

        return {"score-csv": StreamAction(save)}

    def endpoints(self, api: Api) -> tuple[Endpoint, ...]:
        def scoreboard_of(kernel: str = "", gpu: str = "", count: str = "") -> dict[str, Any]:
            """Compares the prediction of every recorded launch with the counts from a GPU.

            `totals` has, per count (sectors, requests, dram_bytes), how many are compared, how many are equal, and the
            median error. `points` are all counts, each with the index of its launch in `launches`. `misses` are those
            that differ (DRAM bytes: by more than 20 %). `left_out` has lower bounds, because loops of atomics retry,
            and launches without a shipped prediction.
            """
            return scoreboard_reply(kernel, gpu, count)

        return (Endpoint("scoreboard", scoreboard_of, schemas=SCORE_SCHEMAS),)


def _part(counts: Sequence[str], view: Any) -> Scoreboard:
    gpu, kernel = ("" if value == ALL else value for value in (view.score_gpu, view.score_kernel))
    return scoreboard().part(counts, gpu, kernel)


@functools.cache
def _by_error(count: str) -> list[Score]:
    """Return all scores of a count, largest error first."""
    return sorted(scoreboard().part((count,)).scores, key=lambda score: -abs(score.error))


def score_address(score: Score) -> dict[str, Any]:
    """Return the state of the page that shows a score's launch."""
    return address(score.experiment, "reuse" if score.count == DRAM else "counters")


@functools.lru_cache(maxsize=64)
def scoreboard_picture(count: str, view: Any) -> str:
    """Return the plot's value, which is the same for every experiment."""
    board = _part((count,), view)
    if not board.scores:
        return NONE
    meta = {
        "words": np.array([text.point_text(score) for score in board.scores]),
        "addresses": np.array([query(score_address(score)) for score in board.scores]),
    }
    figure = scoreboard_figure(board.scores, count)
    scores = f"{len(board.scores):,} {text.NOUNS[count]} of {count_noun(board.launches, 'launch')}"
    about = f"Tilescope's scoreboard · {scores} · {join_names(board.gpus)} · predicted and recorded"
    return plot_value(figure, f"{count} {view}", meta, about=about)


def scoreboard_reply(kernel: object, gpu: object, count: object) -> dict[str, Any]:
    """Return the body of /scoreboard.

    Raises:
        ConfigError: an argument is not allowed.
    """
    view = read_options(ScoreView, "score_", {"kernel": kernel, "gpu": gpu}, "/scoreboard")
    chosen = read_options(ScoreCount, "score_", {"count": count}, "/scoreboard")
    board = _part((chosen.score_count,) if count else COUNTS, view)
    launches = list(dict.fromkeys(score.experiment for score in (*board.scores, *board.lower_bounds)))
    indices = {experiment: index for index, experiment in enumerate(launches)}

    def points(scores: Sequence[Score]) -> list[dict[str, Any]]:
        return [
            {
                "launch": indices[score.experiment],
                **{name: getattr(score, name) for name in ("operation", "count", "predicted", "counted", "error")},
                "flagged": score.is_flagged,
                "address": query(score_address(score)),
            }
            for score in scores
        ]

    totals = {name: board.part((name,)) for name in dict.fromkeys(score.count for score in board.scores)}
    return {
        "totals": {
            name: {
                "compared": len(part.scores),
                "misses": len(part.misses),
                **{field: getattr(part, field) for field in ("exact", "launches", "gpus", "median_error")},
            }
            for name, part in totals.items()
        },
        "launches": [{"experiment": payload(experiment), "gpu": experiment.gpu} for experiment in launches],
        "points": points(board.scores),
        "misses": points(board.misses),
        "left_out": {
            "lower_bounds": points(board.lower_bounds),
            "not_predicted": [payload(experiment) for experiment in board.unpredicted],
        },
    }
