"""Maps of which program computes which tile."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from visualize.figures import theme
from visualize.models.schedule import Schedule, tile_map

# Cells drawn along each side at most: more than a screen shows would only make the page slower.
MOST_CELLS = 256
NUMBERED_CELLS = 16

COLORS = ("order", "group", "wave")


def schedule_figure(schedule: Schedule, title: str, color: str) -> go.Figure:
    """One launch order: pid_m down, pid_n to the right.

    Maps of more than MOST_CELLS tiles a side show every second, third, … tile; a cell still tells its own pid.

    Args:
        color: "order" (launch order, first to last), "group" or "wave" (colours repeat every eight).
    """
    rows, columns = schedule.extents
    step = -(-max(rows, columns) // MOST_CELLS)
    pids, groups, waves = (
        tile_map(schedule, of_tile)[::step, ::step]
        for of_tile in (schedule.tiles.program, schedule.tiles.group, schedule.wave)
    )
    shades = len(theme.CATEGORIES)
    ordered = color == "order"
    z = pids if ordered else (groups if color == "group" else waves) % shades
    numbered = max(rows, columns) <= NUMBERED_CELLS
    gap = 1 if max(rows, columns) <= 64 else 0
    map_of_pids = go.Heatmap(
        z=theme.smallest(z),
        customdata=theme.smallest(np.dstack([pids, groups, waves])),
        dx=step,
        dy=step,
        zmin=0,
        zmax=max(schedule.programs - 1, 1) if ordered else shades,
        colorscale=theme.SEQUENCE if ordered else theme.repeated(shades),
        showscale=ordered,
        colorbar=theme.colorbar("pid"),
        xgap=gap,
        ygap=gap,
        text=pids if numbered else None,
        texttemplate="%{text}" if numbered else None,
        hovertemplate=(
            "pid %{customdata[0]}<br>pid_m %{y}, pid_n %{x}<br>"
            "group %{customdata[1]}, wave %{customdata[2]}<extra></extra>"
        ),
    )
    axes = theme.matrix_axes("pid_m (tile rows)", "pid_n (tile columns)", (0, 0), schedule.extents)
    return go.Figure(map_of_pids, theme.layout(title, **axes))
