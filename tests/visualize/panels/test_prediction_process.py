"""Long predictions run in another process, once for all clients; /schedule and /reuse do not wait for long compiles."""

import asyncio
import contextlib
import itertools
import os
import urllib.parse
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace

import orjson
import pytest
from gradio.context import LocalContext

from tests.experiments import fields
from tests.messages import opened, settings_of, updates
from tests.waiting import until
from tilescope.declare.discovery import discover
from tilescope.declare.gpus import GPUS
from tilescope.declare.knobs import ConfigError
from tilescope.measure.fair_queue import INTERNAL
from tilescope.measure.pool import DEADLINES_S
from tilescope.results import Failure
from visualize.predict.reuse import reuse_seconds
from visualize.views import panel
from visualize.views.order.view import DramReadsPanel, ProgramOrderPanel, reuse_json
from visualize.views.panel import Api
from visualize.views.slots import WATCH
from visualize.views.tabs import TITLES
from visualize.web.redraw import draw_in_process, draw_view

pytestmark = pytest.mark.xdist_group("predictions")

# Takes a few seconds of CPU time. Nothing here compiles for this GPU, so the kernel stays uncompiled.
FAR = "matmul.grouped M=16384 N=16384 K=4096 BLOCK_M=32 BLOCK_N=32 tab=dram-reads"
NEAR = "matmul.grouped M=512 N=512 K=512 tab=dram-reads"
A_MILLION_TILES = "matmul.grid_2d M=16384 N=16384 BLOCK_M=16 BLOCK_N=16 tab=program-order"
TOO_MANY = f"{FAR} matmul.split_k_atomic BLOCK_M=16 BLOCK_N=16 SPLIT_K=16"


def test_a_quick_prediction_is_drawn_immediately_and_starts_no_process(page):
    for tab in TITLES:
        answer = page.change(settings_of(f"{NEAR} tab={tab}"))
        assert "Predicting (about" not in str(answer)
    assert len(page.predictions.pool) == 0
    assert not page.predictions.pool.has_ready_worker


def test_a_process_starts_soon_after_a_page_was_opened(shared_page):
    predictions = shared_page.predictions
    assert not predictions.pool.has_ready_worker
    predictions.warm_up_after_s = 0.0
    for _ in range(3):
        shared_page.change({"open": ""})
    until(lambda: predictions.pool.has_ready_worker)


@pytest.mark.parametrize("flat", [FAR, A_MILLION_TILES])
def test_a_long_prediction_follows_in_the_stream(page, flat):
    slots = page.change(settings_of(flat))
    state = opened(flat)
    assert "Predicting (about" in slots[f"{state.view.tab}-headline"]
    assert f"{state.view.tab}-plot" not in slots
    assert slots[WATCH]
    assert "M=16384" in slots["link"]


async def test_another_process_draws_and_replies_the_same_for_a_pinned_experiment_too(shared_page):
    page = shared_page
    pinned = urllib.parse.urlencode(fields("matmul.grouped M=576"))
    current = opened(f"{NEAR} gpu=H200 with={pinned}")
    failure = Failure("compile", "timeout", "It took too long.")
    snapshot = Api(page.session, page.predictions).take_snapshot(current.experiment, failure)

    def predict(*work):
        future = page.predictions.submit(*work, client=INTERNAL, estimate_s=1.0)
        return asyncio.wrap_future(future)

    snapshots = page.take_snapshots(current)
    drawn = draw_view(page.panels["dram-reads"], *snapshots)
    assert await predict(draw_in_process, *snapshots) == drawn
    there = await predict(panel.build_reply, snapshot, reuse_json)
    assert there == panel.build_reply(snapshot, reuse_json)
    assert await predict(process_of, snapshot) != os.getpid()


def process_of(snapshot):
    return os.getpid()


def test_another_process_refuses_with_the_same_sentence(shared_page):
    """The pinned experiment makes the prediction long."""
    pinned = urllib.parse.urlencode(fields(FAR.removesuffix(" tab=dram-reads")))
    message = settings_of(f"{TOO_MANY} with={pinned}", watch="enabled")
    refused = updates(shared_page.stream(message))[-1]
    assert (
        "16,777,216 tiles are too many to schedule; at most 2,097,152 are allowed."
        in refused["problems"]
    )


def test_equal_predictions_are_made_once_for_all_clients(page):
    snapshots = [page.take_snapshots(opened(text))[0] for text in (FAR, FAR, FAR, NEAR)]
    futures = [
        page.predictions.submit(process_of, each, client=INTERNAL, estimate_s=1.0)
        for each in snapshots
    ]
    assert len(page.predictions.pool) == 2
    for future in futures:
        future.cancel()


@pytest.mark.parametrize("gpu", GPUS)
def test_the_longest_prediction_ends_before_its_deadline(gpu):
    longest = 0.0
    sides = itertools.product(discover(), (4096, 8192, 12777, 16384), (16, 32, 64))
    for kernel, side, tile in sides:
        with contextlib.suppress(ConfigError):
            state = opened(f"{kernel} M={side} N=16384 gpu={gpu} BLOCK_M={tile} BLOCK_N={tile}")
            longest = max(longest, reuse_seconds(state.kernel, state.launch, 1))
    assert 0.1 < longest < DEADLINES_S["model"] / 2


PAYLOAD = {"kernel": "matmul.grouped", "gpu": "H200"}


@pytest.fixture
def compiles(page):
    """Return the futures of requested compiles, which end when a test sets their result."""
    requested = []

    def compiler():
        requested.append(Future())
        return requested[-1]

    page.session.compiler = compiler
    return requested


def endpoint_of(page, kind):
    (panel,) = (
        panel for panels in page.panels.values() for panel in panels if isinstance(panel, kind)
    )
    (endpoint,) = panel.endpoints
    return partial(endpoint.function, Api(page.session, page.predictions))


async def test_a_schedule_replies_before_the_compiler_and_says_so(page, compiles):
    reply = orjson.loads(await endpoint_of(page, ProgramOrderPanel)(PAYLOAD))
    assert reply["resident_source"] == "assumed"
    assert reply["programs"] == 32
    assert reply["note"].startswith(
        "Not compiled yet, so one program per SM is assumed. Call again"
    )
    assert not compiles[0].done(), "the compile continues for the next request"


async def test_an_unfinished_compile_ends_when_its_client_requests_another(page, compiles):
    ask = endpoint_of(page, ProgramOrderPanel)
    for host in ("a", "b", "a"):
        request = SimpleNamespace(client=SimpleNamespace(host=host), session_hash="page")
        LocalContext.request.set(request)
        await ask(PAYLOAD)
    assert [compile_.cancelled() for compile_ in compiles] == [True, False, False]


async def test_a_schedule_says_why_its_kernel_cannot_be_compiled(page, compiles):
    work = asyncio.create_task(endpoint_of(page, ProgramOrderPanel)(PAYLOAD))
    await asyncio.wait([work], timeout=0)
    compiles[0].set_result(Failure("compile", "timeout", "It took too long."))
    reply = orjson.loads(await work)
    assert reply["resident_source"] == "assumed"
    assert reply["note"] == "It took too long."


async def test_a_client_that_leaves_cancels_its_compile(page, compiles):
    work = asyncio.create_task(endpoint_of(page, DramReadsPanel)(PAYLOAD))
    await asyncio.wait([work], timeout=0)
    work.cancel()
    await asyncio.wait([work])
    assert compiles[0].cancelled()
