"""The page: its head and theme, and its HTML with slots, in one component of Gradio's."""

import os
from collections.abc import Mapping

import gradio as gr
from gradio.themes.utils.fonts import LocalFont
from markupsafe import Markup

from tilescope.declare.discovery import setting
from tilescope.declare.gpus import Gpu
from visualize.tours import menu, tours
from visualize.views import slots, theme
from visualize.views.panel import Api, Endpoint
from visualize.views.prose import LIST_ITEM, Link, glossary_dialog
from visualize.views.slots import slot
from visualize.views.tabs import LIBRARY, TABS, VIEWS
from visualize.web import assets
from visualize.web.actions import Actions, encode
from visualize.web.api import register_endpoints
from visualize.web.redraw import Redraw

# Gradio ships both typefaces whole in these two weights only; with 600 declared it serves a file of a few letters.
_WEIGHTS = (400, 700)

# One typeface with full weights. The style sheets beside the views have the rest.
THEME = gr.themes.Default(
    primary_hue="indigo",
    neutral_hue="slate",
    radius_size="sm",
    font=[LocalFont("IBM Plex Sans", weights=_WEIGHTS), "system-ui", "sans-serif"],
    font_mono=[LocalFont("IBM Plex Mono", weights=_WEIGHTS), "ui-monospace", "monospace"],
)

TITLE = "Tilescope: see what a Triton kernel really does"
HEAD = (
    '<link rel="icon" href="favicon.ico"><meta name="description" content="Pick a Triton kernel, set its tiles, and '
    "see which blocks it loads, which bytes each warp fetches, and what reaches DRAM: predicted, beside what the "
    'hardware counted.">'
)

# Visible until the page has its first values.
OPENING = (
    '<p id="opening" role="status">Opening Tilescope. The first compile can take some seconds.</p>'
)

_SKIP = Markup('<a class="skip" href="#results">Skip to the picture</a>')
_NAME = Markup('<h1 title="What your Triton kernel really does. {}">Tilescope</h1>')
_SECTION = Markup('<section id="{0}-tab" class="tabitem" aria-label="{0}" hidden>{1}{2}</section>')
_VIEW = Markup('<button type="button" data-tabs="{}">{}</button>')
_LIBRARY = Markup('<button type="button" data-tabs="{}">Library</button>')

# On a narrow screen the controls are a drawer at the bottom, so that the picture stays visible.
_CONTROLS = Markup('<div id="controls" class="column" popover>{}{}</div>')
_DRAWER = '<button type="button" popovertarget="controls">Controls</button>'

# The slot of error messages about settings whose control is not visible.
_PROBLEM = slot("elsewhere", content='<p class="problem" role="alert"></p>')

# A menu of rarely used links and settings.
_MORE = Markup(
    '<details class="more"><summary aria-label="More" title="More">⋯</summary>'
    '<div><nav aria-label="Where to begin">{}</nav>{}{}'
    '<button type="button" popovertarget="share-dialog">Share: link and QR code</button>'
    '<button type="button" popovertarget="glossary">Glossary</button>'
    '<button type="button" popovertarget="keys-dialog">Keys and talk mode</button></div></details>'
)
_THEME = '<button type="button" class="theme-switch">Light / dark</button>'

# Opening the dialog starts the action "share".
_SHARE = slot(
    "share",
    "share",
    '<dialog popover id="share-dialog" aria-labelledby="share-title"><h2 id="share-title">Share this page</h2>'
    '<div class="qr" role="img" aria-label="QR code of the link"></div>'
    '<p><input type="text" readonly aria-label="Link"><button type="button" class="copy">Copy link</button></p>'
    '<p><input type="text" readonly aria-label="Embed code for a slide or a web page">'
    '<button type="button" class="copy">Copy embed code</button></p>'
    '<p><button type="button" popovertarget="share-dialog">Close</button></p></dialog>',
)


KEYS = (
    ("← →", "step back or forward; in a tour, go to the previous or next stop"),
    ("Space", "play and pause"),
    ("Ctrl+Enter", "Run"),
    ("T", "talk mode: the headline and the picture fill the window"),
    ("F", "full screen"),
    ("Q", "link and QR code of the current page"),
    ("1 2 3 4 5 6", "the views and the Library"),
    ("A B C D", "answer a question"),
    ("Esc", "leave the tour, then talk mode"),
    ("?", "this list"),
)


