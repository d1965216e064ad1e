"""Shared memory: where the compiler changes a layout, and its bank conflicts, predicted and counted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from kernels.accesses import CompiledFacts, Conversion, SharedOperation
from kernels.results import Counters, SharedCounts
from visualize.predict.traffic import wavefronts_per_instruction
from visualize.views.prose import Code, Hint, Sourced, hint, term
from visualize.views.tables import frame
from visualize.views.tables import table as plain_table

# The opcodes of each kind of instruction.
_OPCODES = {"store": "STS", "store matrix": "STSM", "load": "LDS", "load matrix": "LDSM"}
_STEPS = {"store": "written", "store matrix": "written as matrices", "load": "read", "load matrix": "read as matrices"}


def table(compiled: CompiledFacts, counters: Counters | None) -> Markup | str:
    """A row for each step of each layout conversion; "" where there is none.

    Args:
        counters: what was counted, of the same code.
    """
    rows: list[tuple[Any, ...]] = []
    counted = _counts(compiled, counters) if counters else {}
    for conversion in compiled.conversions:
        steps = [operation for operation in compiled.shared if operation.source == conversion.source]
        by_kind = {kind: [operation for operation in steps if operation.op == kind] for kind in _OPCODES}
        rows += [
            _row(conversion, kind, alike, counted.get(conversion.source, ()))
            for kind, alike in by_kind.items()
            if alike
        ]
        if not steps:
            rows.append((_place(conversion), _block(conversion), "between lanes, without shared memory", *("",) * 4))
    if not rows:
        return ""
    header = (
        "source",
        "block",
        "step",
        term("wavefront", "wavefronts per instruction"),
        "without conflicts",
        "counted",
        "agrees",
    )
    caption = "Layout conversions through shared memory: wavefronts and bank conflicts of one warp's instruction"
    return plain_table(frame(header, rows), caption)


def none(is_compiled: bool) -> Markup:
    """What stands there where no layout is converted."""
    return hint("No block changes its layout." if is_compiled else "This is known once the kernel is compiled.")


def _counts(compiled: CompiledFacts, counters: Counters) -> dict[tuple[str, int], list[SharedCounts]]:
    """What was counted at each conversion, by its place in the source today.

    Lines may have moved since it was counted: where the same blocks are converted, the order tells which is which.
    """
    today, then = compiled.conversions, counters.compiled.conversions
    if [replace(one, source=("", 0)) for one in today] != [replace(one, source=("", 0)) for one in then]:
        then = today
    return {
        now.source: [row for row in counters.shared if row.source == before.source]
        for now, before in zip(today, then, strict=True)
    }


def _row(
    conversion: Conversion, kind: str, alike: Sequence[SharedOperation], counted: Sequence[SharedCounts]
) -> tuple[Any, ...]:
    predicted, ideal = wavefronts_per_instruction(alike)
    step, cost = Hint(_STEPS[kind], alike[0].instruction), Sourced(f"{predicted:.3g}", "predicted")
    agreement = _counted([row for row in counted if _is(row, kind)], predicted)
    return (_place(conversion), _block(conversion), step, cost, f"{ideal:.3g}", *agreement)


def _is(row: SharedCounts, kind: str) -> bool:
    return row.opcode.partition(".")[0] == _OPCODES[kind]


def _counted(found: Sequence[SharedCounts], predicted: float) -> tuple[Any, Any]:
    """What was counted of one instruction, and how it agrees."""
    executed = sum(row.executed for row in found)
    if not executed:
        return "", ""
    counted = sum(row.wavefronts for row in found) / executed
    text = f"{counted:.3g}"
    if abs(counted - predicted) < 1e-9:
        return text, Hint("✓", "Predicted and counted are equal.", "equal")
    if counted < predicted:
        why = "The prediction is for a whole tile. Lanes past the edge store nothing, so they do not read either."
        return text, Hint("fewer at the edge", why, "unsure")
    return text, Hint("≠", "Predicted and counted differ.", "wrong-value")


def _place(conversion: Conversion) -> Code:
    return Code(f"{conversion.source[0]}:{conversion.source[1]}")


def _block(conversion: Conversion) -> str:
    shape = " × ".join(str(size) for size in conversion.shape)
    return f"{shape} of {conversion.element_bytes} B: {math.prod(conversion.shape) * conversion.element_bytes:,} bytes"
