"""The sweeps of a session: one at a time, watched, bounded; and what /sweep takes and replies."""

from __future__ import annotations

import asyncio
import json
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
from visualize.views.endpoint import Api, reply_safely
from visualize.views.tune import view
from visualize.views.tune.shared_sweeps import SharedSweeps


def test_one_sweep_runs_at_a_time_and_the_other_is_refused_in_a_sentence(started):
    sweeps, session = started.sweeps(), Session()
    started.go.clear()
    running = sweeps.start(session, [space_of()], Strategy("grid"))
    assert sweeps.start(session, [space_of()], Strategy("grid")) is running
    for other in (([space_of(MANY)], Strategy("grid")), ([space_of()], Strategy("random"))):
        with pytest.raises(
            ConfigError, match=r"A sweep of 8 configs of matmul\.grouped runs on this machine; one runs"
        ):
            sweeps.start(session, *other)
    for end in session.ends:  # the session is closed
        end()
    assert finished(sweeps, space_of()).ended == "cancelled"


def test_a_sweep_that_nobody_watches_ends_and_its_rows_are_kept(started):
    sweeps, spaces = started.sweeps(unwatched_s=0), [space_of(M=size) for size in (512, 640)]
    with sweeps.watched("a page"):
        sweeps.start(Session(), [spaces[0]], Strategy("grid"))
        assert finished(sweeps, spaces[0]).ended == "complete"
        started.go.clear()
        sweeps.start(Session(), [spaces[1]], Strategy("grid"))
    assert finished(sweeps, spaces[1]).ended == "cancelled"


def test_who_leaves_a_sweep_that_has_just_ended_leaves_the_next_one_of_its_search(started):
    def second_waits(*given):
        if started.devices:
            started.go.clear()
        return started.sweep_here(*given)

    sweeps, spaces = SharedSweeps(predicting(), second_waits), [space_of(M=size) for size in (512, 640)]
    sweeps.start(Session(), spaces, Strategy("grid"), "page")
    until(lambda: sweeps.running(spaces[1], GPUS["H200"]) is not None)
    assert sweeps.leave("page") == 0
    assert finished(sweeps, spaces[1]).ended == "cancelled"


def test_only_the_latest_sweeps_stay_in_memory(started):
    sweeps, spaces = started.sweeps(), [space_of(M=size) for size in range(64, 74)]
    for space in spaces:
        sweeps.start(Session(), [space], Strategy("grid"))
        finished(sweeps, space)
    assert [sweeps.find(NOTHING, space, GPUS["H200"]) is not None for space in spaces] == [False] * 2 + [True] * 8


def test_a_sweep_comes_back_after_a_restart_and_goes_on_under_its_name(started, store):
    before, space, session = started.sweeps(), space_of(), Session(store)
    before.start(session, [space], Strategy("grid"))
    found = finished(before, space, store=store)
    assert before.find(store, space, GPUS["H200"]).source == "measured"
    later = started.sweeps()
    back = later.find(again(store), space, GPUS["H200"])
    assert (back.rows, back.source) == (found.rows, "recorded")
    assert later.find(store, space, GPUS["H200"]) is later.find(store, space, GPUS["H200"]), "it is read once"
    later.start(session, [space], Strategy("grid"))
    finished(later, space, store=store)
    assert started.done == [(), found.rows]
    assert len(store.sweeps(5)) == 1
    later.start(session, [space], Strategy("grid"), from_scratch=True)
    finished(later, space, store=store)
    assert started.done[2] == ()
    assert len(store.sweeps(5)) == 2


def test_what_another_process_stored_since_is_found(started, store):
    sweeps, space = started.sweeps(), space_of()
    sweeps.start(Session(store), [space], Strategy("grid"))
    mine = finished(sweeps, space, store=store)
    started.sweeps().start(Session(again(store)), [space], Strategy("random", seed=1), from_scratch=True).result(30)
    theirs = sweeps.find(store, space, GPUS["H200"])
    assert (mine.strategy.name, theirs.strategy.name) == ("grid", "random")


VARY = {"BLOCK_M": [32, 64], "BLOCK_N": [32, 64], "num_warps": [4, 8]}


def ask_api(panel, experiment=None, **arguments):
    """The reply of /sweep, on made-up devices."""
    (endpoint,) = panel.endpoints(Api(Session()))
    return reply_safely(endpoint.function)(experiment or {"kernel": "matmul.grouped", "gpu": "H200"}, **arguments)


def asked(panel, vary=None, strategy="grid", **arguments):
    return asyncio.run(ask_api(panel, vary=vary, strategy=strategy, **arguments))


def test_the_endpoint_replies_with_every_config_the_best_first(panel):
    found = asked(panel, {"BLOCK_M": [32, 64], "num_warps": [4, 8]})
    assert [sorted(row["config"]) for row in found["rows"]] == [["BLOCK_M", "num_warps"]] * 4
    times = [row["relative"] for row in found["rows"]]
    assert len(times) == 4
    assert found["best"]["config"]["BLOCK_M"] == found["rows"][0]["config"]["BLOCK_M"] == 64
    assert f"num_warps={found['best']['config']['num_warps']}" in found["triton_config"]
    assert (found["ended"], found["vary"]) == ("complete", {"BLOCK_M": [32, 64], "num_warps": [4, 8]})
    assert found["experiment"]["gpu"] == found["gpu"] == "H200"
    json.dumps(found)


