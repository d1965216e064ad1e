"""The best config of a sweep beside the library's calls, at several sizes of one dimension."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from kernels.results import LibraryRatio
from visualize.views import theme

_MARKERS = ("circle", "diamond", "square", "triangle-up")


def baselines_figure(dimension: str, found: Sequence[tuple[int, Sequence[LibraryRatio]]], source: str) -> go.Figure:
    """Each call's time over the best config's, with its 95 % interval; above the line at 1 the config is faster.

    Args:
        found: (size, the library's calls) of each sweep that was timed to its end, sizes ascending.
        source: of the times: "measured" or "recorded".
    """
    names = list(dict.fromkeys(one.name for _, calls in found for one in calls))
    traces = [_trace(name, place, found) for place, name in enumerate(names)]
    line = {"color": theme.BORDER, "width": 1.5, "dash": "dot"}
    return go.Figure(
        traces,
        theme.layout(
            "The library's time over the best config's",
            xaxis={"type": "category", "title": {"text": dimension}, "categoryorder": "array",
                   "categoryarray": [str(size) for size, _ in found]},
            yaxis={"title": {"text": f"ratio, {source}"}, "automargin": True},
            shapes=[{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1, "line": line,
                     "layer": "below"}],
            showlegend=True,
            legend={"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom", "bgcolor": theme.NOTHING},
            hovermode="closest", margin={"l": 70, "r": 12, "t": 72, "b": 48},
        ),
    )  # fmt: skip


def _trace(name: str, place: int, found: Sequence[tuple[int, Sequence[LibraryRatio]]]) -> go.Scatter:
    mine = [(size, one) for size, calls in found for one in calls if one.name == name]
    color = theme.CATEGORIES[place % len(theme.CATEGORIES)]
    return go.Scatter(
        x=[str(size) for size, _ in mine],
        y=[one.ratio for _, one in mine],
        error_y={
            "type": "data", "symmetric": False, "thickness": 2, "width": 6, "color": color,
            "array": [one.high - one.ratio for _, one in mine],
            "arrayminus": [one.ratio - one.low for _, one in mine],
        },
        mode="lines+markers", name=name,
        line={"color": color, "width": 1.5},
        marker={"color": color, "size": 9, "symbol": _MARKERS[place % len(_MARKERS)]},
        text=[f"{one.ratio:.3f} ({one.low:.3f} to {one.high:.3f})" for _, one in mine],
        hovertemplate="%{text}<extra></extra>",
    )  # fmt: skip
