"""Long predictions run in another process, once for all clients, with the same result; short ones do not."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import urllib.parse

import pytest

from kernels import discover
from kernels.gpus import GPUS
from kernels.knobs import ConfigError
from kernels.measuring.fair_queue import INTERNAL
from kernels.measuring.pool import DEADLINES_S
from kernels.results import Failure
from tests.panels.sent import opened, request, settings_of, slots_of, updates
from tests.waiting import run_coroutine, until
from visualize.predict.reuse import reuse_seconds
from visualize.tours import tours
from visualize.views import panel
from visualize.views.order.view import reuse_json
from visualize.views.panel import Api
from visualize.views.prediction_process import NEAR_S
from visualize.views.tabs import SETTINGS
from visualize.web.redraw import draw_in_process, draw_view

pytestmark = pytest.mark.xdist_group("predictions")

# Takes a few seconds of CPU time. Nothing here compiles for this GPU, so the kernel stays uncompiled.
FAR = {"kernel": "matmul.grouped", "M": 16384, "N": 16384, "K": 4096, "BLOCK_M": 32, "BLOCK_N": 32, "tab": "reuse"}
NEAR = {"kernel": "matmul.grouped", "M": 512, "N": 512, "K": 512, "tab": "reuse"}
# Long where two of them are drawn side by side.
TWICE_LONG = {"kernel": "matmul.grouped", "M": 1024, "N": 1024, "K": 512, "BLOCK_M": 16, "BLOCK_N": 16}
TOO_MANY = {**FAR, "kernel": "matmul.split_k_atomic", "BLOCK_M": 16, "BLOCK_N": 16, "SPLIT_K": 16}


def test_a_quick_prediction_is_drawn_immediately_and_starts_no_process(page):
    for tab in SETTINGS.tabs:
        answer = slots_of(page.on_message(request(), settings_of({**NEAR, "tab": tab})))
        assert "Predicting" not in str(answer)
    assert len(page.predictions.pool) == 0
    assert not page.predictions.pool.has_started


def test_a_process_starts_soon_after_a_page_was_opened(shared_page):
    predictions = shared_page.predictions
    assert not predictions.pool.has_started
    predictions.warm_up_after_s = 0.0
    for _ in range(3):
        shared_page.on_message(request(), json.dumps({"open": ""}))
    until(lambda: predictions.pool.has_started)


def test_a_long_prediction_follows_in_the_stream(page):
    update = json.loads(page.on_message(request(), settings_of(FAR)))
    assert "Predicting (about" in update["slots"]["reuse-claim"]
    assert update["has_more"]
    assert "BLOCK_M=32" in update["slots"]["link"]


def test_another_process_draws_and_replies_the_same_for_a_pinned_experiment_too(shared_page):
    page = shared_page
    pinned = urllib.parse.urlencode({**TWICE_LONG, "M": 1040})
    current = opened({**TWICE_LONG, "with": pinned, "gpu": "H200", "tab": "reuse"})
    here = draw_view(page.panels["reuse"], *page.take_snapshots(current))
    api = Api(page.session, page.predictions)
    failure = Failure("compile", "timeout", "It took too long.")
    snapshot = api.take_snapshot(current.experiment, failure)

    async def predict():
        submit = functools.partial(page.predictions.submit, client=INTERNAL, estimate_s=1.0)
        drawn = await asyncio.wrap_future(submit(draw_in_process, *page.take_snapshots(current)))
        there = await asyncio.wrap_future(submit(panel.build_reply, snapshot, reuse_json))
        process = await asyncio.wrap_future(submit(process_of, snapshot))
        return drawn, there, process

    drawn, there, process = run_coroutine(predict())
    assert drawn == here
    assert panel.to_json(there) == panel.to_json(panel.build_reply(snapshot, reuse_json))
    assert process != os.getpid()


def process_of(snapshot):
    return os.getpid()


def test_another_process_refuses_with_the_same_sentence(shared_page):
    """The pinned experiment makes the prediction long."""
    pinned = {name: value for name, value in FAR.items() if name != "tab"}
    flat = {**TOO_MANY, "with": urllib.parse.urlencode(pinned)}
    shared_page.on_message(request(), settings_of(flat))
    refused = updates(shared_page.on_stream)[-1]
    assert "16,777,216 tiles are too many to schedule; at most 2,097,152 are allowed." in refused["problems"]


def test_a_prediction_of_a_page_that_changed_is_cancelled(shared_page):
    async def superseded():
        shared_page.on_message(request(), settings_of(FAR))
        stream = shared_page.on_stream(request())
        waiting = asyncio.create_task(anext(stream, None))
        await asyncio.sleep(0)
        shared_page.on_message(request(), settings_of(NEAR))
        return await waiting

    assert run_coroutine(superseded()) is None


def test_equal_predictions_are_made_once_for_all_clients(page):
    snapshots = [page.take_snapshots(opened(fields))[0] for fields in (FAR, FAR, FAR, NEAR)]
    futures = [page.predictions.submit(process_of, each, client=INTERNAL, estimate_s=1.0) for each in snapshots]
    assert len(page.predictions.pool) == 2
    for future in futures:
        future.cancel()


def offered_states():
    """Each state that the page itself offers."""
    for kernel in discover().values():
        yield {"kernel": kernel.id}
        yield from ({"kernel": kernel.id, **preset.problem, **preset.config} for preset in kernel.presets)
    yield from (stop.fields for tour in tours().values() for stop in tour.stops)


def test_few_states_that_the_page_offers_take_long():
    states = [SETTINGS.state(fields, None) for fields in offered_states()]
    seconds = [reuse_seconds(one.kernel, one.launch, 1) for one in states]
    assert max(seconds) < 3
    assert sum(one > NEAR_S for one in seconds) < len(seconds) / 10


@pytest.mark.parametrize("gpu", GPUS)
def test_the_longest_prediction_ends_before_its_deadline(gpu):
    longest = 0.0
    for kernel in discover().values():
        for side in (4096, 8192, 12777, 16384):
            for tile in (16, 32, 64):
                flat = {"kernel": kernel.id, "M": side, "N": 16384, "gpu": gpu, "BLOCK_M": tile, "BLOCK_N": tile}
                try:
                    state = SETTINGS.state(flat, None)
                except ConfigError:
                    continue
                longest = max(longest, reuse_seconds(state.kernel, state.launch, 1))
    assert 0.1 < longest < DEADLINES_S["model"] / 2
