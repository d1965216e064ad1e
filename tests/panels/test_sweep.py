"""The Sweep tab: what is set, what it would take, what is drawn while it runs, what a click sets, and /sweep."""

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
from tests.panels.sweeps_made_up import MANY, OneSweep, Session, ask, finished, space_of, state_of
from tests.sweep.fakes import FakeBuilder, FakeDevice, swept
from tests.waiting import until
from visualize.views.numbers import milliseconds
from visualize.views.plot import NONE
from visualize.views.slots import CLOSED, OPEN
from visualize.views.state import Snapshot
from visualize.views.tabs import SETTINGS
from visualize.views.tune.view import MAX_SIZES, PICTURES, SweepPanel, swept_sizes, swept_space
from visualize.web.controls import presets, with_preset

# The pictures that have a point for each row.
OF_ROWS = [one for one in PICTURES if one != "library"]


def text_of(markup):
    return html.unescape(" ".join(re.sub(r"<[^>]*>", " ", str(markup)).split()))


def state_at(link):
    return SETTINGS.state(dict(urllib.parse.parse_qsl(link.replace("&amp;", "&"))), None)


def drawn_of(panel, sweep, state):
    """Draw a sweep that has ended."""
    panel.sweeps = OneSweep(sweep)
    return panel.draw(Snapshot(state))


@pytest.fixture(scope="module")
def many():
    """A sweep of 1,152 configs, of which some do not fit in shared memory."""
    reason = "out of resource: shared memory, Required: 300000, Hardware limit: 232448."
    refused = Failure("compile", "out_of_resources", reason)
    builder = FakeBuilder(failures=lambda one: refused if one.config.BLOCK_M * one.config.num_stages == 384 else None)
    return swept(Strategy("grid"), FakeDevice(noise=0.02), within=space_of(MANY), builder=builder)


@pytest.mark.parametrize("which", OF_ROWS)
def test_an_update_of_a_thousand_rows_takes_less_than_150_kilobytes(panel, many, which):
    drawn = drawn_of(panel, many, state_of(MANY, sweep_picture=which))
    sizes = {name: len(json.dumps(value, ensure_ascii=False).encode()) for name, value in drawn.items()}
    assert sizes["sweep-plot"] > 1000
    assert sum(sizes.values()) < 150_000, sizes
    assert drawn["sweep-table"].count("<tr>") == 1 + 40
    assert "1–40 of 1,152" in drawn["sweep-table"]


def test_before_it_starts_predicted_times_and_the_configs_to_try_are_shown(panel):
    state = state_of("BLOCK_M=64,256 BLOCK_N=64,256 num_warps=4,8")
    drawn = panel.draw(Snapshot(state))
    said = text_of(drawn["sweep-claim"])
    assert said.startswith("6 configs to try")
    assert "Set aside before any compile: 2 configs." in said  # 256 × 256, with 4 and 8 warps
    assert "ranked by predicted time alone" in said
    assert "Times are predicted" in drawn["sweep-progress"]
    (cells,) = decode(drawn["sweep-plot"])["data"]
    assert np.isfinite(np.array(cells["z"], dtype=float)).sum() == 3
    assert "The accumulator of a 256 × 256 tile" in text_of(drawn["sweep-table"])
    assert "predicted" in drawn["sweep-lines"]
    assert "timed on this machine's GPU" in text_of(panel.draw(Snapshot(state, here=GPUS["H200"]))["sweep-claim"])


def test_the_budget_shortens_the_estimate_and_a_large_space_is_not_predicted(panel):
    assert panel.draw(Snapshot(state_of(f"{MANY},4")))["sweep-plot"] == NONE
    whole, part = (text_of(panel.draw(Snapshot(state_of(MANY, sweep_budget=n)))["sweep-claim"]) for n in (0, 8))
    assert re.search(r"About \d+ min", whole)
    assert re.search(r"About \d+ s\.", part)


@pytest.mark.parametrize(
    ("vary", "said"),
    [
        ("BLOCK_M", "sweep_vary must be KNOB=VALUE,VALUE, such as BLOCK_M=64,128 (got 'BLOCK_M')."),
        ("BLOCK_M=64,65", "BLOCK_M must be 16, 32, 64, 128 or 256 (got 65)."),
        ("nonsense=1", "The config of matmul.grouped has no field 'nonsense'"),
        ("num_stages=x", "num_stages must be a whole number from 1 to 8 (got 'x')."),
        (f"GROUP_SIZE={','.join(map(str, range(1, 70)))} {MANY.split(' GROUP')[0]} num_stages=2,3", "at most 4,096"),
    ],
)
def test_what_can_not_vary_is_said_beside_the_field(vary, said):
    with pytest.raises(ConfigError, match=re.escape(said)) as error:
        space_of(vary)
    assert error.value.field == "sweep_vary"


