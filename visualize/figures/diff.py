"""The error of a run: the largest of each cell, so that one wrong element can still be seen."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from kernels.runner.results import Check, Diff
from visualize.figures import theme

# What is drawn for a cell with an element that is not finite.
_TOP = 1000.0


def diff_figure(diff: Diff, check: Check, tensor: str) -> go.Figure:
    """A map of |error| in units of what rounding allows: 1 is the most that passes. The worst element is ringed.

    The colour scale is logarithmic. A kernel that only moves data allows no error at all: its map is in absolute units.
    """
    unit = "|error|" if diff.exact else "|error| / allowed"
    cells = np.where(np.isfinite(diff.cells), diff.cells, _TOP)
    if diff.exact:
        # Right cells are 0; any wrong one is drawn as wrong, however small its error.
        z = np.where(cells > 0, 2.0, -2.0)
    else:
        z = np.log10(np.clip(cells, 1e-2, _TOP))
    scale = [[0, "#0b2a5b"], [0.5, "#cfe0f3"], [0.5, "#f5a04f"], [1, "#7f1d04"]]
    rows, columns = diff.cell
    figure = go.Figure(
        go.Heatmap(
            z=z.astype(np.float32),
            customdata=diff.cells.astype(np.float32),
            x0=(columns - 1) / 2,
            dx=columns,
            y0=(rows - 1) / 2,
            dy=rows,
            zmin=-2,
            zmax=2,
            colorscale=scale,
            colorbar=theme.colorbar(
                unit,
                tickvals=[-2, 2] if diff.exact else [-2, -1, 0, 1, 2],
                ticktext=["0", "wrong"] if diff.exact else ["≤ 0.01", "0.1", "1: the limit", "10", "≥ 100"],
            ),
            hovertemplate=(
                f"around row %{{y:.0f}}, column %{{x:.0f}}<br>largest {unit}: %{{customdata:.3g}}<extra></extra>"
            ),
        )
    )
    worst = check.worst_index
    if not (diff.exact and check.passed):
        figure.add_trace(
            go.Scatter(
                x=[worst[1]],
                y=[worst[0]],
                mode="markers",
                marker={"symbol": "circle-open", "size": 16, "color": theme.WRONG, "line": {"width": 3}},
                hovertemplate=(
                    f"worst element: row {worst[0]}, column {worst[1]}<br>got {check.worst_got:.6g}, "
                    f"expected {check.worst_expected:.6g}<extra></extra>"
                ),
            )
        )
    per_cell = "one element a cell" if diff.cell == (1, 1) else f"each cell the largest of {rows} × {columns} elements"
    axes = theme.matrix_axes(f"row of {tensor}", f"column of {tensor}", (0, 0), diff.shape)
    figure.update_layout(theme.layout(f"Error of {tensor}, {per_cell}", **axes))
    return figure
