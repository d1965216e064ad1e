"""The Memory view's tables: every operation, the launch's counters, and shared memory."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from kernels.evaluate.counts import Cost, OperationCounts, sum_costs
from kernels.evaluate.shared_memory import wavefronts_per_instruction
from kernels.instructions import Conversion, SharedInstruction
from kernels.results import SharedCounts
from kernels.sectors import SECTOR_BYTES
from visualize.numbers import percent
from visualize.predict.agreement import LaunchCosts, count_of, launch_totals
from visualize.reports.launch import AMOUNTS
from visualize.views.memory.text import explain, place, used_bytes
from visualize.views.prose import Code, Hint, Sourced, Strong, hint, term
from visualize.views.tables import table, traffic_funnel

# Sign, hover text and style of each agreement between a prediction and a count.
_SIGNS = {
    "equal": Hint(
        "✓", "Predicted and counted lines, sectors and known requests are equal.", "equal"
    ),
    "at least": Hint(
        "≥",
        "Predicted: the first iteration of a retry loop. Counted: all iterations.",
        "equal",
    ),
    "undercounted": Hint(
        "✓ except sectors", "Line counts match. ncu misses some sectors here, none below.", "unsure"
    ),
    "overcounted": Hint(
        "✓ except sectors",
        "Line counts match. ncu counts some sectors twice here, none below.",
        "unsure",
    ),
    "different": Hint("≠", "Predicted and counted differ.", "wrong-value"),
    "fewer": Hint(
        "fewer at the edge", "Predicted: a whole tile. Lanes past the edge read nothing.", "unsure"
    ),
}

_REASON = Markup("<li>{}: {}</li>")
_REASONS = Markup('<ul class="reasons quiet">{}</ul>')

_NOT_COMPILED = "Available once the kernel is compiled."

# The opcode of each step of a layout conversion through shared memory.
_OPCODES = {"store": "STS", "store matrix": "STSM", "load": "LDS", "load matrix": "LDSM"}


_HEADER = (
    "operation",
    "line",
    "source",
    term("width"),
    *(term(entry, name.removesuffix("_sectors")) for name, entry in AMOUNTS.items()),
    term("efficiency"),
    "agrees",
)


def operations_table(rows: Sequence[Sequence[Any]], reasons: Iterable[tuple[str, str]]) -> Markup:
    """Render the costs of a launch's operations, and the reasons for them.

    Args:
        rows: made by `cost_row`.
        reasons: the names of operations with an explanation each.
    """
    header = _HEADER[: max(map(len, rows), default=0)]
    listed = Markup("").join(_REASON.format(Strong(name), why) for name, why in reasons)
    return table(header, rows, "Totals of the launch") + _REASONS.format(listed)


def cost_row(source: str, op: OperationCounts, place: Any, cost: Cost) -> tuple[Any, ...]:
    """Return a row of the table of operations.

    Args:
        source: "textbook", "compiled" or "counted".
    """
    sign = "≤ " if cost.is_upper_bound else "≥ " * cost.is_lower_bound
    amounts: dict[str, Any] = {name: f"{sign}{getattr(cost, name):,}" for name in AMOUNTS}
    if not cost.has_requests:
        amounts["requests"] = Hint(
            "below", "The counter holds all operations of this kind.", "hint"
        )
    executed = f"{cost.executed:,} warp instructions, including those without an active lane"
    row = (
        op.name,
        place,
        Hint(source, f"{', '.join(cost.opcodes)}: {executed}") if cost.opcodes else source,
        f"{op.width_bytes} B" if op.width_bytes else "",
        *amounts.values(),
        percent(cost.efficiency) if cost.ideal_sectors else "",
    )
    return (*row, _SIGNS[cost.agreement]) if cost.agreement else row


def declared_operations_table(costs: LaunchCosts) -> Markup:
    """Render the textbook, compiled and counted cost of each operation, and the reasons for them."""
    counters = costs.counters
    rows = []
    reasons = []
    for textbook in costs.textbook:
        compiled, predicted = (
            [op for op in operations if op.number == textbook.number]
            for operations in (costs.compiled, costs.predicted)
        )
        parts = [("textbook", textbook, textbook.launch)]
        parts += [("compiled", op, op.launch) for op in compiled]
        if counters and not costs.counted_is_compiled:
            older = f"compiled, Triton {counters.device.triton}"
            parts += [(older, op, op.launch) for op in predicted]
        parts += [("counted", op, count) for op in predicted if (count := count_of(op, costs))]
        rows += [cost_row(source, op, place(op.access), cost) for source, op, cost in parts]
        reasons += [(op.name, explain(op, costs)) for op in compiled or [textbook]]
    return operations_table(rows, reasons)


def traffic_section(costs: LaunchCosts) -> Markup:
    """Render the bytes from lanes to DRAM as bars, and the hardware's counters next to their predictions."""
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
