"""The Memory view's tables: every operation, the launch's counters, shared memory, what-if, and an SM's resources."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from kernels.accesses import CompiledFacts, SharedOperation
from kernels.results import Compiled, Counters, SharedCounts
from kernels.spec import Launch
from visualize.predict.agreement import Verdicts, count_of, launch_totals, sum_costs
from visualize.predict.schedule import Occupancy
from visualize.predict.traffic import SECTOR_BYTES, Cost, Operation, wavefronts_per_instruction
from visualize.views.memory.text import place, used_bytes
from visualize.views.memory.why import explain, explain_textbook
from visualize.views.numbers import percent
from visualize.views.prose import Code, Hint, Sourced, hint, html, term
from visualize.views.tables import scrolling, table, traffic_funnel

# Style, sign and hover text of each agreement between a prediction and a count.
_AGREEMENTS = {
    "equal": ("equal", "✓", "Predicted and counted are equal: lines and sectors, and requests where they are known."),
    "at least": ("equal", "≥", "A loop that retries: its first iteration is predicted, all iterations were counted."),
    "undercounted": (
        "unsure",
        "✓ except sectors",
        "Lines are equal. ncu's per-instruction count misses some sectors, a different number in every run. The "
        "launch's own counter, below, misses none.",
    ),
    "different": ("wrong-value", "≠", "Predicted and counted differ."),
}

_NOT_COMPILED = "This is known once the kernel is compiled."

# Steps of a layout conversion through shared memory, and the opcode of each.
_STEPS = {
    "store": ("written", "STS"),
    "store matrix": ("written as matrices", "STSM"),
    "load": ("read", "LDS"),
    "load matrix": ("read as matrices", "LDSM"),
}


def _sign(agreement: str) -> Hint:
    style, sign, title = _AGREEMENTS[agreement]
    return Hint(sign, title, style)


def _each(template: str, values: Iterable[Any]) -> Markup:
    return Markup("").join(Markup(template).format(value) for value in values)


def operations_table(found: Verdicts) -> Markup:
    """Render a group of rows per operation: textbook, compiled and counted costs, and the reason for them."""
    header = (
        *("operation", "line", "verdict", term("width"), term("request", "requests"), term("sector", "sectors")),
        *(term("line", "lines"), term("ideal sectors", "ideal"), term("efficiency"), "agrees"),
    )
    groups = []
    for number, board in enumerate(found.board):
        rows = [_predicted_row("textbook", board)]
        rows += [_predicted_row("compiled", op) for op in found.compiled if op.number == number]
        for op in found.predicted:
            if op.number == number:
                if found.counters and not found.counted_is_compiled:
                    rows.append(_predicted_row(f"compiled, Triton {found.counters.device.triton}", op))
                if count := count_of(op, found):
                    rows.append(_counted_row(op, count))
        first = Markup('<th scope="rowgroup" rowspan="{0}">{1}</th><td rowspan="{0}">{2}</td>').format(
            len(rows), f"{board.access.op} {board.access.tensor}", place(board)
        )
        names = [first, *[""] * (len(rows) - 1)]
        body = Markup("").join(
            Markup("<tr>{}{}</tr>").format(name, _each("<td>{}</td>", row))
            for name, row in zip(names, rows, strict=True)
        )
        reasons = [explain(op, found) for op in found.compiled if op.number == number] or [explain_textbook(board)]
        why = Markup('<tr class="why"><td colspan="{}">{}</td></tr>').format(len(header), html(reasons))
        groups.append(Markup("<tbody>{}{}</tbody>").format(body, why))
    template = '<table class="verdicts"><caption>Totals of the launch</caption><thead><tr>{}</tr></thead>{}</table>'
    head = _each('<th scope="col">{}</th>', header)
    return scrolling(Markup(template).format(head, Markup("").join(groups)))


def _label(op: Operation, verdict: str) -> str:
    return f"{verdict}, its load" if op.compiled and op.compiled.swaps and not op.launch.is_lower_bound else verdict


def _predicted_row(verdict: str, op: Operation) -> tuple[Any, ...]:
    cost, sign = op.launch, "≥ " if op.launch.is_lower_bound else ""
    numbers = (f"{sign}{value:,}" for value in (cost.requests, cost.sectors, cost.lines, cost.ideal_sectors))
    width = f"{op.width_bytes} B" if op.width_bytes else ""
    return (_label(op, verdict), width, *numbers, percent(cost.efficiency), "")


def _counted_row(op: Operation, count: Cost) -> tuple[Any, ...]:
    executed = f"{count.executed:,} warp instructions, including those without an active lane"
    label = Hint(_label(op, "counted"), f"{', '.join(count.opcodes)}: {executed}")
    requests: Any = Hint("below", "The counter holds all operations of this kind.", "hint")
    if count.has_requests:
        requests = f"{count.requests:,}"
    numbers = (f"{value:,}" for value in (count.sectors, count.lines, count.ideal_sectors))
    efficiency = percent(count.efficiency) if count.sectors else ""
    return (label, "", requests, *numbers, efficiency, _sign(count.agreement))


def traffic_section(found: Verdicts) -> Markup:
    """Render the bytes from lanes to DRAM as bars, and the hardware's counters beside their predictions."""
    operations, counters, parts = found.compiled, found.counters, Markup()
    if operations:
        stages: list[tuple[Any, int, str]] = [
            ("used by lanes and boxes", sum(map(used_bytes, operations)), "predicted"),
            ("moved in sectors, through L1", SECTOR_BYTES * sum_costs(operations).sectors, "predicted"),
            ("least: each tensor once", found.kernel.family.minimal_bytes(found.launch.problem), "predicted"),
        ]
        if counters:
            moved = counters.launch["dram_read_bytes"] + counters.launch["dram_write_bytes"]
            stages.append(("DRAM moved, from empty caches", int(moved), "counted"))
        parts += traffic_funnel(stages, "Bytes from lanes to DRAM")
    if counters:
        header = ("counters of the launch", "requests predicted", "counted", "sectors predicted", "counted", "agrees")
        caption = f"{counters.tool}, {counters.device.name}, Triton {counters.device.triton}. {counters.note}"
        parts += table(header, [_total_row(*total) for total in launch_totals(found).items()], caption.strip())
    return parts or hint(_NOT_COMPILED)


