"""The panels of the Inside view, with their headlines and tables, for one of our kernels or a script's launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from tilescope.inside.report import SharedAccess
from tilescope.numbers import Number, count_noun, join_names
from tilescope.reports.launch import describe_spills
from tilescope.results import Failure
from tilescope.sass.instructions import OPCODES
from visualize.views import prose
from visualize.views.inside import figures
from visualize.views.inside.figures import Program, describe, place
from visualize.views.memory.compiler import resource_numbers
from visualize.views.panel import NEAR_S, Panel, Slots
from visualize.views.prose import Code, Hint, Sourced, Strong, headline, say, table, term
from visualize.views.slots import NONE, plot_value
from visualize.views.state import Snapshot


@dataclass(frozen=True)
class InsidePanel(Panel):
    """A headline, a picture of the inside of a program, and tables.

    Attributes:
        name: the name of its tab.
        label: describes the plot to screen readers.
        figure: returns the picture; None if there is nothing to draw.
    """

    layout = """
{{ slot(panel.name ~ "-headline") }}
<div class="row picture">{{ plot(panel.name ~ "-plot", panel.label) }}</div>
{{ slot(panel.name ~ "-table") }}
"""
    uses_inspection = True
    name: str
    label: str
    headline: Callable[[Program], Markup]
    figure: Callable[[Program], dict[str, Any] | None]
    tables: Callable[[Program], Markup]

    def draw_program(self, program: Program) -> Slots:
        """Fill the panel's slots."""
        figure = self.figure(program)
        picture = plot_value(figure, about=program.about) if figure else NONE
        return self._slots(self.headline(program), picture, self.tables(program))

    def draw(self, snapshot: Snapshot) -> Slots:
        compiled = snapshot.compiled
        inspected = snapshot.inspected
        if failure := snapshot.failure or (inspected if isinstance(inspected, Failure) else None):
            return self._slots(prose.render_failure(failure), NONE, Markup())
        if compiled is None or inspected is None or isinstance(inspected, Failure):
            return self.draw_waiting(snapshot)
        return self.draw_program(describe(snapshot, compiled, inspected))

    def draw_waiting(self, snapshot: Snapshot, seconds: float | None = None) -> Slots:
        compiling = prose.render_compiling(snapshot.state.gpu.name, seconds)
        return {f"{self.name}-headline": compiling}

    def seconds(self, snapshot: Snapshot) -> float:
        # Draw in another process, so that the page's process stays responsive.
        return 2 * NEAR_S if snapshot.inspected else 0.0

    def summary(self, snapshot: Snapshot) -> tuple[Number, ...]:
        return resource_numbers(snapshot)

    def _slots(self, headline: Markup, picture: str, tables: Markup) -> Slots:
        return {
            f"{self.name}-headline": headline,
            f"{self.name}-plot": picture,
            f"{self.name}-table": tables,
        }


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
        most = lines[0]
        live = say("Up to {} registers are live, at {}.", Strong(most.live), Code(place(most)))
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
    return table(columns, rows, "Registers by source line") if rows else Markup()


def pipeline_headline(program: Program) -> Markup:
    """Render how many steps the loads run ahead, and why others are not pipelined."""
    loads = [load for pipeline in program.inside.pipelines for load in pipeline.loads]
    if not loads:
        none = "No loop of the compiled kernel loads a block."
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


_PANELS = (
    InsidePanel(
        "shared-memory",
        "Lanes whose words each bank serves in each wavefront",
        shared_headline,
        figures.banks_figure,
        shared_table,
    ),
    InsidePanel(
        "registers",
        "Live registers at each SASS instruction",
        registers_headline,
        figures.registers_figure,
        registers_table,
    ),
    InsidePanel(
        "pipeline",
        "The first steps of a loop: copies in flight, waits and multiplications",
        pipeline_headline,
        figures.pipeline_figure,
        pipeline_table,
    ),
)

# The panels by the name of their tab.
INSIDE = {panel.name: panel for panel in _PANELS}
