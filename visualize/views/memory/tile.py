"""The picture of a tile, element by element."""

import numpy as np
import plotly.graph_objects as go

from visualize.predict.traffic import SECTOR_BYTES, Tile
from visualize.views import theme

# Choices of what the colour of a tile's element shows.
COLORS = ("request", "warp", "lane", "register")
# A tile is truncated to this size, and has numbers if no side is longer than _NUMBERED_SIDE.
_MOST_ROWS, _MOST_COLUMNS, _NUMBERED_SIDE = 64, 128, 16


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
        customdata=hover,
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
