"""The Coalescing panel: requests, sectors and lines of each memory operation, textbook model. /coalescing."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import gradio as gr
import numpy as np

from kernels import orders
from kernels.experiment import Experiment
from kernels.gpus import Gpu
from kernels.jit import on_arrays
from kernels.knobs import ConfigError
from kernels.spec import Access, FlatAccess, Kernel, Launch
from visualize.figures.coalescing import request_figure, tile_figure
from visualize.models.coalescing import NOTHING, Operation, Textbook, operations, requests, textbook
from visualize.panels import form, words
from visualize.panels.markup import markup
from visualize.panels.plot import drawn, plot
from visualize.panels.state import State
from visualize.panels.view import LaneView

MODELS = ("textbook",)
_OPS = {"descriptor": "descriptor's copy"}


@dataclass(frozen=True)
class Parts:
    board: gr.HTML
    lanes: gr.HTML
    claim: gr.HTML
    table: gr.HTML
    tile: gr.HTML
    request: gr.HTML


def build() -> Parts:
    claim = markup("coalescing-claim")
    with gr.Row(elem_classes="view-forms"):
        lanes = form.form("lanes-view", "Which execution is drawn")
        board = form.form("board-view", "The blackboard's machine")
    with gr.Row(elem_classes="plots"):
        tile = plot("coalescing-plot", "The tile, coloured by the warp request that moves each element")
        request = plot("request-plot", "One request's lanes on the lines and sectors that it touches")
    return Parts(board, lanes, claim, markup("coalescing-table"), tile, request)


def lanes_form(state: State) -> str:
    """The choice of operation, program and request, bounded by what there is."""
    accesses, programs, last = _accesses(state), state.kernel.programs(state.launch), _last_request(state)
    labels = [f"{access.op} {access.tensor}" for access in accesses]
    view = state.view.lanes
    fields = form.fields(LaneView, {"operation": labels})
    for field, high in zip(fields[1:], (programs - 1, last), strict=True):
        field["high"] = high
    values = {
        "operation": min(view.operation, len(accesses) - 1),
        "program": min(view.program, programs - 1),
        "request": min(view.request, last),
    }
    return form.filled(fields, values)


def draw(state: State) -> tuple[str, str, str, str]:
    """The claim, the table, the tile and the request."""
    board, problem = state.view.board, state.experiment.problem
    counted = operations(state.kernel, state.launch, board)
    access, first = _drawn_block(state)
    shape = state.kernel.family.tensors(problem)[access.tensor].stored
    lanes = requests(access, shape, first, board.bytes_of(problem.dtype), board)
    request = min(state.view.lanes.request, _last_request(state))
    anew = f"{state.kernel.id} {access.op} {access.tensor} {first} {shape} {board}"
    pictures = (
        drawn(tile_figure(lanes, board, access.tensor), anew),
        drawn(request_figure(lanes, board, request), f"{anew} {request}"),
    )
    note = state.kernel.note(state.launch)
    return f'<p class="claim">{_claim(counted, board, state)} {note}</p>', _table(counted), *pictures


def _accesses(state: State) -> tuple[Access | FlatAccess, ...]:
    return state.kernel.accesses(state.launch)


def _last_request(state: State) -> int:
    accesses = _accesses(state)
    access = accesses[min(state.view.lanes.operation, len(accesses) - 1)]
    return -(-access.elements // state.view.board.warp_size) - 1


def _drawn_block(state: State) -> tuple[Access | FlatAccess, tuple[int, ...]]:
    """The operation that is drawn, and where its first block in the chosen program begins."""
    accesses = _accesses(state)
    access = accesses[min(state.view.lanes.operation, len(accesses) - 1)]
    program = min(state.view.lanes.program, state.kernel.programs(state.launch) - 1)
    tiles = state.kernel.tiles(np.array([program]), state.launch)
    extents = state.kernel.extents(state.launch)
    first_step, _ = on_arrays(orders.slice_of_k)(tiles.pid_k[:1], extents.get("k", 1), extents.get("slice", 1))
    place = {"m": int(tiles.pid_m[0]), "n": int(tiles.pid_n[0]), "k": int(first_step[0])}
    axes = (access.run,) if isinstance(access, FlatAccess) else (access.rows, access.columns)
    return access, tuple(int(axis.start(place[axis.index], axis.block)) for axis in axes)


def _claim(counted: tuple[Operation, ...], board: Textbook, state: State) -> str:
    """In the blackboard's words: transactions of one tile, and elements that each moves."""
    parts = [f"{op.tile.lines:,} {_OPS.get(op.access.op, op.access.op)} ({op.access.tensor})" for op in counted]
    total = sum(op.tile.lines for op in counted)
    each = ""
    if state.kernel.family.reduction(state.experiment.problem) == 0:
        moved = counted[-1].tile.bytes_wanted // counted[-1].width_bytes
        each = f", {total:,} in all: <b>{moved / total:.2f}</b> elements each"
    worst = min(counted, key=lambda op: op.launch.efficiency)
    name = _OPS.get(worst.access.op, worst.access.op)
    return (
        f"The first tile takes <b>{' and '.join(parts)}</b> transactions{each} {words.mark('textbook')}. "
        f"A transaction is a line of {board.line_bytes} bytes that a warp of {board.warp_size} lanes touches. "
        f"Over the launch, the {name} of {worst.access.tensor} uses "
        f"<b>{words.percent(worst.launch.efficiency)}</b> of the sectors that it touches."
    )


