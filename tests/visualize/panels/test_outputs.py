"""The outputs of the page: figures, the first reply with its picture, scripts, notebooks, traces and QR codes."""

import re
from pathlib import Path

import numpy as np
import plotly
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from tests.messages import decode, opened
from visualize.views.slots import plot_value
from visualize.web.assets import PLOTLY_JS
from visualize.web.guard import Guard
from visualize.web.page import FirstReply


def sent(**trace):
    """Return a heatmap's arrays as the browser decodes them."""
    return decode(plot_value({"data": [trace], "layout": {}}, about="x"))["data"][0]


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint32])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (4, 3, 2), (0, 3)])
def test_integers_arrive_unchanged(dtype, shape):
    bounds = np.iinfo(dtype)
    values = np.random.default_rng(1).integers(
        bounds.min, bounds.max, shape, dtype=dtype, endpoint=True
    )
    assert np.array_equal(sent(customdata=values)["customdata"], values)


def test_floats_arrive_unchanged_and_masked_elements_as_nan():
    values = np.array([[1.5, np.nan], [np.inf, -2]], dtype=np.float32)
    assert np.array_equal(sent(z=values)["z"], values, equal_nan=True)
    masked = np.ma.masked_equal(np.array([[7, 0], [3, 5]], dtype=np.uint16), 0)
    assert np.array_equal(sent(z=masked)["z"], [[7, np.nan], [3, 5]], equal_nan=True)


def test_integers_of_more_than_32_bits_are_refused():
    with pytest.raises(ValueError, match="must fit in 32 bits, not 5 to 4294967296"):
        sent(z=np.array([[1 << 32, 5]]))


def test_a_figures_meta_arrives_and_zoom_stays_while_the_revision_does():
    figure = {"data": [{"z": np.zeros((2, 2), dtype=np.uint8)}], "layout": {}}
    meta = {
        "places": np.array([7, 3, 5], dtype=np.uint32),
        "words": np.array(["<b>ü</b>", ""]),
        "name": "wave",
    }
    same, again, other = (
        decode(plot_value(figure, key, meta, about="x"))["layout"] for key in ("a", "a", "b")
    )
    assert same["meta"] == {
        "places": pytest.approx([7, 3, 5]),
        "words": ["<b>ü</b>", ""],
        "name": "wave",
    }
    assert same["uirevision"] == again["uirevision"] != other["uirevision"]


def test_the_bundle_is_of_the_version_that_plotly_py_writes_for():
    bundles = PLOTLY_JS, Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    ours, theirs = (
        re.search(r"plotly\.js .*?v([\d.]+)", each.read_text()[:200])[1] for each in bundles
    )
    assert ours == theirs
    assert "MIT" in (PLOTLY_JS.parent / "LICENSE").read_text()


TEXT = "<html><body class='a'>" + "<p>What does my kernel really do?</p>" * 10_000
PICTURE = "<svg>\\1 é</svg>"


async def reply(request):
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
    plain = client.get("/", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers


def test_other_replies_stay_the_same(client):
    for path in ("/?refused", "/favicon.ico", "/theme.css"):
        answer = client.get(path)
        assert answer.text == TEXT
        assert "content-encoding" not in answer.headers or path == "/?refused"


def test_the_page_and_its_lists_are_built_once_per_host_unless_there_is_a_login():
    built = []
    cached = ("/", "/config", "/gradio_api/info")

    async def build(request):
        built.append(request.headers["host"])
        return PlainTextResponse(request.headers["host"])

    def visit(is_cached):
        built.clear()
        middleware = [Middleware(Guard, hosts=()), Middleware(FirstReply, is_cached=is_cached)]
        page = TestClient(Starlette(routes=[Route("/{path:path}", build)], middleware=middleware))
        for host in ("a.example", "a.example", "b.example"):
            for path in (*cached, "/favicon.ico", "/?page=x", "/gradio_api/info?x=1"):
                answer = page.get(path, headers={"host": host})
                assert answer.text == host
                assert answer.headers.get_list("x-content-type-options") == ["nosniff"]
        return len(built)

    assert visit(is_cached=True) == 2 * 3 + 3 * 3
    assert visit(is_cached=False) == 3 * 6


def test_the_body_begins_with_the_first_picture_if_the_address_has_no_settings(client):
    for query in ("", "?__theme=dark", "?__theme="):
        answer = client.get(f"/{query}", headers={"accept-encoding": "identity"})
        assert answer.text == TEXT.replace("<body class='a'>", "<body class='a'>" + PICTURE)
        assert int(answer.headers["content-length"]) == len(answer.content)
    for query in ("?kernel=matmul.grouped", "?tab=", "?__theme=dark&step"):
        assert client.get(f"/{query}").text == TEXT


def test_every_figure_says_what_it_is_of(page):
    """The experiment, GPU and mark appear below a saved picture."""

    def captions(tab):
        state = opened(f"matmul.grouped M=2048 N=2048 K=2048 gpu=H200 tab={tab}")
        values = page.draw(state)[0].values()
        # Base64 of zlib's header
        return [decode(value)["about"] for value in values if value.startswith("eN")]

    shape = r"(M 2048, N 2048, K 2048, float16, NN · BLOCK_M|2048 × 2048 × 2048, float16)"
    for tab, least in {"program-order": 1, "dram-reads": 2, "requests": 1, "sweep": 1}.items():
        assert len(captions(tab)) >= least
        for caption in captions(tab):
            assert re.match(rf"matmul\.\w+ · {shape}.* · H200 · ", caption), tab
    (scoreboard,) = captions("scoreboard")  # of all recorded launches, whatever is set
    assert re.fullmatch(
        r"Tilescope's scoreboard · .* launches · H100 and H200 · predicted and recorded", scoreboard
    )
