"""The Coalescing panel: a request drawn on memory, by textbook, compiler and counters, and the tables behind it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from kernels.experiment import JsonSchema, argument_schemas
from kernels.knobs import knob, knobs
from kernels.results import Counters, Failure
from visualize.predict import textbook
from visualize.predict.agreement import Verdicts, count_of, sum_costs, worst
from visualize.predict.textbook import Textbook
from visualize.predict.traffic import SECTOR_BYTES, Cost, Operation
from visualize.views import form, slots, status
from visualize.views.endpoint import Api, Endpoint, Reply, answered
from visualize.views.memory import tables, text
from visualize.views.memory.figures import COLORS, sectors_figure, tile_figure
from visualize.views.memory.memory_picture import LaneView, accesses, execution, pictures
from visualize.views.memory.scrubber import scrubber
from visualize.views.memory.why import explain, explain_textbook
from visualize.views.numbers import Number
from visualize.views.plot import drawn
from visualize.views.prose import picture_caption
from visualize.views.slots import button, fold, plot, slot
from visualize.views.snapshot import Known
from visualize.views.state import State
from visualize.views.summaries import request_numbers
from visualize.views.view import Panel, RunAction, Slots

# What else /coalescing takes.
SCHEMAS: dict[str, JsonSchema] = {
    "model": {
        **argument_schemas(LaneView)["model"],
        "description": "compiled: lanes and widths the compiler chose. textbook: adjacent lanes, adjacent elements.",
    },
    "textbook": {
        "type": "object",
        "description": "The textbook model's machine. Default: a GPU's.",
        "properties": argument_schemas(Textbook),
    },
}

# Fields of a Cost in the reply of /coalescing.
_AMOUNTS = ("requests", "sectors", "lines", "ideal_sectors", "bytes_wanted")
_LAUNCH = (*_AMOUNTS, "touched_sectors", "efficiency")


@dataclass(frozen=True)
class TileView:
    """How the tile is drawn, element by element."""

    tile_color: str = knob("request", "Tile", "What the colour of an element of the tile shows.", choices=COLORS)


class CoalescingPanel(Panel):
    """A request drawn on memory, by textbook, compiler and counters, and the tables behind it."""

    options = (LaneView, Textbook, TileView)

    forms = (("lanes-view", LaneView), ("tile-view", TileView), ("board-view", Textbook))

    def layout(self) -> Markup:
        board = "A request of textbook lanes, on the lines and sectors that it touches"
        tile = plot("coalescing-plot", "The tile, coloured by request, warp, lane or register")
        return Markup("").join(
            [
                slot("coalescing-claim"),
                slots.picture(
                    plot("textbook-plot", board),
                    plot("request-plot", "A request as compiled, on the lines and sectors that it touches"),
                    plot("counted-plot", "Sectors of the launch by textbook, compiler and counters"),
                    name="memory-picture",
                ),
                slots.row(scrubber(), button("count", "Count with Nsight Compute"), name="memory-row"),
                slots.form("lanes-view", "Which operation is drawn"),
                fold(
                    "verdicts-fold",
                    "Every operation of the launch: requests, sectors, lines",
                    slot("coalescing-table"),
                ),
                fold("totals-fold", "From lanes to DRAM: the launch's counters", slot("coalescing-totals")),
                fold("banks-fold", "Shared memory: layout conversions and bank conflicts", slot("bank-conflicts")),
                fold("tile-fold", "The tile, element by element", slots.form("tile-view", "What colours show"), tile),
                fold(
                    "board-fold",
                    "The textbook's machine: warp, line and element",
                    slots.form("board-view", "The textbook's machine"),
                ),
            ]
        )

    def actions(self) -> Mapping[str, RunAction]:
        return {"count": RunAction("counters")}

    def draw(self, known: Known) -> Slots:
        state, compiled, counters = known.state, known.compiled, known.result(Counters)
        lanes, board = state.view.of(LaneView), state.view.of(Textbook)
        found = Verdicts(state.kernel, state.launch, compiled, counters, board)
        on_the_board = lanes.model == "textbook"
        wasteful = worst(found, on_the_board)
        number = wasteful if lanes.operation == "worst" else min(int(lanes.operation), len(found.board) - 1)
        shown = execution(known, number)
        why_not = _why_not(known)

        def about(*sources: str) -> str:
            return picture_caption(state.experiment, state.gpu.name, *sources)

        on_board, as_compiled = pictures(shown, lanes.request, why_not, about)
        recorded = "recorded" if counters and counters.backend == "recorded" else "counted"
        sources = ["textbook", *(["compiled"] if compiled else []), *([recorded] if counters else [])]
        missing = {"compiled": why_not or f"Compiling for {state.gpu.name}", "counted": "not counted yet"}
        sector_bytes = board.sector_bytes if shown.board_leads else SECTOR_BYTES
        tile = tile_figure(shown.tile, shown.access.tensor, state.view.of(TileView).tile_color, sector_bytes)
        return {
            "coalescing-claim": _status(known) + _claim(known, found, number, wasteful),
            "textbook-plot": on_board,
            "request-plot": as_compiled,
            "counted-plot": drawn(sectors_figure(found, number, missing), shown.anew, about=about(*sources)),
            "lanes-view": lanes_form(state),
            "coalescing-table": tables.operations_table(found),
            "coalescing-totals": tables.traffic_section(found),
            "bank-conflicts": tables.conversions_table(found),
            "coalescing-plot": drawn(
                tile,
                f"{shown.anew} {shown.tile.row.shape}",
                about=about("textbook" if shown.board_leads else "compiled"),
            ),
        }

    def fill(self, known: Known) -> Slots:
        return {**super().fill(known), "lanes-view": lanes_form(known.state)}

    def summary(self, known: Known) -> tuple[Number, ...]:
        return request_numbers(known)

    def endpoints(self, api: Api) -> tuple[Endpoint, ...]:
        async def coalescing_of(
            experiment: dict[str, Any], model: str = "compiled", textbook: dict[str, Any] | None = None
        ) -> dict[str, Any]:
            """Predicts how well each load, store and atomic coalesces, over the whole launch.

            `ops` has, per operation, its source line, bytes per lane, warp requests, 32-byte sectors, 128-byte lines,
            ideal sectors, and efficiency: ideal / sectors, 1 is best. `why` explains what is lost. `counted` is Nsight
            Compute's count of the same code, or null. Needs no GPU.
            """
            if model == "textbook":
                return api.predicted(experiment, lambda known: textbook_reply(known, textbook))
            if model == "compiled":
                return await api.compiled(experiment, compiled_reply)
            return answered(lambda: {"model": knobs(LaneView)["model"].validate("model", model)})

        async def counters(experiment: dict[str, Any]) -> dict[str, Any]:
            """Counts a launch's requests, sectors and DRAM bytes with Nsight Compute.

            `launch` has the totals, `ops` those of each memory operation, `shared` those of shared memory. `backend`
            says whether they were counted here (cuda) or earlier (recorded), `device` on what GPU and versions. Without
            a GPU: recorded counts, or a failure.
            """
            return await api.measured(experiment, "counters")

        return (
            Endpoint("coalescing", coalescing_of, at_once=None, schemas=SCHEMAS),
            Endpoint("counters", counters, at_once=None, launches=True),
        )


def _why_not(known: Known) -> str:
    """Why there are no lanes of the compiler's; "" while they are still to come."""
    if known.failure:
        return "could not be compiled"
    return "could not be read" if known.compiled is not None and known.compiled.unreadable else ""


