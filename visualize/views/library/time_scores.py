"""The times on the scoreboard: predicted and measured launches of other kernels, by family."""

from collections import defaultdict

from markupsafe import Markup

from tilescope.numbers import count_noun, milliseconds, percent
from tilescope.timing.scores import (
    SOURCE,
    TimeScore,
    shipped_scores,
    stated_ranges,
    summarize,
    unseen_scores,
)
from visualize.views.prose import Mark, lead, say
from visualize.views.tables import table

_WORST = 10

# A table: its header, and its rows.
Rows = list[tuple[str, ...]]


def _name(score: TimeScore) -> str:
    return f"{score.family}: {score.case}, {score.kernel}"


def _sign(error: float) -> str:
    return f"{'+' if error > 0 else '−'}{percent(abs(error))}"


def list_errors() -> Rows:
    """List the errors of each family and GPU."""
    rows: Rows = [
        ("kernels", "GPU", "launches", "median", "9 of 10 within", "share within 25 %", "median, all fitted",
         "9 of 10 within, all fitted"),
    ]  # fmt: skip
    groups = defaultdict[tuple[str, str], list[TimeScore]](list)
    for score in shipped_scores():
        if score.predicted_us:
            groups[score.family, score.gpu].append(score)
    for names, scores in groups.items():
        unseen = summarize(score.unseen_error for score in scores)
        fitted = summarize(score.error for score in scores)
        figures = unseen.median, unseen.high, unseen.within, fitted.median, fitted.high
        rows.append((*names, f"{len(scores)}", *map(percent, figures)))
    return rows


def list_ranges() -> Rows:
    """List the range of measured / predicted times of each class of unseen launches."""
    rows: Rows = [("bound by", "launches", "measured / predicted", "in this range")]
    for name, each in stated_ranges().items():
        ends = f"{each.low:.2f} to {each.high:.2f}"
        rows.append((name, f"{each.launches}", ends, percent(each.inside)))
    return rows


def list_worst() -> Rows:
    """List the launches with the largest errors, with constants that were fitted to other families.

    A launch is listed for the GPU on which its error is larger.
    """
    worst: dict[tuple[str, str, int], TimeScore] = {}
    for score in sorted(shipped_scores(), key=lambda score: -abs(score.unseen_error)):
        worst.setdefault((score.family, score.case, score.number), score)
    rows: Rows = [("launch", "GPU", "predicted", "measured", "error", "reason, if known")]
    for score in list(worst.values())[:_WORST]:
        times = [(score.unseen_us or 0.0) / 1e3, score.measured_us / 1e3]
        error = _sign(score.unseen_error)
        rows.append((_name(score), score.gpu, *map(milliseconds, times), error, score.why))
    return rows


def render_times() -> Markup:
    """Render a fold with the errors of each family, the largest errors, and the launches without a prediction."""
    scores = shipped_scores()
    launches = {(each.family, each.case, each.number) for each in scores if each.predicted_us}
    about = say(
        "{} of other kernels, {} on {}.",
        count_noun(len(launches), "launch"),
        Mark("measured"),
        SOURCE,
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
    unseen = summarize(score.error for score in unseen_scores())
    return fold.format(percent(unseen.median), content)
