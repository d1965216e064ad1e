"""Sentences and tables of the Library: the list of recordings, and predictions compared with recorded counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from kernels.experiment import Experiment
from kernels.spec import shape_text
from visualize.predict.scores import ALLOWED_ERROR, DRAM, EXACT_COUNTS, Score, Scoreboard
from visualize.views.numbers import Number, bytes_of, counted, enumerated, percent, significant
from visualize.views.prose import (
    Hint,
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
from visualize.views.tables import Facet, facet_links, frame, pager, table

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
    header = ("Kernel", "What", Sourced("Result", "recorded"), "Shape", "Type", "Config", "GPU", "Date")
    cells = [
        (
            Link(row.experiment.kernel, row.link),
            kind_name(row.kind),
            _RESULTS.get((row.kind, len(row.numbers)), ", ".join(["{}"] * len(row.numbers))).format(*row.numbers),
            shape_text(row.experiment.problem),
            dtype_text(row.experiment.problem),
            # The style sheet truncates this cell, so its hover text repeats it.
            Hint(config := config_text(row.experiment.config, ["GROUP_SIZE"] if row.kind == "reuse" else ()), config),
            row.gpu,
            row.date,
        )
        for row in rows
    ]
    return Markup('<div class="recordings">{}{}{}</div>').format(
        facet_links(facets), pager, table(frame(header, cells))
    )


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
    flag = ("Flag",) if count == DRAM else ()
    counts = (Sourced("Predicted", "predicted"), Sourced("Counted", "recorded"), "Error")
    rows = [
        (
            Link(score.experiment.kernel, links[score]),
            score.operation,
            _value(score, score.predicted),
            _value(score, score.counted),
            _error(score),
            score.experiment.gpu,
            *("flagged" if score.is_flagged else "none" for _ in flag),
            shape_text(score.experiment.problem),
            dtype_text(score.experiment.problem),
            config_text(score.experiment.config),
        )
        for score in misses
    ]
    return table(frame(("Kernel", "Operation", *counts, "GPU", *flag, "Shape", "Type", "Config"), rows))


def _value(score: Score, value: int) -> str:
    return bytes_of(value) if score.count == DRAM else f"{value:,}"


def _error(score: Score) -> str:
    return f"{'+' if score.error > 0 else '−'}{significant(abs(100 * score.error), 2)}\u00a0%"
