"""What the History tab says: when an Experiment became slower, each of its runs, and what was measured last of all."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from kernels.experiment import Experiment
from kernels.spec import shape_text
from visualize.predict.history import MIN_CHANGE, MIN_RUNS, Change, PastRuns
from visualize.views.numbers import counted, milliseconds, percent
from visualize.views.prose import (
    Link,
    Mark,
    Sentence,
    Sourced,
    config_text,
    dtype_text,
    headline,
    hint,
    kind_name,
    say,
)
from visualize.views.status import render_alert
from visualize.views.tables import Facet, facet_links, frame, table

OFF = "Nothing is kept between starts of this page: TILESCOPE_DB is off."


@dataclass(frozen=True)
class Row:
    """A stored result as it is listed.

    Attributes:
        experiment: None where this version can't read it.
        backend: "cuda" or "interpreter".
        link: the address query of the state that shows it; "" where there is none.
    """

    kind: str
    kernel: str
    experiment: Experiment | None
    device: str
    backend: str
    torch: str
    triton: str
    ended: datetime.datetime
    median_ms: float | None
    p20_ms: float | None
    p80_ms: float | None
    ratio: float | None
    passed: bool | None
    link: str = ""


@dataclass(frozen=True)
class SweepLine:
    """A stored sweep as it is listed.

    Attributes:
        experiment: of its problem; None where this version can't read it.
        varied: its knobs and their values.
        done, total: configs.
        best_ms: None where none was timed.
        ended: as of Sweep.ended.
        link: as of Row.
    """

    kernel: str
    experiment: Experiment | None
    varied: str
    gpu: str
    done: int
    total: int
    best_ms: float | None
    ended: str
    began: datetime.datetime
    link: str = ""


def claim(series: Sequence[PastRuns], checks: Sequence[bool], source: str, problem: str) -> Markup:
    """When the Experiment that is set became slower, or what else is known of its runs.

    Args:
        series: its runs by device, that of the page's GPU first; only those that were timed.
        checks: whether each of its runs passed, where none was timed.
        source: of the checks: "interpreter" or "recorded".
        problem: of the store, in a sentence; "" where there is none.
    """
    warning = render_alert(problem) if problem else Markup()
    if series:
        return warning + _of_times(series)
    if checks:
        return warning + _of_checks(checks, source)
    how = "Press Run (Ctrl+Enter): results of this machine are stored here. Recordings have a tab of their own."
    return warning + headline("No runs", "of this Experiment are stored", how)


def off() -> Markup:
    """That nothing is kept."""
    return headline("", "", OFF)


def _of_times(series: Sequence[PastRuns]) -> Markup:
    first, *others = series
    elsewhere = [say("On {}: {}", one.device, _in_short(one)) for one in others]
    rule = (
        f"A change is one of at least {percent(MIN_CHANGE)}, beyond the runs' own intervals and their scatter, that "
        f"{counted(MIN_RUNS, 'run')} on each side show."
    )
    if not first.changes:
        number = milliseconds(float(first.median_ms[-1]))
        what = say("in the latest of {} on {} {}", counted(len(first), "run"), first.device, Mark("recorded"))
        return headline(number, what, _unchanged(first), rule, *elsewhere)
    *earlier, last = first.changes
    number, word = _ratio(last)
    what = say("{} since {} {}", word, _day(first, last), Mark("recorded"))
    more = [say("Before: {} {} since {}{}.", *_ratio(one), _day(first, one), _when(first, one)) for one in earlier]
    return headline(number, what, _levels(first, last), *more, rule, *elsewhere)


def _levels(series: PastRuns, change: Change) -> Sentence:
    """What changed with the time, and the times before and after."""
    (_, _, before), (_, _, after) = series.levels[-2:]
    upgrade = " and ".join(series.upgrade(change))
    return say(
        "{}On {}, {} before took {}, {} since take {}.",
        f"Since {upgrade}. " if upgrade else "The versions of torch and triton are the same. ",
        series.device,
        counted(change.before, "run"),
        milliseconds(before),
        f"{change.after:,}",
        milliseconds(after),
    )


def _unchanged(series: PastRuns) -> Sentence | str:
    if len(series) == 1:
        return "It is the only one so far. Each further run is a point of the picture."
    medians = series.median_ms
    spread = (float(medians.max()) - float(medians.min())) / 2 / float(medians.mean())
    return say(
        "No change since {}: the medians lie within ± {}.", f"{series.ended[0]:%Y-%m-%d}", percent(max(spread, 0.0001))
    )


def _in_short(series: PastRuns) -> Sentence:
    runs = counted(len(series), "run")
    if not series.changes:
        return say("{}, the latest {}; no change.", runs, milliseconds(float(series.median_ms[-1])))
    last = series.changes[-1]
    return say("{} {} since {}{}, of {}.", *_ratio(last), _day(series, last), _when(series, last), runs)


def _of_checks(checks: Sequence[bool], source: str) -> Markup:
    sentence = "On a GPU the times are stored, too." if source == "interpreter" else "None of these runs was timed."
    return headline(f"{sum(checks):,} of {len(checks):,}", say("checks passed {}", Mark(source)), sentence)


def changed(series: PastRuns, change: Change) -> str:
    """A change in a few words, for the picture: "1.08 × slower, triton 3.6.0 → 3.7.1"."""
    return " ".join(_ratio(change)) + "".join(f"<br>{escape(one)}" for one in series.upgrade(change))


def _ratio(change: Change) -> tuple[str, str]:
    return (f"{change.ratio:.2f} ×", "slower") if change.is_slower else (f"{1 / change.ratio:.2f} ×", "faster")


def _day(series: PastRuns, change: Change) -> str:
    return f"{series.ended[change.place]:%Y-%m-%d}"


def _when(series: PastRuns, change: Change) -> str:
    upgrade = series.upgrade(change)
    return f", when {' and '.join(upgrade)}" if upgrade else ""


def point(series: PastRuns, place: int) -> str:
    """What a point of the picture says. Lines as Plotly breaks them, which takes some markup for its own."""
    (torch, triton), device = map(escape, series.versions[place]), escape(series.device)
    low, high = (milliseconds(float(one[place])) for one in (series.p20_ms, series.p80_ms))
    return "<br>".join(
        (
            f"<b>{milliseconds(float(series.median_ms[place]))}</b>, p20 to p80: {low} to {high}",
            f"{series.ended[place]:%Y-%m-%d %H:%M} UTC, median of {series.samples[place]:,}",
            f"{device}, torch {torch}, triton {triton}",
        )
    )


def runs(rows: Sequence[Row], total: int) -> Markup:
    """The latest runs of the Experiment in numbers.

    Args:
        total: how many there are.
    """
    if not rows:
        return hint("No runs of this Experiment are stored.")
    header = ("Ended (UTC)", "Device", Sourced("Time", "recorded"), "p20 to p80", "Library / kernel", "Check")
    cells = [
        (_ended(row), row.device, _time(row), _spread(row), _library(row), _check(row), row.torch, row.triton)
        for row in rows
    ]
    part = f"The latest {len(rows):,} of {total:,} runs of this Experiment" if total > len(rows) else ""
    return table(frame((*header, "torch", "triton"), cells), part)


def nothing() -> Markup:
    """What stands in place of the list of a store that holds nothing."""
    return hint("No result of any Experiment is stored yet.")


def latest(facets: Sequence[Facet], pager: Markup, rows: Sequence[Row]) -> Markup:
    """The latest results of all Experiments, with filters."""
    header = ("Kernel", "What", Sourced("Result", "recorded"), "Shape", "Type", "Config", "Device", "Ended (UTC)")
    cells = [(*_known_by(row), *_set(row.experiment), row.device, _ended(row)) for row in rows]
    listed = table(frame(header, cells)) if rows else Markup()
    return Markup('<div class="recordings stored">{}{}{}</div>').format(facet_links(facets), pager, listed)


def pager(shown: int, total: int, newest: str, older: str) -> Markup:
    """How many are shown, and the way to others.

    Args:
        newest, older: address queries; "" where there is none.
    """
    if not shown:
        return Markup('<p class="pager">Nothing of this is stored.</p>')
    steps = [Link(word, address) for word, address in (("Newest", newest), ("Older", older)) if address]
    part = counted(total, "result") if shown == total else f"{shown:,} of {total:,} results"
    return Markup('<p class="pager">{} {}</p>').format(part, Markup(" ").join(steps))


def sweeps(lines: Sequence[SweepLine]) -> Markup:
    """The latest sweeps of all Experiments."""
    if not lines:
        return hint("No sweep is stored. What the Sweep tab finds is kept, and comes back after a restart.")
    header = (
        "Kernel",
        "Shape",
        "Type",
        "GPU",
        "Configs",
        Sourced("Best", "recorded"),
        "Ended",
        "Began (UTC)",
        "Varied",
    )
    cells = [
        (
            Link(one.kernel, one.link) if one.link else one.kernel,
            *_set(one.experiment)[:2],
            one.gpu,
            f"{one.done:,} of {one.total:,}",
            "" if one.best_ms is None else milliseconds(one.best_ms),
            one.ended,
            f"{one.began:%Y-%m-%d %H:%M}",
            one.varied,
        )
        for one in lines
    ]
    note = hint("A link opens the last sweep of its configs; Sweep goes on from it.")
    return table(frame(header, cells)) + note


def _known_by(row: Row) -> tuple[object, ...]:
    name = Link(row.kernel, row.link) if row.link else row.kernel
    result = _check(row) if row.median_ms is None or row.passed is False else _time(row)
    return name, kind_name(row.kind), result


def _set(experiment: Experiment | None) -> tuple[str, str, str]:
    if experiment is None:
        return "", "", "of another version of this kernel"
    return shape_text(experiment.problem), dtype_text(experiment.problem), config_text(experiment.config)


def _ended(row: Row) -> str:
    return f"{row.ended:%Y-%m-%d %H:%M}"


def _time(row: Row) -> str:
    return "" if row.median_ms is None else milliseconds(row.median_ms)


def _spread(row: Row) -> str:
    if row.p20_ms is None or row.p80_ms is None:
        return ""
    return f"{milliseconds(row.p20_ms)} to {milliseconds(row.p80_ms)}"


def _library(row: Row) -> str:
    return "" if row.ratio is None else f"{row.ratio:.3f} ×"


def _check(row: Row) -> str:
    return {None: "", True: "passed", False: "failed"}[row.passed]
