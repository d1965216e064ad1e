"""The Order view's figures hold what the models predict and what was recorded."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import pytest

from kernels import discover
from kernels.gpus import GPUS
from kernels.measuring.timeline import TIMELINE
from kernels.results import GroupSizeRow, records
from kernels.spec import Launch
from visualize.predict.bounds import Bound
from visualize.predict.execution import Execution
from visualize.predict.reuse import Reuse
from visualize.predict.schedule import first_reads, loads, row_major, schedule, steps
from visualize.views.order import figures
from visualize.views.order.map_figure import MOST_CELLS, Order, map_figure, map_grid, player_data
from visualize.views.slots import plot_value
from visualize.views.state import COLORS


def planned(kernel_id, problem, config, by="wave"):
    """Plan a launch on an H200 in its own order and in row-major order."""
    kernel = discover()[kernel_id]
    own = schedule(kernel, Launch(kernel.family.problem(**problem), kernel.config(**config), GPUS["H200"]))
    named = {"this order": own, "row-major order": row_major(own)}
    return [Order(name, order, steps(order, by)) for name, order in named.items()]


def grouped(m, n, size, k=2, kernel_id="matmul.grouped", knob="GROUP_SIZE"):
    config = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 32, knob: size}
    return planned(kernel_id, {"M": 16 * m, "N": 16 * n, "K": 32 * k}, config)


def split(m, n, slices, k=16):
    return grouped(m, n, slices, k, "matmul.split_k_atomic", "SPLIT_K")


def parts(order, cells):
    """Return C's, A's and B's cells, each cell along K once."""
    grid = map_grid(order.schedule)
    top, left = grid.down.lead, grid.across.lead
    a, b = cells[top:, : left - grid.across.gap], cells[: top - grid.down.gap, left:]
    for empty in (cells[:top, :left], cells[top:, left - grid.across.gap : left]):
        assert np.ma.getmaskarray(empty).all(), "the corner and the gap are empty"
    return cells[top:, left:], a[:, :: grid.across.repeat], b[:: grid.down.repeat]


LAUNCHES = [grouped(9, 9, 3, 9), grouped(1, 1, 1), grouped(7, 33, 4, 40), grouped(129, 5, 8), split(3, 9, 4)]


@pytest.mark.parametrize("color", COLORS)
@pytest.mark.parametrize("orders", [*LAUNCHES, split(2, 3, 16, 3)])
def test_each_tile_and_block_shows_its_program_group_wave_or_sm(color, orders):
    picture = map_figure(orders, color)
    for order, trace, checked in zip(orders, picture["data"], go.Figure(picture).data, strict=True):
        launch, slice_of = order.schedule, map_grid(order.schedule).slice_of
        rows, columns = first_reads(order.steps)
        entries = launch.entry.min(axis=0), rows[:, slice_of], columns[slice_of]
        program, group = launch.tiles.program, launch.tiles.group
        values = {"order": program, "group": group % 8, "wave": launch.step % 8, "sm": program % launch.sms}[color]
        for cells, expected in zip(parts(order, trace["z"]), entries, strict=True):
            assert np.array_equal(cells, values[expected])
        for edges, along in ((checked.x, 1), (checked.y, 0)):
            assert edges is None or (len(edges) == trace["z"].shape[along] + 1 and (np.diff(edges) > 0).all())


@pytest.mark.parametrize(
    ("orders", "slices"),
    [
        (grouped(9, 9, 3, 9), [0] * 9),
        (grouped(9, 9, 3, 33), [0]),
        (grouped(9, 2, 3, 9), [0]),  # blocks would dwarf two columns of tiles
        (split(3, 9, 4, 8), [0, 0, 1, 1, 2, 2, 3, 3]),
    ],
)
def test_few_blocks_along_k_get_a_cell_each_and_many_share_a_strip(orders, slices):
    assert map_grid(orders[0].schedule).slice_of.tolist() == slices


def test_a_large_map_shows_every_second_tile_in_cells_of_equal_size():
    orders = grouped(300, 512, 8, 64)
    trace = map_figure(orders, "order")["data"][0]
    grid, launch = map_grid(orders[0].schedule), orders[0].schedule
    assert max(grid.down.cells, grid.across.cells) <= MOST_CELLS
    assert (trace["dx"], trace["dy"], trace["xgap"]) == (2, 2, 0)
    assert "x" not in trace, "Plotly draws cells of equal size as pixels"
    assert parts(orders[0], trace["z"])[0][3, 5] == launch.tiles.program[launch.entry.min(axis=0)[6, 10]]
    assert trace["x0"] + trace["dx"] * grid.across.lead == 1, "the middle of tiles 0 and 1"


