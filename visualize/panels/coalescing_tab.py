"""The Coalescing panel: textbook, compiled and counted side by side, and pictures of a tile and a request."""

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
from kernels.lanes import MemoryOperation
from kernels.results import Compiled, Counters, Failure
from kernels.spec import Access, FlatAccess, Kernel, Launch
from visualize.figures.coalescing_figure import request_figure, tile_figure
from visualize.models import coalescing, textbook
from visualize.models.textbook import Textbook
from visualize.models.traffic import LINE_BYTES, SECTOR_BYTES, Operation, Requests, Tile
from visualize.panels import whatif_panel
from visualize.state.state import State
from visualize.state.view import LaneView
from visualize.text import bank_conflicts, verdicts, why, words
from visualize.text.verdicts import Verdicts
from visualize.widgets import form
from visualize.widgets.markup import markup
from visualize.widgets.plot import drawn, plot

MODELS = ("compiled", "textbook")
_OPS = {"descriptor": "descriptor's copy"}


@dataclass(frozen=True)
class Parts:
    board: gr.HTML
    lanes: gr.HTML
    claim: gr.HTML
    table: gr.HTML
    tile: gr.HTML
    request: gr.HTML
    count: gr.Button
    whatif: whatif_panel.Parts


def build() -> Parts:
    claim = markup("coalescing-claim")
    table = markup("coalescing-table")
    with gr.Row(elem_id="count-row"):
        count = gr.Button("Count with Nsight Compute", size="sm", elem_id="count")
    with gr.Row(elem_classes="view-forms"):
        lanes = form.form("lanes-view", "Which execution is drawn")
        board = form.form("board-view", "The blackboard's machine")
    with gr.Row(elem_classes="plots"):
        tile = plot("coalescing-plot", "The tile, coloured by request, warp, lane or register")
        request = plot("request-plot", "One request's lanes on the lines and sectors that it touches")
    return Parts(board, lanes, claim, table, tile, request, count, whatif_panel.build())


@dataclass(frozen=True)
class _Drawn:
    """The execution that the pictures show."""

    access: Access | FlatAccess
    first: tuple[int, ...]
    lanes: Requests
    tile: Tile
    sector_bytes: int
    line_bytes: int
    is_box: bool = False


def lanes_form(state: State, made: Compiled | None) -> str:
    """The choice of operation, program and request, bounded by what there is."""
    accesses, programs = _accesses(state), state.kernel.programs(state.launch)
    last = len(_drawn(state, made).lanes.row) - 1
    labels = [f"{access.op} {access.tensor}" for access in accesses]
    view = state.view.lanes
    fields = form.fields(LaneView, {"operation": labels})
    for field, high in zip(fields[1:3], (programs - 1, last), strict=True):
        field |= {"high": high, "reach": high}
    values = {
        **dataclasses.asdict(view),
        "operation": min(view.operation, len(accesses) - 1),
        "program": min(view.program, programs - 1),
        "request": min(view.request, last),
    }
    return form.filled(fields, values)


def draw(state: State, made: Compiled | None, counters: Counters | None, status: str = "") -> tuple[str, str, str, str]:
    """The claim, the tables, the tile and the request.

    Args:
        made: the compiled kernel; None while it is not known.
        status: what stands there while it is not, as HTML.
    """
    board = state.view.board
    found = verdicts.verdicts(state.kernel, state.launch, board, made, counters)
    shown = _drawn(state, made)
    request = min(state.view.lanes.request, len(shown.lanes.row) - 1)
    # Zoom is kept for as long as the same block is drawn.
    anew = f"{state.kernel.id} {shown.access.op} {shown.access.tensor} {shown.first} {shown.tile.row.shape}"
    tile = tile_figure(shown.tile, shown.access.tensor, state.view.lanes.tile_color, shown.sector_bytes)
    who = f"piece of {shown.lanes.width_bytes} bytes" if shown.is_box else "lane"
    one = request_figure(shown.lanes, request, shown.sector_bytes, shown.line_bytes, who)
    note = state.kernel.note(state.launch)
    if made and made.unreadable:
        status = f'<p class="failure" role="alert">The compiled kernel could not be read: {made.unreadable}</p>'
    sentences = f"{verdicts.claim(found)} {_blackboard_claim(found.board, board, state)} {note}"
    turned = bank_conflicts.table(made, counters if found.counted_is_compiled else None) if made else ""
    below = f'<div class="tables">{verdicts.totals(found)}{turned}{verdicts.funnel(found)}</div>'
    return (
        f'{status}<p class="claim">{sentences}</p>',
        verdicts.table(found) + below,
        drawn(tile, anew),
        drawn(one, f"{anew} {request}"),
    )


def _accesses(state: State) -> tuple[Access | FlatAccess, ...]:
    return state.kernel.accesses(state.launch)


