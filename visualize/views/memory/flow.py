"""The picture of one operation: a request as flow from lanes to bytes, on the lines of memory that it touches."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy import ndarray

from tilescope.declare.knobs import knob
from tilescope.evaluate.counts import OperationCounts
from tilescope.evaluate.declared import DeclaredCounts, Requests
from tilescope.numbers import count_noun
from tilescope.results import Counters
from visualize.predict.costs import LaunchCosts, Textbook, worst
from visualize.views import theme
from visualize.views.panel import select_fields
from visualize.views.slots import plot_value
from visualize.views.state import Snapshot
from visualize.views.theme import Figure

# State of a cell: past the tensor's end; in a sector that is not fetched; fetched, but accessed by no lane; accessed.
ABSENT, UNTOUCHED, WASTED, USED = range(4)
# Maximum number of rows per request.
MOST_LINES = 64

# Up to these numbers of cells and rows, there are gaps between cells.
_SEPARATE_CELLS = 64
_SEPARATE_ROWS = 16
_MOST_TICKS = 9
# A request on fewer lines has untouched lines below it, so that a single line is not as high as the picture.
_FEWEST_ROWS = 8
# Requests that are compared to find the most wasteful one.
_COMPARED = 256
# Where lanes stand, left of a line of memory from x = 0 to 1.
_LANES_AT = -0.45


@dataclass(frozen=True)
class LaneView:
    """The operation and request in the picture."""

    of_kernel: ClassVar[bool] = True

    operation: str = knob(
        "worst", "Picture", "A memory operation of the kernel. worst: the one that wastes the most sectors.",
        choices=("worst", *map(str, range(16))), label="Memory operation",
    )  # fmt: skip
    model: str = knob(
        "compiled", "", "compiled: lanes and widths the compiler chose. textbook: adjacent lanes, adjacent elements.",
        choices=("compiled", "textbook"), label="Requests",
    )  # fmt: skip
    request: int = knob(
        -1, "", "The warp request that is drawn; -1: the most wasteful one. The scrubber sets it.",
        low=-1, high=2**20,
    )  # fmt: skip


def find_operation(snapshot: Snapshot) -> tuple[LaunchCosts, int, int]:
    """Return the costs of the launch's operations, the most wasteful one, and the one that is drawn."""
    state = snapshot.state
    view = state.view.of(LaneView)
    counters = snapshot.result(Counters)
    textbook = state.view.of(Textbook)
    costs = LaunchCosts(state.kernel, state.launch, snapshot.compiled, counters, textbook)
    wasteful = worst(costs, view.model == "textbook")
    last = len(costs.textbook) - 1
    number = wasteful if view.operation == "worst" else min(int(view.operation), last)
    return costs, wasteful, number


@dataclass(frozen=True)
class RequestLines:
    """Requests of one execution on the lines that they touch. A cell is as wide as a lane's access.

    Attributes:
        number: (requests,) int64, index of each request in the execution.
        line: (requests, rows) int64, line numbers from the tensor's start, ascending: touched lines, then the following
            lines while there are free rows; -1 past the tensor's end.
        state: (requests, rows, cells) uint8: ABSENT, UNTOUCHED, WASTED or USED.
        lane: (requests, rows, cells) int64, the first lane that accesses these bytes; -1 for none.
        lines, sectors: (requests,) int64, number of lines and sectors that each request touches, including lines
            without a row. A block copied by descriptor may cost more sectors than it touches.
        used_bytes: (requests,) int64, distinct bytes that its lanes access.
    """

    number: ndarray
    line: ndarray
    state: ndarray
    lane: ndarray
    lines: ndarray
    sectors: ndarray
    used_bytes: ndarray
    cell_bytes: int
    sector_bytes: int
    line_bytes: int

    @property
    def rows(self) -> int:
        return self.line.shape[1]

    @property
    def cells(self) -> int:
        """Number of cells per line."""
        return self.line_bytes // self.cell_bytes


