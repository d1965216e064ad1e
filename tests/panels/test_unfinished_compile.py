"""/schedule replies before the compiler does, and says that its occupancy is assumed."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from gradio.context import LocalContext

from kernels.results import Failure
from tests.waiting import run_coroutine
from visualize.views.order.view import ReusePanel, SchedulePanel
from visualize.views.panel import Api

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
    (panel,) = (panel for panels in page.panels.values() for panel in panels if isinstance(panel, kind))
    return panel.endpoints(Api(page.session, page.predictions))[0].function


def test_a_schedule_replies_before_the_compiler_and_says_so(page, compiles):
    reply = run_coroutine(endpoint_of(page, SchedulePanel)(PAYLOAD))
    assert (reply["resident_source"], reply["programs"]) == ("assumed", 32)
    assert reply["note"].startswith("Not compiled yet, so one program per SM is assumed. Ask again")
    assert not compiles[0].done(), "the compile continues for the next request"


def test_an_unfinished_compile_ends_when_its_client_requests_another(page, compiles):
    schedule = endpoint_of(page, SchedulePanel)

    async def ask_from(host):
        LocalContext.request.set(SimpleNamespace(client=SimpleNamespace(host=host), session_hash="page"))
        return await schedule(PAYLOAD)

    for host in ("a", "b", "a"):
        run_coroutine(ask_from(host))
    assert [compile_.cancelled() for compile_ in compiles] == [True, False, False]


def test_a_schedule_says_why_its_kernel_cannot_be_compiled(page, compiles):
    async def reply_after_failure():
        work = asyncio.create_task(endpoint_of(page, SchedulePanel)(PAYLOAD))
        await asyncio.wait([work], timeout=0)
        compiles[0].set_result(Failure("compile", "timeout", "It took too long."))
        return await work

    reply = run_coroutine(reply_after_failure())
    assert (reply["resident_source"], reply["note"]) == ("assumed", "It took too long.")


def test_a_client_that_leaves_cancels_its_compile(page, compiles):
    async def leave():
        work = asyncio.create_task(endpoint_of(page, ReusePanel)(PAYLOAD))
        await asyncio.wait([work], timeout=0)
        work.cancel()
        await asyncio.wait([work])

    run_coroutine(leave())
    assert compiles[0].cancelled()
