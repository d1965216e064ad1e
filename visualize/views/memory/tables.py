"""The Memory view's tables: every operation, and the launch's counters."""

from collections.abc import Iterable, Sequence
from typing import Any

from markupsafe import Markup

from tilescope.evaluate.counts import Cost, OperationCounts
from tilescope.numbers import bytes_of, percent
from tilescope.reports.launch import COST_COLUMNS
from visualize.predict.costs import LaunchCosts, count_of, launch_totals
from visualize.views.memory.text import explain, place
from visualize.views.prose import Hint, Strong, term
from visualize.views.tables import table

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
        "✓ in the totals",
        "Line counts match. ncu misses some sectors here, but none in the totals.",
        "unsure",
    ),
    "overcounted": Hint(
        "✓ in the totals",
        "Line counts match. ncu counts some sectors twice here, but none in the totals.",
        "unsure",
    ),
    "different": Hint("≠", "Predicted and counted differ.", "wrong-value"),
}

_REASON = Markup("<li>{}: {}</li>")
_REASONS = Markup('<ul class="reasons quiet">{}</ul>')

_HEADER = (
    "operation",
    "line",
    "source",
    term("width"),
    *(term(entry, name.removesuffix("_sectors")) for name, entry in COST_COLUMNS.items()),
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
    amounts: dict[str, Any] = {name: f"{sign}{getattr(cost, name):,}" for name in COST_COLUMNS}
    if not cost.has_requests:
        amounts["requests"] = Hint(
            "below", "One counter holds all operations of this kind.", "hint"
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
    """Render the textbook, compiled and counted cost of each operation, the reasons for them, and counted totals."""
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
    return operations_table(rows, reasons) + _totals_table(costs)


def _totals_table(costs: LaunchCosts) -> Markup:
    """Render the launch's hardware counters next to their predictions."""
    counters = costs.counters
    if counters is None:
        return Markup()
    header = (
        "counters of the launch",
        "requests predicted",
        "counted",
        "sectors predicted",
        "counted",
        "agrees",
    )
    rows = []
    for kind, (predicted, counted) in launch_totals(costs).items():
        sign = "≥ " * predicted.is_lower_bound
        requests = (
            f"{sign}{predicted.requests:,}",
            f"{counted.requests:,}" if counted.has_requests else "",
        )
        sectors = f"{sign}{predicted.sectors:,}", f"{counted.sectors:,}"
        rows.append((f"{kind}s", *requests, *sectors, _SIGNS[counted.agreement]))
    traffic = counters.launch["dram_read_bytes"] + counters.launch["dram_write_bytes"]
    caption = (
        f"{counters.tool}, {counters.device.name}, Triton {counters.device.triton}. DRAM traffic, starting with cold "
        f"caches: {bytes_of(traffic)}. {counters.note}"
    )
    return table(header, rows, caption.strip())
