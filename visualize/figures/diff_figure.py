"""The error of a run: the largest of each cell, so that one wrong element can still be seen, and its worst tile."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go

from kernels.results import Check, Closeup, Diff
from visualize.figures import theme

# What is drawn for a cell with an element that is not finite.
_TOP = 1000.0
# Borders of more tiles than this per side would hide the picture.
MOST_BORDERS = 64
_SCALE = [[0, "#0b2a5b"], [0.5, "#cfe0f3"], [0.5, "#f5a04f"], [1, "#7f1d04"]]


def diff_figure(diff: Diff, check: Check, tensor: str) -> go.Figure:
    """A map of the error in units of what rounding allows: 1 is the most that passes. The worst element is ringed.

    The colour scale is logarithmic. A kernel that only moves data allows no error at all: its map is in absolute units.
    Tiles are bordered, where they are few enough.
    """
    figure = go.Figure(_heatmap(diff.cells, diff.cell, (0, 0), diff.exact))
    if diff.tile:
        figure.add_trace(_borders((0, 0), diff.shape, diff.tile))
    if not (diff.exact and check.passed):
        figure.add_trace(_ring(check))
    rows, columns = diff.cell
    per_cell = "one element per cell" if diff.cell == (1, 1) else f"each cell the largest of {rows} × {columns}"
    axes = theme.matrix_axes(f"row of {tensor}", f"column of {tensor}", (0, 0), diff.shape)
    figure.update_layout(theme.layout(f"Error of {tensor}, {per_cell}", **axes))
    return figure


def closeup_figure(
    diff: Diff, near: Closeup, check: Check, tensor: str, programs: Mapping[tuple[int, int], str]
) -> go.Figure:
    """The worst tile between its neighbours, each under the name of the program that computes it.

    Args:
        programs: (tile row, tile column) → who computes that tile, in words.
    """
    figure = go.Figure(_heatmap(near.cells, near.cell, near.first, diff.exact))
    if diff.tile:
        figure.add_trace(_borders(near.first, near.shape, diff.tile))
        figure.add_trace(_names(near, diff.tile, programs))
    figure.add_trace(_ring(check))
    axes = theme.matrix_axes(f"row of {tensor}", f"column of {tensor}", near.first, near.shape)
    what = "The worst tile and its neighbours" if diff.tile else "Around the worst element"
    figure.update_layout(theme.layout(what, **axes))
    return figure


def _heatmap(cells: np.ndarray, cell: tuple[int, int], first: tuple[int, int], exact: bool) -> go.Heatmap:
    unit = "|error|" if exact else "error / allowed"
    finite = np.where(np.isfinite(cells), cells, _TOP)
    if exact:
        # Right cells are 0; any wrong one is drawn as wrong, however small its error.
        z = np.where(finite > 0, 2.0, -2.0)
    else:
        z = np.log10(np.clip(finite, 1e-2, _TOP))
    rows, columns = cell
    return go.Heatmap(
        z=z.astype(np.float32),
        customdata=cells.astype(np.float32),
        x0=first[1] + (columns - 1) / 2,
        dx=columns,
        y0=first[0] + (rows - 1) / 2,
        dy=rows,
        zmin=-2,
        zmax=2,
        colorscale=_SCALE,
        colorbar=theme.colorbar(
            unit,
            tickvals=[-2, 2] if exact else [-2, -1, 0, 1, 2],
            ticktext=["0", "wrong"] if exact else ["≤ 0.01", "0.1", "1: the limit", "10", "≥ 100"],
        ),
        hovertemplate=f"around row %{{y:.0f}}, column %{{x:.0f}}<br>largest {unit}: %{{customdata:.3g}}<extra></extra>",
    )


def _borders(first: tuple[int, int], shape: tuple[int, int], tile: tuple[int, int]) -> go.Scatter:
    """Lines between tiles; none along a side that has too many."""
    x: list[float | None] = []
    y: list[float | None] = []
    top, left = first[0] - 0.5, first[1] - 0.5
    bottom, right = top + shape[0], left + shape[1]
    if shape[0] <= MOST_BORDERS * tile[0]:
        for row in range(-(-first[0] // tile[0]) * tile[0], first[0] + shape[0], tile[0]):
            x += [left, right, None]
            y += [row - 0.5, row - 0.5, None]
    if shape[1] <= MOST_BORDERS * tile[1]:
        for column in range(-(-first[1] // tile[1]) * tile[1], first[1] + shape[1], tile[1]):
            x += [column - 0.5, column - 0.5, None]
            y += [top, bottom, None]
    line = {"color": "rgba(148, 163, 184, 0.7)", "width": 1}
    return go.Scatter(x=x, y=y, mode="lines", line=line, hoverinfo="skip")


def _names(near: Closeup, tile: tuple[int, int], programs: Mapping[tuple[int, int], str]) -> go.Scatter:
    """Who computes each tile, in its upper left corner."""
    tiles = [
        (row, column)
        for row in range(near.first[0] // tile[0], -(-(near.first[0] + near.shape[0]) // tile[0]))
        for column in range(near.first[1] // tile[1], -(-(near.first[1] + near.shape[1]) // tile[1]))
    ]
    return go.Scatter(
        x=[column * tile[1] for _, column in tiles],
        y=[row * tile[0] for row, _ in tiles],
        text=[programs.get(place, "") for place in tiles],
        mode="text",
        textposition="bottom right",
        textfont={"size": 13, "color": "#f8fafc", "shadow": "0 0 3px #000, 0 0 3px #000"},
        hoverinfo="skip",
    )


def _ring(check: Check) -> go.Scatter:
    """A ring around the worst element."""
    row, column = check.worst_index
    return go.Scatter(
        x=[column],
        y=[row],
        mode="markers",
        marker={"symbol": "circle-open", "size": 16, "color": theme.WRONG, "line": {"width": 3}},
        hovertemplate=(
            f"worst element: row {row}, column {column}<br>got {check.worst_got:.6g}, "
            f"expected {check.worst_expected:.6g}<extra></extra>"
        ),
    )
