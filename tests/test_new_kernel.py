"""Adding a kernel is adding one file: controls, endpoint entry, schedule and contract tests come by themselves."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.xdist_group("grown")

FILE = '''"""B = A.T, a strip of BLOCK_N columns a program, walked BLOCK_M rows at a time."""

from dataclasses import dataclass

import numpy as np

from kernels.jit import tl, triton
from kernels.knobs import knob, num_stages, num_warps, powers
from kernels.orders import tile_offsets
from kernels.spec import Kernel, Preset, Tiles
from kernels.transpose import problem as family
from kernels.transpose.problem import FAMILY, arguments, extents


@dataclass(frozen=True)
class Config:
    BLOCK_M: int = knob(64, "Tile", "Rows of the strip that a program moves at a time.", choices=powers(8, 256))
    BLOCK_N: int = knob(32, "Tile", "Columns of A in a program's strip.", choices=powers(4, 64))
    num_warps: int = num_warps()
    num_stages: int = num_stages()


@triton.jit
def transpose_column_strip(a, b, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    columns = tile_offsets(tl.program_id(0), BLOCK_N)
    for step in range(0, tl.cdiv(M, BLOCK_M)):
        rows = tile_offsets(step, BLOCK_M)
        inside = (rows[:, None] < M) & (columns[None, :] < N)
        strip = tl.load(a + rows[:, None] * N + columns[None, :], mask=inside)
        tl.store(b + columns[None, :] * M + rows[:, None], strip, mask=inside)


def grid(launch):
    return (extents(launch)["n"],)


def tiles_of(pids, launch):
    steps = extents(launch)["m"]
    program = np.repeat(pids, steps)
    return Tiles(program, np.tile(np.arange(steps), len(pids)), program, np.zeros_like(program), group=program)


def accesses(launch):
    return family.accesses(transpose_column_strip, launch, stored=("m", "n"))


KERNEL = Kernel(
    id="transpose.column_strip",
    title="column strips",
    headline="A program walks down a strip of columns.",
    family=FAMILY,
    config=Config,
    jitted=transpose_column_strip,
    grid=grid,
    extents=extents,
    tiles=tiles_of,
    accesses=accesses,
    arguments=arguments,
    presets=(Preset("Small", {"M": 64, "N": 64}, {}),),
)
'''

PAGE = """
import json
import gradio as gr
from kernels import discover
from kernels.experiment import from_json
from kernels.results import Failure
from kernels.measuring.session import Session
from visualize.page.api import kernels_reply
from visualize.page.page import Page
from visualize.panels import coalescing_tab, schedule_tab
from visualize.panels.controls import experiment_form
from visualize.panels.endpoint import Api
from visualize.panels.tabs import SETTINGS
from visualize.state.known import Known
from visualize.widgets.plot import NONE

session = Session(None)
api = Api(session)
with gr.Blocks() as blocks:
    page = Page(blocks, session)
opened = SETTINGS.state({"kernel": "transpose.column_strip", "M": 300, "N": 200, "BLOCK_N": 16}, None)
payload = opened.experiment.to_json()
not_compiled = Failure("compile", "not_tried", "Not compiled here.")
said = {
    "form": json.loads(experiment_form(opened, None)),
    "entries": [entry for entry in kernels_reply(None)["kernels"] if entry["id"] == "transpose.column_strip"],
    "schedule": api.predicted(payload, schedule_tab.reply, not_compiled),
    "coalescing": api.predicted(payload, lambda known: coalescing_tab.textbook_reply(known, None)),
    "drawn": [
        component.elem_id
        for tab in ("schedule", "coalescing")
        for component, value in page.panels[tab][0].draw(Known(opened)).items()
        if value not in ("", NONE)
    ],
}
session.close()
"""


def add(tree):
    """One file more."""
    file = tree / "kernels" / "transpose" / "column_strip.py"
    assert not file.exists()
    file.write_text(FILE, encoding="utf-8")


def test_the_page_and_the_endpoints_know_it(grown_page):
    controls = {field["name"]: field for field in grown_page["form"]["fields"]}
    assert "transpose.column_strip" in controls["kernel"]["choices"]
    assert "transpose: column strips" in controls["kernel"]["labels"]
    assert controls["BLOCK_M"]["choices"] == [8, 16, 32, 64, 128, 256]
    assert grown_page["form"]["values"]["BLOCK_N"] == 16
    assert grown_page["form"]["presets"] == ["Small"]
    (entry,) = grown_page["entries"]
    assert [knob["name"] for knob in entry["knobs"]] == ["BLOCK_M", "BLOCK_N", "num_warps", "num_stages"]
    assert grown_page["schedule"]["programs"] == -(-200 // 16)
    assert grown_page["schedule"]["tiles"][2] == [[0, 2, 0], [1, 2, 0], [2, 2, 0], [3, 2, 0], [4, 2, 0]]
    assert [op["op"] for op in grown_page["coalescing"]["ops"]] == ["load", "store"]
    assert all(op["file"].endswith("column_strip.py") for op in grown_page["coalescing"]["ops"])
    plots = {"schedule-plot", "coalescing-plot", "textbook-plot", "counted-plot"}
    assert {"schedule-claim", "coalescing-claim", "coalescing-table", *plots} <= set(grown_page["drawn"])


def test_the_contract_tests_hold_it(contract):
    outcomes, printed = contract
    own = {name: outcome for name, outcome in outcomes.items() if "column_strip" in name}
    assert set(own.values()) == {"PASSED"}, printed[-3000:]
    assert len(own) > 20, printed
    assert any("test_interpreter_addresses" in name for name in own), printed
