"""The program → tile map of a launch, as Plotly data and layout, and the data from which the page plays its steps.

A product is drawn as in a textbook: B's blocks above C's tiles, A's blocks at their left. One heatmap holds all three,
because Plotly's time grows with the number of traces.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from tilescope.declare.knobs import knobs
from tilescope.measure.session import BoundedCache
from tilescope.numbers import bytes_of, count_noun, join_names, significant
from visualize.predict.l2_steps import StepLoads, step_loads
from visualize.predict.reuse import bytes_per_tile
from visualize.predict.schedule import (
    KernelSchedule,
    Panels,
    Schedule,
    Steps,
    first_reads,
    panels,
    slice_blocks,
)
from visualize.views import theme
from visualize.views.panel import select_fields

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

# Fractions of C's side: for the cells along K, whose corner holds two numbers and two bars, and for the gap.
_LEAST_DEPTH = 0.4
_GAP = 0.035

# The loads of a slider's latest settings and, for all of its moves, those of row-major order.
_LOADS: BoundedCache[StepLoads] = BoundedCache(1 << 24, lambda known: known.blocks.nbytes)

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


def map_figure(
    orders: Sequence[Order], color: str, axes_of: tuple[str, str] = ("pid_m", "pid_n")
) -> dict[str, Any]:
    """Return the map as a figure's data and layout: one heatmap per order or, without panels, per tensor.

    A block has the colour of the tile that reads it first. A map of more than MOST_CELLS tiles per side shows every
    second, third, … tile.

    Args:
        orders: this kernel's order and the one to compare; only the first is drawn without panels.
        color: one of COLORS: "order" (launch order), "group" or "wave" (eight colours, repeated), or "sm".
        axes_of: the titles of the axes of the tiles, down and across.
    """
    launch = orders[0].schedule
    grid = map_grid(launch)
    (*_, output) = launch.transposed
    if launch.panels:
        maps = [(order.name, _cell_values(order, grid, color), False) for order in orders]
    else:
        values = _cell_values(orders[0], grid, color)
        maps = [
            (
                f"{tensor} as {'written' if tensor == output else 'read'}",
                values.T if turned else values,
                turned,
            )
            for tensor, turned in launch.transposed.items()
        ]
    has_gaps = max(launch.extents) <= _MOST_WITH_GAPS
    is_numbered = max(launch.extents) <= _MOST_NUMBERED
    gap = int(has_gaps)
    style: dict[str, Any] = {
        "xgap": gap,
        "ygap": gap,
        "hoverinfo": "skip",
        "coloraxis": "coloraxis",
    }
    if is_numbered:
        style |= {"texttemplate": "%{text}", "textfont": {"size": _NUMBER_PX}}
    sides = [(grid.across, axes_of[1]), (grid.down, axes_of[0])]
    width = (1 + _BETWEEN) / len(maps) - _BETWEEN
    traces = []
    notes = []
    axes = dict[str, Any]()
    for index, (name, cells, is_transposed) in enumerate(maps):
        ending = str(index + 1) if index else ""
        start = index * (width + _BETWEEN)
        x, y = f"x{ending}", f"y{ending}"
        (columns, across), (rows, down) = reversed(sides) if is_transposed else sides
        position = _positions("x", columns, has_gaps) | _positions("y", rows, has_gaps)
        traces.append(
            {
                "type": "heatmap",
                "name": name,
                "xaxis": x,
                "yaxis": y,
                "z": cells,
                **position,
                **style,
            }
        )
        x_axis = {"range": _range(columns), "domain": [start, start + width], "anchor": y}
        y_axis = {"range": _range(rows)[::-1], "anchor": x}
        if index and launch.panels:
            x_axis["matches"] = "x"
            y_axis["matches"] = "y"
            down = ""
        axes |= {
            f"xaxis{ending}": _axis(columns, across) | x_axis,
            f"yaxis{ending}": _axis(rows, down) | y_axis,
        }
        corner = {"xref": f"{x} domain", "yref": f"{y} domain"}
        # The page adds to the name of the output whether a run's tiles are right.
        named = {"name": "output"} if index == (0 if launch.panels else len(maps) - 1) else {}
        title = {"text": name, **corner, "x": 0.5, "y": 1, "yanchor": "bottom", "yshift": 4}
        notes.append(title if launch.panels else title | named)
        if launch.panels:
            left, top = (f"<b>{tensor}</b>" for tensor in launch.panels)
            # In a split-K launch, the numbers of a step count slices.
            numbered = ": pid per tile" if is_numbered and launch.slices == 1 else ""
            below = {"xanchor": "right", "yanchor": "top", "yshift": -18}
            notes += [
                {
                    "text": left,
                    "xref": x,
                    "x": np.mean(grid.across.along_k),
                    "yref": y,
                    "y": 0,
                    "yanchor": "bottom",
                },
                {
                    "text": top,
                    "xref": x,
                    "x": 0,
                    "xanchor": "right",
                    "yref": y,
                    "y": np.mean(grid.down.along_k),
                },
                {"text": f"<b>{output}</b>{numbered}", **corner, "x": 1, "y": 0, **below, **named},
            ]
    shades = len(theme.CATEGORIES)
    scale = theme.discrete_scale(theme.CATEGORIES)
    colors = {"cmin": -0.5, "cmax": shades - 0.5, "colorscale": scale, "showscale": False}
    if count := {"order": launch.programs, "sm": launch.sms}.get(color):
        colors |= {"cmin": 0, "cmax": max(count - 1, 1), "colorscale": theme.SEQUENCE}
    notes = [{"showarrow": False, **note} for note in notes]
    margin = {"l": 4, "r": 4, "t": 28, "b": 4}
    return {
        "data": traces,
        "layout": theme.layout("", margin=margin, annotations=notes, coloraxis=colors, **axes),
    }


def _cell_values(order: Order, grid: MapGrid, color: str) -> np.ma.MaskedArray:
    """Return the values to colour, masked in the corner and the gaps."""
    launch = order.schedule
    stride = grid.down.stride
    down = grid.down
    across = grid.across
    program = launch.tiles.program
    shades = len(theme.CATEGORIES)
    by_entry = {"order": program, "sm": program % launch.sms, "group": launch.tiles.group % shades}
    values = theme.smallest(by_entry[color] if color in by_entry else launch.step % shades)
    rows, columns = first_reads(order.steps)
    cells = np.ma.masked_all(
        (down.lead + down.cells, across.lead + across.cells), dtype=values.dtype
    )
    cells[down.lead :, across.lead :] = values[launch.entry.min(axis=0)[::stride, ::stride]]
    a = values[rows[::stride, grid.slice_of]]
    b = values[columns[grid.slice_of, ::stride]]
    cells[down.lead :, : across.lead - across.gap] = np.repeat(a, across.repeat, axis=1)
    cells[: down.lead - down.gap, across.lead :] = np.repeat(b, down.repeat, axis=0)
    return cells


def _positions(letter: str, side: MapSide, has_gaps: bool) -> dict[str, Any]:
    if has_gaps:
        return {letter: side.edges}
    return {f"{letter}0": float(side.edges[:2].mean()), f"d{letter}": side.stride}


def _range(side: MapSide) -> np.ndarray:
    """Leave room for an outline at the far edge, which Plotly would clip."""
    first, last = side.edges[[0, -1]]
    return np.array([first, last + 0.004 * (last - first)])


def _axis(side: MapSide, title: str) -> dict[str, Any]:
    """Number up to ten tiles, at their middles."""
    step = 1
    while side.tiles > 9 * step:
        step *= 2
    numbers = range(0, side.tiles, step)
    ticks = {
        "tickvals": [number + 0.5 for number in numbers],
        "ticktext": [*map(str, numbers)],
        "tickangle": 0,
    }
    return {**ticks, "ticks": "", "automargin": True, "title": {"text": title, "standoff": 4}}


def player_data(
    orders: Sequence[Order], color: str, step: int, first: int, bound: int
) -> dict[str, Any]:
    """Return the data from which `script.js` draws any step over `map_figure`.

    It holds every tile of each order, so that a cell that represents several tiles is exact in every step.

    Args:
        step: the initial step, from 1; 0 for the whole launch.
        first: number of programs to outline; 0 for none.
        bound: the step at which playback pauses; 0 for the last one.
    """
    launch = orders[0].schedule
    own = orders[0].steps
    read = None
    handles: dict[str, Any] = {}
    if isinstance(launch, KernelSchedule):
        read = panels(launch)
        handles = _handles(launch)
    tensors = launch.transposed
    grid = map_grid(launch)
    tiles = len(own.timed.place)
    by_step: list[dict[str, Any]] = [{}]
    l2 = None
    if read:
        known = [
            _known_loads(order, read, first or tiles, order is not orders[0]) for order in orders
        ]
        by_step = [
            _loads_by_step(order, loads, read.total_bytes) | {"outline": _outline(order, first)}
            for order, loads in zip(orders, known, strict=True)
        ]
        l2 = _l2(launch, read, known[0].is_small)
    sides = [str(handles[name]["value"]) for name in ("BLOCK_M", "BLOCK_N") if name in handles]
    compared = count_noun(first or tiles, orders[0].unit)
    whole = f"the first {compared}" if first else f"all {compared}"
    return {
        "step": step,
        "first": first,
        "bound": bound,
        "color": color,
        "orders": [
            _tiles_by_step(order) | loads for order, loads in zip(orders, by_step, strict=False)
        ],
        **select_fields(launch, "extents", "panels"),
        "tensors": list(tensors),
        "transposed": list(tensors.values()),
        "slices": launch.slices,
        "handles": handles,
        "size": f", {' × '.join(sides)} elements of {list(tensors)[-1]}" if len(sides) == 2 else "",
        "sliced": [f"It computes only the first of the tile’s {launch.slices} slices of K."]
        if launch.slices > 1
        else [],
        "name": own.name,
        "unit": orders[0].unit,
        "whole": whole if tiles > 1 else f"the only {orders[0].unit}",
        "resident": launch.resident_programs,
        "grid": asdict(grid),
        "depths": slice_blocks(launch),
        "l2": l2,
    }


def _handles(launch: KernelSchedule) -> dict[str, Any]:
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


def _l2(launch: Schedule, read: Panels, is_small: bool) -> dict[str, Any]:
    """Return what the page says about the L2 beside `_loads_by_step`: the full bar's bytes, in words, too, and copies.

    Args:
        is_small: whether all copies of the inputs fit.
    """
    gpu = launch.gpu
    inputs = read.total_bytes
    assumed = " One program per SM is assumed." if launch.resident_source == "assumed" else ""
    return {
        "inputs": inputs,
        "bar": inputs if is_small else gpu.l2_bytes,
        "whole": f"{join_names(launch.panels or ())}, {bytes_of(inputs)}"
        if is_small
        else f"the {gpu.name}’s {bytes_of(gpu.l2_bytes)}",
        "about": f"Both halves of the L2 ({bytes_of(gpu.l2_bytes)}) keep copies.{assumed}",
    }


def _outline(order: Order, first: int) -> str:
    """Return the edge around the tiles of the first programs as a path.

    It has one line per straight stretch: Plotly parses a path number by number, again in each drawing.
    """
    if not first:
        return ""
    timed = order.steps.timed
    _, rows, columns = np.unravel_index(timed.place[:first], timed.entry.shape)
    top = rows.min()
    left = columns.min()
    inside = np.zeros((np.ptp(rows) + 3, np.ptp(columns) + 3), np.int8)
    inside[rows - top + 1, columns - left + 1] = 1
    path = ""
    sides = (inside, left, top, "M{0},{1}L{0},{2}"), (inside.T, top, left, "M{1},{0}L{2},{0}")
    for part, across, along, line in sides:
        edge = np.diff(part, axis=1)[1:-1].T != 0
        ends = np.diff(edge.astype(np.int8), prepend=0, append=0)
        (at, start), (_, end) = np.nonzero(ends > 0), np.nonzero(ends < 0)
        path += "".join(map(line.format, at + across, start + along, end + along))
    return path


def _tiles_by_step(order: Order) -> dict[str, Any]:
    """Return an order's tiles (slice, pid_m and pid_n as one number), without the arrays that equal their defaults.

    By default, tiles are in their own order, a step has one tile, and a tile is its own program.
    """
    steps = order.steps
    timed = order.steps.timed
    data: dict[str, Any] = {"title": order.name, "count": len(steps.tiles)}
    if not np.array_equal(timed.place, np.arange(len(timed.place))):
        data["places"] = theme.smallest(timed.place)
    if len(steps.tiles) != len(timed.place):
        data["ends"] = np.cumsum([0, *steps.tiles])
    if order.schedule.turns > 1:
        data["programs"] = theme.smallest(order.schedule.tiles.program[steps.entries])
    return data


def _known_loads(order: Order, read: Panels, first: int, is_row_major: bool) -> StepLoads:
    """Return the blocks of each step, and the L2 after it."""
    schedule = order.schedule
    assert isinstance(schedule, KernelSchedule), "only our kernels declare panels"
    launch = schedule.launch
    if is_row_major and hasattr(launch.config, "GROUP_SIZE"):
        launch = replace(launch, config=replace(launch.config, GROUP_SIZE=1))  # changes nothing
    resident = schedule.resident_programs
    key = (schedule.kernel.id, launch, resident, order.steps.name, first, is_row_major)
    known = _LOADS.get(key)
    if known is None:
        written = bytes_per_tile(schedule.kernel, launch)
        known = step_loads(schedule, order.steps, read, written, first)
        _LOADS.put(key, known)
    return known


def _loads_by_step(order: Order, known: StepLoads, input_bytes: int) -> dict[str, Any]:
    """Return known loads for the page. Bytes are in thousandths of the inputs, and so deflate."""
    steps = order.steps
    unit = input_bytes / 1000
    l2 = {
        "requested": known.requested,
        "hits": np.rint(known.hits).astype(int),
        "fetched": np.rint(known.fetched / unit).astype(int),
        "evicted": np.rint(known.evicted / unit).astype(int),
        "held": np.rint(known.held / unit).astype(int),
    }
    if len(known.blocks) != len(known.requested):
        l2["ends"] = known.ends
    details = []
    if not steps.is_single:
        slots = count_noun(steps.slots, order.unit)
        places = 1 + np.searchsorted(known.ends, np.cumsum(steps.tiles))
        read_bytes = known.part_bytes[places].tolist()
        sizes = {each: f"{significant(each / 2**20)} MiB" for each in set(read_bytes)}
        for tiles, each in zip(steps.tiles, read_bytes, strict=True):
            busy = slots if tiles == steps.slots else f"{tiles:,} of {slots}"
            details.append(f": {busy}, {sizes[each]}")
    return {"blocks": known.blocks, "l2": l2, "details": details}
