"""The tile by warp request, and one request's lanes on its lines and sectors."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from visualize.figures import theme
from visualize.models.traffic import LINE_BYTES, SECTOR_BYTES, Requests, Tile

# What the colour of an element can show.
COLORS = ("request", "warp", "lane", "register")

# Elements of a tile drawn along each side at most.
MOST_ROWS, MOST_COLUMNS = 64, 128
# Cells along each side that have room for a number, and lines that the picture of a request has room for at least.
NUMBERED = 16
NUMBERED_LANES = 32
FEWEST_LINES = 8


def tile_figure(tile: Tile, tensor: str, color: str, sector_bytes: int = SECTOR_BYTES) -> go.Figure:
    """The tile, each element in the colour of its request, warp, lane or register (colours repeat every eight).

    Args:
        tile: one execution of an operation.
        tensor: the name of the tensor that it addresses.
        color: one of COLORS.
    """
    first = int(tile.row.min()), int(tile.column.min())
    row, column = tile.row - first[0], tile.column - first[1]
    whole = int(row.max()) + 1, int(column.max()) + 1
    kept = (row < MOST_ROWS) & (column < MOST_COLUMNS)
    drawn = min(whole[0], MOST_ROWS), min(whole[1], MOST_COLUMNS)
    hover = np.zeros((*drawn, 7), dtype=np.int64)
    shade = np.full(drawn, np.nan, dtype=np.float32)
    chosen = getattr(tile, color)
    parts = (chosen, tile.request, tile.warp, tile.lane, tile.register, tile.address, tile.address // sector_bytes)
    hover[row[kept], column[kept]] = np.stack(parts, axis=1)[kept]
    shown_too = kept & tile.active
    shade[row[shown_too], column[shown_too]] = chosen[shown_too] % len(theme.CATEGORIES)
    shown = shade.shape[0], shade.shape[1]
    numbered = max(shown) <= NUMBERED
    gap = 1 if max(shown) <= 64 else 0
    picture = go.Heatmap(
        z=shade,
        x0=first[1],
        y0=first[0],
        customdata=theme.smallest(hover),
        text=hover[..., 0] if numbered else None,
        texttemplate="%{text}" if numbered else None,
        zmin=0,
        zmax=len(theme.CATEGORIES),
        colorscale=theme.repeated(len(theme.CATEGORIES)),
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
    truncated = "" if shown == whole else f", the first {shown[0]} × {shown[1]} of {whole[0]} × {whole[1]}"
    axes = theme.matrix_axes(f"row of {tensor}", f"column of {tensor}", first, shown)
    return go.Figure(picture, theme.layout(f"Tile of {tensor} by {color}{truncated}", **axes))


def request_figure(
    lanes: Requests,
    request: int,
    sector_bytes: int = SECTOR_BYTES,
    line_bytes: int = LINE_BYTES,
    who: str = "lane",
) -> go.Figure:
    """The lines that request `request` touches, one per row, and which lane takes which bytes; sectors are dotted off.

    Of several lanes that take the same bytes, the first is shown.

    Args:
        who: "lane", or what stands for lanes in a box that is copied without any.
    """
    mine, width = lanes.active[request], lanes.width_bytes
    address, lane = lanes.address[request][mine][::-1], np.flatnonzero(mine)[::-1]
    touched, line = np.unique(address // line_bytes, return_inverse=True)
    elements = line_bytes // width
    cells = np.full((len(touched), elements), np.nan, dtype=np.float32)
    cells[line, address % line_bytes // width] = lane
    in_line = np.arange(elements) * width // sector_bytes
    sectors = touched[:, None] * (line_bytes // sector_bytes) + in_line
    numbered = elements <= NUMBERED_LANES and len(touched) <= NUMBERED_LANES
    picture = go.Heatmap(
        z=cells,
        x0=width / 2,
        dx=width,
        y=[str(start * line_bytes) for start in touched],
        customdata=theme.smallest(sectors),
        zmin=0,
        zmax=lanes.row.shape[1] - 1,
        colorscale=theme.SEQUENCE,
        showscale=not numbered,
        colorbar=theme.colorbar(who, dtick=max(1, lanes.row.shape[1] // 4), tick0=0),
        texttemplate="%{z}" if numbered else None,
        xgap=1,
        ygap=2,
        hovertemplate=f"{who} %{{z}}, sector %{{customdata}}<extra></extra>",
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
        for byte in range(sector_bytes, line_bytes, sector_bytes)
    ]
    return go.Figure(
        picture,
        theme.layout(
            f"{_name(who, request)} on {len(touched)} × {line_bytes} bytes",
            margin={"l": 90, "r": 10, "t": 34, "b": 48},
            xaxis={
                "title": {"text": "byte in the line"},
                "range": [0, line_bytes],
                "dtick": max(sector_bytes // (1 if line_bytes > 64 else 4), 1),
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


def _name(who: str, request: int) -> str:
    return f"Request {request}: lanes" if who == "lane" else f"One box: each {who}"
