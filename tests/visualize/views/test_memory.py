"""The Memory view: its headlines, tables and reasons for compiled kernels and its figures."""

import re
from dataclasses import astuple, replace

import numpy as np
import pytest

from tests.messages import decode, opened, text_of
from tests.tables import read_table
from tests.trees import ROOT
from tilescope.captures.reader import Capture
from tilescope.measure.counters import COUNTERS
from tilescope.reports.launch import Launches
from tilescope.results import records
from visualize.predict.costs import LaunchCosts, Textbook
from visualize.views.launches import LaunchView, draw, draw_launch
from visualize.views.memory import text
from visualize.views.memory.compiler import CompilerPanel
from visualize.views.memory.flow import (
    make_flow,
    request_titles,
)
from visualize.views.memory.view import find_contrast
from visualize.views.prose import html
from visualize.views.state import Snapshot
from visualize.views.tabs import TABS
from visualize.web.assets import VISUALIZE
from visualize.web.scripts import shipped_scripts

GROUPED = "matmul.grouped"
TILED = "transpose.tiled"
FLAT = "transpose.flat"
PERSISTENT = "matmul.persistent"
TINY = "matmul.grouped M=1 N=1 K=1"
TF32 = "matmul.grouped dtype=float32"
EDGE = (
    "matmul.fused_add_relu M=64 N=16 K=872 dtype=bfloat16 layout=NT precision=ieee "
    "BLOCK_M=128 BLOCK_N=64 BLOCK_K=64 GROUP_SIZE=5 num_warps=8 num_stages=4"
)
ATOMIC = "matmul.split_k_atomic N=500"
ROW_STRIP = "transpose.row_strip M=1023 N=129"
SMALL_TILE = "transpose.tiled M=63 N=65 BLOCK_M=4 BLOCK_N=4 num_warps=4"
LAUNCHES = (
    GROUPED,
    "transpose.tiled M=1000 N=1000",
    "transpose.tiled M=1001 N=1001",
    TILED,
    "transpose.tiled lanes=loaded",
    FLAT,
    TINY,
    TF32,
    "matmul.grouped dtype=float32 layout=NT",
    "matmul.grouped dtype=float32 gpu=A100-80GB",
    SMALL_TILE,
    ATOMIC,
    PERSISTENT,
    EDGE,
)


@pytest.fixture
def costs_of(compile_kernel):
    """A function that compiles a kernel and returns its costs beside the recorded counts."""

    def make(flat):
        state = opened(f"gpu=H200 {flat}")
        code = compile_kernel(state.experiment)
        counters = records.find(COUNTERS.form, state.experiment, state.gpu.name)
        return LaunchCosts(state.kernel, state.launch, code, counters, state.view.of(Textbook))

    return make


def describe(costs):
    """Return the text about a launch: tables with reasons, sentences, and each operation's headline and bar."""
    parts = [
        text.declared_operations_table(costs),
        html([text.launch_sentence(costs), text.agreement_sentence(costs)]),
    ]
    for op in costs.textbook:
        headline, *_ = text.memory_headline(costs, op.number, 1).split("<details")
        parts += ["<p>", headline, text.launch_bar([op], costs.textbook)]
    return "".join(parts)


def test_the_texts_are_the_approved_ones(costs_of, approve):
    texts = {flat: describe(costs_of(flat)) for flat in LAUNCHES}
    grouped = costs_of(GROUPED)
    texts["before it is compiled"] = describe(replace(grouped, code=None))
    texts["neither compiled nor counted"] = describe(replace(grouped, code=None, counters=None))
    tiled = costs_of(TILED)
    counters = tiled.counters
    more = tuple(replace(row, lines=row.lines + 1, sectors=row.sectors + 1) for row in counters.ops)
    texts["other counts"] = describe(replace(tiled, counters=replace(counters, ops=more)))
    first, *rest = tiled.code.operations
    narrow = (replace(first, width_bytes=8), *rest)
    texts["other code"] = describe(replace(tiled, code=replace(tiled.code, operations=narrow)))
    texts["beside a pinned experiment"] = "".join(
        text.memory_headline(costs_of(flat), 1, 1, is_compared=True) for flat in (TILED, FLAT)
    )
    for name in ("script.vector_add", "script.attention"):
        slots = draw(shipped_scripts()[name].launches, LaunchView(), {"kernel": name})
        texts[name] = slots["requests-table"]
    approve("memory", texts)


