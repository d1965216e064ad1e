"""Refuse bad requests, and let the others wait until their address may be served.

Gradio 6.31 accepts any host, bodies and session hashes of any size, and files from anybody.
"""

import asyncio
import functools
import json
import logging
import os
import re
import traceback
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from starlette._utils import get_route_path  # the path that routes match: without the root path
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kernels.knobs import ConfigError
from kernels.measuring.turns import (
    BURST,
    HEAVY_RATE,
    MAX_OPEN,
    RATE,
    TURNS,
    UNIT_BYTES,
    UNIT_S,
    UNITS_PER_EVENT,
    UNITS_PER_FILE,
    Turns,
    hold,
)
from visualize.startup import AUTH
from visualize.web.connection import HEAD_DEADLINE_S
from visualize.web.mailboxes import MAX_MAILBOXES, MAX_TOTAL_UNREAD_BYTES, MAX_UNREAD_BYTES, set_address

LOG = logging.getLogger("tilescope.guard")

# Bytes of a request's body, and seconds to receive it. The page's own, with a saved run, take about 30,000 bytes.
MAX_BODY_BYTES, BODY_DEADLINE_S = 64 * 1024, 10.0

# Characters of a session hash, which Gradio keeps as a key. Its own have 11.
MAX_SESSION_HASH = 64

# Seconds that a login takes. An address logs in once at a time.
LOGIN_S = 1.0

# The limits of requests, for `--doctor`.
LIMITS = (
    f"bodies of {MAX_BODY_BYTES >> 10} KiB in {BODY_DEADLINE_S:g} s, heads in {HEAD_DEADLINE_S:g} s; per address "
    f"{MAX_OPEN} open requests, half of the connections, {MAX_MAILBOXES} clients with unread replies and "
    f"{MAX_UNREAD_BYTES >> 20} MiB of them ({MAX_TOTAL_UNREAD_BYTES >> 20} MiB in total), one login per {LOGIN_S:g} s; "
    f"{BURST * UNIT_S:g} s of the page's time and then {100 * RATE * UNIT_S:g} % of it; while others are active, all "
    f"addresses that use more share {100 * HEAVY_RATE * UNIT_S:g} %"
)

# Gradio's routes for events that bypass its queue: the page's redraws.
_REDRAW = ("/run/", "/api/")

# Gradio's pages and lists, which it builds for each request.
_PAGES = ("", "/", "/config", "/config/", "/info", "/info/", "/openapi.json", "/theme.css")

# Gradio's routes for events. It raises an error for arguments that it does not expect.
_EVENTS = (*_REDRAW, "/call/", "/queue/", "/cancel", "/reset")

# Gradio's routes that send the replies of events.
_REPLIES = (*_REDRAW, "/call/", "/queue/data")

# Gradio's routes that act for a session without asking for the login.
_BEHIND_LOGIN = ("/heartbeat/", "/cancel", "/reset", "/token", "/app_id", "/openapi.json", "/startup-events")

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


# The networks from which uvicorn accepts X-Forwarded-For: an environment variable, and its value on a Space, where the
# hub's proxies have private addresses. They append the visitor's address to whatever the visitor sends.
_PROXIES, _HUB = "FORWARDED_ALLOW_IPS", "10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,127.0.0.1,::1"


