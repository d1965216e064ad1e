"""Requests that the page's server refuses, and bounds of unread replies."""

import asyncio
import json
import threading
from types import SimpleNamespace

import gradio as gr
import pytest
import uvicorn
from gradio.routes import App
from gradio.utils import set_task_name
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from tests.waiting import PATIENCE_S, until
from visualize.web.assets import MESSAGES
from visualize.web.guard import (
    CHECK_BYTES,
    HOSTS,
    MAX_BODY_BYTES,
    MAX_UNREAD_BYTES,
    Guard,
    allowed_hosts,
    framing_sites,
    limit_queue,
    trust_hub_proxies,
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
        assert "a name with or without a port" in refused.text
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
    app = client(listening_on).app
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
        ("login", "'self'"),
    ],
)  # fmt: skip
def test_only_hugging_face_frames_a_space_and_no_site_a_page_with_a_login(
    monkeypatch, variables, sites
):
    for name in ("SPACE_ID", "TILESCOPE_FRAMES"):
        monkeypatch.delenv(name, raising=False)
    has_login = variables == "login"
    for variable in variables.split() if not has_login else ():
        monkeypatch.setenv(*variable.split("="))
    headers = client(frames=framing_sites(has_login)).get("/").headers
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


async def push(body):
    """Stand in for Gradio's: its event runs until it is cancelled."""
    queue = body.queue
    if body.session_hash not in queue.pending_messages_per_session:
        queue.pending_messages_per_session[body.session_hash] = asyncio.Queue()
    queue.pending_event_ids_session.setdefault(body.session_hash, set()).add("event")
    task = asyncio.create_task(asyncio.Event().wait())
    set_task_name(task, body.session_hash, 7, "event", batch=False)
    queue._asyncio_tasks.add(task)
    return True, "event", "success"


async def add_event(queue, client):
    await queue.push(SimpleNamespace(queue=queue, session_hash=client))
    return queue.pending_messages_per_session[client]


@pytest.fixture
def queue():
    with gr.Blocks() as blocks:
        blocks._queue.push = push
        limit_queue(blocks._queue, left_s=0.1)
    return blocks._queue


async def test_unread_replies_are_bounded_by_bytes_and_a_client_that_reads_loses_none(queue):
    messages = queue.pending_messages_per_session
    reader = await add_event(queue, "reader")
    reply = SimpleNamespace(output={"data": ["x" * CHECK_BYTES]})
    for number in range(2 * MAX_UNREAD_BYTES // CHECK_BYTES):
        (await add_event(queue, f"client {number}")).put_nowait(reply)
        reader.put_nowait(number)
        assert reader.get_nowait() == number
    assert MAX_UNREAD_BYTES / 2 < sum(each.size for each in messages.values()) <= MAX_UNREAD_BYTES
    messages["client 0"].put_nowait("message")  # dropped
    assert "client 0" not in messages


async def test_the_events_of_a_client_end_when_it_leaves_but_not_when_it_opens_its_next_stream(
    queue,
):
    for client in ("gone", "reads", "back"):
        await add_event(queue, client)
    reading = asyncio.create_task(queue.pending_messages_per_session["reads"].get())
    for client in ("gone", "back"):
        del queue.pending_messages_per_session[client]  # as Gradio does
        await queue.clean_events(session_hash=client)
    await add_event(queue, "back")
    await asyncio.sleep(1)
    reading.cancel()
    ended = [
        task.get_name().partition("_7<")[0] for task in queue._asyncio_tasks if task.cancelled()
    ]
    assert ended == ["gone"]


def test_a_client_that_opens_no_stream_or_has_read_its_reply_is_forgotten():
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
        limit_queue(blocks._queue, left_s=0.2, unread_s=1)
    with TestClient(App.create_app(blocks)) as browser:
        browser.get("/gradio_api/startup-events")
        paths = [f"/gradio_api/call/{name}" for name in ("reply", "reply", "wait")]
        events = [browser.post(path, json={"data": []}).json()["event_id"] for path in paths]
        assert set(events) == set(blocks._queue.pending_messages_per_session)
        assert '"reply"' in browser.get(f"{paths[0]}/{events[0]}").text
        assert ended.wait(PATIENCE_S)
        until(lambda: not blocks._queue.pending_messages_per_session)
        assert not blocks._queue.pending_event_ids_session


def test_malformed_bodies_of_events_are_refused():
    """Gradio 6.31 replies with a traceback to some."""
    for path in ("queue/join", "call/schedule", "run/predict", "cancel", REDRAW.removeprefix("/")):
        for body in (b"", b"3", b"[1]", b"{", b"\xff"):
            refused = client().post(f"/gradio_api/{path}", content=body)
            assert refused.status_code == 400
            assert refused.text == "The body must be a JSON object.\n"


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
