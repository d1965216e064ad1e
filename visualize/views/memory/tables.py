"""The Memory view's tables: every operation, the launch's counters, and shared memory."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from kernels.evaluate.counts import Cost, sum_costs
from kernels.evaluate.declared import DeclaredCounts
from kernels.evaluate.shared_memory import wavefronts_per_instruction
from kernels.instructions import Conversion, SharedInstruction
from kernels.results import SharedCounts
from kernels.sectors import SECTOR_BYTES
from visualize.numbers import percent
from visualize.predict.agreement import LaunchCosts, count_of, launch_totals
from visualize.reports.launch import AMOUNTS, LaunchReport, OperationReport
from visualize.reports.text import bounded_count
from visualize.views.memory.text import explain, label, place, used_bytes
from visualize.views.prose import Code, Hint, Link, Sourced, Strong, hint, term
from visualize.views.tables import table, traffic_funnel

# Sign, hover text and style of each agreement between a prediction and a count.
_SIGNS = {
    "equal": Hint(
        "✓", "Predicted and counted lines, sectors and known requests are equal.", "equal"
    ),
    "at least": Hint(
        "≥",
        "Predicted: the first iteration of a loop that retries. Counted: all iterations.",
        "equal",
    ),
    "undercounted": Hint(
        "✓ except sectors", "Lines are equal. ncu misses some sectors here, none below.", "unsure"
    ),
    "overcounted": Hint(
        "✓ except sectors", "Lines are equal. ncu counts some sectors twice, none below.", "unsure"
    ),
    "different": Hint("≠", "Predicted and counted differ.", "wrong-value"),
    "fewer": Hint(
        "fewer at the edge", "Predicted: a whole tile. Lanes past the edge read nothing.", "unsure"
    ),
}

_REASON = Markup("<li>{}: {}</li>")
_REASONS = Markup('<ul class="reasons">{}</ul>')

_NOT_COMPILED = "This is known once the kernel is compiled."

# The opcode of each step of a layout conversion through shared memory.
_OPCODES = {"store": "STS", "store matrix": "STSM", "load": "LDS", "load matrix": "LDSM"}


_HEADER = (
    "operation",
    "line",
    "verdict",
    term("width"),
    *(term(entry, name.removesuffix("_sectors")) for name, entry in AMOUNTS.items()),
    term("efficiency"),
    "agrees",
)


def report_table(
    launch: LaunchReport, textbook: Sequence[OperationReport], links: Sequence[str]
) -> Markup:
    """Render the textbook and compiled cost of each operation of a captured launch, and the findings about it.

    Args:
        textbook: the operations as the textbook model counts them.
        links: the query of each operation's picture.
    """
    boards = {op.place: op for op in textbook}
    rows = []
    reasons = Markup()
    for op, link in zip(launch.ops, links, strict=True):
        where = Link(f"{op.file}:{op.line}", link)
        board = boards.pop(op.place, None)
        shown = {"textbook": board} if board and board.width_bytes else {}
        for verdict, each in {**shown, "compiled": op}.items():
            rows.append(
                (
                    each.name,
                    where,
                    verdict,
                    f"{each.width_bytes} B" if each.width_bytes else "",
                    *(bounded_count(each, getattr(each, name)) for name in AMOUNTS),
                    percent(each.efficiency) if each.efficiency else "",
                )
            )
        if why := " ".join(filter(None, [op.refused, op.why])):
            reasons += _REASON.format(Strong(op.name), why)
    return table(_HEADER[:-1], rows, "Totals of the launch") + _REASONS.format(reasons)


def operations_table(costs: LaunchCosts) -> Markup:
    """Render the textbook, compiled and counted cost of each operation, and the reasons for them."""
    counters = costs.counters
    rows = []
    reasons = Markup()
    for board in costs.textbook:
        compiled, predicted = (
            [op for op in operations if op.number == board.number]
            for operations in (costs.compiled, costs.predicted)
        )
        rows += [_cost_row("textbook", board, board.launch)]
        rows += [_cost_row("compiled", op, op.launch) for op in compiled]
        if counters and not costs.counted_is_compiled:
            rows += [
                _cost_row(f"compiled, Triton {counters.device.triton}", op, op.launch)
                for op in predicted
            ]
        rows += [
            _cost_row("counted", op, count) for op in predicted if (count := count_of(op, costs))
        ]
        for op in compiled or [board]:
            reasons += _REASON.format(Strong(label(op.access)), explain(op, costs))
    return table(_HEADER, rows, "Totals of the launch") + _REASONS.format(reasons)


def _cost_row(verdict: str, op: DeclaredCounts, cost: Cost) -> tuple[Any, ...]:
    sign = "≥ " * cost.is_lower_bound
    amounts: dict[str, Any] = {name: f"{sign}{getattr(cost, name):,}" for name in AMOUNTS}
    if not cost.has_requests:
        amounts["requests"] = Hint(
            "below", "The counter holds all operations of this kind.", "hint"
        )
    executed = f"{cost.executed:,} warp instructions, including those without an active lane"
    return (
        label(op.access),
        place(op.access),
        Hint(verdict, f"{', '.join(cost.opcodes)}: {executed}") if cost.opcodes else verdict,
        f"{op.width_bytes} B" if op.width_bytes else "",
        *amounts.values(),
        percent(cost.efficiency) if cost.sectors else "",
        _SIGNS.get(cost.agreement, ""),
    )


def traffic_section(costs: LaunchCosts) -> Markup:
    """Render the bytes from lanes to DRAM as bars, and the hardware's counters beside their predictions."""
    operations = costs.compiled
    counters = costs.counters
    parts = Markup()
    if operations:
        stages = [
            ("used by lanes and boxes", sum(map(used_bytes, operations)), "predicted"),
            (
                "moved in sectors, through L1",
                SECTOR_BYTES * sum_costs(operations).sectors,
                "predicted",
            ),
            (
                "minimum: each tensor once",
                costs.kernel.family.minimal_bytes(costs.launch.problem),
                "predicted",
            ),
        ]
        if counters:
            moved = counters.launch["dram_read_bytes"] + counters.launch["dram_write_bytes"]
            stages.append(("DRAM traffic, starting with cold caches", int(moved), "counted"))
        parts += traffic_funnel(stages, "Bytes from lanes to DRAM")
    if counters:
        header = (
            "counters of the launch",
            "requests predicted",
            "counted",
            "sectors predicted",
            "counted",
            "agrees",
        )
        caption = f"{counters.tool}, {counters.device.name}, Triton {counters.device.triton}. {counters.note}"
        rows = []
        for kind, (predicted, counted) in launch_totals(costs).items():
            sign = "≥ " * predicted.is_lower_bound
            requests = (
                f"{sign}{predicted.requests:,}",
                f"{counted.requests:,}" if counted.has_requests else "",
            )
            sectors = f"{sign}{predicted.sectors:,}", f"{counted.sectors:,}"
            rows.append((f"{kind}s", *requests, *sectors, _SIGNS[counted.agreement]))
        parts += table(header, rows, caption.strip())
    return parts or hint(_NOT_COMPILED)


