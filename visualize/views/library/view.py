"""The Library: a list of all recordings, and a scoreboard of predictions against recorded counts."""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from markupsafe import Markup

from kernels import discover, once
from kernels.experiment import Experiment, JsonSchema, argument_schemas, nest
from kernels.gpus import GPUS
from kernels.knobs import knob, read_fields
from kernels.measuring.session import MEASUREMENTS, Session
from kernels.results import records
from kernels.spec import shape_text
from visualize.predict.scores import ALLOWED_ERROR, COUNTS, DRAM, EXACT_COUNTS, Score, Scoreboard
from visualize.views import prose, slots
from visualize.views.library.figures import scoreboard_figure
from visualize.views.library.scoreboard import recorded_launch, scoreboard
from visualize.views.numbers import Number, bytes_of, count_noun, join_names, percent, significant
from visualize.views.panel import Api, Endpoint, Panel, Slots, StreamAction, read_options
from visualize.views.slots import NONE, plot, plot_value, slot
from visualize.views.state import Snapshot, State, query
from visualize.views.summaries import key_numbers
from visualize.views.tables import ALL, Column, Table, choice_links, experiment_columns

# The picture that shows a kind of recording. A kind without one opens the page's first picture.
TABS_BY_KIND = {"run": "result", "timeline": "schedule", "counters": "coalescing", "reuse": "reuse"}

# Kinds of recordings, in the order of the list.
KINDS = tuple(dict.fromkeys(measurement.form.word for measurement in MEASUREMENTS.values()))

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


_KERNEL = Column[Any](
    "kernel",
    "Kernel",
    lambda row: row.experiment.kernel,
    facet="The kernel that was launched.",
    choices=tuple(discover()),
)
_GPU = Column[Any](
    "gpu", "GPU", lambda row: row.experiment.gpu, facet="The GPU that the kernel ran on.", choices=tuple(GPUS)
)

RECORDED: Table[Entry] = Table(
    "recorded",
    "recording",
    (
        _KERNEL,
        Column(
            "kind",
            "What",
            cell=lambda entry: prose.kind_name(entry.kind),
            facet="The kind of recording.",
            choices=tuple(prose.KIND_NAMES),
            labels={kind: plural for kind, (_, plural) in prose.KIND_NAMES.items()},
        ),
        Column("result", prose.Sourced("Result", "recorded"), lambda entry: _result(entry.kind, entry.numbers)),
        *experiment_columns(
            lambda entry: entry.experiment, lambda entry: ("GROUP_SIZE",) if entry.kind == "reuse" else ()
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
        _KERNEL,
        Column("operation", "Operation"),
        Column("predicted", prose.Sourced("Predicted", "predicted"), cell=lambda score: _value(score, score.predicted)),
        Column("counted", prose.Sourced("Counted", "recorded"), cell=lambda score: _value(score, score.counted)),
        Column("error", "Error", lambda score: 100 * score.error, lambda score: _error(score) or "none", unit="%"),
        _GPU,
        *experiment_columns(lambda score: score.experiment),
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


@dataclass(frozen=True)
class ScoreCount:
    score_count: str = knob("sectors", "", "The count to compare.", choices=COUNTS)


RECORDED_SCHEMAS = argument_schemas(RecordedView, "recorded_") | argument_schemas(Part)
# The page shows one count. The API replies with all counts unless the client names one.
_COUNT: JsonSchema = {"type": "string", "enum": list(COUNTS), "description": "The count to compare. Default: all."}
SCORE_SCHEMAS = {**argument_schemas(ScoreView, "score_"), "count": _COUNT}
for _schemas in (RECORDED_SCHEMAS, SCORE_SCHEMAS):
    del _schemas["sort"], _schemas["page"]


def payload(experiment: Experiment) -> dict[str, Any]:
    """Return an experiment as the API takes it, without the kernel's defaults."""
    return {name: value for name, value in nest(experiment.short_address()).items() if value}


def address(experiment: Experiment, kind: str) -> dict[str, Any]:
    """Return the state of the page that shows a recording."""
    return experiment.short_address() | ({"tab": TABS_BY_KIND[kind]} if kind in TABS_BY_KIND else {})


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
    return tuple(sorted(rows, key=lambda row: (order.index(row.experiment.kernel), KINDS.index(row.kind))))


def entries_for(state: State) -> list[Entry]:
    """Return all recordings, those of the page's kernel first."""
    return sorted(entries(), key=lambda row: row.experiment.kernel != state.kernel.id)


class RecordedPanel(Panel):
    """All recordings, each with a link to the state that shows it."""

    options = (RecordedView,)
    uses_compiler = False
    is_compared = False

    def layout(self) -> Markup:
        return slot("recorded-claim") + slots.picture(slot("recorded")) + slot("recorded-file", "saved_file")

    def draw(self, snapshot: Snapshot) -> Slots:
        state = snapshot.state
        gpus = sorted({row.experiment.gpu for row in entries()})
        table = RECORDED.render(
            entries_for(state),
            state.view.of(RecordedView),
            lambda options: state.link(**options),
            lambda row: query(address(row.experiment, row.kind)),
        )
        exact, board = scoreboard().part(EXACT_COUNTS), state.link(tab="scoreboard")
        return {"recorded-claim": recorded_headline(len(entries()), gpus, exact, board), "recorded": table}

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
                        "gpu": row.experiment.gpu,
                        "date": row.date,
                        "numbers": [vars(number) for number in row.numbers],
                        "address": query(address(row.experiment, row.kind)),
                    }
                    for row in rows[part.offset : part.offset + part.limit]
                ],
            }

        return (Endpoint("recorded", recorded, schemas=RECORDED_SCHEMAS),)


