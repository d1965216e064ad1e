"""Requests that the page's server refuses, the slots in which it serves pages, and bounds of unread replies."""

import asyncio
import json
import threading
import time
from contextlib import suppress
from types import SimpleNamespace

import gradio as gr
import pytest
import uvicorn
from gradio.queueing import EventQueue
from gradio.routes import App
from gradio.utils import set_task_name
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from uvicorn.server import ServerState

from tests.waiting import PATIENCE_S, until
from tilescope.measure.request_slots import BURST, HEAVY_RATE, MAX_OPEN, MAX_RUNNING, RequestSlots
from visualize.web import guard
from visualize.web.assets import MESSAGES
from visualize.web.guard import (
    HOSTS,
    MAX_BODY_BYTES,
    Connection,
    Guard,
    allowed_hosts,
    framing_sites,
    trust_hub_proxies,
)
from visualize.web.mailboxes import (
    MAX_MAILBOXES,
    MAX_TOTAL_UNREAD_BYTES,
    MAX_UNREAD,
    MAX_UNREAD_BYTES,
    limit_queue,
    set_address,
)

REDRAW = MESSAGES


async def echo(request):
    return PlainTextResponse(await request.body())


def client(listening_on="127.0.0.1", host="127.0.0.1:7860", endpoint=echo, root_path="", **options):
    routes = [Route("/{path:path}", endpoint, methods=["GET", "POST"])]
    guard = Middleware(Guard, hosts=allowed_hosts(listening_on), **options)
    return TestClient(
        Starlette(routes=routes, middleware=[guard]), f"http://{host}", root_path=root_path
    )


@pytest.mark.parametrize("header", ["host", "x-forwarded-host"])
def test_a_local_page_accepts_this_machines_names_alone(header):
    for host in ("127.0.0.1:7860", "localhost", "LOCALHOST:7860", "[::1]:7860"):
        assert client().get("/", headers={header: host}).status_code == 200
    names = ("evil.example", "127.0.0.1.evil.example:7860", "localhost.evil.example", "10.0.0.1")
    for host in (*names, "localhost, evil.example"):
        refused = client().get("/", headers={header: host})
        assert refused.status_code == 400
        assert "is not allowed" in refused.text


def test_a_page_for_others_accepts_any_name_unless_names_are_listed(monkeypatch):
    assert client("0.0.0.0", "any.example").get("/").status_code == 200
    for host in ("[::1", "::1", "any.example:b", "http://any.example"):
        refused = client("0.0.0.0").get("/", headers={"x-forwarded-host": host})
        assert refused.status_code == 400
        assert "is not a name with a port" in refused.text
    monkeypatch.setenv(HOSTS, "Tilescope.example, other.example")
    assert client("0.0.0.0", "tilescope.example").get("/").status_code == 200
    assert client("0.0.0.0", "any.example").get("/").status_code == 400
    assert client("127.0.0.1", "other.example").get("/").status_code == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1.evil.example", "file://"]
)
def test_a_local_page_refuses_requests_from_other_sites(origin):
    assert client().post("/", headers={"origin": origin}).status_code == 403
    assert client().post("/", headers={"origin": "http://localhost:1234"}).status_code == 200
    assert client("0.0.0.0", "any.example").post("/", headers={"origin": origin}).status_code == 200


