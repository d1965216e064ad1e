"""The Memory view: requests as flow from lanes to bytes, the tables behind them, and the compiler's own texts."""

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from kernels.compiling.memory_operations import memory_lines
from kernels.experiment import JsonSchema, argument_schemas
from kernels.jit import last_line, source_file, source_lines
from kernels.knobs import knob, knobs
from kernels.results import Compiled, Counters, Failure
from kernels.spec import Kernel, Launch
from visualize.predict import textbook
from visualize.predict.agreement import Verdicts, count_of, sum_costs, worst
from visualize.predict.schedule import occupancy
from visualize.predict.textbook import Textbook
from visualize.predict.traffic import Cost, Operation
from visualize.views import slots, status, theme
from visualize.views.address import query
from visualize.views.endpoint import Api, Endpoint, Reply
from visualize.views.memory import tables, text
from visualize.views.memory.figures import COLORS, tile_figure
from visualize.views.memory.flow import LaneView, find_contrast, flow_plot, make_flow, same_access
from visualize.views.memory.why import explain, explain_textbook
from visualize.views.numbers import Number
from visualize.views.plot import NONE, plot_value
from visualize.views.prose import picture_caption
from visualize.views.slots import button, fold, plot, slot
from visualize.views.state import Snapshot
from visualize.views.summaries import compiled_numbers, request_numbers
from visualize.views.view import Panel, RunAction, Slots

# Further arguments of /coalescing.
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

# The compiler's texts, and their titles.
_TEXTS = {"ttgir": "TTGIR", "ptx": "PTX", "sass": "SASS"}

_LEGEND = ((theme.WANTED, "used"), (theme.WASTED, "wasted"))
_SCRUBBER = Markup(
    '<div class="switch" role="group" aria-label="Requests">'
    '<button type="button" data-model="textbook">Blackboard</button>'
    '<button type="button" data-model="compiled">Compiled</button></div>'
    '<div class="player scrubber" role="group" aria-label="Requests of the program">'
    '<button type="button" class="back" aria-label="Previous request">←</button>'
    '<button type="button" class="forward" aria-label="Next request">→</button>'
    '<input type="range" min="0" max="0" value="0" aria-label="Request"><output></output>'
    '<span class="legend">{}</span></div>'
).format(Markup("").join(Markup('<span><i style="background:{}"></i>{}</span>').format(*entry) for entry in _LEGEND))


@dataclass(frozen=True)
class TileView:
    """How the tile is drawn, element by element."""

    tile_color: str = knob("request", "Tile", "What the color of an element shows.", choices=COLORS, label="Color by")


