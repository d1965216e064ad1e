"""The page: its head and theme, its HTML with slots, in one component of Gradio's, and the reply that opens it.

A megabyte of the reply is Gradio's configuration, most of which repeats. A browser takes a second or more to build the
page and to parse Plotly. Until then the first picture, an SVG of the same figure, fills the stage.
"""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np
from gradio.themes.utils.fonts import LocalFont
from markupsafe import Markup, escape
from plotly.colors import sample_colorscale
from starlette._utils import get_route_path
from starlette.datastructures import MutableHeaders, QueryParams
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tilescope.declare.discovery import opening, setting
from tilescope.declare.gpus import Gpu
from tilescope.measure.session import BoundedCache
from visualize.tours import tours
from visualize.views import theme
from visualize.views.order.map_figure import map_figure
from visualize.views.order.view import orders_of
from visualize.views.panel import Api, Endpoint
from visualize.views.prose import glossary_dialog
from visualize.views.slots import template
from visualize.views.state import Snapshot
from visualize.views.tabs import LIBRARY, TITLES, VIEWS, read_state
from visualize.views.theme import Figure
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

_PAGE = template(
    """
{# Visible while the page waits for a reply. #}
{% call slot("awaited") %}
<div role="progressbar" aria-label="Waiting for a reply" hidden></div>
{% endcall %}
{{ slot("settings", "settings") }}
<div id="header" class="bar">
{% call slot("title") %}
<button type="button" class="skip quiet">Skip to the picture</button>
{% set where = "Live on this machine's " ~ gpu.name ~ "." if gpu else
"No GPU here: predictions, recordings and Triton's interpreter." %}
<h1 title="What your Triton kernel really does. {{ where }}">Tilescope</h1>
{% endcall %}
{{ views(views_of_page) }}
{{ button("run", "Run", " primary") }}{{ button("cancel", "Cancel", is_enabled=false) }}
<div id="outcome" class="row">{{ slot("card", "result") }}{{ slot("status") }}</div>
{% call slot("tours") %}
<details class="tours"><summary>Tours</summary><ul>
{% for tour in tours.values() %}
<li><a href="?tour={{ tour.name }}&stop=1"><b>{{ tour.title }}</b><span class="quiet">{{ tour.about }}</span></a></li>
{% endfor %}
</ul></details>
{% endcall %}
<details class="more"><summary aria-label="More" title="More">⋯</summary>
<div><nav aria-label="Where to begin">
{% for question, query in starting_points.items() %}<a href="?{{ query }}">{{ question }}</a>{% endfor %}
</nav>
<button type="button" data-tabs="{{ library }}">Library</button>
{% call slot("link", "link") %}<button type="button" class="theme-switch">Light / dark</button>{% endcall %}
<button type="button" popovertarget="share-dialog">Share: link and QR code</button>
<button type="button" popovertarget="glossary">Glossary</button>
<button type="button" popovertarget="keys-dialog">Keys and talk mode</button></div></details>
{% call slot("drawer") %}<button type="button" popovertarget="controls">Controls</button>{% endcall %}
</div>
<div id="body" class="row">
{# On a narrow screen, the controls are a drawer at the bottom, so that the picture stays visible. #}
<div id="controls" class="column" popover>
{{ form("experiment", "Kernel, problem and config") }}{{ form("script", "Launch and case") }}
</div>
<div id="results" class="column" tabindex="-1">
{{ slot("compare") }}
{# Errors of settings whose control is not visible. #}
{{ slot("elsewhere") }}
{{ slot("launches") }}
{% for name, panels in panels.items() %}
{% call picture(name, titles, others[name]) %}
{% for panel in panels %}{{ panel.render_layout() }}{% endfor %}
{% endcall %}
{% endfor %}
</div>
</div>
{{ slot("problems", "problems") }}{{ slot("saved-file", "saved_file") }}
{# If the URL names a stop of a tour, this slot starts the action "tour". #}
{% call slot("tour", "tour") %}<div class="tour-bar"></div>{% endcall %}
{# Opening the dialog starts the action "share". #}
{% call slot("share", "share") %}
<dialog popover id="share-dialog" aria-labelledby="share-title"><header><h2 id="share-title">Share this page</h2>
<button type="button" popovertarget="share-dialog">Close</button></header>
<div class="qr" role="img" aria-label="QR code of the link"></div>
<p><input type="text" readonly aria-label="Link"><button type="button" class="copy">Copy link</button></p>
<p><input type="text" readonly aria-label="Embed code for a slide or a web page">
<button type="button" class="copy">Copy embed code</button></p></dialog>
{% endcall %}
{% call slot("keys", "keys") %}
<button type="button" class="open-keys quiet" popovertarget="keys-dialog" aria-label="Keys" title="Keys (?)">?</button>
<h1 class="on-stage quiet"></h1><a class="open-whole" target="_blank" rel="noopener">Open in Tilescope</a>
<dialog popover id="keys-dialog" aria-labelledby="keys-title"><header><h2 id="keys-title">Keys</h2>
<button type="button" class="to-talk" popovertarget="keys-dialog">Talk mode</button>
<button type="button" popovertarget="keys-dialog">Close</button></header>
<dl>
<div><dt><kbd>←</kbd> <kbd>→</kbd></dt><dd>step back or forward; in a tour, go to the previous or next stop</dd></div>
<div><dt><kbd>Space</kbd></dt><dd>play and pause</dd></div>
<div><dt><kbd>Ctrl+Enter</kbd></dt><dd>Run</dd></div>
<div><dt><kbd>T</kbd></dt><dd>talk mode: the headline and the picture fill the window</dd></div>
<div><dt><kbd>F</kbd></dt><dd>full screen</dd></div>
<div><dt><kbd>Q</kbd></dt><dd>link and QR code of the current page</dd></div>
<div><dt><kbd>1</kbd> to <kbd>6</kbd></dt><dd>the views and the Library</dd></div>
<div><dt><kbd>A</kbd> to <kbd>D</kbd></dt><dd>answer a question</dd></div>
<div><dt><kbd>Esc</kbd></dt><dd>leave the tour, then talk mode</dd></div>
<div><dt><kbd>?</kbd></dt><dd>this list</dd></div>
</dl></dialog>
{% endcall %}
{{ glossary }}
"""
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
    return _PAGE(
        gpu=redraw.session.gpu,
        panels=redraw.panels,
        views_of_page=VIEWS,
        library=LIBRARY,
        titles=TITLES,
        others={name: names for names in VIEWS.values() for name in names},
        tours=tours(),
        starting_points=setting("STARTING_POINTS", {}),
        glossary=glossary_dialog(),
    )


_BODY = re.compile(rb"<body\b[^>]*>")

# Width and height of the SVG's viewBox.
_SIDE = 1000

# Paths of the page, and of the descriptions of its components, which Gradio rebuilds though they never change.
_PAGE_PATHS = ("", "/")
_LISTS = ("/config", "/gradio_api/info", "/gradio_api/openapi.json")

# Request headers on which these replies depend. The replies contain the server's address.
_VARIES = (b"host", b"x-forwarded-host", b"x-forwarded-proto", b"accept-encoding")

# Maximum replies that are cached, of up to a megabyte each.
_MAX_REPLIES = 16


def _has_settings(names: Iterable[str]) -> bool:
    return any(not name.startswith("__") for name in names)


class FirstReply:
    """ASGI middleware that caches and compresses the page, and makes the browser fetch our files with Gradio's scripts.

    Gradio 6.31 compresses only scripts and styles, and browsers fetch ours when Gradio has built the page.

    Args:
        head: HTML at the start of the body: the links to our files.
        picture: HTML after it, if the URL has no settings; "" for none.
        is_cached: whether all visitors get the same replies, because there is no login.
    """

    def __init__(
        self, app: ASGIApp, picture: str = "", is_cached: bool = False, head: str = ""
    ) -> None:
        self._app = app
        self._is_cached = is_cached
        self._replies: BoundedCache[list[Message]] = BoundedCache(_MAX_REPLIES)
        self._head = head
        self._picture = picture
        # Level 1 takes 7 ms; level 4 takes 11 ms and compresses better. Higher levels gain nothing.
        self._compress = GZipMiddleware(self._complete, compresslevel=4)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = get_route_path(scope) if scope["type"] == "http" else None
        if path not in (*_PAGE_PATHS, *_LISTS):
            await self._app(scope, receive, send)
            return
        names = {*QueryParams(scope["query_string"])}
        headers = (header for header in scope["headers"] if header[0] in _VARIES)
        key = (
            scope["method"],
            path,
            scope.get("root_path"),
            scope.get("scheme"),
            _has_settings(names),
            *headers,
        )
        # Gradio reads these two from the page's query, and any from a list's.
        is_plain = not names & {"page", "deep_link"} if path in _PAGE_PATHS else not names
        is_cached = self._is_cached and is_plain and len(str(key)) < 1000
        reply = self._replies.get(key) if is_cached else None
        if reply is None:
            reply = await collect_reply(self._compress, scope, receive)
            if is_cached and reply[0]["status"] == 200:
                self._replies.put(key, reply)
        for message in reply:
            await send(message)

    async def _complete(self, scope: Scope, receive: Receive, send: Send) -> None:
        picture = "" if _has_settings(QueryParams(scope["query_string"])) else self._picture
        begin = (self._head + picture).encode()
        start, *bodies = await collect_reply(self._app, scope, receive)
        content = b"".join(message.get("body", b"") for message in bodies)
        if start["status"] == 200 and get_route_path(scope) in _PAGE_PATHS:
            content = _BODY.sub(lambda tag: tag[0] + begin, content, count=1)
            MutableHeaders(scope=start)["content-length"] = str(len(content))
        await send(start)
        await send({"type": "http.response.body", "body": content})


async def collect_reply(app: ASGIApp, scope: Scope, receive: Receive) -> list[Message]:
    """Return the messages of an app's reply."""
    messages = list[Message]()

    async def keep(message: Message) -> None:
        messages.append(message)

    await app(scope, receive, keep)
    return messages


def first_picture(gpu: Gpu | None) -> str:
    """Return HTML for the start of the page's body if the URL has no settings. Its script removes it later."""
    state = read_state(opening(), gpu)
    orders = orders_of(Snapshot(state))  # without recordings, which take long to read
    label = " and ".join(order.name for order in orders)
    figure = map_figure(orders)
    if not all("x" in trace for trace in figure["data"]):
        return ""  # too many tiles for a drawing with edges
    drawing = draw_svg(figure)
    text = Path(__file__).with_name("first_picture.html").read_text(encoding="utf-8")
    return text.replace("LABEL", escape(label)).replace("DRAWING", drawing)


def draw_svg(picture: Figure) -> Markup:
    """Return a figure's heatmaps as SVG, with their titles. The heatmaps have edges and share one colour axis.

    The drawing stretches to the plot's area, without its margins, as Plotly's does.
    """
    layout = picture["layout"]
    paths = Markup("".join(path for trace in picture["data"] for path in _paths(trace, layout)))  # noqa: S704
    html = Markup('<svg viewBox="0 0 {0} {0}" preserveAspectRatio="none">{1}</svg>').format(
        _SIDE, paths
    )
    title = Markup('<b style="left: {:.1f}%; width: {:.1f}%">{}</b>')
    for note in layout["annotations"]:
        if note["yref"].endswith("domain") and note["y"] == 1:
            left, right = _axis(layout, note["xref"].split()[0])["domain"]
            html += title.format(100 * left, 100 * (right - left), note["text"])
    return html


def _axis(layout: Figure, name: str) -> Figure:
    """Return an axis of the layout by a trace's name for it: "x2"."""
    return layout[f"{name[0]}axis{name[1:]}"]


def _paths(trace: Figure, layout: Figure) -> Iterator[str]:
    """Yield an SVG path per colour, with all its cells."""
    across = _positions(trace["x"], _axis(layout, trace.get("xaxis", "x")))
    down = _SIDE - _positions(trace["y"], _axis(layout, trace.get("yaxis", "y")))
    colors = layout["coloraxis"]
    grid = np.ma.filled(np.ma.masked_invalid(trace["z"]).astype(float), np.nan)
    for value in np.unique(grid[~np.isnan(grid)]):
        position = (value - colors["cmin"]) / (colors["cmax"] - colors["cmin"])
        (shade,) = sample_colorscale(colors["colorscale"], [position])
        squares = ""
        for row, column in np.argwhere(grid == value):
            left, right = across[column : column + 2]
            top, bottom = down[row : row + 2]
            squares += f"M{left:.0f} {top:.0f}H{right:.0f}V{bottom:.0f}H{left:.0f}z"
        yield f'<path fill="{shade}" d="{squares}"/>'


def _positions(edges: Any, axis: Figure) -> np.ndarray:
    """Return the positions of edges, in units of the drawing."""
    first, last = axis["range"]
    begin, end = axis.get("domain", (0, 1))
    return _SIDE * (begin + (np.asarray(edges) - first) / (last - first) * (end - begin))
