"""Roofs of GPUs over arithmetic intensity, and launches below them."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from visualize.predict.bounds import Point, Roof
from visualize.views import theme

_OTHER = theme.BEFORE
_LIBRARY = theme.CATEGORIES[7]


def roofline_figure(
    roofs: Sequence[Roof], recorded: Sequence[Point], own: Sequence[Point], bound: Point | None, gpu: str
) -> go.Figure:
    """One line per GPU, recorded launches as dots, and this launch, the library's calls and the prediction as shapes.

    Args:
        roofs: of `gpu` and of others.
        recorded: launches of the same kind; those of other GPUs are paler.
        own: this kernel first, then the library's calls; () where it was not timed.
        bound: where it is predicted to be at best.
    """
    placed = [*recorded, *own, *([bound] if bound else [])]
    ends = [roof.ridge for roof in roofs] + [point.intensity for point in placed]
    span = (min(ends) / 2, max(ends) * 2)
    traces = [_roof(roof, span, roof.gpu == gpu) for roof in roofs]
    for is_here in (False, True):
        dots = [point for point in recorded if (point.gpu == gpu) == is_here]
        if dots:
            traces.append(_dots(dots, theme.HARDWARE if is_here else _OTHER, 0.8 if is_here else 0.6))
    if bound:
        traces.append(_shape([bound], "predicted bound", "line-ew-open", theme.MODEL, 26))
    if own[1:]:
        traces.append(_shape(own[1:], "library", "diamond", _LIBRARY, 12))
    if own:
        traces.append(_shape(own[:1], "this kernel", "star", theme.NEW, 17))
    return go.Figure(
        traces,
        theme.layout(
            "Roofline: rate over arithmetic intensity",
            showlegend=True,
            height=480,
            legend={"orientation": "h", "x": 0, "y": -0.2, "yanchor": "top"},
            margin={"l": 70, "r": 10, "t": 34, "b": 140},
            xaxis={"title": {"text": "FLOP per byte, each tensor moved once"}, "type": "log", "dtick": 1},
            yaxis={"title": {"text": "TFLOP/s"}, "type": "log", "dtick": 1},
        ),
    )


def _roof(roof: Roof, span: tuple[float, float], is_here: bool) -> go.Scatter:
    at = [span[0], roof.ridge, span[1]] if span[0] < roof.ridge < span[1] else list(span)
    return go.Scatter(
        x=at,
        y=[roof.at(x) for x in at],
        name=f"{roof.gpu}: {roof.gbps:,.0f} GB/s, {roof.tflops:,.0f} TFLOP/s ({roof.source})",
        mode="lines",
        line={"color": theme.HARDWARE if is_here else _OTHER, "dash": "solid" if is_here else "dash"},
        hoverinfo="skip",
    )


def _dots(points: Sequence[Point], color: str, opacity: float) -> go.Scatter:
    return go.Scatter(
        x=[point.intensity for point in points],
        y=[point.tflops for point in points],
        name=f"recorded on {', '.join(dict.fromkeys(point.gpu for point in points))}",
        mode="markers",
        marker={"color": color, "size": 6, "opacity": opacity},
        customdata=[f"{point.name}, {point.gpu}" for point in points],
        hovertemplate="%{customdata}<br>%{y:.3g} TFLOP/s at %{x:.3g} FLOP per byte<extra></extra>",
    )


def _shape(points: Sequence[Point], name: str, symbol: str, color: str, size: int) -> go.Scatter:
    return go.Scatter(
        x=[point.intensity for point in points],
        y=[point.tflops for point in points],
        name=name,
        mode="markers",
        marker={"symbol": symbol, "color": color, "size": size, "line": {"width": 2, "color": color}},
        customdata=[f"{point.name}, {point.source}" for point in points],
        hovertemplate="%{customdata}<br>%{y:.4g} TFLOP/s at %{x:.3g} FLOP per byte<extra></extra>",
    )
