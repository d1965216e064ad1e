"""One picture of a launch: which program computes which tile, with the blocks of the inputs that the tiles read.

A product stands as in a textbook, A at the left of C and B above it, and its order beside row-major order. The page
lays steps over it, and makes the hover texts (`player_data`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from visualize.figures.composite import GAPS_UP_TO, Composite, Side, composite
from visualize.predict.schedule import Schedule, Steps, first_reads
from visualize.views import theme

# Tiles along each side up to which each one's number is written in it.
NUMBERED_CELLS = 12
_NUMBER_SIZE = 13  # px

COLORS = ("order", "group", "wave", "sm")

# Where the two halves of the picture lie, as shares of its width.
_HALVES = ((0.0, 0.478), (0.522, 1.0))

Picture = dict[str, Any]


@dataclass(frozen=True)
class Order:
    """A launch in one order.

    Attributes:
        name: such as "row-major order".
        steps: the launch, step by step.
    """

    name: str
    schedule: Schedule
    steps: Steps


def schedule_figure(orders: Sequence[Order], color: str) -> Picture:
    """The picture, as a figure's data and layout: one heatmap for each order, or for each tensor without panels.

    A block has the colour of the tile that reads it first. Of more than MOST_CELLS tiles per side, every second,
    third, … is shown.

    Args:
        orders: this kernel's, and the one to compare with; the first alone counts where there are no panels.
        color: "order" (launch order, first to last), "group" or "wave" (colours repeat every eight), or "sm".
    """
    launch = orders[0].schedule
    place = composite(launch)
    with_panels = launch.panels is not None
    parts = (
        [(order.name, _grid(place, order, color)) for order in orders]
        if with_panels
        else [(_role(launch, name), _map(place, orders[0], name, color)) for name in launch.transposed]
    )
    traces: list[dict[str, Any]] = []
    axes: dict[str, dict[str, Any]] = {}
    notes: list[dict[str, Any]] = []
    turned = [False] * len(parts) if with_panels else list(launch.transposed.values())
    for number, ((name, grid), transposed) in enumerate(zip(parts, turned, strict=True)):
        ending = "" if number == 0 else str(number + 1)
        down, across = (place.across, place.down) if transposed else (place.down, place.across)
        traces.append(_heatmap(name, grid, down, across, ending, launch))
        axes |= _axes(launch, place, number, len(parts), transposed)
        notes += _notes(launch, place, name, ending)
    layout = theme.layout(
        "",
        margin={"l": 4, "r": 4, "t": 28, "b": 4},
        annotations=notes,
        coloraxis=_coloraxis(color, {"order": launch.programs, "sm": launch.sms}.get(color, 0)),
        **axes,
    )
    del layout["title"]
    return {"data": traces, "layout": layout}


def _role(launch: Schedule, tensor: str) -> str:
    return f"{tensor} as it is {'written' if tensor == list(launch.transposed)[-1] else 'read'}"


def _colored(launch: Schedule, entries: np.ndarray, color: str) -> np.ndarray:
    """The value that is shown as a colour, of entries of the schedule's tiles."""
    if color in ("order", "sm"):
        program = launch.tiles.program[entries]
        return theme.smallest(program if color == "order" else program % launch.sms)
    z = launch.tiles.group[entries] if color == "group" else launch.step[entries]
    return theme.smallest(z % len(theme.CATEGORIES))


def _grid(place: Composite, order: Order, color: str) -> np.ma.MaskedArray:
    launch, stride = order.schedule, place.down.stride
    rows, columns = first_reads(order.steps)
    first = launch.entry.min(axis=0)[::stride, ::stride]
    values = (_colored(launch, entries, color) for entries in (first, rows[::stride], columns[:, ::stride]))
    return place.grid(*values)


def _map(place: Composite, order: Order, tensor: str, color: str) -> np.ma.MaskedArray:
    stride = place.down.stride
    first = order.schedule.entry.min(axis=0)[::stride, ::stride]
    values = _colored(order.schedule, first, color)
    return place.grid(values.T if order.schedule.transposed[tensor] else values)


