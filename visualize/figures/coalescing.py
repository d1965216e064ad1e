"""The tile by warp request, and one request's lanes on its lines and sectors."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from visualize.figures import theme
from visualize.models.coalescing import Requests, Textbook

# Elements of a tile drawn along each side at most, and lines of one request.
MOST_ROWS, MOST_COLUMNS = 64, 128
# Elements of a line that still have room for a lane's number, and lines that the picture has room for at least.
NUMBERED_ELEMENTS = 32
FEWEST_LINES = 8


def coalescing_figure(lanes: Requests, board: Textbook, request: int, tensor: str) -> go.Figure:
    """Left: the tile, each element in the colour of the request that moves it. Right: the lines that request `request` touches.

    Args:
        lanes: one execution of an operation.
        tensor: the name of the tensor that it addresses.
    """
    figure = go.Figure([_tile(lanes, board), _lines(lanes, board, request)])
    row, column = int(lanes.row.min()), int(lanes.column.min())
    rows, columns = np.ptp(lanes.row) + 1, np.ptp(lanes.column) + 1
    shown = min(rows, MOST_ROWS), min(columns, MOST_COLUMNS)
    cut = "" if shown == (rows, columns) else f", the first {shown[0]} × {shown[1]} of {rows} × {columns}"
    left, right = [0.0, 0.46], [0.58, 1.0]
    elements = board.line_bytes // lanes.width_bytes
    sector = board.sector_bytes // lanes.width_bytes
    figure.update_layout(
        template=None,
        height=430,
        margin={"l": 60, "r": 10, "t": 40, "b": 50},
        xaxis={
            "domain": left,
            "title": {"text": f"column of {tensor}"},
            "range": [column - 0.5, column + shown[1] - 0.5],
            "constrain": "domain",
        },
        yaxis={
            "title": {"text": f"row of {tensor}"},
            "range": [row + shown[0] - 0.5, row - 0.5],
            "constrain": "domain",
            **({"scaleanchor": "x"} if 1 / 4 <= shown[0] / shown[1] <= 4 else {}),
        },
        xaxis2={"domain": right, "title": {"text": "byte in the line"}, "range": [0, board.line_bytes], "dtick": board.sector_bytes},
        yaxis2={
            "anchor": "x2",
            "title": {"text": "first byte of the line"},
            "range": [max(_touched(lanes, board, request), FEWEST_LINES) - 0.5, -0.5],
            "type": "category",
        },
        annotations=[
            theme.heading(f"tile of {tensor} by request{cut}", x=sum(left) / 2),
            theme.heading(f"request {request}: lanes on lines of {board.line_bytes} bytes", x=sum(right) / 2),
        ],
        shapes=[
            {
                "type": "line",
                "xref": "x2",
                "yref": "y2 domain",
                "x0": place * lanes.width_bytes,
                "x1": place * lanes.width_bytes,
                "y0": 0,
                "y1": 1,
                "line": {"color": "#94a3b8", "width": 1, "dash": "dot"},
            }
            for place in range(sector, elements, sector)
        ]
        if sector
        else [],
    )
    return figure


def _touched(lanes: Requests, board: Textbook, request: int) -> int:
    """Lines that a request touches."""
    mine = (lanes.request == request) & lanes.active
    return len(np.unique(lanes.address[mine] // board.line_bytes))


def _tile(lanes: Requests, board: Textbook) -> go.Heatmap:
    row, column = lanes.row - lanes.row.min(), lanes.column - lanes.column.min()
    shape = int(row.max()) + 1, int(column.max()) + 1
    facts = np.zeros((*shape, 4), dtype=np.int64)
    lane = np.arange(len(row)) % board.warp_size
    facts[row, column] = np.stack([lanes.request, lane, lanes.address, lanes.address // board.sector_bytes], axis=1)
    shade = np.full(shape, np.nan, dtype=np.float32)
    active = lanes.active
    shade[row[active], column[active]] = lanes.request[active] % len(theme.CATEGORIES)
    facts, shade = facts[:MOST_ROWS, :MOST_COLUMNS], shade[:MOST_ROWS, :MOST_COLUMNS]
    small = shade.size <= 256
    return go.Heatmap(
        z=shade,
        x0=int(lanes.column.min()),
        y0=int(lanes.row.min()),
        customdata=theme.smallest(facts),
        text=facts[..., 0] if small else None,
        texttemplate="%{text}" if small else None,
        zmin=0,
        zmax=len(theme.CATEGORIES),
        colorscale=theme.repeated(len(theme.CATEGORIES)),
        showscale=False,
        xgap=1 if shade.size <= 4096 else 0,
        ygap=1 if shade.size <= 4096 else 0,
        hovertemplate=(
            "row %{y}, column %{x}<br>request %{customdata[0]}, lane %{customdata[1]}<br>"
            "byte %{customdata[2]}, sector %{customdata[3]}<extra></extra>"
        ),
    )


def _lines(lanes: Requests, board: Textbook, request: int) -> go.Heatmap:
    mine = (lanes.request == request) & lanes.active
    address = lanes.address[mine]
    lane = np.flatnonzero(mine) % board.warp_size
    touched, line = np.unique(address // board.line_bytes, return_inverse=True)
    elements = board.line_bytes // lanes.width_bytes
    place = address % board.line_bytes // lanes.width_bytes
    cells = np.full((len(touched), elements), np.nan, dtype=np.float32)
    cells[line, place] = lane
    sectors = np.full((len(touched), elements), -1, dtype=np.int64)
    sectors[:] = touched[:, None] * (board.line_bytes // board.sector_bytes) + (
        np.arange(elements) * lanes.width_bytes // board.sector_bytes
    )
    numbered = elements <= NUMBERED_ELEMENTS and len(touched) <= 32
    return go.Heatmap(
        z=cells,
        x0=lanes.width_bytes / 2,
        dx=lanes.width_bytes,
        y=[str(start * board.line_bytes) for start in touched],
        customdata=theme.smallest(sectors),
        zmin=0,
        zmax=board.warp_size - 1,
        colorscale=theme.SEQUENCE,
        colorbar={"title": {"text": "lane", "side": "top"}, "thickness": 12, "outlinewidth": 0},
        texttemplate="%{z}" if numbered else None,
        xgap=1,
        ygap=2,
        hovertemplate="lane %{z}, sector %{customdata}<extra></extra>",
        hoverongaps=False,
        xaxis="x2",
        yaxis="y2",
    )
