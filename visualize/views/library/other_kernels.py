"""The scoreboard's launches of kernels other than ours: Nsight Compute's counts of shared-memory accesses, and times.

FILE holds a launch with its counts per line. `python -m scripts.score_shared_memory` writes it.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from tilescope.caching import once
from tilescope.numbers import count_noun, milliseconds, percent
from tilescope.results import codec
from tilescope.timing import scores as times
from visualize.views.prose import Mark, lead, say, term
from visualize.views.tables import table

FILE = Path(__file__).parent / "shared_scores.jsonl"
SOURCE = "an H100 80GB HBM3 (driver 580.159.04), by Nsight Compute 2025.3.1 with Triton 3.6.0"

# The number of launches in the table of the largest errors of times.
_WORST = 10

# A table: its header, and its rows.
Rows = list[tuple[str, ...]]

# The counts of a line; None if unknown.
AMOUNTS = ("executions", "wavefronts", "ideal wavefronts")
Counts = tuple[int | None, int | None, int | None]


@dataclass(frozen=True)
class LineScore:
    """The accesses to shared memory of one source line and opcode.

    Attributes:
        predicted: None if it equals the count.
        why: why it differs.
    """

    file: str
    line: int
    opcode: str
    counted: Counts
    predicted: Counts | None = None
    why: str = ""


@dataclass(frozen=True)
class LaunchScore:
    """A counted launch.

    Attributes:
        number: the number of the launch within its case.
        instructions: the instructions that all warps execute, predicted (None if unknown) and counted.
        why: why the launch is not compared, or why its executed instructions are unknown.
    """

    family: str
    case: str
    number: int
    kernel: str
    instructions: tuple[int | None, int]
    lines: tuple[LineScore, ...] = ()
    is_compared: bool = True
    why: str = ""

    @property
    def is_exact(self) -> bool:
        return all(line.predicted is None for line in self.lines)


@once
def shipped_scores() -> tuple[LaunchScore, ...]:
    rows = list(map(json.loads, FILE.read_text(encoding="utf-8").splitlines()))
    return codec.from_json(tuple[LaunchScore, ...], rows, FILE.name)


def summarize(scores: Iterable[LaunchScore]) -> dict[str, int]:
    """Return how many launches, lines and instruction counts are compared, and how many agree."""
    compared = [score for score in scores if score.is_compared]
    with_lines = [score for score in compared if score.lines]
    lines = [line for score in compared for line in score.lines]
    return {
        "lines": len(lines),
        "exact_lines": sum(line.predicted is None for line in lines),
        "launches": len(with_lines),
        "exact_launches": sum(score.is_exact for score in with_lines),
        "instructions": len(compared),
        "exact_instructions": sum(len({*score.instructions}) == 1 for score in compared),
    }


def differences(scores: Iterable[LaunchScore]) -> Iterator[dict[str, Any]]:
    """Yield each count of a compared launch that differs from its prediction."""
    for score in scores:
        if not score.is_compared:
            continue
        launch = {"family": score.family, "case": score.case, "kernel": score.kernel}
        predicted, counted = score.instructions
        counts: list[tuple[str, int | None, int | None, str]] = []
        counts.append(("executed instructions", predicted, counted, score.why))
        for line in score.lines:
            place = f"{line.file}:{line.line} {line.opcode}"
            pairs = zip(AMOUNTS, line.predicted or line.counted, line.counted, strict=True)
            counts += [(f"{place}, {name}", was, now, line.why) for name, was, now in pairs]
        for name, was, now, why in counts:
            if was != now:
                yield {**launch, "count": name, "predicted": was, "counted": now, "why": why}


def describe_uncompared(scores: Iterable[LaunchScore]) -> Iterator[str]:
    """Name the cases whose launches are not compared, and why."""
    cases = Counter(
        (score.family, score.case, score.why) for score in scores if not score.is_compared
    )
    for (family, case, why), count in cases.items():
        yield f"Not compared: {count_noun(count, 'launch')} of {family}'s {case}. {why}"


def render_scores() -> Markup:
    """Render a fold: how many lines of each family agree, and the predictions that differ or are unknown."""
    scores = shipped_scores()
    total = summarize(scores)
    launches = count_noun(total["launches"], "launch")
    about = say("{} of other kernels, {} on {}.", launches, Mark("counted"), SOURCE)
    header = "kernels", "lines", "launches", "executed instructions"
    rows = []
    for family in dict.fromkeys(score.family for score in scores):
        part = summarize(score for score in scores if score.family == family)
        agreement = [
            f"{part[f'exact_{name}']:,} of {part[name]:,}"
            for name in ("lines", "launches", "instructions")
        ]
        rows.append((family, *agreement))
    caption = say(
        "Lines and opcodes whose executions, {} and ideal wavefronts agree",
        term("wavefront", "wavefronts"),
    )
    others = [
        (
            f"{each['family']}: {each['case']}, {each['count']}",
            "unknown" if each["predicted"] is None else f"{each['predicted']:,}",
            f"{each['counted']:,}",
            each["why"],
        )
        for each in differences(scores)
    ]
    columns = "count", "predicted", "counted", "why"
    fold = Markup("<details><summary>Shared memory: {} lines agree exactly</summary>{}</details>")
    content = (
        lead(about, *describe_uncompared(scores))
        + table(header, rows, caption)
        + table(columns, others, "Predictions that differ or are unknown")
    )
    return fold.format(f"{total['exact_lines']:,} of {total['lines']:,}", content)


def _name(score: times.TimeScore) -> str:
    return f"{score.family}: {score.case}, {score.kernel}"


def _sign(error: float) -> str:
    return f"{'+' if error > 0 else '−'}{percent(abs(error))}"


def list_errors() -> Rows:
    """List the errors of each family and GPU."""
    rows: Rows = [
        ("kernels", "GPU", "launches", "median", "9 of 10 within", "share within 25 %", "median, all fitted",
         "9 of 10 within, all fitted"),
    ]  # fmt: skip
    groups = defaultdict[tuple[str, str], list[times.TimeScore]](list)
    for score in times.shipped_scores():
        if score.predicted_us:
            groups[score.family, score.gpu].append(score)
    for names, scores in groups.items():
        unseen = times.summarize(score.unseen_error for score in scores)
        fitted = times.summarize(score.error for score in scores)
        figures = unseen.median, unseen.high, unseen.within, fitted.median, fitted.high
        rows.append((*names, f"{len(scores)}", *map(percent, figures)))
    return rows


def list_ranges() -> Rows:
    """List the range of measured / predicted times of each class of unseen launches."""
    rows: Rows = [("bound by", "launches", "measured / predicted", "in this range")]
    for name, each in times.stated_ranges().items():
        ends = f"{each.low:.2f} to {each.high:.2f}"
        rows.append((name, f"{each.launches}", ends, percent(each.inside)))
    return rows


def list_worst() -> Rows:
    """List the launches with the largest errors, with constants that were fitted to other families.

    A launch is listed for the GPU on which its error is larger.
    """
    worst: dict[tuple[str, str, int], times.TimeScore] = {}
    for score in sorted(times.shipped_scores(), key=lambda score: -abs(score.unseen_error)):
        worst.setdefault((score.family, score.case, score.number), score)
    rows: Rows = [("launch", "GPU", "predicted", "measured", "error", "reason, if known")]
    for score in list(worst.values())[:_WORST]:
        both_ms = [(score.unseen_us or 0.0) / 1e3, score.measured_us / 1e3]
        error = _sign(score.unseen_error)
        rows.append((_name(score), score.gpu, *map(milliseconds, both_ms), error, score.why))
    return rows


def render_times() -> Markup:
    """Render a fold with the errors of each family, the largest errors, and the launches without a prediction."""
    scores = times.shipped_scores()
    launches = {(each.family, each.case, each.number) for each in scores if each.predicted_us}
    about = say(
        "{} of other kernels, {} on {}.",
        count_noun(len(launches), "launch"),
        Mark("measured"),
        times.SOURCE,
    )
    how = "An error is predicted / measured − 1. Constants were fitted to other families, and never to unseen kernels."
    header, *errors = list_errors()
    range_header, *ranges = list_ranges()
    worst_header, *worst = list_worst()
    missing = dict.fromkeys((_name(each), each.why) for each in scores if not each.predicted_us)
    content = (
        lead(about, how)
        + table(header, errors, "Errors of predicted times")
        + table(range_header, ranges, "Ranges stated beside predicted times")
        + table(worst_header, worst, "The largest errors")
        + table(("launch", "why"), list(missing), "Launches without a prediction")
    )
    fold = Markup(
        "<details><summary>Times: a median error of {} for unseen kernels</summary>{}</details>"
    )
    unseen = times.summarize(score.error for score in times.unseen_scores())
    return fold.format(percent(unseen.median), content)
