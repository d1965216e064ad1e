"""Sentences and tables of the Library: the list of recordings, and predictions compared with recorded counts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from kernels import discover
from kernels.experiment import Experiment
from kernels.gpus import GPUS
from kernels.spec import shape_text
from visualize.predict.scores import ALLOWED_ERROR, DRAM, EXACT_COUNTS, Score, Scoreboard
from visualize.views.numbers import Number, bytes_of, count_noun, join_names, percent, significant
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
from visualize.views.tables import Column, choice_links, experiment_columns

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

    @property
    def kernel(self) -> str:
        return self.experiment.kernel

    @property
    def gpu(self) -> str:
        return self.experiment.gpu


RECORDED_COLUMNS: tuple[Column[Entry], ...] = (
    Column("kernel", "Kernel", facet="The kernel whose recordings are listed.", choices=tuple(discover())),
    Column(
        "kind",
        "What",
        cell=lambda entry: kind_name(entry.kind),
        facet="What was recorded.",
        choices=tuple(KIND_NAMES),
        labels={kind: plural for kind, (_, plural) in KIND_NAMES.items()},
    ),
    Column("result", Sourced("Result", "recorded"), lambda entry: _result(entry.kind, entry.numbers)),
    *experiment_columns(lambda entry: entry.experiment, lambda entry: ("GROUP_SIZE",) if entry.kind == "reuse" else ()),
    Column("gpu", "GPU", facet="The GPU that they were recorded on.", choices=tuple(GPUS)),
    Column("date", "Date"),
)

SCORE_COLUMNS: tuple[Column[Score], ...] = (
    Column(
        "kernel",
        "Kernel",
        lambda score: score.experiment.kernel,
        facet="The kernel that was launched.",
        choices=tuple(discover()),
    ),
    Column("operation", "Operation"),
    Column("predicted", Sourced("Predicted", "predicted"), cell=lambda score: _value(score, score.predicted)),
    Column("counted", Sourced("Counted", "recorded"), cell=lambda score: _value(score, score.counted)),
    Column("error", "Error", lambda score: 100 * score.error, lambda score: _error(score) or "none", unit="%"),
    Column(
        "gpu",
        "GPU",
        lambda score: score.experiment.gpu,
        facet="The GPU that it was counted on.",
        choices=tuple(GPUS),
    ),
    *experiment_columns(lambda score: score.experiment),
    # The model flags DRAM reads only.
    Column("flag", "Flag", lambda score: "flagged" if score.is_flagged else ""),
)


def _result(kind: str, numbers: Sequence[Number]) -> str:
    return _RESULTS.get((kind, len(numbers)), ", ".join(["{}"] * len(numbers))).format(*numbers)


def recorded_headline(count: int, gpus: Sequence[str], exact_counts: Scoreboard, scoreboard: str) -> Markup:
    """Return how many predictions agree, and what is recorded.

    Args:
        exact_counts: all scores of sectors and requests.
        scoreboard: the address of the scoreboard.
    """
    if not count:
        return headline(0, "recordings", "Nothing has been recorded yet.")
    agree = f"{exact_counts.exact:,} of {len(exact_counts.scores):,}"
    return headline(
        *(agree, "counts agree exactly with the hardware"),
        f"{count:,} recordings open without a GPU.",
        f"They are from {join_names(gpus)}. Each row is a run, a timeline, the counts of a launch, or a study of its "
        "GROUP_SIZE. Click it to see it.",
        say("{} shows each prediction beside its count.", Link("The scoreboard", scoreboard)),
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
        return headline("", "", f"No {NOUNS[count]} of this kernel were counted on this GPU.")
    launches, gpus = count_noun(board.launches, "launch"), join_names(board.gpus)
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
    sentence = say(
        "{} on {}: {} from index arithmetic and the compiler's layouts, {} by Nsight Compute.",
        *(launches, gpus, Mark("predicted"), Mark("counted")),
    )
    both = f"Sectors and requests together: {exact_counts.exact:,} of {len(exact_counts.scores):,} agree exactly."
    number = f"{board.exact:,} of {total:,}"
    return headline(number, f"{NOUNS[count]} agree exactly", sentence, both, _excluded_atomics(board))


def point_text(score: Score) -> str:
    """Return a point's hover text, with Plotly's line breaks."""
    launch = score.experiment
    error = f", {_error(score)}".removesuffix(", ")
    return "<br>".join(
        (
            f"<b>{score.operation}</b> of {launch.kernel}, {launch.gpu}",
            f"{shape_text(launch.problem)}, {dtype_text(launch.problem)}",
            config_text(launch.config),
            f"predicted <b>{_value(score, score.predicted)}</b>, counted <b>{_value(score, score.counted)}</b>{error}",
        )
    )


def scoreboard_notes(board: Scoreboard, counts: Iterable[tuple[str, int, str, bool]]) -> Markup:
    """Return the text below the picture: links that choose a count, and what is excluded.

    Args:
        counts: each count, its number of scores, the link's address, and whether it is chosen.
    """
    links = [(NOUNS[count], total, address, is_chosen) for count, total, address, is_chosen in counts]
    excluded = count_noun(len(board.unpredicted), "recorded launch")
    left_out = f"Left out: {excluded} without a shipped prediction." if board.unpredicted else ""
    notes = hint("Click a point to open its launch.", _excluded_atomics(board), left_out)
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
