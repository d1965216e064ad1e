"""What the Sweep tab says of one search at several sizes: the best of each, beside the library."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup

from kernels.results import Sweep
from visualize.views.numbers import counted, milliseconds
from visualize.views.prose import Link, Listed, Mark, Sourced, Strong, headline, hint, say
from visualize.views.tables import frame, table
from visualize.views.tune.text import knobs_text


def claim(dimension: str, sizes: int, timed: Sequence[tuple[int, Sweep]]) -> Markup:
    """The greatest ratio to the library's own call, and the least.

    Args:
        sizes: that are swept.
        timed: (size, sweep) of those that were timed beside the library to the end.
    """
    if not timed:
        what = f"{counted(sizes, 'size')} of {dimension} to sweep"
        return headline("", "", say("{}, each for itself. The ratio to the library needs a GPU.", what))
    ratios = [(found.final.baselines[0], size) for size, found in timed if found.final]
    best, size = max(ratios, key=lambda one: one[0].ratio)
    least, at = min(ratios, key=lambda one: one[0].ratio)
    source = Mark(timed[0][1].source)
    what_of = say("{} at {} {}: time of {} over the best config's", source, dimension, f"{size:,}", best.name)
    said = [say("95 % interval {} to {}.", f"{best.low:.3f}", f"{best.high:.3f}")]
    if at != size:
        ends = f"{least.low:.3f}", f"{least.high:.3f}"
        said.append(say("At {} {} it is {} ({} to {}).", dimension, f"{at:,}", Strong(f"{least.ratio:.2f} ×"), *ends))
    if missing := sizes - len(timed):
        said.append(say("Not swept to the end: {}.", counted(missing, "size")))
    return headline(f"{best.ratio:.2f} ×", what_of, Listed(tuple(said), " "))


def of_picture() -> Markup:
    """What the points are."""
    return hint("Each point is the best config of a sweep of its own. The list of configs opens it.")


def by_size(dimension: str, found: Sequence[tuple[int, Sweep | None]], address: Callable[[int], str]) -> Markup:
    """The best config at each size, and each call's time over its own.

    Args:
        address: the query that sets a size.
    """
    calls = dict.fromkeys(one.name for _, sweep in found if sweep and sweep.final for one in sweep.final.baselines)
    source = next((sweep.source for _, sweep in found if sweep and sweep.is_timed), "predicted")
    header = (dimension, "Best config", Sourced("Time", source), *(f"{name} / best" for name in calls), "Ended")
    rows = [(Link(f"{size:,}", address(size)), *_cells(sweep, list(calls))) for size, sweep in found]
    return table(frame(header, rows), f"The best config at each {dimension}") + hint(
        "Ratios have their 95 % interval. A size opens its own sweep."
    )


def _cells(sweep: Sweep | None, calls: Sequence[str]) -> tuple[str, ...]:
    if sweep is None or sweep.best is None:
        return ("", "", *("" for _ in calls), sweep.ended if sweep else "not swept")
    best = sweep.best
    ms = best.median_ms if sweep.is_timed else best.predicted.ms if best.predicted else None
    ratios = {one.name: one for one in (sweep.final.baselines if sweep.final else ())}
    said = (f"{ratios[name].ratio:.3f} ({ratios[name].low:.3f} to {ratios[name].high:.3f})" if name in ratios else ""
            for name in calls)  # fmt: skip
    return (knobs_text(best.experiment, sweep.space), "" if ms is None else milliseconds(ms), *said, sweep.ended)