def _heatmap(
    name: str, grid: np.ma.MaskedArray, down: Side, across: Side, ending: str, launch: Schedule
) -> dict[str, Any]:
    gap = 1 if max(launch.extents) <= GAPS_UP_TO else 0
    axes = {"xaxis": f"x{ending}", "yaxis": f"y{ending}"} if ending else {}
    # Without a size of its own, Plotly measures each cell's text to find one: two seconds of a page's first picture.
    numbered = {"texttemplate": "%{text}", "textfont": {"size": _NUMBER_SIZE}}
    numbered = numbered if _is_numbered(launch) else {}
    return {
        "type": "heatmap",
        "name": name,
        "coloraxis": "coloraxis",
        "xgap": gap,
        "ygap": gap,
        "hoverongaps": False,
        "hovertemplate": "%{hovertext}<extra></extra>",
        "z": grid,
        **_places("x", across, gap == 0),
        **_places("y", down, gap == 0),
        **axes,
        **numbered,
    }


def _is_numbered(launch: Schedule) -> bool:
    return max(launch.extents) <= NUMBERED_CELLS


def _notes(launch: Schedule, place: Composite, name: str, ending: str) -> list[dict[str, Any]]:
    """The name above one part of the picture; with panels, A above its blocks, B at the left of its own, C below."""
    x, y = f"x{ending}", f"y{ending}"
    title = {
        "text": name,
        "xref": f"{x} domain",
        "x": 0.5,
        "yref": f"{y} domain",
        "y": 1,
        "yanchor": "bottom",
        "yshift": 4,
    }
    notes = [title]
    if launch.panels is not None:
        row_panel, column_panel = (f"<b>{panel}</b>" for panel in launch.panels)
        # A slice's number stands there while a split-K launch is stepped through.
        numbers = ": the pid of each tile" if _is_numbered(launch) and launch.slices == 1 else ""
        notes += [
            {"text": row_panel, "xref": x, "x": place.across.middle_of_k, "yref": y, "y": 0, "yanchor": "bottom"},
            {"text": column_panel, "xref": x, "x": 0, "xanchor": "right", "yref": y, "y": place.down.middle_of_k},
            {
                "text": f"<b>{list(launch.transposed)[-1]}</b>{numbers}",
                "xref": f"{x} domain",
                "x": 1,
                "xanchor": "right",
                "yref": f"{y} domain",
                "y": 0,
                "yanchor": "top",
                "yshift": -20,
            },
        ]
    return [{"showarrow": False, **note} for note in notes]


def _places(letter: str, side: Side, even: bool) -> dict[str, Any]:
    """Where the columns (or rows) of a grid lie; cells of one size are quicker to draw."""
    if even:
        return {f"{letter}0": float(side.edges[:2].mean()), f"d{letter}": side.stride}
    return {letter: side.edges.tolist()}


def _axes(launch: Schedule, place: Composite, number: int, count: int, transposed: bool) -> dict[str, dict[str, Any]]:
    """The axes of one part of the picture; with panels they move together."""
    ending = "" if number == 0 else str(number + 1)
    sides = [("pid_m", place.down, 0), ("pid_n", place.across, 1)]
    (down, rows, _), (across, columns, _) = reversed(sides) if transposed else sides
    domain = list(_HALVES[number]) if count == 2 else [number / count, (number + 0.9) / count]
    x = {
        **_ticks(columns),
        "title": {"text": across, "standoff": 4},
        "range": [columns.edges[0], columns.edges[-1]],
        "domain": domain,
        "automargin": True,
    }
    y = {
        **_ticks(rows),
        "range": [rows.edges[-1], rows.edges[0]],
        "automargin": True,
        **({"title": {"text": down, "standoff": 4}} if number == 0 or launch.panels is None else {}),
    }
    if ending:
        x, y = {**x, "anchor": f"y{ending}"}, {**y, "anchor": f"x{ending}"}
        if launch.panels is not None:
            x, y = {**x, "matches": "x"}, {**y, "matches": "y"}
    return {f"xaxis{ending}": x, f"yaxis{ending}": y}


def _ticks(side: Side) -> dict[str, Any]:
    """Numbers of tiles in the middle of them: few round ones."""
    step = next(step for step in (1 << power for power in range(32)) if side.tiles <= 9 * step)
    numbers = range(0, side.tiles, step)
    return {
        "tickmode": "array",
        "tickvals": [number + 0.5 for number in numbers],
        "ticktext": [*map(str, numbers)],
        "ticks": "",
        "tickangle": 0,
    }


def _coloraxis(color: str, count: int) -> dict[str, Any]:
    """The colours of all maps: `count` values one after the other, or eight that repeat."""
    shades = len(theme.CATEGORIES)
    if not count:
        return {"cmin": -0.5, "cmax": shades - 0.5, "colorscale": theme.repeated(shades), "showscale": False}
    return {"cmin": 0, "cmax": max(count - 1, 1), "colorscale": theme.SEQUENCE, "showscale": False}
