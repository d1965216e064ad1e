"""Maps of which program computes which tile, with the panels that the tiles read drawn beside them."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from visualize.figures import theme
from visualize.models.schedule import Schedule, TensorMap, slice_blocks
from visualize.models.steps import Steps, first_reads

# Cells drawn along each side at most: more than a screen shows would only make the page slower.
MOST_CELLS = 256
NUMBERED_CELLS = 16

COLORS = ("order", "group", "wave", "sm")

Heatmap = dict[str, Any]
Map = tuple[Heatmap, np.ndarray]  # a map, and the entry of each of its cells

# Where pictures lie in the figure, as shares of its width and height: the colour bar takes the right edge.
_RIGHT, _GAP, _PANEL, _WIDEST_PANEL = 0.86, 0.025, 0.055, 0.2
_BETWEEN = 0.12


def schedule_figure(launch: Schedule, parts: Steps, title: str, color: str) -> go.Figure:
    """One launch order: pid_m down, pid_n to the right.

    Inputs that several tiles read again are drawn as panels on the left of the output and above it, with the colour of
    the tile that reads them first. Where each input is read once, there is a map of each tensor, side by side. Maps of
    more than MOST_CELLS tiles per side show every second, third, … tile; a cell still tells its own pid.

    Args:
        parts: the launch, step by step.
        color: "order" (launch order, first to last), "group" or "wave" (colours repeat every eight), or "sm".
    """
    stride = _stride(launch)
    gap = 1 if max(launch.extents) <= 64 else 0
    maps, layout = (_maps if launch.panels is None else _with_panels)(launch, parts, stride, gap)
    heatmaps = [_filled(heatmap, entries, launch, color) for heatmap, entries in maps]
    layout |= theme.layout(
        title,
        annotations=[_below_title(f"whole launch: {launch.programs:,} programs, {_count(parts)}")],
        height=408,
        margin={"l": 60, "r": 6, "t": 52, "b": 44},
        coloraxis=_coloraxis(color, {"order": launch.programs, "sm": launch.sms}.get(color, 0)),
    )
    layout["title"] |= {"xref": "paper", "x": _RIGHT / 2}
    return go.Figure(heatmaps, layout)


def _stride(launch: Schedule) -> int:
    """Tiles along each side that one cell stands for."""
    return -(-max(launch.extents) // MOST_CELLS)


def _count(parts: Steps) -> str:
    count = len(parts.tiles)
    return f"{count:,} {parts.name}{'s' if count != 1 else ''}"


def _below_title(text: str) -> dict[str, Any]:
    place = {
        "x": _RIGHT / 2,
        "xref": "paper",
        "xanchor": "center",
        "y": 1,
        "yref": "paper",
        "yanchor": "bottom",
        "yshift": 1,
    }
    return {"text": text, "showarrow": False, "font": {"size": 13}, **place}


def _filled(heatmap: Heatmap, entries: np.ndarray, launch: Schedule, color: str) -> Heatmap:
    """A map with its values, and what a cell says of itself: program, group, step, SM."""
    program = launch.tiles.program[entries]
    of_cell = {
        "order": program,
        "group": launch.tiles.group[entries],
        "wave": launch.step[entries],
        "sm": launch.sm_of(program),
    }
    z = of_cell[color]
    return {
        **heatmap,
        "z": theme.smallest(z if color in ("order", "sm") else z % len(theme.CATEGORIES)),
        "customdata": theme.smallest(np.dstack(list(of_cell.values()))),
        **({"text": program} if "texttemplate" in heatmap else {}),
    }


def _numbers(launch: Schedule) -> dict[str, str]:
    """A map of few tiles shows the pid in each."""
    return {"texttemplate": "%{text}"} if max(launch.extents) <= NUMBERED_CELLS else {}


def _coloraxis(color: str, count: int) -> dict[str, Any]:
    """The colours of all maps: `count` values one after the other, or eight that repeat."""
    shades = len(theme.CATEGORIES)
    if not count:
        return {"cmin": -0.5, "cmax": shades - 0.5, "colorscale": theme.repeated(shades), "showscale": False}
    bar = theme.colorbar("pid" if color == "order" else "SM", x=_RIGHT + 0.01, len=0.9)
    return {"cmin": 0, "cmax": max(count - 1, 1), "colorscale": theme.SEQUENCE, "colorbar": bar}


def _heatmap(name: str, says: str, parts: Steps, stride: int, gap: int, **more: Any) -> Heatmap:
    return {
        "type": "heatmap",
        "name": name,
        "coloraxis": "coloraxis",
        "xgap": gap,
        "ygap": gap,
        "hovertemplate": (
            f"{name}: {says}<br>pid %{{customdata[0]}}, SM %{{customdata[3]}}<br>"
            f"group %{{customdata[1]}}, {parts.name} %{{customdata[2]}}<extra></extra>"
        ),
        "dx": stride,
        "dy": stride,
        **more,
    }


def _with_panels(launch: Schedule, parts: Steps, stride: int, gap: int) -> tuple[list[Map], dict[str, Any]]:
    """The output, its row panels and its column panels, each with the entries of its cells, and their axes."""
    row_name, column_name = launch.panels or ("", "")
    row_first, column_first = first_reads(parts)
    held = np.flatnonzero(slice_blocks(launch))
    output_says, row_says, column_says = "pid_m %{y}, pid_n %{x}", "pid_m %{y}", "pid_n %{x}"
    if launch.slices > 1:
        output_says += f"<br>the first of {launch.slices} programs, one per slice of K"
        row_says, column_says = row_says + ", slice %{x}", column_says + ", slice %{y}"
    first = "<br>first read by"
    output = _heatmap(_output(launch), output_says, parts, stride, gap, **_numbers(launch))
    rows = _heatmap(row_name, row_says + first, parts, stride, gap, xaxis="x2", dx=1)
    columns = _heatmap(column_name, column_says + first, parts, stride, gap, yaxis="y2", dy=1)
    maps = [
        (output, launch.first_of_tile[::stride, ::stride]),
        (rows, row_first[::stride, held]),
        (columns, column_first[held, ::stride]),
    ]
    return maps, _panel_axes(launch, row_name, column_name)


def _output(launch: Schedule) -> str:
    return next(tensor.name for tensor in launch.maps if not tensor.is_input)


def _panel_axes(launch: Schedule, row_name: str, column_name: str) -> dict[str, Any]:
    """The output's axes, with those of its panels along K; the output stays next to its panels."""
    axes = theme.matrix_axes("pid_m (tile rows)", "pid_n (tile columns)", (0, 0), launch.extents)
    slices = launch.slices
    panel = min(_PANEL * (1 + (slices - 1) / 4), _WIDEST_PANEL)
    ticks = {"ticks": "outside", "dtick": 1 if slices < 5 else 5} if slices > 1 else {"ticks": ""}
    along = {"tickangle": 0, "showticklabels": slices > 1, "fixedrange": True, **ticks}
    title = "{}: K" if slices > 1 else "{}"
    axes["xaxis"] |= {"domain": [panel + _GAP, _RIGHT], "constraintoward": "left"}
    axes["yaxis"] |= {"domain": [0, 1 - panel - _GAP], "constraintoward": "top", "anchor": "x2"}
    axes["xaxis2"] = {
        **along,
        "title": {"text": title.format(row_name)},
        "domain": [0, panel],
        "range": [-0.5, slices - 0.5],
    }
    down = {"domain": [1 - panel, 1], "range": [slices - 0.5, -0.5], "anchor": "x"}
    axes["yaxis2"] = {**along, "title": {"text": title.format(column_name)}, **down}
    return axes


