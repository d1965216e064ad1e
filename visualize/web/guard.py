"""Reject invalid requests, and limit the connections and the request rate of each address.

Gradio 6.31 checks no Host header, limits neither bodies nor session hashes, and accepts uploads from anyone.
"""

import asyncio
import functools
import json
import logging
import os
import re
import resource
import traceback
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import h11
from starlette._utils import get_route_path  # the path that routes match: without the root path
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from tilescope.declare.experiment import Json
from tilescope.declare.knobs import ConfigError
from tilescope.measure.request_slots import (
    REQUEST_SLOTS,
    UNIT_BYTES,
    UNITS_PER_ASSET,
    UNITS_PER_EVENT,
    UNITS_PER_FILE,
    RequestSlots,
    limit_open,
)
from visualize.startup import AUTH
from visualize.web.assets import MESSAGES, PREFIX
from visualize.web.mailboxes import set_address

LOG = logging.getLogger("tilescope.guard")

# Seconds to receive a request's headers, and idle seconds until the server closes a connection.
HEADER_DEADLINE_S = 10.0
KEEP_ALIVE_S = 75

# Maximum open connections, unless the limit of open files is lower, and file descriptors reserved for other uses.
MAX_CONNECTIONS = 4096
_RESERVED_FILES = 256

# Maximum bytes of a request's body, and seconds to receive it. The page sends at most 42,000 characters.
MAX_BODY_BYTES = 64 * 1024
BODY_DEADLINE_S = 10.0

# Maximum characters of a URL, more than the page's links have. Gradio fails above 65,536.
MAX_URL = 8192

# Maximum characters of a session hash, which Gradio uses as a key. Gradio's own hashes have 11.
MAX_SESSION_HASH = 64

# Delay of each login attempt in seconds. Attempts from one address run one at a time.
LOGIN_S = 1.0

# Routes of events that bypass Gradio's queue: the page's messages, and Gradio's own.
_DIRECT = (MESSAGES, "/run/", "/api/")

# Gradio's pages and JSON descriptions, which it builds again for each request.
_PAGES = ("", "/", "/config", "/config/", "/info", "/info/", "/openapi.json", "/theme.css")

# Routes of events. Unexpected arguments raise exceptions in Gradio's.
_EVENTS = (*_DIRECT, "/call/", "/queue/", "/cancel", "/reset")

# Routes that send the replies of events.
_REPLIES = (*_DIRECT, "/call/", "/queue/data")

# Routes that skip Gradio's login check; the guard adds one.
_BEHIND_LOGIN = (
    MESSAGES,
    "/heartbeat/",
    "/cancel",
    "/reset",
    "/token",
    "/app_id",
    "/openapi.json",
)

# Gradio's routes for uploads, proxying and development. The page uses none of them.
_DISABLED = (
    "/upload", "/component_server", "/process_recording", "/proxy=", "/stream", "/custom_component", "/deep_link",
    "/vibe-", "/undo-vibe", "/dev/", "/runs", "/run-history", "/monitoring", "/profiling", "/pwa_icon",
)  # fmt: skip

# Security headers of every reply: no MIME sniffing, no full URLs to other sites, no access to devices.
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"strict-origin-when-cross-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)

# Gradio treats an object of this type anywhere in an argument as a file, which it would read or fetch.
_FILE_TYPE = "gradio.FileData"

# A name or an IPv6 address, with or without a port.
_HOST = re.compile(r"(\[[^\[\]]*\]|[^\[\]:/]*)(:\d{0,5})?")

_THIS_MACHINE = ("localhost", "127.0.0.1", "[::1]")

# Environment variable with the host names that requests may use besides this machine's, such as a reverse proxy's.
HOSTS = "TILESCOPE_HOSTS"


def allowed_hosts(listening_on: str) -> tuple[str, ...]:
    """Return the host names that requests may use; an empty tuple allows any.

    A page that listens only on this machine accepts only this machine's names. Otherwise a site that points its
    hostname here (DNS rebinding) could read the page. Any other page accepts every name, unless HOSTS lists some.

    Args:
        listening_on: the host that the server listens on.
    """
    listed = os.environ.get(HOSTS, "").lower().replace(",", " ").split()
    return (*listed, *_THIS_MACHINE) if listed or listening_on in (*_THIS_MACHINE, "::1") else ()


