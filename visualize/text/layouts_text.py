"""What the comparison of layouts says: one product with B as given, with B transposed, and with B transposed first."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup
from pandas import DataFrame

from kernels.results import LayoutRow, LayoutStudy
from visualize.text.headline import headline
from visualize.text.prose import Mark, Sentence, Sourced, Strong, say
from visualize.text.tables import frame
from visualize.text.words import milliseconds, significant

# A difference of less than this is called none.
_SAME = 0.05


def claim(study: LayoutStudy) -> Markup:
    """What the picture shows: how many times as fast the kernel is with B transposed, and whether that pays."""
    given, transposed = (row.timing.median_ms for row in study.rows[:2])
    what = Sourced(f"as fast with B transposed ({study.rows[1].layout})", _source(study))
    return headline(f"{significant(given / transposed)} ×", what, *_claim(study))


def _claim(study: LayoutStudy) -> tuple[Sentence, ...]:
    given, transposed, transposed_first = (row.timing.median_ms for row in study.rows)
    if abs(given / transposed - 1) <= _SAME:
        return (say("Storing B transposed makes no difference here: less than 5 %."), _SAME_CONFIG)
    if given < transposed:
        ratio = f"{significant(transposed / given)} ×"
        return (
            say("B is better as it is given: with B transposed, this kernel takes {} the time.", ratio),
            _SAME_CONFIG,
        )
    pays = given / transposed_first
    took = milliseconds(study.rows[2].transposition_ms or 0)
    return (
        say("Transposing B first takes {} and still leaves it {} as fast.", took, Strong(f"{significant(pays)} ×"))
        if pays > 1 + _SAME
        else say("Transposing B first takes {}, which cancels the gain.", took),
        _SAME_CONFIG,
    )


_SAME_CONFIG = say("Kernel and config are the same in all three: the layout makes the difference.")


def _source(study: LayoutStudy) -> str:
    return "recorded" if study.backend == "recorded" else "measured"


def rows(study: LayoutStudy, library: str) -> DataFrame:
    """Every way to store B, and the library's call on the same operands.

    Args:
        library: the name of that call.
    """
    given, transposed, transposed_first = study.rows
    times_ms = [times.median_ms for row in study.rows for times in (row.timing, row.baseline) if times]
    longest = max(times_ms)
    ways = [
        _row("this kernel, B as given", given, longest),
        _row("this kernel, B transposed", transposed, longest),
        _row("transpose.tiled transposes B, then this kernel", transposed_first, longest),
    ]
    for row in (given, transposed):
        if times := row.baseline:
            rate = significant(times.tflops or 0)
            ways.append((library, row.layout, milliseconds(times.median_ms, longest), "", rate, "", ""))
    numbers = ("median", "of which transposing", "TFLOP/s", "speed / library", "relative RMS error")
    return frame((Mark(_source(study)), "layout", *numbers), ways)


def caption(study: LayoutStudy) -> str:
    run = study.experiment.run
    clock = f", SM clock {study.clock_mhz} MHz" if study.clock_mhz else ""
    return f"Timed alternately on {study.device.name}, L2 {run.l2}, {run.timer}, {run.distribution} inputs{clock}"


def _row(name: str, row: LayoutRow, longest: float) -> tuple[Any, ...]:
    error: Any = significant(row.relative_rms)
    return (
        name,
        row.layout,
        milliseconds(row.timing.median_ms, longest),
        milliseconds(row.transposition_ms, longest) if row.transposition_ms is not None else "",
        significant(row.timing.tflops or 0),
        f"{row.baseline.median_ms / row.timing.median_ms:.2f}" if row.baseline else "",
        error if row.passed else say("{} {}", error, Strong("wrong")),
    )
