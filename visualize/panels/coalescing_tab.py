"""The Coalescing panel: textbook, compiled and counted side by side, and pictures of a tile and a request."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import gradio as gr
import numpy as np
from markupsafe import Markup

from kernels import orders
from kernels.jit import on_arrays
from kernels.knobs import ConfigError, knob
from kernels.results import Compiled, Counters, Failure
from kernels.spec import DTYPE_BYTES, Access, FlatAccess
from visualize.figures.coalescing_figure import COLORS, request_figure, tile_figure
from visualize.models import agreement, coalescing, textbook
from visualize.models.agreement import Verdicts
from visualize.models.textbook import Textbook
from visualize.models.traffic import LINE_BYTES, SECTOR_BYTES, Operation, Requests, Tile
from visualize.panels.endpoint import Api, Endpoint, Reply, answered
from visualize.panels.panel import Drawn, Measure, Panel
from visualize.state.known import Known
from visualize.state.state import State
from visualize.text import bank_conflicts, caption, coalescing_text, prose, status_text, verdicts, why
from visualize.widgets import form
from visualize.widgets.markup import markup
from visualize.widgets.plot import drawn, plot

MODELS = ("compiled", "textbook")
_OPS = {"descriptor": "descriptor's copy"}


@dataclass(frozen=True)
class LaneView:
    """Which execution of which memory operation is drawn."""

    of_kernel: ClassVar[bool] = True

    operation: int = knob(0, "Picture", "The memory operation, in source order.", low=0, high=15)
    program: int = knob(0, "Picture", "The program (pid) whose first tile is drawn.", low=0, high=2**28, stops="powers")
    request: int = knob(0, "Picture", "The warp request that is drawn lane by lane.", low=0, high=2**20)
    model: str = knob(
        "compiled", "Picture",
        "compiled: the lanes that the compiler chose. textbook: those of the blackboard.",
        choices=MODELS,
    )  # fmt: skip
    tile_color: str = knob("request", "Picture", "What the colour of an element of the tile shows.", choices=COLORS)


@dataclass(frozen=True)
class _Shown:
    """The execution that the pictures show; `source` is the mark of its lanes."""

    access: Access | FlatAccess
    first: tuple[int, ...]
    lanes: Requests
    tile: Tile
    sector_bytes: int
    line_bytes: int
    source: str
    is_box: bool = False


class CoalescingPanel(Panel):
    """Textbook, compiled and counted side by side, and pictures of a tile and a request."""

    options = (Textbook, LaneView)

    def build(self) -> None:
        self.claim = markup("coalescing-claim")
        self.table = markup("coalescing-table")
        with gr.Row(elem_id="count-row"):
            count = gr.Button("Count with Nsight Compute", size="sm", elem_id="count")
        with gr.Row(elem_classes="view-forms"):
            self.forms[LaneView] = form.form("lanes-view", "Which execution is drawn")
            self.forms[Textbook] = form.form("board-view", "The blackboard's machine")
        with gr.Row(elem_classes="plots"):
            self.tile = plot("coalescing-plot", "The tile, coloured by request, warp, lane or register")
            self.request = plot("request-plot", "One request's lanes on the lines and sectors that it touches")
        self.outputs = [self.claim, self.table, self.tile, self.request, self.forms[LaneView]]
        self.actions = [Measure(count, "counters", lambda _, known: self.draw(known), self.outputs)]

    def draw(self, known: Known) -> Drawn:
        state, compiled, counters = known.state, known.compiled, known.result(Counters)
        lanes, board = state.view.of(LaneView), state.view.of(Textbook)
        found = agreement.verdicts(state.kernel, state.launch, board, compiled, counters)
        shown = _shown(known)
        request = min(lanes.request, len(shown.lanes.row) - 1)
        # Zoom is kept for as long as the same block is drawn.
        anew = f"{state.kernel.id} {shown.access.op} {shown.access.tensor} {shown.first} {shown.tile.row.shape}"
        tile = tile_figure(shown.tile, shown.access.tensor, lanes.tile_color, shown.sector_bytes)
        who = f"piece of {shown.lanes.width_bytes} bytes" if shown.is_box else "lane"
        one = request_figure(shown.lanes, request, shown.sector_bytes, shown.line_bytes, who)
        is_copy = state.kernel.family.panels is None
        claim = prose.claim(
            *verdicts.claim(found),
            *coalescing_text.blackboard_claim(found.board, board, is_copy),
            state.kernel.note(state.launch),
        )
        conflicts = bank_conflicts.table(compiled, counters if found.counted_is_compiled else None) if compiled else ""
        below = Markup('<div class="tables">{}{}{}</div>').format(
            verdicts.totals(found), conflicts, verdicts.funnel(found)
        )
        about = caption.about(state.experiment, state.gpu.name, shown.source)
        return {
            self.claim: _status(known) + claim,
            self.table: verdicts.table(found) + below,
            self.tile: drawn(tile, anew, about=about),
            self.request: drawn(one, f"{anew} {request}", about=about),
            self.forms[LaneView]: lanes_form(state, len(shown.lanes.row)),
        }

    def fill(self, known: Known) -> Drawn:
        return {**super().fill(known), self.forms[LaneView]: lanes_form(known.state, len(_shown(known).lanes.row))}

    def endpoints(self, api: Api) -> tuple[Endpoint, ...]:
        async def coalescing_of(
            experiment: dict[str, Any], model: str = "compiled", textbook: dict[str, Any] | None = None
        ) -> dict[str, Any]:
            """Requests, sectors, lines and ideal sectors of each memory operation over the launch, as compiled.

            Or with model "textbook", whose machine can be given.
            """
            if model == "textbook":
                return api.predicted(experiment, lambda known: textbook_reply(known, textbook))
            if model == "compiled":
                return await api.compiled(experiment, compiled_reply)
            return answered(lambda: _unknown(model))

        async def counters(experiment: dict[str, Any]) -> dict[str, Any]:
            """What Nsight Compute counts of a launch: requests, sectors and DRAM bytes; without a GPU as recorded."""
            return await api.measured(experiment, "counters")

        return Endpoint("coalescing", coalescing_of), Endpoint("counters", counters, at_once=None)


def _unknown(model: object) -> Reply:
    raise ConfigError("not_a_choice", f"model is {model!r}; allowed are {' and '.join(MODELS)}.", "model")


def _status(known: Known) -> Markup:
    """Why there are no lanes of the compiler's, where there are none."""
    if known.failure:
        return status_text.failed(known.failure)
    if known.compiled is None:
        return status_text.waiting(known.state.gpu.name)
    unreadable = known.compiled.unreadable
    return status_text.alert(coalescing_text.unreadable(unreadable)) if unreadable else Markup()


