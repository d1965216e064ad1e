"""What the Sweep tab says: what a sweep would do, where it is, what it found, and each point's words."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

from kernels.experiment import Experiment
from kernels.export.script import config_line
from kernels.results import Sweep, SweepRow
from kernels.space import Space
from kernels.spec import Kernel, format_duration, shape_text
from visualize.views.numbers import bytes_of, counted, milliseconds, percent, significant
from visualize.views.prose import Link, Mark, Sentence, Sourced, Strong, headline, hint, say
from visualize.views.tables import frame, table

# Rows of the table; all of them are in the files.
LISTED = 100
# Lines to paste.
PASTED = 8
# Predicted times that are so close say nothing: the model's own best is within 1 % of the fastest at best.
_UNDECIDED = 0.01
# Characters of a reason that a point says, and the table; the files have all of it.
_LONGEST_REASON, _LONGEST_IN_TABLE = 140, 400
_PHASES = {"explore": "exploring", "race": "racing the faster ones", "final": "timing the finalists", "over": "ended"}
CANCELLING = Markup('<p class="status" role="status">Cancelling: what is done is kept.</p>')
_ENDED = {
    "complete": "All configs were tried.",
    "patience": "It ended early: the last 30 configs were no improvement.",
    "budget": "The budget is spent.",
    "cancelled": "It was cancelled: what is done is kept, and Sweep goes on from there.",
    "failed": "It ended, as no device was left.",
    "running": "",
    "cut off": "It was cut off, or goes on in another process: what is done is kept, and Sweep goes on from there.",
}
_CLICKS = {
    "set": "Click a point to set its config.",
    "pin": "Click a point to pin its config beside the one that is set.",
}


def varied_text(space: Space) -> str:
    """What varies, as the form and the command line take it.

    >>> from kernels import space
    >>> from kernels.experiment import from_json
    >>> base = from_json({"kernel": "transpose.tiled"})
    >>> varied_text(space.space(base, {"num_warps": [4, 8], "BLOCK_M": [64]}))
    'BLOCK_M=64 num_warps=4,8'
    """
    return " ".join(f"{name}={','.join(map(str, values))}" for name, values in space.varied)


def plan_claim(space: Space, refused: Mapping[Experiment, str], seconds: float, has_times: bool) -> Markup:
    """What a sweep would do.

    Args:
        refused: the reason by config that can't launch, known before any compile.
        seconds: that it takes, roughly.
        has_times: whether configs are timed on this machine's GPU.
    """
    left = space.size - len(refused)
    how = "timed on this machine's GPU" if has_times else "compiled, and ranked by predicted time alone"
    sentence = say("{} over {}: {}. About {}.", space.base.kernel, varied_text(space), how, format_duration(seconds))
    aside = say("{} before any compile.", counted_aside(len(refused))) if refused else ""
    return headline(f"{left:,}", "config to try" if left == 1 else "configs to try", sentence, aside)


def planned(space: Space, refused: Iterable[tuple[str, str]]) -> Markup:
    """What varies, and what is refused, as tables.

    Args:
        refused: (knobs, reason) of each config that can't launch.
    """
    rows = [(name, ", ".join(map(str, values)), len(values)) for name, values in space.varied]
    varied = table(frame(("Knob", "Values", "How many"), rows), f"{counted(space.size, 'config')}: all combinations")
    return Markup('<div class="tables">{}{}</div>').format(varied, set_aside(refused, "Set aside before any compile"))


def counted_aside(number: int) -> str:
    """How many configs are set aside.

    >>> counted_aside(1), counted_aside(12)
    ('1 config is set aside', '12 configs are set aside')
    """
    return f"{counted(number, 'config')} {'is' if number == 1 else 'are'} set aside"


def claim(found: Sweep) -> Markup:
    """What a sweep found, or has found so far."""
    best = found.best
    said = say("{}, {}, {}.", shape_text(found.experiment.problem), found.experiment.problem.dtype, _tried(found))
    if best is None:
        nothing = "No config has a result so far." if found.ended == "running" else "No config was right."
        return headline("", "", nothing,
                        said, _ENDED[found.ended], found.note)  # fmt: skip
    ms = best.median_ms if found.is_timed else best.predicted.ms if best.predicted else 0.0
    number = milliseconds(ms or 0.0)
    which = "for the fastest config so far" if found.ended == "running" else "for the best config"
    what = say("{} {}", Mark(found.source), which)
    where = "on" if found.is_timed else "for"
    sentence = say("{} {} {}. {}", Strong(knobs_text(best, found.space)), where, best.device, _ENDED[found.ended])
    return headline(number, what, sentence, said, *_library(found), _ties(found), found.note)


def _tried(found: Sweep) -> str:
    counts = Counter[str](row.status for row in found.rows)
    words = ("timed", "checked", "predicted", "wrong", "set aside", "failed", "not tried")
    return f"{counted(len(found.rows), 'config')}: " + ", ".join(f"{counts[w]:,} {w}" for w in words if counts[w])


def _library(found: Sweep) -> list[Sentence]:
    return [
        say("{} takes {} ({} to {}) times as long.", one.name, *map(significant, (one.ratio, one.low, one.high)))
        for one in (found.final.baselines if found.final else ())
    ]


def _ties(found: Sweep) -> Sentence | str:
    """Configs that are not known to be slower than the best."""
    if not found.is_timed:
        return _undecided([row.predicted.ms for row in found.ranked if row.predicted])
    ties = [one for one in found.final.finalists if one.is_tie] if found.final else []
    if len(ties) < 2:
        return ""
    return say("{} finalists tie within their intervals; the simplest of them is named.", len(ties))


def _undecided(times_ms: Sequence[float]) -> Sentence | str:
    """How many configs a model does not tell apart from the best, where these are several."""
    near = sum(ms <= (1 + _UNDECIDED) * times_ms[0] for ms in times_ms)
    if near < 2:
        return ""
    return say("{} configs are {} within {} of it, which is closer than a model can tell.",
               near, Mark("predicted"), percent(_UNDECIDED))  # fmt: skip


def progress(phase: str, done: int, total: int, seconds: float, remaining_s: float | None, name: str = "") -> Markup:
    """Where a sweep is: a bar, how many are done, and what remains.

    Args:
        name: of the sweep, where it is one of several.
    """
    left = "" if remaining_s is None else f", about {format_duration(remaining_s)} left"
    of = f"{name}: " if name else ""
    words = f"{of}{done:,} of {total:,} configs done, {_PHASES[phase]}, {format_duration(seconds)}{left}"
    bar = Markup('<progress max="{}" value="{}" aria-label="Configs done"></progress>').format(max(total, 1), done)
    return Markup('<p class="status" role="status">{} <span>{}</span></p>').format(bar, words)


def config_knobs(experiment: Experiment, space: Space) -> str:
    """The values of the knobs that vary."""
    return ", ".join(f"{name} {getattr(experiment.config, name)}" for name, _ in space.varied)


def knobs_text(row: SweepRow, space: Space) -> str:
    """The same of a row."""
    return config_knobs(row.experiment, space)


def point(row: SweepRow, found: Sweep) -> str:
    """What a point says: its knobs, its time, and what was predicted. A line, as Plotly breaks it."""
    lines = [f"<b>{knobs_text(row, found.space)}</b>"]
    if row.median_ms:
        lines.append(f"{milliseconds(row.median_ms)} {found.source}{_interval(row)}")
    if row.predicted:
        lines.append(f"{milliseconds(row.predicted.ms)} predicted, by {row.predicted.resource}")
    if row.status not in ("timed", "predicted"):
        # A compiler's words: in one line, as a row of words has one each, and no markup.
        reason = textwrap.shorten(row.reason, _LONGEST_REASON, placeholder=" …")
        lines.append(f"{row.status}{': ' if reason else ''}{escape(reason)}")
    return "<br>".join(lines)


def _interval(row: SweepRow) -> str:
    if row.low_ms is None or row.high_ms is None:
        return ""
    return f" ({significant(row.low_ms)} to {significant(row.high_ms)} ms)"


def about(found: Sweep) -> str:
    """What a saved picture says of itself."""
    problem = found.experiment.problem
    return " · ".join(
        (found.experiment.kernel, f"{shape_text(problem)}, {problem.dtype}", varied_text(found.space),
         found.rows[0].device, found.source)
    )  # fmt: skip


def ranking(found: Sweep, address: Callable[[SweepRow], str]) -> Markup:
    """The best configs as a table that can be sorted and filtered.

    Args:
        address: the query that sets a row's config.
    """
    shown = found.ranked[:LISTED]
    if not shown:
        return Markup()
    knobs = [name for name, _ in found.space.varied]
    timed = (Sourced("Time, ms", found.source), "Over the best") if found.is_timed else ()
    header = (
        "Rank",
        *knobs,
        *timed,
        Sourced("Time, ms", "predicted"),
        "By",
        "Registers",
        "Spilled",
        "Shared",
        "Status",
    )
    first = shown[0].relative or 1.0
    rows = [
        (
            Link(place, address(row)),
            *(getattr(row.experiment.config, name) for name in knobs),
            *((significant(row.median_ms or 0, 4), significant((row.relative or first) / first, 4)) if timed else ()),
            significant(row.predicted.ms, 4) if row.predicted else "",
            row.predicted.resource if row.predicted else "",
            "" if row.registers is None else row.registers,
            "" if row.spilled_bytes is None else bytes_of(row.spilled_bytes),
            "" if row.shared_bytes is None else bytes_of(row.shared_bytes),
            row.status,
        )
        for place, row in enumerate(shown, 1)
    ]
    rest = len(found.ranked) - len(shown)
    more = hint(say("{} more are in the files.", f"{rest:,}")) if rest else Markup()
    return Markup('<div class="sortable">{}</div>{}').format(
        table(frame(header, rows), "Configs, the best first"), more
    )


def set_aside(reasons: Iterable[tuple[str, str]], caption: str = "Without a result") -> Markup:
    """Configs that have no result, by reason: the most frequent first.

    Args:
        reasons: (knobs, reason) of each.
    """
    by_shape: dict[str, list[tuple[str, str]]] = {}
    for knobs, reason in reasons:
        by_shape.setdefault("".join(c for c in reason if not c.isdigit()), []).append((knobs, reason))
    if not by_shape:
        return Markup()
    rows = [
        (f"{len(several):,}", textwrap.shorten(several[0][1], _LONGEST_IN_TABLE, placeholder=" …"), several[0][0])
        for several in sorted(by_shape.values(), key=len, reverse=True)[:20]
    ]
    return table(frame(("Configs", "Reason (of the first)", "First of them"), rows), caption)


def not_swept() -> Markup:
    """What stands in the picture's place before a sweep."""
    return hint("Press Sweep to try them. Configs that can't launch or would spill are set aside, with the reason.")


