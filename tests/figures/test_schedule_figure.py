"""The picture of a launch holds what the model says: tiles, blocks, and what the player draws steps from."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import pytest

from kernels import discover
from kernels.gpus import GPUS
from kernels.spec import Launch
from visualize.figures.composite import MOST_CELLS, composite
from visualize.figures.loads_figure import loads_figure
from visualize.figures.player_data import player_data
from visualize.figures.schedule_figure import COLORS, Order, schedule_figure
from visualize.predict.schedule import first_reads, row_major, schedule, slice_blocks, steps


def planned(kernel_id, problem, config, by="wave"):
    """A launch on an H200 in both orders."""
    kernel = discover()[kernel_id]
    launch = Launch(kernel.family.problem(**problem), kernel.config(**config), GPUS["H200"])
    ours = schedule(kernel, launch)
    named = {"this order": ours, "row-major order": row_major(ours)}
    return [Order(name, order, steps(order, by)) for name, order in named.items()]


def grouped(m, n, size, k=2, by="wave"):
    problem = {"M": 16 * m, "N": 16 * n, "K": 32 * k}
    return planned("matmul.grouped", problem, {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 32, "GROUP_SIZE": size}, by)


def split(m, n, slices, k=512):
    problem = {"M": 16 * m, "N": 16 * n, "K": k}
    return planned("matmul.split_k_atomic", problem, {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 32, "SPLIT_K": slices})


def shown(launch, color, entries):
    """The colour of cells that show these entries of the schedule's tiles."""
    program, group = launch.tiles.program[entries], launch.tiles.group[entries]
    return {"order": program, "group": group % 8, "wave": launch.step[entries] % 8, "sm": program % launch.sms}[color]


def parts(order, grid):
    """The picture's grid taken apart: C, A and B, with a cell along K only once."""
    place = composite(order.schedule)
    top, left = place.down.lead, place.across.lead
    a, b = grid[top:, : left - place.across.gap], grid[: top - place.down.gap, left:]
    for nothing in (grid[:top, :left], grid[top:, left - place.across.gap : left]):
        assert np.ma.getmaskarray(nothing).all(), "the corner and the gap are empty"
    return grid[top:, left:], a[:, :: place.across.repeat], b[:: place.down.repeat]


LAUNCHES = [grouped(9, 9, 3, 9), grouped(1, 1, 1), grouped(7, 33, 4, 40), grouped(129, 5, 8), split(3, 9, 4)]


@pytest.mark.parametrize("color", COLORS)
@pytest.mark.parametrize("orders", [*LAUNCHES, split(2, 3, 16, k=96)])
def test_each_tile_and_each_block_shows_its_program_group_wave_or_sm(color, orders):
    picture = schedule_figure(orders, color)
    assert len(picture["data"]) == 2, "both orders, a trace each"
    for order, trace in zip(orders, picture["data"], strict=True):
        launch, place = order.schedule, composite(order.schedule)
        c, a, b = parts(order, trace["z"])
        assert np.array_equal(c, shown(launch, color, launch.entry.min(axis=0)))
        rows, columns = first_reads(order.steps)
        assert np.array_equal(a, shown(launch, color, rows[:, place.slice_of]))
        assert np.array_equal(b, shown(launch, color, columns[place.slice_of]))


@pytest.mark.parametrize("orders", LAUNCHES)
def test_plotly_takes_the_picture(orders):
    picture = schedule_figure(orders, "order")
    checked = go.Figure(picture)
    for trace in checked.data:
        assert trace.hovertemplate == "%{hovertext}<extra></extra>"
        for sides, along in ((trace.x, 1), (trace.y, 0)):
            assert sides is None or len(sides) == trace.z.shape[along] + 1
            assert sides is None or (np.diff(sides) > 0).all()


def test_few_blocks_along_k_are_drawn_one_by_one_and_many_as_a_strip():
    assert composite(grouped(9, 9, 3, 9)[0].schedule).slice_of.tolist() == [0] * 9
    assert composite(grouped(9, 9, 3, 33)[0].schedule).slice_of.tolist() == [0]
    assert composite(grouped(9, 2, 3, 9)[0].schedule).slice_of.tolist() == [0], "they would dwarf two columns of tiles"
    sliced = split(3, 9, 4, k=320)[0].schedule
    assert composite(sliced).slice_of.tolist() == np.repeat(np.arange(4), slice_blocks(sliced)).tolist()


def test_a_large_picture_shows_every_second_tile_in_cells_of_one_size():
    orders = grouped(300, 512, 8, 64)
    trace = schedule_figure(orders, "order")["data"][0]
    place = composite(orders[0].schedule)
    assert max(place.down.cells, place.across.cells) <= MOST_CELLS
    assert (trace["dx"], trace["dy"], trace["xgap"]) == (2, 2, 0)
    assert "x" not in trace, "Plotly draws cells of one size as pixels"
    c, _, _ = parts(orders[0], trace["z"])
    first = orders[0].schedule.entry.min(axis=0)
    assert c[3, 5] == orders[0].schedule.tiles.program[first[6, 10]]
    across = trace["x0"] + trace["dx"] * np.arange(trace["z"].shape[1])
    assert across[place.across.lead] == 1, "the middle of tiles 0 and 1"