class CoalescingPanel(Panel):
    """One request as flow from lanes to bytes, beside another kernel's, and the tables behind it."""

    options = (LaneView, Textbook, TileView)

    forms = (("lanes-view", LaneView), ("tile-view", TileView), ("board-view", Textbook))

    def layout(self) -> Markup:
        flow = plot("request-plot", "A request: lines from its lanes to the bytes that they access, used or wasted")
        contrast = plot("contrast", "A request of another kernel for the same tensor")
        tile = plot("coalescing-plot", "The tile, coloured by request, warp, lane or register")
        return Markup("").join(
            [
                slot("coalescing-claim"),
                slots.row(
                    slots.form("lanes-view", "Which operation is drawn"),
                    slot("scrubber", "scrubber", _SCRUBBER),
                    name="memory-row",
                ),
                slots.picture(
                    slots.row(slot("flow-title"), flow, slot("flow-launch"), name="flow", classes="flow"),
                    slots.row(
                        slot("contrast-title"), contrast, slot("contrast-launch"), name="flow-contrast", classes="flow"
                    ),
                    name="memory-picture",
                ),
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
                    "The blackboard's machine: warp, line and element",
                    slots.form("board-view", "The blackboard's machine"),
                ),
                slots.row(button("count", "Count with Nsight Compute"), name="count-row"),
            ]
        )

    def actions(self) -> Mapping[str, RunAction]:
        return {"count": RunAction("counters")}

    def draw(self, known: Snapshot) -> Slots:
        state, compiled, counters = known.state, known.compiled, known.result(Counters)
        view, machine = state.view.of(LaneView), state.view.of(Textbook)
        found = Verdicts(state.kernel, state.launch, compiled, counters, machine)
        on_the_board = view.model == "textbook"
        wasteful = worst(found, on_the_board)
        number = wasteful if view.operation == "worst" else min(int(view.operation), len(found.board) - 1)
        code = compiled.operations[number] if compiled is not None and not compiled.unreadable else None
        board = make_flow(state.kernel, state.launch, number, None, machine, view.program)
        as_compiled = make_flow(state.kernel, state.launch, number, code, None, view.program) if code else None
        shown = board if on_the_board or as_compiled is None else as_compiled
        source = "textbook" if shown is board else "compiled"

        about = picture_caption(state.experiment, state.gpu.name, source)
        other = as_compiled if shown is board else board
        pending = "" if code else f"Compiling for {state.gpu.name}"
        if known.failure or (compiled and compiled.unreadable):
            pending = "The kernel could not be compiled"
        picture = flow_plot(shown, view.request, about, {"pending": pending, "is_main": True}, other)
        tile = tile_figure(
            shown.tile, shown.access.tensor, state.view.of(TileView).tile_color, shown.lanes.matrix.sector_bytes
        )
        return {
            "coalescing-claim": _status(known) + _headline(known, found, number, wasteful),
            "flow-title": text.flow_title(state.kernel, found.board[number], "This kernel"),
            "request-plot": picture,
            **_contrast(known, found, number, found.compiled if shown is as_compiled else found.board),
            "lanes-view": lanes_form(known),
            "coalescing-table": tables.operations_table(found),
            "coalescing-totals": tables.traffic_section(found),
            "bank-conflicts": tables.conversions_table(found),
            "coalescing-plot": plot_value(tile, f"{shown.block} {shown.tile.row.shape}", about=about),
        }

    def fill(self, known: Snapshot) -> Slots:
        return {**super().fill(known), "lanes-view": lanes_form(known)}

    def summary(self, known: Snapshot) -> tuple[Number, ...]:
        return request_numbers(known)

    def endpoints(self, api: Api) -> tuple[Endpoint, ...]:
        async def coalescing_of(
            experiment: dict[str, Any], model: str = "compiled", textbook: dict[str, Any] | None = None
        ) -> Reply:
            """Predicts how well each load, store and atomic coalesces, over the whole launch.

            `ops` has, per operation, its source line, bytes per lane, warp requests, 32-byte sectors, 128-byte lines,
            ideal sectors, and efficiency: ideal / sectors, 1 is best. `why` explains what is lost. `counted` is Nsight
            Compute's count of the same code, or null. Needs no GPU.
            """
            if model == "textbook":
                return api.reply_predicted(experiment, lambda known: textbook_reply(known, textbook))
            if model == "compiled":
                return await api.reply_compiled(experiment, compiled_reply)
            return {"model": knobs(LaneView)["model"].validate("model", model)}  # raises ConfigError

        async def counters(experiment: dict[str, Any]) -> Reply:
            """Counts a launch's requests, sectors and DRAM bytes with Nsight Compute.

            `launch` has the totals, `ops` those of each memory operation, `shared` those of shared memory. `backend`
            says whether they were counted here (cuda) or earlier (recorded), `device` on what GPU and versions. Without
            a GPU: recorded counts, or a failure.
            """
            return await api.reply_measured(experiment, "counters")

        return (
            Endpoint("coalescing", coalescing_of, max_concurrency=None, schemas=SCHEMAS),
            Endpoint("counters", counters, max_concurrency=None, launches=True),
        )


def _contrast(known: Snapshot, found: Verdicts, number: int, operations: tuple[Operation, ...]) -> Slots:
    """Draw the contrast, and below both pictures the bytes of the launch, on one scale.

    Args:
        operations: this kernel's, in the model of the picture.
    """
    state, access = known.state, found.board[number].access
    own = same_access(state.kernel, state.launch, access, operations)
    contrast, counted, title, picture, bar = None, text.counted_sentence(found, number), Markup(), NONE, Markup()
    if not state.pinned:
        judged = found.compiled or found.predicted or found.board
        contrast = find_contrast(state, [op for op in judged if op.number == number][-1])
    if contrast is None or contrast.is_alike:
        alike = text.alike_sentence(contrast.kernel) if contrast else ""
        return {
            "flow-launch": text.launch_bar(own, own, counted, alike),
            "contrast-title": title,
            "contrast": picture,
            "contrast-launch": bar,
        }
    op, launch = contrast.operation, contrast.launch
    address = {**contrast.experiment.short_address(), "tab": "coalescing", "operation": op.number}
    flow = make_flow(contrast.kernel, launch, op.number, op.compiled)
    caption = picture_caption(contrast.experiment, state.gpu.name, "compiled")
    return {
        "flow-launch": text.launch_bar(own, contrast.operations, counted),
        "contrast-title": text.flow_title(contrast.kernel, op, "Beside it", query(address)),
        "contrast": flow_plot(flow, state.view.of(LaneView).request, caption, {}),
        "contrast-launch": text.launch_bar(contrast.operations, own),
    }


def _status(known: Snapshot) -> Markup:
    """Render the reason why there is no compiled kernel, or "" if there is one or it is to come."""
    if known.failure:
        return status.render_failure(known.failure)
    unreadable = known.compiled.unreadable if known.compiled else ""
    return status.render_alert("The compiled kernel could not be read:", unreadable) if unreadable else Markup()


def _headline(known: Snapshot, found: Verdicts, number: int, wasteful: int) -> Markup:
    state, machine = known.state, known.state.view.of(Textbook)
    is_copy, note = state.kernel.family.panels is None, state.kernel.note(state.launch)
    if state.view.of(LaneView).model == "textbook":
        return text.textbook_headline(found.board, machine, is_copy, *text.launch_sentences(found), note)
    on_the_board = text.textbook_sentences(found.board, machine, is_copy)
    return text.memory_headline(found, number, wasteful, *on_the_board, note)


