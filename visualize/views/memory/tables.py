"""The Memory view's tables: every operation, the launch's counters, shared memory, what-if, and an SM's resources."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from kernels.accesses import CompiledFacts, SharedOperation
from kernels.results import Compiled, Counters, Failure, SharedCounts
from kernels.spec import Launch
from visualize.predict.agreement import Verdicts, count_of, launch_totals, sum_costs
from visualize.predict.schedule import Occupancy
from visualize.predict.traffic import SECTOR_BYTES, Cost, Operation, wavefronts_per_instruction
from visualize.views.memory.text import place, used_bytes
from visualize.views.memory.why import explain, explain_textbook
from visualize.views.numbers import enumerated, percent
from visualize.views.prose import Code, Hint, Listed, Sentence, Sourced, Strong, hint, html, say, term
from visualize.views.tables import frame, scrolling, table, traffic_funnel

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

# Triton's launcher records of each integer argument whether this divides it.
DIVISOR = 16


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
        parts += table(frame(header, [_total_row(*total) for total in launch_totals(found).items()]), caption.strip())
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
    return table(frame(header, rows), caption)


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


def change_rows(
    name: str,
    outcome: Compiled | Failure,
    operations: Sequence[Operation] | None,
    base: Sequence[Operation] | None,
) -> list[tuple[Any, ...]]:
    """Return one what-if change's rows: each operation beside the base's, or the reason why there are none.

    Args:
        operations, base: None if they could not be compiled or read.
    """
    if operations is None or isinstance(outcome, Failure):
        return [(name, failure_reason(outcome), *("",) * 6)]
    before = {(op.number, op.access.tensor, op.launch.is_lower_bound): op.launch for op in base or ()}
    rows = []
    for index, op in enumerate(operations):
        old, cells = before.get((op.number, op.access.tensor, op.launch.is_lower_bound)), []
        for amount in ("requests", "sectors"):
            value = getattr(op.launch, amount)
            cells += [f"{value:,}", _change(value, getattr(old, amount)) if old else ""]
        first, registers = ("", "") if index else (name, str(outcome.registers))
        rows.append((first, f"{op.access.op} {op.access.tensor}", _width(op), *cells, registers))
    return rows


def failure_reason(outcome: Compiled | Failure) -> str:
    """Return why an experiment's operations are unknown."""
    return outcome.message if isinstance(outcome, Failure) else outcome.unreadable


def _width(op: Operation) -> str:
    return f"{op.width_bytes} B" if op.width_bytes else "box"


def _change(now: int, before: int) -> Any:
    if now == before:
        return Hint("same", style="hint")
    if not now or not before:
        return Strong("none") if not now else ""
    factor = now / before
    return Strong(f"{factor:.3g} ×" if factor > 1 else f"1 / {1 / factor:.3g}")


def changes_table(rows: Sequence[tuple[Any, ...]], gpu: str) -> Markup:
    """Render the `change_rows` of all changes."""
    header = ("change", "operation", "width", "requests", "", "sectors", "", "registers")
    return table(frame(header, rows), f"The whole launch, compiled for {gpu} with one change at a time")


def best_changes(totals: Mapping[str, int | None]) -> Sentence:
    """Return which changes save requests over all operations.

    Args:
        totals: the requests of each change, the unchanged launch first; None if a change could not be compiled.
    """
    (_, now), *changed = totals.items()
    if now is None:
        return say("The unchanged launch can't be compiled, so there is nothing to compare with.")
    better = []
    for name, total in changed:
        if total is not None and total < now:
            saving = f"{now / total:.3g} × fewer" if total else "none: boxes are copied"
            better.append(say("{} ({})", Strong(name), saving))
    if not better:
        return say("None of these changes saves requests: the tile and the kernel determine them.")
    return say("Fewer requests with {}.", Listed(tuple(better), "; "))


def cliff_sentence(name: str, sizes: Sequence[int], requests: Sequence[int]) -> Sentence:
    """Return how far requests fall while one dimension slides over `sizes`."""
    (fewest, at_fewest), (most, at_most) = (
        pick(zip(requests, sizes, strict=True), key=lambda pair: pair[0]) for pick in (min, max)
    )
    ratio = f": {most / fewest:.3g} ×" if fewest else "; at the sizes without requests, boxes are copied"
    return say(
        "Between {} = {:,} and {:,} the requests go from {} (at {:,}) to {} (at {:,}){}, for sizes that differ by {}.",
        *(name, sizes[0], sizes[-1], Strong(f"{fewest:,}"), at_fewest, Strong(f"{most:,}"), at_most, ratio),
        Sourced(abs(at_most - at_fewest), "predicted"),
    )


def cliff_table(name: str, rows: Iterable[tuple[int, int, int, str]], gpu: str) -> Markup:
    """Render the sizes where the compiled kernel changes: size, requests, sectors, and `describe_size`."""
    header = (f"from {name} =", "requests", "sectors", "what the compiler knows, and what it compiles")
    cells = [(f"{size:,}", f"{requests:,}", f"{sectors:,}", known) for size, requests, sectors, known in rows]
    return table(frame(header, cells), f"Where the compiled kernel changes, for {gpu}")


def describe_size(size: int, operations: Sequence[Operation], compiled: CompiledFacts) -> str:
    """Return what the compiler knows of a size, and the widths and registers that follow."""
    known = f"divisible by {DIVISOR}" if size % DIVISOR == 0 else "equal to 1" if size == 1 else "nothing known"
    widths = ", ".join(f"{op.access.op} {op.access.tensor} {_width(op)}" for op in operations)
    return f"{known}: {widths}; {compiled.registers} registers"


def gpu_column(compiled: CompiledFacts, occupancy: Occupancy, operations: Sequence[Operation]) -> dict[str, Any]:
    """Return the facts of a launch compiled for one GPU, by row name."""
    facts: dict[str, Any] = {
        "registers per thread": str(compiled.registers),
        "spilled bytes per thread": f"{compiled.spilled_bytes:,}",
        "shared bytes per program": f"{compiled.shared_bytes:,}",
        "occupancy": f"{percent(occupancy.occupancy)}, limited by {enumerated(occupancy.limited_by)}",
    }
    for op in operations:
        unit = f"{op.width_bytes} B per lane" if op.width_bytes else "whole boxes"
        cost = f"{unit}, {op.launch.requests:,} requests, {op.launch.sectors:,} sectors"
        opcodes = ", ".join(op.compiled.opcodes) if op.compiled else ""
        facts[f"{op.access.op} {op.access.tensor}, {place(op)}"] = Hint(cost, opcodes)
    return facts


def gpus_table(columns: Mapping[str, Mapping[str, Any]]) -> Markup:
    """Render the `gpu_column` of each GPU side by side, and mark the rows that differ."""
    rows = []
    for name in dict.fromkeys(name for facts in columns.values() for name in facts):
        cells = [facts.get(name, "") for facts in columns.values()]
        rows.append((name, *cells, "" if len(set(cells)) == 1 else Hint("differs", style="unsure")))
    caption = "Compiled for each GPU; a third column is the build that was recorded on the device itself"
    return table(frame(("", *columns, ""), rows), caption)


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
    return table(frame(header, [(name, *needs[name], str(allowed)) for name, allowed in occupancy.limits.items()]))
