"""The scrubber: steps through the requests of a program, in all pictures of memory at once.

The figures carry the requests that it draws (`figures.memory_figure`). Where it stands is a knob of the view, so that
it is part of the page's address; beyond what the figures carry, the page is asked.
"""

from __future__ import annotations

from markupsafe import Markup

from visualize.views import theme
from visualize.views.slots import slot

_LEGEND = (
    (theme.WANTED, "wanted by a lane"),
    (theme.WASTED, "moved for nothing"),
    (theme.TO_COME, "not touched"),
)


def scrubber() -> Markup:
    """The controls. They find the live plots by themselves."""
    legend = "".join(f'<span><i style="background:{color}"></i>{said}</span>' for color, said in _LEGEND)
    return slot(
        "scrubber",
        "scrubber",
        (
            '<div class="player scrubber" role="group" aria-label="Requests of the program">'
            '<button type="button" class="back" aria-label="Previous request">←</button>'
            '<button type="button" class="forward" aria-label="Next request">→</button>'
            '<input type="range" min="0" max="0" value="0" aria-label="Request">'
            f'<output></output><span class="legend">{legend}</span></div>'
        ),
    )
