"""The pictures of the inside of a program: banks, the memory map, registers, layouts and the pipeline."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from kernels.evaluate.listings import Location
from kernels.inside.banks import BANKS, WORD_BYTES, Access, serve_words
from kernels.inside.report import SharedBuffer
from kernels.inside.sass import parse
from kernels.sectors import LANES
from visualize.numbers import count_noun
from visualize.views import theme
from visualize.views.inside.program import Program

# Maximum frames of a line and opcode.
_MOST_FRAMES = 64

# Accesses that differ by a multiple of these bytes take the same banks.
_ROW_BYTES = BANKS * WORD_BYTES

# Fewer wavefronts do not fill the picture's height.
_FEWEST_ROWS = 8


def banks_figure(groups: Mapping[str, Sequence[Access]]) -> dict[str, Any]:
    """Draw the words that the banks serve in each wavefront, beside those of an order without conflicts.

    script.js steps through the warps that the figure carries.

    Args:
        groups: one execution of each instruction, by the name of its line.
    """
    frames = {name: [*_bank_frames(accesses)] for name, accesses in groups.items()}
    titles = [frame["title"] for group in frames.values() for frame in group]
    picture = {
        "type": "heatmap",
        "zmin": 0,
        "zmax": LANES - 1,
        "colorscale": theme.SEQUENCE,
        "showscale": False,
        "xgap": 1,
        "ygap": 1,
        "hoverongaps": False,
        "texttemplate": "%{z}",
        "textfont": {"size": 10},
        "hovertemplate": "bank %{x}: the word at byte %{customdata[1]:,}<br>"
        "lane %{z}, the first of %{customdata[2]} with it<extra></extra>",
    }
    bank = {"range": [-0.5, BANKS - 0.5], "tickangle": 0}
    layout = theme.layout(
        max(titles, key=len),
        xaxis={**bank, "domain": [0, 0.49], "title": {"text": "bank, as compiled"}},
        xaxis2={**bank, "domain": [0.51, 1], "title": {"text": "bank, without conflicts"}},
        yaxis={"title": {"text": "wavefront"}, "automargin": True},
        meta={"groups": [{"name": name, "frames": group} for name, group in frames.items()]},
    )
    data = [picture, {**picture, "xaxis": "x2"}, _highlight(), {**_highlight(), "xaxis": "x2"}]
    return {"data": data, "layout": layout}


def _bank_frames(accesses: Sequence[Access]) -> Iterator[dict[str, Any]]:
    """Yield a frame for each way in which a warp accesses the banks."""
    alike = dict[tuple[str, bytes], list[Access]]()
    for access in accesses:
        for warp in range(access.address.shape[1]):
            own = Access(access.opcode, access.address[:, [warp]], access.active[:, [warp]])
            if own.active.any():
                start = own.address[own.active].min() // _ROW_BYTES * _ROW_BYTES
                place = np.where(own.active, own.address - start, -1)
                alike.setdefault((own.opcode, place.tobytes()), []).append(own)
    for (opcode, _), (access, *others) in list(alike.items())[:_MOST_FRAMES]:
        words = [serve_words(access), serve_words(access, is_ideal=True)]
        actual, ideal = map(len, words)
        rows = max(_FEWEST_ROWS, actual)
        lanes = [each[..., 0] for each in words]
        yield {
            "title": f"{opcode}, {count_noun(1 + len(others), 'warp')}: "
            f"{count_noun(actual, 'wavefront')}, {ideal} without conflicts",
            "yaxis": {"range": [rows - 0.5, -0.5], "dtick": -(-rows // 16)},
            "patches": [
                {"z": np.where(lane < 0, np.nan, lane), "customdata": each}
                for lane, each in zip(lanes, words, strict=True)
            ],
            "keys": lanes,
        }


def _highlight() -> dict[str, Any]:
    """Return the trace in which script.js marks the cells of the lane below the pointer."""
    marker = {
        "symbol": "square-open",
        "size": 13,
        "color": theme.WRONG,
        "line": {"width": 2.5},
    }
    return {"type": "scatter", "mode": "markers", "x": [], "y": [], "marker": marker, "hoverinfo": "skip"}


def memory_map_figure(buffers: Sequence[SharedBuffer], shared_bytes: int) -> dict[str, Any]:
    """Draw when each buffer, and each stage of it, is live, and where it lies."""
    lines = list(dict.fromkeys((buffer.file, buffer.line) for buffer in buffers))
    rows = [(buffer, stage) for buffer in buffers for stage in range(buffer.stages)]
    sizes = [buffer.size_bytes / buffer.stages for buffer, _ in rows]
    bars = {
        "type": "bar",
        "x": [(buffer.first + buffer.last + 1) / 2 for buffer, _ in rows],
        "width": [buffer.last + 1 - buffer.first for buffer, _ in rows],
        "base": [
            buffer.offset_bytes + size * stage
            for (buffer, stage), size in zip(rows, sizes, strict=True)
        ],
        "y": sizes,
        "text": [_buffer_text(*row) for row in rows],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "hovertemplate": "%{text}<br>%{y:,} bytes from %{base:,}<extra></extra>",
        "marker": {
            "color": [
                theme.CATEGORIES[lines.index((buffer.file, buffer.line)) % len(theme.CATEGORIES)]
                for buffer, _ in rows
            ],
            "line": {"color": theme.BORDER, "width": 1},
        },
    }
    layout = theme.layout(
        f"Shared memory of one program: {shared_bytes:,} bytes",
        xaxis={"title": {"text": "operation of the TTGIR, in order"}, "rangemode": "tozero"},
        yaxis={
            "title": {"text": "byte"},
            "range": [0, shared_bytes],
            "automargin": True,
            "tickformat": ",",
        },
        bargap=0,
        barmode="overlay",
        uniformtext={"minsize": 9, "mode": "hide"},
    )
    return {"data": [bars], "layout": layout}


def _buffer_text(buffer: SharedBuffer, stage: int) -> str:
    stages = f", stage {stage}" if buffer.stages > 1 else ""
    tensor = f" {buffer.tensor}" if buffer.tensor else ""
    return f"line {buffer.line}: {buffer.operation}{tensor}{stages}"


def registers_figure(program: Program) -> dict[str, Any]:
    """Draw the live registers at each instruction, with the maximum and the spills."""
    live = np.array(program.live)
    instructions = parse(program.sass)
    texts = [f"{each.opcode}, {place(each.location)}" for each in instructions]
    peak = int(live.argmax())
    spills = [n for n, each in enumerate(instructions) if each.name in ("STL", "LDL")]

    def marks(numbers: Iterable[int], color: str, size: int) -> dict[str, Any]:
        chosen = list(numbers)
        return {
            "type": "scatter",
            "mode": "markers",
            "x": chosen,
            "y": live[chosen],
            "hoverinfo": "skip",
            "marker": {"color": color, "size": size},
        }

    curve = {
        "type": "scatter",
        "mode": "lines",
        "y": live,
        "text": texts,
        "fill": "tozeroy",
        "line": {"shape": "hv", "color": theme.USED, "width": 1.5},
        "hovertemplate": "instruction %{x}: %{y} live<br>%{text}<extra></extra>",
    }
    highest = {
        "x": peak,
        "y": int(live[peak]),
        "text": f"<b>{live[peak]} at {place(instructions[peak].location)}</b>",
        "ay": -26,
        "ax": 60 if peak < len(live) / 2 else -60,
        "arrowcolor": theme.BORDER,
    }
    allocated = program.facts.registers
    layout = theme.layout(
        f"Live registers per thread, of {allocated} that the compiler allocated",
        xaxis={"title": {"text": "instruction of the SASS"}, "range": [0, len(live)]},
        yaxis={"title": {"text": "live registers"}, "range": [0, 1.2 * max(allocated, live[peak])]},
        annotations=[highest],
        shapes=[
            {
                "type": "line",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "y0": allocated,
                "y1": allocated,
                "line": {"color": theme.BORDER, "dash": "dash"},
            }
        ],
    )
    data = [curve, marks(spills, theme.WRONG, 6), marks([peak], theme.NEW, 10)]
    return {"data": data, "layout": layout}


def place(location: Location) -> str:
    """Return the innermost line of an instruction."""
    return f"{location[0][0]}:{location[0][1]}" if location else "no line"
