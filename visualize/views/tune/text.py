"""The text and tables of sweeps."""

import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import get_args

from markupsafe import Markup, escape

from tilescope.declare.experiment import Experiment
from tilescope.declare.space import Space
from tilescope.declare.spec import format_duration, shape_text
from tilescope.numbers import count_noun, percent, significant
from tilescope.reports.text import name_resource
from tilescope.results import Sweep, SweepRow
from tilescope.results.sweep import TIE, LibraryRatio, Status
from tilescope.search.sweep_run import Progress
from tilescope.search.tune import short_list_lines, sweep_unit
from visualize.views.panel import select_fields
from visualize.views.prose import Code, Link, Mark, Sourced, Strong, headline, hint, say, table
from visualize.views.slots import template

STATUSES = get_args(Status)
ENDINGS = {
    "complete": "All configs were tried.",
    "patience": "The sweep stopped early because the latest configs brought no improvement.",
    "budget": "The budget is spent.",
    "cancelled": "The sweep was cancelled. Finished rows are kept, and the next sweep resumes from them.",
    "failed": "The sweep ended because no device was left.",
    "running": "",
    "cut off": "The sweep was interrupted or is still running in another process. The next one resumes from its rows.",
}

# triton.Config lines to copy, and rows of the table.
MAX_LINES = 8
MAX_ROWS = 40
# Characters of a failure's reason in a label and in the table. /sweep returns the whole reason.
_LABEL_CHARS = 140

_PHASES = {
    "explore": "exploring",
    "race": "racing the fastest",
    "final": "timing the finalists",
    "cancelled": "cancelling",
    "over": "ended",
}

_EXPECTED = (
    "The picture shows expected ranks: 1 is expected to be the fastest, and equal ranks tie."
)
CANCELLED_EARLY = hint("The sweep was cancelled before its first result.", _EXPECTED)
NOT_SWEPT = hint(
    _EXPECTED,
    "Sweep tries the configs, except those that cannot launch or whose accumulator alone would spill.",
)
NO_RESULT = hint("No config has a result.")
_CLICK = "Click the picture to set a config."
CANCELLING = Markup('<p class="status" role="status">Cancelling. Finished rows are kept.</p>')
NOTHING_TO_CANCEL = hint("No sweep is running for these settings.")


def knobs_text(experiment: Experiment, space: Space) -> str:
    """Return the values of the varied knobs as text."""
    return ", ".join(f"{name} {getattr(experiment.config, name)}" for name, _ in space.varied)


def varied_text(space: Space) -> str:
    """Return the varied knobs in the notation of the form and the command line.

    >>> from tilescope.declare import space
    >>> from tilescope.declare.experiment import from_json
    >>> base = from_json({"kernel": "transpose.tiled"})
    >>> varied_text(space.space(base, {"num_warps": [4, 8], "BLOCK_M": [64]}))
    'BLOCK_M=64 num_warps=4,8'
    """
    return " ".join(f"{name}={','.join(map(str, values))}" for name, values in space.varied)


def ended_hint(sweep: Sweep) -> Markup:
    """Render what to do with a sweep's picture, and first how the sweep ended unless all configs were tried."""
    return hint("" if sweep.ended == "complete" else ENDINGS[sweep.ended], _CLICK)


def plan_headline(plan: Sweep, seconds: float, has_times: bool) -> Markup:
    """Render what a sweep would do.

    Args:
        seconds: estimated duration.
        has_times: whether this machine's GPU times configs.
    """
    skipped = plan.count("set aside")
    count = len(plan.rows) - skipped
    what = f"{plan.experiment.kernel} over {varied_text(plan.space)}"
    how = (
        "timed on this machine's GPU"
        if has_times
        else "compiled, and ranked by predicted time alone"
    )
    sentence = f"{what}: {how}. About {format_duration(seconds)}."
    aside = (
        f"{count_noun(skipped, 'config')} skipped: they can't launch, or their accumulator alone would spill."
        if skipped
        else ""
    )
    return headline(
        f"{count:,}", "config to try" if count == 1 else "configs to try", sentence, aside
    )


