"""The result of tuning a kernel over many problems: the best config of each, and a short list for most of them."""

import math
from collections.abc import Sequence
from pathlib import Path

from tilescope.declare.experiment import Experiment, Json
from tilescope.declare.space import Space
from tilescope.export.script import config_line
from tilescope.numbers import count_noun, percent, significant, time_unit
from tilescope.results import Sweep, SweepRow

# A config serves a problem if it is slower than the problem's best config by at most this fraction.
TOLERANCE = 0.02

# The fraction of the problems that the short list should serve.
SERVED = 0.95


def varying_names(spaces: Sequence[Space]) -> list[str]:
    """Return the names of the parameters that differ between problems; if none differs, all names."""
    problems = [vars(space.base.problem) for space in spaces]
    first = problems[0]
    names = [name for name in first if any(each[name] != first[name] for each in problems)]
    return names or list(first)


def short_list(sweeps: Sequence[Sweep]) -> tuple[list[Experiment], float]:
    """Return a few configs that serve most problems, and the fraction of the problems that they serve.

    Greedy: each config serves the most problems that are not served yet; ties go to the config that is fastest on them.
    """
    slowdowns = [[sweep.slowdown(row) for row in sweep.rows] for sweep in sweeps]
    left = set(range(len(sweeps)))
    chosen = list[Experiment]()
    while len(left) > (1 - SERVED) * len(sweeps):
        ranks = []
        for number in range(len(sweeps[0].rows)):
            times = [slowdowns[problem][number] for problem in left]
            good = [time for time in times if time <= 1 + TOLERANCE]
            ranks.append((-len(good), sum(good), number))
        best = min(ranks)[2]
        served = {problem for problem in left if slowdowns[problem][best] <= 1 + TOLERANCE}
        if not served:
            break
        left -= served
        chosen.append(sweeps[0].rows[best].experiment)
    return chosen, 1 - len(left) / len(sweeps)


def tuned_json(sweeps: Sequence[Sweep]) -> Json:
    """Return the result as JSON, as docs/tune.md describes it."""
    first = sweeps[0]
    configs, served = short_list(sweeps)
    return {
        "kernel": first.experiment.kernel,
        "gpu": first.rows[0].device,
        "device": vars(first.device),
        "l2": first.experiment.run.l2,
        "load": first.space.load,
        "is_timed": first.is_timed,
        "problems": [_problem_json(sweep) for sweep in sweeps],
        "short_list": [config_json(each) for each in configs],
        "served": served,
    }


def config_json(experiment: Experiment) -> Json:
    return dict(vars(experiment.config))


def _problem_json(sweep: Sweep) -> Json:
    current = current_row(sweep)
    best = sweep.best
    return {
        "problem": dict(vars(sweep.experiment.problem)),
        "best": best and config_json(best.experiment),
        "gain": current and _finite(sweep.slowdown(current)),
        "ended": sweep.ended,
        "seconds": sweep.seconds,
        "note": sweep.note,
        "configs": [_row_json(sweep, row) for row in sweep.rows],
    }


def _row_json(sweep: Sweep, row: SweepRow) -> Json:
    return {
        "config": config_json(row.experiment),
        "status": row.status,
        "reason": row.reason,
        "median_ms": row.median_ms,
        "predicted_ms": row.predicted and row.predicted.ms,
        "slowdown": _finite(sweep.slowdown(row)),
        "samples": row.samples,
        "registers": row.registers,
        "spilled_bytes": row.spilled_bytes,
        "shared_bytes": row.shared_bytes,
    }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def current_row(sweep: Sweep) -> SweepRow | None:
    """Return the row of the base's own config; None if the space does not contain it."""
    rows = (row for row in sweep.rows if row.experiment == sweep.space.base)
    return next(rows, None)


def tuned_text(sweeps: Sequence[Sweep]) -> str:
    """Return the result as text: a line per problem, and the short list."""
    first = sweeps[0]
    base = first.experiment
    source = "timed" if first.is_timed else "predicted, not timed"
    how = f"{base.run.l2} L2, {first.space.load} load" if first.is_timed else f"{base.run.l2} L2"
    title = f"{Path(base.kernel).name} on {first.rows[0].device}, {source} ({how})"
    names = varying_names([sweep.space for sweep in sweeps])
    knobs = [name for name, values in first.space.varied if len(values) > 1]
    ratios = "current / best", "next / best"
    rows = [[*names, *knobs, "time", *ratios, *["timed"] * first.is_timed]]
    rows += [_cells(sweep, names, knobs) for sweep in sweeps]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    configs, served = short_list(sweeps)
    notes = dict.fromkeys(sweep.note for sweep in sweeps if sweep.note)
    lines = [title, "", *lines, "", *notes, *_explain_dropped(sweeps)]
    if configs:
        verb = "is" if len(configs) == 1 else "are"
        share = f"{round(served * len(sweeps))} of {count_noun(len(sweeps), 'problem')}"
        lines.append(
            f"{count_noun(len(configs), 'config')} {verb} within {percent(TOLERANCE)} of the best for {share}. For "
            "@triton.autotune:"
        )
        lines += [config_line(each, first.space.parameters) for each in configs]
    return "\n".join(lines)


def _cells(sweep: Sweep, names: Sequence[str], knobs: Sequence[str]) -> list[str]:
    problem = [str(vars(sweep.experiment.problem)[name]) for name in names]
    best = sweep.best
    if best is None:
        return [*problem, *("" for _ in knobs), "–", "", "", *[""] * sweep.is_timed]
    config = [str(vars(best.experiment.config)[name]) for name in knobs]
    ms = best.median_ms if sweep.is_timed else best.predicted and best.predicted.ms
    unit, scale = time_unit(ms or 1.0)
    current = current_row(sweep)
    gain = sweep.slowdown(current) if current else math.inf
    ties = sum(each.is_tie for each in sweep.final.finalists) - 1 if sweep.final else 0
    others = sorted(sweep.slowdown(row) for row in sweep.ranked[1:])
    next_best = "" if not others else "tie" if ties > 0 else f"{others[0]:.3f}"
    time = f"{significant(ms * scale, 3)} {unit}" if ms else "–"
    gain_text = f"{gain:.2f}" if math.isfinite(gain) else "–"
    timed = [f"{sweep.count('timed')} of {len(sweep.rows)}"] * sweep.is_timed
    return [*problem, *config, time, gain_text, next_best, *timed]


def _explain_dropped(sweeps: Sequence[Sweep]) -> list[str]:
    """Return a line per reason for which configs have no time, with their number."""
    reasons: dict[str, int] = {}
    for sweep in sweeps:
        for row in sweep.rows:
            if row.status in ("set aside", "failed", "wrong"):
                reason = f"{row.status}: {row.reason[:120]}"
            elif row.status == "predicted" and row.expected is None:
                reason = "compiled, without a predicted time"
            else:
                continue
            reasons[reason] = reasons.get(reason, 0) + 1
    return [f"{count_noun(count, 'config')} {reason}" for reason, count in reasons.items()]
