"""The Memory view's sentences and tables: how much of the moved bytes each operation uses, and why.

One definition of waste holds everywhere. A sector has 32 bytes, or fewer on a textbook machine. Of the
sectors that a request touches, bytes that a lane accesses are used, and the others are wasted. Efficiency is another
number: the fewest sectors that could hold the request's bytes, divided by the sectors that it touches.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from markupsafe import Markup

from tilescope.declare.spec import AnyAccess, Kernel
from tilescope.evaluate import causes
from tilescope.evaluate.counts import Cost, OperationCounts, sum_costs
from tilescope.evaluate.declared import DeclaredCounts
from tilescope.numbers import bytes_of, count_noun, join_names, percent, source
from tilescope.reports.launch import COST_COLUMNS
from visualize.predict.costs import LaunchCosts, count_of, launch_totals
from visualize.views.prose import (
    Code,
    Hint,
    Link,
    Sentence,
    Sourced,
    Strong,
    config_text,
    headline,
    html,
    say,
    table,
    term,
)
from visualize.views.slots import template

# From this multiple of the sectors needed, the headline is the multiple; below, it is the share of used bytes.
_NOTABLE_FACTOR = 1.1

_LEVEL = "The L2 merges some of these sectors, so the time grows more slowly than their number."

_VERBS = {"descriptor": "copy", "atomic": "update"}


def used_bytes(op: DeclaredCounts) -> int:
    """Return the bytes that an operation's requests use over the launch: each byte counts once per request."""
    code = op.compiled
    replicas = 0
    if code and code.layout and code.op == "load":  # lanes with replicas load them too
        replicas = sum(not any(base) for base in code.layout.lane)
    return op.launch.bytes_wanted >> replicas


def label(access: AnyAccess) -> str:
    """Return the operation and its tensor, "load A". An atomic that became a load and a loop has a row for each."""
    return f"{access.op} {access.tensor}"


def place(access: AnyAccess) -> Code:
    """Return the operation's source line, "flat.py:33", with its path as hover text."""
    file, line = access.source
    return Code(f"{file.rsplit('/', 1)[-1]}:{line}", f"{file}, line {line}")


def _used_share(operations: Sequence[DeclaredCounts]) -> str:
    """Return the used bytes as a percentage of the bytes in all sectors: "100 %" only if all are used.

    The counter of copies that bypass L1 may count fewer sectors than requests touch; the share is then 100 %.
    """
    used = sum(map(used_bytes, operations))
    moved = _moved_bytes(operations)
    return f"{100 * min(used / moved, 0.999):.3g} %" if used < moved else "100 %"


def _moved_bytes(operations: Sequence[DeclaredCounts]) -> int:
    return sum(op.launch.sector_bytes * op.launch.sectors for op in operations)


def _title(op: DeclaredCounts) -> str:
    return op.name[0].upper() + op.name[1:]


def memory_headline(
    costs: LaunchCosts, number: int, worst: int, is_compared: bool = False
) -> Markup:
    """Render the cost of one operation as compiled, or on the textbook machine until it is compiled.

    Args:
        number: index of the operation in the picture.
        worst: index of the operation that wastes the most sectors.
        is_compared: whether another experiment's headline is beside it, so both need the same unit.
    """
    op = costs.find(number)
    operations = costs.compiled
    comparison = ""
    share = _used_share([op])
    factor = op.launch.sectors / max(op.launch.ideal_sectors, 1)
    amount = f"{factor:.2g} ×"
    what: Sentence | str = say("the {} needed", term("sector", "sectors"))
    if is_compared or factor < _NOTABLE_FACTOR:
        amount = share
        what = f"of the moved bytes are used{': fully coalesced' if share == '100 %' else ''}"
    if number != worst and operations and (most := costs.find(worst)).launch.wasted_sectors > 0:
        comparison = f"{_title(most)} wastes the most sectors."
    elif operations and all(_used_share([each]) == "100 %" for each in operations):
        comparison = "No operation of this launch wastes a byte."
    why = say("{} ({}): {}", _title(op), place(op.access), explain(op, costs))
    level = _LEVEL * (factor >= _NOTABLE_FACTOR)
    note = costs.kernel.note(costs.launch)
    sentences = level, launch_sentence(costs), *_textbook_sentences(costs), note
    return headline(
        amount,
        Sourced(what, "predicted" if operations else "textbook"),
        why,
        comparison,
        *sentences,
    )


def launch_sentence(costs: LaunchCosts) -> Sentence | str:
    """Return the compiled launch's cost; "" until it is compiled."""
    operations = costs.compiled
    gpu = costs.launch.gpu.name
    if not operations:
        return ""
    cost = sum_costs(operations)
    sectors = Sourced(Strong(count_noun(cost.sectors, "sector")), "predicted")
    if all(op.is_box for op in operations):
        sentence = "As compiled for {}, no lane issues a request; the TMA copies {} in boxes."
        return say(sentence, gpu, sectors)
    requests = Strong("at least " * cost.is_lower_bound + count_noun(cost.requests, "request"))
    sentence = "As compiled for {}, the launch issues {} that touch {}; {} of them are needed."
    return say(sentence, gpu, requests, sectors, Strong(percent(cost.efficiency)))