def test_where_nothing_is_said_tiles_around_the_one_that_is_set_vary(kernel):
    space = swept_space(SETTINGS.state({"kernel": kernel.id, "tab": "sweep"}, None))
    varied = dict(space.varied)
    assert varied["num_warps"] == (4, 8)
    assert 1 < space.size <= 162
    for name, values in varied.items():
        if name != "num_warps":
            assert getattr(kernel.config(), name) in values


def test_the_heatmap_s_axes_are_the_chosen_knobs_if_they_vary(panel):
    found = swept(Strategy("grid"), within=space_of())
    for chosen, axes in ((("num_warps", "BLOCK_M"), ("num_warps", "BLOCK_M")),
                         (("GROUP_SIZE", "auto"), ("BLOCK_M", "BLOCK_N")),
                         (("auto", "BLOCK_M"), ("BLOCK_N", "BLOCK_M"))):  # fmt: skip
        state = state_of(sweep_x=chosen[0], sweep_y=chosen[1])
        layout = decode(drawn_of(panel, found, state)["sweep-plot"])["layout"]
        assert (layout["xaxis"]["title"]["text"], layout["yaxis"]["title"]["text"]) == axes


def test_the_ranking_is_filtered_and_sorted_by_the_address(panel, many):
    state = state_of(MANY, ranking_num_warps="8", ranking_status="timed", ranking_sort="-median_ms")
    listed = drawn_of(panel, many, state)["sweep-table"]
    matching = [row for row in many.ranked if row.experiment.config.num_warps == 8]
    slowest = max(matching, key=lambda row: row.median_ms)
    assert f"of {len(matching)}" in listed
    assert f">{many.ranked.index(slowest) + 1}</a>" in listed.split("<tbody>")[1].split("</tr>")[0]
    aside = text_of(drawn_of(panel, many, state_of(MANY, ranking_status="set aside"))["sweep-table"])
    assert f"1–40 of {many.count('set aside')}" in aside
    assert "Required: 300000, Hardware limit" in aside


@pytest.mark.parametrize("which", OF_ROWS)
def test_every_row_has_words_and_an_address_that_sets_it_and_keeps_the_sweep(panel, which):
    state = state_of(sweep_picture=which, BLOCK_M=128, num_stages=5)
    found = swept(Strategy("grid"), within=swept_space(state))
    drawn = drawn_of(panel, found, state)
    assert set(decode(drawn["sweep-plot"])["layout"]["meta"]) == {"words", "addresses"}
    links = re.findall(r'href="\?([^"]+)"', drawn["sweep-table"].split("<tbody>")[1])
    assert len(links) == len(found.ranked)
    for link, row in zip(links, found.ranked, strict=True):
        there = state_at(link)
        assert there.experiment == row.experiment
        assert swept_space(there).identity == found.space.identity
        assert (there.view.tab, there.view.options) == ("sweep", replace(state.view).options)


def test_the_claim_has_the_best_time_first_and_marks_where_it_is_from(panel):
    found = swept(Strategy("grid"), within=space_of())
    said = drawn_of(panel, found, state_of())["sweep-claim"]
    assert f"<b>{milliseconds(found.best.median_ms)}</b>" in said
    assert 'class="mark measured"' in said
    guessed = tuple(replace(row, status="predicted", median_ms=None, relative=None, turn=None) for row in found.rows)
    drawn = drawn_of(panel, replace(found, rows=guessed, final=None), state_of(sweep_picture="bound"))
    assert 'class="mark predicted"' in drawn["sweep-claim"]
    for part in ("sweep-claim", "sweep-table", "sweep-lines"):
        assert "measured" not in drawn[part]
    assert drawn["sweep-plot"] == NONE
    assert "Nothing was timed, so bound has nothing to show" in drawn["sweep-instead"]


def test_what_is_done_stays_when_cancelled_and_pressing_again_resumes(panel, started):
    session, state = Session(), state_of(MANY)
    started.go.clear()
    (first,) = ask(panel, "sweep-start", session, state)
    assert "of 1,152 configs done" in first["sweep-progress"]
    known = Snapshot(state)
    assert panel.has_live_updates(known)
    assert not panel.has_live_updates(Snapshot(state_of())), "another space"
    following = panel.stream_updates(known, "page")
    assert "sweep-progress" in next(following)
    started.devices[0].before = lambda trial: panel.sweeps.running(swept_space(state), state.gpu).cancel()
    started.go.set()
    cut = finished(panel.sweeps, swept_space(state))
    assert cut.ended == "cancelled"
    *_, last = following
    assert "cancelled" in last["sweep-claim"]
    assert not panel.has_live_updates(known)
    ask(panel, "sweep-start", session, state)
    whole = finished(panel.sweeps, swept_space(state))
    assert started.done == [(), cut.rows]
    assert whole.ended in ("complete", "patience")
    again = [one for trial in started.devices[1].trials if trial.phase == "explore" for one in trial.experiments]
    assert not {row.experiment for row in cut.rows if row.status in DONE} & set(again)


