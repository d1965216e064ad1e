"""The search of the Tune view: the plan, the table, several sizes, and the one running sweep that clients share."""

import asyncio
import csv
import json
import re
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import orjson
import pytest

from tests.messages import decode, links, opened, settings_of, text_of
from tests.stores import again
from tests.tilescope.search.fakes import FakeBuilder, FakeDevice, explored, swept
from tests.trees import ROOT
from tests.visualize.panels.sweeps_made_up import (
    FEW,
    MANY,
    NOTHING,
    OneSweep,
    Session,
    finished,
    press,
    space_of,
    state_of,
)
from tests.waiting import until
from tilescope.cli import sweep as sweep_command
from tilescope.declare.gpus import GPUS
from tilescope.declare.knobs import ConfigError
from tilescope.results import Failure, Strategy
from tilescope.results.store import Store
from tilescope.results.sweep import DONE
from visualize.views.panel import Api, reply_safely
from visualize.views.slots import CLOSED, ENABLED, NONE, OPEN, WATCH
from visualize.views.state import Snapshot
from visualize.views.tune import view
from visualize.views.tune.view import MAX_SIZES, PICTURES, swept_sizes, swept_space
from visualize.web.actions import Actions

# The pictures that have a point for each row.
OF_ROWS = [name for name in PICTURES if name != "library"]
GPU = GPUS["H200"]


def linked_states(markup):
    """Return the states that the links open."""
    return [opened(fields) for _, fields in links(markup)]


def draw(panel, sweep, **fields):
    """Draw a finished sweep."""
    panel.sweeps = OneSweep(sweep)
    return panel.draw(Snapshot(state_of(**fields)))


@pytest.fixture(scope="module")
def few():
    return swept(Strategy("grid"), within=space_of())


@pytest.fixture(scope="module")
def many():
    """A sweep of 1,152 configs, of which some do not fit in shared memory."""
    reason = "out of resource: shared memory, Required: 300000, Hardware limit: 232448."
    refused = Failure("compile", "out_of_resources", reason)
    builder = FakeBuilder(
        failures=lambda e: refused if e.config.BLOCK_M * e.config.num_stages == 384 else None
    )
    return swept(Strategy("grid"), FakeDevice(noise=0.02), within=space_of(MANY), builder=builder)


@pytest.mark.parametrize("name", OF_ROWS)
def test_an_update_of_a_thousand_rows_takes_less_than_150_kilobytes(panel, many, name):
    slots = draw(panel, many, vary=MANY, sweep_picture=name)
    assert len(slots["sweep-plot"]) > 1000
    assert len(json.dumps(slots, ensure_ascii=False).encode()) < 150_000
    assert slots["sweep-table"].count("<tr>") == 1 + 40


def test_before_a_sweep_the_expected_order_and_the_configs_to_try_are_visible_without_times(panel):
    state = state_of("BLOCK_M=64,256 BLOCK_N=64,256 num_warps=4,8")
    slots = panel.draw(Snapshot(state))
    headline = text_of(slots["sweep-headline"])
    assert headline.startswith("6 configs to try")
    assert "Set aside before any compile: 2 configs." in headline  # 256 × 256, with 4 and 8 warps
    assert "ranked by predicted time alone" in headline
    (cells,) = decode(slots["sweep-plot"])["data"]
    best_ranks = np.array(cells["z"], dtype=float)
    assert np.nanmin(best_ranks) == 1
    assert np.isfinite(best_ranks).sum() == 3
    labels = decode(slots["sweep-plot"])["layout"]["meta"]["words"]
    assert "rank 1 of 6 in the expected order" in " ".join(labels)
    assert not re.search(
        r"\d [µm]s\b", " ".join([headline, *labels, text_of(slots["sweep-table"])])
    )
    assert "The accumulator of a 256 × 256 tile" in text_of(slots["sweep-table"])
    assert "timed on this machine's GPU" in text_of(
        panel.draw(Snapshot(state, here=GPU))["sweep-headline"]
    )


def test_the_budget_shortens_the_estimate_and_a_large_space_has_no_expected_order(panel):
    assert panel.draw(Snapshot(state_of(f"{MANY},4")))["sweep-plot"] == NONE
    whole, part = (
        text_of(panel.draw(Snapshot(state_of(MANY, sweep_budget=n)))["sweep-headline"])
        for n in (0, 8)
    )
    assert re.search(r"About \d+ min", whole)
    assert re.search(r"About \d+ s\.", part)