def agreement_sentence(costs: LaunchCosts) -> Sentence | str:
    """Say whether Nsight Compute counted the compiled numbers; "" if one of them is unknown."""
    counters = costs.counters
    predicted = sum_costs(costs.predicted)
    if counters is None or not costs.compiled:
        return ""
    counts = [count for op in costs.predicted if (count := count_of(op, costs))]
    counts += [total for _, total in launch_totals(costs).values()]
    counter = source(counters.backend, "counted")
    if any(count.agreement == "different" for count in counts):
        return say(
            "{}: see the rows marked ≠.",
            Sourced("Nsight Compute counted different numbers", counter),
        )
    if not costs.counted_is_compiled:
        sentence = "Nsight Compute counted different code, from {}: {:,} requests, as predicted for that code."
        return say(
            sentence, Sourced(f"Triton {counters.device.triton}", counter), predicted.requests
        )
    repeats = ", except for the atomics, which retry" if predicted.is_lower_bound else ""
    device = Sourced(f"{counters.device.name}{repeats}", counter)
    return say("Nsight Compute counted {} on {}.", Strong("the same"), device)


def textbook_headline(costs: LaunchCosts) -> Markup:
    """Render the transactions of the first tile with textbook lanes."""
    total = sum(op.tile.lines for op in costs.textbook)
    what = Sourced("transactions per tile", "textbook")
    sentences = (
        *_textbook_sentences(costs),
        launch_sentence(costs),
        costs.kernel.note(costs.launch),
    )
    return headline(f"{total:,}", what, *sentences)


def _textbook_sentences(costs: LaunchCosts) -> tuple[Sentence, Sentence]:
    """Return the transactions of the first tile with textbook lanes, and what a transaction is."""
    operations = costs.textbook
    machine = costs.machine
    lines = Counter[str]()
    ratio = Sentence("")
    for op in operations:  # an output written by two instructions is stored once
        lines[f"to {_VERBS.get(op.access.op, op.access.op)} {op.access.tensor}"] += op.tile.lines
    if costs.kernel.family.panels is None:  # the kernel stores what it loads
        elements = operations[-1].tile.bytes_wanted // operations[-1].width_bytes
        if elements >= lines.total():
            ratio = say(": {} elements per transaction", Strong(f"{elements / lines.total():.2f}"))
        elif elements > 1:
            ratio = say(", more transactions than its {}", count_noun(elements, "element"))
    (purpose, first), *others = lines.items()
    parts = [f"{count_noun(first, 'transaction')} {purpose}"]
    total = Strong(join_names(parts + [f"{count:,} {purpose}" for purpose, count in others]))
    first_tile = say("On the textbook machine, the first tile takes {}{}.", total, ratio)
    lanes = "A transaction is a line of {} bytes that a warp of {} lanes touches."
    return first_tile, say(lanes, machine.line_bytes, machine.warp_size)


def flow_title(
    title: str, kernel: Kernel, config: Any, op: DeclaredCounts, query: str = ""
) -> Markup:
    """Render the title of a picture: a kernel, as a link if `query` names its address, its tile, and an operation."""
    name = f"{kernel.family.root.id}: {kernel.title}"
    tile = config_text(config).split(", ")[0]
    return Markup("<p>{} {}, {}, {}</p>").format(
        title, Link(name, query) if query else Strong(name), tile, op.name
    )


def launch_bar(
    operations: Sequence[DeclaredCounts], beside: Sequence[DeclaredCounts], *more: Sentence | str
) -> Markup:
    """Render the used and wasted bytes of operations over the whole launch.

    Args:
        beside: the operations of the other picture: the longer bar of both takes the whole width.
        more: sentences below. Empty ones are omitted.
    """
    used = sum(map(used_bytes, operations))
    moved = _moved_bytes(operations)
    other = _moved_bytes(beside)
    sectors = count_noun(sum_costs(operations).sectors, "sector")
    title = _title(operations[0])
    share = _used_share(operations)
    sentence = say("{} in the whole launch: {}, {} used.", title, sectors, share)
    return Markup(
        '<div class="bytes" aria-hidden="true" style="width: {:.2f}%"><i style="width: {:.2f}%"></i></div><p>{}</p>'
    ).format(
        100 * moved / max(moved, other, 1),
        100 * min(1, used / max(moved, 1)),
        html([sentence, *more]),
    )


def explain(op: DeclaredCounts, costs: LaunchCosts) -> str:
    """Explain the cost of one operation, compiled or not, and what the compiler does differently from the textbook."""
    tensor = op.access.tensor
    pitch = costs.kernel.tensors(costs.launch)[tensor].stored[1]
    textbook = None if op.is_textbook else costs.textbook[op.number].launch
    sizes = {f"The row stride of {tensor}": pitch}
    return causes.explain(
        op, op.launch, textbook, op.pattern.requests, sizes, _converted(costs), costs.launch.gpu
    )


def _converted(costs: LaunchCosts) -> set[tuple[str, int]]:
    return {each.source for each in costs.code.conversions} if costs.code else set()


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

_REASONS = template(
    """
<ul class="reasons quiet">{% for name, why in reasons %}<li><b>{{ name }}</b>: {{ why }}</li>{% endfor %}</ul>
"""
)

_HEADER = (
    "operation",
    "line",
    "source",
    term("width"),
    *(
        term(entry, name.removesuffix("_sectors").replace("_", " "))
        for name, entry in COST_COLUMNS.items()
    ),
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
    return table(header, rows, "Totals of the launch") + _REASONS(reasons=reasons)


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