def test_rows_are_saved_as_json_and_the_listed_ones_as_csv(panel, started):
    ask(panel, "sweep-start", Session(), state_of())
    found = finished(panel.sweeps, space_of())
    state = state_of(ranking_num_warps="4")
    whole, part = (json.loads(ask(panel, button, Session(), state)[0]["sweep-file"])["text"]
                   for button in ("sweep-json", "ranking-csv"))  # fmt: skip
    assert len(json.loads(whole)["rows"]) == len(found.rows)
    rows = list(csv.DictReader(part.removeprefix("\ufeff").splitlines()))
    assert [(row["num_warps"], row["status"]) for row in rows] == [("4", "timed")] * 4
    assert float(rows[0]["median_ms"]) <= float(rows[1]["median_ms"])


def test_the_best_config_is_pinned_beside_the_current_one(panel):
    state = state_of(BLOCK_M=128)
    found = swept(Strategy("grid"), within=swept_space(state))
    best, pinned = map(state_at, re.findall(r'href="\?([^"]+)"', drawn_of(panel, found, state)["sweep-lines"]))
    assert (best.experiment, best.pinned) == (found.best.experiment, None)
    assert (pinned.experiment, pinned.pinned) == (state.experiment, found.best.experiment)


def test_the_search_is_folded_unless_the_address_says_what_varies(panel, started):
    assert panel.fill(Snapshot(state_of("")))["sweep-search-fold"] == CLOSED
    assert panel.fill(Snapshot(state_of("BLOCK_M")))["sweep-search-fold"] == OPEN, "the sentence is beside the field"
    (drawn,) = ask(panel, "sweep-start", Session(), state_of())
    assert drawn["sweep-search-fold"] == CLOSED
    assert "sweep-search-fold" not in panel.draw(Snapshot(state_of())), "an opened fold stays open"


def test_a_stored_sweep_is_marked_as_recorded_and_says_when_it_was_made(panel, store, started):
    ask(panel, "sweep-start", Session(store), state_of())
    finished(panel.sweeps, space_of(), store=store)
    later = SweepPanel()
    drawn = later.draw(Snapshot(state_of(sweep_picture="convergence"), store=store))
    for part in ("sweep-claim", "sweep-table", "sweep-lines"):
        assert 'class="mark recorded"' in drawn[part]
        assert 'class="mark measured"' not in drawn[part]
    assert "Swept on this machine, 20" in drawn["sweep-claim"]
    assert "'ms, recorded'" in str(decode(drawn["sweep-plot"]))


# One search at several sizes.

OVER = {"sweep_over": "K=256,512,1024", "sweep_strategy": "grid", "sweep_picture": "library"}
GPU = GPUS["H200"]


def pressed(panel, session, state, anew=False):
    """Press Sweep and return the updates' slots."""
    (answer,) = ask(panel, "sweep-anew" if anew else "sweep-start", session, state)
    return answer


def wait(panel, session, state):
    """Until each size was swept."""
    for space in swept_sizes(state)[1].values():
        finished(panel.sweeps, space, store=session.store)
    until(lambda: not panel.has_live_updates(Snapshot(state)))


def test_each_size_is_swept_for_itself_one_after_the_other(panel, started, store):
    session, state = Session(store), state_of(**OVER)
    started.go.clear()
    drawn = pressed(panel, session, state)
    assert "K 256: 0 of 8 configs done" in text_of(drawn["sweep-progress"])
    assert drawn["sweep-plot"] == NONE
    assert panel.has_live_updates(Snapshot(state, store=store))
    assert panel.has_live_updates(Snapshot(state_of(K=256), store=store)), "it is the sweep of that size"
    started.go.set()
    wait(panel, session, state)
    bases = [device.trials[0].experiments[0].problem.K for device in started.devices]
    assert bases == [256, 512, 1024]
    assert [one.details["space"]["experiment"]["problem"]["K"] for one in store.sweeps(5)] == [1024, 512, 256]
    assert not panel.has_live_updates(Snapshot(state, store=store))


