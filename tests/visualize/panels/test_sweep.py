"""The search of the Tune view: the plan, the table, and the one running sweep that clients share."""

import json
import re

import numpy as np
import orjson
import pytest

from tests.messages import decode, links, opened, settings_of, text_of
from tests.tilescope.search.fakes import FakeDevice, swept
from tests.trees import ROOT
from tests.visualize.panels.sweeps_made_up import (
    FEW,
    MANY,
    Session,
    finished,
    press,
    space_of,
    state_of,
)
from tests.waiting import until
from tilescope.declare.gpus import GPUS
from tilescope.declare.knobs import ConfigError
from tilescope.results.store import Store
from visualize.views.panel import Api
from visualize.views.slots import CLOSED, ENABLED, NONE, OPEN, WATCH
from visualize.views.state import Snapshot
from visualize.views.tune import view
from visualize.views.tune.view import swept_space
from visualize.web.actions import Actions

GPU = GPUS["H200"]


def draw(panel, sweep, **fields):
    """Draw a finished sweep."""
    panel.sweeps.find = lambda *_: sweep
    return panel.draw(Snapshot(state_of(**fields)))


def test_an_update_of_a_thousand_rows_takes_less_than_150_kilobytes(panel):
    many = swept(FakeDevice(noise=0.02), within=space_of(MANY))
    slots = draw(panel, many, vary=MANY)
    assert len(slots["sweep-plot"]) > 1000
    assert len(json.dumps(slots, ensure_ascii=False).encode()) < 150_000
    assert slots["sweep-table"].count("<tr>") == 1 + 40
    assert "1,112 more configs not shown" in slots["sweep-table"]


def test_sweeps_of_the_same_configs_of_other_problems_are_drawn_together(panel, tmp_path):
    """Other problems have other sizes; a sweep of another layout, or of other configs, is not among them."""
    store = Store(tmp_path / "rows.db")
    spaces = [space_of(M=size) for size in (1024, 2048)]
    others = space_of(layout="NT"), space_of("BLOCK_M=16,32")
    for within in (*spaces, *others):
        swept(FakeDevice(), within=within, store=store)
    slots = panel.draw(Snapshot(state_of(M=1024), store=store))
    (figure,) = decode(slots["sweep-problems-plot"])["data"]
    assert list(figure["y"]) == ["M 1024", "M 2048"]
    assert np.shape(figure["z"]) == (2, spaces[0].size)
    assert "For 2 of 2 problems, " in text_of(slots["sweep-problems-text"])
    alone = panel.draw(Snapshot(state_of(M=1024), store=Store(None)))
    assert alone["sweep-problems-plot"] == NONE
    assert "tilescope tune matmul.grouped --over M=1024,4096" in text_of(
        alone["sweep-problems-text"]
    )


def test_before_a_sweep_the_expected_order_is_drawn_unless_the_space_is_large(panel):
    assert decode(panel.draw(Snapshot(state_of()))["sweep-plot"])["layout"]["meta"]["addresses"]
    slots = panel.draw(Snapshot(state_of(f"{MANY},4"), here=GPU))
    assert slots["sweep-plot"] == NONE
    assert re.search(
        r"timed on this machine's GPU\. About \d+ min", text_of(slots["sweep-headline"])
    )


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("BLOCK_M", "sweep_vary must be NAME=VALUE,VALUE, such as BLOCK_M=64,128 (got 'BLOCK_M')."),
        ("BLOCK_M=64,65", "BLOCK_M must be 16, 32, 64, 128 or 256 (got 65)."),
    ],
)  # fmt: skip
def test_values_that_cannot_vary_are_refused_beside_their_field(value, message):
    with pytest.raises(ConfigError, match=re.escape(message)) as error:
        swept_space(state_of(value))
    assert error.value.field == "sweep_vary"


def test_an_address_with_options_of_an_older_version_opens_the_sweep():
    old = {
        "sweep_over": "K=256,512",
        "sweep_picture": "library",
        "sweep_strategy": "random",
        "sweep_configs": "all",
        "ranking_sort": "-BLOCK_M",
        "ranking_page": "2",
    }
    for tab in ("sweep", "history"):
        state = state_of(**{**old, "tab": tab})
        assert state.view.tab == "sweep"
        assert swept_space(state).identity == space_of().identity


