"""The predicted time of a launch, of our kernels and of scripts."""

from collections.abc import Mapping

from markupsafe import Markup

from tilescope.inside.report import Inside
from tilescope.numbers import milliseconds, percent, significant, time_unit
from tilescope.reports.launch import describe_spills
from tilescope.reports.text import name_resource
from tilescope.results.scores import summarize
from tilescope.timing.changes import describe_changes, describe_savings
from tilescope.timing.ranges import SOURCE, unfitted_scores, unseen_scores
from visualize.views import theme
from visualize.views.prose import Link, Mark, headline, say
from visualize.views.slots import NONE, plot_value
from visualize.views.theme import Figure

# Shorter times than this part of the total have no bar.
_LEAST_SHARE = 0.01


def render_predicted(
    inside: Inside, scoreboard: str, known_ms: float | None = None, is_warm: bool = False
) -> Markup:
    """Render the predicted time of a launch, or the reason why there is none.

    Args:
        scoreboard: the address of the scoreboard.
        known_ms: the time that was measured or recorded; None if it is unknown.
        is_warm: whether this time is of launches that follow each other.
    """
    if inside.predicted_us is None or inside.range_us is None:
        return headline("", "", f"No predicted time: {inside.not_predicted}")
    low, high = (milliseconds(time_us / 1e3) for time_us in inside.range_us)
    cold = milliseconds(inside.predicted_us / 1e3)
    warm_us = inside.predicted_warm_us or inside.predicted_us
    warm = milliseconds(warm_us / 1e3)
    first, *others = describe_savings(inside) or [describe_changes(inside)]
    back_to_back = f"For back-to-back launches, the predicted time is {warm}." * (warm != cold)
    comparison = ""
    if known_ms:
        scale = warm_us / inside.predicted_us if is_warm else 1.0
        shortest, longest = (scale * time_us / 1e3 for time_us in inside.range_us)
        if not shortest <= known_ms <= longest:
            error = "misses" if known_ms > longest else "overstates"
            comparison = (
                f"The launch took {milliseconds(known_ms)}, so the model {error} a cost here."
            )
    is_compared = bool(known_ms) and is_warm
    errors = summarize(unseen_scores())
    number, unit = cold.split()
    bound = name_resource(inside.bound_by)
    sentences = [
        " ".join(
            filter(None, [describe_spills(inside), first, back_to_back * is_compared, comparison])
        ),
        *others,
        f"For nine in ten of {len(unfitted_scores())} launches of kernels that the model was not fitted to, such a "
        f"range contains the measured time. {errors.launches} of them were timed after the model was final: their "
        f"median error is {percent(errors.median)}.",
        back_to_back * (not is_compared),
        inside.assumed,
        say(
            "{} shows predicted and measured times on {}.",
            Link("The scoreboard", scoreboard),
            SOURCE,
        ),
    ]
    what = say(
        "{} with a cold L2 ({} to {}), bound by {} {}", unit, low, high, bound, Mark("predicted")
    )
    return headline(number, what, *filter(None, sentences))


def plot_predicted(inside: Inside, about: str) -> str:
    """Plot the time that each resource would take alone."""
    if inside.predicted_us is None:
        return NONE
    shares = inside.resource_shares
    least = min(_LEAST_SHARE, max(shares.values()))
    times_ms = {
        name_resource(name): inside.by_resource_us[name] / 1e3
        for name, share in shares.items()
        if share >= least
    }
    is_bound = inside.bound_by != "latency"
    figure = resources_figure(times_ms, inside.predicted_us / 1e3, is_bound)
    return plot_value(figure, about=about)


def resources_figure(times_ms: Mapping[str, float], total_ms: float, is_bound: bool) -> Figure:
    """Draw the time that each resource would take alone and, below, the launch's predicted time.

    Args:
        times_ms: by resource.
        is_bound: whether a resource, and not latency, bounds the launch.
    """
    names = [*times_ms, "predicted"]
    all_ms = [*times_ms.values(), total_ms]
    unit, scale = time_unit(max(all_ms))
    times = [scale * ms for ms in all_ms]
    texts = [f" {significant(time)} {unit}" for time in times]
    colors = [*[theme.MODEL] * len(times_ms), theme.CATEGORIES[1]]
    if is_bound:
        busiest = times.index(max(times[:-1]))
        texts[busiest] += "<br> bound by this"
        colors[busiest] = theme.NEW
    bars = dict(
        y=names,
        x=times,
        marker={"color": colors},
        hovertemplate=f"%{{y}}: %{{x:.4g}} {unit}<extra></extra>",
    )
    return theme.bar_figure("Time each resource would take alone", unit, bars, texts, times)