OWN = {"origin": "http://any.example"}
FOREIGN = (
    {"origin": "http://evil.example"},
    {"origin": "null"},
    {"origin": "http://any.example:81"},
    {"referer": "http://evil.example/x"},
    {**OWN, "sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
)
CHANGING = (
    REDRAW,
    *(
        f"gradio_api/{path}"
        for path in ("call/run", "queue/join", "cancel", "reset", "run/predict")
    ),
    *("login", "logout", "anything"),
)


def with_login(listening_on="0.0.0.0", host="any.example"):
    app = client(listening_on, login_s=0.0).app
    app.auth = {"me": "secret"}
    app.tokens = {"token": "me"}
    app.cookie_id = "id"
    return TestClient(app, f"http://{host}", cookies={"access-token-id": "token"})


@pytest.mark.parametrize("path", CHANGING)
def test_with_a_login_another_site_changes_nothing(path, monkeypatch):
    page = with_login()
    for headers in FOREIGN:
        assert page.post(path, json={}, headers=headers).status_code == 403, headers
    assert page.get("logout", headers=FOREIGN[0]).status_code == 403
    assert page.get("gradio_api/file=x", headers=FOREIGN[0]).status_code == 200
    for headers in ({}, OWN, {"sec-fetch-site": "same-origin", "origin": "http://proxied.example"}):
        assert page.post(path, json={}, headers=headers).status_code == 200, headers
    monkeypatch.setenv(HOSTS, "proxied.example, any.example")
    page = with_login()
    headers = {"origin": "http://proxied.example"}
    assert page.post(path, json={}, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "path", [REDRAW, "gradio_api/call/run", "gradio_api/queue/join", "gradio_api/mcp/"]
)
def test_a_browser_sends_json_or_nothing(path):
    """A browser sends the other content types across sites without a preflight request."""
    page = client("0.0.0.0", "any.example")
    for kind in (
        "text/plain",
        "multipart/form-data",
        "application/x-www-form-urlencoded",
        "x/json",
    ):
        refused = page.post(path, content="{}", headers={"content-type": kind})
        assert refused.status_code == 415
        assert refused.text == f"The content type must be application/json (got '{kind}').\n"
    assert page.post(path, content="{}", headers=OWN).status_code == 415
    for kind in ("application/json", "Application/JSON; charset=utf-8"):
        headers = {**OWN, "content-type": kind}
        assert page.post(path, content="{}", headers=headers).status_code == 200
    assert page.post(path, content="{}").status_code == 200


def test_a_url_and_a_file_name_have_maximum_lengths():
    page = client()
    for path, status in (
        (f"?a={'x' * 8000}", 200),
        (f"?a={'x' * 8200}", 414),
        (f"static/{'x' * 8200}", 414),
        (f"static/{'é' * 127}", 200),
        (f"static/{'é' * 128}", 400),
        ("static/%ff%fe", 200),
        ("static/%00", 400),
    ):
        assert page.get(path).status_code == status, path


def test_a_body_that_is_too_large_is_refused_with_or_without_its_length():
    page = client()
    assert len(page.post("/", content=b"x" * MAX_BODY_BYTES).content) == MAX_BODY_BYTES
    refused = page.post("/", content=b"x" * (MAX_BODY_BYTES + 1))
    assert refused.status_code == 413
    assert refused.text == "The body exceeds the maximum of 65,536 bytes.\n"
    chunked = page.post("/", content=(b"x" * 1024 for _ in range(100)))
    assert "content-length" not in chunked.request.headers
    assert chunked.status_code == 413
    assert len(page.post("/", content=(b"x" * 1024 for _ in range(10))).content) == 10240


@pytest.mark.parametrize("prefix", ["", "/tools/x"])
def test_closed_routes_stay_closed_below_a_root_path(prefix):
    """Starlette serves a path with and without its root path in front, so a proxy may strip it or not."""
    page = client(root_path="/tools/x")
    proxy = "proxy=http://169.254.169.254/"
    for path in f"upload {proxy} component_server stream/x vibe-edit monitoring dev/reload".split():
        for route in (f"{prefix}/{path}", f"{prefix}/gradio_api/{path}"):
            refused = page.post(route)
            assert refused.status_code == 404
            assert refused.headers["x-content-type-options"] == "nosniff"
    assert page.post(f"{prefix}{REDRAW}", content="{}").status_code == 200


@pytest.mark.parametrize(
    ("variables", "sites"),
    [
        ("", ""),
        ("SPACE_ID=someone/tilescope", "https://huggingface.co"),
        ("SPACE_ID=someone/tilescope TILESCOPE_FRAMES=*", ""),
        ("SPACE_ID=some/one TILESCOPE_FRAMES=https://a.example", "https://huggingface.co https://a.example"),
        ("TILESCOPE_FRAMES=https://a.example,https://b.example", "https://a.example https://b.example"),
        ("TILESCOPE_AUTH=me:secret", "'self'"),
    ],
)  # fmt: skip
def test_only_hugging_face_frames_a_space_and_no_site_a_page_with_a_login(
    monkeypatch, variables, sites
):
    for name in ("SPACE_ID", "TILESCOPE_FRAMES", "TILESCOPE_AUTH"):
        monkeypatch.delenv(name, raising=False)
    for variable in variables.split():
        monkeypatch.setenv(*variable.split("="))
    headers = client(frames=framing_sites()).get("/").headers
    policy = f"frame-ancestors 'self' {sites}".removesuffix(" 'self'")
    assert headers.get("content-security-policy") == (policy if sites else None)
    assert headers["x-content-type-options"] == "nosniff"


def call(name, body, route="call"):
    defaults = {"coalescing": [None, "compiled", None], 7: [None, "compiled", None]}
    return client(defaults=defaults).post(f"/gradio_api/{route}/{name}", content=body)


def test_a_call_gets_the_defaults_of_the_arguments_that_it_leaves_out():
    for arguments, complete in (
        ([], [None, "compiled", None]),
        ([{}, "textbook"], [{}, "textbook", None]),
        ([{}, "textbook", {}, "more"], [{}, "textbook", {}]),
    ):
        assert call("coalescing", json.dumps({"data": arguments})).json() == {"data": complete}
        for name, route in (("join", "queue"), ("predict", "run")):
            by_number = {"fn_index": 7, "data": arguments}
            assert call(name, json.dumps(by_number), route).json() == {
                **by_number,
                "data": complete,
            }
    for body in ('{"data": [{}]}', '{"experiment": {}}', '{"data": 3}', '{"session_hash": 7}'):
        assert call("unknown", body).text == body


def test_an_argument_that_gradio_would_take_for_a_file_is_refused():
    nested = {"problem": [{"meta": {"_type": "gradio.FileData"}, "url": "http://169.254.169.254/"}]}
    for argument in ({"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}, nested):
        body = json.dumps({"data": [argument]})
        for text in (body, body.replace("FileData", "\\u0046ileData")):
            refused = call("coalescing", text)
            assert refused.status_code == 400
            assert "accepts no files" in refused.text
    assert call("coalescing", "[" * 30_000 + "]" * 30_000).status_code == 400, (
        "too deep to be searched"
    )


def test_an_argument_of_an_unknown_name_is_refused():
    """For such an argument, Gradio 6.31 lets a TypeError escape from the route."""

    async def fail(request):
        raise TypeError("Parameter `x` is not a valid key-word argument.")

    refused = client(endpoint=fail).get("/gradio_api/call/v2/schedule")
    assert refused.status_code == 400
    assert "Parameter `x` is not" in refused.text
    with pytest.raises(TypeError):
        client(endpoint=fail).get("/elsewhere")


@pytest.mark.parametrize(("length", "status"), [(64, 200), (65, 400), (60_000, 400)])
def test_a_session_hash_over_64_characters_is_refused_wherever_gradio_reads_one(length, status):
    """In a body, also in an encoding and spelling that only a JSON reader knows; in a query; in a path."""
    name = "é" + "x" * (length - 1)
    page = client()
    body = json.dumps({"data": [], "session_hash": name})
    paths = ("run/predict", "api/predict/", "queue/join", "cancel")
    replies = [page.post(f"/gradio_api/{path}", content=body) for path in paths]
    escaped = body.replace('"session_hash"', '"\\u0073ession_hash"')
    replies.append(page.post("/gradio_api/call/schedule", content=escaped))
    replies.append(page.get("/gradio_api/queue/data", params={"session_hash": name}))
    replies.append(page.get(f"/gradio_api/heartbeat/{name}"))
    if length < 10_000:
        replies.append(page.post("/run/predict", content=body.encode("utf-16")))
    assert {reply.status_code for reply in replies} == {status}
    if status == 400:
        sentence = f"The session hash has {length:,} characters; the maximum is 64.\n"
        assert {reply.text for reply in replies} == {sentence}


@pytest.mark.parametrize(
    ("space", "forwarded", "expected"),
    [
        ("someone/tilescope", "203.0.113.7", "203.0.113.7"),
        ("someone/tilescope", "198.51.100.1, 203.0.113.7, 10.20.1.2", "203.0.113.7"),
        ("", "203.0.113.7", "10.16.3.80"),
    ],
)
async def test_on_a_space_the_address_is_the_last_public_one_that_the_hub_forwards(
    monkeypatch, space, forwarded, expected
):
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "")
    monkeypatch.delenv("FORWARDED_ALLOW_IPS")
    if space:
        monkeypatch.setenv("SPACE_ID", space)
    trust_hub_proxies()
    addresses = []

    async def app(scope, receive, send):
        addresses.append(scope["client"][0])

    config = uvicorn.Config(app, log_config=None)
    config.load()
    headers = [(b"x-forwarded-for", forwarded.encode())]
    scope = {"type": "http", "client": ("10.16.3.80", 1), "headers": headers, "path": "/"}
    await config.loaded_app(scope, None, None)
    assert addresses == [expected]


class GuardedApp:
    """A guarded ASGI app that replies once a test sets `go`, and requests to it, whose clients leave at `left`."""

    def __init__(self, **options):
        self.addresses = []
        self.bodies = []
        self.go = asyncio.Event()
        self.left = asyncio.Event()
        self._guard = Guard(self._reply, hosts=(), slots=RequestSlots(), **options)

    async def _reply(self, scope, receive, send):
        self.addresses.append(scope["client"][0])
        self.bodies.append((await receive())["body"])
        await self.go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    async def request(
        self,
        address="10.0.0.1",
        path=REDRAW,
        method="POST",
        parts=(b"{}",),
        is_read=True,
        root_path="",
    ):
        """Return a reply's status and body; None without a reply. If the last part is None, the body does not end."""
        unsent = list(parts)
        reply = []

        async def receive():
            part = unsent.pop(0) if unsent else None
            if part is None:
                await self.left.wait()
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": part, "more_body": bool(unsent)}

        async def send(message):
            if not is_read:
                await asyncio.Event().wait()
            reply.append(message)

        request = {"method": method, "path": path, "root_path": root_path, "query_string": b""}
        scope = {"type": "http", **request, "headers": [], "client": (address, 1)}
        await self._guard(scope, receive, send)
        return (reply[0]["status"], reply[1]["body"]) if reply else None

    async def start(self, count, **options):
        """Start requests, and let them run until they wait."""
        requests = [asyncio.create_task(self.request(**options)) for _ in range(count)]
        for _ in range(200):
            await asyncio.sleep(0)
        return requests


async def test_pages_run_in_slots_and_nothing_else_waits_for_them():
    """Events and other routes need no slot, and a client that reads no reply holds none."""
    app = GuardedApp()
    requests = await app.start(
        MAX_RUNNING + 5, path="/tools/x/", root_path="/tools/x", method="GET"
    )
    assert len(app.addresses) == MAX_RUNNING
    await app.start(5)
    await app.start(5, path="/favicon.ico", method="GET")
    assert len(app.addresses) == MAX_RUNNING + 10
    app.go.set()
    assert await asyncio.gather(*requests) == [(200, b"done")] * len(requests)
    await app.start(2 * MAX_RUNNING, path="/", method="GET", is_read=False)
    assert await app.request(path="/", method="GET") == (200, b"done")


@pytest.mark.parametrize("path", [REDRAW, "/gradio_api/queue/data", "/gradio_api/heartbeat/hash"])
async def test_too_many_open_requests_or_streams_of_an_address_are_refused_until_some_end(path):
    app = GuardedApp()
    requests = await app.start(MAX_OPEN + 3, path=path)
    other = await app.start(1, address="10.0.0.2", path=path)
    app.go.set()
    replies = await asyncio.gather(*requests)
    assert [status for status, _ in replies].count(429) == 3
    assert f"already has {MAX_OPEN} open requests".encode() in replies[-1][1]
    assert await asyncio.gather(*other, app.request()) == [(200, b"done")] * 2


async def test_unfinished_bodies_hold_no_turns_and_end_at_their_deadline():
    app = GuardedApp(body_deadline_s=0.2)
    app.go.set()
    slow = await app.start(MAX_OPEN - 1, parts=(b"{", None))
    assert await app.request(parts=(b"{", b"}")) == (200, b"done")
    assert app.bodies == [b"{}"]
    late = (408, b"The body did not arrive within 0.2 s.\n")
    assert await asyncio.gather(*slow) == [late] * len(slow)


# Long enough for a client to reconnect on a busy machine.
RECONNECT_S = 1.0


@pytest.fixture
def queue():
    with gr.Blocks() as blocks:
        limit_queue(blocks._queue, reconnect_s=RECONNECT_S)
    return blocks._queue


def add_event(queue, client, address="10.0.0.1"):
    """Do what Gradio does for each event that a client sends, and return the client's messages."""
    with set_address(address):
        if client not in queue.pending_messages_per_session:
            queue.pending_messages_per_session[client] = asyncio.Queue()
    queue.pending_event_ids_session.setdefault(client, set()).add("event")
    return queue.pending_messages_per_session[client]


def reply_of(size):
    return SimpleNamespace(output={"data": [{"text": "x" * size}]})


def test_a_client_that_never_reads_keeps_the_latest_messages(queue):
    messages = add_event(queue, "client")
    for number in range(MAX_UNREAD + 50):
        messages.put_nowait(number)
    kept = [messages.get_nowait() for _ in range(messages.qsize())]
    assert kept == list(range(50, MAX_UNREAD + 50))


def test_an_address_with_too_many_clients_evicts_its_own_alone(queue):
    messages = queue.pending_messages_per_session
    events = queue.pending_event_ids_session
    light = [f"light {number}" for number in range(40)]
    for client in light:
        add_event(queue, client, "10.0.0.2")
    for number in range(3 * MAX_MAILBOXES):
        add_event(queue, f"client {number}")
    kept = {*light, *(f"client {number}" for number in range(2 * MAX_MAILBOXES, 3 * MAX_MAILBOXES))}
    assert set(messages) == set(events) == kept
    messages["client 1"].put_nowait("message")  # dropped
    events["client 1"].add("event")
    del messages["client 1"]
    assert set(messages) == set(events) == kept


def test_the_waiting_events_of_an_evicted_client_are_dropped(queue):
    waiting = queue.event_queue_per_concurrency_id["redraw"] = EventQueue("redraw", 1)
    clients = [f"client {number}" for number in range(MAX_MAILBOXES + 5)]
    for client in clients:
        waiting.queue += (
            events := [SimpleNamespace(session_hash=client, _id=f"{client} {n}") for n in range(2)]
        )
        queue.event_ids_to_events |= {event._id: event for event in events}
        add_event(queue, client)
    assert [event.session_hash for event in waiting.queue[::2]] == clients[5:]
    assert len(queue.event_ids_to_events) == len(waiting.queue) == 2 * MAX_MAILBOXES


def test_unread_replies_are_bounded_by_bytes_per_address_and_in_total(queue):
    messages = queue.pending_messages_per_session
    half = MAX_UNREAD_BYTES // 2 - 1000
    add_event(queue, "light", "10.0.0.9").put_nowait(reply_of(half))
    for number in range(5):
        add_event(queue, f"client {number}").put_nowait(reply_of(half))
    assert set(messages) == {"light", "client 3", "client 4"}
    messages["client 4"].get_nowait()
    assert messages["client 4"].size == 0
    addresses = 2 * MAX_TOTAL_UNREAD_BYTES // MAX_UNREAD_BYTES
    for number in range(addresses):
        add_event(queue, f"heavy {number}", f"10.0.1.{number}").put_nowait(
            reply_of(MAX_UNREAD_BYTES - 1000)
        )
    assert "light" in messages
    assert sum(each.size for each in messages.values()) <= MAX_TOTAL_UNREAD_BYTES


async def test_a_client_that_has_read_all_replies_is_removed_when_another_is_added(queue):
    messages = queue.pending_messages_per_session
    events = queue.pending_event_ids_session
    for client in ("done", "busy", "unread"):
        add_event(queue, client).put_nowait("message")
    for client in ("done", "busy"):
        assert await messages[client].get() == "message"
    events["done"].clear()
    events["unread"].clear()
    add_event(queue, "new")
    assert set(messages) == set(events) == {"busy", "unread", "new"}


async def test_a_client_that_waits_for_a_message_or_is_between_two_reads_is_not_evicted(queue):
    messages = add_event(queue, "waiting")
    reading = asyncio.create_task(messages.get())
    await asyncio.wait([reading], timeout=0)
    for number in range(2 * MAX_MAILBOXES):
        add_event(queue, f"client {number}")
    messages.put_nowait("message")
    assert await reading == "message"
    for number in range(MAX_MAILBOXES - 1):
        add_event(queue, f"another client {number}")
    with suppress(TimeoutError):
        await asyncio.wait_for(messages.get(), 0.01)
    add_event(queue, "one more client")
    assert "waiting" in queue.pending_messages_per_session
    assert len(queue.pending_messages_per_session) == MAX_MAILBOXES


async def test_the_events_of_a_client_end_when_it_leaves_but_not_when_it_opens_its_next_stream(
    queue,
):
    forever = asyncio.Event()
    for client in ("gone", "back", "gone_too", "about to read"):
        task = asyncio.create_task(forever.wait())
        set_task_name(task, client, 7, "event", batch=False)
        queue._asyncio_tasks.add(task)
    messages = add_event(queue, "back")
    for client in ("gone", "back", "about to read"):
        await queue.clean_events(session_hash=client)
    next_stream = asyncio.create_task(messages.get())
    await asyncio.sleep(0)
    add_event(queue, "about to read")
    await asyncio.sleep(RECONNECT_S + 0.1)
    next_stream.cancel()
    tasks = queue._asyncio_tasks
    ended = {task.get_name().partition("_7<")[0] for task in tasks if task.cancelled()}
    assert ended == {"gone"}


def test_the_events_of_a_client_that_never_opens_a_stream_end_and_its_replies_are_dropped():
    def reply() -> str:
        return "reply"

    async def wait() -> str:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return ""

    ended = threading.Event()
    with gr.Blocks() as blocks:
        gr.api(reply, api_name="reply")
        gr.api(wait, api_name="wait")
        limit_queue(blocks._queue, first_read_s=1)
    with TestClient(App.create_app(blocks)) as browser:
        browser.get("/gradio_api/startup-events")
        paths = ("/gradio_api/call/reply", "/gradio_api/call/wait")
        events = [browser.post(path, json={"data": []}).json()["event_id"] for path in paths]
        assert set(events) == set(blocks._queue.pending_messages_per_session)
        assert ended.wait(PATIENCE_S)
        until(lambda: not blocks._queue.pending_messages_per_session)


def test_malformed_bodies_of_events_are_refused():
    """Gradio 6.31 replies with a traceback to some."""
    for path in ("queue/join", "call/schedule", "run/predict", "cancel", REDRAW.removeprefix("/")):
        for body in (b"", b"3", b"[1]", b"{", b"\xff"):
            refused = client().post(f"/gradio_api/{path}", content=body)
            assert refused.status_code == 400
            assert refused.text == "The body must be a JSON object.\n"


async def test_an_address_that_floods_the_page_waits_and_others_do_not():
    """Refused requests count, too."""
    app = GuardedApp()
    app.go.set()
    await app.request(address="10.0.0.2")
    began = time.monotonic()
    flood = await app.start(BURST + 20, path="/gradio_api/run/predict", parts=(b"not JSON",))
    assert await app.request(address="10.0.0.2") == (200, b"done")
    assert not all(request.done() for request in flood)
    assert {status for status, _ in await asyncio.gather(*flood)} == {400}
    assert time.monotonic() - began >= 20 / HEAVY_RATE


async def test_a_delayed_request_whose_client_has_left_is_dropped():
    app = GuardedApp()
    app.go.set()
    await app.request(address="10.0.0.2")
    flood = await app.start(BURST + 20)
    app.left.set()
    replies = await asyncio.gather(*flood)
    assert replies.count(None) >= 15
    assert replies.count((200, b"done")) >= BURST


async def test_an_address_guesses_one_password_at_a_time():
    app = GuardedApp(login_s=0.01)
    guesses = await app.start(20, path="/login", parts=(b"username=me&password=x",))
    guesses += await app.start(1, path="/login", address="10.0.0.2")
    await asyncio.sleep(0.02)
    assert app.addresses.count("10.0.0.1") == 1
    assert app.addresses.count("10.0.0.2") == 1
    for guess in guesses:
        guess.cancel()


async def open_connections(count, sent=b""):
    """Connect to a server one connection after the other. Return what each of them receives before it is closed."""
    config = uvicorn.Config(echo_app, http=Connection, log_level="error")
    config.load()
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(config, state, {}), "127.0.0.1", 0
    )
    pairs = []
    for _ in range(count):
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        pairs.append((reader, writer))
        await asyncio.sleep(0.05)
    received = []
    for reader, writer in pairs:
        data = b""
        with suppress(ConnectionResetError):
            writer.write(sent)
            data = await asyncio.wait_for(reader.read(), PATIENCE_S)
        received.append(data)
        writer.close()
    server.close()
    return received


async def echo_app(scope, receive, send):
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]}
    )
    await send({"type": "http.response.body", "body": b"served"})


GET = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"


async def test_a_connection_whose_head_does_not_end_is_closed(monkeypatch):
    (reply,) = await open_connections(1, GET)
    assert b"served" in reply
    monkeypatch.setattr(guard, "HEADER_DEADLINE_S", 0.2)
    assert await open_connections(1, GET[:-2]) == [b""]


async def test_one_address_gets_half_of_the_connections(monkeypatch):
    monkeypatch.setattr(guard, "max_connections", lambda: 4)
    replies = await open_connections(3, GET)
    assert [b"served" in reply for reply in replies] == [True, True, False]


def test_routes_without_gradios_login_check_need_the_login():
    page = with_login("127.0.0.1", "127.0.0.1:7860")
    page.cookies.clear()
    for path in ("/gradio_api/heartbeat/hash", "/gradio_api/token", "/openapi.json"):
        assert page.get(path).status_code == 401
    assert page.post(REDRAW, content="{}").status_code == 401
    # Gradio requests this route at startup, without a login, and ends the app if the request fails.
    assert page.get("/gradio_api/startup-events").status_code == 200
    page.cookies.set("access-token-id", "token")
    assert page.get("/openapi.json").status_code == 200
