"""Requests that the page's server refuses, and the turns in which it serves redraws."""

from __future__ import annotations

import asyncio
import json

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from visualize.web import guard
from visualize.web.guard import (
    MAX_BODY_BYTES,
    MAX_OPEN_REDRAWS,
    MAX_RUNNING_REDRAWS,
    Guard,
    allowed_hosts,
    framing_sites,
)

REDRAW = "/gradio_api/run/predict"


async def length(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(len(await request.body())))


def client(listening_on="127.0.0.1", host="127.0.0.1:7860"):
    routes = [Route("/{path:path}", length, methods=["GET", "POST"])]
    app = Starlette(routes=routes, middleware=[Middleware(Guard, hosts=allowed_hosts(listening_on))])
    return TestClient(app, base_url=f"http://{host}")


@pytest.mark.parametrize("host", ["127.0.0.1:7860", "localhost", "LOCALHOST:7860", "[::1]:7860"])
def test_a_local_page_accepts_this_machines_names(host):
    assert client(host=host).get("/").status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:7860", "localhost.evil.example", "10.0.0.1"])
def test_a_local_page_refuses_other_names(host):
    refused = client(host=host).get("/")
    assert refused.status_code == 400
    assert f"The page is not served as {host!r}" in refused.text


def test_a_page_for_others_accepts_any_name_unless_names_are_listed(monkeypatch):
    assert client("0.0.0.0", "any.example").get("/").status_code == 200
    monkeypatch.setenv(guard.HOSTS, "Tilescope.example, other.example")
    assert client("0.0.0.0", "tilescope.example").get("/").status_code == 200
    assert client("0.0.0.0", "any.example").get("/").status_code == 400
    assert client("127.0.0.1", "other.example").get("/").status_code == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1.evil.example", "file://"])
def test_a_local_page_refuses_requests_from_other_sites(origin):
    assert client().post("/", headers={"origin": origin}).status_code == 403
    assert client().post("/", headers={"origin": "http://localhost:1234"}).status_code == 200
    assert client("0.0.0.0", "any.example").post("/", headers={"origin": origin}).status_code == 200


def test_a_body_that_is_too_large_is_refused_with_or_without_its_length():
    page = client()
    assert page.post("/", content=b"x" * MAX_BODY_BYTES).text == str(MAX_BODY_BYTES)
    refused = page.post("/", content=b"x" * (MAX_BODY_BYTES + 1))
    assert (refused.status_code, refused.text) == (413, "The request has 65,537 bytes; the maximum is 65,536.\n")
    chunked = page.post("/", content=(b"x" * 1024 for _ in range(100)))
    assert "content-length" not in chunked.request.headers
    assert chunked.status_code == 413
    assert page.post("/", content=(b"x" * 1024 for _ in range(10))).text == "10240"


@pytest.mark.parametrize("length", ["-1", "many", "1e3", "²"])
def test_a_length_that_is_no_number_is_refused(length):
    refused = client().post("/", content=(b"x" for _ in range(1)), headers={"content-length": length.encode()})
    assert refused.status_code == 400


@pytest.mark.parametrize(
    "path",
    [
        "/gradio_api/upload",
        "/upload",
        "/gradio_api/proxy=http://169.254.169.254/",
        "/gradio_api/component_server",
        "/gradio_api/stream/x",
        "/gradio_api/vibe-edit",
        "/monitoring",
    ],
)
def test_routes_that_the_page_does_not_use_are_closed(path):
    assert client().post(path).status_code == 404


