"""Textbook, compiled and counted side by side: the table of the Coalescing tab, its totals and its funnel."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import starmap
from typing import Any

from markupsafe import Markup

from visualize.predict.agreement import Verdicts, count_of, launch_totals, sum_costs
from visualize.predict.traffic import SECTOR_BYTES, Cost, Operation
from visualize.text import why
from visualize.text.funnel import Stage
from visualize.text.funnel import funnel as bars
from visualize.views.numbers import percent
from visualize.views.prose import Code, Hint, Sentence, Sourced, Strong, html, say, term
from visualize.views.tables import frame, scrolling
from visualize.views.tables import table as plain_table

_TOTALS = {
    "load": "loads",
    "store": "stores",
    "atomic": "atomics",
    "TMA load": "TMA loads",
    "TMA store": "TMA stores",
}

# Style, sign and hover text of each way in which two numbers agree.
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


def _sign(kind: str) -> Hint:
    style, sign, title = _AGREEMENTS[kind]
    return Hint(sign, title, style)


_HEADER = (
    "operation",
    "line",
    "verdict",
    term("width"),
    term("request", "requests"),
    term("sector", "sectors"),
    term("line", "lines"),
    term("ideal sectors", "ideal"),
    term("efficiency"),
    "agrees",
)


def table(found: Verdicts) -> Markup:
    """A row group per operation: a row for each verdict, and why it is so."""
    head = _each('<th scope="col">{}</th>', _HEADER)
    blocks = Markup("").join(_block(found, number) for number in range(len(found.board)))
    whole = Markup(
        '<table class="verdicts"><caption>Totals of the launch</caption><thead><tr>{}</tr></thead>{}</table>'
    )
    return scrolling(whole.format(head, blocks))


def _each(template: str, values: Iterable[Any]) -> Markup:
    return Markup("").join(Markup(template).format(value) for value in values)


def _block(found: Verdicts, number: int) -> Markup:
    access = found.board[number].access
    file, line = access.source
    rows = _rows(found, number)
    name, source = f"{access.op} {access.tensor}", Code(f"{file.rsplit('/', 1)[-1]}:{line}", f"{file}, line {line}")
    first = Markup('<th scope="rowgroup" rowspan="{0}">{1}</th><td rowspan="{0}">{2}</td>').format(
        len(rows), name, source
    )
    body = Markup("").join(
        Markup("<tr>{}{}</tr>").format("" if place else first, _each("<td>{}</td>", row))
        for place, row in enumerate(rows)
    )
    reason = Markup('<tr class="why"><td colspan="{}">{}</td></tr>').format(len(_HEADER), html(_reasons(found, number)))
    return Markup("<tbody>{}{}</tbody>").format(body, reason)


def _rows(found: Verdicts, number: int) -> list[tuple[Any, ...]]:
    """Of one operation: textbook, compiled, and counted beside what is predicted for the counted code."""
    rows: list[tuple[Any, ...]] = [_predicted("textbook", found.board[number])]
    rows += [_predicted("compiled", op) for op in found.compiled if op.number == number]
    for op in found.predicted:
        if op.number == number:
            if not found.counted_is_compiled and found.counters:
                rows.append(_predicted(f"compiled, Triton {found.counters.device.triton}", op))
            if count := count_of(op, found):
                rows.append(_counted(op, count))
    return rows


def _reasons(found: Verdicts, number: int) -> list[str]:
    mine = [op for op in found.compiled if op.number == number]
    if not (found.code and mine):
        return [why.on_the_blackboard(found.board[number])]
    return [why.of_operation(op, found) for op in mine]


def _label(op: Operation, verdict: str) -> str:
    return f"{verdict}, its load" if op.compiled and op.compiled.swaps and not op.launch.is_lower_bound else verdict


def _predicted(verdict: str, op: Operation) -> tuple[Any, ...]:
    cost, sign = op.launch, "≥ " if op.launch.is_lower_bound else ""
    numbers = (f"{sign}{value:,}" for value in (cost.requests, cost.sectors, cost.lines, cost.ideal_sectors))
    width = f"{op.width_bytes} B" if op.width_bytes else ""
    return (_label(op, verdict), width, *numbers, percent(cost.efficiency), "")


def _counted(op: Operation, count: Cost) -> tuple[Any, ...]:
    executed = f"{count.executed:,} warp instructions, including those without an active lane"
    label = Hint(_label(op, "counted"), f"{', '.join(count.opcodes)}: {executed}")
    requests: Any = Hint("below", "The counter holds all operations of this kind.", "hint")
    if count.has_requests:
        requests = f"{count.requests:,}"
    numbers = (f"{value:,}" for value in (count.sectors, count.lines, count.ideal_sectors))
    efficiency = percent(count.ideal_sectors / count.sectors) if count.sectors else ""
    return (label, "", requests, *numbers, efficiency, _sign(count.agreement))


def totals(found: Verdicts) -> Markup | str:
    """The hardware's counters of the whole launch beside what is predicted for them; "" where nothing was counted."""
    counters = found.counters
    if counters is None:
        return ""
    header = ("counters of the launch", "requests predicted", "counted", "sectors predicted", "counted", "agrees")
    caption = f"{counters.tool}, {counters.device.name}, Triton {counters.device.triton}. {counters.note}"
    return plain_table(frame(header, starmap(_total, launch_totals(found).items())), caption.strip())


