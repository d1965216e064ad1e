"""The reply that opens the page: compressed, and with the first picture in it.

A megabyte of the reply is Gradio's configuration, most of which repeats. A browser takes a second or more to build the
page and to parse Plotly. Until then the first picture, an SVG of the same figure, fills the stage.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup, escape
from plotly.colors import sample_colorscale
from starlette._utils import get_route_path
from starlette.datastructures import MutableHeaders, QueryParams
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tilescope.declare.discovery import opening
from tilescope.declare.gpus import Gpu
from tilescope.measure.session import BoundedCache
from visualize.views.order.map_figure import map_figure
from visualize.views.order.view import orders_of
from visualize.views.state import Snapshot
from visualize.views.tabs import read_state
from visualize.views.theme import Figure

_BODY = re.compile(rb"<body\b[^>]*>")

# Width and height of the SVG's viewBox.
_SIDE = 1000

# Paths of the page, and of the descriptions of its components, which Gradio rebuilds though they never change.
_PAGE = ("", "/")
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
        if path not in (*_PAGE, *_LISTS):
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
        is_plain = not names & {"page", "deep_link"} if path in _PAGE else not names
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
        opening = (self._head + picture).encode()
        start, *bodies = await collect_reply(self._app, scope, receive)
        content = b"".join(message.get("body", b"") for message in bodies)
        if start["status"] == 200 and get_route_path(scope) in _PAGE:
            content = _BODY.sub(lambda tag: tag[0] + opening, content, count=1)
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
