"""What the comparison of layouts says: one product with B as given, with B transposed, and with B transposed first."""

from __future__ import annotations

from typing import Any

from pandas import DataFrame

from kernels.results import LayoutRow, LayoutStudy
from visualize.text.prose import Mark, Sentence, Strong, say
from visualize.text.tables import frame
from visualize.text.words import milliseconds, significant

# A difference of less than this is called none.
_SAME = 0.05


def claim(study: LayoutStudy) -> tuple[Sentence, ...]:
    """What the table shows."""
    given, transposed, transposed_first = (row.timing.median_ms for row in study.rows)
    if abs(given / transposed - 1) <= _SAME:
        return (say("Storing B transposed makes no difference here: less than 5 %."),)
    if given < transposed:
        ratio = f"{transposed / given:.2f} ×"
        return (say("B is better as it is given: with B transposed, this kernel takes {} the time.", ratio),)
    pays = given / transposed_first
    took = milliseconds(study.rows[2].transposition_ms or 0)
    return (
        say(
            "With B transposed ({}) this kernel is {} as fast.",
            study.rows[1].layout,
            Strong(f"{given / transposed:.2f} ×"),
        ),
        say("Transposing it first takes {} and still leaves it {} as fast.", took, Strong(f"{pays:.2f} ×"))
        if pays > 1 + _SAME
        else say("Transposing it first takes {}, which cancels the gain.", took),
        say("Kernel and config are the same in all three: the layout makes the difference."),
    )


def rows(study: LayoutStudy, library: str) -> DataFrame:
    """Every way to store B, and the library's call on the same operands.

    Args:
        library: the name of that call.
    """
    given, transposed, transposed_first = study.rows
    ways = [
        _row("this kernel, B as given", given),
        _row("this kernel, B transposed", transposed),
        _row("transpose.tiled transposes B, then this kernel", transposed_first),
    ]
    for row in (given, transposed):
        if times := row.baseline:
            rate = significant(times.tflops or 0)
            ways.append((library, row.layout, milliseconds(times.median_ms), "", rate, "", ""))
    source = Mark("recorded" if study.backend == "recorded" else "measured")
    header = (source, "layout", "median", "of which transposing", "TFLOP/s", "speed / library", "relative RMS error")
    return frame(header, ways)


def caption(study: LayoutStudy) -> str:
    run = study.experiment.run
    clock = f", SM clock {study.clock_mhz} MHz" if study.clock_mhz else ""
    return f"Timed alternately on {study.device.name}, L2 {run.l2}, {run.timer}, {run.distribution} inputs{clock}"


def _row(name: str, row: LayoutRow) -> tuple[Any, ...]:
    error: Any = significant(row.relative_rms)
    return (
        name,
        row.layout,
        milliseconds(row.timing.median_ms),
        milliseconds(row.transposition_ms) if row.transposition_ms is not None else "",
        significant(row.timing.tflops or 0),
        f"{row.baseline.median_ms / row.timing.median_ms:.2f}" if row.baseline else "",
        error if row.passed else say("{} {}", error, Strong("wrong")),
    )