class ScoreboardPanel(Panel):
    """All recorded counts against their predictions."""

    options = (ScoreCount, ScoreView)
    uses_compiler = False
    is_compared = False

    def layout(self) -> Markup:
        label = "Each recorded count: predicted across, counted upwards"
        picture = slots.picture(plot("scoreboard-plot", label))
        return slot("scoreboard-claim") + picture + slot("scoreboard-rows") + slot("scoreboard-file", "saved_file")

    def draw(self, snapshot: Snapshot) -> Slots:
        state = snapshot.state
        count, view = state.view.of(ScoreCount).score_count, state.view.of(ScoreView)
        board = _part((count,), view)

        def link(options: Mapping[str, object]) -> str:
            return state.link(**options)

        links = [
            (NOUNS[name], len(_by_error(name)), link({"score_count": name, "score_page": 1}), name == count)
            for name in COUNTS
        ]
        rows = SCORES.render(_by_error(count), view, link, lambda score: query(score_address(score)))
        return {
            "scoreboard-claim": scoreboard_headline(board, count, _part(EXACT_COUNTS, view)),
            "scoreboard-plot": scoreboard_picture(count, replace(view, score_sort="", score_page=1)),
            "scoreboard-rows": scoreboard_notes(board, links) + rows,
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
            view = read_options(ScoreView, "score_", {"kernel": kernel, "gpu": gpu}, "/scoreboard")
            chosen = read_options(ScoreCount, "score_", {"count": count}, "/scoreboard")
            board = _part((chosen.score_count,) if count else COUNTS, view)
            launches = list(dict.fromkeys(score.experiment for score in (*board.scores, *board.lower_bounds)))
            indices = {experiment: index for index, experiment in enumerate(launches)}

            def points(scores: Sequence[Score]) -> list[dict[str, Any]]:
                return [{"launch": indices[score.experiment], **_score_json(score)} for score in scores]

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

        return (Endpoint("scoreboard", scoreboard_of, schemas=SCORE_SCHEMAS),)


def _score_json(score: Score) -> dict[str, Any]:
    return {
        **{name: getattr(score, name) for name in ("operation", "count", "predicted", "counted", "error")},
        "flagged": score.is_flagged,
        "address": query(score_address(score)),
    }


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
        "words": np.array([point_text(score) for score in board.scores]),
        "addresses": np.array([query(score_address(score)) for score in board.scores]),
    }
    figure = scoreboard_figure(board.scores, count)
    scores = f"{len(board.scores):,} {NOUNS[count]} of {count_noun(board.launches, 'launch')}"
    about = f"Tilescope's scoreboard · {scores} · {join_names(board.gpus)} · predicted and recorded"
    return plot_value(figure, f"{count} {view}", meta, about=about)


