"""The panels of the Inside view. Each draws a program of one of our kernels, or of a script's launch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from tilescope.numbers import Number
from tilescope.results import Failure
from visualize.views import slots, status
from visualize.views.inside import figures, text
from visualize.views.inside.program import Program, describe
from visualize.views.memory.compiler import resource_numbers
from visualize.views.panel import Panel, Slots
from visualize.views.prediction_process import NEAR_S
from visualize.views.slots import NONE, plot, plot_value, slot
from visualize.views.state import Snapshot


@dataclass(frozen=True)
class InsidePanel(Panel):
    """A headline, a picture of the inside of a program, and tables.

    Attributes:
        name: the name of its tab.
        label: describes the plot to screen readers.
        figure: returns the picture; None if there is nothing to draw.
    """

    uses_inspection = True
    name: str
    label: str
    headline: Callable[[Program], Markup]
    figure: Callable[[Program], dict[str, Any] | None]
    tables: Callable[[Program], Markup]

    def layout(self) -> Markup:
        return (
            slot(f"{self.name}-headline")
            + slots.picture(plot(f"{self.name}-plot", self.label))
            + slot(f"{self.name}-table")
        )

    def draw_program(self, program: Program) -> Slots:
        """Fill the panel's slots."""
        figure = self.figure(program)
        picture = plot_value(figure, about=program.about) if figure else NONE
        return self._slots(self.headline(program), picture, self.tables(program))

    def draw(self, snapshot: Snapshot) -> Slots:
        compiled = snapshot.compiled
        inspected = snapshot.inspected
        if failure := snapshot.failure or (inspected if isinstance(inspected, Failure) else None):
            return self._slots(status.render_failure(failure), NONE, Markup())
        if compiled is None or inspected is None or isinstance(inspected, Failure):
            return self.draw_waiting(snapshot)
        return self.draw_program(describe(snapshot, compiled, inspected))

    def draw_waiting(self, snapshot: Snapshot, seconds: float | None = None) -> Slots:
        compiling = status.render_compiling(snapshot.state.gpu.name, seconds)
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


_PANELS = (
    InsidePanel(
        "shared-memory",
        "Lanes whose words each bank serves in each wavefront",
        text.shared_headline,
        figures.banks_figure,
        text.shared_table,
    ),
    InsidePanel(
        "registers",
        "Live registers at each SASS instruction",
        text.registers_headline,
        figures.registers_figure,
        text.registers_table,
    ),
    InsidePanel(
        "pipeline",
        "The first steps of a loop: copies in flight, waits and multiplications",
        text.pipeline_headline,
        figures.pipeline_figure,
        text.pipeline_table,
    ),
)

# The panels by the name of their tab.
INSIDE = {panel.name: panel for panel in _PANELS}