def lanes_form(known: Snapshot) -> str:
    """Return the form that chooses the operation and the program, bounded by those of the launch."""
    declared, state = knobs(LaneView), known.state
    view, programs = state.view.of(LaneView), state.kernel.programs(state.launch)
    names = [f"{access.op} {access.tensor}" for access in state.kernel.accesses(state.launch)]
    operation = slots.control("operation", declared["operation"])
    operation |= {"choices": ["worst", *map(str, range(len(names)))], "labels": ["most wasteful", *names]}
    program = slots.control("program", declared["program"]) | {"high": programs - 1}
    chosen = view.operation if view.operation == "worst" else str(min(int(view.operation), len(names) - 1))
    return slots.form_value([operation, program], {"operation": chosen, "program": min(view.program, programs - 1)})


def textbook_reply(known: Snapshot, options: object) -> dict[str, Any]:
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


def compiled_reply(known: Snapshot) -> Reply:
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


class CompilerPanel(Panel):
    """Registers, shared memory and occupancy, and the kernel's text at every stage."""

    def layout(self) -> Markup:
        return Markup("").join(
            [
                slot("compiler-claim"),
                slots.picture(slot("listing", "listing", Markup('<div class="listing"></div>'))),
                fold("compiler-resources", "What limits the number of programs per SM", slot("resources")),
            ]
        )

    def draw(self, known: Snapshot) -> Slots:
        compiled, kernel, launch = known.compiled, known.state.kernel, known.launch
        if known.failure:
            return {"compiler-claim": status.render_failure(known.failure), "listing": NONE, "resources": ""}
        if compiled is None:
            return {}
        held = occupancy(launch.gpu, launch.config.num_warps, compiled.registers, compiled.shared_bytes)
        operation = known.state.view.of(LaneView).operation
        wanted = 0 if operation == "worst" else int(operation)
        listing = json.dumps({**_listing(kernel, launch, compiled), "wanted": wanted}, ensure_ascii=False)
        return {
            "compiler-claim": text.compiler_headline(launch, compiled, held),
            "listing": listing,
            "resources": tables.resources_table(launch, compiled, held),
        }

    def waiting(self, known: Snapshot, seconds: float) -> Slots:
        return {"compiler-claim": status.render_compiling(known.state.gpu.name, seconds)}

    def summary(self, known: Snapshot) -> tuple[Number, ...]:
        return compiled_numbers(known)

    def endpoints(self, api: Api) -> tuple[Endpoint, ...]:
        async def compile_of(experiment: dict[str, Any]) -> Reply:
            """Compiles the kernel for any GPU of the table, without one.

            Returns registers per thread, spilled bytes, shared-memory bytes per program, programs per SM, occupancy
            (resident warps / most warps, 0 to 1) and what limits it; and the TTGIR, PTX and SASS. The compiler's facts,
            nothing is measured. Takes about a second; minutes for large tiles on few warps.
            """
            return await api.reply_compiled(experiment, compile_reply)

        return (Endpoint("compile", compile_of, max_concurrency=None),)


def _listing(kernel: Kernel, launch: Launch, compiled: Compiled) -> dict[str, Any]:
    """Panes of lines, and for each memory operation the lines in each pane (from 0) that carry it out."""
    accesses = kernel.accesses(launch)
    files = list(dict.fromkeys([source_file(kernel.jitted), *(access.source[0] for access in accesses)]))
    source: list[str] = []
    starts: dict[str, int] = {}
    for file in files:
        starts[file] = len(source) + 1
        source += [f"# {file}", *source_lines(file), ""]
    panes = [{"name": "Source", "lines": source}]
    for kind, title in _TEXTS.items():
        # nvdisasm leaves room for labels before an instruction, which would push it out of a narrow pane.
        panes.append({"name": title, "lines": re.sub(r"(?<=\*/) {3,}", "  ", getattr(compiled, kind)).splitlines()})
    operations = []
    for access in accesses:
        file, first = access.source
        last = last_line(access.source)
        marks = {"Source": [starts[file] + line - 1 for line in range(first, last + 1)]}
        for kind, title in _TEXTS.items():
            marks[title] = memory_lines(getattr(compiled, kind), kind, file.rsplit("/", 1)[-1], first, last)
        operations.append({"label": f"{access.op} {access.tensor}, {file.rsplit('/', 1)[-1]}:{first}", "marks": marks})
    return {"panes": panes, "operations": operations}


def compile_reply(known: Snapshot) -> Reply:
    """The body of /compile."""
    launch, compiled = known.launch, known.compiled
    if compiled is None:
        raise ValueError("Only a compiled kernel has a reply.")
    held = occupancy(launch.gpu, launch.config.num_warps, compiled.registers, compiled.shared_bytes)
    return {
        "registers": compiled.registers,
        "spilled_bytes": compiled.spilled_bytes,
        "shared_bytes": compiled.shared_bytes,
        "occupancy": held.occupancy,
        "programs_per_sm": held.programs_per_sm,
        "limited_by": list(held.limited_by),
        "limits": held.limits,
        "ttgir": compiled.ttgir,
        "ptx": compiled.ptx,
        "sass": compiled.sass,
        "triton": compiled.triton,
        "seconds": compiled.seconds,
    }
