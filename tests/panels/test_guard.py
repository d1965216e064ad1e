"""What the page's server takes: from whom, how much, and where."""

from __future__ import annotations

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from visualize.page import guard
from visualize.page.guard import LARGEST_BODY, Guard, allowed_hosts, framing_sites


async def length(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(len(await request.body())))


def client(listening_on="127.0.0.1", host="127.0.0.1:7860"):
    routes = [Route("/{path:path}", length, methods=["GET", "POST"])]
    app = Starlette(routes=routes, middleware=[Middleware(Guard, hosts=allowed_hosts(listening_on))])
    return TestClient(app, base_url=f"http://{host}")


@pytest.mark.parametrize("host", ["127.0.0.1:7860", "localhost", "LOCALHOST:7860", "[::1]:7860"])
def test_a_local_page_is_asked_for_by_this_machines_names(host):
    assert client(host=host).get("/").status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:7860", "localhost.evil.example", "10.0.0.1"])
def test_another_name_that_leads_to_a_local_page_is_refused(host):
    refused = client(host=host).get("/")
    assert refused.status_code == 400
    assert f"The page is not served as {host!r}" in refused.text


def test_a_page_for_others_has_any_name_unless_names_are_given(monkeypatch):
    assert client("0.0.0.0", "any.example").get("/").status_code == 200
    monkeypatch.setenv(guard.HOSTS, "Tilescope.example, other.example")
    assert client("0.0.0.0", "tilescope.example").get("/").status_code == 200
    assert client("0.0.0.0", "any.example").get("/").status_code == 400
    assert client("127.0.0.1", "other.example").get("/").status_code == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1.evil.example", "file://"])
def test_another_sites_page_may_not_ask_a_local_one(origin):
    assert client().post("/", headers={"origin": origin}).status_code == 403
    assert client().post("/", headers={"origin": "http://localhost:1234"}).status_code == 200
    assert client("0.0.0.0", "any.example").post("/", headers={"origin": origin}).status_code == 200


def test_a_body_that_is_too_large_is_refused_however_it_is_sent():
    ours = client()
    assert ours.post("/", content=b"x" * LARGEST_BODY).text == str(LARGEST_BODY)
    refused = ours.post("/", content=b"x" * (LARGEST_BODY + 1))
    assert (refused.status_code, refused.text) == (413, "The request has 65,537 bytes; at most 65,536 are taken.\n")
    chunked = ours.post("/", content=(b"x" * 1024 for _ in range(100)))
    assert "content-length" not in chunked.request.headers
    assert chunked.status_code == 413
    assert ours.post("/", content=(b"x" * 1024 for _ in range(10))).text == "10240"


@pytest.mark.parametrize("length", ["-1", "many", "1e3", "²"])
def test_a_length_that_is_none_is_refused(length):
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
def test_what_the_page_has_no_use_for_is_closed(path):
    assert client().post(path).status_code == 404


def test_no_answer_is_taken_for_another_type():
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
def test_a_space_is_framed_by_its_hub_alone_and_a_page_with_a_login_by_none(monkeypatch, variables, sites):
    for name in ("SPACE_ID", "TILESCOPE_FRAMES", "TILESCOPE_AUTH"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert framing_sites() == sites


def test_the_sites_that_may_frame_it_are_in_every_answer():
    answer = lambda request: PlainTextResponse("yes")  # noqa: E731
    for frames, said in (((), None), (("https://huggingface.co",), "frame-ancestors 'self' https://huggingface.co")):
        guarded = [Middleware(Guard, hosts=(), frames=frames)]
        ours = TestClient(Starlette(routes=[Route("/", answer)], middleware=guarded))
        assert ours.get("/").headers.get("content-security-policy") == said


def test_an_argument_of_another_name_is_refused_and_leaves_no_trace():
    """Gradio 6.31 raises TypeError for one, out of the route."""

    async def raises(request: Request) -> PlainTextResponse:
        raise TypeError("Parameter `x` is not a valid key-word argument.")

    app = Starlette(routes=[Route("/{path:path}", raises)], middleware=[Middleware(Guard, hosts=())])
    ours = TestClient(app)
    refused = ours.get("/gradio_api/call/v2/schedule")
    assert (refused.status_code, "Parameter `x` is not" in refused.text) == (400, True)
    with pytest.raises(TypeError):
        ours.get("/elsewhere")


def test_closed_routes_stay_closed_below_a_root_path():
    """Starlette serves a path with and without its root path in front, so a proxy may strip it or not."""
    app = Starlette(routes=[Route("/{path:path}", length, methods=["POST"])], middleware=[Middleware(Guard, hosts=())])
    below = TestClient(app, root_path="/tools/x")
    for path in ("/gradio_api/upload", "/upload", "/gradio_api/proxy=http://169.254.169.254/"):
        for prefix in ("", "/tools/x"):
            assert below.post(prefix + path).status_code == 404, prefix + path
    assert below.post("/tools/x/gradio_api/run/predict").status_code == 200
