"""The Order view: its figures and its sentences hold what the models predict and what was recorded."""

import itertools
import re
from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import pytest
from markupsafe import escape

from tests.experiments import experiment_of, fill_sms, launch_from
from tilescope.declare.experiment import launch_of
from tilescope.declare.gpus import GPUS
from tilescope.measure.counters import GROUP_SIZES
from tilescope.measure.timeline import TIMELINE
from tilescope.results import Failure, GroupSizeRow, records
from visualize.predict.costs import Textbook
from visualize.predict.reuse import DramTraffic, Reuse
from visualize.predict.schedule import player_steps, row_major, schedule, steps
from visualize.views.order import figures
from visualize.views.order.dram_reads import (
    dram_reads_headline,
    reuse_sentences,
    stages_table,
)
from visualize.views.order.map_figure import Order, map_figure, player_data
from visualize.views.order.text import (
    loads_headline,
    occupancy_table,
    split_k_sentence,
    waves_sentence,
)
from visualize.views.order.view import reuse_json
from visualize.views.prose import Link, html, plain
from visualize.views.slots import plot_value
from visualize.views.state import Snapshot, State, View
from visualize.web.page import first_picture


def planned(text, divide=steps):
    """Plan a launch on an H200 in its own order and in row-major order."""
    own = schedule(*launch_from(text))
    named = {"this order": own, "row-major order": row_major(own)}
    return [Order(name, order, divide(order)) for name, order in named.items()]


def grouped(m, n, size, k=2, divide=steps):
    tiles = f"M={16 * m} N={16 * n} K={32 * k} BLOCK_M=16 BLOCK_N=16 BLOCK_K=32"
    return planned(f"matmul.grouped {tiles} GROUP_SIZE={size}", divide)


def split(m, n, slices, k=16):
    tiles = f"M={16 * m} N={16 * n} K={32 * k} BLOCK_M=16 BLOCK_N=16 BLOCK_K=32"
    return planned(f"matmul.split_k_atomic {tiles} SPLIT_K={slices}")


