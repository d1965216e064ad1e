"""Sentences and tables of the Library: the list of recordings, and predictions compared with recorded counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from kernels import discover
from kernels.experiment import Experiment
from kernels.gpus import GPUS
from kernels.spec import shape_text
from visualize.predict.scores import ALLOWED_ERROR, DRAM, EXACT_COUNTS, Score, Scoreboard
from visualize.views.numbers import Number, bytes_of, counted, enumerated, percent, significant
from visualize.views.prose import (
    KIND_NAMES,
    Link,
    Mark,
    Sourced,
    config_text,
    dtype_text,
    headline,
    hint,
    kind_name,
    say,
)
from visualize.views.tables import Column, Facet, column_table, experiment_columns, facet_links, pager

# How a recording's key numbers are written, by kind and how many there are.
_RESULTS = {
    ("run", 1): "{} wrong elements",
    ("counters", 2): "{} requests, {} DRAM",
    ("reuse", 1): "{} DRAM reads",
    ("reuse", 2): "{} to {} DRAM reads",
    ("timeline", 2): "{} programs in {}",
}
_NOUNS = {"sectors": "sector counts", "requests": "request counts", DRAM: "DRAM reads"}


@dataclass(frozen=True)
class RecordedRow:
    """One recording in the list; `link` is the address of the page that shows it."""

    kind: str
    experiment: Experiment
    gpu: str
    date: str
    numbers: Sequence[Number]
    link: str


# The list's columns; those with a `facet` are its filters.
RECORDED_COLUMNS: tuple[Column[RecordedRow], ...] = (
    Column(
        "kernel",
        "Kernel",
        lambda row: row.experiment.kernel,
        facet="The kernel whose recordings are listed.",
        choices=tuple(discover()),
    ),
    Column(
        "kind",
        "What",
        cell=lambda row: kind_name(row.kind),
        facet="What was recorded.",
        choices=tuple(KIND_NAMES),
        labels={kind: plural for kind, (_, plural) in KIND_NAMES.items()},
    ),
    Column("result", Sourced("Result", "recorded"), lambda row: _result(row.kind, row.numbers)),
    *experiment_columns(lambda row: row.experiment, lambda row: ("GROUP_SIZE",) if row.kind == "reuse" else ()),
    Column("gpu", "GPU", facet="The GPU that they were recorded on.", choices=tuple(GPUS)),
    Column("date", "Date"),
)


def _result(kind: str, numbers: Sequence[Number]) -> str:
    return _RESULTS.get((kind, len(numbers)), ", ".join(["{}"] * len(numbers))).format(*numbers)


def recorded_headline(count: int, gpus: Sequence[str]) -> Markup:
    if not count:
        return headline(0, "recordings", "Nothing has been recorded yet.")
    sentence = "Runs, timelines, counts and GROUP_SIZE studies from real GPUs. You need no GPU to open them."
    return headline(f"{count:,}", f"recordings on {enumerated(gpus)}", sentence)


def recorded_pager(first: int, shown: int, total: int, previous: str, following: str) -> Markup:
    """Return which rows are listed, and links to the neighbouring pages.

    Args:
        previous, following: addresses; "" if there is no such page.
    """
    if not shown:
        return pager("No recordings match.")
    part = counted(total, "recording") if shown == total else f"{first:,}–{first + shown - 1:,} of {total:,}"
    return pager(part, Previous=previous, Next=following)


def recorded_list(facets: Sequence[Facet], pager: Markup, rows: Sequence[RecordedRow]) -> Markup:
    """Return the facets, the pager and the table."""
    listed = column_table(RECORDED_COLUMNS, rows, row_address=lambda row: row.link)
    return Markup('<div class="recordings">{}{}{}</div>').format(facet_links(facets), pager, listed)


def scoreboard_summary(board: Scoreboard) -> str:
    """Return how many sector and request counts agree, for the README."""
    exact = board.part(EXACT_COUNTS)
    launches = f"{counted(exact.launches, 'launch')}, {enumerated(exact.gpus)}"
    return f"{exact.exact:,} of {len(exact.scores):,} counts agree exactly ({launches})"


def scoreboard_headline(board: Scoreboard, count: str, exact_counts: Scoreboard) -> Markup:
    """Return how well the predictions of one count agree.

    Args:
        board: scores of `count` only.
        exact_counts: scores of sectors and requests for the same GPU and kernel.
    """
    total, misses = len(board.scores), board.misses
    if not total:
        return headline("", "", f"No {_NOUNS[count]} of this kernel were counted on this GPU.")
    launches, gpus = counted(board.launches, "launch"), enumerated(board.gpus)
    if count == DRAM:
        sentence = say(
            "{:,} program orders of {} on {}: {} are {} within {} of the bytes {}. DRAM reads depend on timing.",
            *(total, launches, gpus, percent(1 - len(misses) / total)),
            *(Mark("predicted"), percent(ALLOWED_ERROR), Mark("counted")),
        )
        unexpected = sum(not score.is_flagged for score in misses)
        doubt = say(
            "Without seeing the counts, the model flags {:,} as uncertain. Of the others, {:,} {} outside this range.",
            sum(score.is_flagged for score in board.scores),
            *(unexpected, "is" if unexpected == 1 else "are"),
        )
        return headline(percent(board.median_error), "median error of DRAM reads", sentence, doubt)
    if misses:
        verb = "count differs" if len(misses) == 1 else "counts differ"
        sentence = say(
            "In {} on {}, {:,} {} {} from what Nsight Compute {}.",
            *(launches, gpus, len(misses), Mark("predicted"), verb, Mark("counted")),
        )
    else:
        sentence = say(
            "In {} on {}, each {} count equals what Nsight Compute {}. {}",
            *(launches, gpus, Mark("predicted"), Mark("counted"), _excluded_atomics(board)),
        )
    both = f"Sectors and requests together: {exact_counts.exact:,} of {len(exact_counts.scores):,} agree exactly."
    method = "Predictions come from the kernel's index arithmetic and the layouts that the compiler chose."
    number = f"{board.exact:,} of {total:,}"
    return headline(number, f"{_NOUNS[count]} agree exactly", sentence, both, method)


def point_text(score: Score) -> str:
    """Return a point's hover text, with Plotly's line breaks."""
    launch = score.experiment
    error = "" if score.is_exact else f", {_error(score)}"
    return "<br>".join(
        (
            f"<b>{score.operation}</b> of {launch.kernel}, {launch.gpu}",
            f"{shape_text(launch.problem)}, {dtype_text(launch.problem)}",
            config_text(launch.config),
            f"predicted <b>{_value(score, score.predicted)}</b>, counted <b>{_value(score, score.counted)}</b>{error}",
        )
    )


def scoreboard_caption(board: Scoreboard, count: str) -> str:
    """Return the line below a saved picture."""
    scores = f"{len(board.scores):,} {_NOUNS[count]} of {counted(board.launches, 'launch')}"
    return f"Tilescope's scoreboard · {scores} · {enumerated(board.gpus)} · predicted and recorded"


def scoreboard_notes(board: Scoreboard, count: str, recorded: str, links: dict[Score, str]) -> Markup:
    """Return the text below the picture: what is excluded, and the table of misses.

    Args:
        recorded: the address of the list of these recordings.
        links: addresses of the misses' launches.
    """
    excluded = counted(len(board.unpredicted), "recorded launch")
    notes = hint(
        say("Click a point to open its launch. {} lists them all.", Link("Recorded", recorded)),
        _excluded_atomics(board),
        f"Left out: {excluded} without a shipped prediction." if board.unpredicted else "",
    )
    total, misses, noun = len(board.scores), board.misses, _NOUNS[count]
    by_how_much = f" by more than {percent(ALLOWED_ERROR)}" if count == DRAM else ""
    if not misses:
        return notes + hint(f"None of {total:,} {noun} differs from the prediction{by_how_much}.")
    verb = "differs" if len(misses) == 1 else "differ"
    title = f"{len(misses):,} of {total:,} {noun} {verb} from the prediction{by_how_much}"
    details = Markup("<details open><summary>{}</summary>{}</details>")
    return notes + details.format(title, _misses(misses, count, links))


def _excluded_atomics(board: Scoreboard) -> str:
    launches = len({score.experiment for score in board.lower_bounds})
    return f"Not compared: retrying atomics of {counted(launches, 'launch')}." if launches else ""


def _misses(misses: Sequence[Score], count: str, links: dict[Score, str]) -> Markup:
    columns: list[Column[Score]] = [
        Column("kernel", "Kernel", lambda score: score.experiment.kernel),
        Column("operation", "Operation"),
        Column("predicted", Sourced("Predicted", "predicted"), cell=lambda score: _value(score, score.predicted)),
        Column("counted", Sourced("Counted", "recorded"), cell=lambda score: _value(score, score.counted)),
        Column("error", "Error", cell=_error),
        Column("gpu", "GPU", lambda score: score.experiment.gpu),
        Column("flag", "Flag", lambda score: "flagged" if score.is_flagged else "none"),
        *experiment_columns(lambda score: score.experiment),
    ]
    if count != DRAM:
        columns = [column for column in columns if column.name != "flag"]
    return column_table(columns, misses, row_address=links.__getitem__)


def _value(score: Score, value: int) -> str:
    return bytes_of(value) if score.count == DRAM else f"{value:,}"


def _error(score: Score) -> str:
    return f"{'+' if score.error > 0 else '−'}{significant(abs(100 * score.error), 2)}\u00a0%"
