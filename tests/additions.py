"""Tests of another package of kernels. test_additions.py runs them in a process that has it instead of ours."""

import json

import orjson
import pytest

from tests.messages import menu_labels, opened
from tests.tilescope.test_export import run_scripts
from tests.waiting import run_coroutine
from visualize.predict.schedule import steps
from visualize.views.order.map_figure import Order, map_figure
from visualize.views.panel import Api, PredictionProcess
from visualize.views.slots import NONE
from visualize.views.state import Snapshot
from visualize.web.controls import experiment_form
from visualize.web.redraw import Redraw

EXPERIMENT = {"kernel": "softmax.row_blocks", "problem": {"M": 37, "N": 1008}}


@pytest.fixture
def state():
    """Return the page's state: only this process knows the family."""
    return opened("softmax.row_blocks M=37 N=1008")


@pytest.fixture(scope="module")
def redraw(session):
    return Redraw(session, PredictionProcess(session))


@pytest.fixture(scope="module")
def ask(redraw):
    """Return a function that calls an endpoint by its name."""
    api = Api(redraw.session, redraw.predictions)
    endpoints = [endpoint for panel in redraw.all_panels for endpoint in panel.endpoints]
    named = {endpoint.name: endpoint for endpoint in endpoints}

    def call(name, experiment, **arguments):
        reply = named[name].call(api, {"experiment": experiment, **arguments})
        return orjson.loads(orjson.dumps(run_coroutine(reply)))

    return call


def test_the_form_and_the_pictures_follow_from_the_familys_declarations(redraw, state):
    form = json.loads(experiment_form(state, None))
    controls = {field["name"]: field for field in form["fields"]}
    assert "softmax: blocks of rows" in menu_labels(form, "kernel")
    assert controls["BLOCK_N"]["choices"] == [256, 512, 1024, 2048, 4096]
    drawn = {}
    for tab in ("program-order", "requests", "dram-reads"):
        drawn |= redraw.panels[tab][0].draw(Snapshot(state))
    drawings = {name: drawn[name] for name in drawn if name.endswith("-plot")}
    pictures = {name for name, value in drawings.items() if value not in ("", NONE)}
    assert {"program-order-plot", "request-plot"} <= pictures
    assert "each input once" in drawn["dram-reads-instead"]
    assert "dram-reads-plot" not in pictures, "no GROUP_SIZE"
    text = "".join(
        drawn[f"{name}-headline"] for name in ("program-order", "requests", "dram-reads")
    )
    assert not [words for words in ("of A and", "of K", "along K", "transpos") if words in text]
    schedule = Snapshot(state).schedule
    orders = [Order("this order", schedule, steps(schedule))]
    maps = [(trace["name"], trace["z"].shape) for trace in map_figure(orders)["data"]]
    assert maps == [("Programs that read A", (10, 1)), ("Programs that write B", (10, 1))]


# A row is 31.5 warps, and 126 sectors: it may begin inside a line, but not inside a sector. With 16 bytes per lane it
# takes 7.9 warps.
@pytest.mark.parametrize(("model", "requests"), [("textbook", 37 * 32), ("compiled", 37 * 8)])
def test_its_operations_and_reads_are_counted(ask, model, requests):
    ops = ask("coalescing", EXPERIMENT, model=model)["ops"]
    counted = [(op["op"], op["tensor"], op["requests"], op["sectors"]) for op in ops]
    assert counted == [("load", "A", requests, 37 * 126), ("store", "B", requests, 37 * 126)]
    reply = ask("reuse", EXPERIMENT)
    assert reply["dram_read_bytes"] == reply["dram_write_bytes"] == 37 * 1008 * 4
    assert reply["by_group_size"] == {}


def test_it_runs_within_its_familys_allowance_and_its_script_without_our_modules(ask, tmp_path):
    check = ask("run", EXPERIMENT)["check"]
    assert check["passed"]
    assert 0 < check["relative_rms"] <= check["tolerance"] < 2.0**-10
    failure = ask("run", {**EXPERIMENT, "config": {"BLOCK_N": 512}})["failure"]
    assert failure["message"] == "BLOCK_N must be at least N, which is 1,008 (got 512)."
    script = ask("script", EXPERIMENT)["script"]
    assert "\ncheck passed" in run_scripts(tmp_path, {"new": script})["new"][1]