def page(redraw: Redraw, actions: Actions, with_tools: bool = False) -> gr.Blocks:
    """Return the whole page and its API.

    Args:
        with_tools: for an MCP server, too.
    """
    scripts = redraw.scripts
    space = os.environ.get("SPACE_ID")
    # In a Space, the page is a frame
    base = f"https://huggingface.co/spaces/{space}" if space else ""
    given = {
        "base": base,
        "tours": list(tours()),
        "needs_gpu": actions.missing_gpu(),
        **theme.FOR_SCRIPTS,
    }
    with gr.Blocks(title=TITLE, fill_width=True, analytics_enabled=False) as blocks:
        gr.HTML(
            value="" if scripts.opened else encode(redraw.initial_slots()),
            html_template=layout(redraw),
            js_on_load=assets.start_page(given),
            head=f'<script src="{assets.PLOTLY}"></script>',
            apply_default_css=False,
            elem_id="stage",
        )
        api = Api(redraw.session, redraw.predictions)
        requests = Endpoint(
            "requests",
            scripts.requests,
            launches=bool(scripts.opened),
            others={"script": {"type": "string"}},
        )
        register_endpoints(blocks, api, redraw.all_panels, with_tools, [requests])
    return blocks


def layout(redraw: Redraw) -> Markup:
    """Return the page's HTML: a header, the controls, and one section for each picture of a view."""
    sections = Markup("").join(
        _SECTION.format(name, _pictures(name), Markup("").join(panel.layout() for panel in panels))
        for name, panels in redraw.panels.items()
    )
    controls = _CONTROLS.format(
        slots.form("experiment", "Kernel, problem and config"),
        slots.form("script", "Launch and case"),
    )
    above = slot("compare") + _PROBLEM + slot("launches")
    stage = slots.row(above, sections, name="results", classes="column")
    awaited = '<div role="progressbar" aria-label="Waiting for a reply" hidden></div>'
    return (
        slot("awaited", content=awaited)  # visible while the page waits for a reply
        + slot("settings", "settings")
        + _header(redraw.session.gpu)
        + slots.row(controls, stage, name="body")
        + slot("problems", "problems")
        + slot("saved-file", "saved_file")
        # If the URL names a stop of a tour, this slot starts the action "tour".
        + slot("tour", "tour", '<div class="tour-bar"></div>')
        + _SHARE
        + keys()
        + glossary_dialog()
    )


def _header(gpu: Gpu | None) -> Markup:
    where = (
        f"Live on this machine's {gpu.name}."
        if gpu
        else "No GPU here: predictions, recordings and Triton's interpreter."
    )
    views = Markup("").join(
        _VIEW.format(" ".join(pictures), name) for name, pictures in VIEWS.items()
    )
    points: Mapping[str, str] = setting("STARTING_POINTS", {})
    ways = Markup("").join(Link(question, query) for question, query in points.items())
    return slots.row(
        slot("title", content=_SKIP + _NAME.format(where)),
        slot("tab", "tabs", Markup('<nav aria-label="Views">{}</nav>').format(views)),
        slots.button("run", "Run", primary=True),
        slots.button("cancel", "Cancel", is_enabled=False),
        slots.row(slot("card", "result"), slot("status"), name="outcome"),
        slot("tours", content=menu(tours())),
        _MORE.format(ways, _LIBRARY.format(LIBRARY), slot("link", "link", _THEME)),
        slot("drawer", content=_DRAWER),
        name="header",
        classes="bar",
    )


def _pictures(name: str) -> Markup:
    """Return the switch between the pictures of a view; an empty one if the view has one picture."""
    names = next((names for names in VIEWS.values() if name in names and len(names) > 1), ())
    return slots.pictures({tab.name: tab.title for tab in TABS if tab.name in names})


def keys() -> Markup:
    """Return the slot of the shortcuts and their dialog."""
    listed = Markup("").join(
        LIST_ITEM.format(
            Markup(" ").join(Markup("<kbd>{}</kbd>").format(key) for key in pressed.split(" ")),
            action,
        )
        for pressed, action in KEYS
    )
    return slot(
        "keys",
        "keys",
        '<button type="button" class="open-keys quiet" popovertarget="keys-dialog" aria-label="Keys" title="Keys (?)">?'
        "</button>"
        '<h1 class="on-stage quiet"></h1><a class="open-whole" target="_blank" rel="noopener">Open in Tilescope</a>'
        '<dialog popover id="keys-dialog" aria-labelledby="keys-title"><h2 id="keys-title">Keys</h2>'
        f'<dl>{listed}</dl><p><button type="button" class="to-talk" popovertarget="keys-dialog">Talk mode</button>'
        '<button type="button" popovertarget="keys-dialog">Close</button></p></dialog>',
    )