def test_every_reply_forbids_guessing_its_type():
    for path in ("/", "/gradio_api/upload"):
        assert client().get(path).headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("variables", "sites"),
    [
        ({}, ()),
        ({"SPACE_ID": "someone/tilescope"}, ("https://huggingface.co",)),
        ({"SPACE_ID": "someone/tilescope", "TILESCOPE_FRAMES": "*"}, ()),
        (
            {"SPACE_ID": "someone/tilescope", "TILESCOPE_FRAMES": "https://a.example"},
            ("https://huggingface.co", "https://a.example"),
        ),
        ({"TILESCOPE_FRAMES": "https://a.example, https://b.example"}, ("https://a.example", "https://b.example")),
        ({"TILESCOPE_AUTH": "me:secret"}, ("'self'",)),
    ],
)
def test_only_hugging_face_frames_a_space_and_no_site_a_page_with_a_login(monkeypatch, variables, sites):
    for name in ("SPACE_ID", "TILESCOPE_FRAMES", "TILESCOPE_AUTH"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert framing_sites() == sites


def test_every_reply_names_the_sites_that_may_frame_the_page():
    answer = lambda request: PlainTextResponse("yes")  # noqa: E731
    for frames, said in (((), None), (("https://huggingface.co",), "frame-ancestors 'self' https://huggingface.co")):
        guarded = [Middleware(Guard, hosts=(), frames=frames)]
        page = TestClient(Starlette(routes=[Route("/", answer)], middleware=guarded))
        assert page.get("/").headers.get("content-security-policy") == said


async def echo(request: Request) -> JSONResponse:
    return JSONResponse(await request.json())


def call(name, body, route="call"):
    routes = [Route("/{path:path}", echo, methods=["POST"])]
    defaults = {"coalescing": [None, "compiled", None], 7: [None, "compiled", None]}
    app = Starlette(routes=routes, middleware=[Middleware(Guard, hosts=(), defaults=defaults)])
    return TestClient(app).post(f"/gradio_api/{route}/{name}", content=body)


@pytest.mark.parametrize(
    ("given", "complete"),
    [
        ([], [None, "compiled", None]),
        ([{}, "textbook"], [{}, "textbook", None]),
        ([{}, "textbook", {}, "more"], [{}, "textbook", {}]),
    ],
)
def test_a_call_gets_the_defaults_of_the_arguments_that_it_leaves_out(given, complete):
    assert call("coalescing", json.dumps({"data": given})).json() == {"data": complete}
    for name, route in (("join", "queue"), ("predict", "run")):
        by_number = {"fn_index": 7, "data": given}
        assert call(name, json.dumps(by_number), route).json() == {**by_number, "data": complete}


@pytest.mark.parametrize("body", ['{"data": [{}]}', '{"experiment": {}}', '{"data": 3}', "[1]"])
def test_other_calls_keep_their_arguments(body):
    assert call("unknown", body).json() == json.loads(body)


@pytest.mark.parametrize(
    "argument",
    [
        {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}},
        {"problem": [{"meta": {"_type": "gradio.FileData"}, "url": "http://169.254.169.254/"}]},
    ],
)
def test_an_argument_that_gradio_would_take_for_a_file_is_refused(argument):
    for name in ("coalescing", "unknown"):
        escaped = json.dumps({"data": [argument]}).replace("FileData", "\\u0046ileData")
        for body in (json.dumps({"data": [argument]}), escaped):
            refused = call(name, body)
            assert (refused.status_code, "takes no files" in refused.text) == (400, True)


def test_a_body_too_deep_to_be_searched_for_files_is_refused():
    assert call("coalescing", "[" * 30_000 + "]" * 30_000).status_code == 400


def test_an_argument_of_an_unknown_name_is_refused():
    """Gradio 6.31 raises TypeError for one, out of the route."""

    async def raises(request: Request) -> PlainTextResponse:
        raise TypeError("Parameter `x` is not a valid key-word argument.")

    app = Starlette(routes=[Route("/{path:path}", raises)], middleware=[Middleware(Guard, hosts=())])
    page = TestClient(app)
    refused = page.get("/gradio_api/call/v2/schedule")
    assert (refused.status_code, "Parameter `x` is not" in refused.text) == (400, True)
    with pytest.raises(TypeError):
        page.get("/elsewhere")


def test_closed_routes_stay_closed_below_a_root_path():
    """Starlette serves a path with and without its root path in front, so a proxy may strip it or not."""
    app = Starlette(routes=[Route("/{path:path}", length, methods=["POST"])], middleware=[Middleware(Guard, hosts=())])
    below = TestClient(app, root_path="/tools/x")
    for path in ("/gradio_api/upload", "/upload", "/gradio_api/proxy=http://169.254.169.254/"):
        for prefix in ("", "/tools/x"):
            assert below.post(prefix + path).status_code == 404, prefix + path
    assert below.post("/tools/x/gradio_api/run/predict").status_code == 200


@pytest.mark.parametrize(("length", "status"), [(64, 200), (65, 400), (60_000, 400)])
def test_a_session_hash_over_64_characters_is_refused_wherever_gradio_reads_one(length, status):
    """In a body, also in an encoding and spelling that only a JSON reader knows; in a query; in a path."""
    name = "é" + "x" * (length - 1)
    body = json.dumps({"data": [], "session_hash": name})
    page = client()
    replies = [
        *(
            page.post(f"/gradio_api/{path}", content=body)
            for path in ("run/predict", "api/predict/", "queue/join", "cancel")
        ),
        page.post("/gradio_api/call/schedule", content=body.replace('"session_hash"', '"\\u0073ession_hash"')),
        page.get("/gradio_api/queue/data", params={"session_hash": name}),
        page.get(f"/gradio_api/heartbeat/{name}"),
    ]
    if length < 10_000:
        replies.append(page.post("/run/predict", content=body.encode("utf-16")))
    assert [reply.status_code for reply in replies] == [status] * len(replies)
    if status == 400:
        assert {reply.text for reply in replies} == {
            f"The session hash has {length:,} characters; the maximum is 64.\n"
        }


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"session_hash": 7}', b'["session_hash"]', b"1" * 5000])
def test_a_body_without_a_session_hash_reaches_the_app(body):
    assert client().post("/gradio_api/run/predict", content=body).text == str(len(body))


