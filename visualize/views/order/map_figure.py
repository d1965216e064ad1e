"""The program → tile map of a launch, as Plotly data and layout, and the data from which the page plays its steps.

A product is drawn as in a textbook: B's blocks above C's tiles, A's blocks at their left. One heatmap holds all three,
because Plotly's time grows with the number of traces.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tilescope.declare.knobs import knobs
from visualize.predict.schedule import (
    KernelSchedule,
    Schedule,
    Steps,
    first_reads,
    loads,
    slice_blocks,
)
from visualize.views import theme
from visualize.views.panel import select_fields
from visualize.views.theme import Figure, note

# Maximum number of cells along each side, and of blocks along K that get a cell each. More than a screen resolves would
# only slow the page down.
MOST_CELLS = 256
_MOST_BLOCKS = 32

# Maximum number of tiles per side with gaps between cells. Larger maps have cells of equal size, which Plotly draws as
# pixels.
_MOST_WITH_GAPS = 32

# Maximum number of tiles per side whose cells hold a number. Without a font size in the figure, Plotly measures the
# text of every cell, which takes two seconds of the first picture.
_MOST_NUMBERED = 12
_NUMBER_PX = 13

# Fractions of C's side: for the cells along K, whose corner holds a number and a bar, and for the gap.
_LEAST_DEPTH = 0.4
_GAP = 0.035

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
        cells: number of C's cells.
        repeat, gap: number of columns for each cell along K, and for the gap.
        lead: number of columns before C's.
        edges: the columns' edges, in tiles from C's first edge: (columns + 1,).
        along_k: the first and last edge of the cells along K.
    """

    tiles: int
    stride: int
    cells: int
    repeat: int
    gap: int
    lead: int
    edges: np.ndarray
    along_k: np.ndarray


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


