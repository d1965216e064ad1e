"""The page: its HTML with slots, a component that sends messages, and one per kind of update that receives them.

Settings or an address → State → snapshot → the open view's slots. Predictions are drawn at once; what needs a worker
waits for a button.
"""

from __future__ import annotations

from typing import Any

import gradio as gr
from markupsafe import Markup

from kernels.measuring.session import Session
from visualize.tours import text as tour_text
from visualize.tours import tours
from visualize.views import address as link
from visualize.views import slots, theme
from visualize.views.address import base
from visualize.views.plot import PLOTLY_JS
from visualize.views.prediction_process import PredictionProcess
from visualize.views.result.result_tab import ResultPanel
from visualize.views.slots import slot
from visualize.views.tabs import TABS, WAYS
from visualize.web import assets, header_text
from visualize.web.api import endpoints
from visualize.web.keys import keys
from visualize.web.look import TITLE
from visualize.web.redraw import Redraw
from visualize.web.share import share
from visualize.web.tour_bar import tour_bar


def page(session: Session, with_tools: bool = False) -> gr.Blocks:
    """Return the whole page and its API, for the workers of a session; with tools, for an MCP server, too."""
    predictions = PredictionProcess(session)
    redraw = Redraw(session, predictions)
    with gr.Blocks(title=TITLE, fill_width=True, analytics_enabled=False) as blocks:
        outbox = _hidden("outbox", "web/assets/outbox.js")
        stage = gr.HTML(
            value="",
            html_template=layout(redraw),
            js_on_load=assets.page_script(given()),
            # Served by the app; relative, so that it works behind a proxy's path.
            head=f'<script src="gradio_api/file={PLOTLY_JS}"></script>',
            apply_default_css=False,
            elem_id="stage",
        )
        stream, replies = (_hidden(name, "web/assets/inbox.js") for name in ("stream", "replies"))
        quiet: dict[str, Any] = {"show_progress": "hidden", "trigger_mode": "multiple", "api_visibility": "private"}
        # A redraw bypasses Gradio's queue; the page sends the next one when it has the reply. The session has its own
        # queue for everything that takes longer.
        outbox.input(redraw.on_message, [outbox], [stage], queue=False, **quiet)
        outbox.play(redraw.on_stream, None, [stream], concurrency_limit=None, **quiet)
        outbox.submit(redraw.on_action, [outbox], [replies], concurrency_limit=None, **quiet)
        outbox.stop(redraw.on_cancel, None, None, queue=False, **quiet)
        blocks.unload(redraw.on_unload)
        endpoints(session, predictions, [panel for panels in redraw.panels.values() for panel in panels], with_tools)
    return blocks


def _hidden(name: str, script: str) -> gr.HTML:
    # With Gradio's own template, each value would become the component's HTML.
    return gr.HTML("", html_template="<div></div>", js_on_load=assets.text(script), elem_id=name, visible="hidden")


def given() -> dict[str, Any]:
    """Return the constants of the page's scripts."""
    return {
        "themes": theme.THEMES,
        "scale": theme.LOAD_SCALE,
        "to_come": theme.OPAQUE_TO_COME,
        "base": base(),
        "tours": list(tours()),
    }


def layout(redraw: Redraw) -> Markup:
    """Return the page's HTML."""
    menu = tour_text.menu((tour.name, tour.title, tour.about) for tour in tours().values())
    header = slots.row(
        slot("settings", "settings"),
        slot("title", content=header_text.title(redraw.session.gpu)),
        slot("ways", content=header_text.ways(WAYS)),
        link.link(),
        slot("tours", content=menu),
        share(),
        name="header",
    )
    run = slots.row(
        slots.button("run", "Run", primary=True),
        slots.button("cancel", "Cancel", is_enabled=False),
        slot("drawer", "drawer", header_text.DRAWER),
        name="run-row",
    )
    controls = slots.row(run, slots.form("experiment", "Kernel, problem and config"), name="controls", classes="column")
    problem = slot("elsewhere", content=Markup('<p class="problem" role="alert"></p>'))
    outcome = slots.row(ResultPanel().strip(), slot("status"), slot("compare"), problem, name="outcome")
    results = slots.row(outcome, _tabs(redraw), name="results", classes="column")
    waiting = slot("awaited", "awaited", header_text.AWAITED)
    return Markup("").join(
        [
            waiting,
            header,
            slots.row(controls, results, name="body"),
            slot("problems", "problems"),
            slot("kept", "kept"),
            tour_bar(),
            keys(),
            _disabled(redraw.missing_gpu()),
        ]
    )


def _tabs(redraw: Redraw) -> Markup:
    tab = Markup('<button type="button" role="tab" id="{0}-button" aria-controls="{0}-tab" data-tab="{0}">{1}</button>')
    place = Markup(
        '<section role="tabpanel" id="{0}-tab" class="tabitem" aria-labelledby="{0}-button" hidden>{1}</section>'
    )
    buttons = Markup("").join(tab.format(one.name, one.title) for one in TABS)
    panels = Markup("").join(
        place.format(name, Markup("").join(panel.layout() for panel in panels))
        for name, panels in redraw.panels.items()
    )
    return Markup('<div id="tabs"><div role="tablist" aria-label="Views">{}</div>{}</div>').format(
        slot("tab", "tabs", buttons, "tab-row"), panels
    )


def _disabled(names: list[str]) -> Markup:
    """Name the buttons that need a GPU, which `page.js` disables: there is none, and recordings are drawn anyway."""
    return Markup('<div id="needs-gpu" hidden data-names="{}"></div>').format(" ".join(names))
