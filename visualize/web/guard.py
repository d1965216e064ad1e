"""Check each HTTP request before Gradio sees it: its host, origin, route and size, and its address's share of redraws.

Gradio 6.31 accepts any host, bodies and session hashes of any size, and files from anybody.
"""

import asyncio
import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from starlette._utils import get_route_path  # the path that routes match: without the root path
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from visualize.startup import AUTH

# Bytes of a request's body, and seconds to receive it. The page's own, with a saved run, take about 30,000 bytes.
MAX_BODY_BYTES, BODY_DEADLINE_S = 64 * 1024, 10.0

# Characters of a session hash, which Gradio keeps as a key. Its own have 11.
MAX_SESSION_HASH = 64

# Redraws that run at once for one address, which may be a classroom behind one router, and those that run or wait.
# A redraw keeps a core busy: more at once would not end sooner.
MAX_RUNNING_REDRAWS, MAX_OPEN_REDRAWS = 2, 256

# Gradio's routes for events that bypass its queue: the page's redraws.
_REDRAW = ("/run/", "/api/")

# Gradio's routes for files, other addresses and page authors. The page uses none of them.
_CLOSED = (
    "/upload", "/component_server", "/process_recording", "/proxy=", "/stream", "/custom_component", "/deep_link",
    "/vibe-", "/undo-vibe", "/dev/", "/runs", "/run-history", "/monitoring", "/profiling",
)  # fmt: skip

# Every reply has the type that it declares, keeps addresses on this site and uses none of the visitor's devices.
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"strict-origin-when-cross-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)

# Gradio treats an object with this key anywhere in an argument as a file, which it would read or fetch.
_FILE = "gradio.FileData"

_THIS_MACHINE = ("localhost", "127.0.0.1", "[::1]")

# Environment variable with further host names of the page, for example a proxy's.
HOSTS = "TILESCOPE_HOSTS"


def allowed_hosts(listening_on: str) -> tuple[str, ...]:
    """Return the host names that requests may use; none for any.

    A page for this machine alone accepts only this machine's names. Otherwise a site that points its hostname here (DNS
    rebinding) could read what only the visitor can reach. A page for others accepts any name unless some are listed.

    Args:
        listening_on: the host that the server listens on.
    """
    listed = os.environ.get(HOSTS, "").lower().replace(",", " ").split()
    return (*listed, *_THIS_MACHINE) if listed or listening_on in (*_THIS_MACHINE, "::1") else ()


# Environment variable with sites that may show the page in a frame; "*" for any.
FRAMES = "TILESCOPE_FRAMES"


def framing_sites() -> tuple[str, ...]:
    """Return the sites that may show the page in a frame, as `frame-ancestors` lists them; none for any.

    By default, any site may embed a page without a login, only Hugging Face a Space, and no site a page with a login,
    which a frame could misuse.
    """
    listed = os.environ.get(FRAMES, "").replace(",", " ").split()
    hub = ["https://huggingface.co"] if "SPACE_ID" in os.environ else []
    is_restricted = (hub or listed or os.environ.get(AUTH)) and "*" not in listed
    return ("'self'", *hub, *listed) if is_restricted else ()