def test_by_default_tiles_around_the_current_one_vary(kernel):
    space = swept_space(opened(f"{kernel.id} tab=sweep"))
    varied = dict(space.varied)
    assert varied.pop("num_warps") == (4, 8)
    assert 1 < space.size <= view.MAX_CONFIGS_PER_CALL
    assert all(getattr(kernel.config(), name) in values for name, values in varied.items())


def test_every_row_has_a_label_and_an_address_that_sets_it_and_keeps_the_sweep(panel):
    options = {"BLOCK_M": 128, "num_stages": 5}
    state = state_of(**options)
    sweep = swept(within=swept_space(state))
    slots = draw(panel, sweep, **options)
    assert set(decode(slots["sweep-plot"])["layout"]["meta"]) == {"words", "addresses"}
    targets = links(slots["sweep-table"].split("<tbody>")[1])
    for (_, fields), row in zip(targets, sweep.ranked, strict=True):
        target = opened(fields)
        assert target.experiment == row.experiment
        assert swept_space(target).identity == sweep.space.identity
        assert target.view == state.view


def test_a_cancelled_sweep_resumes_after_a_restart_and_a_finished_one_starts_again(
    panel, started, store
):
    session, state = Session(store), state_of(MANY)
    space = swept_space(state)
    started.go.clear()
    slots = press(panel, "sweep-start", session, state)
    assert "of 1,152 configs done" in slots["sweep-progress"]
    press(panel, "sweep-start", session, state)  # it is running already
    assert not panel.has_live_updates(Snapshot(state_of())), "another space"

    def cancel_after_some_rows(_):
        sweep = panel.sweeps.running(space, state.gpu)
        if sweep.snapshot().ranked:
            sweep.cancel()

    started.devices[0].before = cancel_after_some_rows
    started.go.set()
    cut = finished(panel.sweeps, space, store=store)
    assert cut.source == "measured"
    assert "cancelled" in panel.draw(Snapshot(state, store=store))["sweep-headline"]
    panel.sweeps = started.sweeps()
    recorded = panel.sweeps.find(store, space, GPU)
    assert (recorded.ranked, recorded.source) == (cut.ranked, "recorded")
    assert panel.sweeps.find(store, space, GPU) is recorded, "it is read once"
    for sweeps in (1, 2):
        press(panel, "sweep-start", session, state)
        assert finished(panel.sweeps, space, store=store).ended == "budget"
        assert len(store.sweeps(5)) == sweeps
    assert started.done == [(), recorded.rows, ()]


def test_the_options_are_folded_unless_the_address_has_values_to_vary(panel):
    for vary, fold in (("", CLOSED), ("BLOCK_M", OPEN)):  # the error is beside the field
        assert panel.fill(Snapshot(state_of(vary)))["sweep-search-fold"] == fold
    assert "sweep-search-fold" not in panel.draw(Snapshot(state_of())), "an open fold stays open"


SIZES = (512, 640)
VARY = {"BLOCK_M": [32, 64], "BLOCK_N": [32, 64], "num_warps": [4, 8]}
SENT = {"kernel": "matmul.grouped", "gpu": "H200", "tab": "sweep", "sweep_vary": FEW}


def test_one_sweep_runs_at_a_time_and_another_one_is_refused_in_a_sentence(started):
    sweeps, session = started.sweeps(), Session()
    started.go.clear()
    sweeps.start(session, space_of())
    refusal = r"A sweep of 8 configs of matmul\.grouped runs on this machine"
    with pytest.raises(ConfigError, match=refusal):
        sweeps.start(session, space_of(MANY))
    for end in session.ends:  # the session is closed
        end()
    assert finished(sweeps, space_of()).ended == "cancelled"


def test_an_abandoned_sweep_is_cancelled(started):
    started.go.clear()
    space = space_of()
    sweeps = started.sweeps(abandoned_s=0.3)
    sweeps.start(Session(), space)
    # No other client looks at the sweep.
    until(lambda: started.devices[0].is_cancelled)
    assert finished(sweeps, space).ended == "cancelled"


