"""The Memory view's figures: a request as flow from lanes to bytes, the tile, and the shape cliff."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go

from visualize.predict.request_lines import ABSENT, WANTED, WASTED, RequestLines
from visualize.predict.traffic import SECTOR_BYTES, Requests, Tile
from visualize.views import theme

_MOST_TICKS = 9
# Up to these numbers of cells and rows, there are gaps between cells.
_SEPARATE_CELLS, _SEPARATE_ROWS = 64, 16

# Points of the line from a lane to its bytes, and where lanes stand, left of a line of length 1.
_POINTS, _LANES_AT = 21, -0.45
# A request on fewer lines has untouched lines below it, so that a single line is not as high as the picture.
_FEWEST_ROWS = 4

# A border between sectors.
_BORDER = {"type": "line", "yref": "y", "line": {"color": theme.BORDER, "width": 1, "dash": "dot"}}

# Choices of what the colour of a tile's element shows.
COLORS = ("request", "warp", "lane", "register")
# A tile is truncated to this size, and has numbers if no side is longer than _NUMBERED_SIDE.
_MOST_ROWS, _MOST_COLUMNS, _NUMBERED_SIDE = 64, 128, 16


def flow_figure(
    requests: RequestLines, lanes: Requests, place: int, name: str, holder: str = "lane", tensor: str = ""
) -> go.Figure:
    """Draw one request as flow: its lanes on the left, and a line from each lane to the bytes that it accesses.

    The traces are the bytes, the lines and the lanes. A line of memory runs from x = 0 to 1, and the rows fill y = 0 to
    1. Each lane has the same number of points, so that two requests of as many lanes can be interpolated.

    Args:
        requests, lanes: the same requests, laid out on lines and lane by lane.
        place: index into `requests`.
        name: the first line of the title, with {} for the request's number.
        holder: "lane"; otherwise the name of the 16-byte pieces of a box. One node, the TMA, then replaces the lanes.
    """
    requests = _crop(requests)
    rows, line_bytes = requests.rows, requests.line_bytes
    start, targets = flow_lines(requests, lanes, holder)
    target = targets[place].astype(np.int64)
    row, cell = np.divmod(target - 1, requests.cells)
    text = [str(lane) if lane % 4 == 0 else "" for lane in range(len(target))]
    color = [theme.WANTED if reached else theme.TO_COME for reached in target.tolist()]
    if holder != "lane":
        text, color = ["TMA"], [theme.WANTED]
    # Lines to the same row end below each other, in the order of their lanes.
    same_row = row[:, None] == row
    end = (row + (np.tril(same_row, -1).sum(axis=1) + 0.5) / same_row.sum(axis=1)) / rows
    along = np.linspace(0, 1, _POINTS)
    x = np.linspace(_LANES_AT, cell / requests.cells, _POINTS, axis=1)
    y = start[:, None] + (end - start)[:, None] * (3 - 2 * along) * along**2
    x[target == 0] = np.nan  # an inactive lane, or a line without a row
    x, y = (np.pad(values, ((0, 0), (0, 1)), constant_values=np.nan).ravel() for values in (x, y))
    sectors = np.arange(0, line_bytes + 1, requests.sector_bytes)
    ticks = np.arange(0, rows, -(-rows // _MOST_TICKS))
    longest = int(requests.lines.max())
    across = f"first {rows} of {longest:,} lines" if longest > rows else "byte within the line"
    layout = theme.layout(
        request_title(requests, place, name),
        margin={"l": 40, "r": 72, "t": 60, "b": 44},
        xaxis={
            "title": {"text": across},
            "range": [_LANES_AT - 0.03, 1],
            "tickvals": [_LANES_AT, *(sectors / line_bytes).tolist()],
            "ticktext": ["lanes" if holder == "lane" else "", *sectors.tolist()],
            "tickangle": 0,
        },
        yaxis={
            "title": {"text": f"address in {tensor}, bytes"},
            "range": [1, 0],
            "side": "right",
            "tickvals": ((ticks + 0.5) / rows).tolist(),
            "ticktext": [
                f"{line * line_bytes:,}" if line >= 0 else "" for line in requests.line[place, ticks].tolist()
            ],
            "automargin": True,
        },
        shapes=[{**_BORDER, "y0": 0, "y1": 1, "x0": at, "x1": at} for at in (sectors / line_bytes).tolist()],
    )
    # Plotly would lift the second line of the title above the title's place.
    layout["title"] |= {"y": 1, "yref": "container", "pad": {"t": 26}}
    return go.Figure(
        [
            go.Heatmap(
                z=requests.state[place],
                x0=0.5 / requests.cells,
                dx=1 / requests.cells,
                y0=0.5 / rows,
                dy=1 / rows,
                zmin=ABSENT,
                zmax=WANTED,
                colorscale=theme.discrete_scale((theme.NOTHING, theme.TO_COME, theme.WASTED, theme.WANTED)),
                showscale=False,
                xgap=1 if requests.cells <= _SEPARATE_CELLS else 0,
                ygap=2 if rows <= _SEPARATE_ROWS else 1,
                hoverinfo="skip",  # the script writes the hover text
            ),
            go.Scatter(
                x=x,
                y=y,
                mode="lines",
                line={"color": theme.BORDER, "width": 1.2, "simplify": False},
                hoverinfo="skip",
            ),
            go.Scatter(
                x=np.full(len(text), _LANES_AT),
                y=start[: len(text)],
                mode="markers+text",
                marker={"symbol": "square", "size": 9, "color": color},
                text=text,
                textposition="middle left",
                hoverinfo="skip",
                cliponaxis=False,
            ),
        ],
        layout,
    )


def _crop(requests: RequestLines) -> RequestLines:
    """Leave out the untouched lines below the last line that any of the requests touches."""
    touched = np.flatnonzero((requests.state >= WASTED).any(axis=(0, 2)))
    rows = max(_FEWEST_ROWS, int(touched.max(initial=0)) + 1)
    parts = {name: getattr(requests, name)[:, :rows] for name in ("line", "state", "lane")}
    return replace(requests, **parts)


def flow_lines(requests: RequestLines, lanes: Requests, holder: str = "lane") -> tuple[np.ndarray, np.ndarray]:
    """Return the heights at which lines start, and the cell that each line of each request reaches.

    There is a line per lane. A box has a line from one node to the first byte of each row.

    Args:
        lanes: the requests that `requests` lays out, by their numbers.

    Returns:
        (lines,) float, 0 to 1 from the top; (requests, lines) integers, 1 + row × cells + cell. The cell is 0 for an
        inactive lane, and on a line of memory without a row.
    """
    if holder != "lane":
        used = requests.state == WANTED
        target = 1 + np.arange(requests.rows) * requests.cells + used.argmax(axis=2)
        return np.full(requests.rows, 0.5), theme.smallest(np.where(used.any(axis=2), target, 0))
    address, active = lanes.address[requests.number], lanes.active[requests.number]
    line, byte = np.divmod(address, requests.line_bytes)
    at_line = (requests.line[:, None, :] == line[:, :, None]) & active[:, :, None]
    target = 1 + at_line.argmax(axis=2) * requests.cells + byte // requests.cell_bytes
    count = address.shape[1]
    return (np.arange(count) + 0.5) / count, theme.smallest(np.where(at_line.any(axis=2), target, 0))


def request_title(requests: RequestLines, place: int, name: str) -> str:
    """Return a title of two lines: the request, counted from 1, and the bytes of its sectors that are used."""
    sectors, used = int(requests.sectors[place]), int(requests.wanted_bytes[place])
    name = name.format(f"{requests.number[place] + 1:,}")
    if not sectors:
        return f"<b>{name}</b><br>not issued: no lane is active"
    moved = sectors * requests.sector_bytes
    share = f"all {moved:,}" if used == moved else f"{used:,} of {moved:,}"
    return f"<b>{name}</b><br>{sectors:,} {'sector' if sectors == 1 else 'sectors'}: {share} bytes used"


def request_frames(
    requests: RequestLines, lanes: Requests, name: str, place: int, total: int, holder: str = "lane"
) -> dict[str, Any]:
    """Return the figure's `meta`: all requests, so that the browser can draw each without asking the server.

    Args:
        requests, lanes, name, place, holder: as of `flow_figure`.
        total: number of requests of the execution.
    """
    requests, count = _crop(requests), len(requests.number)
    start, targets = flow_lines(requests, lanes, holder)
    return {
        "requests": {
            "place": place,
            "first": int(requests.number[0]),
            "total": total,
            "rows": requests.rows,
            "holder": holder,
            "state": requests.state.reshape(count, -1),
            # 0 is no lane, and no line.
            "lane": theme.smallest(requests.lane.reshape(count, -1) + 1),
            "line": theme.smallest(requests.line + 1),
            "start": start,
            "target": targets,
            "titles": [request_title(requests, number, name) for number in range(count)],
            "line_bytes": requests.line_bytes,
            "sector_bytes": requests.sector_bytes,
            "cell_bytes": requests.cell_bytes,
            "element_bytes": lanes.matrix.element_bytes,
            "columns": lanes.matrix.columns,
        }
    }


def tile_figure(tile: Tile, tensor: str, color: str, sector_bytes: int = SECTOR_BYTES) -> go.Figure:
    """Draw each element of a tile in the colour of its request, warp, lane or register; colours repeat every eight.

    Args:
        tile: one execution of an operation.
        tensor: the name of the tensor that it addresses.
        color: one of COLORS.
    """
    first = int(tile.row.min()), int(tile.column.min())
    row, column = tile.row - first[0], tile.column - first[1]
    whole = int(row.max()) + 1, int(column.max()) + 1
    shape = min(whole[0], _MOST_ROWS), min(whole[1], _MOST_COLUMNS)
    visible = (row < shape[0]) & (column < shape[1])
    hover, shade = np.zeros((*shape, 7), dtype=np.int64), np.full(shape, np.nan, dtype=np.float32)
    chosen = getattr(tile, color)
    parts = (chosen, tile.request, tile.warp, tile.lane, tile.register, tile.address, tile.address // sector_bytes)
    hover[row[visible], column[visible]] = np.stack(parts, axis=1)[visible]
    inside = visible & tile.active
    shade[row[inside], column[inside]] = chosen[inside] % len(theme.CATEGORIES)
    is_numbered, gap = max(shape) <= _NUMBERED_SIDE, 1 if max(shape) <= 64 else 0
    picture = go.Heatmap(
        z=shade,
        x0=first[1],
        y0=first[0],
        customdata=theme.smallest(hover),
        text=hover[..., 0] if is_numbered else None,
        texttemplate="%{text}" if is_numbered else None,
        zmin=0,
        zmax=len(theme.CATEGORIES),
        colorscale=theme.category_scale(len(theme.CATEGORIES)),
        showscale=False,
        xgap=gap,
        ygap=gap,
        hoverongaps=False,
        hovertemplate=(
            "row %{y}, column %{x}<br>request %{customdata[1]}<br>"
            "warp %{customdata[2]}, lane %{customdata[3]}, register %{customdata[4]}<br>"
            "byte %{customdata[5]}, sector %{customdata[6]}<extra></extra>"
        ),
    )
    truncated = "" if shape == whole else f", the first {shape[0]} × {shape[1]} of {whole[0]} × {whole[1]}"
    axes = theme.matrix_axes(f"row of {tensor}", f"column of {tensor}", first, shape)
    return go.Figure(picture, theme.layout(f"Tile of {tensor} by {color}{truncated}", **axes))


def cliff_figure(
    sizes: Sequence[int], requests: Sequence[int], sectors: Sequence[int], known: Sequence[str], name: str
) -> go.Figure:
    """Draw requests and sectors of the launch over the sizes of one dimension.

    Args:
        known: `describe_size` of each size, for the hover.
        name: the dimension's name.
    """
    lines = [
        go.Scatter(
            x=list(sizes),
            y=list(values),
            name=label,
            mode="lines+markers",
            line={"color": color, "shape": "hvh"},
            customdata=list(known),
            hovertemplate=f"{name} %{{x}}: %{{y:,}} {label}<br>%{{customdata}}<extra></extra>",
        )
        for label, values, color in zip(("requests", "sectors"), (requests, sectors), theme.CATEGORIES, strict=False)
    ]
    return go.Figure(
        lines,
        theme.layout(
            f"Requests and sectors of the launch by {name}",
            showlegend=True,
            legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
            margin={"l": 80, "r": 10, "t": 60, "b": 48},
            xaxis={"title": {"text": name}, "tickformat": "d"},
            yaxis={"title": {"text": "over the launch"}, "rangemode": "tozero"},
        ),
    )