def _total(kind: str, costs: tuple[Cost, Cost]) -> tuple[Any, ...]:
    predicted, counted = costs
    sign = "≥ " if predicted.is_lower_bound else ""
    return (
        _TOTALS[kind],
        f"{sign}{predicted.requests:,}",
        f"{counted.requests:,}" if counted.has_requests else "",
        f"{sign}{predicted.sectors:,}",
        f"{counted.sectors:,}",
        _sign(counted.agreement),
    )


def funnel(found: Verdicts) -> Markup | str:
    """From the bytes that lanes load and store to those that DRAM moved, as bars; "" while nothing is compiled."""
    operations = found.compiled
    if not operations:
        return ""
    cost = sum_costs(operations)
    stages: list[Stage] = [
        ("wanted by lanes and boxes", cost.bytes_wanted, "predicted"),
        ("moved in sectors, through L1", SECTOR_BYTES * cost.sectors, "predicted"),
        ("least: each tensor once", found.kernel.family.minimal_bytes(found.launch.problem), "predicted"),
    ]
    if found.counters:
        moved = found.counters.launch["dram_read_bytes"] + found.counters.launch["dram_write_bytes"]
        stages.append(("DRAM moved, from empty caches", int(moved), "counted"))
    return bars(stages, "Bytes from lanes to DRAM")


def claim(found: Verdicts) -> tuple[Sentence | str, ...]:
    """The compiled kernel's cost, and whether it was counted so; () while nothing is compiled."""
    operations = found.compiled
    if not operations:
        return ()
    cost = sum_costs(operations)
    touched = Sourced(Strong(f"{cost.sectors:,} sectors"), "predicted")
    gpu = found.launch.gpu.name
    if all(op.is_box for op in operations):
        return (
            say("As compiled for {}, no lane issues a request: the TMA copies boxes of {}.", gpu, touched),
            _counted_claim(found),
        )
    least = "at least " if cost.is_lower_bound else ""
    return (
        say(
            "As compiled for {}, the launch issues {}{} that touch {}; {} of them are needed.",
            gpu,
            least,
            Strong(f"{cost.requests:,} requests"),
            touched,
            Strong(percent(cost.efficiency)),
        ),
        _counted_claim(found),
    )


def _counted_claim(found: Verdicts) -> Sentence | str:
    counters = found.counters
    if counters is None:
        return ""
    kinds = [count.agreement for op in found.predicted if (count := count_of(op, found))]
    kinds += [counted.agreement for _, counted in launch_totals(found).values()]
    source = "recorded" if counters.backend == "recorded" else "counted"
    if "different" in kinds:
        return say("{}: see the rows marked ≠.", Sourced("Nsight Compute counted different numbers", source))
    if not found.counted_is_compiled:
        requests = sum_costs(found.predicted).requests
        return say(
            "Nsight Compute counted different code, from {}: {:,} requests, as predicted for it.",
            Sourced(f"Triton {counters.device.triton}", source),
            requests,
        )
    repeats = ", except for the atomics, which retry" if sum_costs(found.predicted).is_lower_bound else ""
    where = Sourced(f"{counters.device.name}{repeats}", source)
    return say("Nsight Compute counted {} on {}.", Strong("the same"), where)
