"""The reply that opens the page: its first picture in it, and made small.

A megabyte of it is Gradio's configuration, most of which repeats itself.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl

from starlette._utils import get_route_path
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from visualize.views.plot import PLOTLY_JS

_BODY = re.compile(rb"<body\b[^>]*>")


class FirstReply:
    """ASGI middleware: sends the page itself compressed, and has the browser fetch Plotly beside Gradio's scripts.

    Gradio 6.31 compresses scripts and styles alone, and a component's script is fetched once the component is shown.

    Args:
        picture: HTML that the body begins with, where the address says nothing of what is to be shown; "" for none.
    """

    def __init__(self, app: ASGIApp, picture: str = "") -> None:
        self._app = app
        self._picture = picture.encode()
        # A tenth of the size at level 1 takes 7 ms, an eighth at level 4 takes 11 ms; more gain nothing.
        self._compressed = GZipMiddleware(self._with_picture, compresslevel=4)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or get_route_path(scope) != "/":
            await self._app(scope, receive, send)
            return

        async def announced(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200:
                link = f"<gradio_api/file={PLOTLY_JS}>; rel=preload; as=script"
                message["headers"] = [*message.get("headers", ()), (b"link", link.encode())]
            await send(message)

        await self._compressed(scope, receive, announced)

    async def _with_picture(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The app's reply, with the first picture in the body of a page."""
        names = (name for name, _ in parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        if not self._picture or not all(name.startswith("__") for name in names):
            await self._app(scope, receive, send)
            return
        start: Message = {}
        body = bytearray()

        async def shown(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
                return
            body.extend(message.get("body", b""))
            if message.get("more_body"):
                return
            whole = _BODY.sub(lambda tag: tag[0] + self._picture, bytes(body), count=1)
            kept = [pair for pair in start["headers"] if pair[0].lower() != b"content-length"]
            await send({**start, "headers": [*kept, (b"content-length", str(len(whole)).encode())]})
            await send({"type": "http.response.body", "body": whole})

        await self._app(scope, receive, shown)