def test_c_lies_at_its_tile_numbers_with_a_at_its_left_and_b_above():
    layout = map_figure(grouped(9, 5, 3, 9), "order")["layout"]
    notes = {(note["xref"], note["text"]): note for note in layout["annotations"]}
    for number, name in (("", "this order"), ("2", "row-major order")):
        x, y = layout[f"xaxis{number}"], layout[f"yaxis{number}"]
        assert (x["title"]["text"], x["range"][1], y["range"][0]) == ("pid_n", 5, 9), "pid_m down"
        assert dict(zip(x["ticktext"], x["tickvals"], strict=True))["4"] == 4.5
        assert notes[f"x{number} domain", name]["y"] == 1, "above the map"
        a, b = notes[f"x{number}", "<b>A</b>"], notes[f"x{number}", "<b>B</b>"]
        assert (a["x"] < 0, a["y"], a["yanchor"]) == (True, 0, "bottom"), "above A's blocks"
        assert (b["y"] < 0, b["x"], b["xanchor"]) == (True, 0, "right"), "beside B's blocks"
        assert (f"x{number} domain", "<b>C</b>: the pid of each tile") in notes
    assert layout["xaxis"]["domain"][1] < layout["xaxis2"]["domain"][0], "side by side"
    assert (layout["xaxis2"]["matches"], layout["yaxis2"]["matches"]) == ("x", "y"), "zoomed together"
    for unnumbered in (grouped(30, 41, 8), split(3, 9, 4)):
        texts = [note["text"] for note in map_figure(unnumbered, "order")["layout"]["annotations"]]
        assert texts.count("<b>C</b>") == 2


def test_a_copy_shows_its_reads_and_its_transposed_writes():
    orders = planned("transpose.tiled", {"M": 96, "N": 256}, {"BLOCK_M": 32, "BLOCK_N": 32})
    picture, launch = map_figure(orders, "order"), orders[0].schedule
    read, written = picture["data"]
    assert np.array_equal(read["z"], launch.tiles.program[launch.entry.min(axis=0)])
    assert np.array_equal(written["z"], read["z"].T)
    layout = go.Figure(picture).layout
    assert [note.text for note in layout.annotations] == ["A as read", "B as written"]
    assert [axis.title.text for axis in (layout.xaxis, layout.yaxis, layout.xaxis2)] == ["pid_n", "pid_m", "pid_m"]
    data = player_data(orders, "order", 0, 0, 0)
    assert (len(data["orders"]), data["transposed"], data["panels"]) == (1, [False, True], None)


@pytest.mark.parametrize("orders", [grouped(30, 41, 8), split(3, 9, 4)], ids=["grouped", "split"])
def test_the_player_gets_every_tile_step_by_step(orders):
    data = player_data(orders, "order", 2, 9, 1)
    for order, sent in zip(orders, data["orders"], strict=True):
        tiles = order.schedule.tiles
        places = sent.get("places", np.arange(len(tiles.program)))
        place = np.unravel_index(places, (order.schedule.slices, *data["extents"]))
        assert np.array_equal(place, [tiles.pid_k, tiles.pid_m, tiles.pid_n])
        assert sent.get("tiles", np.ones(sent["count"])).sum() == len(places)
        runs = np.diff(np.append(sent["groups"]["from"], len(places)))
        assert np.array_equal(np.repeat(sent["groups"]["value"], runs), tiles.group)
    assert (data["step"], data["first"], data["bound"], data["name"]) == (2, 9, 1, "wave")
    assert "places" not in data["orders"][1] or orders[0].schedule.slices > 1, "row-major tiles are in their own order"


def test_the_player_steps_through_a_loop_by_turn_or_by_tile():
    problem = {"M": 2048, "N": 4096, "K": 64}
    data = [player_data(planned("matmul.persistent", problem, {}, by), "order", 0, 0, 0) for by in ("wave", "program")]
    own, by_tile = (each["orders"][0] for each in data)
    assert [each["name"] for each in data] == ["turn", "tile"]
    assert (data[0]["unit"], data[0]["slots"]) == ("tile", 132)
    assert own["tiles"].tolist() == [132, 132, 132, 116]
    assert own["programs"][:134].tolist() == [*range(132), 0, 1]
    assert (by_tile["count"], "tiles" in by_tile) == (512, False), "one tile per step"


def by_name(figure):
    """Return the figure's traces by name, and its layout, as Plotly validates them."""
    validated = go.Figure(figure)
    return {trace.name: trace for trace in validated.data}, validated.layout


def test_the_curve_holds_both_orders_and_marks_one_n():
    orders = grouped(9, 9, 3, 9)
    traces, layout = by_name(figures.loads_figure(orders, 9))
    for order, marked in zip(orders, ("54", "90"), strict=True):
        trace = traces[order.name]
        assert np.array_equal(trace.y, loads(order.schedule, np.arange(1, 82)))
        assert [(n, text) for n, text in zip(trace.x, trace.text, strict=True) if text] == [(9, marked)]
    assert layout.xaxis.title.text == "n (programs, in start order)"
    assert layout.yaxis.title.text == "distinct blocks of A and B"


