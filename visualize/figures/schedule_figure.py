"""Maps of which program computes which tile, with the panels that the tiles need drawn beside them."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from visualize.figures import theme
from visualize.models.schedule import Schedule, slice_blocks
from visualize.models.steps import Steps, first_touches

# Cells drawn along each side at most: more than a screen shows would only make the page slower.
MOST_CELLS = 256
NUMBERED_CELLS = 16

COLORS = ("order", "group", "wave", "sm")

Heatmap = dict[str, Any]
Map = tuple[Heatmap, np.ndarray]  # a map, and the entry of each of its cells

# Where pictures lie in the figure, as shares of its width and height: the colour bar takes the right edge.
_RIGHT, _GAP, _PANEL, _WIDEST_PANEL = 0.86, 0.025, 0.055, 0.2


def schedule_figure(planned: Schedule, cut: Steps, title: str, color: str) -> go.Figure:
    """One launch order: pid_m down, pid_n to the right.

    A product has A's panels on the left of C, B's panels above it, with the colour of the tile that touches them first;
    a copy has the map of what it reads beside the map of what it writes. Maps of more than MOST_CELLS tiles a side show
    every second, third, … tile; a cell still tells its own pid.

    Args:
        cut: the launch, step by step.
        color: "order" (launch order, first to last), "group" or "wave" (colours repeat every eight), or "sm".
    """
    stride = _stride(planned)
    gap = 1 if max(planned.extents) <= 64 else 0
    maps, layout = (_copy if cut.a_pieces is None else _product)(planned, cut, stride, gap)
    heatmaps = [_filled(heatmap, entries, planned, color) for heatmap, entries in maps]
    layout |= theme.layout(
        title,
        annotations=[_below_title(f"whole launch: {planned.programs:,} programs, {_count(cut)}")],
        height=408,
        margin={"l": 60, "r": 6, "t": 52, "b": 44},
        coloraxis=_coloraxis(color, {"order": planned.programs, "sm": planned.sms}.get(color, 0)),
    )
    layout["title"] |= {"xref": "paper", "x": _RIGHT / 2}
    return go.Figure(heatmaps, layout)


def _stride(planned: Schedule) -> int:
    """Tiles along each side that one cell stands for."""
    return -(-max(planned.extents) // MOST_CELLS)


def _count(cut: Steps) -> str:
    count = len(cut.tiles)
    return f"{count:,} {cut.name}{'s' if count != 1 else ''}"


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


def _filled(heatmap: Heatmap, entries: np.ndarray, planned: Schedule, color: str) -> Heatmap:
    """A map with its values, and what a cell says of itself: program, group, step, SM."""
    program = planned.tiles.program[entries]
    of_cell = {
        "order": program,
        "group": planned.tiles.group[entries],
        "wave": planned.step[entries],
        "sm": planned.sm_of(program),
    }
    z = of_cell[color]
    return {
        **heatmap,
        "z": theme.smallest(z if color in ("order", "sm") else z % len(theme.CATEGORIES)),
        "customdata": theme.smallest(np.dstack(list(of_cell.values()))),
        **({"text": program} if "texttemplate" in heatmap else {}),
    }


def _numbers(planned: Schedule) -> dict[str, str]:
    """A map of few tiles shows the pid in each."""
    return {"texttemplate": "%{text}"} if max(planned.extents) <= NUMBERED_CELLS else {}


def _coloraxis(color: str, count: int) -> dict[str, Any]:
    """The colours of all maps: `count` values one after the other, or eight that repeat."""
    shades = len(theme.CATEGORIES)
    if not count:
        return {"cmin": -0.5, "cmax": shades - 0.5, "colorscale": theme.repeated(shades), "showscale": False}
    bar = theme.colorbar("pid" if color == "order" else "SM", x=_RIGHT + 0.01, len=0.9)
    return {"cmin": 0, "cmax": max(count - 1, 1), "colorscale": theme.SEQUENCE, "colorbar": bar}


def _heatmap(name: str, says: str, cut: Steps, stride: int, gap: int, **more: Any) -> Heatmap:
    return {
        "type": "heatmap",
        "name": name,
        "coloraxis": "coloraxis",
        "xgap": gap,
        "ygap": gap,
        "hovertemplate": (
            f"{name}: {says}<br>pid %{{customdata[0]}}, SM %{{customdata[3]}}<br>"
            f"group %{{customdata[1]}}, {cut.name} %{{customdata[2]}}<extra></extra>"
        ),
        "dx": stride,
        "dy": stride,
        **more,
    }


def _product(planned: Schedule, cut: Steps, stride: int, gap: int) -> tuple[list[Map], dict[str, Any]]:
    """C, A's panels and B's, each with the entries of its cells, and their axes."""
    a_first, b_first = first_touches(cut)
    held = np.flatnonzero(slice_blocks(planned))
    c_says, a_says, b_says = "pid_m %{y}, pid_n %{x}", "pid_m %{y}", "pid_n %{x}"
    if planned.slices > 1:
        c_says += f"<br>the first of {planned.slices} programs, one a slice of K"
        a_says, b_says = a_says + ", slice %{x}", b_says + ", slice %{y}"
    c = _heatmap("C", c_says, cut, stride, gap, **_numbers(planned))
    a = _heatmap("A", a_says + "<br>first touched by", cut, stride, gap, xaxis="x2", dx=1)
    b = _heatmap("B", b_says + "<br>first touched by", cut, stride, gap, yaxis="y2", dy=1)
    maps = [
        (c, planned.first_of_tile[::stride, ::stride]),
        (a, a_first[::stride, held]),
        (b, b_first[held, ::stride]),
    ]
    return maps, _product_axes(planned)


def _product_axes(planned: Schedule) -> dict[str, Any]:
    """C's axes, with those of A's and B's panels along K; C stays next to its panels."""
    axes = theme.matrix_axes("pid_m (tile rows)", "pid_n (tile columns)", (0, 0), planned.extents)
    slices = planned.slices
    panel = min(_PANEL * (1 + (slices - 1) / 4), _WIDEST_PANEL)
    cut = {"ticks": "outside", "dtick": 1 if slices < 5 else 5} if slices > 1 else {"ticks": ""}
    along = {"tickangle": 0, "showticklabels": slices > 1, "fixedrange": True, **cut}
    title = "{}: K" if slices > 1 else "{}"
    axes["xaxis"] |= {"domain": [panel + _GAP, _RIGHT], "constraintoward": "left"}
    axes["yaxis"] |= {"domain": [0, 1 - panel - _GAP], "constraintoward": "top", "anchor": "x2"}
    axes["xaxis2"] = {
        **along,
        "title": {"text": title.format("A")},
        "domain": [0, panel],
        "range": [-0.5, slices - 0.5],
    }
    down = {"domain": [1 - panel, 1], "range": [slices - 0.5, -0.5], "anchor": "x"}
    axes["yaxis2"] = {**along, "title": {"text": title.format("B")}, **down}
    return axes