def test_c_lies_at_its_tiles_numbers_with_a_at_its_left_and_b_above_it():
    layout = schedule_figure(grouped(9, 5, 3, 9), "order")["layout"]
    notes = {(note["xref"], note["text"]): note for note in layout["annotations"]}
    for number, name in (("", "this order"), ("2", "row-major order")):
        x, y = layout[f"xaxis{number}"], layout[f"yaxis{number}"]
        assert x["title"]["text"] == "pid_n"
        assert (notes[f"x{number} domain", name]["x"], notes[f"x{number} domain", name]["y"]) == (0.5, 1), "above it"
        assert (x["range"][1], y["range"][0]) == (5, 9), "pid_m down"
        named = dict(zip(x["ticktext"], x["tickvals"], strict=True))
        assert (named["0"], named["4"]) == (0.5, 4.5)
        a, b = notes[f"x{number}", "<b>A</b>"], notes[f"x{number}", "<b>B</b>"]
        assert (a["x"] < 0, a["y"], a["yanchor"]) == (True, 0, "bottom"), "above A's blocks"
        assert (b["y"] < 0, b["x"], b["xanchor"]) == (True, 0, "right"), "beside B's blocks"
        assert (f"x{number} domain", "<b>C</b>: the pid of each tile") in notes
    assert layout["xaxis"]["domain"][1] < layout["xaxis2"]["domain"][0], "side by side"
    assert (layout["xaxis2"]["matches"], layout["yaxis2"]["matches"]) == ("x", "y"), "zoomed together"


@pytest.mark.parametrize("orders", [grouped(30, 41, 8), split(3, 9, 4)], ids=["large", "split"])
def test_where_no_pid_stands_in_a_tile_the_picture_does_not_say_so(orders):
    notes = schedule_figure(orders, "order")["layout"]["annotations"]
    assert [note["text"] for note in notes if "C" in note["text"]] == ["<b>C</b>"] * 2


def test_a_copy_shows_what_it_reads_and_transposed_what_it_writes():
    orders = planned("transpose.tiled", {"M": 96, "N": 256}, {"BLOCK_M": 32, "BLOCK_N": 32})
    picture = schedule_figure(orders, "order")
    read, written = picture["data"]
    launch = orders[0].schedule
    assert np.array_equal(read["z"], launch.tiles.program[launch.entry.min(axis=0)])
    assert np.array_equal(written["z"], read["z"].T)
    layout = picture["layout"]
    assert [note["text"] for note in layout["annotations"]] == ["A as it is read", "B as it is written"]
    assert [layout[axis]["title"]["text"] for axis in ("xaxis", "xaxis2")] == ["pid_n", "pid_m"]
    told = player_data(orders, None, "order", 0, 0, 0)
    assert (len(told["orders"]), told["transposed"], told["panels"]) == (1, [False, True], None), "no row-major twin"


@pytest.mark.parametrize("orders", [grouped(30, 41, 8), split(3, 9, 4)], ids=["grouped", "split"])
def test_the_player_gets_every_tile_step_after_step(orders):
    told = player_data(orders, None, "order", 2, 9, 1)
    rows, columns = told["extents"]
    for order, one in zip(orders, told["orders"], strict=True):
        launch = order.schedule
        places = one.get("places", np.arange(len(launch.tiles.program)))
        slices, rest = np.divmod(places, rows * columns)
        assert np.array_equal(slices, launch.tiles.pid_k)
        assert np.array_equal(rest // columns, launch.tiles.pid_m)
        assert np.array_equal(rest % columns, launch.tiles.pid_n)
        assert one.get("tiles", np.ones(one["count"])).sum() == len(places)
        runs = np.diff(np.append(one["groups"]["from"], len(places)))
        assert np.array_equal(np.repeat(one["groups"]["value"], runs), launch.tiles.group)
    assert (told["step"], told["first"], told["bound"], told["name"]) == (2, 9, 1, "wave")
    assert "places" not in told["orders"][1] or orders[0].schedule.slices > 1, "row-major tiles are in their own order"


def test_the_player_of_a_loop_goes_turn_by_turn_or_tile_by_tile():
    orders = planned("matmul.persistent", {"M": 2048, "N": 4096, "K": 64}, {})
    told = player_data(orders, None, "order", 0, 0, 0)
    ours = told["orders"][0]
    assert (told["name"], told["unit"], told["slots"]) == ("turn", "tile", 132)
    assert ours["tiles"].tolist() == [132, 132, 132, 116]
    assert ours["programs"][:134].tolist() == [*range(132), 0, 1]
    single = planned("matmul.persistent", {"M": 2048, "N": 4096, "K": 64}, {}, by="program")
    told = player_data(single, None, "order", 0, 0, 0)
    assert (told["name"], told["orders"][0]["count"]) == ("tile", 512)
    assert "tiles" not in told["orders"][0], "one in each step"


def test_the_curve_holds_both_orders_and_marks_one_n():
    counts = np.array([1, 2, 9, 81])
    curves = {"grouped": np.array([18, 27, 54, 162]), "row-major order": np.array([18, 27, 90, 162])}
    figure = go.Figure(loads_figure(counts, curves, 9, "programs", ("A", "B")))
    ours, reference, marks = figure.data
    assert (list(ours.y), list(reference.y)) == ([18, 27, 54, 162], [18, 27, 90, 162])
    assert (list(marks.x), list(marks.y)) == ([9, 9], [54, 90])
    assert "programs" in figure.layout.xaxis.title.text
    assert figure.layout.yaxis.title.text == "distinct blocks of A and B"
