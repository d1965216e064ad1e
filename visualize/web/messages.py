"""The route of the page's messages. The reply to a message streams updates: lines of JSON with new values of slots.

A change gets one update. The page then requests the open view's slower parts, and disconnects when they are superseded.
A button's action also ends when the page disconnects.
"""

import json
from collections.abc import AsyncIterator

import gradio as gr
from gradio.context import LocalContext
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from tilescope.declare.experiment import Json
from tilescope.declare.knobs import ConfigError
from visualize.views.panel import Slots, current_client, failure, run_in_slot
from visualize.views.slots import WATCH
from visualize.web.actions import Actions, once
from visualize.web.assets import MESSAGES
from visualize.web.redraw import Redraw, refused

# Proxies such as nginx otherwise collect a reply before they pass it on.
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


class Messages:
    """Replies to the messages of all pages."""

    def __init__(self, redraw: Redraw, actions: Actions) -> None:
        self._redraw = redraw
        self._actions = actions
        self.route = Route(MESSAGES, self._reply, methods=["POST"])

    async def _reply(self, request: Request) -> StreamingResponse:
        message = await request.json()  # a JSON object: the guard refuses other bodies
        # `current_client` reads this, and so does ZeroGPU's hub, for the visitor's quota.
        LocalContext.request.set(gr.Request(request, session_hash=str(message.get("page"))))
        lines = self._lines(message, current_client().page)
        return StreamingResponse(lines, media_type="application/x-ndjson", headers=_HEADERS)

    async def _lines(self, message: Json, page: str) -> AsyncIterator[str]:
        try:
            if "action" in message:
                updates = self._actions.start(message, page)
            elif WATCH in message:
                updates = self._redraw.stream(message)
            else:
                updates = once(await run_in_slot(self._redraw.change, message))
            async for slots in updates:
                yield encode(slots)
        except Exception as error:
            if not isinstance(error, ConfigError):
                error = ConfigError("internal_error", failure(error).message, "")
            yield encode(refused(error))


def encode(slots: Slots) -> str:
    """Return an update as a line of JSON."""
    return f"{json.dumps(slots)}\n"  # in ASCII: other strings take two bytes per character
