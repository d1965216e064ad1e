"""Scripts in the page's list of kernels, without a browser: a page opens them and leaves them."""

import json
import re

import pytest

from tests.messages import menu_labels, text_of
from tests.tables import read_table
from tests.visualize.panels.conftest import handlers
from visualize.web.scripts import Scripts, shipped_scripts


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with handlers(tmp_path_factory.mktemp("cache"), Scripts(shipped_scripts())) as made:
        yield made


def send(page, **message):
    return page.change(message)


def change(page, slots, **fields):
    """Change controls of a page whose forms have these slots."""
    settings = {**json.loads(slots["settings"]), **json.loads(slots["experiment"])["values"]}
    return send(page, settings={**settings, **fields})


def test_the_list_of_kernels_has_the_examples(page):
    form = json.loads(send(page, open="")["experiment"])
    kernel = next(field for field in form["fields"] if field["name"] == "kernel")
    titles = dict(zip(kernel["choices"], menu_labels(form, "kernel"), strict=True))
    assert titles["script.layer_norm"] == "script: layer_norm"
    assert titles["matmul.grouped"] == "matmul: grouped order"


def test_a_script_opens_in_the_view_of_the_kernel_and_the_kernel_in_that_of_the_script(page):
    opened = send(page, open="?kernel=transpose.tiled&tab=dram-reads")
    script = change(page, opened, kernel="script.softmax")
    assert script["tab"] == "program-order"
    assert script["run"] == "disabled"
    assert "kernel=script.softmax&tab=program-order" in json.loads(script["link"])["short"]
    kernel = change(page, script, kernel="matmul.grouped", tab="requests")
    assert kernel["tab"] == "requests"
    assert kernel["run"] == "enabled"
    assert json.loads(kernel["settings"])["form_of"] == "matmul.grouped"


def test_the_result_of_a_script_names_the_command_that_tunes_its_case(page):
    result = send(page, open="?kernel=script.softmax&tab=result")["result"]
    command = r"tilescope tune \S+softmax\.py:case --over rows=4096,8192 --over cols=1000,2000 --set num_warps=4,8 in"
    assert re.search(command, text_of(result))
    requests = send(page, open="?kernel=script.softmax&tab=requests")
    assert "tilescope tune" not in json.dumps(requests)


OLD = """
kernel=matmul.grouped&tab=schedule | program-order
kernel=matmul.grouped&tab=coalescing | requests
kernel=matmul.grouped&tab=code | compiler
kernel=matmul.grouped&tab=memory-map | compiler
kernel=matmul.grouped&tab=reuse | dram-reads
kernel=matmul.grouped&tab=recorded&recorded_page=3 | scoreboard
kernel=script.softmax&tab=order | program-order
kernel=script.softmax&tab=layouts | compiler
"""


@pytest.mark.parametrize(("old", "tab"), read_table(OLD))
def test_a_saved_address_with_a_tab_s_old_name_opens_the_tab(page, old, tab):
    opened = send(page, open=f"?{old}")
    settings = json.loads(opened["settings"])
    assert (opened["tab"], settings["tab"]) == (tab, tab)
    assert settings["kernel"] in old


def test_the_library_is_open_to_a_page_that_shows_a_script(page):
    script = send(page, open="?kernel=script.softmax")
    library = change(page, script, tab="scoreboard")
    assert library["tab"] == "scoreboard"
    assert json.loads(library["settings"])["kernel"] == "matmul.grouped"


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("kernel=script.softmax&launch=-1", "launch must be a whole number from 0 to 100000"),
        ("kernel=script.softmax&model=real", "model must be compiled or textbook"),
        ("kernel=script.missing", "kernel"),
    ],
)
def test_an_invalid_field_of_a_script_is_named(page, address, message):
    assert message in send(page, open=f"?{address}")["problems"]


def test_a_script_that_cannot_run_has_its_launch_as_a_control_and_numbers_are_limited_to_it(page):
    slots = send(page, open="?kernel=script.softmax&launch=9&operation=9&program=99999")
    assert [field["name"] for field in json.loads(slots["script"])["fields"]] == ["launch"]
    settings = json.loads(slots["settings"])
    assert (settings["launch"], settings["operation"]) == (0, 1)
