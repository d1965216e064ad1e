"""The captures that ship with the example scripts, and their pages."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernels.examples import EXAMPLES
from tests.messages import decode, menu_labels
from tilescope.captures.reader import Capture
from tilescope.reports.launch import Launches, make_report
from visualize.views.launches import LaunchView, draw_launch
from visualize.web.scripts import Scripts, shipped_scripts


@pytest.mark.parametrize("source", EXAMPLES, ids=lambda source: Path(source).stem)
def test_a_shipped_capture_is_small_counted_and_explained_without_this_machines_folders(source):
    path = Path(source).with_suffix(".tilescope")
    capture = Capture(path)
    report = make_report(capture)
    assert report.untried == ""
    assert report.launches
    assert not any(launch.refused for launch in report.launches)
    assert path.stat().st_size < 1 << 19
    for kernel, content in enumerate(capture.content.kernels):
        codes = [capture.read_code(kernel, stage) for stage in ("ttir", "ttgir", "ptx", "sass")]
        assert not any(f"{Path.home()}{os.sep}" in text for text in codes)
        assert content.file == Path(source).name


@pytest.fixture(scope="module")
def scripts():
    return Scripts(shipped_scripts())


def drawn(scripts, **fields):
    query = "&".join(f"{name}={value}" for name, value in fields.items())
    return scripts.fill(scripts.find({"open": f"?{query}"}))


@pytest.mark.parametrize("source", EXAMPLES, ids=lambda source: Path(source).stem)
def test_every_view_of_an_example_fills_its_slots_without_running_code(scripts, source):
    name = f"script.{Path(source).stem}"
    memory = drawn(scripts, kernel=name)
    requests = decode(memory["request-plot"])["layout"]["meta"]["requests"]
    assert requests["total"] > 0
    assert "textbook" in memory["requests-table"]
    assert (
        "theoretical occupancy on H200"
        in drawn(scripts, kernel=name, tab="compiler")["compiler-headline"]
    )
    assert "captured without a GPU" in drawn(scripts, kernel=name, tab="result")["result"]


@pytest.mark.parametrize(
    ("name", "programs", "waves"), [("softmax", 4096, 2), ("attention", 1024, 4)]
)
def test_the_player_steps_through_the_programs_that_store_each_block(
    scripts, name, programs, waves
):
    slots = drawn(scripts, kernel=f"script.{name}", tab="program-order")
    assert f"{programs:,} programs run in <b>{waves} waves</b>" in slots["program-order-headline"]
    layout = decode(slots["program-order-plot"])["layout"]
    assert layout["meta"]["extents"] == [programs, 1]
    assert layout["meta"]["orders"][0]["count"] == waves


def test_a_launch_that_stores_no_whole_blocks_has_no_map(scripts):
    slots = drawn(scripts, kernel="script.histogram", tab="program-order")
    assert slots["program-order-plot"] == "none"
    assert "No store of this launch covers a tensor" in slots["program-order-headline"]


def test_a_table_and_a_picture_have_the_same_operation(scripts):
    """Copies of an operation, as pipelining creates them, share a row and a picture."""
    slots = drawn(scripts, kernel="script.attention", operation=1)
    labels = menu_labels(json.loads(slots["lanes-view"]), "operation")
    assert labels == [
        "load q, line 16",
        "async copy k, line 22",
        "async copy v, line 27",
        "store out, line 31",
    ]
    assert (
        decode(slots["request-plot"])["layout"]["yaxis"]["title"]["text"] == "address in k, bytes"
    )


def test_a_picture_counts_bytes_from_the_start_of_a_tensor_wherever_it_lies():
    labels = []
    for moved in (0, 96 * 128):
        capture = Capture(Path(EXAMPLES[0]).with_name("softmax.tilescope"))
        content = capture.content
        storages = tuple(
            replace(each, address_bytes=each.address_bytes + moved) for each in content.storages
        )
        capture.content = replace(content, storages=storages)
        slots = draw_launch(Launches(capture), LaunchView(tab="requests"), {})
        labels.append(decode(slots["request-plot"])["layout"]["meta"]["requests"])
    assert labels[0]["byte"][0, 0] == 0
    assert np.array_equal(labels[0]["byte"], labels[1]["byte"])