def numbers(count):
    return ",".join(map(str, range(1, count + 1)))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("vary", "BLOCK_M", "sweep_vary must be KNOB=VALUE,VALUE, such as BLOCK_M=64,128 (got 'BLOCK_M')."),
        ("vary", "BLOCK_M=64,65", "BLOCK_M must be 16, 32, 64, 128 or 256 (got 65)."),
        ("vary", f"GROUP_SIZE={numbers(69)} {MANY.split(' GROUP')[0]} num_stages=2,3", "at most 4,096"),
        ("sweep_over", "BLOCK_M=64", "it takes one of M, N, K and its sizes, as in K=512,1024."),
        ("sweep_over", "dtype=float16", "it takes one of M, N, K"),
        ("sweep_over", "K=0", "K must be a whole number from 1 to 16384 (got 0)."),
        ("sweep_over", f"K={numbers(13)}", f"13 sizes are given; at most {MAX_SIZES} are allowed."),
    ],
)  # fmt: skip
def test_values_that_cannot_vary_are_refused_beside_their_field(field, value, message):
    with pytest.raises(ConfigError, match=re.escape(message)) as error:
        swept_sizes(state_of(**{field: value}))
    assert error.value.field == field.replace("vary", "sweep_vary")


def test_by_default_tiles_around_the_current_one_vary(kernel):
    space = swept_space(opened(f"{kernel.id} tab=sweep"))
    varied = dict(space.varied)
    assert varied.pop("num_warps") == (4, 8)
    assert 1 < space.size <= view.MAX_CONFIGS_PER_CALL
    assert all(getattr(kernel.config(), name) in values for name, values in varied.items())


def test_the_heatmaps_axes_are_the_chosen_knobs_if_they_vary(panel, few):
    for x, y, titles in (
        ("num_warps", "BLOCK_M", ["num_warps", "BLOCK_M"]),
        ("GROUP_SIZE", "auto", ["BLOCK_M", "BLOCK_N"]),
        ("auto", "BLOCK_M", ["BLOCK_N", "BLOCK_M"]),
    ):
        layout = decode(draw(panel, few, sweep_x=x, sweep_y=y)["sweep-plot"])["layout"]
        assert [layout[axis]["title"]["text"] for axis in ("xaxis", "yaxis")] == titles


@pytest.mark.parametrize("name", OF_ROWS)
def test_every_row_has_a_label_and_an_address_that_sets_it_and_keeps_the_sweep(panel, name):
    options = {"sweep_picture": name, "BLOCK_M": 128, "num_stages": 5}
    state = state_of(**options)
    sweep = swept(Strategy("grid"), within=swept_space(state))
    slots = draw(panel, sweep, **options)
    assert set(decode(slots["sweep-plot"])["layout"]["meta"]) == {"words", "addresses"}
    targets = linked_states(slots["sweep-table"].split("<tbody>")[1])
    for target, row in zip(targets, sweep.ranked, strict=True):
        assert target.experiment == row.experiment
        assert swept_space(target).identity == sweep.space.identity
        assert target.view == state.view
    best, pinned = linked_states(slots["sweep-lines"])
    assert best.experiment == pinned.pinned == sweep.best.experiment
    assert best.pinned is None
    assert pinned.experiment == state.experiment


def test_a_sweep_without_times_is_marked_as_predicted_and_has_no_picture_of_times(panel, few):
    untimed = {"status": "predicted", "median_ms": None, "relative": None, "turn": None}
    predicted = replace(few, rows=tuple(replace(row, **untimed) for row in few.rows), final=None)
    for sweep, mark, absent in (
        (few, "measured", "recorded"),
        (predicted, "predicted", "measured"),
    ):
        slots = draw(panel, sweep, sweep_picture="convergence")
        for part in ("sweep-headline", "sweep-table", "sweep-lines"):
            assert f'class="mark {mark}"' in slots[part]
            assert f'class="mark {absent}"' not in slots[part]
    assert slots["sweep-plot"] == NONE
    assert "Nothing was timed, so convergence has nothing to show" in slots["sweep-instead"]


