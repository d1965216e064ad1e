"""What each resource needs by itself, beside the time that was measured."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from visualize.figures import theme
from visualize.models.bounds import Bound

TAIL = "tail wave"


def bounds_figure(bounds: Sequence[Bound], measured_ms: float | None, source: str) -> go.Figure:
    """Milliseconds of each resource as bars, the longest marked; below, the time, with what they leave unexplained.

    Args:
        measured_ms: the launch's own time; None where it is not known.
        source: where that is from: "measured" or "recorded".
    """
    resources = [bound for bound in bounds if bound.name != TAIL]
    tail = next((bound for bound in bounds if bound.name == TAIL), None)
    binding = max(resources, key=lambda bound: bound.ms)
    names = [bound.name for bound in resources]
    longest = max(binding.ms, measured_ms or 0.0)
    figure = go.Figure(
        layout=theme.layout(
            "What each resource needs by itself",
            barmode="stack",
            xaxis={"title": {"text": "milliseconds"}, "range": [0, 1.15 * longest]},
            yaxis={"automargin": True, "autorange": "reversed"},
        )
    )
    figure.add_bar(
        orientation="h", y=names, x=[bound.ms for bound in resources], name="needed",
        marker={"color": [theme.CATEGORIES[1] if bound is binding else theme.CATEGORIES[0] for bound in resources]},
        customdata=[bound.why for bound in resources],
        hovertemplate="%{y}: %{x:.4f} ms<br>%{customdata}<extra></extra>",
        text=[f"{bound.ms:.3g} ms" + (" (binding)" if bound is binding else "") for bound in resources],
        textposition="auto",
    )  # fmt: skip
    if measured_ms is None:
        return figure
    extra = tail.ms if tail and binding.name == "arithmetic" else 0.0
    rest = max(0.0, measured_ms - binding.ms - extra)
    figure.add_bar(
        orientation="h", y=[source, source, source], x=[binding.ms, extra, rest], name="time",
        marker={"color": [theme.CATEGORIES[i] for i in (1, 3, 7)], "pattern": {"shape": ["", "", "/"]}},
        customdata=[f"{binding.name}", TAIL, "not explained by these"],
        hovertemplate="%{customdata}: %{x:.4f} ms<extra></extra>",
        text=[binding.name, TAIL if extra > 0.03 * measured_ms else "", "rest" if rest > 0.05 * measured_ms else ""],
        textposition=["inside", "inside", "outside"],
        textangle=0,
    )  # fmt: skip
    figure.add_vline(measured_ms, line={"dash": "dot", "color": theme.CATEGORIES[7]})
    return figure
