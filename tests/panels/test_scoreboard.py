"""The scoreboard's panel and endpoint: each point opens its launch, and /scoreboard has every score once."""

from __future__ import annotations

import json
import urllib.parse

import pytest

from kernels.experiment import from_json
from kernels.gpus import GPUS
from kernels.knobs import ConfigError
from kernels.measuring.counters import COUNTERS
from kernels.measuring.group_sizes import GROUP_SIZES
from kernels.results import records
from tests.figure_values import decode
from visualize.predict.scores import COUNTS, DRAM
from visualize.views.address import query
from visualize.views.library.scoreboard import scoreboard
from visualize.views.library.scoreboard_tab import ScoreboardPanel, ScoreboardView, address, picture, reply
from visualize.views.result.result_tab import ResultPanel
from visualize.views.snapshot import Known
from visualize.views.tabs import SETTINGS
from visualize.web import compare

# The tests look at every 23rd score.
EVERY = 23


def known(**flat):
    return Known(SETTINGS.state({"kernel": "matmul.grouped", "tab": "scoreboard", **flat}, None))


@pytest.fixture
def panel():
    return ScoreboardPanel()


def test_what_was_not_counted_on_a_gpu_says_so_and_has_no_picture(panel):
    drawn = panel.draw(known(score_count=DRAM, score_gpu="T4"))
    assert "No DRAM reads of this kernel were counted on this GPU." in drawn["scoreboard-claim"]
    assert drawn["scoreboard-plot"] == "none"


def test_a_click_opens_the_launch_on_the_tab_that_has_its_count():
    for one in scoreboard().scores[::EVERY]:
        state = SETTINGS.state(dict(urllib.parse.parse_qsl(query(address(one)))), None)
        assert state.view.tab == ("reuse" if one.count == DRAM else "coalescing")
        assert (state.gpu.name, state.experiment) == (one.experiment.gpu, one.experiment)
        form = GROUP_SIZES.form if one.count == DRAM else COUNTERS.form
        assert records.find(form, state.experiment, state.gpu.name) is not None


def test_the_picture_is_the_same_whatever_is_set_and_is_sent_in_100_kilobytes(panel):
    values = [panel.draw(known(M=size))["scoreboard-plot"] for size in (512, 640)]
    assert values[0] == values[1]
    assert all(len(picture(ScoreboardView(count)).encode()) < 100_000 for count in COUNTS)
    content = decode(values[0])
    assert {"words", "addresses"} <= set(content["layout"]["meta"])


def test_the_menu_offers_the_gpus_that_were_counted_on_and_the_one_that_is_set(panel):
    fields = json.loads(panel.draw(known(score_gpu="B200"))["scoreboard-view"])["fields"]
    assert fields[1]["choices"] == ["all", "H100", "H200", "B200"]
    assert "B200" in GPUS


def test_nothing_stands_twice_where_an_experiment_is_pinned(panel):
    mine, pinned = known(), known(M=640)
    shown = compare.compared(panel.draw(mine), mine, pinned, [panel], ResultPanel())
    assert shown == {**panel.draw(mine), "compare": shown["compare"]}


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