def test_a_sweep_whose_times_cannot_be_predicted_has_ranks_alone(panel, few):
    untimed = dict.fromkeys(("median_ms", "low_ms", "high_ms", "relative", "turn", "predicted"))
    rows = tuple(replace(row, status="predicted", **untimed) for row in few.rows)
    ordered = replace(few, rows=rows, final=None, backend="predicted")
    slots = draw(panel, ordered)
    first = ordered.ranked[0].experiment.config
    headline = text_of(slots["sweep-headline"])
    assert f"BLOCK_M {first.BLOCK_M}" in headline
    assert "is expected to be the fastest on H200." in headline
    summary = sweep_command.summary(ordered)
    assert "  rank 1  predicted" in summary
    for said in (headline, text_of(slots["sweep-table"]), summary):
        assert not re.search(r"\d [µm]s\b|nan", said)


def test_a_cancelled_sweep_keeps_its_rows_and_resumes_when_started_again(panel, started):
    session, state = Session(), state_of(MANY)
    snapshot, space = Snapshot(state), swept_space(state)
    started.go.clear()
    slots = press(panel, "sweep-start", session, state)
    assert "of 1,152 configs done" in slots["sweep-progress"]
    assert panel.has_live_updates(snapshot)
    assert not panel.has_live_updates(Snapshot(state_of())), "another space"
    updates = panel.stream_updates(snapshot, "page")
    next(updates)
    started.devices[0].before = lambda trial: panel.sweeps.running(space, state.gpu).cancel()
    started.go.set()
    cut = finished(panel.sweeps, space)
    *_, last = updates
    assert "cancelled" in last["sweep-headline"]
    assert not panel.has_live_updates(snapshot)
    press(panel, "sweep-start", session, state)
    assert finished(panel.sweeps, space).ended in ("complete", "patience")
    assert started.done == [(), cut.rows]
    assert not {row.experiment for row in cut.rows if row.status in DONE} & set(
        explored(started.devices[1])
    )


def test_all_rows_are_saved_as_json_and_the_listed_ones_as_csv(panel, few):
    panel.sweeps, state = OneSweep(few), state_of(ranking_num_warps="4")
    whole, part = (
        json.loads(press(panel, button, Session(), state)["saved-file"])["text"]
        for button in ("sweep-json", "ranking-csv")
    )
    assert len(json.loads(whole)["rows"]) == len(few.rows)
    rows = list(csv.DictReader(part.removeprefix("\ufeff").splitlines()))
    assert [(row["num_warps"], row["status"]) for row in rows] == [("4", "timed")] * 4
    assert float(rows[0]["median_ms"]) <= float(rows[1]["median_ms"])


def test_the_options_are_folded_unless_the_address_has_values_to_vary(panel, started):
    for vary, fold in (("", CLOSED), ("BLOCK_M", OPEN)):  # the error is beside the field
        assert panel.fill(Snapshot(state_of(vary)))["sweep-search-fold"] == fold
    assert press(panel, "sweep-start", Session(), state_of())["sweep-search-fold"] == CLOSED
    assert "sweep-search-fold" not in panel.draw(Snapshot(state_of())), "an open fold stays open"


# One search at several sizes.

OVER = {"sweep_over": "K=256,512,1024", "sweep_strategy": "grid", "sweep_picture": "library"}


def sweep_sizes(panel, session, state, button="sweep-start"):
    """Sweep, and wait until each size is done."""
    press(panel, button, session, state)
    for space in swept_sizes(state)[1].values():
        finished(panel.sweeps, space, store=session.store)
    until(lambda: not panel.has_live_updates(Snapshot(state)))


def swept_order(devices):
    """Return the size that each device swept."""
    return [device.trials[0].experiments[0].problem.K for device in devices]