def sweep_headline(sweep: Sweep) -> Markup:
    """Render the best config and its time, so far or at the end."""
    counts = ", ".join(
        f"{count:,} {status}" for status in STATUSES if (count := sweep.count(status))
    )
    problem = sweep.experiment.problem
    configs = count_noun(len(sweep.rows), "config")
    tried = f"{shape_text(problem)}, {problem.dtype}, {configs}: {counts}."
    is_running = sweep.ended == "running"
    ending = ENDINGS[sweep.ended]
    if sweep.best is None:
        nothing = (
            "No config has a result so far." if is_running else "No config has a correct result."
        )
        return headline("", "", nothing, tried, ending, sweep.note)
    best = Strong(knobs_text(sweep.best.experiment, sweep.space))
    if not sweep.has_times:
        expected = say("{} is expected to be the fastest on {}.", best, sweep.best.device)
        return headline("", "", expected, ending, tried, sweep.note)
    unit, scale = sweep_unit(sweep)
    ties = sum(finalist.is_tie for finalist in sweep.final.finalists) if sweep.final else 0
    best_of = f"best config ({ties} tie, and the simplest wins)" if ties > 1 else "best config"
    what = say(
        "{} for the {}", Mark(sweep.source), "fastest config so far" if is_running else best_of
    )
    preposition = "on" if sweep.is_timed else "for"
    libraries = map(_compare_library, sweep.baselines)
    return headline(
        f"{significant(sweep.time_ms(sweep.best) * scale)} {unit}", what,
        say("{} {} {}.", best, preposition, sweep.best.device),
        ending, tried, *libraries, "" if sweep.is_timed else _predicted_ties(sweep), sweep.note,
    )  # fmt: skip


def _predicted_ties(sweep: Sweep) -> object:
    ties = [*sweep.ranks.values()].count(1)
    template = "{} configs are {} within {} of the best: too close for the model to rank."
    return say(template, ties, Mark("predicted"), percent(TIE)) if ties > 1 else ""


_PROGRESS = template(
    """
<p class="status" role="status"><progress max="{{ most }}" value="{{ done }}" aria-label="Configs done"></progress>
{{- " " }}<span>{{ words }}</span></p>
"""
)


def progress(now: Progress) -> Markup:
    """Render a progress bar, the number of finished configs, and the remaining time."""
    remaining = (
        "" if now.remaining_s is None else f", about {format_duration(now.remaining_s)} left"
    )
    counts = f"{now.done:,} of {count_noun(now.total, 'config')} done"
    words = f"{counts}, {_PHASES[now.phase]}, {format_duration(now.seconds)}{remaining}"
    return _PROGRESS(most=max(now.total, 1), done=now.done, words=words)


def point_label(row: SweepRow, sweep: Sweep) -> str:
    """Return the label of a point, with Plotly's line breaks: knobs, time or rank, reason."""
    unit, scale = sweep_unit(sweep)
    lines = [f"<b>{knobs_text(row.experiment, sweep.space)}</b>"]
    if row.median_ms:
        median, *ends = (
            significant(ms * scale)
            for ms in (row.median_ms, row.low_ms, row.high_ms)
            if ms is not None
        )
        interval = f" ({' to '.join(ends)})" if len(ends) == 2 else ""
        lines.append(f"{median} {unit} {sweep.source}{interval}")
    elif row.predicted:
        lines.append(
            f"{significant(row.predicted.ms * scale)} {unit} predicted, "
            f"bound by {name_resource(row.predicted.resource)}"
        )
    elif rank := sweep.ranks.get(id(row)):
        lines.append(f"rank {rank} of {len(sweep.ranked)} in the expected order")
    if row.status not in ("timed", "predicted"):
        lines.append(escape(_outcome(row)))
    return "<br>".join(lines)


def sweep_caption(sweep: Sweep) -> str:
    """Return the caption of a saved picture."""
    base = sweep.experiment
    shape = f"{shape_text(base.problem)}, {base.problem.dtype}"
    varied = varied_text(sweep.space)
    return " · ".join((base.kernel, shape, varied, sweep.rows[0].device, sweep.source))


def _outcome(row: SweepRow) -> str:
    # A compiler's message may have several lines; a label has one line per value.
    reason = textwrap.shorten(row.reason, _LABEL_CHARS, placeholder=" …")
    return f"{row.status}: {reason}" if reason else row.status


def row_json(row: SweepRow, sweep: Sweep) -> dict[str, object]:
    """Return a row of /sweep: its config and outcome."""
    predicted = row.predicted
    return {
        "config": {name: getattr(row.experiment.config, name) for name, _ in sweep.space.varied},
        **select_fields(row, "median_ms", "low_ms", "high_ms", "samples", "relative"),
        "predicted_ms": predicted and predicted.ms,
        "predicted_resource": predicted and name_resource(predicted.resource),
        **select_fields(row, "registers", "spilled_bytes", "shared_bytes", "status", "reason"),
    }


