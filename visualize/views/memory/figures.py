"""The Memory view's figures: requests on memory, the launch's bytes by source, the tile, and the shape cliff."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go

from visualize.predict.agreement import Verdicts, compare_costs
from visualize.predict.request_lines import ABSENT, WANTED, WASTED, RequestLines
from visualize.predict.traffic import SECTOR_BYTES, Requests, Tile
from visualize.views import theme
from visualize.views.memory.text import used_bytes, used_share

MARGIN = {"l": 62, "r": 8, "t": 60, "b": 44}

# Beyond this number of lines, lanes have no numbers.
MOST_NUMBERED_LINES = 40
# Numbers that fit side by side on a line, and lines that are high enough for a number.
_LABELS_ACROSS, _LABELS_DOWN = 9, 18
# Unused cells that a number beside a lane's cell takes, without and with an arrow.
_ROOM_FOR_NUMBER, _ROOM_FOR_ARROW = 3, 6
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

_SIGNS = {"equal": " ✓", "at least": " ≥", "undercounted": " ✓", "different": " ≠"}


def memory_figure(
    requests: RequestLines, place: int, name: str, holder: str = "lane", tensor: str = "", rows: int = 0
) -> go.Figure:
    """Draw one request on the lines that it touches: a row per line, used and wasted bytes.

    Args:
        place: index into `requests`.
        name: the first line of the title, with {} for the request's number.
        holder: "lane", or the name of a piece of a box, which no lane issues.
        rows: room for this number of lines; 0 for the lines of the longest request.
    """
    room = max(rows, requests.rows)
    ticks = np.arange(0, requests.rows, -(-room // _MOST_TICKS))
    sectors = list(range(0, requests.line_bytes + 1, requests.sector_bytes))
    picture = _byte_heatmap(
        requests,
        place,
        x0=requests.cell_bytes / 2,
        dx=requests.cell_bytes,
        text=np.vectorize(_label_text, otypes=[object])(lane_labels(requests)[place]),
        texttemplate="%{text}",
        ygap=2 if room <= _SEPARATE_ROWS else 1,
        name=holder,
    )
    layout = _two_line_layout(
        request_title(requests, place, name),
        xaxis={
            "title": {"text": _across(requests)},
            "range": [0, requests.line_bytes],
            "tickvals": sectors,
            "tickangle": 0,
        },
        yaxis={
            "title": {"text": f"address in {tensor}, bytes"},
            "range": [room - 0.5, -0.5],
            "tickvals": ticks.tolist(),
            "ticktext": [_line_address(requests, place, row) for row in ticks.tolist()],
            "automargin": True,
        },
        shapes=[{**_BORDER, "y0": -0.5, "y1": room - 0.5, "x0": byte, "x1": byte} for byte in sectors],
    )
    return go.Figure(picture, layout)


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
    rows, is_box, line_bytes = requests.rows, holder != "lane", requests.line_bytes
    target = lane_targets(requests, lanes)[place].astype(np.int64)
    row, cell = np.divmod(target - 1, requests.cells)
    start = (np.arange(len(target)) + 0.5) / len(target)
    address = requests.line[place, row] * line_bytes + cell * requests.cell_bytes
    hover = [
        f"{holder} {lane}<br>bytes {first:,} to {first + requests.cell_bytes - 1:,}" if reached else f"{holder} {lane}"
        for lane, (first, reached) in enumerate(zip(address.tolist(), target.tolist(), strict=True))
    ]
    text = [str(lane) if lane % 4 == 0 else "" for lane in range(len(target))]
    color = [theme.WANTED if reached else theme.TO_COME for reached in target.tolist()]
    if is_box:  # one node, and one line to each row
        row, first = np.unique(row[target > 0], return_index=True)
        target, cell, start = target[target > 0][first], cell[target > 0][first], np.full(len(row), 0.5)
        hover, text, color = [f"copies {lanes.row.shape[1]:,} pieces of 16 bytes"], ["TMA"], [theme.WANTED]
    nodes = start[: len(text)]
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
    return go.Figure(
        [
            _byte_heatmap(
                requests,
                place,
                x0=0.5 / requests.cells,
                dx=1 / requests.cells,
                y0=0.5 / rows,
                dy=1 / rows,
                ygap=2 if rows <= _SEPARATE_ROWS else 1,
            ),
            go.Scatter(
                x=x,
                y=y,
                mode="lines",
                line={"color": theme.BORDER, "width": 1.2, "simplify": False},
                hoverinfo="skip",
            ),
            go.Scatter(
                x=np.full(len(nodes), _LANES_AT),
                y=nodes,
                mode="markers+text",
                marker={"symbol": "square", "size": 9, "color": color},
                text=text,
                textposition="middle left",
                hovertext=hover,
                hoverinfo="text",
                cliponaxis=False,
            ),
        ],
        _two_line_layout(
            request_title(requests, place, name),
            xaxis={
                "title": {"text": _across(requests)},
                "range": [_LANES_AT - 0.03, 1],
                "tickvals": [_LANES_AT, *(sectors / line_bytes).tolist()],
                "ticktext": ["" if is_box else "lanes", *sectors.tolist()],
                "tickangle": 0,
            },
            yaxis={
                "title": {"text": f"address in {tensor}, bytes"},
                "range": [1, 0],
                "side": "right",
                "tickvals": ((ticks + 0.5) / rows).tolist(),
                "ticktext": [_line_address(requests, place, line) for line in ticks.tolist()],
                "automargin": True,
            },
            margin={**MARGIN, "l": 40, "r": 62},
            shapes=[{**_BORDER, "y0": 0, "y1": 1, "x0": at, "x1": at} for at in (sectors / line_bytes).tolist()],
        ),
    )


def _byte_heatmap(requests: RequestLines, place: int, **more: Any) -> go.Heatmap:
    return go.Heatmap(
        z=requests.state[place],
        zmin=ABSENT,
        zmax=WANTED,
        colorscale=theme.discrete((theme.NOTHING, theme.TO_COME, theme.WASTED, theme.WANTED)),
        showscale=False,
        xgap=1 if requests.cells <= _SEPARATE_CELLS else 0,
        hoverinfo="skip",  # the scrubber writes the hover text
        **more,
    )


def _crop(requests: RequestLines) -> RequestLines:
    """Leave out the untouched lines below the last line that any of the requests touches."""
    touched = np.flatnonzero((requests.state >= WASTED).any(axis=(0, 2)))
    rows = max(_FEWEST_ROWS, int(touched.max(initial=0)) + 1)
    parts = {name: getattr(requests, name)[:, :rows] for name in ("line", "state", "lane")}
    return replace(requests, **parts)


def lane_targets(requests: RequestLines, lanes: Requests) -> np.ndarray:
    """Return the cell that each lane accesses: (requests, lanes), 1 + row × cells + cell.

    The value is 0 for an inactive lane, and on a line without a row.

    Args:
        lanes: the requests that `requests` lays out, by their numbers.
    """
    address, active = lanes.address[requests.number], lanes.active[requests.number]
    line, byte = np.divmod(address, requests.line_bytes)
    at_line = (requests.line[:, None, :] == line[:, :, None]) & active[:, :, None]
    target = 1 + at_line.argmax(axis=2) * requests.cells + byte // requests.cell_bytes
    return theme.smallest(np.where(at_line.any(axis=2), target, 0))


def _two_line_layout(title: str, **more: Any) -> dict[str, Any]:
    layout = theme.layout(title, **{"margin": MARGIN, **more})
    # Plotly would lift the second line above the title's place.
    return {**layout, "title": {**layout["title"], "y": 1, "yref": "container", "pad": {"t": 26}}}


def request_title(requests: RequestLines, place: int, name: str) -> str:
    """Return a title of two lines: the request, counted from 1, and the bytes of its sectors that are used."""
    sectors, used = int(requests.sectors[place]), int(requests.wanted_bytes[place])
    name = name.format(f"{requests.number[place] + 1:,}")
    if not sectors:
        return f"<b>{name}</b><br>not issued: no lane is active"
    moved = sectors * requests.sector_bytes
    share = f"all {moved:,}" if used == moved else f"{used:,} of {moved:,}"
    return f"<b>{name}</b><br>{sectors:,} {'sector' if sectors == 1 else 'sectors'}: {share} bytes used"


def lane_labels(requests: RequestLines) -> np.ndarray:
    """Return where lanes' numbers stand: (requests, rows, cells) integers, 0 for no number.

    Otherwise 1 + 3 × lane, + 1 if an arrow points left to the lane's cell, + 2 if it points right. A number stands
    beside a narrow cell if unused bytes leave room for it. If not all numbers fit, every second, fourth, … of a line is
    written, from the first used cell on. If lines are thinner than a number, it is on every fourth line, and on no line
    at the edge, which would clip it.
    """
    used, per_sector = requests.lane >= 0, requests.sector_bytes // requests.cell_bytes
    labels = np.zeros(used.shape, dtype=np.int64)
    if requests.rows > MOST_NUMBERED_LINES:
        return theme.smallest(labels)
    across = 1 << max(0, -(-requests.cells // _LABELS_ACROSS) - 1).bit_length()
    row_numbers = np.arange(requests.rows)
    if requests.rows > _LABELS_DOWN:
        row_numbers = np.arange(2, requests.rows - 1, 4)
    right = _unused_after(used, per_sector)
    left = _unused_after(used[:, :, ::-1], per_sector)[:, :, ::-1]
    # A lane without neighbours, in cells too narrow for a number.
    padded = np.pad(used, ((0, 0), (0, 0), (1, 1)))
    lonely = used & ~padded[:, :, :-2] & ~padded[:, :, 2:] & (across > 1)
    first = used.argmax(axis=2)[:, :, None]
    has_room = lonely & ((right >= _ROOM_FOR_NUMBER) | (left >= _ROOM_FOR_ARROW))
    numbered = used & (has_room | ((np.arange(requests.cells) - first) % across == 0))
    request, row, cell = np.nonzero(numbered & np.isin(np.arange(requests.rows), row_numbers)[:, None])
    after, before = (side[request, row, cell] * lonely[request, row, cell] for side in (right, left))
    arrow = np.where(after >= _ROOM_FOR_ARROW, 1, np.where((before >= _ROOM_FOR_ARROW) & (after == 0), 2, 0))
    offset = np.select(
        [arrow == 1, arrow == 2, after >= _ROOM_FOR_NUMBER], [(after + 2) // 2, -(before + 2) // 2, 2], 0
    )
    labels[request, row, cell + offset] = 1 + 3 * requests.lane[request, row, cell] + arrow
    return theme.smallest(labels)


def _unused_after(used: np.ndarray, per_sector: int) -> np.ndarray:
    """Count the cells to the right of each cell, in its sector, before the next used cell."""
    cells = used.reshape(*used.shape[:2], -1, per_sector)
    counts = np.zeros(cells.shape, dtype=np.int64)
    for place in range(per_sector - 2, -1, -1):
        counts[..., place] = np.where(cells[..., place + 1], 0, counts[..., place + 1] + 1)
    return counts.reshape(used.shape)


def _label_text(label: int) -> str:
    lane, arrow = divmod(label - 1, 3)
    return (f"{lane}", f"◂ {lane}", f"{lane} ▸")[arrow] if label else ""


def _across(requests: RequestLines) -> str:
    longest = int(requests.lines.max())
    return f"first {requests.rows} of {longest:,} lines" if longest > requests.rows else "byte within the line"


def _line_address(requests: RequestLines, place: int, row: int) -> str:
    line = int(requests.line[place, row])
    return f"{line * requests.line_bytes:,}" if line >= 0 else ""


def request_frames(
    requests: RequestLines,
    place: int,
    name: str,
    first: int,
    total: int,
    element_bytes: int,
    columns: int,
    lanes: Requests | None = None,
) -> dict[str, Any]:
    """Return the figure's `meta`: all requests, so that the browser can draw each without asking the server.

    Args:
        name: as of the figure.
        first, total: the scrubber's number of the first request, and of requests in all.
        element_bytes, columns: of the tensor, to name the elements under the pointer.
        lanes: the requests lane by lane, for a `flow_figure`: it carries each lane's target instead of labels.
    """
    requests, count = _crop(requests) if lanes else requests, len(requests.number)
    per_lane = {"target": lane_targets(requests, lanes)} if lanes else {"label": lane_labels(requests)}
    return {
        "requests": {
            "place": place,
            "first": first,
            "total": total,
            "rows": requests.rows,
            "state": requests.state.reshape(count, -1),
            # 0 is no lane, and no line.
            "lane": theme.smallest(requests.lane.reshape(count, -1) + 1),
            "line": theme.smallest(requests.line + 1),
            **{key: values.reshape(count, -1) for key, values in per_lane.items()},
            "titles": [request_title(requests, number, name) for number in range(count)],
            "line_bytes": requests.line_bytes,
            "sector_bytes": requests.sector_bytes,
            "cell_bytes": requests.cell_bytes,
            "element_bytes": element_bytes,
            "columns": columns,
        }
    }


def reason_figure(name: str, reason: str) -> go.Figure:
    """Return an empty figure that says why there are no requests."""
    note = {"text": reason, "x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper", "showarrow": False}
    axis = {"visible": False, "range": [0, 1]}
    return go.Figure(None, theme.layout(f"<b>{name}</b>", xaxis=axis, yaxis=axis, annotations=[note]))


def sectors_figure(found: Verdicts, number: int, missing: Mapping[str, str]) -> go.Figure:
    """Draw the bytes of all sectors that an operation touches, used and wasted, by source on one scale.

    Counters count sectors. The bytes that lanes use of the counted sectors are predicted.

    Args:
        number: index of the operation; its cost is added up as by `compare_costs`.
        missing: the reason for a source without a cost, by source.
    """
    tensors, costs = compare_costs(found, number)
    kind, notes = found.board[number].access.op, {"compiled": " (predicted)"}
    if counters := found.counters:
        other_code = found.compiled and not found.counted_is_compiled
        compiler = f", as Triton {counters.device.triton} compiled it" if other_code else ""
        recorded = "recorded, " if counters.backend == "recorded" else ""
        notes["counted"] = f" ({recorded}{counters.device.name}{compiler})"
    used, wasted, labels = [0, 0, 0], [0, 0, 0], []
    operations = {"textbook": found.board, "compiled": found.compiled, "counted": found.predicted}
    for row, (source, all_operations) in enumerate(operations.items()):
        if (cost := costs.get(source)) is None:
            labels.append(f"<b>{source}</b><br>{missing.get(source, '')}")
            continue
        moved, kinds = cost.sector_bytes * cost.sectors, [op.access.op for op in found.board]
        mine = [op for op in all_operations if op.access.tensor in tensors and kinds[op.number] == kind]
        used[row] = min(sum(map(used_bytes, mine)), moved)
        wasted[row] = moved - used[row]
        each = f"{cost.sectors / cost.requests:.3g}" if cost.requests else f"{cost.sectors:,}"
        requests = f"{cost.requests:,} × " if cost.requests else ""
        labels.append(
            f"<b>{source}</b>{_SIGNS.get(cost.agreement, '')}{notes.get(source, '')}<br>"
            f"{requests}{each} sector{'' if each == '1' else 's'}, {used_share(used[row], cost)} used"
        )
    place = {"x": 0, "xref": "paper", "xanchor": "left", "align": "left", "yanchor": "bottom", "showarrow": False}
    most = max(map(sum, zip(used, wasted, strict=True)))
    axis = {"range": [0, most or 1], "nticks": 4, "tickformat": "~s", "ticksuffix": "B", "tickangle": 0}
    return go.Figure(
        [
            go.Bar(
                x=values,
                y=[0, 1, 2],
                orientation="h",
                width=0.3,
                marker={"color": color},
                name=name,
                hovertemplate=f"%{{x:,}} bytes {name}<extra></extra>",
            )
            for name, values, color in (("used", used, theme.WANTED), ("wasted", wasted, theme.WASTED))
        ],
        _two_line_layout(
            f"<b>Whole launch</b><br>all requests for {' and '.join(tensors)}, × sectors of each",
            margin={**MARGIN, "l": 12, "r": 20},
            barmode="stack",
            xaxis={"title": {"text": "bytes in sectors"}, **axis},
            yaxis={"range": [2.3, -0.85], "visible": False},
            annotations=[{**place, "text": text, "y": row - 0.17} for row, text in enumerate(labels)],
        ),
    )


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