def test_each_size_is_swept_in_turn_and_compared_with_the_library(panel, started, store):
    session, state = Session(store), state_of(**OVER)
    snapshot = Snapshot(state, store=store)
    started.go.clear()
    slots = press(panel, "sweep-start", session, state)
    assert "K 256: 0 of 8 configs done" in text_of(slots["sweep-progress"])
    assert slots["sweep-plot"] == NONE
    assert panel.has_live_updates(snapshot)
    assert panel.has_live_updates(Snapshot(state_of(K=256), store=store)), (
        "the sweep of this size is running"
    )
    started.go.set()
    sweep_sizes(panel, session, state)
    assert swept_order(started.devices) == [256, 512, 1024]
    assert len(store.sweeps(5)) == 3

    slots = panel.draw(snapshot)
    (trace,) = decode(slots["sweep-plot"])["data"]
    assert (trace["name"], trace["x"]) == ("torch.matmul", ["256", "512", "1024"])
    bars = zip(trace["y"], trace["error_y"]["array"], trace["error_y"]["arrayminus"], strict=True)
    for (ratio, above, below), space in zip(bars, swept_sizes(state)[1].values(), strict=True):
        (library,) = panel.sweeps.find(store, space, GPU).final.baselines
        drawn = ratio, ratio + above, ratio - below
        assert drawn == pytest.approx((library.ratio, library.high, library.low))
    headline = r"\d\.\d\d × measured at K [\d,]+: torch\.matmul time / best config's time"
    assert re.match(headline, text_of(slots["sweep-headline"]))
    sizes = [target.experiment.problem.K for target in linked_states(slots["sweep-table"])]
    assert sizes == [256, 512, 1024]


def test_a_search_skips_finished_sizes_unless_it_ignores_stored_rows(panel, started, store):
    session, state = Session(store), state_of(**OVER)
    space = swept_sizes(state)[1][512]
    panel.sweeps.start(session, [space], Strategy("grid"))
    finished(panel.sweeps, space, store=store)
    sweep_sizes(panel, session, state)
    assert swept_order(started.devices) == [512, 256, 1024]
    sweep_sizes(panel, session, state, "sweep-again")
    assert swept_order(started.devices[3:]) == [256, 512, 1024]


@pytest.mark.parametrize("is_between", [False, True])
def test_cancel_ends_the_whole_search_even_between_two_sizes(
    panel, started, store_path, is_between
):
    class StoreThatCancels(Store):
        """The user cancels while the end of a sweep is stored."""

        def end_sweep(self, *arguments):
            if is_between:
                press(panel, "sweep-cancel", session, state)
            return super().end_sweep(*arguments)

    store = StoreThatCancels(store_path)
    session, state = Session(store), state_of(**OVER)
    with panel.sweeps.watched("page"):
        if not is_between:
            started.go.clear()
        press(panel, "sweep-start", session, state)
        if not is_between:
            assert "Cancelling" in press(panel, "sweep-cancel", session, state)["sweep-progress"]
        sweep = finished(panel.sweeps, swept_sizes(state)[1][256], store=store)
        assert sweep.ended == ("complete" if is_between else "cancelled")
    assert len(started.devices) == 1


GRID = Strategy("grid")
SIZES = (512, 640)
VARY = {"BLOCK_M": [32, 64], "BLOCK_N": [32, 64], "num_warps": [4, 8]}
SENT = {"kernel": "matmul.grouped", "gpu": "H200", "tab": "sweep", "sweep_vary": FEW}


def test_one_sweep_runs_at_a_time_and_another_one_is_refused_in_a_sentence(started):
    sweeps, session = started.sweeps(), Session()
    started.go.clear()
    running = sweeps.start(session, [space_of()], GRID)
    assert sweeps.start(session, [space_of()], GRID) is running
    refusal = r"A sweep of 8 configs of matmul\.grouped runs on this machine"
    for space, strategy in ((space_of(MANY), GRID), (space_of(), Strategy("random"))):
        with pytest.raises(ConfigError, match=refusal):
            sweeps.start(session, [space], strategy)
    for end in session.ends:  # the session is closed
        end()
    assert finished(sweeps, space_of()).ended == "cancelled"


def test_a_sweep_without_watchers_is_cancelled(started):
    sweeps = started.sweeps(unwatched_s=0)
    spaces = [space_of(M=size) for size in SIZES]
    with sweeps.watched("a page"):
        sweeps.start(Session(), [spaces[0]], GRID)
        assert finished(sweeps, spaces[0]).ended == "complete"
        started.go.clear()
        sweeps.start(Session(), [spaces[1]], GRID)
    assert finished(sweeps, spaces[1]).ended == "cancelled"


def test_the_latest_eight_sweeps_stay_in_memory(started):
    sweeps = started.sweeps()
    spaces = [space_of(M=size) for size in range(64, 74)]
    for space in spaces:
        sweeps.start(Session(), [space], GRID)
        finished(sweeps, space)
    kept = [sweeps.find(NOTHING, space, GPU) is not None for space in spaces]
    assert kept == [False] * 2 + [True] * 8