def _status(known: Known) -> Markup:
    """Why there are no lanes of the compiler's, where there will be none."""
    if known.failure:
        return status.render_failure(known.failure)
    unreadable = known.compiled.unreadable if known.compiled else ""
    return status.render_alert("The compiled kernel could not be read:", unreadable) if unreadable else Markup()


def _claim(known: Known, found: Verdicts, number: int, wasteful: int) -> Markup:
    """The blackboard's words where its lanes are stepped through, else what the compiled kernel costs."""
    state, board = known.state, known.state.view.of(Textbook)
    is_copy, note = state.kernel.family.panels is None, state.kernel.note(state.launch)
    if state.view.of(LaneView).model == "textbook":
        return text.textbook_headline(found.board, board, is_copy, *text.launch_sentences(found), note)
    on_the_board = text.textbook_sentences(found.board, board, is_copy)
    return text.memory_headline(found, number, wasteful, *on_the_board, note)


def lanes_form(state: State) -> str:
    """The choice of operation and program, bounded by what there is."""
    declared, view = knobs(LaneView), state.view.of(LaneView)
    names = [f"{access.op} {access.tensor}" for access in accesses(state)]
    last, programs = len(names) - 1, state.kernel.programs(state.launch)
    operation = form.field("operation", declared["operation"])
    operation |= {"choices": ["worst", *map(str, range(len(names)))], "labels": ["most wasteful", *names]}
    program = form.field("program", declared["program"]) | {"high": programs - 1}
    values = {
        **dataclasses.asdict(view),
        "operation": view.operation if view.operation == "worst" else str(min(int(view.operation), last)),
        "program": min(view.program, programs - 1),
    }
    return form.filled([operation, form.field("model", declared["model"]), program], values)


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
        "ops": [_operation(op, explain_textbook(op), None) for op in counted],
        "totals": _numbers(sum_costs(counted), *_LAUNCH),
    }


def compiled_reply(known: Known) -> Reply:
    """The body of /coalescing with the compiled model, beside what was counted where it is the same code."""
    made = known.compiled
    if made is None or made.unreadable:
        why = made.unreadable if made else "it is not known"
        return Failure("compile", "unreadable", f"The compiled kernel could not be read: {why}")
    found = Verdicts(known.state.kernel, known.launch, made, known.result(Counters))
    alike = found.counted_is_compiled
    return {
        "model": "compiled",
        "triton": made.triton,
        "ops": [_operation(op, explain(op, found), count_of(op, found) if alike else None) for op in found.compiled],
        "totals": _numbers(sum_costs(found.compiled), *_LAUNCH),
    }


def _operation(op: Operation, reason: str, count: Cost | None) -> dict[str, Any]:
    file, line = op.access.source
    counted = count and {
        **_numbers(count, "executed", "sectors", "lines", "ideal_sectors", "opcodes", "agreement"),
        "requests": count.requests if count.has_requests else None,
    }
    return {
        "op": op.access.op,
        "tensor": op.access.tensor,
        "file": file,
        "line": line,
        "width_bytes": op.width_bytes,
        **_numbers(op.launch, *_LAUNCH),
        "tile": _numbers(op.tile, *_AMOUNTS, "extra_sectors", "repeated_sectors", "efficiency"),
        "why": reason,
        "at_least": op.launch.is_lower_bound,
        "compiled": op.compiled and dataclasses.asdict(op.compiled),
        "counted": counted,
    }


def _numbers(cost: Cost, *names: str) -> dict[str, Any]:
    return {name: getattr(cost, name) for name in names}