def trust_hub() -> None:
    """On a Space, take each request's address from the hub. Call it before the server starts."""
    if "SPACE_ID" in os.environ:
        os.environ.setdefault(_PROXIES, _HUB)


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
        login_s: seconds that a login takes.
        turns: the turns of redraws and pages.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Sequence[str],
        frames: Sequence[str] = (),
        defaults: Mapping[int | str, Sequence[object]] | None = None,
        body_deadline_s: float = BODY_DEADLINE_S,
        login_s: float = LOGIN_S,
        turns: Turns = TURNS,
    ) -> None:
        self._app, self._hosts, self._body_deadline_s, self._login_s = app, hosts, body_deadline_s, login_s
        self._defaults = defaults or {}
        policy = f"frame-ancestors {' '.join(frames)}".encode()
        self._headers = [*_HEADERS, (b"content-security-policy", policy)] if frames else _HEADERS
        self._turns, self._open = turns, Counter[str]()
        self._logins = weakref.WeakValueDictionary[str, asyncio.Lock]()
        self._waits = weakref.WeakValueDictionary[str, asyncio.Lock]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self._headers]
            elif path.startswith(_REPLIES):
                self._turns.allowance.charge(address, len(message.get("body", b"")) / UNIT_BYTES)
            await send(message)

        # Gradio's routes start with this prefix or without it.
        path, request = get_route_path(scope).removeprefix("/gradio_api"), Request(scope, receive)
        address, is_post = _address(scope), scope["method"] == "POST"
        has_started = False

        async def send_first(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send_with_headers(message)

        try:
            with hold(self._open, address), set_address(address):
                if is_post or not path.startswith(_REPLIES):  # a reply that waits would stay in memory
                    async with self._waits.setdefault(address, asyncio.Lock()):
                        await self._turns.wait_for_share(address, _units(is_post, path))
                self._check_head(request, path)
                body = await self._read_body(request)
                content = _read_json(body)
                if is_post and path.startswith(_EVENTS) and content is None:
                    raise HTTPException(400, "The body must be a JSON object.")
                _check_session_hashes(path, request, content or {})
                unread = [{"type": "http.request", "body": self._complete_arguments(path, content or {}) or body}]

                async def replay_body() -> Message:
                    return unread.pop() if unread else await receive()

                app = self._app
                if path in _PAGES or (is_post and path.startswith(_REDRAW)):
                    app = self._take_turn
                elif is_post and path.startswith("/login"):
                    app = self._log_in
                await app(scope, replay_body, send_first)
        except ClientDisconnect:
            return
        except ConfigError as busy:
            await PlainTextResponse(f"{busy}\n", 429)(scope, receive, send_with_headers)
        except HTTPException as refusal:
            response = PlainTextResponse(f"{refusal.detail}\n", refusal.status_code, refusal.headers)
            await response(scope, receive, send_with_headers)
        except Exception as error:
            if not path.startswith(_EVENTS):
                raise
            _log_once(type(error).__name__, traceback.extract_tb(error.__traceback__)[-1].name)
            if has_started:  # the stream of an evicted client; its last message says so
                await send({"type": "http.response.body"})
                return
            sentence = f"The arguments can't be read: {str(error)[:200]}\n"
            await PlainTextResponse(sentence, 400)(scope, receive, send_with_headers)

    def _check_head(self, request: Request, path: str) -> None:
        origin, forwarded = request.headers.get("origin"), request.headers.get("x-forwarded-host")
        for host in (request.headers.get("host", ""), *(forwarded.split(",") if forwarded else ())):
            if self._hosts and _without_port(host.strip()) not in self._hosts:
                names = f"{host[:100]!r}, but as {', '.join(self._hosts)}"
                raise HTTPException(400, f"The page is not served as {names}. Add a name with {HOSTS}.")
        if self._hosts and origin is not None and _without_port(origin.partition("://")[2]) not in self._hosts:
            sentence = f"Pages of {origin[:100]!r} may not send requests here. Allow their host with {HOSTS}."
            raise HTTPException(403, sentence)
        if path.startswith(_CLOSED):
            raise HTTPException(404, "The page takes no files and serves nothing here.")
        if not path.isprintable():
            raise HTTPException(400, "The path contains a control character.")
        app: Any = request.scope.get("app")
        if path.startswith(_BEHIND_LOGIN) and getattr(app, "auth", None):
            cookies = (request.cookies.get(f"access-token-{kind}{app.cookie_id}") for kind in ("", "unsecure-"))
            if not any(cookie in app.tokens for cookie in cookies):
                raise HTTPException(401, "Log in first.")

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

    async def _take_turn(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply: list[Message] = []

        async def keep(message: Message) -> None:
            reply.append(message)

        async with self._turns.take(_address(scope)):
            await self._app(scope, receive, keep)
        for message in reply:
            await send(message)

    async def _log_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reply after `login_s`, so that an address can guess one password in that time."""
        async with self._logins.setdefault(_address(scope), asyncio.Lock()):
            await asyncio.sleep(self._login_s)
            await self._app(scope, receive, send)


@functools.lru_cache(maxsize=100)
def _log_once(error: str, function: str) -> None:
    """Log the first error of a kind, because a client could send thousands."""
    LOG.warning("A request to an event raised %s in %s. Further ones are not logged.", error, function)


def _address(scope: Mapping[str, Any]) -> str:
    return str((scope.get("client") or ("",))[0])


def _units(is_post: bool, path: str) -> float:
    if is_post and path.startswith(_EVENTS) and not path.startswith(_REDRAW):
        return UNITS_PER_EVENT
    return 1 if is_post or path in _PAGES else UNITS_PER_FILE


def _read_json(body: bytes) -> dict[str, Any] | None:
    """Return the JSON object of a body; None for other bodies."""
    try:
        content = json.loads(body or b"null")
        has_file = _FILE in json.dumps(content)
    except RecursionError:
        # Gradio's parser may go deeper, and would find a file that this search missed.
        raise HTTPException(400, "The body is nested too deeply.") from None
    except ValueError:
        return None
    if has_file:
        raise HTTPException(400, f"An argument contains {_FILE!r}; the page takes no files.")
    return content if isinstance(content, dict) else None


def _check_session_hashes(path: str, request: Request, content: Mapping[str, Any]) -> None:
    in_query = request.query_params.getlist("session_hash")
    hashes = [path.partition("/heartbeat/")[2], *in_query, content.get("session_hash")]
    longest = max(len(value) for value in hashes if isinstance(value, str))
    if longest > MAX_SESSION_HASH:
        raise HTTPException(400, f"The session hash has {longest:,} characters; the maximum is {MAX_SESSION_HASH}.")


def _without_port(host: str) -> str:
    return re.sub(r":\d*$", "", host).lower()