def _result(kind: str, numbers: Sequence[Number]) -> str:
    return _RESULTS.get((kind, len(numbers)), ", ".join(["{}"] * len(numbers))).format(*numbers)


def recorded_headline(count: int, gpus: Sequence[str], exact_counts: Scoreboard, scoreboard: str) -> Markup:
    """Return how many predictions agree, and what is recorded.

    Args:
        exact_counts: all scores of sectors and requests.
        scoreboard: the address of the scoreboard.
    """
    agree = f"{exact_counts.exact:,} of {len(exact_counts.scores):,}"
    return prose.headline(
        *(agree, "counts agree exactly with the hardware"),
        f"{count:,} recordings open without a GPU.",
        f"They are from {join_names(gpus)}. Each row is a run, a timeline, the counts of a launch, or a study of its "
        "GROUP_SIZE. Click it to see it.",
        prose.say("{} shows each prediction beside its count.", prose.Link("The scoreboard", scoreboard)),
    )


def scoreboard_summary(board: Scoreboard) -> str:
    """Return how many sector and request counts agree, for the README."""
    exact = board.part(EXACT_COUNTS)
    launches = f"{count_noun(exact.launches, 'launch')}, {join_names(exact.gpus)}"
    return f"{exact.exact:,} of {len(exact.scores):,} counts agree exactly ({launches})"


def scoreboard_headline(board: Scoreboard, count: str, exact_counts: Scoreboard) -> Markup:
    """Return how well the predictions of one count agree.

    Args:
        board: scores of `count` only.
        exact_counts: scores of sectors and requests for the same GPU and kernel.
    """
    total, misses = len(board.scores), board.misses
    if not total:
        return prose.headline("", "", f"No {NOUNS[count]} of this kernel were counted on this GPU.")
    launches, gpus = count_noun(board.launches, "launch"), join_names(board.gpus)
    if count == DRAM:
        sentence = prose.say(
            "{:,} program orders of {} on {}: {} are {} within {} of the bytes {}. DRAM reads depend on timing.",
            *(total, launches, gpus, percent(1 - len(misses) / total)),
            *(prose.Mark("predicted"), percent(ALLOWED_ERROR), prose.Mark("counted")),
        )
        unexpected = sum(not score.is_flagged for score in misses)
        doubt = prose.say(
            "Without seeing the counts, the model flags {:,} as uncertain. Of the others, {:,} {} outside this range.",
            sum(score.is_flagged for score in board.scores),
            *(unexpected, "is" if unexpected == 1 else "are"),
        )
        return prose.headline(percent(board.median_error), "median error of DRAM reads", sentence, doubt)
    sentence = prose.say(
        "{} on {}: {} from index arithmetic and the compiler's layouts, {} by Nsight Compute.",
        *(launches, gpus, prose.Mark("predicted"), prose.Mark("counted")),
    )
    both = f"Sectors and requests together: {exact_counts.exact:,} of {len(exact_counts.scores):,} agree exactly."
    number = f"{board.exact:,} of {total:,}"
    return prose.headline(number, f"{NOUNS[count]} agree exactly", sentence, both, _excluded_atomics(board))


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


def scoreboard_notes(board: Scoreboard, links: Iterable[tuple[str, int, str, bool]]) -> Markup:
    """Return the text below the picture: links that choose a count (see `choice_links`), and what is excluded."""
    notes = prose.hint("Click a point to open its launch.", _excluded_atomics(board))
    lines = Markup('<div class="recordings"><div class="facets">{}</div></div>')
    return notes + lines.format(choice_links("Count", links))


def _excluded_atomics(board: Scoreboard) -> str:
    launches = len({score.experiment for score in board.lower_bounds})
    return f"Not compared: retrying atomics of {count_noun(launches, 'launch')}." if launches else ""


def _value(score: Score, value: int) -> str:
    return bytes_of(value) if score.count == DRAM else f"{value:,}"


def _error(score: Score) -> str:
    sign = "+" if score.error > 0 else "−"
    return "" if score.is_exact else f"{sign}{significant(abs(100 * score.error), 2)}\u00a0%"
