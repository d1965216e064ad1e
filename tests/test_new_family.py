"""Adding a family is adding one folder: page, endpoints, pictures, run and check work for it as for the others."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.kernels.test_export import run_scripts

pytestmark = pytest.mark.xdist_group("grown")

FOLDER = Path(__file__).parent / "softmax"
KERNEL = "softmax.row_blocks"
EXPERIMENT = {"kernel": KERNEL, "problem": {"M": 37, "N": 1008}, "config": {"BLOCK_M": 4}}
BYTES = 37 * 1008 * 4

PAGE = """
import json
from visualize.predict.schedule import row_major
from visualize.predict.schedule import panels, steps
from visualize.web.controls import experiment_form
from visualize.views.tabs import SETTINGS, TABS
from visualize.views.state import Snapshot
from visualize.views.order.map_figure import Order, map_figure, player_data
from visualize.views.slots import NONE

panels_of = {tab.name: tab.panels for tab in TABS}
opened = SETTINGS.state({"kernel": "softmax.row_blocks", "M": 37, "N": 1008}, None)
known = Snapshot(opened)
ours = known.schedule
orders = [Order("this order", ours, steps(ours))]
figure = map_figure(orders, "order")
player = player_data(orders, "order", 0, 0, 0)
moved = SETTINGS.change_kernel({**opened.to_address(), "form_of": opened.kernel.id}, "transpose.tiled")
said = {
    "form": json.loads(experiment_form(opened, None)),
    "address": opened.to_address(),
    "maps": [[trace["name"], list(trace["z"].shape)] for trace in figure["data"]],
    "axes": [figure["layout"][name]["title"]["text"] for name in ("xaxis", "yaxis", "xaxis2", "yaxis2")],
    "player": [player["panels"], player["transposed"]],
    "row_major": row_major(ours).tiles.pid_m.tolist(),
    "drawn": {
        slot: str(value)
        for tab in ("schedule", "coalescing", "reuse")
        for slot, value in panels_of[tab][0]().draw(known).items()
        if value not in ("", NONE)
    },
    "moved": sorted(moved),
}
"""


def add(tree):
    """One folder more."""
    shutil.copytree(FOLDER, tree / "kernels" / "softmax", ignore=shutil.ignore_patterns("__pycache__"))


def test_the_form_and_the_address_hold_its_knobs(grown_page):
    controls = {field["name"]: field for field in grown_page["form"]["fields"]}
    assert "softmax: blocks of rows" in controls["kernel"]["labels"]
    assert controls["BLOCK_N"]["choices"] == [256, 512, 1024, 2048, 4096]
    assert controls["dtype"]["choices"] == ["float16", "float32"]
    assert {"M": 37, "N": 1008, "dtype": "float32", "BLOCK_M": 4}.items() <= grown_page["form"]["values"].items()
    assert {"kernel": KERNEL, "M": 37, "N": 1008, "BLOCK_N": 1024}.items() <= grown_page["address"].items()
    assert "M" not in grown_page["moved"], "another family has other problem fields"


def test_the_schedule_shows_each_tensor_and_transposes_none(grown_page):
    names, shapes = zip(*grown_page["maps"], strict=True)
    assert names == ("A as read", "B as written")
    assert shapes == ([10, 1], [10, 1])
    assert grown_page["axes"] == ["pid_n", "pid_m", "pid_n", "pid_m"]
    assert grown_page["player"] == [None, [False, False]]
    assert grown_page["row_major"] == list(range(10))


def test_the_panels_are_drawn_and_mention_neither_products_nor_transposes(grown_page):
    plots = {"schedule-plot", "coalescing-plot", "request-plot", "bounds-plot"}
    texts = {"schedule-claim", "coalescing-claim", "coalescing-table", "reuse-claim", "reuse-tables"}
    assert plots | texts <= set(grown_page["drawn"])
    assert not {"loads-plot", "reuse-plot"} & set(grown_page["drawn"]), "no blocks of panels, and no GROUP_SIZE"
    said = " ".join(grown_page["drawn"][name] for name in texts)
    assert "elements per transaction" in said
    assert "Each input is assumed to be read once" in said
    for words in ("blocks of A", "of K", "along K", "through K", "transpos", "turned"):
        assert words not in said, words


def test_it_is_compiled_and_its_schedule_is_that_of_the_compiled_kernel(grown_client):
    compiled = grown_client.predict(EXPERIMENT, api_name="/compile")
    assert 0 < compiled["registers"] <= 255
    assert "softmax_row_blocks" in compiled["ptx"]
    reply = grown_client.predict(EXPERIMENT, api_name="/schedule")
    assert (reply["programs"], reply["tile_grid"], reply["loads"]) == (10, [10, 1], None)
    assert (reply["gpu"], reply["resident_source"]) == ("H200", "compiled")
    assert reply["tiles"] == [[[place, 0, 0]] for place in range(10)]


# A row is 31.5 warps, and 126 sectors: it may begin inside a line, but not inside a sector. With 16 bytes per lane it
# takes 7.9 warps.
@pytest.mark.parametrize(("model", "requests"), [("textbook", 37 * 32), ("compiled", 37 * 8)])
def test_its_operations_are_counted(grown_client, model, requests):
    reply = grown_client.predict(EXPERIMENT, model, api_name="/coalescing")
    assert [(op["op"], op["tensor"], op["requests"]) for op in reply["ops"]] == [
        ("load", "A", requests),
        ("store", "B", requests),
    ]
    assert all(op["sectors"] == op["ideal_sectors"] == 37 * 126 for op in reply["ops"])
    assert all(op["file"].endswith("row_blocks.py") for op in reply["ops"])


def test_its_input_is_read_once_and_its_output_written_once(grown_client):
    reply = grown_client.predict(EXPERIMENT, api_name="/reuse")
    for name in ("dram_read_bytes", "dram_write_bytes", "compulsory_bytes", "asked_bytes", "low_bytes", "high_bytes"):
        assert reply[name] == BYTES, name
    assert (reply["by_group_size"], reply["flags"], reply["resident_source"]) == ({}, [], "compiled")
    assert [bound["name"] for bound in reply["bounds"]] == ["DRAM", "L2", "load and store"]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_it_runs_within_its_familys_allowance_and_the_family_refuses_a_narrow_block(grown_client, dtype):
    experiment = {**EXPERIMENT, "problem": {"M": 37, "N": 1008, "dtype": dtype}}
    reply = grown_client.predict(experiment, api_name="/run")
    check = reply["check"]
    assert (reply["backend"], check["passed"], check["elements"]) == ("interpreter", True, 37 * 1008)
    assert 0 < check["relative_rms"] <= check["tolerance"] < 2.0**-10
    failure = grown_client.predict({**experiment, "config": {"BLOCK_N": 512}}, api_name="/run")["failure"]
    assert failure["message"] == "BLOCK_N must be at least N, which is 1,008 (got 512)."


def test_its_script_runs_without_our_modules(grown_client, tmp_path):
    script = grown_client.predict(EXPERIMENT, api_name="/script")["script"]
    assert run_scripts(tmp_path, {"new": script})["new"][1].startswith("check passed")


def test_the_contract_tests_hold_it(contract):
    outcomes, printed = contract
    own = [outcome for name, outcome in outcomes.items() if "row_blocks" in name]
    assert set(own) == {"PASSED"}, printed[-3000:]
    assert len(own) > 10, printed