class App:
    """An ASGI app whose replies wait until a test sets `go`."""

    def __init__(self):
        self.addresses, self.bodies, self.go = [], [], asyncio.Event()

    async def __call__(self, scope, receive, send):
        self.addresses.append(scope["client"][0])
        self.bodies.append((await receive())["body"])
        await self.go.wait()
        self.addresses.remove(scope["client"][0])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})


class Page:
    """A guarded App, and requests to it: (status, body) each."""

    def __init__(self, body_deadline_s=10.0):
        self.app = App()
        self._guard = Guard(self.app, hosts=(), body_deadline_s=body_deadline_s)

    async def request(self, address, path=REDRAW, method="POST", parts=(b"",), is_read=True, root_path=""):
        """Send a request. Its body stays unfinished where the last of its parts is None."""
        left, sent = list(parts), []

        async def receive():
            part = left.pop(0) if left else None
            if part is None:
                await asyncio.Event().wait()
            return {"type": "http.request", "body": part, "more_body": bool(left)}

        async def send(message):
            if not is_read:
                await asyncio.Event().wait()
            sent.append(message)

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "root_path": root_path,
            "query_string": b"",
            "headers": [],
        }
        await self._guard({**scope, "client": (address, 1)}, receive, send)
        return sent[0]["status"], sent[1]["body"]

    def start(self, *arguments, count=1, **options):
        return [asyncio.create_task(self.request(*arguments, **options)) for _ in range(count)]


async def settle():
    for _ in range(20):
        await asyncio.sleep(0)


def test_redraws_of_one_address_take_turns_and_another_address_does_not_wait():
    async def scene():
        page = Page()
        requests = page.start("10.0.0.1", count=20) + page.start("10.0.0.2")
        await settle()
        assert sorted(page.app.addresses) == ["10.0.0.1"] * MAX_RUNNING_REDRAWS + ["10.0.0.2"]
        page.app.go.set()
        assert await asyncio.gather(*requests) == [(200, b"done")] * 21

    asyncio.run(scene())


def test_redraws_below_a_root_path_take_turns():
    async def scene():
        page = Page()
        page.start("10.0.0.1", f"/tools/x{REDRAW}", root_path="/tools/x", count=5)
        await settle()
        assert len(page.app.addresses) == MAX_RUNNING_REDRAWS

    asyncio.run(scene())


def test_too_many_open_redraws_are_refused_until_some_end():
    async def scene():
        page = Page()
        requests = page.start("10.0.0.1", count=MAX_OPEN_REDRAWS + 3)
        await settle()
        page.app.go.set()
        replies = await asyncio.gather(*requests)
        assert [status for status, _ in replies].count(429) == 3
        assert f"{MAX_OPEN_REDRAWS} requests of this address are open".encode() in replies[-1][1]
        assert await page.request("10.0.0.1") == (200, b"done")

    asyncio.run(scene())


def test_queued_events_and_other_routes_take_no_turns():
    async def scene():
        page = Page()
        page.start("10.0.0.1", "/gradio_api/queue/join", count=5)
        page.start("10.0.0.1", "/", "GET", count=5)
        await settle()
        assert len(page.app.addresses) == 10

    asyncio.run(scene())


def test_unfinished_bodies_hold_no_turns_and_end_at_their_deadline():
    async def scene():
        page = Page(body_deadline_s=0.2)
        page.app.go.set()
        slow = page.start("10.0.0.1", parts=(b"{", None), count=MAX_OPEN_REDRAWS + 1)
        await settle()
        assert await page.request("10.0.0.1", parts=(b"{", b"}")) == (200, b"done")
        assert page.app.bodies == [b"{}"]
        late = (408, b"The body did not arrive within 0.2 s.\n")
        assert await asyncio.gather(*slow) == [late] * len(slow)

    asyncio.run(scene())


def test_clients_that_read_no_reply_hold_no_turns():
    async def scene():
        page = Page()
        page.app.go.set()
        page.start("10.0.0.1", is_read=False, count=MAX_OPEN_REDRAWS + 1)
        await settle()
        assert await page.request("10.0.0.1") == (200, b"done")

    asyncio.run(scene())
