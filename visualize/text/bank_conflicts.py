"""Shared memory: where the compiler changes a layout, and the bank conflicts of that, predicted and counted. HTML."""

from __future__ import annotations

from collections.abc import Iterable

from kernels.lanes import CompiledFacts, Conversion, SharedOperation
from kernels.results import Counters, SharedCounts
from visualize.models.banks import wavefronts
from visualize.text import words

# The opcodes of each kind of instruction.
_OPCODES = {"store": "STS", "store matrix": "STSM", "load": "LDS", "load matrix": "LDSM"}
_STEPS = {"store": "written", "store matrix": "written as matrices", "load": "read", "load matrix": "read as matrices"}


def table(made: CompiledFacts, counters: Counters | None) -> str:
    """A row for each step of each change of layout; "" where there is none.

    Args:
        counters: what was counted, of the same code.
    """
    rows = []
    for conversion in made.conversions:
        steps = [operation for operation in made.shared if operation.source == conversion.source]
        for kind in _OPCODES:
            alike = [operation for operation in steps if operation.op == kind]
            if alike:
                rows.append(_row(conversion, kind, alike, counters))
        if not steps:
            rows.append((_place(conversion), _block(conversion), "between lanes, without shared memory", *("",) * 4))
    if not rows:
        return ""
    header = ("source", "block", "step", "wavefronts an instruction", "without conflicts", "counted", "")
    caption = "Changes of layout through shared memory: passes over the 32 banks for one instruction of a warp"
    return words.table(header, rows, caption)


def _row(conversion: Conversion, kind: str, alike: list[SharedOperation], counters: Counters | None) -> tuple[str, ...]:
    predicted, ideal = each(alike)
    counted, sign = "", ""
    if counters:
        found = [row for row in counters.shared if row.source == conversion.source and _is(row, kind)]
        counted, sign = _counted(found, predicted)
    name = f'<span title="{alike[0].instruction}">{_STEPS[kind]}</span>'
    return (
        _place(conversion),
        _block(conversion),
        name,
        f"{predicted:.3g} {words.mark('predicted')}",
        f"{ideal:.3g}",
        counted,
        sign,
    )


def each(alike: Iterable[SharedOperation]) -> tuple[float, float]:
    """Passes of one warp's instruction, on average: those it takes, and those without a conflict."""
    total = ideal = warps = 0
    for operation in alike:
        one = wavefronts(operation)
        total += operation.count * one.wavefronts
        ideal += operation.count * one.ideal
        warps += operation.count * one.warps
    return total / warps, ideal / warps


def _is(row: SharedCounts, kind: str) -> bool:
    return row.opcode.partition(".")[0] == _OPCODES[kind]


def _counted(found: list[SharedCounts], predicted: float) -> tuple[str, str]:
    executed = sum(row.executed for row in found)
    if not executed:
        return "", ""
    counted = sum(row.wavefronts for row in found) / executed
    text = f"{counted:.3g}"
    if abs(counted - predicted) < 1e-9:
        return text, '<span class="equal" title="Predicted and counted are equal.">✓</span>'
    if counted < predicted:
        why = "Lanes that store nothing past the edge do not read, either; the prediction is of a whole tile."
        return text, f'<span class="unsure" title="{why}">fewer at the edge</span>'
    return text, '<span class="wrong-value" title="Predicted and counted differ.">≠</span>'


def _place(conversion: Conversion) -> str:
    return f"<code>{conversion.source[0]}:{conversion.source[1]}</code>"


def _block(conversion: Conversion) -> str:
    shape = " × ".join(str(size) for size in conversion.shape)
    return f"{shape} of {conversion.element_bytes} B: {conversion.bytes:,} bytes"
