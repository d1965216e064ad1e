"""The Sweep panel: the plan, the pictures, the table, and a search at several sizes."""

from __future__ import annotations

import csv
import html
import json
import re
import urllib.parse
from dataclasses import replace

import numpy as np
import pytest

from kernels import discover
from kernels.gpus import GPUS
from kernels.knobs import ConfigError
from kernels.results import Failure, Strategy
from kernels.results.store import Store
from kernels.results.sweep import DONE
from kernels.sweep.sweep_run import refuse_configs
from tests.figure_values import decode
from tests.panels.sweeps_made_up import MANY, OneSweep, Session, finished, press, space_of, state_of
from tests.sweep.fakes import FakeBuilder, FakeDevice, swept
from tests.waiting import until
from visualize.views.slots import CLOSED, NONE, OPEN
from visualize.views.state import Snapshot
from visualize.views.tabs import SETTINGS
from visualize.views.tune.view import MAX_SIZES, PICTURES, SweepPanel, swept_sizes, swept_space
from visualize.web.controls import apply_preset, presets

# The pictures that have a point for each row.
OF_ROWS = [name for name in PICTURES if name != "library"]
GPU = GPUS["H200"]


def text_of(markup):
    return html.unescape(" ".join(re.sub(r"<[^>]*>", " ", str(markup)).split()))


def linked_states(markup):
    """Return the states that the links open."""
    links = re.findall(r'href="\?([^"]+)"', markup)
    return [SETTINGS.state(dict(urllib.parse.parse_qsl(link.replace("&amp;", "&"))), None) for link in links]


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
    builder = FakeBuilder(failures=lambda one: refused if one.config.BLOCK_M * one.config.num_stages == 384 else None)
    return swept(Strategy("grid"), FakeDevice(noise=0.02), within=space_of(MANY), builder=builder)


@pytest.mark.parametrize("name", OF_ROWS)
def test_an_update_of_a_thousand_rows_takes_less_than_150_kilobytes(panel, many, name):
    slots = draw(panel, many, vary=MANY, sweep_picture=name)
    sizes = {name: len(json.dumps(value, ensure_ascii=False).encode()) for name, value in slots.items()}
    assert sizes["sweep-plot"] > 1000
    assert sum(sizes.values()) < 150_000, sizes
    assert slots["sweep-table"].count("<tr>") == 1 + 40


def test_before_a_sweep_predicted_times_and_the_configs_to_try_are_visible(panel):
    state = state_of("BLOCK_M=64,256 BLOCK_N=64,256 num_warps=4,8")
    slots = panel.draw(Snapshot(state))
    headline = text_of(slots["sweep-claim"])
    assert headline.startswith("6 configs to try")
    assert "Set aside before any compile: 2 configs." in headline  # 256 × 256, with 4 and 8 warps
    assert "ranked by predicted time alone" in headline
    assert "Times are predicted" in slots["sweep-progress"]
    (cells,) = decode(slots["sweep-plot"])["data"]
    assert np.isfinite(np.array(cells["z"], dtype=float)).sum() == 3
    assert "The accumulator of a 256 × 256 tile" in text_of(slots["sweep-table"])
    assert "timed on this machine's GPU" in text_of(panel.draw(Snapshot(state, here=GPU))["sweep-claim"])


def test_the_budget_shortens_the_estimate_and_a_large_space_is_not_predicted(panel):
    assert panel.draw(Snapshot(state_of(f"{MANY},4")))["sweep-plot"] == NONE
    whole, part = (text_of(panel.draw(Snapshot(state_of(MANY, sweep_budget=n)))["sweep-claim"]) for n in (0, 8))
    assert re.search(r"About \d+ min", whole)
    assert re.search(r"About \d+ s\.", part)