def test_the_library_is_shown_beside_the_best_of_each_size_with_its_interval(panel, started, store):
    session, state = Session(store), state_of(**OVER)
    pressed(panel, session, state)
    wait(panel, session, state)
    drawn = panel.draw(Snapshot(state, store=store))
    figure = decode(drawn["sweep-plot"])
    assert figure["layout"]["xaxis"]["title"]["text"] == "K"
    assert figure["layout"]["yaxis"]["title"]["text"] == "ratio, measured"
    (trace,) = figure["data"]
    assert (trace["name"], trace["x"]) == ("torch.matmul", ["256", "512", "1024"])
    for ratio, more, less, space in zip(
        trace["y"], trace["error_y"]["array"], trace["error_y"]["arrayminus"],
        swept_sizes(state)[1].values(), strict=True,
    ):  # fmt: skip
        (library,) = panel.sweeps.find(store, space, GPU).final.baselines
        assert ratio == library.ratio
        assert (ratio + more, ratio - less) == pytest.approx((library.high, library.low))
    said = text_of(drawn["sweep-claim"])
    assert re.match(r"\d\.\d\d × measured at K [\d,]+: torch\.matmul time / best config's time", said)
    assert "95 % interval" in said
    links = re.findall(r'href="\?([^"]+)"', drawn["sweep-table"])
    sizes = list(map(state_at, links))
    assert [one.experiment.problem.K for one in sizes] == [256, 512, 1024]
    assert "torch.matmul / best" in text_of(drawn["sweep-table"])


def test_pressed_again_it_sweeps_what_is_left_and_anew_everything(panel, started, store):
    session, state = Session(store), state_of(**OVER)
    own = swept_sizes(state)[1]
    panel.sweeps.start(session, [own[512]], Strategy("grid"))
    finished(panel.sweeps, own[512], store=store)
    pressed(panel, session, state)
    wait(panel, session, state)
    assert [device.trials[0].experiments[0].problem.K for device in started.devices] == [512, 256, 1024]
    pressed(panel, session, state, anew=True)
    wait(panel, session, state)
    assert [device.trials[0].experiments[0].problem.K for device in started.devices[3:]] == [256, 512, 1024]


def test_a_cancel_ends_all_that_was_to_follow(panel, started, store):
    session, state = Session(store), state_of(**OVER)
    started.go.clear()
    pressed(panel, session, state)
    (said,) = ask(panel, "sweep-cancel", session, state)
    assert "Cancelling" in said["sweep-progress"]
    assert finished(panel.sweeps, swept_sizes(state)[1][256], store=store).ended == "cancelled"
    assert len(started.devices) == 1
    said = text_of(panel.draw(Snapshot(state, store=store))["sweep-claim"])
    assert said == "3 sizes of K to sweep. Library ratios need a GPU."


def test_a_cancel_between_two_sizes_ends_what_was_to_follow(panel, started, store_path):
    class StoreThatCancels(Store):
        """The user cancels as the end of a sweep is stored."""

        def end_sweep(self, *given):
            ask(panel, "sweep-cancel", session, state)
            return super().end_sweep(*given)

    store = StoreThatCancels(store_path)
    session, state = Session(store), state_of(**OVER)
    with panel.sweeps.watched("page"):
        pressed(panel, session, state)
        assert finished(panel.sweeps, swept_sizes(state)[1][256], store=store).ended == "complete"
        assert len(started.devices) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("K", "sweep_over must be KNOB=VALUE,VALUE"),
        ("BLOCK_M=64", "sweep_over is 'BLOCK_M=64'; it takes one of M, N, K and its sizes, as in K=512,1024."),
        ("K=64 M=64", "it takes one of M, N, K"),
        ("dtype=float16", "it takes one of M, N, K"),
        ("K=0", "K must be a whole number from 1 to 16384 (got 0)."),
        (f"K={','.join(str(size) for size in range(1, 14))}", f"13 sizes are given; at most {MAX_SIZES} are allowed."),
    ],
)
def test_sizes_that_make_no_sense_are_told_beside_their_field(text, said):
    with pytest.raises(ConfigError, match=re.escape(said)) as error:
        swept_sizes(state_of(sweep_over=text))
    assert error.value.field == "sweep_over"


def test_the_article_s_grid_search_is_a_preset_of_the_fused_kernel():
    kernel = discover()["matmul.fused_add_relu"]
    (number,) = (n for n, title in enumerate(presets(kernel)) if "grid search" in title)
    state = SETTINGS.state(with_preset({}, kernel, number, None), None)
    dimension, sizes = swept_sizes(state)
    assert state.view.tab == "sweep"
    assert (dimension, list(sizes)) == ("K", [512, 1024, 2048, 4096, 8192, 16384])
    for space in sizes.values():
        assert [name for name, _ in space.varied] == ["BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps"]
        left = space.size - len(refuse_configs(space, GPUS["H200"]))
        assert 20 < left <= space.size == 54
