"""The picture that the page opens on, in the page's own reply: there before Gradio has built a component.

A browser takes a second and more to build the page and to read Plotly. This needs neither: it is the figure that is
drawn live a moment later (`map_figure`), as SVG.
"""

from __future__ import annotations

from pathlib import Path

from markupsafe import escape

from kernels.gpus import Gpu
from visualize.views.options import ScheduleView
from visualize.views.order.map_figure import map_figure
from visualize.views.order.view import orders_of
from visualize.views.snapshot import Known
from visualize.views.tabs import SETTINGS
from visualize.web.still import still


def first_picture(gpu: Gpu | None) -> str:
    """HTML to stand at the beginning of the page's body, where the address says nothing. It takes itself away.

    Args:
        gpu: of this machine.
    """
    state = SETTINGS.state(SETTINGS.opening, gpu)
    orders = orders_of(Known(state))  # its order alone: reading all recordings would hold up the start
    label = " beside ".join(order.name for order in orders)
    drawing = still(map_figure(orders, state.view.of(ScheduleView).color))
    text = Path(__file__).with_suffix(".html").read_text(encoding="utf-8")
    return text.replace("LABEL", escape(label)).replace("DRAWING", drawing)