# /sweep


async def call(panel, experiment=None, vary=VARY, **arguments):
    """Return the reply of /sweep, on made-up devices."""
    endpoint, _ = panel.endpoints
    default = {"kernel": "matmul.grouped", "gpu": "H200"}
    arguments |= {"experiment": experiment or default, "vary": vary}
    reply = await endpoint.call(Api(Session()), arguments)
    return orjson.loads(orjson.dumps(reply))


async def test_the_endpoint_replies_with_every_config_the_best_first(panel):
    vary = {"BLOCK_M": [32, 64], "num_warps": [4, 8]}
    reply = await call(panel, vary=vary)
    assert [sorted(row["config"]) for row in reply["rows"]] == [["BLOCK_M", "num_warps"]] * 4
    assert reply["best"]["config"]["BLOCK_M"] == reply["rows"][0]["config"]["BLOCK_M"] == 64
    assert f"num_warps={reply['best']['config']['num_warps']}" in reply["triton_config"]
    assert reply["ended"] == "complete"
    assert reply["vary"] == vary
    assert reply["experiment"]["gpu"] == reply["gpu"] == "H200"
    document = (ROOT / "docs" / "api.md").read_text()
    assert f"A call accepts at most {view.MAX_CONFIGS_PER_CALL} configs" in document
    assert f"After {view.MAX_CALL_S / 60:.0f} minutes" in document


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"vary": {"BLOCK_M": [16, 32, 64, 128], "GROUP_SIZE": list(range(1, 52))}},
            "The values give 204 configs; /sweep",
        ),
        ({"vary": {"BLOCK_M": 64}}, "BLOCK_M must be a list of values to vary (got 64)."),
        ({"vary": [1]}, "vary must be a JSON object of lists"),
    ],
)
async def test_an_argument_that_the_endpoint_refuses_starts_nothing(
    panel, started, arguments, message
):
    assert message in (await call(panel, **arguments))["failure"]["message"]
    assert started.devices == []


async def test_a_call_that_takes_too_long_replies_with_the_rows_so_far(panel, started):
    panel.max_call_s = 0.1
    started.go.clear()
    reply = await call(panel)
    assert (reply["ended"], len(reply["rows"])) == ("cancelled", 8)


# Open pages.


@pytest.fixture
def page(page, started):
    """A page whose sweeps run on made-up devices, and which draws them often."""
    (panel,) = page.panels["sweep"]
    panel.sweeps, page.live_s = started.sweeps(), 0.01
    return page


async def press_on(page, button):
    """Press a button, by its DOM id, on the open page, and return the updates' slots."""
    updates = Actions(page).start(settings_of(SENT, action=button), "page")
    return [slots async for slots in updates]


def watch(page):
    """Return the updates that a page gets while a sweep is running."""
    return page.stream(settings_of(SENT, watch=ENABLED))


async def test_pages_draw_a_sweep_until_its_end(page, started):
    started.go.clear()
    await press_on(page, "sweep-start")
    assert page.change(settings_of(SENT))[WATCH]
    left, stays = watch(page), watch(page)
    assert "of 8 configs done" in (await anext(left))["sweep-progress"]
    await anext(stays)
    await left.aclose()
    started.go.set()
    *_, last = [slots async for slots in stays]
    assert "All configs were tried." in last["sweep-headline"]
    assert decode(last["sweep-plot"])["data"]
    assert "Click the picture" in last["sweep-progress"]


async def test_cancel_ends_the_sweep_for_all_pages(page, started):
    started.go.clear()
    await press_on(page, "sweep-start")
    stream = watch(page)
    await anext(stream)
    assert "Cancelling" in (await press_on(page, "sweep-cancel"))[0]["sweep-progress"]
    *_, last = [slots async for slots in stream]
    assert "cancelled before its first result" in last["sweep-progress"]
    said = (await press_on(page, "sweep-cancel"))[0]["sweep-progress"]
    assert "No sweep is running for these settings." in said
    assert started.devices[0].is_cancelled
