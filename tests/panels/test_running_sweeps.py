"""The running sweep of a session: one at a time, shared by pages and calls of /sweep, and resumed from the store."""

from __future__ import annotations

import asyncio
import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernels.gpus import GPUS
from kernels.knobs import ConfigError
from kernels.results import Strategy
from tests.figure_values import decode
from tests.kernels.stores import again
from tests.panels.sent import request, settings_of, slots_of
from tests.panels.sweeps_made_up import FEW, MANY, NOTHING, Session, finished, space_of
from tests.sweep.fakes import predicting
from tests.waiting import until
from visualize.views.panel import Api, reply_safely
from visualize.views.tune import view
from visualize.views.tune.shared_sweeps import SharedSweeps

GRID, SIZES = Strategy("grid"), (512, 640)
VARY = {"BLOCK_M": [32, 64], "BLOCK_N": [32, 64], "num_warps": [4, 8]}
SENT = {"kernel": "matmul.grouped", "gpu": "H200", "tab": "sweep", "sweep_vary": FEW}


def test_one_sweep_runs_at_a_time_and_another_one_is_refused_in_a_sentence(started):
    sweeps, session = started.sweeps(), Session()
    started.go.clear()
    running = sweeps.start(session, [space_of()], GRID)
    assert sweeps.start(session, [space_of()], GRID) is running
    for others in (([space_of(MANY)], GRID), ([space_of()], Strategy("random"))):
        with pytest.raises(ConfigError, match=r"A sweep of 8 configs of matmul\.grouped runs on this machine"):
            sweeps.start(session, *others)
    for end in session.ends:  # the session is closed
        end()
    assert finished(sweeps, space_of()).ended == "cancelled"


def test_a_sweep_without_watchers_is_cancelled(started):
    sweeps, spaces = started.sweeps(unwatched_s=0), [space_of(M=size) for size in SIZES]
    with sweeps.watched("a page"):
        sweeps.start(Session(), [spaces[0]], GRID)
        assert finished(sweeps, spaces[0]).ended == "complete"
        started.go.clear()
        sweeps.start(Session(), [spaces[1]], GRID)
    assert finished(sweeps, spaces[1]).ended == "cancelled"


def test_leaving_a_search_of_two_sizes_cancels_the_second_one(started):
    def hold_the_second(*arguments):
        if started.devices:
            started.go.clear()
        return started.sweep_here(*arguments)

    sweeps, spaces = SharedSweeps(predicting(), hold_the_second), [space_of(M=size) for size in SIZES]
    sweeps.start(Session(), spaces, GRID, "page")
    until(lambda: sweeps.running(spaces[1], GPUS["H200"]) is not None)
    assert sweeps.leave("page") == 0
    assert finished(sweeps, spaces[1]).ended == "cancelled"


def test_the_latest_eight_sweeps_stay_in_memory(started):
    sweeps, spaces = started.sweeps(), [space_of(M=size) for size in range(64, 74)]
    for space in spaces:
        sweeps.start(Session(), [space], GRID)
        finished(sweeps, space)
    assert [sweeps.find(NOTHING, space, GPUS["H200"]) is not None for space in spaces] == [False] * 2 + [True] * 8


def test_a_sweep_comes_back_after_a_restart_and_resumes_under_its_name(started, store):
    before, space, session = started.sweeps(), space_of(), Session(store)

    def sweep(sweeps, from_scratch=False):
        sweeps.start(session, [space], GRID, from_scratch=from_scratch)
        return finished(sweeps, space, store=store)

    rows = sweep(before).rows
    assert before.find(store, space, GPUS["H200"]).source == "measured"
    later = started.sweeps()
    recorded = later.find(again(store), space, GPUS["H200"])
    assert (recorded.rows, recorded.source) == (rows, "recorded")
    assert later.find(store, space, GPUS["H200"]) is later.find(store, space, GPUS["H200"]), "it is read once"
    sweep(later)
    assert len(store.sweeps(5)) == 1
    sweep(later, from_scratch=True)
    assert len(store.sweeps(5)) == 2
    assert started.done == [(), rows, ()]


def test_a_sweep_that_another_process_stored_is_found(started, store):
    sweeps, space = started.sweeps(), space_of()
    sweeps.start(Session(store), [space], GRID)
    mine = finished(sweeps, space, store=store)
    started.sweeps().start(Session(again(store)), [space], Strategy("random", seed=1), from_scratch=True).result(30)
    theirs = sweeps.find(store, space, GPUS["H200"])
    assert (mine.strategy.name, theirs.strategy.name) == ("grid", "random")


# /sweep


async def call(panel, experiment=None, vary=VARY, **arguments):
    """Return the reply of /sweep, on made-up devices."""
    (endpoint,) = panel.endpoints(Api(Session()))
    function = reply_safely(endpoint.function)
    return await function(experiment or {"kernel": "matmul.grouped", "gpu": "H200"}, vary=vary, **arguments)