def test_a_b200_has_tensor_memory_among_its_limits_and_its_buffers(session, compile_kernel):
    state = opened("gpu=B200 BLOCK_M=128 BLOCK_N=128 num_warps=8")
    compiled = compile_kernel(state.experiment)
    inspected = session.inspect(state.experiment).result()
    slots = CompilerPanel().draw(Snapshot(state, compiled, inspected=inspected))
    assert "tensor memory 128 columns per program 512 columns per SM 4" in text_of(
        slots["resources"]
    )
    plot = decode(slots["tensor-map-plot"])
    assert plot["layout"]["title"]["text"] == "Tensor memory of one program: 128 columns"
    (bars,) = plot["data"]
    assert (bars["base"], bars["y"], bars["text"]) == ([0], [128], ["line 53: 128 columns"])


def test_the_parts_of_a_view_that_a_script_keeps_exist():
    style = (VISUALIZE / "web" / "assets" / "script.css").read_text()
    rule = style.partition("> :not(")[2].partition("\n)")[0]
    parts = re.findall(r"#([a-z-]+)(?=[,\s]*[,\n])", rule)
    page = "".join(panel().render_layout() for tab in TABS for panel in tab.panels)
    assert len(parts) > 5
    assert [name for name in parts if f'id="{name}"' not in page] == []


@pytest.mark.parametrize(
    "flat", [TINY, TF32, EDGE, SMALL_TILE, "transpose.flat M=577 N=577", ROW_STRIP]
)
def test_the_picture_shows_the_bytes_and_sectors_of_the_cost(costs_of, flat):
    costs = costs_of(flat)
    for op in costs.compiled:
        picture = make_flow(op)
        lines = picture.lines(np.arange(len(picture.lanes.address)))
        counts = np.array(astuple(op.tile)[: len(op.tally.counts)])
        of_one_tile = replace(op, tally=replace(op.tally, counts=counts))
        assert text.used_bytes(of_one_tile) == lines.used_bytes.sum()
        assert lines.sectors.sum() == op.tile.sectors
        if flat == EDGE and op.number == 0:
            assert picture.title == "Compiled: one TMA box"
            assert f"{op.tile.sectors:,} sectors" in request_titles(lines, picture.title)[0]


CONTRASTS = """
transpose.flat | 1 | transpose.tiled |
transpose.flat M=1000 | 1 | None |
transpose.tiled | 1 | transpose.flat |
transpose.flat | 0 | None |
matmul.persistent | 0 | None | TMA boxes waste as little as lanes
matmul.grouped M=16384 N=16384 K=4096 | 0 | None | Stream-K accesses other tensors here than where its code was recorded
"""


@pytest.mark.parametrize(("flat", "number", "expected", "why"), read_table(CONTRASTS))
def test_a_picture_stands_beside_the_kernel_that_differs_most(
    costs_of, flat, number, expected, why
):
    state = opened(f"gpu=H200 {flat}")
    own = costs_of(flat).compiled[number]
    contrast = find_contrast(state, own)
    assert (contrast and contrast.kernel.id) == expected
    if contrast:
        assert contrast.experiment.problem == state.experiment.problem
        assert contrast.operation.access.tensor == own.access.tensor


def test_a_narrow_store_is_explained_by_the_length_of_its_rows_and_not_by_their_number():
    launches = Launches(Capture(ROOT / "tests/tilescope/oracle/shared_memory/matmul.tilescope"))
    slots = draw_launch(launches, LaunchView(tab="requests", launch=3), {})
    assert "store c : N = 71 is not a multiple of 16" in text_of(slots["requests-table"])
    assert "M = 133" not in slots["requests-table"]
