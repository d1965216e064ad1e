"""The headlines and tables of the Inside view."""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from tilescope.inside.report import SharedAccess
from tilescope.numbers import count_noun, join_names
from tilescope.reports.launch import describe_spills
from tilescope.sass.instructions import OPCODES
from visualize.views.inside.program import Program, place
from visualize.views.prose import Code, Hint, Sourced, Strong, headline, say, term
from visualize.views.tables import table

_EQUAL = Hint("✓", "Predicted and counted wavefronts are equal.", "equal")
_DIFFERENT = Hint("≠", "Predicted and counted wavefronts differ.", "wrong-value")

# The opcodes whose wavefronts the hardware counts together.
_TOTALS = {
    f"all {kind}s": [name for name, traits in OPCODES.items() if traits.smem == kind]
    for kind in ("load", "store")
}


def shared_headline(program: Program) -> Markup:
    """Render the bank conflicts of the launch, and the line with the most."""
    accesses = program.inside.shared
    if not program.facts.shared_bytes:
        return headline("", "", "This kernel uses no shared memory.")
    if not accesses:
        none = "No load, store or atomic in this kernel accesses shared memory."
        return headline("", "", program.inside.not_executed or none)
    conflicts = {access: access.conflicts or 0 for access in accesses}
    total = sum(conflicts.values())
    worst = max(accesses, key=lambda access: conflicts[access])
    lead = say("The banks serve every access in as few wavefronts as possible.")
    if total:
        lead = say("{:,} of them are in {}.", conflicts[worst], Code(place(worst)))
        if total == conflicts[worst]:
            lead = say("All of them are in {}.", Code(place(worst)))
    reasons = dict.fromkeys(access.why for access in accesses if access.why)
    sentences = [*reasons] if reasons and not total else [lead, *reasons]
    if reading := sum(access.reading_wavefronts for access in accesses):
        sentences.append(
            f"Copies (LDGSTS) take {count_noun(reading, 'more wavefront')} to read the L1 cache. "
            "These are not bank conflicts."
        )
    noun = term("bank conflict", "bank conflicts" if total != 1 else "")
    what = say("known {}", noun) if reasons else noun
    return headline(f"{total:,}" if total else "No", Sourced(what, "predicted"), *sentences)


def shared_table(program: Program) -> Markup:
    """Render the accesses of each line, and the totals of loads and stores."""
    # An instruction without wavefronts never had an active lane.
    accesses = [access for access in program.inside.shared if access.wavefronts != 0]
    if not accesses:
        return Markup()
    wavefronts = term("wavefront", "wavefronts")
    conflicts = term("bank conflict", "bank conflicts")
    header: tuple[Any, ...] = ("line", "opcode", "operation", "executed", wavefronts, conflicts)
    caption = "Accesses to shared memory by all programs of the launch"
    rows: list[tuple[Any, ...]] = [
        (Code(place(access)), access.opcode, access.operation, *_amounts([access]))
        for access in accesses
    ]
    if program.counted:
        header += "counted", "agrees"
        caption += f"; wavefronts counted by {program.counted_by}"
        pairs = zip(rows, accesses, strict=True)
        rows = [row + _count_cells(program.counted.get(access), access) for row, access in pairs]
    for name, opcodes in _TOTALS.items():
        if group := [access for access in accesses if access.opcode in opcodes]:
            rows.append((Strong(name), ", ".join(opcodes), "", *_amounts(group)))
    return table(header, rows, caption)


def _count_cells(counted: int | None, access: SharedAccess) -> tuple[Any, ...]:
    if counted is None:
        return ()
    agreement = _EQUAL if counted == access.wavefronts else _DIFFERENT
    return f"{counted:,}", "" if access.why else agreement


def _amounts(accesses: Sequence[SharedAccess]) -> list[Any]:
    """Return the cells of the sums; "unknown" with its reason if a number is missing."""
    why = next((access.why for access in accesses if access.why), "")
    columns: list[list[int | None]] = [
        [access.executed for access in accesses],
        [access.wavefronts for access in accesses],
        [access.conflicts for access in accesses],
    ]
    return [
        Hint("unknown", why, "unsure") if None in column else f"{sum(filter(None, column)):,}"
        for column in columns
    ]


def registers_headline(program: Program) -> Markup:
    """Render the most live registers, their line, and the spilled bytes."""
    facts = program.facts
    lines = program.inside.registers_by_line
    spills = describe_spills(program.inside)
    sentences: list[Any] = [spills if facts.spilled_bytes else "No registers are spilled."]
    if lines:
        live = say(
            "Up to {} registers are live, at {}.", Strong(lines[0].live), Code(place(lines[0]))
        )
        sentences.insert(bool(facts.spilled_bytes), live)
    return headline(facts.registers, Sourced("registers per thread", "compiled"), *sentences)


def registers_table(program: Program) -> Markup:
    """Render the live registers and the spills of each line."""
    inside = program.inside
    spills = {place(line): line for line in inside.spills_by_line}
    live = {place(line): line.live for line in inside.registers_by_line}
    held = {place(line): line.registers for line in inside.registers_at_peak}
    rows = []
    for line in live | spills:
        cells: tuple[Any, ...] = Code(line), live.get(line, ""), held.get(line, "")
        if spill := spills.get(line):
            moved = "unknown" if spill.moved_bytes is None else f"{spill.moved_bytes:,}"
            cells += spill.stores, spill.reloads, f"{spill.stored_bytes:,}", moved
        rows.append(cells)
    live_columns = "line", "most live registers", "live at the peak, written here"
    spill_columns = (
        "spill stores",
        "reloads",
        "bytes stored per thread",
        "bytes moved in the launch",
    )
    columns = (*live_columns, *(spill_columns if spills else ()))
    return table(columns, rows, "Registers by source line")


def pipeline_headline(program: Program) -> Markup:
    """Render how many steps the loads run ahead, and why others are not pipelined."""
    loads = [load for pipeline in program.inside.pipelines for load in pipeline.loads]
    if not loads:
        none = "No loop in this kernel loads a block."
        return headline("", "", program.inside.unread or none)
    reasons = dict.fromkeys(load.why for load in loads if load.why)
    lines = dict.fromkeys(str(load.line) for load in loads if load.ahead)
    sentences = [*reasons] or ["No loads are pipelined."]
    if lines:
        noun = "line" if len(lines) == 1 else "lines"
        sentences = [f"Pipelined loads: {noun} {join_names([*lines])}.", *reasons]
    what = Sourced("steps ahead at most", "compiled")
    return headline(max(load.ahead for load in loads), what, *sentences)


def pipeline_table(program: Program) -> Markup:
    """Render how far ahead each load runs and its number of buffers, or why it is not pipelined."""
    rows = [
        (
            Code(place(pipeline)),
            Code(place(load)),
            load.ahead,
            load.slots or "registers",
            *filter(None, [load.why]),
        )
        for pipeline in program.inside.pipelines
        for load in pipeline.loads
    ]
    if not rows:
        return Markup()
    header = "loop", "load", "steps ahead", "buffers", "why it is not pipelined"
    return table(header[: max(map(len, rows))], rows, "Loads in loops")
