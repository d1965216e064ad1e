"""The tile by warp request, and one request's lanes on its lines and sectors."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from visualize.figures import theme
from visualize.models.coalescing import Requests, Textbook

# Elements of a tile drawn along each side at most.
MOST_ROWS, MOST_COLUMNS = 64, 128
# Cells along each side that have room for a number, and lines that the picture of a request has room for at least.
NUMBERED = 16
NUMBERED_LANES = 32
FEWEST_LINES = 8


def tile_figure(lanes: Requests, board: Textbook, tensor: str) -> go.Figure:
    """The tile, each element in the colour of the request that moves it (colours repeat every eight).

    Args:
        lanes: one execution of an operation.
        tensor: the name of the tensor that it addresses.
    """
    first = int(lanes.row.min()), int(lanes.column.min())
    row, column = lanes.row - first[0], lanes.column - first[1]
    whole = int(row.max()) + 1, int(column.max()) + 1
    facts = np.zeros((*whole, 4), dtype=np.int64)
    lane = np.arange(len(row)) % board.warp_size
    facts[row, column] = np.stack([lanes.request, lane, lanes.address, lanes.address // board.sector_bytes], axis=1)
    shade = np.full(whole, np.nan, dtype=np.float32)
    active = lanes.active
    shade[row[active], column[active]] = lanes.request[active] % len(theme.CATEGORIES)
    facts, shade = facts[:MOST_ROWS, :MOST_COLUMNS], shade[:MOST_ROWS, :MOST_COLUMNS]
    shown = shade.shape[0], shade.shape[1]
    numbered = max(shown) <= NUMBERED
    gap = 1 if max(shown) <= 64 else 0
    picture = go.Heatmap(
        z=shade,
        x0=first[1],
        y0=first[0],
        customdata=theme.smallest(facts),
        text=facts[..., 0] if numbered else None,
        texttemplate="%{text}" if numbered else None,
        zmin=0,
        zmax=len(theme.CATEGORIES),
        colorscale=theme.repeated(len(theme.CATEGORIES)),
        showscale=False,
        xgap=gap,
        ygap=gap,
        hoverongaps=False,
        hovertemplate=(
            "row %{y}, column %{x}<br>request %{customdata[0]}, lane %{customdata[1]}<br>"
            "byte %{customdata[2]}, sector %{customdata[3]}<extra></extra>"
        ),
    )
    cut = "" if shown == whole else f", the first {shown[0]} × {shown[1]} of {whole[0]} × {whole[1]}"
    axes = theme.matrix_axes(f"row of {tensor}", f"column of {tensor}", first, shown)
    return go.Figure(picture, theme.layout(f"Tile of {tensor} by request{cut}", **axes))


def request_figure(lanes: Requests, board: Textbook, request: int) -> go.Figure:
    """The lines that request `request` touches, one a row, and which lane takes which bytes; sectors are dotted off."""
    mine = (lanes.request == request) & lanes.active
    address, width = lanes.address[mine], lanes.width_bytes
    touched, line = np.unique(address // board.line_bytes, return_inverse=True)
    elements = board.line_bytes // width
    cells = np.full((len(touched), elements), np.nan, dtype=np.float32)
    cells[line, address % board.line_bytes // width] = np.flatnonzero(mine) % board.warp_size
    in_line = np.arange(elements) * width // board.sector_bytes
    sectors = touched[:, None] * (board.line_bytes // board.sector_bytes) + in_line
    numbered = elements <= NUMBERED_LANES and len(touched) <= NUMBERED_LANES
    picture = go.Heatmap(
        z=cells,
        x0=width / 2,
        dx=width,
        y=[str(start * board.line_bytes) for start in touched],
        customdata=theme.smallest(sectors),
        zmin=0,
        zmax=board.warp_size - 1,
        colorscale=theme.SEQUENCE,
        showscale=not numbered,
        colorbar=theme.colorbar("lane", dtick=max(1, board.warp_size // 4), tick0=0),
        texttemplate="%{z}" if numbered else None,
        xgap=1,
        ygap=2,
        hovertemplate="lane %{z}, sector %{customdata}<extra></extra>",
        hoverongaps=False,
    )
    borders = [
        {
            "type": "line",
            "yref": "paper",
            "x0": byte,
            "x1": byte,
            "y0": 0,
            "y1": 1,
            "line": {"color": "#94a3b8", "width": 1, "dash": "dot"},
        }
        for byte in range(board.sector_bytes, board.line_bytes, board.sector_bytes)
    ]
    return go.Figure(
        picture,
        theme.layout(
            f"Request {request}: lanes on {len(touched)} × {board.line_bytes} bytes",
            margin={"l": 90, "r": 10, "t": 34, "b": 48},
            xaxis={
                "title": {"text": "byte in the line"},
                "range": [0, board.line_bytes],
                "dtick": max(board.sector_bytes // (1 if board.line_bytes > 64 else 4), 1),
                "tickangle": 0,
            },
            yaxis={
                "title": {"text": "first byte of the line"},
                "range": [max(len(touched), FEWEST_LINES) - 0.5, -0.5],
                "type": "category",
            },
            shapes=borders,
        ),
    )
