"""Buttons that save what the API replies to the Experiment that is set. Its value: that Experiment as JSON."""

from __future__ import annotations

from markupsafe import Markup

from visualize.views.slots import slot

_BUTTONS = (
    ("script", "Python script", "Kernel, launch, check and timing in one file: torch and Triton alone."),
    ("notebook", "Notebook", "The same as Jupyter cells."),
    ("trace", "Timeline for Perfetto", "Where and when each program ran, as a Chrome trace."),
)


def take() -> Markup:
    """The component. It asks the API as any client would."""
    buttons = "".join(
        f'<p><button type="button" data-file="{name}">{title}</button> <span class="hint">{hint}</span></p>'
        for name, title, hint in _BUTTONS
    )
    return slot(
        "take",
        "take",
        (
            f'<div class="take">{buttons}'
            '<p><button type="button" data-file="json">JSON</button> '
            '<label>reply of <select aria-label="Endpoint of the API"></select></label> '
            '<span class="hint">Figures: PNG and SVG at their lower right. Tables: CSV.</span></p>'
            '<p class="said" role="status"></p></div>'
        ),
    )