GB = 1_000_000_000
PREDICTED = {
    size: Reuse(size * GB, 0.9 * size * GB, 1.2 * size * GB, lockstep * GB, GB // 2, 9 * GB, GB)
    for size, lockstep in ((1, 1.0), (2, 2.1), (3, 3.9), (4, 2.0))
}
ROWS = [
    GroupSizeRow(1, 0, 0, (GB, 2 * GB, 4 * GB), (), None, None, (1.0, 2.0, 9.0)),
    GroupSizeRow(4, 0, 0, (), (), None, None, (3.0, 3.0, 3.0)),
]
BOUNDS = (Bound("DRAM", 1.0, "d"), Bound("L2", 2.0, "l"), Bound("arithmetic", 3.0, "a"), Bound(figures.TAIL, 0.5, "t"))


def test_predicted_reads_are_a_line_with_a_band_and_counts_are_medians_with_error_bars():
    traces, layout = by_name(figures.bytes_figure(PREDICTED, ROWS, 4, "counted"))
    line, band, points = traces["predicted"], traces["uncertainty"], traces["counted"]
    assert (list(line.x), list(line.y)) == ([1, 2, 3, 4], [GB, 2 * GB, 3 * GB, 4 * GB])
    assert list(band.x) == [1, 2, 3, 4, 4, 3, 2, 1]
    assert np.array(band.y) / GB == pytest.approx([0.9, 1.8, 2.7, 2.0, 4.8, 3.9, 2.4, 1.2])
    assert set(traces["each input once"].y) == {GB // 2}
    errors = points.error_y
    assert (list(points.x), [*points.y, *errors.arrayminus, *errors.array]) == ([1], [2 * GB, GB, 2 * GB])
    assert (layout.xaxis.title.text, list(layout.xaxis.tickvals)) == ("GROUP_SIZE (rows of tiles)", [1, 2, 4])
    assert (layout.yaxis.title.text, layout.yaxis.type) == ("bytes read from DRAM (log scale)", "log")
    assert layout.shapes[0].x0 == layout.shapes[0].x1 == 4
    assert (layout.annotations[0].x, layout.annotations[0].text) == (pytest.approx(0.60206), "this: 4")


def test_reads_that_hardly_differ_span_a_factor_of_three():
    equal = {size: Reuse(GB, GB, GB, GB, GB, 9 * GB, GB) for size in (1, 2)}
    traces, layout = by_name(figures.bytes_figure(equal, [], 1, "counted"))
    low, high = layout.yaxis.autorangeoptions.include
    assert (high / low, layout.yaxis.dtick, "counted" in traces) == (pytest.approx(3), "D1", False)


def test_times_are_medians_from_the_20th_to_the_80th_percentile():
    traces, layout = by_name(figures.times_figure(ROWS, 1, "measured"))
    (point, _), bars = traces["measured"].y, traces["measured"].error_y
    assert (point, bars.arrayminus[0], bars.array[0]) == pytest.approx((2.0, 0.6, 4.2))
    assert layout.yaxis.title.text == "milliseconds, p20 to p80"


@pytest.mark.parametrize(
    ("scale", "measured_ms", "unit", "stack"),
    [(1, 5.0, "ms", [3.0, 0.5, 1.5]), (0.01, 0.05, "µs", [30.0, 5.0, 15.0]), (1, 2.5, "ms", [3.0, 0.5, 0.0])],
)
def test_the_bottleneck_is_marked_and_the_rest_of_the_time_is_what_it_and_the_tail_leave(
    scale, measured_ms, unit, stack
):
    bounds = [replace(bound, ms=bound.ms * scale) for bound in BOUNDS]
    traces, layout = by_name(figures.bounds_figure(bounds, measured_ms, "recorded"))
    assert list(traces["alone"].y) == ["DRAM", "L2", "arithmetic"]
    marked = "30.0 µs (bottleneck)" if unit == "µs" else "3.00 ms (bottleneck)"
    assert [text for text in traces["alone"].text if "bottleneck" in text] == [marked]
    assert list(traces["time"].x) == pytest.approx(stack)
    assert list(traces["time"].customdata) == ["arithmetic", figures.TAIL, "not explained by these"]
    assert (layout.title.text, layout.xaxis.title.text) == ("Time each resource would take alone", unit)
    assert layout.shapes[0].x0 == pytest.approx(measured_ms * (1000 if unit == "µs" else 1))
    assert set(by_name(figures.bounds_figure(bounds, None, "measured"))[0]) == {"alone"}


RECORDED = records.experiments(TIMELINE.form, "H200")


def recorded(experiment):
    """Return an experiment's recorded execution and its predicted schedule."""
    ran, kernel = records.find(TIMELINE.form, experiment, "H200"), discover()[experiment.kernel]
    launch = Launch(experiment.problem, experiment.config, GPUS["H200"])
    execution = Execution(np.array(ran.sm), np.array(ran.start_ns), np.array(ran.end_ns), 132)
    return execution, schedule(kernel, launch)


def bars(figure):
    """Return pid → (start, end, top, bottom, colour, hover values), from the corners of each shape."""
    found = {}
    for trace in go.Figure(figure).data:
        x, y = (np.reshape(side, (-1, 5)) for side in (trace.x, trace.y))
        assert np.isnan(x[:, 4]).all()
        assert np.array_equal(x[:, :2], x[:, [3, 2]])
        for hover, at, high in zip(trace.customdata.T.tolist(), x, y, strict=True):
            assert hover[0] not in found, "a program is drawn once"
            found[hover[0]] = (at[0], at[1], high[0], high[2], trace.fillcolor, hover)
    return found


@pytest.mark.parametrize("experiment", RECORDED, ids=lambda e: e.kernel)
def test_every_program_is_one_bar_on_its_sm_from_its_start_to_its_end(experiment):
    execution, plan = recorded(experiment)
    figure = figures.gantt_figure(execution, plan, "wave")
    programs = bars(figure)
    assert sorted(programs) == list(range(plan.programs))
    tiles, first = plan.tiles, np.searchsorted(plan.tiles.program, np.arange(plan.programs))
    count, waves = np.bincount(tiles.program), {}
    for pid, (start, end, top, bottom, color, hover) in programs.items():
        assert (start, end) == pytest.approx((execution.start_ns[pid] / 1000, execution.end_ns[pid] / 1000))
        assert execution.sm[pid] - 0.5 < top < bottom < execution.sm[pid] + 0.5
        origin = [column[first[pid]] for column in (tiles.pid_m, tiles.pid_n, tiles.pid_k)]
        wave = pid // plan.resident_programs
        assert hover == [pid, *origin, wave, count[pid]]
        assert waves.setdefault(wave % 8, color) == color
    assert len(set(waves.values())) == len(waves), "a colour for each wave"
    rows = sorted(programs.values(), key=lambda bar: (round(bar[2], 4), bar[0]))
    for (_, end, top, *_), (start, _, next_top, *_) in itertools.pairwise(rows):
        assert start >= end or next_top > top, "concurrent bars lie apart"
    x, y, title = (figure["layout"][name] for name in ("xaxis", "yaxis", "title"))
    assert title["text"] == f"{plan.programs:,} programs, coloured by ideal wave"
    assert (y["title"]["text"], y["range"]) == ("SM", [131.5, -0.5])
    assert (x["title"]["text"], x["range"]) == ("time from the first start (µs)", [0, execution.span_ns / 1000])
    for other in ("order", "group", "sm"):
        assert {pid: bar[:4] for pid, bar in bars(figures.gantt_figure(execution, plan, other)).items()} == {
            pid: bar[:4] for pid, bar in programs.items()
        }


@pytest.mark.parametrize("experiment", RECORDED, ids=lambda e: e.kernel)
def test_every_tile_has_its_cell_and_its_times(experiment):
    execution, plan = recorded(experiment)
    begun, done = execution.tile_times(plan)
    picture = figures.moment_figure(plan, "title", (begun, done))
    data, figure = picture["layout"]["meta"]["moments"], go.Figure(picture)
    cells, layout = figure.data[0], figure.layout
    assert data["columns"] == cells.z.shape[1]
    cell = np.ravel_multi_index((plan.tiles.pid_m // cells.dy, plan.tiles.pid_n // cells.dx), cells.z.shape)
    assert np.array_equal(data["cell"], cell)
    assert set(cell.tolist()) == set(range(cells.z.size)), "no cell is left out"
    assert np.array_equal([data["begun_ns"], data["done_ns"]], [begun, done])
    assert ("pid_m" in layout.yaxis.title.text, "pid_n" in layout.xaxis.title.text) == (True, True)
    assert layout.yaxis.range[0] > layout.yaxis.range[1], "pid_m down"


def test_a_timeline_of_8192_programs_takes_less_than_150_kb():
    order, _ = planned("transpose.tiled", {"M": 8192, "N": 8192}, {"BLOCK_M": 64, "BLOCK_N": 128})
    plan = replace(order.schedule, resident_programs=6 * 132)
    random, pids = np.random.default_rng(0), np.arange(8192)
    start = pids // 792 * 11_008 + random.integers(0, 60, 8192) * 32
    end = start + random.integers(200, 400, 8192) * 32
    execution = Execution(pids * 7 % 132, start - start.min(), end - start.min(), 132)
    for color in ("order", "wave"):
        assert len(plot_value(figures.gantt_figure(execution, plan, color), about="x")) < 150_000
