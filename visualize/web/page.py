"""The page: its head and theme, its HTML with slots, a component that sends messages, and others that receive updates.

Settings or an address → State → snapshot → the open view's slots. Predictions are drawn immediately. A measurement
starts when the user presses its button.
"""

import itertools
import os
from typing import Any

import gradio as gr
from gradio.themes.utils.fonts import LocalFont
from markupsafe import Markup

from kernels.gpus import Gpu
from kernels.measuring.session import Session
from visualize.tours import tours
from visualize.tours.guide import menu, tour_bar
from visualize.views import slots, theme
from visualize.views.prediction_process import PredictionProcess
from visualize.views.result.view import ResultPanel
from visualize.views.slots import PLOTLY_JS, slot
from visualize.views.tabs import LIBRARY, TABS, VIEWS, WAYS
from visualize.web import assets
from visualize.web.api import register_endpoints
from visualize.web.dialogs import glossary_dialog, keys, share
from visualize.web.redraw import Redraw

# Gradio ships both typefaces whole in these two weights only; with 600 declared it serves a file of a few letters.
_WEIGHTS = (400, 700)

# Title and description for browsers and link previews.
TITLE = "Tilescope: see what a Triton kernel really does"
DESCRIPTION = (
    "Pick a Triton kernel, set its tiles, and see which blocks it loads, which bytes each warp fetches, and what "
    "reaches DRAM: predicted, beside what the hardware counted."
)
_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E"
    "%3Crect width='16' height='16' rx='3' fill='%233b4fd1'/%3E"
    "%3Cpath d='M3 3h4v4H3zM9 9h4v4H9z' fill='%23fff'/%3E"
    "%3Cpath d='M9 3h4v4H9zM3 9h4v4H3z' fill='%23f5a300'/%3E%3C/svg%3E"
)
HEAD = (
    f'<link rel="icon" href="{_ICON}"><meta property="og:title" content="{TITLE}">'
    f'<meta property="og:description" content="{DESCRIPTION}"><meta name="description" content="{DESCRIPTION}">'
    f"<style>{assets.text('web/assets/head/narrow.css')}</style>"
)

_SKIP = Markup('<a class="skip" href="#results">Skip to the picture</a>')
_NAME = Markup('<h1 title="What your Triton kernel really does. {}">Tilescope</h1>')
_SECTION = Markup('<section role="tabpanel" id="{0}-tab" class="tabitem" aria-label="{0}" hidden>{1}{2}</section>')
_PICTURES = Markup('<nav class="pictures" aria-label="Pictures of this view">{}</nav>')
_PICTURE = Markup('<button type="button" data-tab="{}">{}</button>')
_TABS = Markup('<div role="tablist" aria-label="Views">{}</div>')
_VIEW = Markup('<button type="button" role="tab" data-tabs="{}" aria-controls="results">{}</button>')
_LIBRARY = Markup('<button type="button" class="library" data-tabs="{}">Library</button>')

# Visible while the page waits for a reply.
_AWAITED = '<div role="progressbar" aria-label="Waiting for a reply" hidden></div>'

# On a narrow screen the controls are a drawer at the bottom, so that the picture stays visible.
_DRAWER = '<button type="button" aria-expanded="false" aria-controls="controls">Controls</button>'

# A menu of rarely used links and settings.
_MORE = Markup(
    '<details class="more"><summary aria-label="More" title="More">⋯</summary>'
    '<div><nav aria-label="Where to begin">{}</nav>{}'
    '<button type="button" popovertarget="glossary">Glossary</button>'
    '<button type="button" class="show-keys">Keys and talk mode</button></div></details>'
)
_COPY = (
    '<div class="link"><button type="button" class="copy-link">Copy link</button>'
    '<button type="button" class="theme-switch">Light / dark</button></div>'
)
_WAY = Markup('<a href="?{}">{}</a>')


