"""The reply that opens the page: with its first picture, compressed, with Plotly announced; no other is touched."""

from __future__ import annotations

import re

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from visualize.views.plot import PLOTLY_JS
from visualize.web.first_reply import FirstReply, first_picture

TEXT = "<html><body class='a'>" + "<p>What does my kernel really do?</p>" * 10_000
PICTURE = "<svg>\\1 é</svg>"


async def reply(request: Request) -> PlainTextResponse:
    return PlainTextResponse(TEXT, status_code=401 if "refused" in request.query_params else 200)


@pytest.fixture
def client():
    return TestClient(Starlette(routes=[Route("/{path:path}", reply)], middleware=[Middleware(FirstReply)]))


def test_the_page_is_sent_compressed_to_who_takes_it(client):
    answer = client.get("/", headers={"accept-encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    assert int(answer.headers["content-length"]) < len(TEXT) / 50
    assert answer.text == TEXT
    plain = client.get("/", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.text == TEXT


def test_the_page_announces_the_script_that_its_plots_load(client):
    assert client.get("/").headers["link"] == f"<gradio_api/file={PLOTLY_JS}>; rel=preload; as=script"
    assert PLOTLY_JS.is_file()


def test_a_refusal_announces_nothing_and_other_replies_go_as_they_are(client):
    assert "link" not in client.get("/?refused").headers
    other = client.get("/gradio_api/info", headers={"accept-encoding": "gzip"})
    assert not {"link", "content-encoding"} & set(other.headers)
    assert other.text == TEXT


@pytest.mark.parametrize("query", ["", "?__theme=dark", "?__theme="])
def test_the_first_picture_begins_the_body_where_the_address_says_nothing(query):
    answer = with_picture().get(f"/{query}", headers={"accept-encoding": "identity"})
    assert answer.text == TEXT.replace("<body class='a'>", "<body class='a'>" + PICTURE)
    assert int(answer.headers["content-length"]) == len(answer.content)


@pytest.mark.parametrize("path", ["/?kernel=matmul.grouped", "/?tab=", "/?__theme=dark&step", "/theme.css"])
def test_the_first_picture_is_in_no_other_reply(path):
    assert with_picture().get(path).text == TEXT


def test_the_first_picture_is_both_orders_of_the_nine_results():
    html = first_picture(None)
    assert 'aria-label="grouped order, GROUP_SIZE 3 beside row-major order"' in html
    assert len(re.findall(r"M\d+ \d+H\d+V\d+H\d+z", html)) == 2 * 3 * 9 * 9, "tiles of C, blocks of A and of B"


def with_picture():
    middleware = [Middleware(FirstReply, picture=PICTURE)]
    return TestClient(Starlette(routes=[Route("/{path:path}", reply)], middleware=middleware))
