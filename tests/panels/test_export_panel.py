"""Files that the page and the API export: scripts, notebooks, traces, and what a saved picture says of itself."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from kernels.experiment import from_json
from kernels.measuring.session import Session
from kernels.measuring.timeline import TIMELINE
from kernels.results import records
from tests.figure_values import decode
from tests.panels.sent import opened
from visualize.views.panel import Api, reply_safely
from visualize.views.result.view import ExportPanel
from visualize.views.tabs import TABS


@pytest.fixture
def endpoints(tmp_path):
    session = Session(None, tmp_path)
    yield {one.name: reply_safely(one.function) for one in ExportPanel().endpoints(Api(session))}
    session.close()


def reply_of(function, payload):
    """Return a reply, as it goes through JSON."""
    return json.loads(json.dumps(asyncio.run(function(payload)), allow_nan=False))


def test_script_and_notebook_are_of_the_experiment(endpoints):
    reply = reply_of(endpoints["script"], {"kernel": "matmul.grouped", "problem": {"M": 96}, "gpu": "L4"})
    assert (reply["gpu"], reply["experiment"]["problem"]["M"]) == ("L4", 96)
    assert reply["filename"] == "matmul_grouped_96x512x512_float16.py"
    assert "SimpleNamespace(M=96, N=512," in reply["script"]
    code = ["".join(cell["source"]) for cell in reply["notebook"]["cells"] if cell["cell_type"] == "code"]
    assert all(cell in reply["script"] for cell in code)
    wrong = reply_of(endpoints["script"], {"kernel": "matmul.grouped", "config": {"BLOCK_M": 5}})
    assert wrong["failure"]["kind"] == "not_a_choice"


def test_a_trace_is_of_the_recorded_timeline(endpoints):
    experiment = records.experiments(TIMELINE.form, "H200")[0]
    reply = reply_of(endpoints["trace"], {**experiment.to_json(), "gpu": "H200"})
    events = [event for event in reply["trace"]["traceEvents"] if event["ph"] == "X"]
    assert len(events) == len(records.find(TIMELINE.form, experiment, "H200").sm)
    assert reply["trace"]["otherData"]["source"] == "recorded"
    assert reply["filename"].endswith("_H200_timeline.json")
    none = reply_of(endpoints["trace"], {"kernel": "matmul.grouped", "problem": {"M": 513}})
    assert none["failure"]["kind"] == "not_recorded"


@pytest.mark.parametrize("tab", [tab.name for tab in TABS])
def test_every_figure_says_what_it_is_of(page, tab):
    """Its experiment, GPU and mark: they stand below a saved picture."""
    state = opened({"kernel": "matmul.grouped", "M": 2048, "N": 2048, "K": 2048, "gpu": "H200", "tab": tab})
    values = page.draw(state)[0].values()
    figures = [decode(value) for value in values if value.startswith("eN")]  # base64 of zlib's header
    expected = {"schedule": 2, "reuse": 2, "coalescing": 2, "scoreboard": 1}.get(tab, 0)
    assert len(figures) >= expected
    if tab == "scoreboard":  # of all recorded launches, whatever is set
        assert figures[0]["about"].startswith("Tilescope's scoreboard · ")
        assert figures[0]["about"].endswith(" launches · H100 and H200 · predicted and recorded")
        return
    for figure in figures:
        # A contrast is another kernel's.
        shape = r"(M 2048, N 2048, K 2048, float16, NN, tf32 · BLOCK_M|2048 × 2048 × 2048, float16)"
        assert re.match(rf"matmul\.\w+ · {shape}", figure["about"])
        assert " · H200 · " in figure["about"]


def test_the_panel_knows_what_is_set(page):
    state = opened({"kernel": "transpose.flat", "M": 99, "tab": "result"})
    panel = next(one for one in page.panels["result"] if isinstance(one, ExportPanel))
    (value,) = panel.draw(page.take_snapshots(state)[0]).values()
    assert from_json(json.loads(value)) == state.experiment