def test_a_sweep_comes_back_after_a_restart_and_resumes_under_its_name(started, store):
    before, space, session = started.sweeps(), space_of(), Session(store)

    def sweep(sweeps, from_scratch=False):
        sweeps.start(session, [space], GRID, from_scratch=from_scratch)
        return finished(sweeps, space, store=store)

    rows = sweep(before).rows
    assert before.find(store, space, GPU).source == "measured"
    later = started.sweeps()
    recorded = later.find(again(store), space, GPU)
    assert (recorded.rows, recorded.source) == (rows, "recorded")
    assert later.find(store, space, GPU) is later.find(store, space, GPU), "it is read once"
    sweep(later)
    assert len(store.sweeps(5)) == 1
    sweep(later, from_scratch=True)
    assert len(store.sweeps(5)) == 2
    assert started.done == [(), rows, ()]


# /sweep


async def call(panel, experiment=None, vary=VARY, **arguments):
    """Return the reply of /sweep, on made-up devices."""
    endpoint, _ = panel.endpoints(Api(Session()))
    function = reply_safely(endpoint.function)
    default = {"kernel": "matmul.grouped", "gpu": "H200"}
    reply = await function(experiment or default, vary=vary, **arguments)
    return orjson.loads(orjson.dumps(reply))


def test_the_endpoint_replies_with_every_config_the_best_first(panel):
    vary = {"BLOCK_M": [32, 64], "num_warps": [4, 8]}
    reply = asyncio.run(call(panel, vary=vary, strategy="grid"))
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
        ({"strategy": "best"}, "strategy must be guided, grid or random (got 'best')."),
        ({"budget": -1}, "budget must be a whole number from 0 to 4096 (got -1)."),
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


# Open pages.


@pytest.fixture
def page(page, started):
    """A page whose sweeps run on made-up devices, and which draws them often."""
    (panel,) = page.panels["sweep"]
    panel.sweeps, page.live_s = started.sweeps(), 0.01
    return page


async def press_on(page, button, name="page"):
    """Press a button, by its DOM id, on the open page of that name, and return the updates' slots."""
    updates = Actions(page).start(settings_of(SENT, action=button), name)
    return [slots async for slots in updates]


def watch(page, name="page"):
    """Return the updates that a page gets while a sweep is running."""
    return page.stream(settings_of(SENT, watch=ENABLED), name)


def test_pages_draw_a_sweep_until_its_end(page, started):
    async def session():
        started.go.clear()
        await press_on(page, "sweep-start")
        assert page.change(settings_of(SENT))[WATCH]
        left, stays = watch(page), watch(page, "another page")
        assert "of 8 configs done" in (await anext(left))["sweep-progress"]
        await anext(stays)
        await left.aclose()
        started.go.set()
        return [slots async for slots in stays]

    *_, last = asyncio.run(session())
    assert "All configs were tried." in last["sweep-headline"]
    assert decode(last["sweep-plot"])["data"]
    assert "Click the picture" in last["sweep-progress"]


def test_a_page_that_cancels_leaves_and_the_last_client_to_leave_ends_the_sweep(page, started):
    async def cancel(name):
        return (await press_on(page, "sweep-cancel", name))[0]["sweep-progress"]

    async def session():
        started.go.clear()
        await press_on(page, "sweep-start", "first")
        api_call = asyncio.create_task(call(page.panels["sweep"][0], strategy="guided"))
        streams = [watch(page, name) for name in ("first", "second")]
        for stream in streams:
            await anext(stream)
        assert "It continues for 2 other clients" in await cancel("first")
        assert "It continues for 1 other client," in await cancel("second"), "the call of the API"
        await press_on(page, "sweep-start", "second")
        assert "It continues for 2 other clients" in await cancel("third"), (
            "pressing Sweep joins it again"
        )
        api_call.cancel()
        await asyncio.wait([api_call])
        assert not started.devices[0].is_cancelled
        assert "Cancelling" in await cancel("second")
        *_, last = [slots async for slots in streams[1]]
        assert "cancelled before its first result" in last["sweep-progress"]
        await streams[0].aclose()

    asyncio.run(session())
    assert [device.is_cancelled for device in started.devices] == [True]
