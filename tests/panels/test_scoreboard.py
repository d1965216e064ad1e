"""The scoreboard: every recording is on it, what it says is what the models say, and each point opens its launch."""

from __future__ import annotations

import json
import re
import urllib.parse
from dataclasses import replace

import gradio as gr
import pytest

from kernels.experiment import from_json
from kernels.gpus import GPUS
from kernels.knobs import ConfigError
from kernels.measuring.counters import COUNTERS
from kernels.measuring.group_sizes import GROUP_SIZES
from kernels.results import records
from visualize.panels import compare
from visualize.panels.scoreboard_tab import ScoreboardPanel, ScoreboardView, address, picture, reply
from visualize.panels.tabs import SETTINGS
from visualize.predict.scores import COUNTS, DRAM, EXACT_COUNTS, Score, Scoreboard
from visualize.state.known import Known
from visualize.views.library import text as scoreboard_text
from visualize.views.library.scoreboard import (
    FILE,
    counters_prediction,
    predict_counted,
    read_predictions,
    score_recordings,
    scoreboard,
    shipped_predictions,
)
from visualize.widgets.link import query

ATLAS, STUDIES = records.shipped(COUNTERS.form), records.shipped(GROUP_SIZES.form)
# One recording in so many is predicted anew here; tests/oracle does it for all.
EVERY = 23


def known(**flat):
    return Known(SETTINGS.state({"kernel": "matmul.grouped", "tab": "scoreboard", **flat}, None))


@pytest.fixture
def panel():
    made = ScoreboardPanel()
    with gr.Blocks():
        made.build()
    return made


def text_of(markup):
    return " ".join(re.sub(r"<[^>]*>", " ", markup).split())


def test_every_recording_that_counts_something_is_predicted_once():
    assert len(shipped_predictions()) == len(ATLAS) + len(STUDIES)
    assert scoreboard().unpredicted == ()
    counted = {replace(one.measured.experiment, gpu=one.gpu) for one in ATLAS}
    mine = (*scoreboard().part(EXACT_COUNTS).scores, *scoreboard().lower_bounds)
    assert {one.experiment for one in mine} == counted
    assert len(scoreboard().part((DRAM,)).scores) == sum(len(one.measured.rows) for one in STUDIES)


def test_the_file_is_small_and_every_line_is_as_it_would_be_written():
    assert FILE.stat().st_size < 240_000
    lines = FILE.read_text(encoding="utf-8").splitlines()
    assert [one.line() for one in shipped_predictions()] == lines
    assert {one.triton for one in shipped_predictions() if one.operations} == {
        one.measured.device.triton for one in ATLAS
    }


@pytest.mark.parametrize("recording", ATLAS[::EVERY], ids=lambda one: f"{one.measured.experiment.kernel}-{one.gpu}")
def test_the_shipped_prediction_is_what_the_models_say(recording):
    assert counters_prediction(recording, predict_counted(recording)) in shipped_predictions()


def test_what_was_counted_is_read_from_the_recording():
    experiment = from_json({"kernel": "transpose.flat", "gpu": "H200"})
    counted = records.find(COUNTERS.form, experiment, "H200").launch
    mine = [one for one in scoreboard().scores if one.experiment == experiment]
    assert {(one.operation, one.count, one.counted) for one in mine} == {
        ("load", "requests", counted["ld_requests"]),
        ("load", "sectors", counted["ld_sectors"]),
        ("store", "requests", counted["st_requests"]),
        ("store", "sectors", counted["st_sectors"]),
    }


def test_requests_and_what_lanes_ask_for_are_exact_and_no_lower_bound_is_above_the_count():
    lanes = [one for one in scoreboard().part(EXACT_COUNTS).scores if not one.operation.startswith("box")]
    assert len(lanes) > 2000
    assert [one for one in lanes if not one.is_exact] == []
    assert len({one.experiment for one in scoreboard().lower_bounds}) == 23
    for one in scoreboard().lower_bounds:
        assert one.operation == "atomic"
        assert 0 < one.predicted <= one.counted