def numbers(count):
    return ",".join(map(str, range(1, count + 1)))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("vary", "BLOCK_M", "sweep_vary must be KNOB=VALUE,VALUE, such as BLOCK_M=64,128 (got 'BLOCK_M')."),
        ("vary", "BLOCK_M=64,65", "BLOCK_M must be 16, 32, 64, 128 or 256 (got 65)."),
        ("vary", "nonsense=1", "The config of matmul.grouped has no field 'nonsense'"),
        ("vary", f"GROUP_SIZE={numbers(69)} {MANY.split(' GROUP')[0]} num_stages=2,3", "at most 4,096"),
        ("sweep_over", "K", "sweep_over must be KNOB=VALUE,VALUE"),
        ("sweep_over", "BLOCK_M=64", "it takes one of M, N, K and its sizes, as in K=512,1024."),
        ("sweep_over", "K=64 M=64", "it takes one of M, N, K"),
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
    space = swept_space(SETTINGS.state({"kernel": kernel.id, "tab": "sweep"}, None))
    varied = dict(space.varied)
    assert varied.pop("num_warps") == (4, 8)
    assert 1 < space.size <= 162
    assert all(getattr(kernel.config(), name) in values for name, values in varied.items())


def test_the_heatmaps_axes_are_the_chosen_knobs_if_they_vary(panel, few):
    for across, up, titles in (
        ("num_warps", "BLOCK_M", ("num_warps", "BLOCK_M")),
        ("GROUP_SIZE", "auto", ("BLOCK_M", "BLOCK_N")),
        ("auto", "BLOCK_M", ("BLOCK_N", "BLOCK_M")),
    ):
        layout = decode(draw(panel, few, sweep_x=across, sweep_y=up)["sweep-plot"])["layout"]
        assert (layout["xaxis"]["title"]["text"], layout["yaxis"]["title"]["text"]) == titles


def test_the_table_is_filtered_and_sorted_by_the_address(panel, many):
    options = {"ranking_num_warps": "8", "ranking_status": "timed", "ranking_sort": "-median_ms"}
    table = draw(panel, many, vary=MANY, **options)["sweep-table"]
    matching = [row for row in many.ranked if row.experiment.config.num_warps == 8]
    slowest = max(matching, key=lambda row: row.median_ms)
    assert f"of {len(matching)}" in table
    assert f">{many.ranked.index(slowest) + 1}</a>" in table.split("<tbody>")[1].split("</tr>")[0]
    aside = text_of(draw(panel, many, vary=MANY, ranking_status="set aside")["sweep-table"])
    assert f"1–40 of {many.count('set aside')}" in aside
    assert "Required: 300000, Hardware limit" in aside


@pytest.mark.parametrize("name", OF_ROWS)
def test_every_row_has_a_label_and_an_address_that_sets_it_and_keeps_the_sweep(panel, name):
    options = {"sweep_picture": name, "BLOCK_M": 128, "num_stages": 5}
    state = state_of(**options)
    sweep = swept(Strategy("grid"), within=swept_space(state))
    slots = draw(panel, sweep, **options)
    assert set(decode(slots["sweep-plot"])["layout"]["meta"]) == {"words", "addresses"}
    for target, row in zip(linked_states(slots["sweep-table"].split("<tbody>")[1]), sweep.ranked, strict=True):
        assert (target.experiment, swept_space(target).identity) == (row.experiment, sweep.space.identity)
        assert target.view == state.view
    best, pinned = linked_states(slots["sweep-lines"])
    assert (best.experiment, best.pinned) == (sweep.best.experiment, None)
    assert (pinned.experiment, pinned.pinned) == (state.experiment, sweep.best.experiment)


def test_a_sweep_without_times_is_marked_as_predicted_and_has_no_picture_of_times(panel, few):
    untimed = {"status": "predicted", "median_ms": None, "relative": None, "turn": None}
    predicted = replace(few, rows=tuple(replace(row, **untimed) for row in few.rows), final=None)
    for sweep, mark, absent in ((few, "measured", "recorded"), (predicted, "predicted", "measured")):
        slots = draw(panel, sweep, sweep_picture="bound")
        for part in ("sweep-claim", "sweep-table", "sweep-lines"):
            assert f'class="mark {mark}"' in slots[part]
            assert f'class="mark {absent}"' not in slots[part]
    assert slots["sweep-plot"] == NONE
    assert "Nothing was timed, so bound has nothing to show" in slots["sweep-instead"]


