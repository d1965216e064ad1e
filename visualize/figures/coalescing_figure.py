"""The tile, element by element: by warp request, warp, lane or register."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from visualize.predict.traffic import SECTOR_BYTES, Tile
from visualize.views import theme

# What the colour of an element can show.
COLORS = ("request", "warp", "lane", "register")

# Elements of a tile drawn along each side at most.
MOST_ROWS, MOST_COLUMNS = 64, 128
# Cells along each side that have room for a number.
NUMBERED = 16


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
