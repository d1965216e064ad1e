"""The pictures of the Inside view: banks, the memory map, registers, layouts and the pipeline."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tilescope.captures.layouts import Layout, expand_bases
from tilescope.evaluate.sectors import LANES
from tilescope.inside.banks import BANKS, WORD_BYTES, BankAccess, serve_words
from tilescope.inside.pipeline import unroll
from tilescope.inside.registers import count_live
from tilescope.inside.report import Moment, Pipeline, SharedBuffer, SharedMap
from tilescope.numbers import count_noun
from tilescope.sass.listing import Instruction
from visualize.views import theme
from visualize.views.inside.program import Program, place

# Maximum frames per line and opcode.
_MOST_FRAMES = 64
# Minimum height of the picture, in wavefronts.
_FEWEST_WAVEFRONTS = 8

# Triton's limit for a block. A capture may claim more.
_MOST_ELEMENTS = 1 << 20
# A block is truncated to this size, and a vector is wrapped.
_MOST_ROWS = 128
_MOST_COLUMNS = 256
_VECTOR_COLUMNS = 32
# Gaps separate cells up to this number of rows or columns.
_SEPARATE_CELLS = 64

# Ticks below the memory map.
_MOST_TICKS = 20

# Steps of a loop to draw, in addition to the steps that its loads run ahead.
_STEPS = 4
# Colours of the bars of a pipeline.
_PIPELINE = {
    "in flight": theme.NEW,
    "in use": theme.REUSED,
    "load": theme.NEW,
    "read": theme.REUSED,
    "multiplication": theme.HARDWARE,
    "wait": theme.BEFORE,
    "store": theme.OPERATIONS["store"],
}
_WAITS = {"wait": "copies", "multiplication wait": "products"}

_HEATMAP = {
    "type": "heatmap",
    "showscale": False,
    "hoverongaps": False,
    "texttemplate": "",
    "textfont": {"size": 10},
}
# The cells of the lane below the pointer: script.js marks them.
_MARKS = {
    "type": "scatter",
    "mode": "markers",
    "x": [],
    "y": [],
    "hoverinfo": "skip",
    "marker": {"symbol": "square-open", "size": 10, "color": "black", "line": {"width": 2}},
}
_BARS = {
    "type": "bar",
    "textposition": "inside",
    "insidetextanchor": "middle",
    "textangle": 0,
}
# Text that does not fit in its bar is hidden.
_OVERLAID_BARS = {"barmode": "overlay", "uniformtext": {"minsize": 9, "mode": "hide"}}


def _stepped(
    data: list[Any], groups: Mapping[str, Sequence[dict[str, Any]]], **layout: Any
) -> dict[str, Any]:
    """Return a figure with named groups of frames. script.js steps through them."""
    # The plot shrinks the longest title to its width.
    title = max((frame["title"] for frames in groups.values() for frame in frames), key=len)
    carried = [{"name": name, "frames": frames} for name, frames in groups.items()]
    return {"data": data, "layout": theme.layout(title, meta={"groups": carried}, **layout)}


def banks_figure(program: Program) -> dict[str, Any] | None:
    """Draw which words the banks serve in each wavefront, beside a conflict-free order."""
    groups = program.accesses_by_line()
    if not groups:
        return None
    words = _HEATMAP | {
        "zmin": 0,
        "zmax": LANES - 1,
        "colorscale": theme.SEQUENCE,
        "xgap": 1,
        "ygap": 1,
        "hovertemplate": "bank %{x}: the word at byte %{customdata[1]:,}<br>"
        "lane %{z}; lanes with this word: %{customdata[2]}<extra></extra>",
    }
    right = {"xaxis": "x2"}
    bank = {"range": [-0.5, BANKS - 0.5], "tickangle": 0}
    return _stepped(
        [words, words | right, _MARKS, _MARKS | right],
        {name: [*_bank_frames(accesses)] for name, accesses in groups.items()},
        xaxis={**bank, "domain": [0, 0.49], "title": {"text": "bank, as compiled"}},
        xaxis2={**bank, "domain": [0.51, 1], "title": {"text": "bank, without conflicts"}},
        yaxis={"title": {"text": "wavefront"}, "automargin": True},
    )


def _bank_frames(accesses: Sequence[BankAccess]) -> Iterator[dict[str, Any]]:
    """Yield a frame for each distinct pattern of a warp's accesses to the banks."""
    alike = dict[tuple[str, bytes], list[BankAccess]]()
    for access in accesses:
        for warp in range(access.address.shape[1]):
            own = BankAccess(access.opcode, access.address[:, [warp]], access.active[:, [warp]])
            if own.active.any():
                # Shifting all addresses by a multiple of 128 bytes does not change the banks.
                start = own.address[own.active].min() // (BANKS * WORD_BYTES) * BANKS * WORD_BYTES
                offset = np.where(own.active, own.address - start, -1)
                alike.setdefault((own.opcode, offset.tobytes()), []).append(own)
    for (opcode, _), (access, *others) in list(alike.items())[:_MOST_FRAMES]:
        words = [serve_words(access), serve_words(access, is_ideal=True)]
        lanes = [each[..., 0] for each in words]
        actual, ideal = map(len, words)
        rows = max(_FEWEST_WAVEFRONTS, actual)
        similar = f", one of {1 + len(others)} equivalent accesses" if others else ""
        wavefronts = count_noun(actual, "wavefront")
        # A copy can need more wavefronts for reading than for writing.
        writes = "writes in " if opcode.startswith("LDGSTS") else ""
        yield {
            "title": f"{opcode}{similar}: {writes}{wavefronts}, {ideal} without conflicts",
            "yaxis": {"range": [rows - 0.5, -0.5], "dtick": -(-rows // 16)},
            "patches": [
                {"z": np.where(lane < 0, np.nan, lane), "customdata": each}
                for lane, each in zip(lanes, words, strict=True)
            ],
            "keys": lanes,
            "numbers": "%{z}",
        }


def layouts_figure(program: Program) -> dict[str, Any] | None:
    """Draw which warp and lane hold each element of each block."""
    layouts = [
        each for each in program.inside.layouts if math.prod(each.layout.shape) <= _MOST_ELEMENTS
    ]
    if not layouts:
        return None
    groups = dict[str, dict[Layout, dict[str, Any]]]()
    for each in layouts:
        name = f"{each.operation}, line {each.line}: {each.operand}"
        groups.setdefault(name, {})[each.layout] = _layout_frame(each.layout)
    elements = _HEATMAP | {
        "zmin": 0,
        "zmax": len(theme.CATEGORIES),
        "colorscale": theme.discrete_scale(theme.CATEGORIES),
        "hovertemplate": "row %{y}, column %{x}<br>warp %{customdata[0]}, lane %{customdata[1]}, "
        "register %{customdata[2]}<extra></extra>",
    }
    return _stepped(
        [elements, _MARKS],
        {name: list(frames.values()) for name, frames in groups.items()},
        xaxis={"title": {"text": "column"}},
        yaxis={"title": {"text": "row"}, "automargin": True},
    )


def _layout_frame(layout: Layout) -> dict[str, Any]:
    holders = _holders(layout)
    shown = holders[:_MOST_ROWS, :_MOST_COLUMNS]
    rows, columns = shown.shape[:2]
    warp = shown[..., 0]
    lane = shown[..., 1]
    size = " × ".join(map(str, layout.shape))
    part = "" if shown.size == holders.size else f", the first {rows} × {columns}"
    element = {
        "z": warp % len(theme.CATEGORIES),
        "customdata": shown,
        "text": lane,
        "xgap": int(columns <= _SEPARATE_CELLS),
        "ygap": int(rows <= _SEPARATE_CELLS),
    }
    return {
        "title": f"{size} elements{part}: colours are warps, numbers are lanes",
        "xaxis": {"range": [-0.5, columns - 0.5]},
        "yaxis": {"range": [rows - 0.5, -0.5]},
        "patches": [element],
        "keys": [warp * LANES + lane],
        "numbers": "%{text}",
    }


def _holders(layout: Layout) -> np.ndarray:
    """Return the first warp, lane and register that hold each element: (rows, columns, 3).

    Rows and columns are the last two dimensions, at index 0 of the others.
    """
    rank = len(layout.shape)
    warp, lane, register = (
        expand_bases(bases, rank) for bases in (layout.warp, layout.lane, layout.register)
    )
    element = warp[:, None, None] ^ lane[None, :, None] ^ register
    order = np.indices(element.shape[:-1]).reshape(3, -1)
    holders = np.zeros((*layout.shape, 3), dtype=np.int64)
    # NumPy keeps the last of several assignments, so the first holder is assigned last.
    holders[tuple(element.reshape(-1, rank).T[:, ::-1])] = order.T[::-1]
    if rank == 1:
        return holders.reshape(-1, min(_VECTOR_COLUMNS, *layout.shape), 3)
    return holders[(0,) * (rank - 2)]


def memory_map_figure(program: Program) -> dict[str, Any] | None:
    """Draw the offset and the live range of each buffer's stages."""
    shared = program.inside.shared_map
    if shared is None or not shared.buffers:
        return None
    note = {"y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False}
    edges = {edge for loop in shared.loops for edge in (loop.first - 0.5, loop.last + 0.5)}
    ticks = range(0, len(shared.steps), 1 + len(shared.steps) // _MOST_TICKS)
    bytes_axis = {"range": [0, shared.shared_bytes], "automargin": True, "tickformat": ","}
    layout = theme.layout(
        f"Shared memory of one program: {shared.shared_bytes:,} bytes",
        xaxis={
            "title": {"text": "source lines of operations on shared memory, in program order"},
            "range": [-0.5, len(shared.steps) - 0.5],
            "tickvals": list(ticks),
            "ticktext": [shared.steps[tick].line for tick in ticks],
        },
        yaxis={"title": {"text": "byte"}, **bytes_axis},
        annotations=[
            {**note, "x": (loop.first + loop.last) / 2, "text": f"loop on line {loop.line}"}
            for loop in shared.loops
        ],
        shapes=[*(_border("x", edge) for edge in edges), *_limit_lines(shared)],
        margin={"l": 60, "r": 10, "t": 56, "b": 48},
        **_OVERLAID_BARS,
    )
    return {"data": [_buffer_bars(shared.buffers)], "layout": layout}


def _buffer_bars(buffers: Sequence[SharedBuffer]) -> dict[str, Any]:
    """Return a bar per buffer, in the colour of its source line."""
    lines = list(dict.fromkeys(map(place, buffers)))
    colors = [lines.index(place(buffer)) % len(theme.CATEGORIES) for buffer in buffers]
    return _BARS | {
        "x": [(buffer.first + buffer.last) / 2 for buffer in buffers],
        "width": [buffer.last + 1 - buffer.first for buffer in buffers],
        "base": [buffer.offset_bytes for buffer in buffers],
        "y": [buffer.size_bytes for buffer in buffers],
        "text": [_buffer_name(buffer) for buffer in buffers],
        "hovertemplate": "%{text}<br>%{y:,} bytes from %{base:,}<extra></extra>",
        "marker": {
            "color": [theme.CATEGORIES[color] for color in colors],
            "line": {"color": theme.BORDER, "width": 1},
        },
    }


def _limit_lines(shared: SharedMap) -> list[dict[str, Any]]:
    """Return a labelled line at the limit of a program that exceeds it."""
    limit = shared.limit_bytes
    if not 0 < limit < shared.shared_bytes:
        return []
    line = {"color": theme.WRONG, "width": 3}
    label = {"text": f"limit: {limit:,} bytes", "textposition": "end"}
    return [_border("y", limit) | {"line": line, "label": label}]


def _buffer_name(buffer: SharedBuffer) -> str:
    stage = f", stage {buffer.stage}" if buffer.stages > 1 else ""
    return f"line {buffer.line}: {buffer.operation} {buffer.tensor}".strip() + stage


def registers_figure(program: Program) -> dict[str, Any]:
    """Draw the live registers at each instruction, and mark the maximum and the spills."""
    instructions = program.instructions
    live = np.array(count_live(program.sass))
    peak = int(live.argmax())
    spills = [n for n, each in enumerate(instructions) if each.traits.lmem]
    curve = {
        "type": "scatter",
        "mode": "lines",
        "y": live,
        "text": [f"{each.opcode}, {_source(each)}" for each in instructions],
        "fill": "tozeroy",
        "line": {"shape": "hv", "color": theme.USED, "width": 1.5},
        "hovertemplate": "instruction %{x}: %{y} live registers<br>%{text}<extra></extra>",
    }
    marks = {
        "type": "scatter",
        "mode": "markers",
        "x": [*spills, peak],
        "y": live[[*spills, peak]],
        "hoverinfo": "skip",
        "marker": {"color": [*[theme.WRONG] * len(spills), theme.NEW], "size": 8},
    }
    highest = {
        "x": peak,
        "y": int(live[peak]),
        "text": f"<b>{live[peak]} at {_source(instructions[peak])}</b>",
        "ay": -26,
        "ax": 60 if peak < len(live) / 2 else -60,
        "arrowcolor": theme.BORDER,
    }
    allocated = program.facts.registers
    layout = theme.layout(
        f"Live registers per thread ({allocated} allocated)",
        xaxis={"title": {"text": "SASS instruction"}, "range": [0, len(live)]},
        yaxis={"title": {"text": "live registers"}, "range": [0, 1.2 * max(allocated, live[peak])]},
        annotations=[highest],
        shapes=[_border("y", allocated)],
    )
    return {"data": [curve, marks], "layout": layout}


def _source(instruction: Instruction) -> str:
    file, line = instruction.source
    return f"{file}:{line}" if line else "no line"


def _border(axis: str, at: float) -> dict[str, Any]:
    """Return a line across the picture, at a value of the axis "x" or "y"."""
    along = "y" if axis == "x" else "x"
    ends = {f"{along}ref": "paper", f"{along}0": 0, f"{along}1": 1, f"{axis}0": at, f"{axis}1": at}
    line = {"color": theme.BORDER, "width": 1, "dash": "dot"}
    return {"type": "line", "line": line, **ends}


def pipeline_figure(program: Program) -> dict[str, Any] | None:
    """Draw the first steps of each loop: blocks in flight and in use, multiplications and waits."""
    pipelines = program.inside.pipelines
    if not pipelines:
        return None
    bars = _BARS | {"orientation": "h", "hovertemplate": "%{customdata}<extra></extra>"}
    steps = max(map(_steps, pipelines))
    return _stepped(
        [{**bars, "name": name, "marker": {"color": color}} for name, color in _PIPELINE.items()],
        {f"loop in {place(each)}": [_pipeline_frame(each)] for each in pipelines},
        xaxis={"tickangle": 0},
        yaxis={"autorange": "reversed", "automargin": True, "type": "category"},
        bargap=0.15,
        shapes=[_border("x", step) for step in range(steps + 1)],
        showlegend=True,
        legend={"orientation": "h", "x": 0.5, "xanchor": "center", "y": 1.02, "yanchor": "bottom"},
        margin={"l": 60, "r": 10, "t": 60, "b": 48},
        **_OVERLAID_BARS,
    )


def _steps(pipeline: Pipeline) -> int:
    """Return how many steps of a loop to draw."""
    return _STEPS + max((load.ahead for load in pipeline.loads), default=0)


class _Bar(NamedTuple):
    row: str
    start: float
    end: float
    step: int


def _pipeline_frame(pipeline: Pipeline) -> dict[str, Any]:
    steps = _steps(pipeline)
    moments = unroll(pipeline, steps)
    bars = _pipeline_bars(pipeline, moments)
    copies = [_buffer_row(load.line, slot) for load in pipeline.loads for slot in range(load.slots)]
    rows = [*copies, *(bar.row for group in bars.values() for bar in group)]
    most = max(moment.in_flight for moment in moments)
    ticks = {
        "tickvals": [number - 0.5 for number in range(steps + 2)],
        "ticktext": ["start", *map(str, range(steps)), "end"],
    }
    return {
        "title": f"First {count_noun(steps, 'step')} of the loop; maximum copies in flight: {most}",
        "xaxis": {"range": [-1, steps + 1], **ticks},
        "yaxis": {"categoryorder": "array", "categoryarray": list(dict.fromkeys(rows))},
        "patches": [
            {
                "visible": bool(group),
                "y": [bar.row for bar in group],
                "base": [bar.start for bar in group],
                "x": [bar.end - bar.start for bar in group],
                "text": [f"step {bar.step}" for bar in group],
                "customdata": [f"{bar.row}<br>{name}, step {bar.step}" for bar in group],
            }
            for name, group in bars.items()
        ],
    }


def _pipeline_bars(pipeline: Pipeline, moments: Sequence[Moment]) -> dict[str, list[_Bar]]:
    """Return the bars of each kind. A block is in flight until a wait, and in use until its multiplication."""
    phases = dict[str, list[int]]()
    for event in pipeline.events:
        if event.kind != "commit":
            phases.setdefault(event.phase, []).append(id(event))
    bars = {name: list[_Bar]() for name in _PIPELINE}
    since = dict[tuple[int, int], tuple[str, float]]()
    for moment in moments:
        event = moment.event
        phase = phases[event.phase]
        start = moment.at + phase.index(id(event)) / len(phase)
        end = start + 1 / len(phase)
        if moment.slot is not None:
            since[event.loads[0], moment.step] = _buffer_row(event.line, moment.slot), start
            continue
        if waits_for := _WAITS.get(event.kind):
            bars["wait"].append(_Bar(f"wait for {waits_for}", start, end, moment.step))
        else:
            row = f"line {event.line}, {event.kind}"
            bars[event.kind].append(_Bar(row, start, end, moment.step))
        for copy in moment.arrived:
            row, begun = since[copy]
            bars["in flight"].append(_Bar(row, begun, end, copy[1]))
            since[copy] = row, end
        if event.kind == "multiplication":
            for row, begun in (since[copy] for copy in since if copy[1] == moment.step):
                bars["in use"].append(_Bar(row, begun, end, moment.step))
    return bars


def _buffer_row(line: int, slot: int) -> str:
    return f"line {line}, buffer {slot}"