def test_a_stored_sweep_is_marked_as_recorded_with_its_date(panel, store, started):
    press(panel, "sweep-start", Session(store), state_of())
    finished(panel.sweeps, space_of(), store=store)
    slots = SweepPanel().draw(Snapshot(state_of(sweep_picture="convergence"), store=store))
    for part in ("sweep-claim", "sweep-table", "sweep-lines"):
        assert 'class="mark recorded"' in slots[part]
        assert 'class="mark measured"' not in slots[part]
    assert "Swept on this machine, 20" in slots["sweep-claim"]
    assert "'ms, recorded'" in str(decode(slots["sweep-plot"]))


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
    assert "cancelled" in last["sweep-claim"]
    assert not panel.has_live_updates(snapshot)
    press(panel, "sweep-start", session, state)
    assert finished(panel.sweeps, space).ended in ("complete", "patience")
    assert started.done == [(), cut.rows]
    explored = {one for trial in started.devices[1].trials if trial.phase == "explore" for one in trial.experiments}
    assert not {row.experiment for row in cut.rows if row.status in DONE} & explored


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
    assert panel.fill(Snapshot(state_of("")))["sweep-search-fold"] == CLOSED
    assert panel.fill(Snapshot(state_of("BLOCK_M")))["sweep-search-fold"] == OPEN, "the error is beside the field"
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
    assert panel.has_live_updates(Snapshot(state_of(K=256), store=store)), "the sweep of this size is running"
    started.go.set()
    sweep_sizes(panel, session, state)
    assert swept_order(started.devices) == [256, 512, 1024]
    assert [sweep.details["space"]["experiment"]["problem"]["K"] for sweep in store.sweeps(5)] == [1024, 512, 256]

    slots = panel.draw(snapshot)
    figure = decode(slots["sweep-plot"])
    titles = [figure["layout"][axis]["title"]["text"] for axis in ("xaxis", "yaxis")]
    assert titles == ["K", "ratio, measured"]
    (trace,) = figure["data"]
    assert (trace["name"], trace["x"]) == ("torch.matmul", ["256", "512", "1024"])
    bars = zip(trace["y"], trace["error_y"]["array"], trace["error_y"]["arrayminus"], strict=True)
    for (ratio, above, below), space in zip(bars, swept_sizes(state)[1].values(), strict=True):
        (library,) = panel.sweeps.find(store, space, GPU).final.baselines
        assert (ratio, ratio + above, ratio - below) == pytest.approx((library.ratio, library.high, library.low))
    headline = text_of(slots["sweep-claim"])
    assert re.match(r"\d\.\d\d × measured at K [\d,]+: torch\.matmul time / best config's time", headline)
    assert "95 % interval" in headline
    assert [target.experiment.problem.K for target in linked_states(slots["sweep-table"])] == [256, 512, 1024]
    assert "torch.matmul / best" in text_of(slots["sweep-table"])


def test_a_search_skips_finished_sizes_unless_it_ignores_stored_rows(panel, started, store):
    session, state = Session(store), state_of(**OVER)
    space = swept_sizes(state)[1][512]
    panel.sweeps.start(session, [space], Strategy("grid"))
    finished(panel.sweeps, space, store=store)
    sweep_sizes(panel, session, state)
    assert swept_order(started.devices) == [512, 256, 1024]
    sweep_sizes(panel, session, state, "sweep-anew")
    assert swept_order(started.devices[3:]) == [256, 512, 1024]


@pytest.mark.parametrize("is_between", [False, True])
def test_cancel_ends_the_whole_search_even_between_two_sizes(panel, started, store_path, is_between):
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


def test_the_articles_grid_search_is_a_preset_of_the_fused_kernel():
    kernel = discover()["matmul.fused_add_relu"]
    (number,) = (n for n, title in enumerate(presets(kernel)) if "grid search" in title)
    state = SETTINGS.state(apply_preset({}, kernel, number, None), None)
    dimension, sizes = swept_sizes(state)
    assert (state.view.tab, dimension, list(sizes)) == ("sweep", "K", [512, 1024, 2048, 4096, 8192, 16384])
    for space in sizes.values():
        assert [name for name, _ in space.varied] == ["BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps"]
        assert 20 < space.size - len(refuse_configs(space, GPU)) <= space.size == 54