def lay_out(lanes: Requests, numbers: ndarray) -> RequestLines:
    """Lay requests out on the lines that they touch.

    A request has _FEWEST_ROWS to MOST_LINES rows. If it touches more lines, the lowest addresses are kept. A tensor of
    at most MOST_LINES lines is laid out from its start to the last line that any of the requests touches.

    Args:
        numbers: (requests,) int64, indices of requests in the execution.
    """
    matrix = lanes.matrix
    width = lanes.width_bytes
    count = len(numbers)
    line_bytes = matrix.line_bytes
    request, lane = np.nonzero(lanes.active[numbers])
    # If several lanes access the same bytes, the first lane is written last, so it is shown.
    request = request[::-1]
    lane = lane[::-1]
    address = lanes.address[numbers][request, lane]
    units = line_bytes, matrix.sector_bytes, width
    lines, sectors, wanted = (
        np.bincount(_touched(request, address, unit)[0], minlength=count) for unit in units
    )
    line, row = _place_lines(lanes, request, address, lines)
    rows = line.shape[1]
    has_row = row < rows
    cell = address % line_bytes // width
    holder = np.full((count, rows, line_bytes // width), -1, dtype=np.int64)
    holder[request[has_row], row[has_row], cell[has_row]] = lane[has_row]
    return RequestLines(
        number=numbers,
        line=line,
        state=_cell_states(line, holder, matrix.sector_bytes // width),
        lane=holder,
        lines=lines,
        sectors=sectors,
        used_bytes=wanted * width,
        cell_bytes=width,
        sector_bytes=matrix.sector_bytes,
        line_bytes=line_bytes,
    )


def _touched(
    request: ndarray, address: ndarray, unit_bytes: int
) -> tuple[ndarray, ndarray, ndarray]:
    """Number the touched units by request, then address.

    Returns:
        The request and the number (from the tensor's start) of each touched unit, and the unit of each access.
    """
    span = int(address.max(initial=0)) // unit_bytes + 1
    units, unit_of = np.unique(request * span + address // unit_bytes, return_inverse=True)
    return *np.divmod(units, span), unit_of.ravel()


def _place_lines(
    lanes: Requests, request: ndarray, address: ndarray, lines: ndarray
) -> tuple[ndarray, ndarray]:
    """Return the line in each row of each request, (requests, rows), and the row of each access.

    Args:
        lines: (requests,) int64, number of lines that each request touches.
    """
    matrix = lanes.matrix
    count = len(lines)
    existing = -(-matrix.rows * matrix.columns * matrix.element_bytes // matrix.line_bytes)
    owner, touched, line_of = _touched(request, address, matrix.line_bytes)
    if existing <= MOST_LINES:
        rows = max(_FEWEST_ROWS, 1 + int(touched.max(initial=0)))
        row = touched
        line = np.broadcast_to(np.arange(rows), (count, rows))
    else:
        rows = max(_FEWEST_ROWS, min(MOST_LINES, int(lines.max(initial=0))))
        row = np.arange(len(owner)) - np.searchsorted(owner, owner)
        kept = row < rows
        line = np.full((count, rows), -1, dtype=np.int64)
        line[owner[kept], row[kept]] = touched[kept]
        # Free rows show the lines after the last touched line.
        free = line.max(axis=1)[:, None] + np.arange(1, rows + 1) - lines[:, None]
        line = np.where(line < 0, free, line)
    return np.where(line < existing, line, -1), row[line_of]


def _cell_states(line: ndarray, holder: ndarray, cells_per_sector: int) -> ndarray:
    """Return the state of each cell: (requests, rows, cells) uint8.

    Args:
        holder: (requests, rows, cells) int64, the lane that accesses the cell, or -1.
    """
    is_used = holder >= 0
    by_sector = is_used.reshape(*line.shape, -1, cells_per_sector)
    is_fetched = np.repeat(by_sector.any(axis=3), cells_per_sector, axis=2)
    state = np.where(line[:, :, None] < 0, ABSENT, UNTOUCHED + is_fetched + is_used)
    return state.astype(np.uint8)


def matching_requests(leader: Requests, numbers: ndarray, follower: Requests) -> ndarray:
    """Return the follower's request that moves the first element of each leader request: (requests,) int64.

    Args:
        numbers: (requests,) int64, the leader's requests. For a request with no active lane, its first lane counts.
    """
    at = numbers, leader.active[numbers].argmax(axis=1)
    element = leader.address[at] // leader.matrix.element_bytes
    places = follower.address // follower.matrix.element_bytes
    places = np.where(follower.active, places, -1).ravel()
    # Each lane moves consecutive elements, so an element belongs to the lane with the last start at or before it.
    starts, where = np.unique(places, return_index=True)
    lane = np.clip(np.searchsorted(starts, element, side="right") - 1, 0, None)
    return np.asarray(where[lane] // follower.address.shape[1])


@dataclass(frozen=True)
class Flow:
    """One execution of an operation, as compiled or on the textbook machine.

    Attributes:
        lanes: its requests.
        is_compiled: whether the lanes are the compiler's, and not the textbook's.
        box: the operation if a descriptor copies its block, which no lane issues; otherwise None.
    """

    op: OperationCounts
    lanes: Requests
    is_compiled: bool
    box: DeclaredCounts | None = None

    @property
    def tensor(self) -> str:
        return " or ".join(self.op.tensors)

    @property
    def block(self) -> str:
        """The block in words: zoom survives a redraw of the same block."""
        return f"{self.op.name} {self.op.source}"

    @property
    def model(self) -> str:
        return "compiled" if self.is_compiled else "textbook"

    @property
    def title(self) -> str:
        """The model and the request, with {} for the request's number."""
        if self.box is None:
            model = "Compiled" if self.is_compiled else "Textbook"
            return f"{model}: request {{}} of {len(self.lanes.address):,}"
        boxes = self.box.pattern.box_count
        return f"Compiled: {'one TMA box' if boxes == 1 else f'{boxes} TMA boxes'}"

    def lines(self, numbers: ndarray) -> RequestLines:
        """Lay out some of the requests on lines. A descriptor's block costs the sectors of its box rows.

        Lines below the last one that any of the requests touches are left out.
        """
        lines = lay_out(self.lanes, numbers)
        if self.box is None:
            return lines
        return replace(lines, sectors=np.full_like(lines.sectors, self.box.tile.sectors))


def make_flow(op: DeclaredCounts) -> Flow:
    """Return an operation on the first tile."""
    return Flow(op, op.pattern.requests, not op.is_textbook, op if op.is_box else None)


def flow_plot(
    flow: Flow,
    request: int,
    about: str,
    other: Flow | None = None,
    pending: str = "",
    most_cells: int = 1 << 16,
) -> str:
    """Return the value of the plot that draws a flow: a figure without a request, and the requests as its `meta`.

    script.js draws one of the requests into the figure, so that the scrubber needs no reply.

    Args:
        about: the caption of a saved picture.
        other: the same operation in the other model, for the switch.
        pending: why there is no compiled request; "" if there is one.
        most_cells: the maximum number of cells over all requests in the figure, so that a redraw stays small.
    """
    total = len(flow.lanes.address)
    matrix = flow.lanes.matrix
    request = _most_wasteful(flow.lanes) if request < 0 else min(request, total - 1)
    cells = min(MOST_LINES, flow.lanes.address.shape[1]) * matrix.line_bytes // matrix.element_bytes
    count = max(1, min(total, most_cells // cells))
    first = min(max(0, request - count // 2), total - count)
    numbers = np.arange(first, first + count)
    lines = flow.lines(numbers)
    requests = {
        "first": first,
        "shown": request,
        "total": total,
        "pending": pending,
        "other": None if other is None else matching_requests(flow.lanes, numbers, other.lanes),
        "holder": "16-byte piece" if flow.box else "lane",
        "titles": request_titles(lines, flow.title),
        **select_fields(flow, "block", "model"),
        **select_fields(lines, "state", "line_bytes", "sector_bytes", "cell_bytes"),
        **select_fields(matrix, "element_bytes", "columns"),
        # 0 is no lane, and no line.
        "lane": lines.lane + 1,
        "line": lines.line + 1,
        **_line_ends(lines, flow),
        **_row_labels(lines),
    }
    zoom = f"{flow.title} {flow.block} {lines.line_bytes}"
    return plot_value(_flow_figure(lines, flow), zoom, {"requests": requests}, about=about)


def _most_wasteful(lanes: Requests) -> int:
    """Return the number of the first request that fetches the most unused bytes, of the first _COMPARED ones."""
    numbers = np.arange(min(_COMPARED, len(lanes.address)))
    lines = lay_out(lanes, numbers)
    return int((lines.sectors * lines.sector_bytes - lines.used_bytes).argmax())


def request_titles(requests: RequestLines, name: str) -> list[str]:
    """Return each request's title of two lines: the request, counted from 1, and the used bytes of its sectors.

    Args:
        name: the first line, with {} for the request's number.
    """
    titles = []
    for number, sectors, used in zip(
        requests.number, requests.sectors, requests.used_bytes, strict=True
    ):
        cost = "not issued: no lane is active"
        moved = int(sectors) * requests.sector_bytes
        if moved:
            share = f"all {moved:,}" if used == moved else f"{used:,} of {moved:,}"
            cost = f"{count_noun(int(sectors), 'sector')}: {share} bytes used"
        titles.append(f"<b>{name.format(f'{number + 1:,}')}</b><br>{cost}")
    return titles


def _line_ends(requests: RequestLines, flow: Flow) -> dict[str, ndarray]:
    """Return the byte that each line of each request reaches, and the height at which it ends: (requests, lines).

    There is a line per lane. A box has a line from one node to the first byte of each row. Without an access, and on a
    line of memory without a row, the byte is -1 and the height NaN. Lines to one row end below each other.
    """
    if flow.box:
        used = requests.state == USED
        active = used.any(axis=2)
        row = np.broadcast_to(np.arange(requests.rows), active.shape)
        byte = requests.line * requests.line_bytes + used.argmax(axis=2) * requests.cell_bytes
    else:
        byte = flow.lanes.address[requests.number]
        line = byte // requests.line_bytes
        at_line = requests.line[:, None, :] == line[:, :, None]
        active = flow.lanes.active[requests.number] & at_line.any(axis=2)
        row = at_line.argmax(axis=2)
    peers = (row[:, :, None] == row[:, None, :]) & active[:, None, :]
    rank = np.tril(peers, -1).sum(axis=2)
    height = row + (rank + 0.5) / np.maximum(peers.sum(axis=2), 1)
    return {
        "byte": np.where(active, byte, -1),
        "end": np.where(active, height / requests.rows, np.nan),
    }


def _row_labels(requests: RequestLines) -> dict[str, list[list[Any]]]:
    """Return the first bytes of the lines at each request's ticks, and the heights where lines are left out.

    If each row leaves out some, no height is marked.
    """
    count = requests.rows
    ticks = [
        [f"{line * requests.line_bytes:,}" if line >= 0 else "" for line in lines]
        for lines in requests.line[:, _tick_rows(count)].tolist()
    ]
    leaves_out = (np.diff(requests.line) != 1) & (requests.line[:, 1:] >= 0)
    skips = [(np.flatnonzero(row) + 1) / count for row in leaves_out]
    return {
        "ticks": ticks,
        "skips": [heights.tolist() if len(heights) < count - 1 else [] for heights in skips],
    }


def _tick_rows(rows: int) -> ndarray:
    return np.arange(0, rows, -(-rows // _MOST_TICKS))


def _flow_figure(requests: RequestLines, flow: Flow) -> Figure:
    """Return the figure without a request: the bytes, the lines and the lanes.

    A line of memory runs from x = 0 to 1, and the rows fill y = 0 to 1.
    """
    line = {"color": theme.BORDER, "width": 1.2, "simplify": False}
    lines = {"type": "scatter", "mode": "lines", "line": line, "hoverinfo": "skip"}
    figure = theme.figure(
        "",
        [_memory_cells(requests), lines, _lane_nodes(flow)],
        margin={"l": 40, "r": 72, "t": 60, "b": 44},
        xaxis=_byte_axis(requests, flow),
        yaxis=theme.axis(
            f"address in {flow.tensor}, bytes", range=[1, 0], side="right",
            tickvals=(_tick_rows(requests.rows) + 0.5) / requests.rows, automargin=True,
        ),
        shapes=[theme.vertical(at, theme.EDGE, yref="y") for at in _sector_starts(requests)],
    )  # fmt: skip
    # Plotly would lift the second line of the title above the title's place.
    figure["layout"]["title"] |= {"y": 1, "yref": "container", "pad": {"t": 26}}
    return figure


def _sector_starts(requests: RequestLines) -> ndarray:
    """Return where the sectors of a line start, from x = 0 to 1, and where the last one ends."""
    width = requests.line_bytes
    return np.arange(0, width + 1, requests.sector_bytes) / width


def _byte_axis(requests: RequestLines, flow: Flow) -> Figure:
    longest = int(requests.lines.max())
    title = "byte within the line"
    if longest > requests.rows:
        title = f"first {requests.rows} of {longest:,} lines"
    labels = {} if flow.box else {_LANES_AT: "lanes"}
    labels |= {at: str(round(at * requests.line_bytes)) for at in _sector_starts(requests).tolist()}
    return theme.axis(
        title, range=[_LANES_AT - 0.03, 1], tickvals=list(labels), ticktext=list(labels.values()),
        tickangle=0,
    )  # fmt: skip


def _memory_cells(requests: RequestLines) -> Figure:
    rows = requests.rows
    cells = requests.cells
    colors = theme.NOTHING, theme.TO_COME, theme.WASTED, theme.USED
    return {
        "type": "heatmap",
        "hoverinfo": "text",
        "zmin": ABSENT,
        "zmax": USED,
        "showscale": False,
        **{"x0": 0.5 / cells, "dx": 1 / cells, "y0": 0.5 / rows, "dy": 1 / rows},
        "colorscale": [[state / USED, color] for state, color in enumerate(colors)],
        "xgap": 1 if cells <= _SEPARATE_CELLS else 0,
        "ygap": 2 if rows <= _SEPARATE_ROWS else 1,
    }


def _lane_nodes(flow: Flow) -> Figure:
    names = ["TMA"]
    if not flow.box:
        lanes = flow.lanes.address.shape[1]
        names = [str(lane) if lane % 4 == 0 else "" for lane in range(lanes)]
    count = len(names)
    colors = [1] * count  # 0 for an inactive lane, otherwise 1
    scale = {"colorscale": [[0, theme.TO_COME], [1, theme.USED]], "cmin": 0, "cmax": 1}
    return {
        "type": "scatter",
        "mode": "markers+text",
        "hoverinfo": "text",
        "text": names,
        "textposition": "middle left",
        "x": np.full(count, _LANES_AT),
        "y": (np.arange(count) + 0.5) / count,
        "marker": {"symbol": "square", "size": 9, "color": colors, **scale},
        "cliponaxis": False,
    }
