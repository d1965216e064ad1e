"""/schedule replies before the compiler does, and says that its occupancy is assumed."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from gradio.context import LocalContext

from kernels.results import Failure
from visualize.views.endpoint import Api
from visualize.views.order.reuse_view import ReusePanel
from visualize.views.order.view import SchedulePanel

PAYLOAD = {"kernel": "matmul.grouped", "gpu": "H200"}


@pytest.fixture
def compiles(page):
    """Compiles that were asked for, none of which ends by itself."""
    asked = []

    def compiler():
        asked.append(Future())
        return asked[-1]

    page.session.compiler = compiler
    return asked


def endpoint_of(page, kind):
    (panel,) = (one for panels in page.panels.values() for one in panels if isinstance(one, kind))
    return panel.endpoints(Api(page.session, page.predictions))[0].function


def run(coroutine):
    # In a thread of its own: where a browser's tests ran before, this one has a running loop already.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result(20)


def test_a_schedule_does_not_wait_for_the_compiler_and_says_so(page, compiles):
    reply = run(endpoint_of(page, SchedulePanel)(PAYLOAD))
    assert (reply["resident_source"], reply["programs"]) == ("assumed", 32)
    assert reply["note"].startswith("Not compiled yet, so one program per SM is assumed. Ask again")
    assert not compiles[0].done(), "the compile goes on, for who asks again"


def test_a_compile_that_goes_on_is_ended_when_its_client_asks_for_another(page, compiles):
    schedule = endpoint_of(page, SchedulePanel)

    async def ask_from(host):
        LocalContext.request.set(SimpleNamespace(client=SimpleNamespace(host=host), session_hash="page"))
        return await schedule(PAYLOAD)

    for host in ("a", "b", "a"):
        run(ask_from(host))
    assert [one.cancelled() for one in compiles] == [True, False, False]


def test_a_schedule_of_what_can_not_be_compiled_says_why(page, compiles):
    async def asked():
        work = asyncio.create_task(endpoint_of(page, SchedulePanel)(PAYLOAD))
        await asyncio.wait([work], timeout=0)
        compiles[0].set_result(Failure("compile", "timeout", "It took too long."))
        return await work

    reply = run(asked())
    assert (reply["resident_source"], reply["note"]) == ("assumed", "It took too long.")


def test_who_leaves_ends_the_compile_that_nobody_else_waits_for(page, compiles):
    async def left():
        work = asyncio.create_task(endpoint_of(page, ReusePanel)(PAYLOAD))
        await asyncio.wait([work], timeout=0)
        work.cancel()
        await asyncio.wait([work])

    run(left())
    assert compiles[0].cancelled()