def _copy(planned: Schedule, cut: Steps, stride: int, gap: int) -> tuple[list[Map], dict[str, Any]]:
    """The tiles of A as they are read, and of B as they are written: turned."""
    first = planned.first_of_tile[::stride, ::stride]
    second = {"xaxis": "x2", "yaxis": "y2", **_numbers(planned)}
    read = _heatmap("A", "read at pid_m %{y}, pid_n %{x}", cut, stride, gap, **_numbers(planned))
    written = _heatmap("B", "written by pid_m %{x}, pid_n %{y}", cut, stride, gap, **second)
    rows, columns = planned.extents
    left = theme.matrix_axes("pid_m", "A: pid_n", (0, 0), (rows, columns))
    right = theme.matrix_axes("pid_n", "B: pid_m", (0, 0), (columns, rows))
    middle = _RIGHT / 2
    of_rows, of_columns = ({"tick0": 0, "dtick": -(-count // 4)} for count in (rows, columns))
    axes = {
        "xaxis": {**left["xaxis"], **of_columns, "domain": [0, middle - 0.06]},
        "yaxis": {**left["yaxis"], **of_rows},
        "xaxis2": {**right["xaxis"], **of_rows, "domain": [middle + 0.06, _RIGHT], "anchor": "y2"},
        "yaxis2": {**right["yaxis"], **of_columns, "anchor": "x2"},
    }
    if "scaleanchor" in axes["yaxis2"]:
        axes["yaxis2"]["scaleanchor"] = "x2"
    return [(read, first), (written, first.T)], axes


def player_data(planned: Schedule, cut: Steps, step: int) -> dict[str, Any]:
    """What the page draws any step of `schedule_figure` from.

    Every tile (slice, pid_m, pid_n as one number) stands in it, step after step, so that a cell that stands for several
    tiles is right in every step.

    Args:
        step: the step to show first, from 1; 0 for the whole launch.
    """
    touched = {}
    if cut.a_pieces is not None and cut.b_pieces is not None and cut.panel_bytes is not None:
        touched = {"a": cut.a_pieces, "b": cut.b_pieces, "kib": cut.panel_bytes // 1024}
    return {
        "step": step,
        "name": cut.name,
        "places": cut.timed.place,
        "tiles": theme.smallest(cut.tiles),
        **{name: theme.smallest(values) for name, values in touched.items()},
        "extents": list(planned.extents),
        "slices": planned.slices,
        "stride": _stride(planned),
        "sms": planned.sms,
        "slots": cut.slots,
        "unit": "program" if planned.turns == 1 else "tile",
        "kind": "copy" if cut.a_pieces is None else "product",
        "held": int(np.count_nonzero(slice_blocks(planned))) if planned.k_blocks else 0,
    }


def loads_figure(counts: np.ndarray, orders: dict[str, np.ndarray], first: int, what: str) -> go.Figure:
    """Distinct blocks of A and B that the first n programs, or tiles, of each order load.

    Args:
        counts: n, ascending.
        orders: (len(counts),) blocks, by the order's name.
        first: the n that is marked; one of `counts`.
        what: "programs" or "tiles".
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
                "title": {"text": "distinct blocks of A and B"},
                "automargin": True,
                **log,
                "dtick": 1 if most > 300 * fewest else "D2",
            },
        ),
    )
