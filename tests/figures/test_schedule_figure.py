"""The maps of a launch hold what the model says: tiles, panels, and what the player draws steps from."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import discover
from kernels.gpus import GPUS
from kernels.spec import Launch
from visualize.figures.schedule_figure import COLORS, MOST_CELLS, loads_figure, player_data, schedule_figure
from visualize.models.schedule import schedule, tile_map
from visualize.models.steps import first_reads, panels, steps


def planned(kernel_id, problem, config):
    """A launch on an H200, and its steps."""
    kernel = discover()[kernel_id]
    launch = Launch(kernel.family.problem(**problem), kernel.config(**config), GPUS["H200"])
    made = schedule(kernel, launch)
    return made, steps(made, panels(kernel, launch, made))


def grouped(m, n, size):
    return planned(
        "matmul.grouped",
        {"M": 16 * m, "N": 16 * n, "K": 64},
        {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 32, "GROUP_SIZE": size},
    )


def split(m, n, slices, k=512):
    return planned(
        "matmul.split_k_atomic",
        {"M": 16 * m, "N": 16 * n, "K": k},
        {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 32, "SPLIT_K": slices},
    )


def shown(launch, color, entries):
    """The colour of cells that show these entries of the schedule's tiles."""
    program, group = launch.tiles.program[entries], launch.tiles.group[entries]
    return {"order": program, "group": group % 8, "wave": launch.step[entries] % 8, "sm": program % launch.sms}[color]


@pytest.mark.parametrize("color", COLORS)
@pytest.mark.parametrize(("m", "n", "size"), [(1, 1, 1), (9, 9, 3), (7, 33, 4), (129, 5, 8)])
def test_each_tile_shows_its_program_group_wave_and_sm(color, m, n, size):
    launch, cut = grouped(m, n, size)
    picture = schedule_figure(launch, cut, "title", color).data[0]
    entries = launch.first_of_tile
    assert np.array_equal(picture.customdata[..., 0], tile_map(launch, launch.tiles.program))
    assert np.array_equal(picture.customdata[..., 1], launch.tiles.group[entries])
    assert np.array_equal(picture.customdata[..., 2], launch.wave[entries])
    assert np.array_equal(picture.customdata[..., 3], launch.tiles.program[entries] % 132)
    assert np.array_equal(picture.z, shown(launch, color, entries))


@pytest.mark.parametrize("color", COLORS)
@pytest.mark.parametrize(
    "launch", [grouped(9, 5, 3), split(3, 9, 4), split(2, 3, 16, k=96)], ids=["", "split", "empty"]
)
def test_panels_have_the_colour_of_the_tile_that_touches_them_first(color, launch):
    launch, cut = launch
    _, a, b = schedule_figure(launch, cut, "title", color).data
    a_first, b_first = first_reads(cut)
    held = min(launch.slices, launch.k_blocks)
    assert np.array_equal(a.z, shown(launch, color, a_first[:, :held]))
    assert np.array_equal(b.z, shown(launch, color, b_first[:held]))
    assert a.z.shape == (launch.extents[0], held)
    assert b.z.shape == (held, launch.extents[1])


def test_a_large_map_shows_every_second_tile_with_its_own_numbers():
    launch, cut = grouped(300, 512, 8)
    c, a, b = schedule_figure(launch, cut, "title", "order").data
    assert max(c.z.shape) <= MOST_CELLS
    assert (c.dx, c.dy, a.dx, a.dy, b.dx, b.dy) == (2, 2, 1, 2, 2, 1)
    assert c.customdata[3, 5, 0] == tile_map(launch, launch.tiles.program)[6, 10]