def conversions_table(costs: LaunchCosts) -> Markup:
    """Render each step of each layout conversion: wavefronts predicted and, if this code was counted, counted."""
    code = costs.code
    rows = []
    if code is None:
        return hint(_NOT_COMPILED)
    for number, conversion in enumerate(code.conversions):
        counts = _conversion_counts(costs, number, conversion)
        steps = [step for step in code.shared if step.source == conversion.source]
        shape = " × ".join(map(str, conversion.shape))
        size = conversion.element_bytes * math.prod(conversion.shape)
        first = (
            Code("{}:{}".format(*conversion.source)),
            f"{shape} of {conversion.element_bytes} B: {size:,} bytes",
        )
        for kind, opcode in _OPCODES.items():
            if alike := [step for step in steps if step.op == kind]:
                counted = [row for row in counts if row.opcode.partition(".")[0] == opcode]
                rows.append((*first, *_step_cells(alike, counted)))
        if not steps:
            rows.append((*first, "between lanes, without shared memory"))
    if not rows:
        return hint("No block changes its layout.")
    wavefronts = term("wavefront", "wavefronts per instruction")
    header = "source", "block", "step", wavefronts, "without conflicts", "counted", "agrees"
    caption = "Layout conversions through shared memory: wavefronts and bank conflicts of one warp's instruction"
    return table(header, rows, caption)


def _conversion_counts(costs: LaunchCosts, place: int, now: Conversion) -> list[SharedCounts]:
    """Return the counts of a conversion. Its line may have moved since the count, so its place identifies it.

    Args:
        place: index of the conversion among the kernel's.
    """
    counters = costs.counters
    if counters is None or not costs.counted_is_compiled:
        return []
    then = counters.compiled.conversions[place : place + 1]
    sources = [each.source for each in then if replace(each, source=now.source) == now]
    return [row for row in counters.shared if row.source in sources]


def _step_cells(
    alike: Sequence[SharedInstruction], counts: Sequence[SharedCounts]
) -> tuple[Any, ...]:
    """Return the cells from the step to the agreement."""
    predicted, ideal = wavefronts_per_instruction(alike)
    cells = (
        Hint(alike[0].op, alike[0].instruction),
        Sourced(f"{predicted:.3g}", "predicted"),
        f"{ideal:.3g}",
    )
    executed = sum(row.executed for row in counts)
    if not executed:
        return cells
    counted = sum(row.wavefronts for row in counts) / executed
    agreement = (
        "equal"
        if math.isclose(counted, predicted)
        else "fewer"
        if counted < predicted
        else "different"
    )
    return (*cells, f"{counted:.3g}", _SIGNS[agreement])
