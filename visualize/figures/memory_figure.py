"""Requests drawn on memory: a row for each line that one touches, in sectors; bytes wanted, and moved for nothing.

One figure shows one request. With it goes what the others look like, so that the browser steps through them by itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from visualize.predict.request_lines import ABSENT, WANTED, RequestLines
from visualize.views import theme

MARGIN = {"l": 62, "r": 8, "t": 60, "b": 44}

# Lines beyond which no numbers are written.
MOST_NUMBERED_LINES = 40
# Labels of lanes have room for: so many beside each other, so many below each other.
_LABELS_ACROSS, _LABELS_DOWN = 9, 18
# Cells that no lane wants that a number beside a lane's own cell takes, without and with an arrow.
_ROOM_FOR_NUMBER, _ROOM_FOR_ARROW = 3, 6
# Ticks beside the lines at most.
_TICKS = 9
# Cells and rows beyond which a figure has no gaps between its cells.
_SEPARATE_CELLS, _SEPARATE_ROWS = 64, 16


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
    room = max(rows, drawn.rows)
    most = int(drawn.lines.max())
    across = f"first {drawn.rows} of {most:,} lines" if most > drawn.rows else "byte within the line"
    labels = labels_of(drawn)[place]
    ticks = np.arange(0, drawn.rows, -(-room // _TICKS))
    picture = go.Heatmap(
        z=drawn.state[place],
        x0=drawn.cell_bytes / 2,
        dx=drawn.cell_bytes,
        text=np.vectorize(_text, otypes=[object])(labels),
        texttemplate="%{text}",
        zmin=ABSENT,
        zmax=WANTED,
        colorscale=theme.discrete((theme.NOTHING, theme.TO_COME, theme.WASTED, theme.WANTED)),
        showscale=False,
        xgap=1 if drawn.cells <= _SEPARATE_CELLS and room <= _SEPARATE_ROWS else 0,
        ygap=2 if room <= _SEPARATE_ROWS else 1,
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
        two_line_layout(
            title_of(drawn, place, name),
            xaxis={
                "title": {"text": across},
                "range": [0, drawn.line_bytes],
                "tickvals": list(range(0, drawn.line_bytes + 1, drawn.sector_bytes)),
                "tickangle": 0,
            },
            yaxis={
                "title": {"text": f"address in {tensor}, bytes"},
                "range": [room - 0.5, -0.5],
                "tickvals": ticks.tolist(),
                "ticktext": [_byte(drawn, place, int(row)) for row in ticks],
                "automargin": True,
            },
            shapes=borders,
        ),
    )


def two_line_layout(title: str, **more: Any) -> dict[str, Any]:
    """The layout of a figure whose title has two lines."""
    found = theme.layout(title, **{"margin": MARGIN, **more})
    # Plotly lifts a second line's room above the title's place.
    return {**found, "title": {**found["title"], "y": 1, "yref": "container", "pad": {"t": 26}}}


def title_of(drawn: RequestLines, place: int, name: str) -> str:
    """Two lines: what is drawn, and what it costs."""
    sectors, wanted = int(drawn.sectors[place]), int(drawn.wanted_bytes[place])
    # Numbers count from 0, as in the address; people count from 1.
    name = name.format(f"{drawn.number[place] + 1:,}")
    if not sectors:
        return f"<b>{name}</b><br>not issued: no lane is active"
    units, moved = "sector" if sectors == 1 else "sectors", sectors * drawn.sector_bytes
    of_all = "all" if wanted == moved else f"{wanted:,} of"
    return f"<b>{name}</b><br>{sectors:,} {units}: {of_all} {moved:,} bytes wanted"


def labels_of(drawn: RequestLines) -> np.ndarray:
    """(requests, rows, cells) integers: which lane's number stands on a cell; 0 where none does.

    1 + 3 × lane; + 1 where it points to the left, at the lane's own cell, + 2 where it points to the right. A number
    stands beside a narrow cell where bytes that no lane wants make room for it. Where there is no room for all numbers,
    every second, fourth, … is written, from the first wanted cell on.
    """
    wanted, per_sector = drawn.lane >= 0, drawn.sector_bytes // drawn.cell_bytes
    across, down = _stride(drawn.cells, _LABELS_ACROSS), _stride(drawn.rows, _LABELS_DOWN)
    labels = np.zeros(wanted.shape, dtype=np.int64)
    if drawn.rows > MOST_NUMBERED_LINES:
        return theme.smallest(labels)
    right = _unwanted_after(wanted, per_sector)
    left = _unwanted_after(wanted[:, :, ::-1], per_sector)[:, :, ::-1]
    # A lane without a neighbour, in cells too narrow for a number.
    beside_it = np.pad(wanted, ((0, 0), (0, 0), (1, 1)))
    lonely = wanted & ~beside_it[:, :, :-2] & ~beside_it[:, :, 2:] & (across > 1)
    first = wanted.argmax(axis=2)[:, :, None]
    sparse = lonely & ((right >= _ROOM_FOR_NUMBER) | (left >= _ROOM_FOR_ARROW))
    shown = wanted & (sparse | ((np.arange(drawn.cells) - first) % across == 0))
    request, row, cell = np.nonzero(shown & (np.arange(drawn.rows) % down == 0)[:, None])
    after, before = (side[request, row, cell] * lonely[request, row, cell] for side in (right, left))
    points = np.where(after >= _ROOM_FOR_ARROW, 1, np.where((before >= _ROOM_FOR_ARROW) & (after == 0), 2, 0))
    beside = np.select(
        [points == 1, points == 2, after >= _ROOM_FOR_NUMBER], [(after + 2) // 2, -(before + 2) // 2, 2], 0
    )
    labels[request, row, cell + beside] = 1 + 3 * drawn.lane[request, row, cell] + points
    return theme.smallest(labels)


def _unwanted_after(wanted: np.ndarray, per_sector: int) -> np.ndarray:
    """How many cells to the right of each, in the same sector, come before the next wanted one."""
    cells = wanted.reshape(*wanted.shape[:2], -1, per_sector)
    found = np.zeros(cells.shape, dtype=np.int64)
    for place in range(per_sector - 2, -1, -1):
        found[..., place] = np.where(cells[..., place + 1], 0, found[..., place + 1] + 1)
    return found.reshape(wanted.shape)


def _text(label: int) -> str:
    """What is written for a label."""
    if not label:
        return ""
    lane, beside = divmod(label - 1, 3)
    return (f"{lane}", f"◂ {lane}", f"{lane} ▸")[beside]


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


def nothing_figure(name: str, why: str) -> go.Figure:
    """A place where requests would be drawn, and why there are none."""
    note = {"text": why, "x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper", "showarrow": False}
    axis = {"visible": False, "range": [0, 1]}
    return go.Figure(None, theme.layout(f"<b>{name}</b>", xaxis=axis, yaxis=axis, annotations=[note]))
