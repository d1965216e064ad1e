"""What each resource needs by itself, beside the time that was measured."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from visualize.predict.bounds import Bound
from visualize.views import theme

TAIL = "tail wave"


def bounds_figure(bounds: Sequence[Bound], measured_ms: float | None, source: str) -> go.Figure:
    """What each resource needs as bars, the longest marked; below, the time, with what they leave unexplained.

    In µs where all of it is below a tenth of a millisecond.

    Args:
        measured_ms: the launch's own time; None where it is not known.
        source: where that is from: "measured" or "recorded".
    """
    resources = [bound for bound in bounds if bound.name != TAIL]
    tail = next((bound for bound in bounds if bound.name == TAIL), None)
    binding = max(resources, key=lambda bound: bound.ms)
    names = [bound.name for bound in resources]
    longest = max(binding.ms, measured_ms or 0.0)
    unit, scale = ("µs", 1000.0) if longest < 0.1 else ("ms", 1.0)
    figure = go.Figure(
        layout=theme.layout(
            "What each resource needs by itself",
            barmode="stack",
            xaxis={"title": {"text": unit}, "range": [0, 1.15 * longest * scale]},
            yaxis={"automargin": True, "autorange": "reversed"},
        )
    )
    figure.add_bar(
        orientation="h", y=names, x=[bound.ms * scale for bound in resources], name="needed",
        marker={"color": [theme.NEW if bound is binding else theme.MODEL for bound in resources]},
        customdata=[bound.why for bound in resources],
        hovertemplate=f"%{{y}}: %{{x:.4g}} {unit}<br>%{{customdata}}<extra></extra>",
        text=[
            f"{theme.three_digits(bound.ms * scale)} {unit}" + " (binding)" * (bound is binding) for bound in resources
        ],
        textposition="auto",
    )  # fmt: skip
    if measured_ms is None:
        return figure
    extra = tail.ms if tail and binding.name == "arithmetic" else 0.0
    rest = max(0.0, measured_ms - binding.ms - extra)
    figure.add_bar(
        orientation="h", y=[source, source, source], x=[binding.ms * scale, extra * scale, rest * scale], name="time",
        marker={"color": [theme.CATEGORIES[i] for i in (1, 3, 7)], "pattern": {"shape": ["", "", "/"]}},
        customdata=[f"{binding.name}", TAIL, "not explained by these"],
        hovertemplate=f"%{{customdata}}: %{{x:.4g}} {unit}<extra></extra>",
        text=[binding.name, TAIL if extra > 0.03 * measured_ms else "", "rest" if rest > 0.05 * measured_ms else ""],
        textposition=["inside", "inside", "outside"],
        textangle=0,
    )  # fmt: skip
    figure.add_vline(measured_ms * scale, line={"dash": "dot", "color": theme.CATEGORIES[7]})
    return figure