def test_dram_reads_are_approximate_and_what_is_far_off_was_flagged():
    reads = scoreboard().part((DRAM,))
    assert 0 < reads.median_error < 0.05
    assert len(reads.misses) < 0.1 * len(reads.scores)
    assert sum(not one.is_flagged for one in reads.misses) <= 8


@pytest.mark.parametrize("count", COUNTS)
def test_the_headline_is_of_what_the_picture_shows(panel, count):
    said = text_of(panel.draw(known(score_count=count, score_gpu="H200"))[panel.claim])
    shown = scoreboard().part((count,), "H200")
    assert "on H200" in said
    if count == DRAM:
        assert said.startswith(f"{100 * shown.median_error:.2g} % median error of DRAM reads")
        assert f"{len(shown.scores):,} program orders of 146 launches" in said
    else:
        assert said.startswith(f"{shown.exact:,} of {len(shown.scores):,} ")
        assert f"{shown.launches} launches" in said
    assert len(said.split(" More")[0].split()) <= 40


def test_the_short_form_has_both_counts_and_all_launches():
    said = scoreboard_text.scoreboard_summary(scoreboard())
    exact, of = (int(number.replace(",", "")) for number in re.findall(r"[\d,]+", said)[:2])
    both = [one for one in scoreboard().scores if one.count in EXACT_COUNTS]
    assert (exact, of) == (sum(one.predicted == one.counted for one in both), len(both))
    assert said.endswith(f"counts agree exactly ({len(ATLAS)} launches, H100 and H200)")


def test_what_was_not_counted_on_a_gpu_says_so_and_has_no_picture(panel):
    drawn = panel.draw(known(score_count=DRAM, score_gpu="T4"))
    assert "No DRAM reads of this kernel were counted on this GPU." in drawn[panel.claim]
    assert drawn[panel.plot] == "none"


def scores(*pairs):
    experiment = from_json({"kernel": "matmul.persistent", "gpu": "H200"})
    return tuple(Score(experiment, "TMA load", "sectors", *pair) for pair in pairs)


def test_misses_are_listed_by_themselves_and_none_is_a_sentence():
    board = Scoreboard(scores((5, 5), (90, 100), (7, 7)))
    shown = scoreboard_text.scoreboard_notes(board, "sectors", "tab=recorded", dict.fromkeys(board.misses, "kernel=k"))
    assert "<details open><summary>1 of 3 sector counts differs from the prediction</summary>" in shown
    assert shown.count("<tr>") == 2
    assert '<a href="?kernel=k">matmul.persistent</a>' in shown
    assert "<td>90</td><td>100</td><td>−10\u00a0%</td>" in shown
    exact = Scoreboard(scores((5, 5), (7, 7)))
    shown = scoreboard_text.scoreboard_notes(exact, "sectors", "tab=recorded", {})
    assert "None of 2 sector counts differs from the prediction.</p>" in shown
    assert "<details>" not in shown, "nothing to unfold"
    assert "each" in scoreboard_text.scoreboard_headline(exact, "sectors", exact)


def test_what_is_left_out_is_said_with_its_count(panel):
    below = text_of(panel.draw(known())[panel.below])
    assert "Not compared: retrying atomics of 23 launches." in below
    assert "Left out" not in text_of(panel.draw(known(score_kernel="transpose.flat"))[panel.below])
    missing = Scoreboard(scores((5, 5)), (), (scores((5, 5))[0].experiment,))
    assert "1 recorded launch" in text_of(scoreboard_text.scoreboard_notes(missing, "sectors", "", {}))


def test_a_recording_without_a_prediction_is_left_out_and_said():
    found = score_recordings(shipped_predictions()[1:])
    assert len(found.unpredicted) == 1
    assert found.unpredicted[0] == shipped_predictions()[0].experiment


