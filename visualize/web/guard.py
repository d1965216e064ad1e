"""Reject invalid requests and those of other sites, limit unread replies, and end the events of clients that left.

Gradio 6.31 checks no Host header, limits neither bodies nor session hashes, and accepts uploads from anyone.

It keeps unread replies of any size for up to 2,000 clients, and never forgets a client whose replies were all read; no
upstream issue reports it. Remove `limit_queue` when Gradio's `Queue` bounds `pending_messages_per_session` and
`pending_event_ids_session`, and cancels the events of disconnected clients.
"""

import asyncio
import functools
import json
import logging
import os
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from gradio.queueing import Queue
from starlette._utils import get_route_path, parse_host_header
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tilescope.declare.experiment import Json
from visualize.web.assets import MESSAGES

LOG = logging.getLogger("tilescope.guard")

# Maximum bytes of a request's body. The page sends at most 42,000 characters.
MAX_BODY_BYTES = 64 * 1024

# Maximum characters of a URL, more than the page's links have. Gradio fails above 65,536.
MAX_URL = 8192

# Maximum characters of a session hash, which Gradio uses as a key. Gradio's own hashes have 11.
MAX_SESSION_HASH = 64

# Routes of events. Unexpected arguments raise exceptions in Gradio's.
_EVENTS = (MESSAGES, "/run/", "/api/", "/call/", "/queue/", "/cancel", "/reset")

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


def framing_sites(has_login: bool) -> tuple[str, ...]:
    """Return the sites that may show the page in a frame, as `frame-ancestors` lists them; an empty tuple allows any.

    By default any site may embed a page without a login, only huggingface.co may embed a Space, and no other site may
    embed a page with a login (clickjacking).
    """
    listed = os.environ.get(FRAMES, "").replace(",", " ").split()
    hub = ["https://huggingface.co"] if "SPACE_ID" in os.environ else []
    is_restricted = (hub or listed or has_login) and "*" not in listed
    return ("'self'", *hub, *listed) if is_restricted else ()


# The hub's proxies have private addresses, and append the visitor's address to any X-Forwarded-For header that the
# visitor sends.
_HUB_NETWORKS = "10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,127.0.0.1,::1"


def trust_hub_proxies() -> None:
    """On a Space, trust the hub's X-Forwarded-For header. Call it before the server starts."""
    if "SPACE_ID" in os.environ:
        os.environ.setdefault("FORWARDED_ALLOW_IPS", _HUB_NETWORKS)


