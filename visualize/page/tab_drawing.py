"""What a tab shows of what is known, with what is pinned beside it: here, or in another process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gradio as gr
from markupsafe import Markup

from kernels import once
from kernels.knobs import ConfigError
from visualize.panels import compare
from visualize.panels.panel import Drawn, Panel
from visualize.panels.result_tab import ResultPanel
from visualize.panels.tabs import TABS
from visualize.state.known import Known


class TabDrawing:
    """Draws the tabs of one page.

    Args:
        panels: by the name of their tab.
        result: the one of them that shows the last run.
    """

    def __init__(self, panels: Mapping[str, Sequence[Panel]], result: ResultPanel) -> None:
        self._panels, self._result = panels, result

    def seconds(self, known: Known, twin: Known | None) -> float:
        """Seconds of a core that `drawn` takes besides what is quick for every launch, roughly."""
        panels = self._panels[known.state.view.tab]
        # A twin's numbers are compared, too: what they come from is predicted once more.
        again = 1 if twin is None else 2
        return again * sum(panel.seconds(one) for one in (known, twin) if one for panel in panels)

    def drawn(self, known: Known, twin: Known | None) -> tuple[Drawn, Markup]:
        """What the panels of the open tab draw, each with its twin; and what differs.

        Raises:
            ConfigError: where one can't be drawn.
        """
        return self.compared(self._alone(known), known, twin)

    def compared(self, drawn: Drawn, known: Known, twin: Known | None) -> tuple[Drawn, Markup]:
        """What is drawn, with its twins."""
        return compare.compared(drawn, known, twin, self._panels[known.state.view.tab], self._whole)

    def _alone(self, known: Known) -> Drawn:
        drawn: Drawn = {}
        for panel in self._panels[known.state.view.tab]:
            drawn |= panel.draw(known)
        return drawn

    def _whole(self, known: Known) -> Drawn:
        return {**self._result.known_run(known), **self._alone(known)}


# The values of the open tab's components by their names, and what differs; or why it can't be drawn.
Values = tuple[dict[str, Any], Markup] | ConfigError


def values(known: Known, twin: Known | None) -> Values:
    """What `TabDrawing.drawn` gives, for another process."""
    try:
        drawn, bar = _here().drawn(known, twin)
    except ConfigError as error:
        return error
    return {str(component.elem_id): value for component, value in drawn.items()}, bar


@once
def _here() -> TabDrawing:
    """The tabs of a page that nobody sees."""
    with gr.Blocks():
        panels = {tab.name: [panel() for panel in tab.panels] for tab in TABS}
        (result,) = (one for several in panels.values() for one in several if isinstance(one, ResultPanel))
        result.build_strip()
        for panel in (panel for several in panels.values() for panel in several):
            panel.build()
    return TabDrawing(panels, result)
