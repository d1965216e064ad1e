"""Tests of an added family and an added panel. test_additions.py runs them in a copy of the project that has both."""

from __future__ import annotations

import json

import orjson
import pytest

from tests.kernels.test_export import run_scripts
from tests.messages import opened, request, settings_of
from tests.waiting import run_coroutine
from visualize.predict.schedule import row_major, steps
from visualize.views.order.map_figure import Order, map_figure, player_data
from visualize.views.panel import Api, reply_safely
from visualize.views.prediction_process import PredictionProcess
from visualize.views.slots import NONE
from visualize.views.state import Snapshot
from visualize.views.tabs import SETTINGS
from visualize.web.controls import experiment_form
from visualize.web.page import page
from visualize.web.redraw import Redraw

KERNEL = "softmax.row_blocks"
EXPERIMENT = {"kernel": KERNEL, "problem": {"M": 37, "N": 1008}, "config": {"BLOCK_M": 4}}
FLAT = {"kernel": KERNEL, "M": 37, "N": 1008}
BYTES = 37 * 1008 * 4


@pytest.fixture(scope="module")
def redraw(session):
    return Redraw(session, PredictionProcess(session))


@pytest.fixture(scope="module")
def ask(redraw):
    """Return a function that calls an endpoint by its name."""
    api = Api(redraw.session, redraw.predictions)
    panels = [panel for panels in redraw.panels.values() for panel in panels]
    functions = {one.name: reply_safely(one.function) for panel in panels for one in panel.endpoints(api)}
    return lambda name, *arguments: orjson.loads(orjson.dumps(run_coroutine(functions[name](*arguments))))


def test_the_form_and_the_address_hold_the_familys_knobs():
    form = json.loads(experiment_form(opened(FLAT), None))
    controls = {field["name"]: field for field in form["fields"]}
    assert "softmax: blocks of rows" in controls["kernel"]["labels"]
    assert controls["BLOCK_N"]["choices"] == [256, 512, 1024, 2048, 4096]
    assert controls["dtype"]["choices"] == ["float16", "float32"]
    assert {"M": 37, "N": 1008, "dtype": "float32", "BLOCK_M": 4}.items() <= form["values"].items()
    address = opened(FLAT).to_address()
    assert {"kernel": KERNEL, "M": 37, "N": 1008, "BLOCK_N": 1024}.items() <= address.items()
    moved = SETTINGS.change_kernel({**address, "form_of": KERNEL}, "transpose.tiled")
    assert "M" not in moved, "another family has other problem fields"


def test_the_schedule_shows_each_tensor_and_transposes_none():
    schedule = Snapshot(opened(FLAT)).schedule
    orders = [Order("this order", schedule, steps(schedule))]
    figure = map_figure(orders, "order")
    assert [(trace["name"], trace["z"].shape) for trace in figure["data"]] == [
        ("A as read", (10, 1)), ("B as written", (10, 1)),
    ]  # fmt: skip
    axes = [figure["layout"][name]["title"]["text"] for name in ("xaxis", "yaxis", "xaxis2", "yaxis2")]
    assert axes == ["pid_n", "pid_m", "pid_n", "pid_m"]
    player = player_data(orders, "order", 0, 0, 0)
    assert (player["panels"], player["transposed"]) == (None, [False, False])
    assert row_major(schedule).tiles.pid_m.tolist() == list(range(10))


def test_the_panels_are_drawn_and_mention_neither_products_nor_transposes(redraw):
    drawn = {}
    for tab in ("schedule", "coalescing", "reuse"):
        drawn |= redraw.panels[tab][0].draw(Snapshot(opened(FLAT)))
    filled = {name for name, value in drawn.items() if value not in ("", NONE)}
    texts = {"schedule-claim", "coalescing-claim", "coalescing-table", "reuse-claim", "reuse-tables"}
    assert {"schedule-plot", "coalescing-plot", "request-plot", "bounds-plot"} | texts <= filled
    assert not {"loads-plot", "reuse-plot"} & filled, "no blocks of panels, and no GROUP_SIZE"
    said = " ".join(drawn[name] for name in texts)
    assert "elements per transaction" in said
    assert "Each input is assumed to be read once" in said
    for words in ("blocks of A", "of K", "along K", "through K", "transpos", "turned"):
        assert words not in said, words