@pytest.mark.parametrize(
    ("given", "said"),
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
def test_what_the_endpoint_can_not_take_is_a_failure_in_a_sentence(panel, started, given, said):
    failure = asked(panel, **given)["failure"]
    assert said in failure["message"]
    assert started.devices == [], "nothing was started"


@pytest.fixture
def page(page, started):
    """A page whose sweeps run on made-up devices, and which draws them often."""
    (panel,) = page.panels["sweep"]
    panel.sweeps, page.live_s = started.sweeps(), 0.01
    return page


SENT = {"kernel": "matmul.grouped", "gpu": "H200", "tab": "sweep", "sweep_vary": FEW}


async def pressed(page, button, name="page"):
    """Press a button, by its DOM id, on the open page of that name, and return the updates' slots."""
    message = settings_of(SENT, action=button)
    return [slots_of(one) async for one in page.on_action(sent_by(name), message)]


def sent_by(name):
    return SimpleNamespace(session_hash=name)


async def watched(page, name="page"):
    """Yield the slots that a page gets while a sweep is running."""
    page.on_message(sent_by(name), settings_of(SENT))
    async for one in page.on_stream(sent_by(name)):
        yield slots_of(one)


def test_the_page_draws_a_sweep_until_its_end(page, started):

    async def session():
        started.go.clear()
        page.on_message(request(), settings_of(SENT))
        await pressed(page, "sweep-start")
        answers = watched(page)
        first = await anext(answers)
        assert "of 8 configs done" in first["sweep-progress"]
        started.go.set()
        return [one async for one in answers]

    *_, last = asyncio.run(session())
    assert "All configs were tried." in last["sweep-claim"]
    assert decode(last["sweep-plot"])["data"]
    assert "Click a point" in last["sweep-progress"]


def test_a_newer_drawing_or_a_closed_page_ends_the_older_one(page, started):

    async def session():
        started.go.clear()
        await pressed(page, "sweep-start")
        older = watched(page)
        await anext(older)
        newer = watched(page)
        await anext(newer)
        assert [one async for one in older] == []
        other = watched(page, "another page")
        await anext(other)
        page.on_unload(request())
        assert [one async for one in newer] == []
        cancelling, _ = await pressed(page, "sweep-cancel", "another page")
        assert "Cancelling" in cancelling["sweep-progress"]
        return [one async for one in other]

    *_, last = asyncio.run(session())
    assert "It was cancelled. Finished rows are kept" in last["sweep-claim"]


def test_who_cancels_leaves_and_the_last_one_to_leave_ends_it(page, started):
    async def cancel(name):
        return (await pressed(page, "sweep-cancel", name))[0]["sweep-progress"]

    async def session():
        started.go.clear()
        await pressed(page, "sweep-start", "first")
        call = asyncio.create_task(ask_api(page.panels["sweep"][0], vary=VARY))
        followed = [watched(page, name) for name in ("first", "second")]
        for one in followed:
            await anext(one)
        assert "It continues for 2 other clients" in await cancel("first")
        assert "It continues for 1 other client," in await cancel("second"), "the call of the API"
        await pressed(page, "sweep-start", "second")
        assert "It continues for 2 other clients" in await cancel("third"), "pressing Sweep takes part again"
        call.cancel()
        await asyncio.wait([call])
        assert not started.devices[0].is_cancelled
        assert "Cancelling" in await cancel("second")
        for one in followed:
            await one.aclose()

    asyncio.run(session())
    assert [device.is_cancelled for device in started.devices] == [True]


def test_a_call_that_takes_too_long_answers_with_what_was_found(panel, started):
    started.go.clear()
    panel.max_call_s = 0.1
    reply = asked(panel, VARY)
    assert (reply["ended"], len(reply["rows"])) == ("cancelled", 8)
    assert started.devices[0].is_cancelled


def test_a_call_that_takes_too_long_leaves_a_sweep_that_a_page_follows(page, started):
    (panel,) = page.panels["sweep"]
    started.go.clear()
    with panel.sweeps.watched("a page"):
        asyncio.run(pressed(page, "sweep-start"))
        panel.max_call_s = 0.1
        reply = asked(panel, VARY, "guided")
        assert reply["ended"] == "running"
        assert not started.devices[0].is_cancelled


def test_what_can_not_start_leaves_what_is_drawn(page, started):
    (panel,) = page.panels["sweep"]
    started.go.clear()
    panel.sweeps.start(Session(), [space_of(MANY)], Strategy("grid"))
    (refused,) = asyncio.run(pressed(page, "sweep-start"))
    assert list(refused) == ["problems"]
    assert "one runs at a time" in refused["problems"]
    (cancelled, _) = asyncio.run(pressed(page, "sweep-cancel"))
    assert "No sweep is running for these settings." in cancelled["sweep-progress"]


def test_the_document_names_the_bound():
    document = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    assert f"A call takes at most {view.MAX_CONFIGS_PER_CALL} configs" in document
    assert f"{view.MAX_CALL_S / 60:.0f} minutes" in document
