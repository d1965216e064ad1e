"""The panels of the Inside view. Each draws a program, of a kernel of ours or of a script's launch."""

from abc import abstractmethod
from typing import Any, ClassVar

from markupsafe import Markup

from visualize.views import slots, status
from visualize.views.inside import figures, text
from visualize.views.inside.program import Program, describe
from visualize.views.panel import Panel, Slots
from visualize.views.prediction_process import NEAR_S
from visualize.views.slots import NONE, plot, plot_value, slot
from visualize.views.state import Snapshot

_STEPPER = (
    '<div class="player" role="group" aria-label="Executions"><select class="control" aria-label="Instruction"></select>'
    '<button type="button" class="control back" aria-label="Previous">←</button>'
    '<button type="button" class="control forward" aria-label="Next">→</button>'
    '<input type="range" min="0" value="0" aria-label="Execution"><output></output></div>'
)


class InsidePanel(Panel):
    """A picture of the inside of a program, below its headline, and its tables.

    Attributes:
        name: of its tab.
        label: of its plot, for screen readers.
        is_stepped: whether the picture carries frames.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    is_stepped: ClassVar[bool] = False

    def layout(self) -> Markup:
        stepper = slot(f"{self.name}-stepper", "stepper", _STEPPER) if self.is_stepped else Markup()
        return (
            slot(f"{self.name}-headline")
            + stepper
            + slots.picture(plot(f"{self.name}-plot", self.label))
            + slot(f"{self.name}-table")
        )

    @abstractmethod
    def headline(self, program: Program) -> Markup:
        """Return the main number, and what it means."""

    @abstractmethod
    def figure(self, program: Program) -> dict[str, Any] | None:
        """Return the picture; None if there is nothing to draw."""

    @abstractmethod
    def tables(self, program: Program) -> Markup:
        """Return the tables below the picture; "" for none."""

    def draw_program(self, program: Program) -> Slots:
        """Fill its slots."""
        figure = self.figure(program)
        picture = plot_value(figure, about=program.about) if figure else NONE
        return self._slots(self.headline(program), picture, self.tables(program))

    def draw(self, snapshot: Snapshot) -> Slots:
        if snapshot.failure:
            return self._slots(status.render_failure(snapshot.failure), NONE, Markup())
        if snapshot.compiled is None:
            return self._slots(status.render_compiling(snapshot.state.gpu.name), "", Markup())
        return self.draw_program(describe(snapshot))

    def draw_waiting(self, snapshot: Snapshot, seconds: float) -> Slots:
        return {
            f"{self.name}-headline": status.render_compiling(snapshot.state.gpu.name, seconds)
        }

    def draw_predicting(self, snapshot: Snapshot) -> Slots:
        return {f"{self.name}-headline": status.render_predicting(self.seconds(snapshot))}

    def seconds(self, snapshot: Snapshot) -> float:
        # Another process reads the compiled code, so that the page's own stays free.
        return 2 * NEAR_S if snapshot.compiled else 0.0

    def _slots(self, headline: Markup, picture: str, tables: Markup) -> Slots:
        return {
            f"{self.name}-headline": headline,
            f"{self.name}-plot": picture,
            f"{self.name}-table": tables,
        }


class SharedMemoryPanel(InsidePanel):
    """The wavefronts of each line's accesses, and the banks of one access."""

    name = "shared-memory"
    label = "The words that each bank serves, by wavefront, beside an order without conflicts"
    is_stepped = True

    def headline(self, program: Program) -> Markup:
        return text.shared_headline(program)

    def figure(self, program: Program) -> dict[str, Any] | None:
        groups = text.group_accesses(program)
        return figures.banks_figure(groups) if groups else None

    def tables(self, program: Program) -> Markup:
        return text.shared_table(program.inside.shared)


class MemoryMapPanel(InsidePanel):
    """Where each buffer lies in shared memory, and when."""

    name = "memory-map"
    label = "Buffers in shared memory: bytes by the program's operations"

    def headline(self, program: Program) -> Markup:
        return text.map_headline(program)

    def figure(self, program: Program) -> dict[str, Any] | None:
        buffers = program.inside.shared_map
        return figures.memory_map_figure(buffers, program.facts.shared_bytes) if buffers else None

    def tables(self, program: Program) -> Markup:
        return text.map_tables(program)


class RegistersPanel(InsidePanel):
    """The live registers at each instruction, and the spills of each line."""

    name = "registers"
    label = "Live registers along the SASS"

    def headline(self, program: Program) -> Markup:
        return text.registers_headline(program)

    def figure(self, program: Program) -> dict[str, Any] | None:
        return figures.registers_figure(program) if program.live else None

    def tables(self, program: Program) -> Markup:
        return text.registers_table(program)


# The panels by the name of their tab.
INSIDE: dict[str, InsidePanel] = {
    panel.name: panel for panel in (SharedMemoryPanel(), MemoryMapPanel(), RegistersPanel())
}
