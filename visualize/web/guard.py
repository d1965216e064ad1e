"""Limit what a client may send, keep and occupy: each request, each address's turns and replies, and each connection.

Gradio 6.31 accepts any host, bodies and session hashes of any size, and files from anybody. It keeps the replies of
2,000 clients that never read them. This is not reported as of gradio 6.31. Remove `Mailboxes` when its `Queue` bounds
`pending_messages_per_session` and `pending_event_ids_session`.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, ClassVar

import h11
from gradio.queueing import Queue
from gradio.utils import LRUCache
from starlette._utils import get_route_path  # the path that routes match: without the root path
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from kernels.knobs import ConfigError
from kernels.measuring.fair_queue import (
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

LOG = logging.getLogger("tilescope.guard")

# Bytes of a request's body, and seconds to receive it. The page's own, with a saved run, take about 30,000 bytes.
MAX_BODY_BYTES, BODY_DEADLINE_S = 64 * 1024, 10.0

# Characters of a session hash, which Gradio keeps as a key. Its own have 11.
MAX_SESSION_HASH = 64

# Seconds that a login takes. An address logs in once at a time.
LOGIN_S = 1.0

# Maximum clients with unread replies per address, and bytes of these replies per address and in total. Each open page
# and each call of an endpoint is a client.
MAX_MAILBOXES, MAX_UNREAD_BYTES, MAX_TOTAL_UNREAD_BYTES = 300, 8 << 20, 64 << 20

# Maximum unread messages of one client. An open page reads each message immediately.
MAX_UNREAD = 30

# Seconds in which a client may open its next stream before its events end. A page closes its stream when it knows of no
# unfinished event, and may just be starting one.
RETURN_S = 3.0

# Seconds for the head of a request, and of silence until the server closes a connection. Browsers close theirs first.
HEAD_DEADLINE_S, KEEP_ALIVE_S = 10.0, 75

# Maximum open connections, if the system allows as many files, and files kept for everything else.
MAX_CONNECTIONS, _RESERVED_FILES = 4096, 256

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

# The address of the current request.
_ADDRESS: ContextVar[str] = ContextVar("address", default="")

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


@contextmanager
def set_address(address: str) -> Iterator[None]:
    """Attribute what Gradio keeps to an address, inside the block."""
    token = _ADDRESS.set(address)
    try:
        yield
    finally:
        _ADDRESS.reset(token)


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


class _Messages(asyncio.Queue[Any]):
    """One client's messages, of which the oldest is dropped first.

    Args:
        on_change: called with the change of `size` after each message and after each attempt to read, which the client
            may soon repeat.

    Attributes:
        address: the address whose request added the client.
        readers: number of readers that wait for a message.
        reads: number of attempts to read.
        size: bytes of the messages.
    """

    def __init__(self, on_change: Callable[["_Messages", int], None]) -> None:
        super().__init__()
        self.address, self.readers, self.reads, self.size, self._on_change = _ADDRESS.get(), 0, 0, 0, on_change

    async def get(self) -> Any:
        self.readers += 1
        self.reads += 1
        try:
            return await super().get()
        finally:
            self.readers -= 1
            self._add(0)

    def _get(self) -> Any:
        size, item = super()._get()
        self._add(-size)
        return item

    def put_nowait(self, item: Any) -> None:
        if self.qsize() >= MAX_UNREAD:
            self.get_nowait()
        size = _count_bytes(getattr(item, "output", None))
        super().put_nowait((size, item))
        self._add(size)

    def _add(self, size: int) -> None:
        self.size += size
        self._on_change(self, size)


def _count_bytes(value: object) -> int:
    """Estimate the memory of a reply: lists and dicts of numbers and texts."""
    if isinstance(value, dict):
        return 64 + sum(64 + _count_bytes(item) for item in value.values())
    if isinstance(value, list | tuple):
        # Long lists are of equal items.
        step = 1 + len(value) // 16
        return 64 + step * sum(map(_count_bytes, value[::step]))
    return len(value) + 56 if isinstance(value, str) else 32


class Mailboxes(LRUCache[str, Any]):
    """Messages by client, the client that read last at the end.

    An address that keeps too much loses its own clients: first those without a waiting reader, the least recently
    active first. Only sending is no activity.
    """

    def __init__(self, event_ids: dict[str, set[str]]) -> None:
        super().__init__(1 << 30)
        self._event_ids = event_ids
        self._clients, self._sizes = Counter[str](), Counter[str]()  # by address

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, messages := _Messages(functools.partial(self._update, key)))
        self._clients[messages.address] += 1
        self._evict(messages.address)

    def __missing__(self, key: str) -> Any:
        """Return a queue without a reader: an event of an evicted client may still report."""
        return _Messages(lambda *_: None)

    def __delitem__(self, key: str) -> None:
        """Ignore a missing key: a stream may end after its client was evicted."""
        if messages := self.pop(key, None):
            self._clients[messages.address] -= 1
            self._sizes[messages.address] -= messages.size
            if not self._clients[messages.address]:
                del self._clients[messages.address], self._sizes[messages.address]

    def _update(self, key: str, messages: _Messages, size: int) -> None:
        if self.get(key) is messages:
            self._sizes[messages.address] += size
            self.move_to_end(key)
            self._evict(messages.address)

    def _evict(self, address: str) -> None:
        """Evict clients of an address that keeps too much, then of the address that keeps most."""
        while True:
            if self._clients[address] <= MAX_MAILBOXES and self._sizes[address] <= MAX_UNREAD_BYTES:
                if self._sizes.total() <= MAX_TOTAL_UNREAD_BYTES:
                    return
                address = max(self._sizes, key=lambda each: self._sizes[each])
            ours = [key for key, messages in self.items() if messages.address == address]
            key = next((key for key in ours if not self[key].readers), ours[0])
            self._event_ids.pop(key, None)
            del self[key]


class _EventIds(dict[str, set[str]]):
    """Numbers of unfinished events by client."""

    def __missing__(self, key: str) -> set[str]:
        """Return an empty set: a stream may end after its client was evicted."""
        return set()


def bound_queue(queue: Queue, return_s: float = RETURN_S) -> None:
    """Bound what a queue keeps, and end a client's events when it leaves. Call it before the first request.

    Args:
        return_s: seconds after the end of a client's stream in which it may open another one.
    """
    queue.pending_event_ids_session = _EventIds()
    queue.pending_messages_per_session = Mailboxes(queue.pending_event_ids_session)
    queue.ANALYTICS_MAX_EVENTS = 200  # whose durations Gradio keeps
    clean_events, tasks = queue.clean_events, set[asyncio.Task[None]]()

    def count_reads(session_hash: str) -> int:
        messages = queue.pending_messages_per_session.get(session_hash)
        return messages.reads if messages else 0

    async def end_all(session_hash: str, reads: int) -> None:
        await asyncio.sleep(return_s)
        if count_reads(session_hash) > reads:
            return
        await clean_events(session_hash=session_hash)
        for task in [*queue._asyncio_tasks]:
            # As `gradio.utils.set_task_name` joins them: the hash, the event's number and its id.
            if task.get_name().rpartition("<gradio-sep>")[0].rpartition("_")[0] == session_hash:
                task.cancel()

    async def end_events(*, session_hash: str | None = None, event_id: str | None = None) -> None:
        """Gradio 6.31 forgets the events that have not begun, even those of a page that opens its next stream."""
        if session_hash is None:
            await clean_events(event_id=event_id)
            return
        tasks.add(task := asyncio.create_task(end_all(session_hash, count_reads(session_hash))))
        task.add_done_callback(tasks.discard)

    queue.clean_events = end_events  # type: ignore[method-assign]


class Connection(H11Protocol):
    """A connection to a client. It is closed if its address has too many, or if a head does not arrive in time."""

    _open: ClassVar = Counter[str]()
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._open[_address(vars(self))] += 1
        limit = max_connections()
        if len(self.connections) > limit or self._open[_address(vars(self))] > limit // 2:
            transport.abort()
        else:
            self._deadline = self.loop.call_later(HEAD_DEADLINE_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._end_deadline()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_DEADLINE_S, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_deadline()
        self._open[_address(vars(self))] -= 1
        if not self._open[_address(vars(self))]:
            del self._open[_address(vars(self))]
        super().connection_lost(exc)

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def max_connections() -> int:
    """Return the maximum number of open connections, which this process's limit of files may lower."""
    return max(1, min(MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _RESERVED_FILES))


def raise_file_limit() -> None:
    """Allow this process as many open files as the system permits, up to those of MAX_CONNECTIONS."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = MAX_CONNECTIONS + _RESERVED_FILES
    if soft < enough:
        with suppress(ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (enough if hard < 0 else min(enough, hard), hard))