def _table(counted: tuple[Operation, ...]) -> str:
    rows = []
    for op in counted:
        file, line = op.access.source
        t = op.launch
        rows.append(
            (
                f"{op.access.op} {op.access.tensor}",
                f'<code title="{file}, line {line}">{file.rsplit("/", 1)[-1]}:{line}</code>',
                f"{op.width_bytes} B",
                *(f"{value:,}" for value in (t.requests, t.sectors, t.lines, t.ideal_sectors)),
                words.percent(t.efficiency),
                why(op),
            )
        )
    header = ("operation", "source", "width", "requests", "sectors", "lines", "ideal", "efficiency", "why")
    return words.table(header, rows, "Whole launch, textbook lanes")


def why(op: Operation) -> str:
    """A sentence for the efficiency of one operation."""
    t = op.launch
    if op.access.op == "descriptor":
        return (
            "A descriptor has the whole block copied without any lane: no warp issues these requests. They are what "
            "the blackboard's lanes would issue for the same bytes."
        )
    if t.sectors == t.ideal_sectors:
        return "Neighbouring lanes take neighbouring bytes, so every sector is used whole."
    if isinstance(op.access, FlatAccess):
        return (
            f"Neighbouring lanes take elements of neighbouring rows of {op.access.tensor}, a whole row apart in "
            "memory, each in a sector of its own."
        )
    columns = op.access.columns.block
    run = columns * op.width_bytes
    if op.access.turned:
        return (
            f"The tile is turned: its rows in {op.access.tensor} are {columns} elements ({run} bytes), "
            "so a warp crosses many of them, each in sectors of its own."
        )
    return (
        f"Rows of the tile ({run} bytes) begin or end inside sectors, or are cut by the edge of {op.access.tensor}, "
        "so some sectors are used in part."
    )


def reply(kernel: Kernel, experiment: Experiment, gpu: Gpu, model: object, options: object) -> dict[str, Any]:
    """The body of /coalescing.

    Args:
        model: "textbook".
        options: None, or fields of `Textbook`: {"warp_size": 4, "line_bytes": 16, …}.
    """
    if model not in MODELS:
        raise ConfigError("not_a_choice", f"model is {model!r}; allowed are {', '.join(MODELS)}.", "model")
    board = textbook(options)
    counted = operations(kernel, Launch(experiment.problem, experiment.config, gpu), board)
    total = NOTHING
    for op in counted:
        total = total.plus(op.launch)
    return {
        "model": model,
        "textbook": dataclasses.asdict(board),
        "ops": [
            {
                "op": op.access.op,
                "tensor": op.access.tensor,
                "file": op.access.source[0],
                "line": op.access.source[1],
                "width_bytes": op.width_bytes,
                **_counts(op.launch),
                "tile": _counts(op.tile),
                "why": why(op),
            }
            for op in counted
        ],
        "totals": _counts(total),
    }


def _counts(traffic: Any) -> dict[str, Any]:
    return {**dataclasses.asdict(traffic), "efficiency": traffic.efficiency}