def _drawn(state: State, made: Compiled | None) -> _Drawn:
    """The chosen operation of the chosen program, with the chosen model's lanes (textbook's until there are others)."""
    accesses, board = _accesses(state), state.view.board
    number = min(state.view.lanes.operation, len(accesses) - 1)
    access, first = accesses[number], _first(state, accesses[number])
    shape = state.kernel.family.tensors(state.experiment.problem)[access.tensor].stored
    operation = _operation(state, made, number)
    if operation is not None:
        size = Textbook().bytes_of(state.experiment.problem.dtype)
        lanes = coalescing.requests(access, operation, shape, first, size)
        drawn_tile = coalescing.tile(access, operation, shape, first, size)
        is_box = operation.layout is None
        return _Drawn(access, first, lanes, drawn_tile, SECTOR_BYTES, LINE_BYTES, is_box)
    lanes = textbook.requests(access, shape, first, board.bytes_of(state.experiment.problem.dtype), board)
    return _Drawn(access, first, lanes, textbook.tile(lanes), board.sector_bytes, board.line_bytes)


def _operation(state: State, made: Compiled | None, number: int) -> MemoryOperation | None:
    if state.view.lanes.model == "textbook" or made is None or made.unreadable:
        return None
    return made.operations[number]


def _first(state: State, access: Access | FlatAccess) -> tuple[int, ...]:
    """Where the first block of the operation in the chosen program begins."""
    program = min(state.view.lanes.program, state.kernel.programs(state.launch) - 1)
    tiles = state.kernel.tiles(np.array([program]), state.launch)
    extents = state.kernel.extents(state.launch)
    first_step, _ = on_arrays(orders.slice_of_k)(tiles.pid_k[:1], extents.get("k", 1), extents.get("slice", 1))
    place = {"m": int(tiles.pid_m[0]), "n": int(tiles.pid_n[0]), "k": int(first_step[0])}
    axes = (access.run,) if isinstance(access, FlatAccess) else (access.rows, access.columns)
    return tuple(int(axis.start(place[axis.index], axis.block)) for axis in axes)


def _blackboard_claim(counted: tuple[Operation, ...], board: Textbook, state: State) -> str:
    """In the blackboard's words: transactions of one tile, and elements that each moves."""
    parts = [f"{op.tile.lines:,} {_OPS.get(op.access.op, op.access.op)} ({op.access.tensor})" for op in counted]
    total = sum(op.tile.lines for op in counted)
    each = ""
    if state.kernel.family.panels is None:
        moved = counted[-1].tile.bytes_wanted // counted[-1].width_bytes
        each = f", {total:,} in all: <b>{moved / total:.2f}</b> elements each"
    return (
        f"On the blackboard, the first tile takes <b>{' and '.join(parts)}</b> transactions{each} "
        f"{words.mark('textbook')}: lines of {board.line_bytes} bytes that a warp of {board.warp_size} lanes touches."
    )


def model_of(model: object) -> str:
    """The model's name, checked."""
    if model not in MODELS:
        raise ConfigError("not_a_choice", f"model is {model!r}; allowed are {' and '.join(MODELS)}.", "model")
    return str(model)


def textbook_reply(kernel: Kernel, experiment: Experiment, gpu: Gpu, options: object) -> dict[str, Any]:
    """The body of /coalescing with the textbook model.

    Args:
        options: None, or fields of `Textbook`: {"warp_size": 4, "line_bytes": 16, …}.
    """
    board = textbook.textbook(options)
    counted = textbook.operations(kernel, Launch(experiment.problem, experiment.config, gpu), board)
    return {
        "model": "textbook",
        "textbook": dataclasses.asdict(board),
        "ops": [verdicts.to_json(op, why.on_the_blackboard(op), None) for op in counted],
        "totals": verdicts.costs(counted),
    }


def compiled_reply(
    kernel: Kernel, experiment: Experiment, gpu: Gpu, made: Compiled, counters: Counters | None
) -> dict[str, Any] | Failure:
    """The body of /coalescing with the compiled model, beside what was counted where it is the same code."""
    if made.unreadable:
        return Failure("compile", "unreadable", f"The compiled kernel could not be read: {made.unreadable}")
    launch = Launch(experiment.problem, experiment.config, gpu)
    found = verdicts.verdicts(kernel, launch, Textbook(), made, counters)
    operations = found.compiled or ()
    alike = found.counted_is_compiled
    return {
        "model": "compiled",
        "triton": made.triton,
        "ops": [
            verdicts.to_json(op, _reason(op, found, made), verdicts.count_of(op, found) if alike else None)
            for op in operations
        ],
        "totals": verdicts.costs(operations),
    }


def _reason(op: Operation, found: Verdicts, made: Compiled) -> str:
    return why.compiled(op, found.gpu_board[op.number], found.kernel, found.launch, made.shared_bytes)
