"""The page's first reply: compressed, with its first picture, and with Plotly announced."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from visualize.views.slots import PLOTLY_JS
from visualize.web.first_reply import FirstReply, first_picture, still

TEXT = "<html><body class='a'>" + "<p>What does my kernel really do?</p>" * 10_000
PICTURE = "<svg>\\1 é</svg>"


async def reply(request: Request) -> PlainTextResponse:
    return PlainTextResponse(TEXT, status_code=401 if "refused" in request.query_params else 200)


@pytest.fixture
def client():
    middleware = [Middleware(FirstReply, picture=PICTURE)]
    return TestClient(Starlette(routes=[Route("/{path:path}", reply)], middleware=middleware))


def test_the_page_is_compressed_for_clients_that_accept_it(client):
    answer = client.get("/?tab=", headers={"accept-encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    assert int(answer.headers["content-length"]) < len(TEXT) / 50
    assert answer.text == TEXT
    assert "content-encoding" not in client.get("/", headers={"accept-encoding": "identity"}).headers


def test_the_page_announces_plotlys_script_and_other_replies_stay_the_same(client):
    assert PLOTLY_JS.is_file()
    assert client.get("/").headers["link"] == f"<gradio_api/file={PLOTLY_JS}>; rel=preload; as=script"
    for path in ("/?refused", "/gradio_api/info", "/theme.css"):
        answer = client.get(path)
        assert answer.text == TEXT
        assert "link" not in answer.headers
        assert "content-encoding" not in answer.headers or path == "/?refused"


@pytest.mark.parametrize("query", ["", "?__theme=dark", "?__theme="])
def test_the_body_begins_with_the_first_picture_if_the_address_has_no_settings(client, query):
    answer = client.get(f"/{query}", headers={"accept-encoding": "identity"})
    assert answer.text == TEXT.replace("<body class='a'>", "<body class='a'>" + PICTURE)
    assert int(answer.headers["content-length"]) == len(answer.content)


@pytest.mark.parametrize("query", ["?kernel=matmul.grouped", "?tab=", "?__theme=dark&step"])
def test_an_address_with_settings_gets_no_first_picture(client, query):
    assert client.get(f"/{query}").text == TEXT


def test_the_first_picture_has_both_orders_of_the_nine_results():
    html = first_picture(None)
    assert 'aria-label="grouped order, GROUP_SIZE 3 beside row-major order"' in html
    assert len(re.findall(r"M\d+ \d+H\d+V\d+H\d+z", html)) == 2 * 3 * 9 * 9, "tiles of C, blocks of A and of B"


# A figure's maps as SVG.

MAPS = {
    "data": [
        {"type": "heatmap", "x": [0, 1, 3, 4], "y": [0, 1, 2], "z": np.ma.masked_equal([[0, 1, 9], [9, 2, 4]], 9)},
        {"type": "heatmap", "x": [0, 2, 4], "y": [0, 2], "z": np.array([[4, 0]]), "xaxis": "x2", "yaxis": "y2"},
    ],
    "layout": {
        "coloraxis": {"cmin": 0, "cmax": 4, "colorscale": [[0, "#000000"], [1, "#c86432"]]},
        "xaxis": {"range": [0, 4], "domain": [0, 0.4]},
        "xaxis2": {"range": [0, 4], "domain": [0.5, 1]},
        "yaxis": {"range": [2, 0]},
        "yaxis2": {"range": [2, 0]},
        "annotations": [
            {"text": "a <b>bold</b> name", "xref": "x2 domain", "x": 0.5, "yref": "y2 domain", "y": 1},
            {"text": "C", "xref": "x domain", "x": 1, "yref": "y domain", "y": 0},
            {"text": "A", "xref": "x", "x": 0, "yref": "y", "y": 0},
        ],
    },
}


def parts():
    return ElementTree.fromstring(f"<figure>{still(MAPS)}</figure>")


def cells():
    """(left, top, right, bottom) → colour."""
    found = {}
    for path in parts().iter("path"):
        for corners in re.findall(r"M(\d+) (\d+)H(\d+)V(\d+)H\d+z", path.attrib["d"]):
            found[tuple(map(int, corners))] = path.attrib["fill"]
    return found


def test_each_cell_that_is_not_masked_lies_between_its_edges_and_has_the_colour_of_its_value():
    assert cells() == {
        (0, 0, 100, 500): "rgb(0, 0, 0)",
        (100, 0, 300, 500): "rgb(50, 25, 12)",
        (100, 500, 300, 1000): "rgb(100, 50, 25)",
        (300, 500, 400, 1000): "rgb(200, 100, 50)",
        (500, 0, 750, 1000): "rgb(200, 100, 50)",
        (750, 0, 1000, 1000): "rgb(0, 0, 0)",
    }


def test_a_title_stands_over_its_map_and_is_text():
    (title,) = parts().iter("b")
    assert (title.text, title.attrib["style"]) == ("a <b>bold</b> name", "left: 50.0%; width: 50.0%")
