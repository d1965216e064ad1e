"""What is asked of the page's server is looked at before Gradio sees it: by whom, how much, and whether we serve it.

Gradio 6.31 takes any Host, bodies of any size, and files from anybody, whether a page has a use for them or not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from starlette._utils import get_route_path  # the path that routes match: without the root path
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from visualize.command.listening import AUTH

# Bytes of a request's body. The page's own, with the last run that a browser has kept, have some 30,000.
LARGEST_BODY = 64 * 1024

# Gradio's routes that take files, fetch other addresses, or are for those who write pages with it: the page uses none.
_CLOSED = re.compile(
    r"/(?:gradio_api/)?(?:upload|upload_progress|component_server|process_recording|proxy=|stream|custom_component|deep_link"
    r"|vibe-|undo-vibe|dev/|runs|run-history|monitoring|profiling)"
)

# With every answer: it is of the type that it says, addresses stay on this site, and no device of the visitor is used.
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "strict-origin-when-cross-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}

_THIS_MACHINE = ("localhost", "127.0.0.1", "[::1]")

# Variable with names by which the page may be asked for, besides its own: of a proxy before it, say.
HOSTS = "TILESCOPE_HOSTS"


def allowed_hosts(listening_on: str) -> tuple[str, ...]:
    """Names by which the page may be asked for; none for any.

    A page on this machine alone is asked for by this machine's names: another site could else have its own name lead
    here, and read what only its visitor can reach. A page that listens for others has any name, unless they are given.

    Args:
        listening_on: the host that the server is told to listen on.
    """
    given = tuple(name.strip().lower() for name in os.environ.get(HOSTS, "").split(",") if name.strip())
    is_local = listening_on in ("localhost", "127.0.0.1", "::1")
    return (*given, *_THIS_MACHINE) if given or is_local else ()


# Variable with sites that may show the page in a frame; "*" for any.
FRAMES = "TILESCOPE_FRAMES"

_HUB, _ITSELF = "https://huggingface.co", "'self'"


def framing_sites() -> tuple[str, ...]:
    """Sites that may show the page in a frame, besides its own; none for any.

    A page of one's own goes into any slide or blog, and has no login that a frame could misuse. A Space goes into its
    hub alone, and a page with a login nowhere, unless sites are named.
    """
    given = tuple(os.environ.get(FRAMES, "").replace(",", " ").split())
    if "*" in given:
        return ()
    hub = (_HUB,) if "SPACE_ID" in os.environ else ()
    return (*hub, *given) or ((_ITSELF,) if os.environ.get(AUTH) else ())


class Guard:
    """ASGI middleware.

    Args:
        hosts: as `allowed_hosts` says.
        frames: as `framing_sites` says.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str], frames: Sequence[str] = ()) -> None:
        self._app, self._hosts = app, hosts
        self._headers = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
        if frames:
            policy = f"frame-ancestors {' '.join(dict.fromkeys((_ITSELF, *frames)))}"
            self._headers.append((b"content-security-policy", policy.encode()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        taken, is_answered = 0, False

        async def counted() -> Message:
            nonlocal taken, is_answered
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > LARGEST_BODY and not is_answered:
                is_answered = True
                await _too_large(f"more than {taken - 1:,}")(scope, receive, marked)
                raise ClientDisconnect
            return message

        async def marked(message: Message) -> None:
            nonlocal is_answered
            if message["type"] == "http.response.start":
                is_answered = True
                message["headers"] = [*message.get("headers", ()), *self._headers]
            await send(message)

        if refusal := self._refusal(Headers(scope=scope), get_route_path(scope)):
            await refusal(scope, receive, marked)
            return
        try:
            await self._app(scope, counted, marked)
        except ClientDisconnect:
            if taken <= LARGEST_BODY:
                raise
        except TypeError as error:
            # Gradio finds no place for an argument of another name, and says so to nobody.
            if is_answered or "/call/" not in get_route_path(scope):
                raise
            await _said(400, f"The arguments can't be read: {str(error)[:200]}")(scope, receive, marked)

    def _refusal(self, headers: Headers, path: str) -> PlainTextResponse | None:
        host = headers.get("host", "")
        if self._hosts and _name(host) not in self._hosts:
            known = ", ".join(self._hosts)
            return _said(400, f"The page is not served as {host[:100]!r}; it is as {known}. {HOSTS} adds names.")
        origin = headers.get("origin")
        if self._hosts and origin is not None and _name(origin.partition("://")[2]) not in self._hosts:
            return _said(403, f"Pages of {origin[:100]!r} may not ask this one. {HOSTS} adds names that may.")
        if _CLOSED.match(path):
            return _said(404, "The page takes no files, and has nothing here.")
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            return _said(400, f"The length of the body is {length[:100]!r}; it must be a whole number.")
        return _too_large(f"{int(length[:20]):,}") if int(length[:20]) > LARGEST_BODY else None


def _name(host: str) -> str:
    """A host without its port."""
    return re.sub(r":\d*$", "", host).lower()


def _too_large(size: str) -> PlainTextResponse:
    return _said(413, f"The request has {size} bytes; at most {LARGEST_BODY:,} are taken.")


def _said(status: int, sentence: str) -> PlainTextResponse:
    return PlainTextResponse(f"{sentence}\n", status)
