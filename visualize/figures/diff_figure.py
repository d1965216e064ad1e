"""The error of a run: the largest of each cell, so that one wrong element can still be seen, and its worst tile."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from kernels.results.run import Check, Closeup, Diff
from visualize.views import theme

# Borders of more tiles than this per side would hide the picture.
MOST_BORDERS = 64
# Within the limit, and beyond it: in even steps from the least to the most.
_RIGHT = ("#0b2a5b", "#cfe0f3")
_BEYOND = ("#fcd29f", "#e2691b", "#6d1602")
# log10 of the least error / limit that has a colour of its own.
_LEAST = -2.0


@dataclass(frozen=True)
class _Scale:
    """log10 of error / limit, from the lowest to the highest that is drawn: the limit is 0.

    Errors within the limit always have the same colours. Those beyond it have the whole range from the limit, or where
    nothing is right from the least error, to the largest: a scale with a fixed end would paint a lost race evenly.
    """

    low: float
    high: float
    has_nonfinite: bool = False

    @classmethod
    def of(cls, diff: Diff) -> _Scale:
        """The scale of a map and its closeup, so that one colour means one error in both."""
        if diff.exact:
            return cls(_LEAST, -_LEAST)
        near = diff.closeup.cells.ravel() if diff.closeup else np.empty(0)
        cells = np.concatenate([diff.cells.ravel(), near])
        finite = cells[np.isfinite(cells)]
        least, most = (
            math.log10(max(value, 10**_LEAST)) for value in (finite.min(initial=np.inf), finite.max(initial=0))
        )
        low = least if least > 0 and len(finite) else _LEAST
        # A factor of two at least: less would be drawn as if it were much.
        high = max(most, 0.0, low + math.log10(2))
        return cls(low, high + 0.5, True) if len(finite) < len(cells) else cls(low, high)

    @property
    def colors(self) -> list[list[float | str]]:
        """Plotly's scale, which jumps at the limit."""
        limit = min(max(-self.low / (self.high - self.low), 0.0), 1.0)
        right: list[list[float | str]] = [
            [limit * step / (len(_RIGHT) - 1), color] for step, color in enumerate(_RIGHT)
        ]
        steps = len(_BEYOND) - 1
        beyond: list[list[float | str]] = [
            [limit + (1 - limit) * step / steps, color] for step, color in enumerate(_BEYOND)
        ]
        return beyond if limit == 0 else right if limit == 1 else right + beyond

    @property
    def ticks(self) -> dict[int | float, str]:
        """What stands beside the bar, by place."""
        decades = range(math.ceil(self.low), math.floor(self.high) + 1)
        places = {float(decade): f"{10.0**decade:,g} ×" for decade in decades}
        if len(places) < 3:
            fine = (decade + math.log10(digit) for decade in range(-2, 8) for digit in (1, 1.5, 2, 3, 5))
            places = {at: f"{float(f'{10**at:.2g}'):,g} ×" for at in fine if self.low <= at <= self.high}
        if 0.0 in places:
            places[0.0] = "the limit"
        if self.low == _LEAST:
            places[self.low] = f"≤ {10**_LEAST:g} ×"
        if self.has_nonfinite:
            places = {at: text for at, text in places.items() if at < self.high - 0.2} | {self.high: "not finite"}
        return places


def diff_figure(diff: Diff, check: Check, tensor: str) -> go.Figure:
    """A map of the error in units of what rounding allows: 1 is the most that passes. The worst element is ringed.

    The colour scale is logarithmic and ends at the largest error. A kernel that only moves data allows no error at all:
    its map says what is wrong. Tiles are bordered, where they are few enough. Where there is no error at all nothing is
    ringed.
    """
    figure = go.Figure(_heatmap(diff.cells, diff.cell, (0, 0), diff))
    if diff.tile:
        figure.add_trace(_borders((0, 0), diff.shape, diff.tile))
    if not check.passed or (not diff.exact and diff.cells.any()):
        figure.add_trace(_ring(check))
    rows, columns = diff.cell
    largest = "" if diff.cell == (1, 1) else f" (largest of each {rows} × {columns})"
    axes = theme.matrix_axes(f"row of {tensor}", f"column of {tensor}", (0, 0), diff.shape)
    figure.update_layout(theme.layout(f"Error of {tensor}{_unit(diff)}{largest}", **axes))
    return figure


def closeup_figure(
    diff: Diff, near: Closeup, check: Check, tensor: str, programs: Mapping[tuple[int, int], str]
) -> go.Figure:
    """The worst tile between its neighbours, each under the name of the program that computes it.

    Args:
        programs: (tile row, tile column) → who computes that tile, in words.
    """
    figure = go.Figure(_heatmap(near.cells, near.cell, near.first, diff))
    if diff.tile:
        figure.add_trace(_borders(near.first, near.shape, diff.tile))
        figure.add_trace(_names(near, diff.tile, programs))
    figure.add_trace(_ring(check))
    axes = theme.matrix_axes(f"row of {tensor}", f"column of {tensor}", near.first, near.shape)
    what = "The worst tile and its neighbours" if diff.tile else "Around the worst element"
    figure.update_layout(theme.layout(f"{what}{_unit(diff)}", **axes))
    return figure


def _unit(diff: Diff) -> str:
    """What numbers beside the bar are of. Plotly would write it over them."""
    return "" if diff.exact else ", × the limit"


def _heatmap(cells: np.ndarray, cell: tuple[int, int], first: tuple[int, int], diff: Diff) -> go.Heatmap:
    scale = _Scale.of(diff)
    if diff.exact:
        # Right cells are 0; any wrong one is drawn as wrong, however small its error.
        z = np.where(np.isnan(cells) | (cells > 0), scale.high, scale.low)
        bar = theme.colorbar("", tickvals=[scale.low, scale.high], ticktext=["0", "wrong"])
        told = "|error|: %{customdata:.3g}"
    else:
        finite = np.where(np.isfinite(cells), np.maximum(cells, 10**scale.low), 10**scale.high)
        z = np.log10(finite)
        ticks = scale.ticks
        bar = theme.colorbar("", tickvals=list(ticks), ticktext=list(ticks.values()))
        told = "error: %{customdata:.3g} × the limit"
    rows, columns = cell
    return go.Heatmap(
        z=z.astype(np.float32),
        customdata=cells.astype(np.float32),
        x0=first[1] + (columns - 1) / 2,
        dx=columns,
        y0=first[0] + (rows - 1) / 2,
        dy=rows,
        zmin=scale.low,
        zmax=scale.high,
        colorscale=scale.colors,
        colorbar=bar,
        hovertemplate=f"around row %{{y:.0f}}, column %{{x:.0f}}<br>largest {told}<extra></extra>",
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
    """A ring around the worst element: white in black, to be seen on every colour."""
    row, column = check.worst_index
    return go.Scatter(
        x=[column, column],
        y=[row, row],
        mode="markers",
        marker={
            "symbol": "circle-open",
            "size": [17, 17],
            "color": ["#000000", "#ffffff"],
            "line": {"width": [6, 2.5]},
        },
        hovertemplate=(
            f"worst element: row {row}, column {column}<br>got {check.worst_got:.6g}, "
            f"expected {check.worst_expected:.6g}<extra></extra>"
        ),
    )
