"""What moves with a slider is computed at once, and not queued: one visitor's share of that is bounded here."""

from __future__ import annotations

import asyncio
import re
from collections import Counter

from starlette._utils import get_route_path
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

# Of one address: a class behind one router, too. Redraws keep a core busy, so that more at once are answered no sooner.
AT_ONCE, MOST_UNDER_WAY = 2, 256

# Gradio's routes for events that are not queued.
_INSTANT = re.compile(r"/(?:gradio_api/)?(?:run|api)/")


class FairShare:
    """ASGI middleware: the redraws of one address take turns, and those of many addresses stand side by side.

    The address is that of the connection, or what a proxy on this machine says, as for compiles.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._under_way: Counter[str] = Counter()
        self._turns: dict[str, asyncio.Semaphore] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or not _INSTANT.match(get_route_path(scope)):
            await self._app(scope, receive, send)
            return
        address = str((scope.get("client") or ("",))[0])
        if self._under_way[address] >= MOST_UNDER_WAY:
            sentence = (
                f"{MOST_UNDER_WAY} requests of this address are under way, as many as are taken. Ask again later.\n"
            )
            await PlainTextResponse(sentence, 429)(scope, receive, send)
            return
        self._under_way[address] += 1
        try:
            async with self._turns.setdefault(address, asyncio.Semaphore(AT_ONCE)):
                await self._app(scope, receive, send)
        finally:
            self._under_way[address] -= 1
            if not self._under_way[address]:
                del self._under_way[address], self._turns[address]
