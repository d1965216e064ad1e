"""The predicted time of a launch, of our kernels and of scripts."""

from markupsafe import Markup

from kernels.inside.report import Inside
from kernels.timing.scores import SOURCE, summarize, unseen_scores
from visualize.numbers import milliseconds, percent
from visualize.reports.launch import describe_changes, describe_savings
from visualize.reports.text import RESOURCES, describe_bound
from visualize.views.prose import Link, Mark, headline, say
from visualize.views.result.figures import resources_figure
from visualize.views.slots import NONE, plot_value

# Shorter times than this part of the total have no bar.
_LEAST_SHARE = 0.01


def render_predicted(inside: Inside, scoreboard: str) -> Markup:
    """Render the predicted time of a launch, or the reason why there is none.

    Args:
        scoreboard: the address of the scoreboard.
    """
    if inside.predicted_us is None or inside.range_us is None:
        return headline("", "", f"No predicted time: {inside.not_predicted}")
    number, unit = milliseconds(inside.predicted_us / 1e3).split()
    low, high = (milliseconds(time_us / 1e3) for time_us in inside.range_us)
    warm = milliseconds((inside.predicted_warm_us or inside.predicted_us) / 1e3)
    bound = describe_bound(inside)
    savings = describe_savings(inside)
    errors = summarize(score.error for score in unseen_scores())
    return headline(
        number,
        say("{} ({} to {}) {}", unit, low, high, Mark("predicted")),
        " ".join([f"{bound[0].upper()}{bound[1:]}.", *savings[:1]]),
        *(savings[1:] if savings else [describe_changes(inside)]),
        f"Ranges like {low} to {high} hold nine of ten of {errors.launches} launches of kernels that no constant was "
        f"fitted to. Half of their predictions were off by more than {percent(errors.median)}.",
        f"The prediction assumes a cold L2 cache. If the same launch ran just before, the predicted time is {warm}.",
        inside.assumed,
        say(
            "{} shows predicted and measured times on {}.",
            Link("The scoreboard", scoreboard),
            SOURCE,
        ),
    )


def plot_predicted(inside: Inside, about: str) -> str:
    """Plot the time that each resource would take alone."""
    if inside.predicted_us is None:
        return NONE
    shares = inside.resource_shares
    least = min(_LEAST_SHARE, max(shares.values()))
    times_ms = {
        RESOURCES.get(name, name): inside.by_resource_us[name] / 1e3
        for name, share in shares.items()
        if share >= least
    }
    has_bottleneck = inside.bound_by != "latency"
    figure = resources_figure(times_ms, inside.predicted_us / 1e3, has_bottleneck)
    return plot_value(figure, about=about)