def lanes_form(state: State, requests: int) -> str:
    """The choice of operation, program and request, bounded by what there is.

    Args:
        requests: of the execution that is drawn.
    """
    accesses, programs = _accesses(state), state.kernel.programs(state.launch)
    labels = [f"{access.op} {access.tensor}" for access in accesses]
    view = state.view.of(LaneView)
    fields = form.fields(LaneView, {"operation": labels})
    for field, high in zip(fields[1:3], (programs - 1, requests - 1), strict=True):
        field |= {"high": high, "reach": high}
    values = {
        **dataclasses.asdict(view),
        "operation": min(view.operation, len(accesses) - 1),
        "program": min(view.program, programs - 1),
        "request": min(view.request, requests - 1),
    }
    return form.filled(fields, values)


def _accesses(state: State) -> tuple[Access | FlatAccess, ...]:
    return state.kernel.accesses(state.launch)


def _shown(known: Known) -> _Shown:
    """The chosen operation of the chosen program, with the chosen model's lanes (textbook's until there are others)."""
    state = known.state
    accesses, board, lanes_view = _accesses(state), state.view.of(Textbook), state.view.of(LaneView)
    number = min(lanes_view.operation, len(accesses) - 1)
    access, first = accesses[number], _first(state, accesses[number])
    shape = state.kernel.family.tensors(state.experiment.problem)[access.tensor].stored
    compiled = known.compiled
    if lanes_view.model == "compiled" and compiled is not None and not compiled.unreadable:
        operation, size = compiled.operations[number], DTYPE_BYTES[state.experiment.problem.dtype]
        lanes = coalescing.requests(access, operation, shape, first, size)
        tile = coalescing.tile(access, operation, shape, first, size)
        return _Shown(access, first, lanes, tile, SECTOR_BYTES, LINE_BYTES, "compiled", is_box=operation.layout is None)
    lanes = textbook.requests(access, shape, first, board.bytes_of(state.experiment.problem.dtype), board)
    return _Shown(access, first, lanes, textbook.tile(lanes), board.sector_bytes, board.line_bytes, "textbook")


def _first(state: State, access: Access | FlatAccess) -> tuple[int, ...]:
    """Where the first block of the operation in the chosen program begins."""
    program = min(state.view.of(LaneView).program, state.kernel.programs(state.launch) - 1)
    tiles = state.kernel.tiles(np.array([program]), state.launch)
    extents = state.kernel.extents(state.launch)
    first_step, _ = on_arrays(orders.slice_of_k)(tiles.pid_k[:1], extents.get("k", 1), extents.get("slice", 1))
    place = {"m": int(tiles.pid_m[0]), "n": int(tiles.pid_n[0]), "k": int(first_step[0])}
    axes = (access.run,) if isinstance(access, FlatAccess) else (access.rows, access.columns)
    return tuple(int(axis.start(place[axis.index], axis.block)) for axis in axes)


def textbook_reply(known: Known, options: object) -> dict[str, Any]:
    """The body of /coalescing with the textbook model.

    Args:
        options: None, or fields of `Textbook`: {"warp_size": 4, "line_bytes": 16, …}.
    """
    board = textbook.textbook(options)
    counted = textbook.operations(known.state.kernel, known.launch, board)
    return {
        "model": "textbook",
        "textbook": dataclasses.asdict(board),
        "ops": [agreement.to_json(op, why.on_the_blackboard(op), None) for op in counted],
        "totals": agreement.costs(counted),
    }


def compiled_reply(known: Known) -> Reply:
    """The body of /coalescing with the compiled model, beside what was counted where it is the same code."""
    made = known.compiled
    if made is None or made.unreadable:
        why = made.unreadable if made else "it is not known"
        return Failure("compile", "unreadable", f"The compiled kernel could not be read: {why}")
    found = agreement.verdicts(known.state.kernel, known.launch, Textbook(), made, known.result(Counters))
    operations = found.compiled or ()
    alike = found.counted_is_compiled
    return {
        "model": "compiled",
        "triton": made.triton,
        "ops": [
            agreement.to_json(op, _reason(op, found, made), agreement.count_of(op, found) if alike else None)
            for op in operations
        ],
        "totals": agreement.costs(operations),
    }


def _reason(op: Operation, found: Verdicts, made: Compiled) -> str:
    return why.compiled(op, found.gpu_board[op.number], found.kernel, found.launch, made.shared_bytes)
