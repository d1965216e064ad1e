"""Pictures of a launch as it ran: programs by SM over time, and which tiles are done, running or to come."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from visualize.figures.composite import MOST_CELLS
from visualize.predict.execution import Execution
from visualize.predict.schedule import Schedule
from visualize.views import theme

# Shades that tell pids apart, first to last: each is one shape of its own.
_SHADES = 16

_COLORED_BY = {
    "order": "pid",
    "group": "group",
    "wave": "ideal wave",
}


def gantt_figure(execution: Execution, schedule: Schedule, color: str, title: str) -> go.Figure:
    """Every program as a bar: SMs down, and on each the places of the programs that it runs at once.

    All bars of a colour are one filled shape, five points per bar (the last one a gap): thousands of bars are drawn in
    the time of a few. `customdata` has a column for each bar of its trace: pid, then pid_m, pid_n and slice of its
    first tile, its wave, and how many tiles it has.

    Args:
        color: "order", "group" or "wave"; "sm", which the rows show already, is taken as "wave".
    """
    color = color if color in _COLORED_BY else "wave"
    pids = np.arange(schedule.programs)
    first = np.searchsorted(schedule.tiles.program, pids)
    wave = pids // schedule.resident_programs
    tiles = np.bincount(schedule.tiles.program, minlength=schedule.programs)
    its = schedule.tiles
    hover = np.stack([pids, its.pid_m[first], its.pid_n[first], its.pid_k[first], wave, tiles])
    x, y = _bars(execution)
    shade = {
        "order": pids * _SHADES // schedule.programs,
        "group": schedule.tiles.group[first] % len(theme.CATEGORIES),
        "wave": wave % len(theme.CATEGORIES),
    }[color]
    palette = sample_colorscale(theme.SEQUENCE, _SHADES) if color == "order" else list(theme.CATEGORIES)
    traces = [
        {
            "type": "scatter",
            "mode": "none",
            "fill": "toself",
            "fillcolor": palette[value],
            "hoverinfo": "skip",
            "x": x[shade == value].ravel(),
            "y": y[shade == value].ravel(),
            "customdata": theme.smallest(hover[:, shade == value]),
        }
        for value in np.unique(shade)
    ]
    return go.Figure(traces, _gantt_layout(execution, f"{title}, coloured by {_COLORED_BY[color]}"))


def _bars(execution: Execution) -> tuple[np.ndarray, np.ndarray]:
    """Corners of each program's bar, and a gap: (programs, 5) in µs, and in SMs."""
    gap = np.full(len(execution.sm), np.nan)
    height = 0.92 / int(execution.max_concurrency.max())
    # On a grid of 1/64 numbers have few digits, and half as much is sent.
    top, bottom = (
        execution.sm + np.round(64 * (edge * height - 0.46)) / 64 for edge in (execution.slot, execution.slot + 1)
    )
    start, end = execution.start_ns / 1000, execution.end_ns / 1000
    x, y = (start, end, end, start, gap), (top, top, bottom, bottom, gap)
    return np.stack(x, axis=1).astype(np.float32), np.stack(y, axis=1).astype(np.float32)


def _gantt_layout(execution: Execution, title: str) -> dict[str, Any]:
    rows = len(execution.max_concurrency)
    return theme.layout(
        title,
        height=470,
        hovermode=False,
        margin={"l": 60, "r": 10, "t": 34, "b": 48},
        xaxis={"title": {"text": "time from the first start (µs)"}, "range": [0, execution.span_ns / 1000]},
        yaxis={"title": {"text": "SM"}, "range": [rows - 0.5, -0.5], "tick0": 0, "dtick": max(1, -(-rows // 100) * 10)},
    )


def moment_figure(schedule: Schedule, title: str) -> go.Figure:
    """The map of tiles: pid_m down, pid_n to the right; the page fills in a moment of `moment_data`."""
    down, across = _strides(schedule)
    rows, columns = (-(-extent // by) for extent, by in zip(schedule.extents, (down, across), strict=True))
    cells = go.Heatmap(
        z=np.zeros((rows, columns), dtype=np.uint8),
        dx=across,
        dy=down,
        xgap=int(columns <= 64),
        ygap=int(rows <= 64),
        zmin=0,
        zmax=2,
        colorscale=theme.STEP_SCALE,
        showscale=False,
        hovertemplate="pid_m %{y}, pid_n %{x}<extra></extra>",
    )
    axes = theme.matrix_axes("pid_m (tile rows)", "pid_n (tile columns)", (0, 0), schedule.extents)
    below = {"x": 0.5, "xref": "paper", "y": 1, "yref": "paper", "yanchor": "bottom", "yshift": 1, "showarrow": False}
    note = {"text": "", "font": {"size": 13}, **below}
    margin = {"l": 72, "r": 10, "t": 52, "b": 44}
    return go.Figure([cells], theme.layout(title, height=350, margin=margin, annotations=[note], **axes))


def moment_data(
    schedule: Schedule, begun_ns: np.ndarray, done_ns: np.ndarray, name: str = "", clock: np.ndarray | None = None
) -> dict[str, Any]:
    """What the page draws `moment_figure` at any time from: the cell, begin and end of every tile.

    Args:
        begun_ns, done_ns: of each entry of the schedule's tiles.
        name: what an ideal step is called, where these times are of ideal steps.
        clock: when each of these begins, and when the last one ends: (steps + 1,).
    """
    down, across = _strides(schedule)
    columns = -(-schedule.extents[1] // across)
    cell = schedule.tiles.pid_m // down * columns + schedule.tiles.pid_n // across
    times = {"begun_ns": begun_ns.astype(np.uint32), "done_ns": done_ns.astype(np.uint32)}
    steps = {} if clock is None else {"name": name, "clock": clock.astype(np.uint32)}
    unit = "program" if schedule.turns == 1 else "tile"
    return {"moments": {"cell": theme.smallest(cell), "columns": columns, "unit": unit, **steps, **times}}


def _strides(schedule: Schedule) -> tuple[int, int]:
    """Tiles that one cell stands for, down and across."""
    rows, columns = (-(-extent // MOST_CELLS) for extent in schedule.extents)
    return rows, columns