class Guard:
    """ASGI middleware that rejects invalid requests, and completes the arguments of events.

    Args:
        hosts: see `allowed_hosts`.
        frames: see `framing_sites`.
        defaults: default arguments of each event, by its id and by its name in the API. Gradio 6.31 raises an error for
            missing arguments, although its own client fills in defaults.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Sequence[str],
        frames: Sequence[str] = (),
        defaults: Mapping[int | str, Sequence[object]] | None = None,
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._defaults = defaults or {}
        policy = f"frame-ancestors {' '.join(frames)}".encode()
        self._headers = [*_HEADERS, (b"content-security-policy", policy)] if frames else _HEADERS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        # Gradio serves each route with this prefix and without it, and below the root path.
        path = get_route_path(scope).removeprefix("/gradio_api")
        has_started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                # The reply may be a cached one.
                message = {**message, "headers": [*message.get("headers", ()), *self._headers]}
            await send(message)

        try:
            body_messages = [await self._check(Request(scope, receive), path)]

            async def replay_body() -> Message:
                return body_messages.pop() if body_messages else await receive()

            await self._app(scope, replay_body, send_with_headers)
        except ClientDisconnect:
            return
        except HTTPException as refusal:
            response = PlainTextResponse(
                f"{refusal.detail}\n", refusal.status_code, refusal.headers
            )
            await response(scope, receive, send_with_headers)
        except Exception as error:
            if not path.startswith(_EVENTS):
                raise
            _log_once(type(error).__name__, traceback.extract_tb(error.__traceback__)[-1].name)
            if has_started:  # the stream of an unknown client fails after its last message
                await send({"type": "http.response.body"})
                return
            sentence = f"Gradio could not process the request: {str(error)[:200]}\n"
            await PlainTextResponse(sentence, 400)(scope, receive, send_with_headers)

    async def _check(self, request: Request, path: str) -> Message:
        """Return the message with a valid request's body.

        Raises:
            HTTPException: the request is refused.
        """
        body = await _read_body(request)
        self._check_head(request, path)
        content = _read_json(body)
        if request.method == "POST" and path.startswith(_EVENTS) and content is None:
            raise HTTPException(400, "The body must be a JSON object.")
        _check_lengths(path, request, content or {})
        body = self._complete_arguments(path, content or {}) or body
        return {"type": "http.request", "body": body}

    def _check_head(self, request: Request, path: str) -> None:
        origin = request.headers.get("origin")
        headers = request.headers.getlist
        for host in ",".join((*headers("host"), *headers("x-forwarded-host"))).split(","):
            if not self._allows(host.strip()):
                allowed = ", ".join(self._hosts) or "a name with or without a port"
                sentence = f"The host {host[:100]!r} is not allowed. Allowed: {allowed}. Set {HOSTS} to add one."
                raise HTTPException(400, sentence)
        if self._hosts and origin is not None and not self._allows(_host_of(origin)):
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
        host = _host_of(source)
        return host == request.headers.get("host") or bool(self._hosts and self._allows(host))

    def _allows(self, host: str) -> bool:
        parsed = parse_host_header(host)
        return parsed is not None and (not self._hosts or parsed.host.lower() in self._hosts)

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


@functools.lru_cache(maxsize=100)
def _log_once(error: str, function: str) -> None:
    """Log the first error of a kind, because a client could cause thousands."""
    LOG.warning(
        "An event request raised %s in %s. Later errors of this kind are not logged.",
        error,
        function,
    )


def _host_of(url: str) -> str:
    return url.partition("://")[2].partition("/")[0]


async def _read_body(request: Request) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            sentence = f"The body exceeds the maximum of {MAX_BODY_BYTES:,} bytes."
            raise HTTPException(413, sentence, {"connection": "close"})
    return body


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


def _check_lengths(path: str, request: Request, content: Json) -> None:
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


# Maximum bytes of unread replies of all clients, and number of added bytes after which they are counted.
MAX_UNREAD_BYTES = 64 << 20
CHECK_BYTES = 1 << 20

# Seconds after which the events of a client end, and its replies are dropped: after the end of its stream, and without
# a stream. Gradio's clients close their stream when they have no unfinished event, possibly just as they start one.
LEFT_S = 2.0
UNREAD_S = 20.0


class _Messages(asyncio.Queue[Any]):
    """One client's unread messages.

    Attributes:
        readers: number of pending reads.
        size: bytes of the messages.
    """

    readers = 0
    size = 0

    def __init__(self, mailboxes: "Mailboxes") -> None:
        super().__init__()
        self._mailboxes = mailboxes

    async def get(self) -> Any:
        self.readers += 1
        try:
            return await super().get()
        finally:
            self.readers -= 1

    def _get(self) -> Any:
        size, item = super()._get()
        self.size -= size
        return item

    def put_nowait(self, item: Any) -> None:
        size = len(orjson.dumps(getattr(item, "output", None), default=str))
        super().put_nowait((size, item))
        self.size += size
        self._mailboxes.limit_bytes(size)


class Mailboxes(dict[str, Any]):
    """Unread messages by client, in order of the client's first event."""

    _unchecked_bytes = 0

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, _Messages(self))

    def __missing__(self, key: str) -> Any:
        """Return an unregistered queue: an event may still send to a client whose mailbox was dropped."""
        return asyncio.Queue()

    def limit_bytes(self, added: int) -> None:
        """Drop the oldest mailboxes that exceed MAX_UNREAD_BYTES. Visits all of them, but only for each CHECK_BYTES."""
        self._unchecked_bytes += added
        if self._unchecked_bytes < CHECK_BYTES:
            return
        self._unchecked_bytes = 0
        unread = {client: messages.size for client, messages in self.items() if messages.size}
        total = sum(unread.values())
        for client, size in unread.items():
            if total > MAX_UNREAD_BYTES:
                del self[client]
                total -= size


def limit_queue(queue: Queue, left_s: float = LEFT_S, unread_s: float = UNREAD_S) -> None:
    """Limit a queue's unread replies, and end the events of clients that do not read. Call it before any request."""
    mailboxes = queue.pending_messages_per_session = Mailboxes()  # type: ignore[assignment]
    event_ids = queue.pending_event_ids_session
    queue.ANALYTICS_MAX_EVENTS = 200  # Gradio keeps the durations of this many events
    clean_events = queue.clean_events
    push = queue.push
    watches = set[asyncio.Task[None]]()

    async def watch(client: str, event_id: object) -> None:
        """End the client's events if it reads nothing while this one is unfinished. Then forget the client."""
        unread_for_s = 0.0
        while event_id in event_ids.get(client, ()):
            await asyncio.sleep(left_s)
            messages = mailboxes.get(client)
            unread_for_s = 0.0 if messages and messages.readers else unread_for_s + left_s
            if unread_for_s > (unread_s if messages else left_s):
                await end_events(client)
        if not event_ids.get(client):
            mailboxes.pop(client, None)
            event_ids.pop(client, None)

    async def end_events(client: str) -> None:
        await clean_events(session_hash=client)
        event_ids.pop(client, None)
        for task in [*queue._asyncio_tasks]:
            # `gradio.utils.set_task_name` joins the hash, the event's number and its id.
            if task.get_name().rpartition("<gradio-sep>")[0].rpartition("_")[0] == client:
                task.cancel()

    async def push_and_watch(body: Any, *args: Any, **kwargs: Any) -> Any:
        result = await push(body, *args, **kwargs)
        watches.add(task := asyncio.create_task(watch(body.session_hash, result[1])))
        task.add_done_callback(watches.discard)
        return result

    async def keep_events(*, session_hash: str | None = None, event_id: str | None = None) -> None:
        """Gradio 6.31 drops a client's queued events as soon as its stream closes, even if it opens another at once."""
        if session_hash is None:
            await clean_events(event_id=event_id)

    queue.push = push_and_watch  # type: ignore[method-assign]
    queue.clean_events = keep_events  # type: ignore[method-assign]
