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

from kernels.gpus import GPUS
from kernels.knobs import ConfigError
from kernels.results import Device, Prediction, Strategy, Sweep, SweepRow
from kernels.results.sweep import DONE
from tests.figure_values import decode
from tests.panels.sweeps_made_up import MANY, OneSweep, Session, ask, finished, space_of, state_of
from tests.sweep.fakes import grid, swept
from visualize.views.numbers import milliseconds
from visualize.views.plot import NONE
from visualize.views.slots import CLOSED, OPEN
from visualize.views.snapshot import Snapshot
from visualize.views.tabs import SETTINGS
from visualize.views.tune.view import PICTURES, SweepPanel, swept_space

# The pictures that have a point for each row.
OF_ROWS = [one for one in PICTURES if one != "library"]


def text_of(markup):
    return html.unescape(" ".join(re.sub(r"<[^>]*>", " ", str(markup)).split()))


def state_at(link):
    return SETTINGS.state(dict(urllib.parse.parse_qsl(link.replace("&amp;", "&"))), None)


def drawn_of(panel, sweep, state):
    """What the panel draws of a sweep that has ended."""
    panel.sweeps = OneSweep(sweep)
    return panel.draw(Snapshot(state))


def many_rows():
    """A made-up sweep of 1,152 timed rows, each with all that a row can hold."""
    space, dice = space_of(MANY), np.random.default_rng(0)
    times = dice.lognormal(0, 0.5, space.size)
    rows = []
    for turn, (experiment, ms) in enumerate(zip(space.experiments, times, strict=True)):
        off = float(dice.lognormal(0, 0.2))
        resource = ("arithmetic", "DRAM", "L2", "latency")[turn % 4]
        predicted = Prediction(ms * off, resource, ((resource, ms * off),))
        known = {"predicted": predicted, "compile_s": 1.0, "registers": 128, "spilled_bytes": 8, "shared_bytes": 49152}
        if turn % 10 == 9:
            reason = f"out of resource: shared memory, Required: {turn * 1024}, Hardware limit: 232448."
            rows.append(SweepRow(experiment, "set aside", reason, "H200", **known))
        else:
            times_ms = {"median_ms": ms, "low_ms": ms * 0.99, "high_ms": ms * 1.01, "samples": 40, "relative": ms}
            rows.append(SweepRow(experiment, "timed", "", "H200", "", **known, **times_ms, turn=turn))
    device = Device("cuda", "NVIDIA H200", torch="2.11", triton="3.7.1")
    return Sweep(space, Strategy("grid"), "cuda", device, tuple(rows), None, "running", 60.0)


@pytest.mark.parametrize("which", OF_ROWS)
def test_an_update_of_a_thousand_rows_takes_less_than_150_kilobytes(panel, which):
    drawn = drawn_of(panel, many_rows(), state_of(MANY, sweep_picture=which))
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


def test_a_large_space_is_not_predicted(panel):
    drawn = panel.draw(Snapshot(state_of(f"{MANY},4")))
    assert drawn["sweep-plot"] == NONE
    assert "configs to try" in drawn["sweep-claim"]


def test_the_budget_makes_the_estimate_shorter(panel):
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


def test_spaces_around_commas_and_equals_make_no_difference():
    assert space_of("BLOCK_M = 32, 64  num_warps=4 ,8") == space_of("BLOCK_M=32,64 num_warps=4,8")


def test_where_nothing_is_said_tiles_around_the_one_that_is_set_vary(kernel):
    space = swept_space(SETTINGS.state({"kernel": kernel.id, "tab": "sweep"}, None))
    varied = dict(space.varied)
    assert varied["num_warps"] == (4, 8)
    assert 1 < space.size <= 162
    for name, values in varied.items():
        if name != "num_warps":
            assert getattr(kernel.config(), name) in values


def test_the_heatmap_s_axes_are_the_chosen_knobs_if_they_vary(panel):
    for chosen, axes in ((("num_warps", "BLOCK_M"), ("num_warps", "BLOCK_M")),
                         (("GROUP_SIZE", "auto"), ("BLOCK_M", "BLOCK_N")),
                         (("auto", "BLOCK_M"), ("BLOCK_N", "BLOCK_M"))):  # fmt: skip
        state = state_of(sweep_x=chosen[0], sweep_y=chosen[1])
        layout = decode(drawn_of(panel, swept(Strategy("grid"), within=space_of()), state)["sweep-plot"])["layout"]
        assert (layout["xaxis"]["title"]["text"], layout["yaxis"]["title"]["text"]) == axes


def test_the_ranking_is_filtered_and_sorted_by_the_address(panel):
    found = many_rows()
    state = state_of(MANY, ranking_num_warps="8", ranking_status="timed", ranking_sort="-median_ms")
    listed = drawn_of(panel, found, state)["sweep-table"]
    matching = [row for row in found.ranked if row.experiment.config.num_warps == 8]
    slowest = max(matching, key=lambda row: row.median_ms)
    assert f"of {len(matching)}" in listed
    assert f">{found.ranked.index(slowest) + 1}</a>" in listed.split("<tbody>")[1].split("</tr>")[0]
    aside = text_of(drawn_of(panel, found, state_of(MANY, ranking_status="set aside"))["sweep-table"])
    assert "1–40 of 115" in aside
    assert "Required: 9216, Hardware limit" in aside


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


def test_made_up_rows_are_as_the_engine_gives_them():
    (real,) = swept(Strategy("grid"), within=grid({"BLOCK_M": [16]})).rows
    made = many_rows().rows[0]
    assert {name for name, value in vars(real).items() if value not in (None, "")} <= {
        name for name, value in vars(made).items() if value not in (None, "")
    }


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


def test_sweeping_anew_leaves_the_stored_rows_aside(panel, store, started):
    session, state = Session(store), state_of()
    for button in ("sweep-start", "sweep-anew"):
        ask(panel, button, session, state)
        finished(panel.sweeps, space_of(), store=store)
    assert started.done == [(), ()]
    assert len(store.sweeps(5)) == 2