def of_picture(found: Sweep, picture: str, click: str) -> Markup:
    """What a click on the picture does; or why there is none."""
    if not found.ranked:
        return hint("No config has a result." if found.ended != "running" else "No config has a result so far.")
    if picture != "library" and (found.is_timed or picture not in ("bound", "convergence")):
        return hint(_CLICKS[click])
    if picture == "library":
        return hint("Name sizes under over, such as K=512,1024, and press Sweep.")
    return hint(f"Nothing was timed, so {picture} has nothing to show. heatmap and parallel show predicted times.")


def left(others: int) -> Markup:
    """What Cancel answers where others take part in the sweep."""
    pages = "1 other page or call" if others == 1 else f"{others} other pages or calls"
    return hint(f"You have left the sweep. It goes on for {pages}, and ends once they have left, too.")


def nothing_to_cancel() -> Markup:
    """What Cancel answers where another sweep is under way, or none."""
    return hint("No sweep of what is set is under way.")


def pasted(kernel: Kernel, found: Sweep, best: str) -> Markup:
    """The best configs as lines to paste, and the link that sets the best one.

    Args:
        best: the query that sets the best config.
    """
    lines = "".join(f"{config_line(kernel, row.experiment)}\n" for row in found.ranked[:PASTED])
    lead = hint(say("{} and look at it on the other tabs. Best by {} time, for @triton.autotune:",
                    Link("Use the best config", best), Mark(found.source)))  # fmt: skip
    return lead + Markup("<pre>{}</pre>").format(lines)


def reasons(rows: Sequence[SweepRow], space: Space) -> list[tuple[str, Any]]:
    """(knobs, reason) of each row that was not tried to its end."""
    return [(knobs_text(row, space), row.reason) for row in rows if row.status in ("set aside", "failed", "wrong")]