def rows_by_rank(sweep: Sweep) -> list[SweepRow]:
    """Return all rows: the ranked ones, best first, and then the others in grid order."""
    ranked = set(map(id, sweep.ranked))
    return [*sweep.ranked, *(row for row in sweep.rows if id(row) not in ranked)]


def ranking_table(sweep: Sweep, address: Callable[[SweepRow], str]) -> Markup:
    """Render the ranked configs, best first, and then the others in grid order: MAX_ROWS at most.

    Args:
        address: row → the query that sets its config.
    """
    rows = rows_by_rank(sweep)[:MAX_ROWS]
    shared = _shared_outcomes(rows)
    unit, scale = sweep_unit(sweep)
    header: list[object] = ["Rank", *(name for name, _ in sweep.space.varied)]
    if sweep.has_times:
        header.append(Sourced(f"Time, {unit}", sweep.source))
    if sweep.is_timed:
        header.append("Time / best")

    def cells(row: SweepRow) -> Iterator[object]:
        yield Link(sweep.ranks.get(id(row), "–"), address(row))
        yield from (getattr(row.experiment.config, name) for name, _ in sweep.space.varied)
        if sweep.has_times:
            ms = sweep.time_ms(row)
            yield "" if math.isnan(ms) else significant(ms * scale, 4)
        if sweep.is_timed:
            fastest = sweep.ranked[0].relative or 1.0
            yield significant(row.relative / fastest, 4) if row.relative else ""
        for size in (row.registers, row.spilled_bytes, row.shared_bytes):
            yield "" if size is None else f"{size:,}"
        yield row.status if row.status in shared else _outcome(row)

    sizes = "Registers", "Spilled, bytes", "Shared, bytes", "Outcome"
    hidden = len(sweep.rows) - len(rows)
    notes = [_outcome(row) for row in shared.values()]
    if hidden:
        notes.append(f"{count_noun(hidden, 'more config')} not shown")
    return table([*header, *sizes], map(cells, rows), " · ".join(notes))


def _shared_outcomes(rows: Sequence[SweepRow]) -> dict[Status, SweepRow]:
    """Return a row of each status whose rows, more than one, have the same reason."""
    by_status = dict[Status, list[SweepRow]]()
    for row in rows:
        by_status.setdefault(row.status, []).append(row)
    return {
        status: same[0]
        for status, same in by_status.items()
        if len(same) > 1 and same[0].reason and len({row.reason for row in same}) == 1
    }


def config_lines(sweep: Sweep) -> Markup:
    """Render the best configs as triton.Config lines."""
    lines = "".join(f"{row.experiment.config_line()}\n" for row in sweep.ranked[:MAX_LINES])
    what = "time" if sweep.has_times else "order"
    best = say(f"Best by {{}} {what}, for @triton.autotune:", Mark(sweep.source))
    return hint(best) + Markup("<pre>{}</pre>").format(lines)


def tune_command(space: Space) -> str:
    """Return the command that tunes the configs of a space for several problems."""
    over = " ".join(
        f"--over {name}={'1024,4096' if isinstance(value, int) else value}"
        for name, value in vars(space.base.problem).items()
    )
    base = space.base
    usual = vars(type(base.config)())
    varied = dict(space.varied)
    fixed = [
        f"{name}={value}"
        for name, value in vars(base.config).items()
        if name not in varied and value != usual[name]
    ]
    values = " ".join(f"--set {text}" for text in (*fixed, *varied_text(space).split()))
    gpu = f" --gpu {base.gpu}" if base.gpu else ""
    return f"tilescope tune {base.kernel} {over} {values} --l2 {base.run.l2}{gpu}"


def tune_hint(command: str) -> Markup:
    return hint(say("To compare several problems here, run {} in a terminal.", Code(command)))


def short_list_text(sweeps: Sequence[Sweep], command: str) -> Markup:
    """Render the short list of configs, and the command that adds problems."""
    lead, *lines = short_list_lines(sweeps) or ["No config has a time."]
    return hint(lead) + Markup("<pre>{}</pre>").format("\n".join(lines)) + tune_hint(command)


def _compare_library(call: LibraryRatio) -> str:
    ratio = f"{call.ratio:.3f} ({call.low:.3f} to {call.high:.3f})"
    return f"{call.name} takes {ratio} times as long."