def test_it_is_compiled_and_its_schedule_is_that_of_the_compiled_kernel(ask):
    compiled = ask("compile", EXPERIMENT)
    assert 0 < compiled["registers"] <= 255
    assert "softmax_row_blocks" in compiled["ptx"]
    reply = ask("schedule", EXPERIMENT)
    assert (reply["programs"], reply["tile_grid"], reply["loads"]) == (10, [10, 1], None)
    assert (reply["gpu"], reply["resident_source"]) == ("H200", "compiled")
    assert reply["tiles"] == [[[place, 0, 0]] for place in range(10)]


# A row is 31.5 warps, and 126 sectors: it may begin inside a line, but not inside a sector. With 16 bytes per lane it
# takes 7.9 warps.
@pytest.mark.parametrize(("model", "requests"), [("textbook", 37 * 32), ("compiled", 37 * 8)])
def test_its_operations_are_counted(ask, model, requests):
    ops = ask("coalescing", EXPERIMENT, model)["ops"]
    counted = [(op["op"], op["tensor"], op["requests"]) for op in ops]
    assert counted == [("load", "A", requests), ("store", "B", requests)]
    assert all(op["sectors"] == op["ideal_sectors"] == 37 * 126 for op in ops)
    assert all(op["file"].endswith("row_blocks.py") for op in ops)


def test_its_input_is_read_once_and_its_output_written_once(ask):
    reply = ask("reuse", EXPERIMENT)
    for name in ("dram_read_bytes", "dram_write_bytes", "compulsory_bytes", "asked_bytes", "low_bytes", "high_bytes"):
        assert reply[name] == BYTES, name
    assert (reply["by_group_size"], reply["flags"], reply["resident_source"]) == ({}, [], "compiled")
    assert [bound["name"] for bound in reply["bounds"]] == ["DRAM", "L2", "load and store"]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_it_runs_within_its_familys_allowance_and_the_family_refuses_a_narrow_block(ask, dtype):
    experiment = {**EXPERIMENT, "problem": {"M": 37, "N": 1008, "dtype": dtype}}
    reply = ask("run", experiment)
    check = reply["check"]
    assert (reply["backend"], check["passed"], check["elements"]) == ("interpreter", True, 37 * 1008)
    assert 0 < check["relative_rms"] <= check["tolerance"] < 2.0**-10
    failure = ask("run", {**experiment, "config": {"BLOCK_N": 512}})["failure"]
    assert failure["message"] == "BLOCK_N must be at least N, which is 1,008 (got 512)."


def test_its_script_runs_without_our_modules(ask, tmp_path):
    script = ask("script", EXPERIMENT)["script"]
    assert "\ncheck passed" in run_scripts(tmp_path, {"new": script})["new"][1]


def test_the_panel_has_a_tab_an_option_and_an_endpoint(redraw, ask):
    flat = {"kernel": "matmul.grouped", "tab": "tiles", "at_least": 9, "M": 256, "N": 256}
    drawn = json.loads(redraw.on_message(request(), settings_of(flat)))["slots"]
    assert drawn["tiles-claim"] == '<p class="claim">Few tiles.</p>'
    assert "tab=tiles" in drawn["link"]
    assert "at_least=9" in drawn["link"]
    refused = SETTINGS.state_or_defaults({**flat, "at_least": 65}, None)[1]
    assert refused == {"at_least": "at_least must be a whole number from 1 to 64 (got 65)."}
    assert ask("tiles", EXPERIMENT)["tiles"] == 10
    public = {
        function.api_name for function in page(redraw.session).fns.values() if function.api_visibility == "public"
    }
    assert {"tiles", "kernels", "schedule", "run", "timeline"} <= public