class Guard:
    """ASGI middleware that refuses bad requests and lets each address redraw in turns.

    It reads the whole body first: a client that sends slowly holds no turn. It sends the reply of a redraw after the
    turn: a client that reads slowly holds none.

    The address is the connection's, or the one that a proxy on this machine reports, as for compiles.

    Args:
        hosts: see `allowed_hosts`.
        frames: see `framing_sites`.
        defaults: each event's arguments where a request leaves them out, by its number and its name. Gradio 6.31 raises
            an error for too few arguments, although its own client fills in defaults.
        body_deadline_s: seconds in which a body must arrive.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Sequence[str],
        frames: Sequence[str] = (),
        defaults: Mapping[int | str, Sequence[object]] | None = None,
        body_deadline_s: float = BODY_DEADLINE_S,
    ) -> None:
        self._app, self._hosts, self._body_deadline_s = app, hosts, body_deadline_s
        self._defaults = defaults or {}
        policy = f"frame-ancestors {' '.join(frames)}".encode()
        self._headers = [*_HEADERS, (b"content-security-policy", policy)] if frames else _HEADERS
        self._open_redraws: Counter[str] = Counter()
        self._turns: dict[str, asyncio.Semaphore] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self._headers]
            await send(message)

        # Gradio's routes start with this prefix or without it.
        path, request = get_route_path(scope).removeprefix("/gradio_api"), Request(scope, receive)
        app = self._redraw if scope["method"] == "POST" and path.startswith(_REDRAW) else self._app
        try:
            self._check_head(request, path)
            body = await self._read_body(request)
            content = _read_json(body)
            _check_session_hashes(path, request, content)
            unread = [{"type": "http.request", "body": self._complete_arguments(path, content) or body}]

            async def replay_body() -> Message:
                return unread.pop() if unread else await receive()

            await app(scope, replay_body, send_with_headers)
        except ClientDisconnect:
            return
        except HTTPException as refusal:
            response = PlainTextResponse(f"{refusal.detail}\n", refusal.status_code, refusal.headers)
            await response(scope, receive, send_with_headers)
        except TypeError as error:
            # Gradio raises it for an argument of an unknown name, and replies with nothing.
            if not path.startswith("/call/"):
                raise
            sentence = f"The arguments can't be read: {str(error)[:200]}\n"
            await PlainTextResponse(sentence, 400)(scope, receive, send_with_headers)

    def _check_head(self, request: Request, path: str) -> None:
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if self._hosts and _without_port(host) not in self._hosts:
            names = f"{host[:100]!r}, but as {', '.join(self._hosts)}"
            raise HTTPException(400, f"The page is not served as {names}. Add a name with {HOSTS}.")
        if self._hosts and origin is not None and _without_port(origin.partition("://")[2]) not in self._hosts:
            sentence = f"Pages of {origin[:100]!r} may not send requests here. Allow their host with {HOSTS}."
            raise HTTPException(403, sentence)
        if path.startswith(_CLOSED):
            raise HTTPException(404, "The page takes no files and serves nothing here.")

    async def _read_body(self, request: Request) -> bytes:
        body = b""
        try:
            async with asyncio.timeout(self._body_deadline_s):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > MAX_BODY_BYTES:
                        sentence = f"The request has more than {MAX_BODY_BYTES:,} bytes, the maximum."
                        raise HTTPException(413, sentence, {"connection": "close"})
        except TimeoutError:
            sentence = f"The body did not arrive within {self._body_deadline_s:g} s."
            raise HTTPException(408, sentence, {"connection": "close"}) from None
        return body

    def _complete_arguments(self, path: str, content: dict[str, Any]) -> bytes | None:
        """Return the body of a call with all arguments of its event; None if the request calls no event."""
        data, number = content.get("data"), content.get("fn_index")
        defaults = self._defaults.get(number if isinstance(number, int) else path.rpartition("/")[2])
        if defaults is None or not isinstance(data, list):
            return None
        arguments = [*data, *defaults[len(data) :]][: len(defaults)]
        return json.dumps({**content, "data": arguments}).encode()

    async def _redraw(self, scope: Scope, receive: Receive, send: Send) -> None:
        address = str((scope.get("client") or ("",))[0])
        if self._open_redraws[address] >= MAX_OPEN_REDRAWS:
            sentence = f"{MAX_OPEN_REDRAWS} requests of this address are open, which is the maximum. Try again later."
            raise HTTPException(429, sentence)
        reply: list[Message] = []

        async def keep(message: Message) -> None:
            reply.append(message)

        self._open_redraws[address] += 1
        try:
            async with self._turns.setdefault(address, asyncio.Semaphore(MAX_RUNNING_REDRAWS)):
                await self._app(scope, receive, keep)
        finally:
            self._open_redraws[address] -= 1
            if not self._open_redraws[address]:
                del self._open_redraws[address], self._turns[address]
        for message in reply:
            await send(message)


def _read_json(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a body; an empty one for other bodies."""
    try:
        content = json.loads(body or b"null")
        has_file = _FILE in json.dumps(content)
    except RecursionError:
        # Gradio's parser may go deeper, and would find a file that this search missed.
        raise HTTPException(400, "The body is nested too deeply.") from None
    except ValueError:
        return {}  # Gradio refuses it
    if has_file:
        raise HTTPException(400, f"An argument contains {_FILE!r}; the page takes no files.")
    return content if isinstance(content, dict) else {}


def _check_session_hashes(path: str, request: Request, content: Mapping[str, Any]) -> None:
    in_query = request.query_params.getlist("session_hash")
    hashes = [path.partition("/heartbeat/")[2], *in_query, content.get("session_hash")]
    longest = max(len(value) for value in hashes if isinstance(value, str))
    if longest > MAX_SESSION_HASH:
        raise HTTPException(400, f"The session hash has {longest:,} characters; the maximum is {MAX_SESSION_HASH}.")


def _without_port(host: str) -> str:
    return re.sub(r":\d*$", "", host).lower()