def test_a_stands_on_the_left_of_c_and_b_above_it_on_shared_axes():
    figure = schedule_figure(*grouped(9, 5, 3), "title", "order")
    layout, (_, a, b) = figure.layout, figure.data
    assert (a.xaxis, a.yaxis, b.xaxis, b.yaxis) == ("x2", None, None, "y2")
    assert layout.xaxis2.domain[1] < layout.xaxis.domain[0]
    assert layout.yaxis2.domain[0] > layout.yaxis.domain[1]
    assert layout.yaxis.range == (8.5, -0.5), "pid_m down"
    assert layout.xaxis.range == (-0.5, 4.5)
    assert "pid_m" in layout.yaxis.title.text
    assert "pid_n" in layout.xaxis.title.text
    assert (layout.xaxis2.title.text, layout.yaxis2.title.text) == ("A", "B")


def test_slices_of_k_run_to_the_right_in_a_and_down_in_b():
    layout = schedule_figure(*split(3, 9, 4), "title", "order").layout
    assert layout.xaxis2.range == (-0.5, 3.5)
    assert layout.yaxis2.range == (3.5, -0.5)
    assert (layout.xaxis2.title.text, layout.yaxis2.title.text) == ("A: K", "B: K")


def test_the_output_is_named_as_its_family_names_it():
    figure = schedule_figure(*planned("matmul.fused_add_relu", {}, {}), "title", "order")
    assert [trace.name for trace in figure.data] == ["D", "A", "B"]


def test_a_copy_shows_what_it_reads_and_transposed_what_it_writes():
    launch, cut = planned("transpose.tiled", {"M": 96, "N": 256}, {"BLOCK_M": 32, "BLOCK_N": 32})
    figure = schedule_figure(launch, cut, "title", "order")
    read, written = figure.data
    assert np.array_equal(read.z, tile_map(launch, launch.tiles.program))
    assert np.array_equal(written.z, read.z.T)
    assert figure.layout.xaxis.title.text == "A: pid_n"
    assert figure.layout.xaxis2.title.text == "B: pid_m"


@pytest.mark.parametrize("launch", [grouped(30, 41, 8), split(3, 9, 4)], ids=["grouped", "split"])
def test_the_player_gets_every_tile_step_after_step(launch):
    launch, cut = launch
    told = player_data(launch, cut, step=2)
    rows, columns = told["extents"]
    slices, rest = np.divmod(told["places"], rows * columns)
    assert np.array_equal(slices, launch.tiles.pid_k)
    assert np.array_equal(rest // columns, launch.tiles.pid_m)
    assert np.array_equal(rest % columns, launch.tiles.pid_n)
    assert told["tiles"].sum() == len(told["places"])
    assert (told["step"], told["name"], told["unit"]) == (2, "wave", "program")


def test_the_player_of_a_loop_goes_turn_by_turn():
    launch, cut = planned("matmul.persistent", {"M": 2048, "N": 4096, "K": 64}, {})
    told = player_data(launch, cut, step=0)
    assert (told["name"], told["unit"], told["slots"]) == ("turn", "tile", 132)
    assert told["tiles"].tolist() == [132, 132, 132, 116]
    first_turn = {int(np.flatnonzero(launch.tiles.program == program)[0]) for program in range(132)}
    places = launch.tiles.pid_m * launch.extents[1] + launch.tiles.pid_n
    assert set(told["places"][:132].tolist()) == {int(places[entry]) for entry in first_turn}


def test_the_curve_holds_both_orders_and_marks_one_n():
    counts = np.array([1, 2, 9, 81])
    curves = {"grouped": np.array([18, 27, 54, 162]), "row-major order": np.array([18, 27, 90, 162])}
    figure = loads_figure(counts, curves, 9, "programs", ("A", "B"))
    ours, reference, marks = figure.data
    assert (list(ours.y), list(reference.y)) == ([18, 27, 54, 162], [18, 27, 90, 162])
    assert (list(marks.x), list(marks.y)) == ([9, 9], [54, 90])
    assert "programs" in figure.layout.xaxis.title.text
    assert figure.layout.yaxis.title.text == "distinct blocks of A and B"
