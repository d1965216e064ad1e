"""The program → tile map of a launch, as Plotly data and layout, and the data from which the page plays its steps.

A product is drawn as in a textbook: B's blocks above C's tiles, A's blocks at their left. One heatmap holds all three,
because Plotly's time grows with the number of traces.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels.knobs import knobs
from kernels.spec import DTYPE_BYTES
from visualize.predict.l2 import CONSTANTS
from visualize.predict.schedule import Schedule, Steps, first_reads, panels, slice_blocks
from visualize.views import theme

# Maximum number of cells along each side, and of blocks along K that get a cell each. More than a screen resolves would
# only slow the page down.
MOST_CELLS, _MOST_BLOCKS = 256, 32

# Maximum number of tiles per side with gaps between cells. Larger maps have cells of equal size, which Plotly draws as
# pixels.
_MOST_WITH_GAPS = 32

# Maximum number of tiles per side whose cells hold a number. Without a font size in the figure, Plotly measures the
# text of every cell, which takes two seconds of the first picture.
_MOST_NUMBERED, _NUMBER_PX = 12, 13

# Fractions of C's side: for the cells along K, whose corner holds two numbers and two bars, and for the gap.
_LEAST_DEPTH, _GAP = 0.4, 0.035

# The gap between maps, as a fraction of the picture's width.
_BETWEEN = 0.044


@dataclass(frozen=True)
class Order:
    """A launch in one order: its name ("row-major order"), its schedule and its steps."""

    name: str
    schedule: Schedule
    steps: Steps

    @property
    def unit(self) -> str:
        """The smallest step: "program", or "tile" of a program that loops."""
        return "program" if self.schedule.turns == 1 else "tile"


@dataclass(frozen=True)
class MapSide:
    """The grid's columns (or rows): cells along K, a gap, and C's cells.

    Attributes:
        tiles: number of C's tiles along this side.
        stride: number of tiles that one of C's cells represents.
        depth: number of cells along K; 0 without panels.
        repeat, gap: number of columns for each cell along K, and for the gap.
        edges: the columns' edges, in tiles from C's first edge: (columns + 1,).
    """

    tiles: int
    stride: int
    depth: int
    repeat: int
    gap: int
    edges: np.ndarray

    @property
    def lead(self) -> int:
        """The number of columns before C's."""
        return self.depth * self.repeat + self.gap

    @property
    def along_k(self) -> list[float]:
        """The first and last edge of the cells along K."""
        return self.edges[[0, self.depth * self.repeat]].tolist()

    @property
    def cells(self) -> int:
        """The number of C's cells."""
        return -(-self.tiles // self.stride)


@dataclass(frozen=True)
class MapGrid:
    """The positions of a launch's tiles, and of its panels' blocks, in one grid.

    Attributes:
        slice_of: the slice of K of each cell along K: (depth,).
        blocks: whether each of these cells is one block.
    """

    slice_of: np.ndarray
    blocks: bool
    down: MapSide
    across: MapSide

    def fill(self, c: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ma.MaskedArray:
        """Return the grid of values, masked in the corner and the gaps.

        Args:
            c: (cells down, cells across).
            a, b: values by slice of K: (cells down, slices), (slices, cells across).
        """
        top, left = self.down.lead, self.across.lead
        grid = np.ma.masked_all((top + self.down.cells, left + self.across.cells), dtype=np.result_type(c, a, b))
        grid[top:, left:] = c
        grid[top:, : left - self.across.gap] = np.repeat(a[:, self.slice_of], self.across.repeat, axis=1)
        grid[: top - self.down.gap, left:] = np.repeat(b[self.slice_of], self.down.repeat, axis=0)
        return grid


def map_grid(launch: Schedule) -> MapGrid:
    """Lay out a launch's tiles and, for a launch with panels, their blocks."""
    longest = max(launch.extents)
    stride, has_gaps, has_blocks = -(-longest // MOST_CELLS), longest <= _MOST_WITH_GAPS, False
    slices = np.empty(0, dtype=np.int64)
    if launch.panels is not None:
        has_blocks = launch.k_blocks <= min(_MOST_BLOCKS, 4 * min(launch.extents))
        depths = slice_blocks(launch)
        slices = np.repeat(np.arange(launch.slices), depths) if has_blocks else np.flatnonzero(depths)
    depth = len(slices)

    def side(tiles: int) -> MapSide:
        c_edges = np.arange(-(-tiles // stride) + 1) * float(stride)
        if not depth:
            return MapSide(tiles, stride, 0, 1, 0, c_edges)
        width = min(max(depth if has_blocks else 0, _LEAST_DEPTH * tiles), tiles)
        space = _GAP * (tiles + width)
        if has_gaps:
            edges = np.concatenate([np.linspace(-space - width, -space, depth + 1), np.minimum(c_edges, tiles)])
            return MapSide(tiles, stride, depth, 1, 1, edges)
        repeat, gap = max(1, round(width / stride / depth)), max(1, round(space / stride))
        lead = np.arange(-depth * repeat - gap, 0) * float(stride)
        return MapSide(tiles, stride, depth, repeat, gap, np.concatenate([lead, c_edges]))

    return MapGrid(slices, has_blocks, *map(side, launch.extents))


def map_figure(orders: Sequence[Order], color: str) -> dict[str, Any]:
    """Return the map as a figure's data and layout: one heatmap per order or, without panels, per tensor.

    A block has the colour of the tile that reads it first. A map of more than MOST_CELLS tiles per side shows every
    second, third, … tile.

    Args:
        orders: this kernel's order and the one to compare; only the first is drawn without panels.
        color: one of COLORS: "order" (launch order), "group" or "wave" (eight colours, repeated), or "sm".
    """
    launch = orders[0].schedule
    grid, (*_, output) = map_grid(launch), launch.transposed
    maps: list[tuple[str, np.ndarray, bool]]
    if launch.panels is not None:
        maps = [(order.name, grid.fill(*_cell_values(order, grid, color)), False) for order in orders]
    else:
        (values,) = _cell_values(orders[0], grid, color)
        maps = [
            (f"{tensor} as {'written' if tensor == output else 'read'}", values.T if turned else values, turned)
            for tensor, turned in launch.transposed.items()
        ]
    has_gaps, is_numbered = max(launch.extents) <= _MOST_WITH_GAPS, max(launch.extents) <= _MOST_NUMBERED
    style = {"xgap": int(has_gaps), "ygap": int(has_gaps), "hoverongaps": False, "coloraxis": "coloraxis"}
    numbers = {"texttemplate": "%{text}", "textfont": {"size": _NUMBER_PX}} if is_numbered else {}
    sides, width = [(grid.across, "pid_n"), (grid.down, "pid_m")], (1 + _BETWEEN) / len(maps) - _BETWEEN
    traces, notes, axes = [], [], dict[str, Any]()
    for index, (name, cells, is_transposed) in enumerate(maps):
        ending, start = str(index + 1) if index else "", index * (width + _BETWEEN)
        x, y = f"x{ending}", f"y{ending}"
        (columns, across), (rows, down) = reversed(sides) if is_transposed else sides
        trace = {"type": "heatmap", "name": name, "xaxis": x, "yaxis": y, "z": np.ma.masked_array(cells)}
        position = _positions("x", columns, has_gaps) | _positions("y", rows, has_gaps)
        traces.append({**trace, **position, **style, **numbers, "hovertemplate": "%{hovertext}<extra></extra>"})
        x_axis = _axis(columns, across) | {"range": columns.edges[[0, -1]].tolist(), "domain": [start, start + width]}
        y_axis = _axis(rows, "" if index and launch.panels else down) | {"range": rows.edges[[-1, 0]].tolist()}
        if index:
            x_axis["anchor"], y_axis["anchor"] = y, x
        if index and launch.panels:
            x_axis["matches"], y_axis["matches"] = "x", "y"
        axes |= {f"xaxis{ending}": x_axis, f"yaxis{ending}": y_axis}
        corner = {"xref": f"{x} domain", "yref": f"{y} domain"}
        notes.append({"text": name, **corner, "x": 0.5, "y": 1, "yanchor": "bottom", "yshift": 4})
        if launch.panels:
            left, top = (f"<b>{tensor}</b>" for tensor in launch.panels)
            # In a split-K launch, the numbers of a step count slices.
            numbered = ": the pid of each tile" if is_numbered and launch.slices == 1 else ""
            below = {"xanchor": "right", "yanchor": "top", "yshift": -20}
            notes += [
                {"text": left, "xref": x, "x": np.mean(grid.across.along_k), "yref": y, "y": 0, "yanchor": "bottom"},
                {"text": top, "xref": x, "x": 0, "xanchor": "right", "yref": y, "y": np.mean(grid.down.along_k)},
                {"text": f"<b>{output}</b>{numbered}", **corner, "x": 1, "y": 0, **below},
            ]
    shades = len(theme.CATEGORIES)
    colors = {"cmin": -0.5, "cmax": shades - 0.5, "colorscale": theme.category_scale(shades), "showscale": False}
    if count := {"order": launch.programs, "sm": launch.sms}.get(color):
        colors |= {"cmin": 0, "cmax": max(count - 1, 1), "colorscale": theme.SEQUENCE}
    notes = [{"showarrow": False, **note} for note in notes]
    margin = {"l": 4, "r": 4, "t": 28, "b": 4}
    return {"data": traces, "layout": theme.layout("", margin=margin, annotations=notes, coloraxis=colors, **axes)}


def _cell_values(order: Order, grid: MapGrid, color: str) -> list[np.ndarray]:
    """Return the values to colour: of C's cells and, with panels, of A's and B's by slice of K."""
    launch, stride = order.schedule, grid.down.stride
    entries = [launch.entry.min(axis=0)[::stride, ::stride]]
    if launch.panels is not None:
        rows, columns = first_reads(order.steps)
        entries += [rows[::stride], columns[:, ::stride]]
    program, shades = launch.tiles.program, len(theme.CATEGORIES)
    by_entry = {"order": program, "sm": program % launch.sms, "group": launch.tiles.group % shades}
    values = by_entry[color] if color in by_entry else launch.step % shades
    return [theme.smallest(values[each]) for each in entries]


def _positions(letter: str, side: MapSide, has_gaps: bool) -> dict[str, Any]:
    if has_gaps:
        return {letter: side.edges.tolist()}
    return {f"{letter}0": float(side.edges[:2].mean()), f"d{letter}": side.stride}


def _axis(side: MapSide, title: str) -> dict[str, Any]:
    """Number up to ten tiles, at their middles."""
    step = 1
    while side.tiles > 9 * step:
        step *= 2
    numbers = range(0, side.tiles, step)
    ticks = {"tickvals": [number + 0.5 for number in numbers], "ticktext": [*map(str, numbers)], "tickangle": 0}
    return {**ticks, "ticks": "", "automargin": True, "title": {"text": title, "standoff": 4}}


def player_data(orders: Sequence[Order], color: str, step: int, first: int, bound: int) -> dict[str, Any]:
    """Return the data from which `script.js` draws any step over `map_figure`.

    It holds every tile of each order, so that a cell that represents several tiles is exact in every step.

    Args:
        step: the initial step, from 1; 0 for the whole launch.
        first: number of programs to outline; 0 for none.
        bound: the step at which playback pauses; 0 for the last one.
    """
    launch, grid = orders[0].schedule, map_grid(orders[0].schedule)
    config, read = launch.launch.config, panels(launch)
    sides = {"down": grid.down, "across": grid.across}
    # A group of more rows than C has changes nothing.
    handles = {
        name: {"value": getattr(config, name), "values": [*knob.choices]}
        for name, knob in knobs(type(config)).items()
        if name in ("BLOCK_M", "BLOCK_N") and knob.choices
    }
    if read and hasattr(config, "GROUP_SIZE"):
        handles["GROUP_SIZE"] = {"value": config.GROUP_SIZE, "values": np.arange(1, launch.extents[0] + 1)}
    return {
        "step": step,
        "first": first,
        "bound": bound,
        "color": color,
        "orders": [_tiles_by_step(order) for order in (orders if launch.panels else orders[:1])],
        "extents": list(launch.extents),
        "panels": list(launch.panels) if launch.panels else None,
        "tensors": list(launch.transposed),
        "output": list(launch.transposed)[-1],
        "transposed": list(launch.transposed.values()),
        "slices": launch.slices,
        "depths": slice_blocks(launch).tolist() if launch.panels else [],
        "piece_bytes": [read.row_bytes, read.column_bytes] if read else [],
        "l2": _l2(launch) if read else None,
        "handles": handles,
        "sms": launch.sms,
        "slots": orders[0].steps.slots,
        "name": orders[0].steps.name,
        "unit": orders[0].unit,
        "resident": launch.resident_programs,
        "place": {
            "slice_of": grid.slice_of.tolist(),
            "blocks": grid.blocks,
            "stride": grid.down.stride,
            **{
                name: {"repeat": side.repeat, "gap": side.gap, "cells": side.cells, "along_k": side.along_k}
                for name, side in sides.items()
            },
        },
    }


def _l2(launch: Schedule) -> dict[str, Any]:
    """Return the constants of the L2's model, as `predict.l2` has them, for a launch with panels.

    `besides` are the bytes of inputs without panels, each of which is read once.
    """
    kernel, problem = launch.kernel, launch.launch.problem
    besides = kernel.family.tensor_bytes(problem)
    for name in (*(launch.panels or ()), kernel.family.output(problem)):
        besides.pop(name)
    return {
        "gpu": launch.launch.gpu.name,
        "bytes": launch.launch.gpu.l2_bytes,
        "ways": CONSTANTS.ways,
        "tile_bytes": math.prod(kernel.output_tile(launch.launch) or ()) * DTYPE_BYTES[problem.dtype],
        "besides": sum(besides.values()),
        "assumed": launch.resident_source == "assumed",
        "adds": any(access.op == "atomic" for access in kernel.accesses(launch.launch)),
    }


def _tiles_by_step(order: Order) -> dict[str, Any]:
    """Return an order's tiles (slice, pid_m and pid_n as one number), without the arrays that equal their defaults.

    By default, tiles are in their own order, a step has one tile, and a tile is its own program.
    """
    steps, timed, group = order.steps, order.steps.timed, order.steps.timed.tiles.group
    group_starts = np.flatnonzero(np.diff(group, prepend=group[0] - 1))
    groups = {"from": theme.smallest(group_starts), "value": theme.smallest(group[group_starts])}
    waves = np.cumsum(np.bincount(order.schedule.step))
    data: dict[str, Any] = {"title": order.name, "count": len(steps.tiles), "groups": groups, "wave_ends": waves}
    if order.schedule.panels and not steps.is_single:
        data["most"] = int(steps.blocks.max())
    if not np.array_equal(timed.place, np.arange(len(timed.place))):
        data["places"] = theme.smallest(timed.place)
    if len(steps.tiles) != len(timed.place):
        data["tiles"] = theme.smallest(steps.tiles)
    if order.schedule.turns > 1:
        data["programs"] = theme.smallest(order.schedule.tiles.program[steps.entries])
    return data
