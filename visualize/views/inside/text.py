"""The headlines and tables of the Inside view."""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from tilescope.inside.report import SharedAccess
from tilescope.numbers import bytes_of, count_noun, join_names
from tilescope.sass.opcodes import OPCODES
from visualize.predict.schedule import occupancy_of
from visualize.views.inside.program import Program, place
from visualize.views.prose import Code, Hint, Sourced, Strong, headline, say, term
from visualize.views.tables import table

_UNUSED = headline("", "", "This kernel uses no shared memory.")

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
        return _UNUSED
    if not accesses:
        none = "No load, store or atomic in this kernel accesses shared memory."
        return headline("", "", program.inside.not_executed or none)
    total = sum(access.conflicts or 0 for access in accesses)
    worst = max(accesses, key=lambda access: access.conflicts or 0)
    lead = say("Every access takes the minimum number of {}.", term("wavefront", "wavefronts"))
    if total:
        counts = worst.wavefronts, worst.ideal_wavefronts
        lead = say("{} takes {:,} wavefronts instead of {:,}.", Code(place(worst)), *counts)
    opcode = f"The instruction is {worst.opcode}." if total else ""
    copies = (
        "A wavefront of a copy (LDGSTS) takes data from one 128-byte line of global memory. "
        "A copy of shorter rows therefore needs more wavefronts than the picture of its writes shows."
    )
    reasons = dict.fromkeys(each.why for each in accesses)
    what = Sourced(term("bank conflict", "bank conflicts" if total != 1 else ""), "predicted")
    is_copy = worst.opcode == "LDGSTS" and total
    return headline(f"{total:,}", what, lead, opcode, copies if is_copy else "", *reasons)


def shared_table(program: Program) -> Markup:
    """Render the accesses of each line, and the totals of loads and stores."""
    # An instruction without wavefronts never had an active lane.
    accesses = [access for access in program.inside.shared if access.wavefronts != 0]
    if not accesses:
        return Markup()
    wavefronts = term("wavefront", "wavefronts")
    conflicts = term("bank conflict", "bank conflicts")
    header: tuple[Any, ...] = (
        "line",
        "opcode",
        "operation",
        "executed",
        wavefronts,
        "ideal",
        conflicts,
    )
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
    names = "executed", "wavefronts", "ideal_wavefronts", "conflicts"
    columns = [[getattr(access, name) for access in accesses] for name in names]
    return [
        Hint("unknown", why, "unsure") if None in column else f"{sum(column):,}"
        for column in columns
    ]


def map_headline(program: Program) -> Markup:
    """Render the bytes that a program needs, how many are in use at the peak, and how many programs fit on an SM."""
    shared_bytes = program.facts.shared_bytes
    shared = program.inside.shared_map
    if not shared_bytes:
        return _UNUSED
    number, unit = bytes_of(shared_bytes).split()
    lead: Any = shared.why if shared else ""
    if shared and shared.buffers:
        used = max(
            sum(
                buffer.size_bytes
                for buffer in shared.buffers
                if buffer.first <= step <= buffer.last
            )
            for step in range(len(shared.steps))
        )
        lead = "At the peak, all of it is in use."
        if used < shared_bytes:
            lead = say(
                "At the peak, {} is in use. The rest is gaps between buffers.", bytes_of(used)
            )
    fit = ""
    if shared and 0 < shared.limit_bytes < shared_bytes:
        lead = f"The limit is {shared.limit_bytes:,} bytes, so the launch fails."
    elif program.gpu:
        resident = occupancy_of(program.gpu, program.num_warps, program.facts)
        programs = count_noun(resident.programs_per_sm, "program")
        fit = f"An SM can hold {programs}. The limit is {join_names(resident.limited_by)}."
    return headline(number, Sourced(f"{unit} per program", "compiled"), lead, fit)


def map_tables(program: Program) -> Markup:
    """Render the buffers, and the shared memory that one stage more or fewer would need."""
    shared = program.inside.shared_map
    if shared is None:
        return Markup()
    stages = []
    for need in shared.by_stages:
        fits = not shared.limit_bytes or need.shared_bytes <= shared.limit_bytes
        programs = need.programs_per_sm if fits else "does not fit"
        stages.append((need.num_stages, f"{need.shared_bytes:,}", programs))
    buffers = [
        (
            Code(place(buffer)),
            buffer.operation,
            buffer.tensor,
            buffer.stage if buffer.stages > 1 else "",
            f"{buffer.offset_bytes:,}",
            f"{buffer.size_bytes:,}",
        )
        for buffer in shared.buffers
    ]
    needs = "num_stages", "bytes per program", term("programs per SM")
    header = "line", "operation", "tensor", "stage", "offset (bytes)", "size (bytes)"
    return (
        table(needs, stages, "Shared memory by num_stages") if len(stages) > 1 else Markup()
    ) + (table(header, buffers, "Buffers in shared memory") if buffers else Markup())


def registers_headline(program: Program) -> Markup:
    """Render the most live registers, their line, and the spilled bytes."""
    facts = program.facts
    lines = program.inside.registers_by_line
    moved = sum(line.moved_bytes or 0 for line in program.inside.spills_by_line)
    cost = f" Spills move {bytes_of(moved)} in the launch." if moved else ""
    spills = f"Each thread spills {facts.spilled_bytes:,} bytes.{cost}"
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


def layouts_headline(program: Program) -> Markup:
    """Render the number of conversions, and the bytes that they move through shared memory."""
    inside = program.inside
    if inside.unread:
        return headline("", "", inside.unread)
    total = sum(each.shared_bytes for each in inside.conversions)
    hint = "Point at an element to mark its lane’s elements. Zoom in to see lane numbers."
    if not inside.layouts:
        hint = "This kernel loads, stores and multiplies no blocks."
    count = len(inside.conversions)
    subject = "They move" if count > 1 else "It moves"
    cost = f"{subject} {bytes_of(total)} through shared memory." if total else ""
    what = term("layout conversion", "layout conversions" if count != 1 else "")
    return headline(count, Sourced(what, "compiled"), *filter(None, (cost, hint)))


def layouts_table(program: Program) -> Markup:
    """Render the layout conversions: their cost, and the operations that require them."""
    wavefronts = dict[str, int]()
    for access in program.inside.shared:
        wavefronts[place(access)] = wavefronts.get(place(access), 0) + (access.wavefronts or 0)
    rows = [
        (
            Code(place(each)),
            f"{' × '.join(map(str, each.source.shape))} of {each.element_bytes} B",
            f"{each.shared_bytes:,}",
            f"{wavefronts.get(place(each), 0):,}" if each.shared_bytes else "",
            each.maker,
            each.user,
        )
        for each in program.inside.conversions
    ]
    if not rows:
        return Markup()
    header = "line", "block", "bytes through shared memory", "wavefronts on the line", "from", "to"
    return table(header, rows, "Conversions between layouts")


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