GB = 1_000_000_000
PREDICTED = {
    size: Reuse(size * GB, 0.9 * size * GB, 1.2 * size * GB, lockstep * GB, GB // 2, 9 * GB, GB)
    for size, lockstep in ((1, 1.0), (2, 2.1), (3, 3.9), (4, 2.0))
}
ROWS = [
    GroupSizeRow(1, 0, 0, (GB, 2 * GB, 4 * GB), (), None, None, (1.0, 2.0, 9.0)),
    GroupSizeRow(4, 0, 0, (), (), None, None, (3.0, 3.0, 3.0)),
]


def test_the_maps_and_what_their_player_gets_are_the_approved_ones(approve):
    launches = {
        "9 × 5 tiles": grouped(9, 5, 3, 9),
        "too many tiles for numbers": grouped(30, 41, 8, 33),
        "columns of tiles that blocks would dwarf": grouped(9, 2, 3, 9),
        "every second tile of 300 × 512": grouped(300, 512, 8, 64),
        "slices": split(3, 9, 4, 8),
        "a copy": planned("transpose.tiled M=96 N=256 BLOCK_M=32 BLOCK_N=32"),
    }
    shown = {name: map_figure(orders) for name, orders in launches.items()}
    for name in ("slices", "a copy"):
        shown[f"player of {name}"] = player_data(launches[name], 2, 9, 1)
    for unit, divide in (("turn", steps), ("tile", player_steps)):
        loop = planned("matmul.persistent M=2048 N=2048 K=64", divide)
        shown[f"player of a loop by {unit}"] = player_data(loop, 0, 0, 0)
    approve("order_maps", shown)
    for name in launches:
        go.Figure(shown[name])  # raises if Plotly lacks a property


def test_the_opening_picture_is_the_approved_one(approve):
    drawing, _ = first_picture(None).split("<script>")
    approve("first_picture", {"both orders": escape(drawing.replace("<path", " ¶ <path"))})


def test_the_figures_are_the_approved_ones(approve):
    equal = {size: Reuse(GB, GB, GB, GB, GB, 9 * GB, GB) for size in (1, 2)}
    figures_by_name = {
        "reads": figures.bytes_figure(PREDICTED, ROWS, 4, "counted"),
        "equal reads": figures.bytes_figure(equal, [], 1, "counted"),
        "times": figures.times_figure(ROWS, ROWS[0], 1, "measured"),
    }
    for name, m in (("wide", 2432), ("narrow", 7168)):
        ran = next(each for each in RECORDED if (m, 256) == (each.problem.M, each.config.BLOCK_N))
        figures_by_name[f"a {name} last wave"] = figures.gantt_figure(*recorded(ran))
    validated = {name: go.Figure(figure) for name, figure in figures_by_name.items()}
    approve("order_figures", validated)


H200 = GPUS["H200"]
RECORDED = records.experiments(TIMELINE.form, "H200")


def recorded(experiment):
    """Return an experiment's recorded timeline and its predicted schedule."""
    timeline = records.find(TIMELINE.form, experiment, "H200")
    return timeline, schedule(*launch_of(experiment, H200))


@pytest.mark.parametrize("experiment", RECORDED, ids=lambda e: e.kernel)
def test_every_program_is_one_bar_on_its_sm_from_its_start_to_its_end(experiment):
    timeline, plan = recorded(experiment)
    traces = go.Figure(figures.gantt_figure(timeline, plan)).data
    pids = np.concatenate([trace.customdata[0] for trace in traces])
    assert sorted(pids) == list(range(plan.programs))
    x, y = (
        np.concatenate([np.reshape(trace[side], (-1, 5)) for trace in traces])[np.argsort(pids)]
        for side in "xy"
    )
    start, end, top, bottom = x[:, 0], x[:, 1], y[:, 0], y[:, 2]
    assert start == pytest.approx(np.array(timeline.start_ns) / 1000)
    assert end == pytest.approx(np.array(timeline.end_ns) / 1000)
    assert np.array_equal(np.round([top + 0.01, bottom - 0.01]), [timeline.sm] * 2)
    rows = sorted(zip(np.round(top, 4), start, end, strict=True))
    for (row, _, end), (next_row, start, _) in itertools.pairwise(rows):
        assert start >= end or next_row > row, "concurrent bars lie apart"


def test_a_timeline_of_8192_programs_takes_less_than_150_kb():
    plan = fill_sms(
        schedule(*launch_from("transpose.tiled M=8192 N=8192 BLOCK_M=64 BLOCK_N=128")), 6
    )
    random = np.random.default_rng(0)
    pids = np.arange(8192)
    start = pids // 792 * 11_008 + random.integers(0, 60, 8192) * 32
    end = start + random.integers(200, 400, 8192) * 32
    timeline = replace(
        recorded(RECORDED[0])[0],
        sm=tuple((pids * 7 % 132).tolist()),
        start_ns=tuple((start - start.min()).tolist()),
        end_ns=tuple((end - start.min()).tolist()),
    )
    assert len(plot_value(figures.gantt_figure(timeline, plan), about="x")) < 150_000


SEVEN_SMS = replace(H200, sms=7, name="seven")
LINK = Link("All sizes", "")


def plan(text, per_sm=1):
    return fill_sms(schedule(*launch_of(experiment_of(text), SEVEN_SMS)), per_sm)


def traffic(text):
    experiment = experiment_of(text)
    study = records.find(GROUP_SIZES.form, experiment, "H200")
    return DramTraffic(*launch_of(experiment, H200), None, study)


LARGE = "matmul.grouped M=8192 N=8192 K=8192 BLOCK_M=128 BLOCK_N=256 BLOCK_K=64 num_warps=8"
GROUPED = traffic(f"{LARGE} GROUP_SIZE=8")
ROW_MAJOR = traffic(f"{LARGE} GROUP_SIZE=1")
ADDED = traffic("matmul.split_k_atomic M=64 N=64 K=64 SPLIT_K=1")
COPY = traffic("transpose.tiled")
FITS = traffic(f"{LARGE} M=2048 N=2048 K=2048")


def slow_down(row_major_ms, grouped_ms=2.0):
    """Replace the study's times by these, with noise."""
    rows = []
    for row in GROUPED.study.rows:
        ms = row_major_ms if row.group_size == 1 else grouped_ms
        noise = 0.005 if row.group_size == 1 else -0.005
        rows.append(replace(row, times_ms=(ms, ms * (1 + noise), ms * (1 - noise))))
    return replace(GROUPED, study=replace(GROUPED.study, rows=tuple(rows)))


NINE = grouped(9, 9, 3, 9, player_steps)
BLOCKS = {
    "fewer": (NINE, 9),
    "more": (grouped(32, 16, 4, 64, player_steps), 132),
    "row-major": (grouped(9, 9, 1, 9, player_steps), 9),
    "every block": (NINE, 81),
    "as many rows": (NINE, 1),
}
REUSE = {
    "counted": GROUPED,
    "measured here": replace(GROUPED, study=replace(GROUPED.study, backend="cuda")),
    "equally fast": slow_down(2.0),
    "a little faster": slow_down(2.12),
    "faster": slow_down(3.0),
    "an output that is added to": ADDED,
    "all inputs fit in the L2": FITS,
    "a copy": COPY,
}


def test_the_sentences_are_the_approved_ones(approve):
    grid = "matmul.grid_2d K=64 BLOCK_M=64 BLOCK_N=64"
    launches = {
        "three waves": plan(f"{grid} M=256 N=256"),
        "a single wave": plan(f"{grid} M=64 N=192"),
        "a full last wave": plan(f"{grid} M=64 N=896", per_sm=2),
        "turns": plan("matmul.persistent M=512 N=512 K=128 BLOCK_M=128 BLOCK_N=128", per_sm=2),
        "slices": plan("matmul.split_k_atomic M=64 N=64 K=512"),
    }
    texts = {}
    for name, order in launches.items():
        sentences = [waves_sentence(order, steps(order)), split_k_sentence(order)]
        texts[name] = html(sentences) + occupancy_table(order)
    for name, (orders, first) in BLOCKS.items():
        texts[f"blocks: {name}"] = loads_headline(*orders, first, ROW_MAJOR, LINK, ())
    texts["blocks: a gain"] = loads_headline(*NINE, 9, slow_down(3.0), LINK, ("End.",))
    for name, reads in REUSE.items():
        texts[f"reads: {name}"] = dram_reads_headline(reads, "", Link("Result", ""))
    approve("order", texts)


def test_the_loads_of_a_padded_input_are_among_the_requested_bytes():
    reads = traffic("matmul.persistent M=1000 N=1001 K=513 PAD=auto")
    operations = Textbook().count(reads.kernel, reads.launch)
    vars(reads)["operations"] = operations
    loaded = sum(op.launch.sectors for op in operations if op.access.op != "store")
    assert f"{32 * loaded:,}" in str(stages_table(reads))


@pytest.mark.parametrize("reads", REUSE.values(), ids=REUSE)
def test_the_apis_note_has_no_traces_of_the_pages_marks(reads):
    assert not re.search(r"\s[.,;:)]|  |<", plain(reuse_sentences(reads)))


def test_the_reply_is_the_approved_one(approve):
    failure = Failure("compile", "no_triton", "Triton is not installed.")
    state = State(experiment_of("matmul.grouped BLOCK_M=64"), View(""), H200)
    approve("order_reply", {"nothing is compiled": reuse_json(Snapshot(state, failure=failure))})
