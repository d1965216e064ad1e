"""Nsight Compute's counts of shared-memory accesses, and how many of them are predicted exactly.

The file holds launches of kernels other than ours, one per line. `python -m scripts.score_shared_memory` writes it.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from tilescope.caching import once
from tilescope.numbers import count_noun
from tilescope.results import codec
from visualize.views.prose import Mark, lead, say, term
from visualize.views.tables import table

FILE = Path(__file__).parent / "shared_scores.jsonl"
SOURCE = "an H100 80GB HBM3 (driver 580.159.04), by Nsight Compute 2025.3.1 with Triton 3.6.0"

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