def test_a_click_opens_the_launch_on_the_tab_that_has_its_count():
    for one in scoreboard().scores[::EVERY]:
        state = SETTINGS.state(dict(urllib.parse.parse_qsl(query(address(one)))), None)
        assert state.view.tab == ("reuse" if one.count == DRAM else "coalescing")
        assert (state.gpu.name, state.experiment) == (one.experiment.gpu, one.experiment)
        form = GROUP_SIZES.form if one.count == DRAM else COUNTERS.form
        assert records.find(form, state.experiment, state.gpu.name) is not None


def test_a_point_says_launch_kernel_shape_config_gpu_and_both_numbers():
    (one,) = scores((90, 100))
    said = scoreboard_text.point_text(replace(one, predicted=1234, counted=5678))
    for part in ("TMA load", "matmul.persistent", "H200", "512 × 512 × 512", "float16", "4 warps", "1,234", "5,678"):
        assert part in said
    assert scoreboard_text.point_text(replace(one, count=DRAM, predicted=2 * 10**9)).count("2.00 GB") == 1


def test_the_picture_is_the_same_whatever_is_set_and_is_sent_in_100_kilobytes(panel):
    values = [panel.draw(known(M=size))[panel.plot] for size in (512, 640)]
    assert values[0] == values[1]
    assert all(len(picture(ScoreboardView(count)).encode()) < 100_000 for count in COUNTS)
    content = json.loads(values[0])
    assert {"words", "addresses"} <= set(content["layout"]["meta"])


def test_the_menu_offers_the_gpus_that_were_counted_on_and_the_one_that_is_set(panel):
    fields = json.loads(panel.draw(known(score_gpu="B200"))[panel.forms[ScoreboardView]])["fields"]
    assert fields[1]["choices"] == ["all", "H100", "H200", "B200"]
    assert "B200" in GPUS


def test_nothing_stands_twice_where_an_experiment_is_pinned(panel):
    mine, pinned = known(), known(M=640)
    shown, _ = compare.compared(panel.draw(mine), mine, pinned, [panel], panel.draw)
    assert shown == panel.draw(mine)


def test_the_endpoint_has_every_point_once_and_totals_of_them():
    everything = reply("", "", "")
    board = scoreboard()
    assert len(everything["points"]) == len(board.scores)
    assert set(everything["totals"]) == set(COUNTS)
    for count, total in everything["totals"].items():
        mine = [one for one in everything["points"] if one["count"] == count]
        assert (total["compared"], total["exact"]) == (len(mine), sum(p["predicted"] == p["counted"] for p in mine))
    assert len(everything["misses"]) == len(board.misses)
    assert len(everything["left_out"]["lower_bounds"]) == len(board.lower_bounds)
    for given, one in list(zip(everything["points"], board.scores, strict=True))[::EVERY]:
        launch = everything["launches"][given["launch"]]
        assert from_json(launch["experiment"]) == one.experiment
        assert (given["predicted"], given["counted"], launch["gpu"]) == (one.predicted, one.counted, one.experiment.gpu)


def test_the_endpoint_narrows_down_and_refuses_what_there_is_none_of():
    few = reply("transpose.flat", "H200", "requests")
    assert {one["count"] for one in few["points"]} == {"requests"}
    assert {one["experiment"]["kernel"] for one in few["launches"]} == {"transpose.flat"}
    assert {one["gpu"] for one in few["launches"]} == {"H200"}
    with pytest.raises(ConfigError, match="count must be sectors, requests or dram_bytes") as error:
        reply("", "", "lines")
    assert error.value.field == "count"


@pytest.mark.parametrize("line", ["{}", '{"launch": {}, "triton": 3}', '{"launch": {}, "triton": "3", "more": 1}', "{"])
def test_a_line_that_holds_no_prediction_says_which(line):
    with pytest.raises(ValueError, match=r"predictions\.jsonl, line 2: "):
        read_predictions([shipped_predictions()[0].line(), line])