def _total_row(kind: str, costs: tuple[Cost, Cost]) -> tuple[Any, ...]:
    predicted, counted = costs
    sign = "≥ " if predicted.is_lower_bound else ""
    requests = f"{sign}{predicted.requests:,}", f"{counted.requests:,}" if counted.has_requests else ""
    return (f"{kind}s", *requests, f"{sign}{predicted.sectors:,}", f"{counted.sectors:,}", _sign(counted.agreement))


def conversions_table(found: Verdicts) -> Markup:
    """Render each step of each layout conversion: wavefronts predicted and, if this code was counted, counted."""
    if found.code is None:
        return hint(_NOT_COMPILED)
    rows: list[tuple[Any, ...]] = []
    counted = _conversion_counts(found.code, found.counters) if found.counters and found.counted_is_compiled else {}
    for conversion in found.code.conversions:
        steps = [step for step in found.code.shared if step.source == conversion.source]
        size = conversion.element_bytes * math.prod(conversion.shape)
        shape = " × ".join(map(str, conversion.shape))
        block = f"{shape} of {conversion.element_bytes} B: {size:,} bytes"
        first = Code(f"{conversion.source[0]}:{conversion.source[1]}"), block
        for kind, (name, opcode) in _STEPS.items():
            if alike := [step for step in steps if step.op == kind]:
                counts = [c for c in counted.get(conversion.source, ()) if c.opcode.partition(".")[0] == opcode]
                rows.append((*first, *_step_cells(name, alike, counts)))
        if not steps:
            rows.append((*first, "between lanes, without shared memory", *("",) * 4))
    if not rows:
        return hint("No block changes its layout.")
    header = (
        *("source", "block", "step", term("wavefront", "wavefronts per instruction")),
        *("without conflicts", "counted", "agrees"),
    )
    caption = "Layout conversions through shared memory: wavefronts and bank conflicts of one warp's instruction"
    return table(header, rows, caption)


def _conversion_counts(code: CompiledFacts, counters: Counters) -> dict[tuple[str, int], list[SharedCounts]]:
    """Return the counts of each conversion by its source line today.

    The source may have changed since the count. If the same blocks are converted in the same order, order identifies
    them, otherwise the line.
    """
    now, then = code.conversions, counters.compiled.conversions
    if [replace(each, source=("", 0)) for each in now] != [replace(each, source=("", 0)) for each in then]:
        then = now
    return {
        today.source: [row for row in counters.shared if row.source == counted.source]
        for today, counted in zip(now, then, strict=True)
    }


def _step_cells(name: str, alike: Sequence[SharedOperation], counts: Sequence[SharedCounts]) -> tuple[Any, ...]:
    """Return the cells from the step to the agreement."""
    predicted, ideal = wavefronts_per_instruction(alike)
    cells = Hint(name, alike[0].instruction), Sourced(f"{predicted:.3g}", "predicted"), f"{ideal:.3g}"
    executed = sum(row.executed for row in counts)
    if not executed:
        return (*cells, "", "")
    counted = sum(row.wavefronts for row in counts) / executed
    agrees = Hint("≠", "Predicted and counted differ.", "wrong-value")
    if abs(counted - predicted) < 1e-9:
        agrees = Hint("✓", "Predicted and counted are equal.", "equal")
    elif counted < predicted:
        reason = "The prediction is for a whole tile. Lanes past the edge store nothing, so they do not read either."
        agrees = Hint("fewer at the edge", reason, "unsure")
    return (*cells, f"{counted:.3g}", agrees)


def resources_table(launch: Launch, compiled: Compiled, occupancy: Occupancy) -> Markup:
    """Render the kernel's need of each resource, an SM's supply, and the programs that fit."""
    gpu = launch.gpu
    needs = {
        "warps": (f"{launch.config.num_warps} per program", f"{gpu.max_warps_per_sm} per SM"),
        "programs": ("1", f"{gpu.max_programs_per_sm} per SM"),
        "registers": (f"{compiled.registers} per thread", f"{gpu.registers_per_sm:,} per SM"),
        "shared memory": (f"{compiled.shared_bytes:,} bytes per program", f"{gpu.shared_bytes_per_sm:,} bytes per SM"),
    }
    header = ("resource", "this kernel needs", "the GPU has", term("programs per SM"))
    return table(header, [(name, *needs[name], str(allowed)) for name, allowed in occupancy.limits.items()])