def _maps(launch: Schedule, parts: Steps, stride: int, gap: int) -> tuple[list[Map], dict[str, Any]]:
    """The tiles of each tensor as they are read or written, side by side, and their axes."""
    first, maps = launch.first_of_tile[::stride, ::stride], []
    axes: dict[str, Any] = {}
    width = (_RIGHT - _BETWEEN * (len(launch.maps) - 1)) / len(launch.maps)
    for place, tensor in enumerate(launch.maps):
        number = "" if place == 0 else str(place + 1)
        left = place * (width + _BETWEEN)
        of_axes = {"xaxis": f"x{number}", "yaxis": f"y{number}"} if number else {}
        says = "read at" if tensor.is_input else "written by"
        where = "pid_m %{x}, pid_n %{y}" if tensor.transposed else "pid_m %{y}, pid_n %{x}"
        heatmap = _heatmap(tensor.name, f"{says} {where}", parts, stride, gap, **of_axes, **_numbers(launch))
        maps.append((heatmap, first.T if tensor.transposed else first))
        axes |= _map_axes(launch, tensor, number, [left, left + width])
    return maps, axes


def _map_axes(launch: Schedule, tensor: TensorMap, number: str, domain: list[float]) -> dict[str, Any]:
    """The axes of one map of several, whose names end in `number`."""
    sides = [("pid_m", launch.extents[0]), ("pid_n", launch.extents[1])]
    (down, rows), (across, columns) = reversed(sides) if tensor.transposed else sides
    axes = theme.matrix_axes(down, f"{tensor.name}: {across}", (0, 0), (rows, columns))
    x = {**axes["xaxis"], "tick0": 0, "dtick": -(-columns // 4), "domain": domain}
    y = {**axes["yaxis"], "tick0": 0, "dtick": -(-rows // 4)}
    if number:
        x, y = {**x, "anchor": f"y{number}"}, {**y, "anchor": f"x{number}"}
        if "scaleanchor" in y:
            y["scaleanchor"] = f"x{number}"
    return {f"xaxis{number}": x, f"yaxis{number}": y}


def player_data(launch: Schedule, parts: Steps, step: int) -> dict[str, Any]:
    """What the page draws any step of `schedule_figure` from.

    Every tile (slice, pid_m, pid_n as one number) stands in it, step after step, so that a cell that stands for several
    tiles is right in every step.

    Args:
        step: the step to show first, from 1; 0 for the whole launch.
    """
    read = {}
    if parts.row_pieces is not None and parts.column_pieces is not None and parts.panel_bytes is not None:
        read = {"a": parts.row_pieces, "b": parts.column_pieces, "kib": parts.panel_bytes // 1024}
    return {
        "step": step,
        "name": parts.name,
        "places": parts.timed.place,
        "tiles": theme.smallest(parts.tiles),
        **{name: theme.smallest(values) for name, values in read.items()},
        "extents": list(launch.extents),
        "slices": launch.slices,
        "stride": _stride(launch),
        "sms": launch.sms,
        "slots": parts.slots,
        "unit": "program" if launch.turns == 1 else "tile",
        "panels": launch.panels is not None,
        "transposed": [tensor.transposed for tensor in launch.maps],
        "held": int(np.count_nonzero(slice_blocks(launch))) if launch.panels else 0,
    }


def loads_figure(
    counts: np.ndarray, orders: dict[str, np.ndarray], first: int, what: str, panels: tuple[str, str]
) -> go.Figure:
    """Distinct blocks of panels that the first n programs, or tiles, of each order load.

    Args:
        counts: n, ascending.
        orders: (len(counts),) blocks, by the order's name.
        first: the n that is marked; one of `counts`.
        what: "programs" or "tiles".
        panels: the inputs that they are panels of.
    """
    marked = int(np.searchsorted(counts, first))
    lines = [
        go.Scatter(
            x=counts,
            y=blocks,
            name=name,
            mode="lines",
            line={"color": theme.CATEGORIES[place], "width": 2.5, "dash": ("solid", "dash")[place]},
            hovertemplate=f"{name}: %{{y:,}} blocks<extra></extra>",
        )
        for place, (name, blocks) in enumerate(orders.items())
    ]
    marks = go.Scatter(
        x=[first] * len(orders),
        y=[int(blocks[marked]) for blocks in orders.values()],
        text=[f"{blocks[marked]:,}" for blocks in orders.values()],
        textposition=["bottom right", "top left"],
        mode="markers+text",
        marker={"size": 9, "color": list(theme.CATEGORIES[: len(orders)])},
        hoverinfo="skip",
        showlegend=False,
    )
    n = {"title": {"text": f"n ({what}, in the order of time)"}}
    most, fewest = (extreme(list(map(extreme, orders.values()))) for extreme in (max, min))
    log = {"type": "log", "tickformat": ",d", "exponentformat": "none"}
    return go.Figure(
        [*lines, marks],
        theme.layout(
            f"Blocks that the first n {what} load",
            height=330,
            showlegend=True,
            legend={"x": 0.99, "xanchor": "right", "y": 0.03, "yanchor": "bottom", "bgcolor": "rgba(0,0,0,0)"},
            hovermode="x unified",
            margin={"l": 70, "r": 10, "t": 34, "b": 44},
            xaxis={**n, **log, "dtick": 1},
            yaxis={
                "title": {"text": f"distinct blocks of {panels[0]} and {panels[1]}"},
                "automargin": True,
                **log,
                "dtick": 1 if most > 300 * fewest else "D2",
            },
        ),
    )
