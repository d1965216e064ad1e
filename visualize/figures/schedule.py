"""Maps of which program computes which tile, side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from visualize.figures import theme
from visualize.models.schedule import Schedule, tile_map

# Cells drawn along each side at most: more than a screen shows would only make the page slower.
MOST_CELLS = 256
NUMBERED_CELLS = 16

COLORS = ("order", "group", "wave")


def schedule_figure(orders: dict[str, Schedule], color: str) -> go.Figure:
    """One map an order, pid_m down and pid_n to the right.

    Args:
        orders: title → schedule; all of the same tiles.
        color: "order" (launch order, first to last), "group" or "wave" (colours repeat every eight).
    """
    figure = go.Figure()
    width = 1 / len(orders)
    axes: dict[str, Any] = {}
    for place, (title, schedule) in enumerate(orders.items()):
        number = "" if place == 0 else str(place + 1)
        figure.add_trace(_map(schedule, color, number, last=place == len(orders) - 1))
        rows, columns = schedule.extents
        domain = [place * width + 0.02, (place + 1) * width - 0.04]
        axes[f"xaxis{number}"] = {
            "domain": domain,
            "title": {"text": "pid_n (tile columns of the output)"},
            "constrain": "domain",
            "range": [-0.5, columns - 0.5],
        }
        axes[f"yaxis{number}"] = {
            "title": {"text": "pid_m (tile rows)" if place == 0 else ""},
            "anchor": f"x{number}",
            "range": [rows - 0.5, -0.5],
            "constrain": "domain",
            # Tiles drawn square, unless the map is so long that it would become a thread.
            **({"scaleanchor": f"x{number}"} if 1 / 4 <= rows / columns <= 4 else {}),
        }
        figure.add_annotation(theme.heading(title, x=sum(domain) / 2))
    figure.update_layout(template=None, margin={"l": 60, "r": 10, "t": 40, "b": 50}, height=430, **axes)
    return figure


def _map(schedule: Schedule, color: str, number: str, last: bool) -> go.Heatmap:
    rows, columns = schedule.extents
    step = -(-max(rows, columns) // MOST_CELLS)
    pids = tile_map(schedule, np.arange(schedule.programs))[::step, ::step]
    groups, waves = schedule.group[pids], pids // schedule.resident_programs
    shades = len(theme.CATEGORIES)
    if color == "order":
        z, scale, top = pids, theme.SEQUENCE, max(schedule.programs - 1, 1)
    else:
        z, scale, top = (groups if color == "group" else waves) % shades, theme.repeated(shades), shades
    numbered = max(rows, columns) <= NUMBERED_CELLS
    return go.Heatmap(
        z=theme.smallest(z),
        customdata=theme.smallest(np.dstack([pids, groups, waves])),
        dx=step,
        dy=step,
        zmin=0,
        zmax=top,
        colorscale=scale,
        showscale=last and color == "order",
        colorbar={"title": {"text": "pid", "side": "top"}, "thickness": 12, "outlinewidth": 0},
        xgap=1 if rows <= 64 and columns <= 64 else 0,
        ygap=1 if rows <= 64 and columns <= 64 else 0,
        text=pids if numbered else None,
        texttemplate="%{text}" if numbered else None,
        hovertemplate=(
            "pid %{customdata[0]}<br>pid_m %{y}, pid_n %{x}<br>group %{customdata[1]}, wave %{customdata[2]}<extra></extra>"
        ),
        xaxis=f"x{number}",
        yaxis=f"y{number}",
    )