def test_the_endpoint_replies_with_every_config_the_best_first(panel):
    vary = {"BLOCK_M": [32, 64], "num_warps": [4, 8]}
    reply = asyncio.run(call(panel, vary=vary, strategy="grid"))
    assert [sorted(row["config"]) for row in reply["rows"]] == [["BLOCK_M", "num_warps"]] * 4
    assert reply["best"]["config"]["BLOCK_M"] == reply["rows"][0]["config"]["BLOCK_M"] == 64
    assert f"num_warps={reply['best']['config']['num_warps']}" in reply["triton_config"]
    assert (reply["ended"], reply["vary"]) == ("complete", vary)
    assert reply["experiment"]["gpu"] == reply["gpu"] == "H200"
    json.dumps(reply)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"vary": {"BLOCK_M": [16, 32, 64, 128], "GROUP_SIZE": list(range(1, 52))}},
            "204 configs are asked for; /sweep",
        ),
        ({"vary": {"BLOCK_M": 64}}, "BLOCK_M must be a list of values to vary (got 64)."),
        ({"vary": [1]}, "vary must be a JSON object of lists"),
        ({"vary": {"nonsense": [1]}}, "has no field 'nonsense'"),
        ({"strategy": "best"}, "strategy must be guided, grid or random (got 'best')."),
        ({"budget": -1}, "budget must be a whole number from 0 to 4096 (got -1)."),
        ({"experiment": {"kernel": "x"}}, "kernel must be "),
    ],
)
def test_an_argument_that_the_endpoint_refuses_starts_nothing(panel, started, arguments, message):
    assert message in asyncio.run(call(panel, **arguments))["failure"]["message"]
    assert started.devices == []


@pytest.mark.parametrize(("is_watched", "ended"), [(False, "cancelled"), (True, "running")])
def test_a_call_that_takes_too_long_replies_with_the_rows_so_far(panel, started, is_watched, ended):
    panel.max_call_s = 0.1
    started.go.clear()
    with panel.sweeps.watched("a page") if is_watched else nullcontext():
        reply = asyncio.run(call(panel))
        assert (reply["ended"], len(reply["rows"])) == (ended, 8)
        assert started.devices[0].is_cancelled != is_watched


def test_the_document_names_the_bounds_of_a_call():
    document = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    assert f"A call takes at most {view.MAX_CONFIGS_PER_CALL} configs" in document
    assert f"{view.MAX_CALL_S / 60:.0f} minutes" in document


# Open pages.


@pytest.fixture
def page(page, started):
    """A page whose sweeps run on made-up devices, and which draws them often."""
    (panel,) = page.panels["sweep"]
    panel.sweeps, page.live_s = started.sweeps(), 0.01
    return page


async def press(page, button, name="page"):
    """Press a button, by its DOM id, on the open page of that name, and return the updates' slots."""
    updates = page.on_action(SimpleNamespace(session_hash=name), settings_of(SENT, action=button))
    return [slots_of(update) async for update in updates]


async def watch(page, name="page"):
    """Yield the slots that a page gets while a sweep is running."""
    request_of_page = SimpleNamespace(session_hash=name)
    page.on_message(request_of_page, settings_of(SENT))
    async for update in page.on_stream(request_of_page):
        yield slots_of(update)


def test_a_page_draws_a_sweep_until_its_end_or_until_the_page_changes(page, started):
    async def session():
        started.go.clear()
        await press(page, "sweep-start")
        older = watch(page)
        assert "of 8 configs done" in (await anext(older))["sweep-progress"]
        newer, other = watch(page), watch(page, "another page")
        await anext(newer)
        assert [slots async for slots in older] == []
        await anext(other)
        page.on_unload(request())
        assert [slots async for slots in newer] == []
        started.go.set()
        return [slots async for slots in other]

    *_, last = asyncio.run(session())
    assert "All configs were tried." in last["sweep-claim"]
    assert decode(last["sweep-plot"])["data"]
    assert "Click a point" in last["sweep-progress"]


def test_a_page_that_cancels_leaves_and_the_last_client_to_leave_ends_the_sweep(page, started):
    async def cancel(name):
        return (await press(page, "sweep-cancel", name))[0]["sweep-progress"]

    async def session():
        started.go.clear()
        await press(page, "sweep-start", "first")
        api_call = asyncio.create_task(call(page.panels["sweep"][0], strategy="guided"))
        streams = [watch(page, name) for name in ("first", "second")]
        for stream in streams:
            await anext(stream)
        assert "It continues for 2 other clients" in await cancel("first")
        assert "It continues for 1 other client," in await cancel("second"), "the call of the API"
        await press(page, "sweep-start", "second")
        assert "It continues for 2 other clients" in await cancel("third"), "pressing Sweep takes part again"
        api_call.cancel()
        await asyncio.wait([api_call])
        assert not started.devices[0].is_cancelled
        assert "Cancelling" in await cancel("second")
        *_, last = [slots async for slots in streams[1]]
        assert "It was cancelled. Finished rows are kept" in last["sweep-claim"]
        await streams[0].aclose()

    asyncio.run(session())
    assert [device.is_cancelled for device in started.devices] == [True]


def test_a_refused_sweep_leaves_the_page_unchanged(page, started):
    (panel,) = page.panels["sweep"]
    started.go.clear()
    panel.sweeps.start(Session(), [space_of(MANY)], GRID)
    (refused,) = asyncio.run(press(page, "sweep-start"))
    assert list(refused) == ["problems"]
    assert "one runs at a time" in refused["problems"]
    (cancelled, _) = asyncio.run(press(page, "sweep-cancel"))
    assert "No sweep is running for these settings." in cancelled["sweep-progress"]
