"""Requests and sectors as one dimension slides."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from visualize.views import theme


def cliff_figure(
    sizes: Sequence[int], requests: Sequence[int], sectors: Sequence[int], known: Sequence[str], name: str
) -> go.Figure:
    """Two lines over the sizes.

    Args:
        known: what the compiler knows of each size and compiles, for the hover.
        name: the dimension's.
    """
    lines = [
        go.Scatter(
            x=list(sizes),
            y=list(values),
            name=label,
            mode="lines+markers",
            line={"color": theme.CATEGORIES[place], "shape": "hvh"},
            customdata=list(known),
            hovertemplate=f"{name} %{{x}}: %{{y:,}} {label}<br>%{{customdata}}<extra></extra>",
        )
        for place, (label, values) in enumerate((("requests", requests), ("sectors", sectors)))
    ]
    return go.Figure(
        lines,
        theme.layout(
            f"Requests and sectors of the launch as {name} slides",
            showlegend=True,
            legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
            margin={"l": 80, "r": 10, "t": 60, "b": 48},
            xaxis={"title": {"text": name}, "tickformat": "d"},
            yaxis={"title": {"text": "over the launch"}, "rangemode": "tozero"},
        ),
    )
