"""What the what-if tables say: one change at a time, one dimension sliding, the same launch for two GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pandas import DataFrame

from kernels.accesses import CompiledFacts
from kernels.results import Compiled, Failure
from visualize.predict.schedule import Occupancy
from visualize.predict.traffic import Operation
from visualize.views.numbers import enumerated, percent
from visualize.views.prose import Hint, Listed, Sentence, Sourced, Strong, say
from visualize.views.tables import frame

# What the launcher records of a number: whether this divides it.
DIVISOR = 16

# The changes, by the names that the table gives them.
AS_IT_IS = "as it is"
AS_CONSTANTS = "sizes and strides as constants"
WITHOUT_DIVISIBILITY = f"sizes not known to be divisible by {DIVISOR}"


def padded(sizes: Mapping[str, tuple[int, int]]) -> str:
    """The change that pads sizes: from and to, by name."""
    changes = ", ".join(f"{name} {before} → {after}" for name, (before, after) in sizes.items())
    return f"sizes padded to multiples of {DIVISOR}: {changes}"


def transposed(operand: str) -> str:
    return f"{operand} transposed"


def other_warps(before: int, after: int) -> str:
    return f"num_warps {before} → {after}"


def changes_caption(gpu: str) -> str:
    return f"The whole launch, compiled for {gpu} with one change at a time"


def changes(rows: Sequence[tuple[Any, ...]]) -> DataFrame:
    """The `change_rows` of all changes."""
    return frame(("change", "operation", "width", "requests", "", "sectors", "", "registers"), rows)


def change_rows(
    name: str,
    outcome: Compiled | Failure,
    operations: tuple[Operation, ...] | None,
    base: tuple[Operation, ...] | None,
) -> list[tuple[Any, ...]]:
    """A row for each operation of one change, beside the same operation of the base; or the reason for none.

    Args:
        operations, base: None where they could not be compiled or read.
    """
    if operations is None or isinstance(outcome, Failure):
        return [(name, reason(outcome), *("",) * 6)]
    found = []
    for place, op in enumerate(operations):
        before = next((one for one in base or () if _identity(one) == _identity(op)), None)
        cells: list[Any] = []
        for what in ("requests", "sectors"):
            value = getattr(op.launch, what)
            cells += [f"{value:,}", _change(value, getattr(before.launch, what)) if before else ""]
        first = place == 0
        label = f"{op.access.op} {op.access.tensor}"
        found.append((name if first else "", label, _width(op), *cells, str(outcome.registers) if first else ""))
    return found


def reason(outcome: Compiled | Failure) -> str:
    """Why there is nothing to show."""
    return outcome.message if isinstance(outcome, Failure) else outcome.unreadable


def _identity(op: Operation) -> tuple[int, str, bool]:
    return op.number, op.access.tensor, op.launch.is_lower_bound


def _width(op: Operation) -> str:
    return f"{op.width_bytes} B" if op.width_bytes else "box"


def _change(now: int, before: int) -> Any:
    """How much more or less, where it is not the same."""
    if now == before:
        return Hint("same", style="hint")
    if not now or not before:
        return Strong("none") if not now else ""
    times = now / before
    return Strong(f"{times:.3g} ×" if times > 1 else f"1 / {1 / times:.3g}")


def verdict(totals: Mapping[str, int | None]) -> Sentence:
    """Which changes save requests, over all operations.

    Args:
        totals: the requests of each change, the first as it is; None of what could not be compiled.
    """
    (_, now), *others = totals.items()
    if now is None:
        return say("As it is, this can't be compiled, so there is nothing to compare with.")
    better = []
    for name, total in others:
        if total is not None and total < now:
            how = f"{now / total:.3g} × fewer" if total else "none at all: boxes are copied"
            better.append(say("{} ({})", Strong(name), how))
    if not better:
        return say("None of these changes saves requests: tile and kernel decide what is issued.")
    return say("Fewer requests with {}.", Listed(tuple(better), "; "))


def sizes_compiling(count: int) -> Sentence:
    return say("Compiling for {} sizes", count)


def cliff_claim(name: str, sizes: Sequence[int], fewest: tuple[int, int], most: tuple[int, int]) -> Sentence:
    """How far requests fall while one dimension slides.

    Args:
        name: the dimension.
        fewest, most: (size, requests) with the fewest and the most requests.
    """
    more = f": {most[1] / fewest[1]:.3g} ×" if fewest[1] else "; where there are none, boxes are copied"
    return say(
        "Between {} = {:,} and {:,} the requests go from {} (at {:,}) to {} (at {:,}){}, for sizes that differ by {}.",
        name,
        sizes[0],
        sizes[-1],
        Strong(f"{fewest[1]:,}"),
        fewest[0],
        Strong(f"{most[1]:,}"),
        most[0],
        more,
        Sourced(abs(most[0] - fewest[0]), "predicted"),
    )


def cliff(name: str, rows: Sequence[tuple[int, int, int, str]]) -> DataFrame:
    """The sizes from which on the compiled kernel is another: size, requests, sectors, and `known_of`."""
    header = (f"from {name} =", "requests", "sectors", "what the compiler knows, and what it compiles")
    return frame(
        header, [(f"{size:,}", f"{requests:,}", f"{sectors:,}", known) for size, requests, sectors, known in rows]
    )


def cliff_caption(gpu: str) -> str:
    return f"Where the compiled kernel changes, for {gpu}"


def known_of(size: int, operations: tuple[Operation, ...], compiled: CompiledFacts) -> str:
    """What the compiler knows of one size, and what follows."""
    known = f"divisible by {DIVISOR}" if size % DIVISOR == 0 else "equal to 1" if size == 1 else "nothing known"
    widths = ", ".join(f"{op.access.op} {op.access.tensor} {_width(op)}" for op in operations)
    return f"{known}: {widths}; {compiled.registers} registers"


ACROSS_CAPTION = "Compiled for each GPU; a third column is the build that was recorded on the device itself"


def column(compiled: CompiledFacts, held: Occupancy, operations: Sequence[Operation]) -> dict[str, Any]:
    """What is known of a launch for one GPU, by the names of rows."""
    known: dict[str, Any] = {
        "registers per thread": str(compiled.registers),
        "spilled bytes per thread": f"{compiled.spilled_bytes:,}",
        "shared bytes per program": f"{compiled.shared_bytes:,}",
        "occupancy": f"{percent(held.occupancy)}, limited by {enumerated(held.limited_by)}",
    }
    for op in operations:
        file, line = op.access.source
        how = f"{op.width_bytes} B per lane" if op.width_bytes else "whole boxes"
        cost = f"{how}, {op.launch.requests:,} requests, {op.launch.sectors:,} sectors"
        opcodes = ", ".join(op.compiled.opcodes) if op.compiled else ""
        known[f"{op.access.op} {op.access.tensor}, {file.rsplit('/', 1)[-1]}:{line}"] = Hint(cost, opcodes)
    return known


def across(columns: Mapping[str, Mapping[str, Any]]) -> DataFrame:
    """The `column` of each GPU side by side, and whether they differ."""
    rows = []
    for name in dict.fromkeys(name for known in columns.values() for name in known):
        cells = [known.get(name, "") for known in columns.values()]
        rows.append((name, *cells, "" if len(set(cells)) == 1 else Hint("differs", style="unsure")))
    return frame(("", *columns, ""), rows)