# Environment variable with sites that may show the page in a frame; "*" for any.
FRAMES = "TILESCOPE_FRAMES"


def framing_sites() -> tuple[str, ...]:
    """Return the sites that may show the page in a frame, as `frame-ancestors` lists them; an empty tuple allows any.

    By default any site may embed a page without a login, only huggingface.co may embed a Space, and no other site may
    embed a page with a login (clickjacking).
    """
    listed = os.environ.get(FRAMES, "").replace(",", " ").split()
    hub = ["https://huggingface.co"] if "SPACE_ID" in os.environ else []
    is_restricted = (hub or listed or os.environ.get(AUTH)) and "*" not in listed
    return ("'self'", *hub, *listed) if is_restricted else ()


# The hub's proxies have private addresses, and append the visitor's address to any X-Forwarded-For header that the
# visitor sends.
_HUB_NETWORKS = "10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,127.0.0.1,::1"


def trust_hub_proxies() -> None:
    """On a Space, trust the hub's X-Forwarded-For header. Call it before the server starts."""
    if "SPACE_ID" in os.environ:
        os.environ.setdefault("FORWARDED_ALLOW_IPS", _HUB_NETWORKS)


class Guard:
    """ASGI middleware that rejects invalid requests, throttles heavy addresses, and limits concurrent pages.

    It reads the whole body before it acquires a slot, and sends the reply after it releases the slot, so slow clients
    occupy none. Limits apply to the connection's address, or to the client's address that a trusted proxy reports.

    Args:
        hosts: see `allowed_hosts`.
        frames: see `framing_sites`.
        defaults: default arguments of each event, by its id and by its name in the API. Gradio 6.31 raises an error for
            missing arguments, although its own client fills in defaults.
        body_deadline_s: seconds in which a body must arrive.
        login_s: delay of each login attempt.
        slots: limit concurrent pages; see `RequestSlots`.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Sequence[str],
        frames: Sequence[str] = (),
        defaults: Mapping[int | str, Sequence[object]] | None = None,
        body_deadline_s: float = BODY_DEADLINE_S,
        login_s: float = LOGIN_S,
        slots: RequestSlots = REQUEST_SLOTS,
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._body_deadline_s = body_deadline_s
        self._login_s = login_s
        self._defaults = defaults or {}
        policy = f"frame-ancestors {' '.join(frames)}".encode()
        self._headers = [*_HEADERS, (b"content-security-policy", policy)] if frames else _HEADERS
        self._slots = slots
        self._open = Counter[str]()
        self._login_locks = weakref.WeakValueDictionary[str, asyncio.Lock]()
        self._throttle_locks = weakref.WeakValueDictionary[str, asyncio.Lock]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        # Gradio serves each route with this prefix and without it.
        path = get_route_path(scope).removeprefix("/gradio_api")
        request = Request(scope, receive)
        address = _address(scope)
        is_post = scope["method"] == "POST"
        has_started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                message["headers"] = [*message.get("headers", ()), *self._headers]
            elif path.startswith(_REPLIES):
                self._slots.buckets.charge(address, len(message.get("body", b"")) / UNIT_BYTES)
            await send(message)

        try:
            with limit_open(self._open, address), set_address(address):
                body = await self._read_body(request)
                # Streams are never delayed: replies that wait to be read occupy memory.
                if is_post or not path.startswith(_REPLIES):
                    await self._throttle(request, address, _units(is_post, path))
                if len(body) > MAX_BODY_BYTES:
                    sentence = f"The body exceeds the maximum of {MAX_BODY_BYTES:,} bytes."
                    raise HTTPException(413, sentence, {"connection": "close"})
                self._check_head(request, path)
                content = _read_json(body)
                if is_post and path.startswith(_EVENTS) and content is None:
                    raise HTTPException(400, "The body must be a JSON object.")
                _check_lengths(path, request, content or {})
                body = self._complete_arguments(path, content or {}) or body
                body_messages: list[Message] = [{"type": "http.request", "body": body}]

                async def replay_body() -> Message:
                    return body_messages.pop() if body_messages else await receive()

                app = self._app
                if path in _PAGES:
                    app = self._run_in_slot
                elif is_post and path.startswith("/login"):
                    app = self._log_in
                await app(scope, replay_body, send_with_headers)
        except ClientDisconnect:
            return
        except ConfigError as error:
            await PlainTextResponse(f"{error}\n", 429)(scope, receive, send_with_headers)
        except HTTPException as refusal:
            response = PlainTextResponse(
                f"{refusal.detail}\n", refusal.status_code, refusal.headers
            )
            await response(scope, receive, send_with_headers)
        except Exception as error:
            if not path.startswith(_EVENTS):
                raise
            _log_once(type(error).__name__, traceback.extract_tb(error.__traceback__)[-1].name)
            if has_started:  # an evicted client's stream fails after its last message
                await send({"type": "http.response.body"})
                return
            sentence = f"Gradio could not process the request: {str(error)[:200]}\n"
            await PlainTextResponse(sentence, 400)(scope, receive, send_with_headers)

    async def _throttle(self, request: Request, address: str, units: float) -> None:
        async with self._throttle_locks.setdefault(address, asyncio.Lock()):
            if await request.is_disconnected():
                raise ClientDisconnect
            await self._slots.throttle(address, units)

    def _check_head(self, request: Request, path: str) -> None:
        origin = request.headers.get("origin")
        named = [request.headers.get("host", ""), *request.headers.getlist("x-forwarded-host")]
        for host in ",".join(named).split(","):
            if not _HOST.fullmatch(host.strip()):  # Gradio fails at some of these
                raise HTTPException(400, f"The host {host[:100]!r} is not a name with a port.")
            if self._hosts and _without_port(host.strip()) not in self._hosts:
                allowed = ", ".join(self._hosts)
                sentence = f"The host {host[:100]!r} is not allowed. Allowed: {allowed}. Set {HOSTS} to add one."
                raise HTTPException(400, sentence)
        if (
            self._hosts
            and origin is not None
            and _without_port(origin.partition("://")[2]) not in self._hosts
        ):
            sentence = f"The origin {origin[:100]!r} is not allowed. Set {HOSTS} to allow its host."
            raise HTTPException(403, sentence)
        if path.startswith(_DISABLED):
            raise HTTPException(404, "This route is disabled.")
        app: Any = request.scope.get("app")
        has_login = bool(getattr(app, "auth", None))
        is_change = request.method not in ("GET", "HEAD", "OPTIONS") or path.startswith("/logout")
        if has_login and is_change and not self._is_from_page(request):
            sentence = f"Another site sent this request. Set {HOSTS} to allow a proxy's host."
            raise HTTPException(403, sentence)
        if path.startswith(_BEHIND_LOGIN) and has_login:
            cookies = (
                request.cookies.get(f"access-token-{kind}{app.cookie_id}")
                for kind in ("", "unsecure-")
            )
            if not any(cookie in app.tokens for cookie in cookies):
                raise HTTPException(401, "This route requires a login.")
        # A browser sends other types to another site without asking it first.
        given = request.headers.get("content-type", "" if origin else "application/json")
        is_json = given.partition(";")[0].strip().lower() == "application/json"
        if request.method == "POST" and path.startswith((*_EVENTS, "/mcp")) and not is_json:
            sentence = f"The content type must be application/json (got {given[:100]!r})."
            raise HTTPException(415, sentence)

    def _is_from_page(self, request: Request) -> bool:
        """Return whether the page, a person or a program sent a request, and not another site's script or form."""
        site = request.headers.get("sec-fetch-site")  # not sent to other machines over plain HTTP
        if site is not None:
            return site in ("same-origin", "none")
        source = request.headers.get("origin", request.headers.get("referer"))
        if source is None:
            return True
        host = source.partition("://")[2].partition("/")[0]
        return host == request.headers.get("host") or _without_port(host) in self._hosts

    async def _read_body(self, request: Request) -> bytes:
        """Return a request's body, or the beginning of one that is too long."""
        body = b""
        try:
            async with asyncio.timeout(self._body_deadline_s):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > MAX_BODY_BYTES:
                        break
        except TimeoutError:
            sentence = f"The body did not arrive within {self._body_deadline_s:g} s."
            raise HTTPException(408, sentence, {"connection": "close"}) from None
        return body

    def _complete_arguments(self, path: str, content: Json) -> bytes | None:
        """Return the body with missing arguments added and surplus ones dropped; None if it calls no known event."""
        data = content.get("data")
        number = content.get("fn_index")
        defaults = self._defaults.get(
            number if isinstance(number, int) else path.rpartition("/")[2]
        )
        if defaults is None or not isinstance(data, list):
            return None
        arguments = [*data, *defaults[len(data) :]][: len(defaults)]
        return json.dumps({**content, "data": arguments}).encode()

    async def _run_in_slot(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._slots.acquire(_address(scope), _units(False, "/")):
            reply = await collect_reply(self._app, scope, receive)
        for message in reply:
            await send(message)

    async def _log_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Delay each attempt by `login_s`, which limits an address to one password guess in that time."""
        async with self._login_locks.setdefault(_address(scope), asyncio.Lock()):
            await asyncio.sleep(self._login_s)
            await self._app(scope, receive, send)


@functools.lru_cache(maxsize=100)
def _log_once(error: str, function: str) -> None:
    """Log the first error of a kind, because a client could cause thousands."""
    LOG.warning(
        "An event request raised %s in %s. Later errors of this kind are not logged.",
        error,
        function,
    )


def _address(scope: Mapping[str, Any]) -> str:
    return str((scope.get("client") or ("",))[0])


def _units(is_post: bool, path: str) -> float:
    if is_post and path.startswith(_EVENTS) and not path.startswith(_DIRECT):
        return UNITS_PER_EVENT
    if path.startswith(PREFIX) and not is_post:
        return UNITS_PER_ASSET
    return 1 if is_post or path in _PAGES else UNITS_PER_FILE


def _read_json(body: bytes) -> Json | None:
    """Return the JSON object of a body; None for other bodies."""
    try:
        content = json.loads(body or b"null")
        has_file = _FILE_TYPE in json.dumps(content)
    except RecursionError:
        # Gradio's parser may accept deeper nesting, so a file could hide from this check.
        raise HTTPException(400, "The body is nested too deeply.") from None
    except ValueError:
        return None
    if has_file:
        raise HTTPException(
            400, f"The body contains {_FILE_TYPE!r}, but the page accepts no files."
        )
    return content if isinstance(content, dict) else None


def _check_lengths(path: str, request: Request, content: Mapping[str, Any]) -> None:
    in_query = request.query_params.getlist("session_hash")
    hashes = [path.partition("/heartbeat/")[2], *in_query, content.get("session_hash")]
    longest = max(len(value) for value in hashes if isinstance(value, str))
    if longest > MAX_SESSION_HASH:
        raise HTTPException(
            400, f"The session hash has {longest:,} characters; the maximum is {MAX_SESSION_HASH}."
        )
    length = len(str(request.url))
    if length > MAX_URL:
        sentence = f"The URL has {length:,} characters; the maximum is {MAX_URL:,}."
        raise HTTPException(414, sentence)
    if not path.isprintable() or max(map(len, path.encode().split(b"/"))) > 255:
        sentence = "The path contains a control character or a name of over 255 bytes."
        raise HTTPException(400, sentence)


async def collect_reply(app: ASGIApp, scope: Scope, receive: Receive) -> list[Message]:
    """Return the messages of an app's reply."""
    messages = list[Message]()

    async def keep(message: Message) -> None:
        messages.append(message)

    await app(scope, receive, keep)
    return messages


def _without_port(host: str) -> str:
    return re.sub(r":\d*$", "", host).lower()


class Connection(H11Protocol):
    """A connection to a client. It closes if the server or its address has too many, or if headers arrive too late."""

    _open: ClassVar = Counter[str]()
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._open[self._address] += 1
        limit = max_connections()
        if len(self.connections) > limit or self._open[self._address] > limit // 2:
            transport.abort()
        else:
            self._deadline = self.loop.call_later(HEADER_DEADLINE_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._cancel_deadline()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEADER_DEADLINE_S, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        self._open[self._address] -= 1
        if not self._open[self._address]:
            del self._open[self._address]
        super().connection_lost(exc)

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""

    def _cancel_deadline(self) -> None:
        if self._deadline:
            self._deadline.cancel()
            self._deadline = None


def max_connections() -> int:
    """Return the maximum number of open connections, given this process's limit of open files."""
    return max(
        1, min(MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _RESERVED_FILES)
    )


def raise_file_limit() -> None:
    """Raise this process's limit of open files as far as MAX_CONNECTIONS needs and the system permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = MAX_CONNECTIONS + _RESERVED_FILES
    if soft < enough:
        with suppress(ValueError):
            resource.setrlimit(
                resource.RLIMIT_NOFILE, (enough if hard < 0 else min(enough, hard), hard)
            )