def page(session: Session, with_tools: bool = False) -> gr.Blocks:
    """Return the whole page and its API, for the workers of a session; with tools, for an MCP server, too."""
    predictions = PredictionProcess(session)
    redraw = Redraw(session, predictions)
    space = os.environ.get("SPACE_ID")
    constants = {
        "themes": theme.THEMES,
        "scale": theme.LOAD_SCALE,
        "to_come": theme.OPAQUE_TO_COME,
        "base": f"https://huggingface.co/spaces/{space}" if space else "",  # in a Space, the page is a frame
        "tours": list(tours()),
        "needs_gpu": redraw.missing_gpu(),
    }
    with gr.Blocks(title=TITLE, fill_width=True, analytics_enabled=False) as blocks:
        outbox = _hidden("outbox", "web/assets/outbox.js")
        stage = gr.HTML(
            value=redraw.opening(),
            html_template=layout(redraw),
            js_on_load=assets.page_script(constants),
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
        panels = list(itertools.chain(*redraw.panels.values()))
        register_endpoints(blocks, session, predictions, panels, with_tools)
    return blocks


def _hidden(name: str, script: str) -> gr.HTML:
    # With Gradio's own template, each value would become the component's HTML.
    return gr.HTML("", html_template="<div></div>", js_on_load=assets.text(script), elem_id=name, visible="hidden")


def layout(redraw: Redraw) -> Markup:
    """Return the page's HTML: a header, the controls, and one section for each picture of a view."""
    sections = Markup("").join(
        _SECTION.format(name, _pictures(name), Markup("").join(panel.layout() for panel in panels))
        for name, panels in redraw.panels.items()
    )
    problem = slot("elsewhere", content='<p class="problem" role="alert"></p>')
    stage = slots.row(slot("compare"), problem, sections, name="results", classes="column")
    controls = slots.row(slots.form("experiment", "Kernel, problem and config"), name="controls", classes="column")
    return Markup("").join(
        [
            slot("awaited", content=_AWAITED),
            slot("settings", "settings"),
            _header(redraw.session.gpu),
            slots.row(controls, stage, name="body"),
            slot("problems", "problems"),
            slot("kept", "kept"),
            tour_bar(),
            keys(),
            glossary_dialog(),
        ]
    )


def _header(gpu: Gpu | None) -> Markup:
    where = f"Live on this machine's {gpu.name}." if gpu else "No GPU here: predictions, recordings and an interpreter."
    views = Markup("").join(_VIEW.format(" ".join(pictures), name) for name, pictures in VIEWS.items())
    ways = Markup("").join(_WAY.format(query, question) for question, query in WAYS.items())
    return slots.row(
        slot("title", content=_SKIP + _NAME.format(where)),
        slot("tab", "tabs", _TABS.format(views)),
        slots.button("run", "Run", primary=True),
        slots.button("cancel", "Cancel", is_enabled=False),
        slots.row(ResultPanel().card(), slot("status"), name="outcome"),
        slot("tours", content=menu(tours())),
        _LIBRARY.format(" ".join(LIBRARY)),
        share(),
        _MORE.format(ways, slot("link", "link", _COPY)),
        slot("drawer", content=_DRAWER),
        name="header",
        classes="bar",
    )


def _pictures(name: str) -> Markup:
    """Return the switch between the pictures of a view; an empty one if the view has one picture."""
    names = next((names for names in (*VIEWS.values(), LIBRARY) if name in names and len(names) > 1), ())
    titles = {tab.name: tab.title for tab in TABS}
    return _PICTURES.format(Markup("").join(_PICTURE.format(name, titles[name]) for name in names))


def gradio_theme() -> gr.themes.Base:
    """Return one typeface with full weights, and one accent. The style sheets beside the views have the rest."""
    accent = gr.themes.Color(
        name="accent",
        c50="#eef1ff", c100="#dfe4ff", c200="#c4ccff", c300="#a1acfb", c400="#8493f5", c500="#5b6ce6",
        c600="#3b4fd1", c700="#3040aa", c800="#293785", c900="#22306b", c950="#161e44",
    )  # fmt: skip
    return gr.themes.Default(
        primary_hue=accent,
        neutral_hue=gr.themes.colors.slate,
        radius_size=gr.themes.sizes.radius_sm,
        font=[LocalFont("IBM Plex Sans", weights=_WEIGHTS), "system-ui", "sans-serif"],
        font_mono=[LocalFont("IBM Plex Mono", weights=_WEIGHTS), "ui-monospace", "monospace"],
    ).set(
        # Default is white on the 500 of a hue: too little contrast for text.
        button_primary_background_fill="*primary_600",
        button_primary_background_fill_hover="*primary_700",
        button_primary_background_fill_dark="*primary_600",
        button_primary_background_fill_hover_dark="*primary_500",
        color_accent="*primary_600",
    )