def map_grid(launch: Schedule) -> MapGrid:
    """Lay out a launch's tiles and, for a launch with panels, their blocks."""
    longest = max(launch.extents)
    stride = -(-longest // MOST_CELLS)
    has_gaps = longest <= _MOST_WITH_GAPS
    has_blocks = False
    slices = np.empty(0, dtype=np.int64)
    if launch.panels is not None:
        has_blocks = launch.k_blocks <= min(_MOST_BLOCKS, 4 * min(launch.extents))
        depths = slice_blocks(launch)
        slices = (
            np.repeat(np.arange(launch.slices), depths) if has_blocks else np.flatnonzero(depths)
        )
    depth = len(slices)

    def side(tiles: int) -> MapSide:
        edges = np.arange(-(-tiles // stride) + 1) * float(stride)
        repeat = 1
        gap = 0
        cells = len(edges) - 1
        if depth:
            width = min(max(depth if has_blocks else 0, _LEAST_DEPTH * tiles), tiles)
            space = _GAP * (tiles + width)
            gap = 1
            lead = np.linspace(-space - width, -space, depth + 1)
            if not has_gaps:
                repeat = max(1, round(width / stride / depth))
                gap = max(1, round(space / stride))
                lead = stride * np.arange(-depth * repeat - gap, 0.0)
            edges = np.concatenate([lead, edges])
        return MapSide(
            tiles,
            stride,
            cells,
            repeat,
            gap,
            depth * repeat + gap,
            edges,
            edges[[0, depth * repeat]],
        )

    return MapGrid(slices, has_blocks, *map(side, launch.extents))


@dataclass(frozen=True)
class _Map:
    """One heatmap: its title, its cells, and what its axes count.

    Attributes:
        number: the ending of its axes' names: "", "2", "3" …
        rows, columns: a side of the grid, and the title of its axis.
        is_output: whether it shows the output's tiles in this kernel's order.
    """

    number: str
    title: str
    cells: np.ma.MaskedArray
    rows: tuple[MapSide, str]
    columns: tuple[MapSide, str]
    is_output: bool


def map_figure(orders: Sequence[Order], axes_of: tuple[str, str] = ("pid_m", "pid_n")) -> Figure:
    """Return the map as a figure's data and layout: one heatmap per order or, without panels, per tensor.

    A tile has the colour of its program, in launch order, and a block that of the tile that reads it first. A map of
    more than MOST_CELLS tiles per side shows every second, third, … tile.

    Args:
        orders: this kernel's order and the one to compare; only the first is drawn without panels.
        axes_of: the titles of the axes of the tiles, down and across.
    """
    launch = orders[0].schedule
    grid = map_grid(launch)
    sides = (grid.down, axes_of[0]), (grid.across, axes_of[1])
    maps = list(_find_maps(orders, grid, sides))
    width = (1 + _BETWEEN) / len(maps) - _BETWEEN
    axes = Figure()
    notes = []
    for place, shown in enumerate(maps):
        start = place * (width + _BETWEEN)
        axes |= _map_axes(shown, [start, start + width], matches=bool(launch.panels and place))
        notes += _map_notes(shown, launch, grid)
    colors = {"cmin": 0, "cmax": max(launch.programs - 1, 1), "colorscale": theme.SEQUENCE}
    return theme.figure(
        "",
        [_heatmap(shown, launch) for shown in maps],
        margin={"l": 4, "r": 4, "t": 28, "b": 4},
        annotations=notes,
        coloraxis={**colors, "showscale": False},
        **axes,
    )


def _find_maps(
    orders: Sequence[Order], grid: MapGrid, sides: tuple[tuple[MapSide, str], tuple[MapSide, str]]
) -> Iterator[_Map]:
    launch = orders[0].schedule
    (*_, output) = launch.transposed
    if launch.panels:
        for place, order in enumerate(orders):
            number = str(place + 1) if place else ""
            yield _Map(number, order.name, _cell_values(order, grid), *sides, is_output=not place)
        return
    values = _cell_values(orders[0], grid)
    for place, (tensor, is_turned) in enumerate(launch.transposed.items()):
        title = f"Programs that {'write' if tensor == output else 'read'} {tensor}"
        cells = values.T if is_turned else values
        rows, columns = reversed(sides) if is_turned else sides
        number = str(place + 1) if place else ""
        yield _Map(number, title, cells, rows, columns, is_output=tensor == output)


def _heatmap(shown: _Map, launch: Schedule) -> Figure:
    has_gaps = max(launch.extents) <= _MOST_WITH_GAPS
    trace = {
        "type": "heatmap", "name": shown.title, "xaxis": f"x{shown.number}", "yaxis": f"y{shown.number}",
        "z": shown.cells, **_positions("x", shown.columns[0], has_gaps), **_positions("y", shown.rows[0], has_gaps),
        "xgap": int(has_gaps), "ygap": int(has_gaps), "hoverinfo": "skip", "coloraxis": "coloraxis",
    }  # fmt: skip
    if _is_numbered(launch):
        trace |= {"texttemplate": "%{text}", "textfont": {"size": _NUMBER_PX}}
    return trace


def _is_numbered(launch: Schedule) -> bool:
    return max(launch.extents) <= _MOST_NUMBERED


def _map_axes(shown: _Map, domain: list[float], matches: bool) -> Figure:
    """Return a map's axes.

    Args:
        matches: whether it zooms with the first map, which has the titles of the axes.
    """
    rows, down = shown.rows
    columns, across = shown.columns
    x = {"range": _range(columns), "domain": domain, "anchor": f"y{shown.number}"}
    y = {"range": _range(rows)[::-1], "anchor": f"x{shown.number}"}
    if matches:
        x["matches"] = "x"
        y["matches"] = "y"
        down = across = ""
    return {
        f"xaxis{shown.number}": _axis(columns, across) | x,
        f"yaxis{shown.number}": _axis(rows, down) | y,
    }


def _map_notes(shown: _Map, launch: Schedule, grid: MapGrid) -> list[Figure]:
    """Return a map's title and, if it has panels, the tensors' names beside their blocks."""
    x = f"x{shown.number}"
    y = f"y{shown.number}"
    corner = {"xref": f"{x} domain", "yref": f"{y} domain"}
    title = note(shown.title, 0.5, 1, **corner, yanchor="bottom", yshift=4)
    # The page adds to the name of the output whether a run's tiles are right.
    output = {"name": "output"} if shown.is_output else {}
    if launch.panels is None:
        return [title | output]
    left, top, below = (f"<b>{tensor}</b>" for tensor in (*launch.panels, [*launch.transposed][-1]))
    # In a split-K launch, the numbers of a step count slices.
    if shown.is_output and _is_numbered(launch) and launch.slices == 1:
        below += ": pid per tile"
    place = {"xanchor": "right", "yanchor": "top", "yshift": -18}
    middle_k = np.mean(grid.across.along_k), np.mean(grid.down.along_k)
    return [
        title,
        note(left, middle_k[0], 0, xref=x, yref=y, yanchor="bottom"),
        note(top, 0, middle_k[1], xref=x, yref=y, xanchor="right"),
        note(below, 1, 0, **corner, **place, **output),
    ]


def _cell_values(order: Order, grid: MapGrid) -> np.ma.MaskedArray:
    """Return the program of each cell, masked in the corner and the gaps."""
    launch = order.schedule
    down = grid.down
    across = grid.across
    program = theme.smallest(launch.tiles.program)
    rows, columns = first_reads(order.steps)
    cells = np.ma.masked_all(
        (down.lead + down.cells, across.lead + across.cells), dtype=program.dtype
    )
    cells[down.lead :, across.lead :] = program[
        launch.entry.min(axis=0)[:: down.stride, :: down.stride]
    ]
    a = program[rows[:: down.stride, grid.slice_of]]
    b = program[columns[grid.slice_of, :: down.stride]]
    cells[down.lead :, : across.lead - across.gap] = np.repeat(a, across.repeat, axis=1)
    cells[: down.lead - down.gap, across.lead :] = np.repeat(b, down.repeat, axis=0)
    return cells


def _positions(letter: str, side: MapSide, has_gaps: bool) -> Figure:
    if has_gaps:
        return {letter: side.edges}
    return {f"{letter}0": float(side.edges[:2].mean()), f"d{letter}": side.stride}


def _range(side: MapSide) -> np.ndarray:
    """Leave room for an outline at the far edge, which Plotly would clip."""
    first, last = side.edges[[0, -1]]
    return np.array([first, last + 0.004 * (last - first)])


def _axis(side: MapSide, title: str) -> Figure:
    """Number up to four tiles, at their middles."""
    step = 1
    while side.tiles > 4 * step:
        step *= 2
    numbers = range(0, side.tiles, step)
    ticks = {
        "tickvals": [number + 0.5 for number in numbers],
        "ticktext": [*map(str, numbers)],
        "tickangle": 0,
    }
    return {**ticks, "ticks": "", "automargin": True, "title": {"text": title, "standoff": 4}}


def player_data(orders: Sequence[Order], step: int, first: int, bound: int) -> Figure:
    """Return the data from which `player.js` draws any step over `map_figure`.

    It holds every tile of each order, so that a cell that represents several tiles is exact in every step.

    Args:
        step: the initial step, from 1; 0 for the whole launch.
        first: number of programs to outline; 0 for none.
        bound: the step at which playback pauses; 0 for the last one.
    """
    launch = orders[0].schedule
    handles = _handles(launch) if isinstance(launch, KernelSchedule) else {}
    tensors = launch.transposed
    return {
        "step": step,
        "first": first,
        "bound": bound,
        "orders": [_order_data(order, first) for order in orders],
        **select_fields(launch, "extents", "panels", "slices"),
        "tensors": list(tensors),
        "transposed": list(tensors.values()),
        "handles": handles,
        "name": orders[0].steps.name,
        "unit": orders[0].unit,
        "slots": orders[0].steps.slots,
        "resident": launch.resident_programs,
        "grid": asdict(map_grid(launch)),
        "depths": slice_blocks(launch),
    }


def _handles(launch: KernelSchedule) -> Figure:
    """Return the value and the allowed values of each knob that sets the size of a tile or of a group."""
    config = launch.launch.config
    declared = knobs(type(config))
    sides = [name for name in ("BLOCK_M", "BLOCK_N") if name in declared]
    allowed: dict[str, list[Any]] = {name: list(declared[name].choices or ()) for name in sides}
    if launch.panels and "GROUP_SIZE" in declared:
        # A group of more rows than C has changes nothing.
        allowed["GROUP_SIZE"] = list(range(1, launch.extents[0] + 1))
    return {
        name: {"value": getattr(config, name), "values": values}
        for name, values in allowed.items()
        if values
    }


def _order_data(order: Order, first: int) -> Figure:
    """Return an order's tiles (slice, pid_m and pid_n as one number), without the arrays that equal their defaults.

    By default, tiles are in their own order, a step has one tile, and a tile is its own program. With panels, `blocks`
    has the distinct blocks that the compared programs load, then those that each step loads or, if a step is a single
    program, those that all programs up to it load.
    """
    steps = order.steps
    timed = order.steps.timed
    data: Figure = {"title": order.name, "count": len(steps.tiles)}
    if not np.array_equal(timed.place, np.arange(len(timed.place))):
        data["places"] = theme.smallest(timed.place)
    if len(steps.tiles) != len(timed.place):
        data["ends"] = np.cumsum([0, *steps.tiles])
    if order.schedule.turns > 1:
        data["programs"] = theme.smallest(order.schedule.tiles.program[steps.entries])
    if timed.panels:
        compared = loads(timed, np.array([first or len(timed.place)]))
        each = loads(timed, np.arange(1, len(timed.place) + 1)) if steps.is_single else steps.blocks
        data["blocks"] = np.append(compared, each)
    return data
