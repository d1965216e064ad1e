"""The page: its HTML with slots, a component that sends messages, and one per kind of update that receives them.

Settings or an address → State → snapshot → the open view's slots. Predictions are drawn at once; what needs a worker
waits for a button.
"""

from typing import Any

import gradio as gr
from markupsafe import Markup

from kernels.gpus import Gpu
from kernels.measuring.session import Session
from visualize.tours import tours
from visualize.tours.guide import menu, tour_bar
from visualize.views import address as link
from visualize.views import slots, theme
from visualize.views.address import base
from visualize.views.glossary import glossary_dialog
from visualize.views.plot import PLOTLY_JS
from visualize.views.prediction_process import PredictionProcess
from visualize.views.result.view import ResultPanel
from visualize.views.slots import slot
from visualize.views.tabs import LIBRARY, TABS, VIEWS, WAYS
from visualize.web import assets, header_text
from visualize.web.api import endpoints
from visualize.web.dialogs import keys, share
from visualize.web.look import TITLE
from visualize.web.redraw import Redraw


def page(session: Session, with_tools: bool = False) -> gr.Blocks:
    """Return the whole page and its API, for the workers of a session; with tools, for an MCP server, too."""
    predictions = PredictionProcess(session)
    redraw = Redraw(session, predictions)
    with gr.Blocks(title=TITLE, fill_width=True, analytics_enabled=False) as blocks:
        outbox = _hidden("outbox", "web/assets/outbox.js")
        stage = gr.HTML(
            value=redraw.opening(),
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
    """Return the page's HTML: a header, the controls, and one section for each picture of a view."""
    sections = Markup("").join(
        _SECTION.format(name, _pictures(name), Markup("").join(panel.layout() for panel in panels))
        for name, panels in redraw.panels.items()
    )
    problem = slot("elsewhere", content=Markup('<p class="problem" role="alert"></p>'))
    stage = slots.row(slot("compare"), problem, sections, name="results", classes="column")
    controls = slots.row(slots.form("experiment", "Kernel, problem and config"), name="controls", classes="column")
    return Markup("").join(
        [
            slot("awaited", "awaited", header_text.AWAITED),
            slot("settings", "settings"),
            _header(redraw.session.gpu),
            slots.row(controls, stage, name="body"),
            slot("problems", "problems"),
            slot("kept", "kept"),
            tour_bar(),
            keys(),
            glossary_dialog(),
            _disabled(redraw.missing_gpu()),
        ]
    )


_SECTION = Markup('<section role="tabpanel" id="{0}-tab" class="tabitem" aria-label="{0}" hidden>{1}{2}</section>')
_VIEW = Markup('<button type="button" role="tab" data-tabs="{}" aria-controls="results">{}</button>')
_PICTURE = Markup('<button type="button" data-tab="{}">{}</button>')


def _header(gpu: Gpu | None) -> Markup:
    views = Markup("").join(_VIEW.format(" ".join(pictures), name) for name, pictures in VIEWS.items())
    more = header_text.more(WAYS, link.link())
    library = Markup('<button type="button" class="library" data-tabs="{}">Library</button>').format(" ".join(LIBRARY))
    return slots.row(
        slot("title", content=header_text.title(gpu)),
        slot("tab", "tabs", Markup('<div role="tablist" aria-label="Views">{}</div>').format(views)),
        slots.button("run", "Run", primary=True),
        slots.button("cancel", "Cancel", is_enabled=False),
        slots.row(ResultPanel().card(), slot("status"), name="outcome"),
        slot("tours", content=menu(tours())),
        library,
        share(),
        more,
        slot("drawer", "drawer", header_text.DRAWER),
        name="header",
        classes="bar",
    )


def _pictures(name: str) -> Markup:
    """Return the switch between the pictures of a view; an empty one if the view has one picture."""
    pictures = next((pictures for pictures in (*VIEWS.values(), LIBRARY) if name in pictures), ())
    titles = {tab.name: tab.title for tab in TABS}
    buttons = Markup("").join(_PICTURE.format(one, titles[one]) for one in pictures if len(pictures) > 1)
    return Markup('<nav class="pictures" aria-label="Pictures of this view">{}</nav>').format(buttons)


def _disabled(names: list[str]) -> Markup:
    """Name the buttons that need a GPU, which `page.js` disables: there is none, and recordings are drawn anyway."""
    return Markup('<div id="needs-gpu" hidden data-names="{}"></div>').format(" ".join(names))
