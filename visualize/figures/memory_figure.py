"""Requests drawn on memory: a row for each line that one touches, in sectors; wanted bytes, and bytes moved for nothing.

One figure shows one request. With it goes what the others look like, so that the browser steps through them by itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from visualize.figures import theme
from visualize.models.request_lines import UNTOUCHED, WANTED, WASTED, RequestLines

# Lines of a request that are drawn at most, and lines that the picture has room for at least.
MOST_LINES = 64
FEWEST_LINES = 8
# Labels of lanes have room for: so many beside each other, so many below each other.
_LABELS_ACROSS, _LABELS_DOWN = 9, 18
# Ticks beside the lines at most.
_TICKS = 9
# Cells of a line beyond which they are drawn without a gap.
_SEPARATE_CELLS = 64


def memory_figure(
    drawn: RequestLines, place: int, name: str, who: str = "lane", tensor: str = "", rows: int = 0
) -> go.Figure:
    """One request on the lines that it touches.

    Args:
        place: which of the `drawn` requests.
        name: what stands above it, with {} for the request's number.
        who: "lane", or what stands for lanes in a box that is copied without any.
        tensor: the name of the tensor.
        rows: lines that there is room for; 0 for as many as any of the requests has.
    """
    room = max(rows or drawn.rows, FEWEST_LINES)
    labels = labels_of(drawn)[place]
    ticks = np.arange(0, drawn.rows, -(-drawn.rows // _TICKS))
    picture = go.Heatmap(
        z=drawn.state[place],
        x0=drawn.cell_bytes / 2,
        dx=drawn.cell_bytes,
        text=np.where(labels > 0, (labels.astype(np.int64) - 1).astype(str), ""),
        texttemplate="%{text}",
        zmin=UNTOUCHED,
        zmax=WANTED,
        colorscale=theme.discrete((theme.TO_COME, theme.WASTED, theme.WANTED)),
        showscale=False,
        xgap=1 if drawn.cells <= _SEPARATE_CELLS else 0,
        ygap=2 if room <= MOST_LINES // 2 else 1,
        name=who,
        hoverinfo="skip",  # the scrubber writes what stands there
    )
    borders = [
        {
            "type": "line",
            "yref": "y",
            "x0": byte,
            "x1": byte,
            "y0": -0.5,
            "y1": room - 0.5,
            "line": {"color": theme.BORDER, "width": 1, "dash": "dot"},
        }
        for byte in range(0, drawn.line_bytes + 1, drawn.sector_bytes)
    ]
    return go.Figure(
        picture,
        theme.layout(
            title_of(drawn, place, name),
            margin={"l": 62, "r": 8, "t": 52, "b": 44},
            xaxis={
                "title": {"text": "byte of the line"},
                "range": [0, drawn.line_bytes],
                "tickvals": list(range(0, drawn.line_bytes + 1, drawn.sector_bytes)),
                "tickangle": 0,
            },
            yaxis={
                "title": {"text": f"byte of {tensor} where the line begins"},
                "range": [room - 0.5, -0.5],
                "tickvals": ticks,
                "ticktext": [_byte(drawn, place, int(row)) for row in ticks],
                "automargin": True,
            },
            shapes=borders,
        ),
    )


def title_of(drawn: RequestLines, place: int, name: str) -> str:
    """Two lines: what is drawn, and what it costs."""
    sectors, wanted = int(drawn.sectors[place]), int(drawn.wanted_bytes[place])
    name = name.format(f"{drawn.number[place]:,}")
    if not sectors:
        return f"<b>{name}</b><br>not issued: no lane is active"
    truncated = ", first 64 lines drawn" if drawn.lines[place] > drawn.rows else ""
    units = "sector" if sectors == 1 else "sectors"
    return (
        f"<b>{name}</b><br>{sectors:,} {units}: {wanted:,} of {sectors * drawn.sector_bytes:,} bytes wanted{truncated}"
    )


def labels_of(drawn: RequestLines) -> np.ndarray:
    """(requests, rows, cells) integers: 1 + the lane whose number stands on a cell, 0 where none does.

    Where there is no room for all numbers, every second, fourth, … is written, counted from the first wanted cell.
    """
    wanted = drawn.lane >= 0
    across, down = _stride(drawn.cells, _LABELS_ACROSS), _stride(max(drawn.rows, FEWEST_LINES), _LABELS_DOWN)
    first = wanted.argmax(axis=2)[:, :, None]
    shown = wanted & ((np.arange(drawn.cells) - first) % across == 0) & (np.arange(drawn.rows)[:, None] % down == 0)
    return theme.smallest(np.where(shown, drawn.lane + 1, 0))


def _stride(count: int, room: int) -> int:
    """The smallest power of two of which no more than `room` fit in `count`."""
    return 1 << max(0, -(-count // room) - 1).bit_length()


def _byte(drawn: RequestLines, place: int, row: int) -> str:
    line = int(drawn.line[place, row])
    return f"{line * drawn.line_bytes:,}" if line >= 0 else ""


def frames(
    drawn: RequestLines, place: int, name: str, first: int, total: int, element_bytes: int, columns: int
) -> dict[str, Any]:
    """What the browser needs to draw any of the requests: the figure's `meta`.

    Args:
        name: as of the figure.
        first, total: what the slider calls the first of them, and how many it has in all.
        element_bytes, columns: of the tensor, to name the elements under the pointer.
    """
    count = len(drawn.number)
    return {
        "requests": {
            "place": place,
            "first": first,
            "total": total,
            "rows": drawn.rows,
            "state": drawn.state.reshape(count, -1),
            # From 1 on: 0 is nobody.
            "lane": theme.smallest(drawn.lane.reshape(count, -1) + 1),
            "label": labels_of(drawn).reshape(count, -1),
            # Likewise: 0 is no line.
            "line": theme.smallest(drawn.line + 1),
            "titles": [title_of(drawn, one, name) for one in range(count)],
            "line_bytes": drawn.line_bytes,
            "sector_bytes": drawn.sector_bytes,
            "cell_bytes": drawn.cell_bytes,
            "element_bytes": element_bytes,
            "columns": columns,
        }
    }
