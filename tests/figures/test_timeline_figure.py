"""The pictures of a launch in true time hold every program once, and every tile."""

from __future__ import annotations

import base64
import itertools
import json
import zlib

import numpy as np
import pytest

from kernels import discover
from kernels.gpus import GPUS
from kernels.measuring.timeline import TIMELINE
from kernels.results import records
from kernels.spec import Launch
from visualize.figures.timeline_figure import gantt_figure, moment_data, moment_figure
from visualize.predict.execution import Execution
from visualize.predict.schedule import schedule
from visualize.widgets.plot import drawn

RECORDED = records.experiments(TIMELINE.form, "H200")
MOST_BYTES = 150_000


def recorded(experiment):
    """Return an experiment's recorded execution and its predicted schedule."""
    kernel = discover()[experiment.kernel]
    ran = records.find(TIMELINE.form, experiment, "H200")
    plan = schedule(kernel, Launch(experiment.problem, experiment.config, GPUS["H200"]))
    return Execution(np.array(ran.sm), np.array(ran.start_ns), np.array(ran.end_ns), 132), plan


def bars(figure):
    """pid → (start, end, top, bottom, colour, what is told of it), from the corners that are drawn."""
    found = {}
    for trace in figure.data:
        x, y = (np.reshape(side, (-1, 5)) for side in (trace.x, trace.y))
        assert np.isnan(x[:, 4]).all()
        assert np.array_equal(x[:, 0], x[:, 3])
        assert np.array_equal(x[:, 1], x[:, 2])
        for told, at, high in zip(trace.customdata.T.tolist(), x, y, strict=True):
            assert told[0] not in found, "a program is drawn once"
            found[told[0]] = (at[0], at[1], high[0], high[2], trace.fillcolor, told)
    return found


@pytest.mark.parametrize("color", ["order", "group", "wave", "sm"])
@pytest.mark.parametrize("experiment", RECORDED, ids=lambda e: e.kernel)
def test_every_program_is_one_bar_on_its_sm_from_its_start_to_its_end(experiment, color):
    course, plan = recorded(experiment)
    found = bars(gantt_figure(course, plan, color, "title"))
    assert sorted(found) == list(range(plan.programs))
    first = np.searchsorted(plan.tiles.program, np.arange(plan.programs))
    for pid, (start, end, top, bottom, _, told) in found.items():
        assert (start, end) == pytest.approx((course.start_ns[pid] / 1000, course.end_ns[pid] / 1000))
        assert course.sm[pid] - 0.5 < top < bottom < course.sm[pid] + 0.5
        tiles = plan.tiles
        expected = [tiles.pid_m[first[pid]], tiles.pid_n[first[pid]], tiles.pid_k[first[pid]]]
        assert told == [pid, *expected, pid // plan.resident_programs, int((tiles.program == pid).sum())]


@pytest.mark.parametrize("experiment", RECORDED[:2], ids=lambda e: f"{e.problem.M}")
def test_bars_that_overlap_in_time_lie_apart_and_colours_follow_the_wave(experiment):
    course, plan = recorded(experiment)
    found = bars(gantt_figure(course, plan, "wave", "title"))
    colors = {pid // 132 % 8: bar[4] for pid, bar in found.items()}
    assert len(set(colors.values())) == len(colors)
    assert all(bar[4] == colors[pid // 132 % 8] for pid, bar in found.items())
    rows = sorted(found.values(), key=lambda bar: (round(bar[2], 4), bar[0]))
    for (_, end, top, *_), (start, _, next_top, *_) in itertools.pairwise(rows):
        assert start >= end or next_top > top


def test_axes_have_titles_with_units_and_sms_run_down():
    layout = gantt_figure(*recorded(RECORDED[0]), "wave", "256 programs").layout
    assert layout.title.text == "256 programs, coloured by ideal wave"
    assert layout.xaxis.title.text == "time from the first start (µs)"
    assert layout.yaxis.title.text == "SM"
    assert layout.yaxis.range == (131.5, -0.5)
    course, _ = recorded(RECORDED[0])
    assert layout.xaxis.range == (0, course.span_ns / 1000)


@pytest.mark.parametrize("experiment", RECORDED, ids=lambda e: e.kernel)
def test_every_tile_has_its_cell_and_its_times(experiment):
    course, plan = recorded(experiment)
    begun, done = course.tile_times(plan)
    told = moment_data(plan, begun, done)["moments"]
    figure = moment_figure(plan, "title")
    rows, columns = figure.data[0].z.shape
    assert told["columns"] == columns
    row, column = np.divmod(told["cell"], columns)
    assert np.array_equal(row, plan.tiles.pid_m // figure.data[0].dy)
    assert np.array_equal(column, plan.tiles.pid_n // figure.data[0].dx)
    assert set(told["cell"].tolist()) == set(range(rows * columns)), "no cell is left out"
    assert np.array_equal(told["begun_ns"], begun)
    assert np.array_equal(told["done_ns"], done)
    assert "pid_m" in figure.layout.yaxis.title.text
    assert "pid_n" in figure.layout.xaxis.title.text
    assert figure.layout.yaxis.range[0] > figure.layout.yaxis.range[1], "pid_m down"


def test_8192_programs_are_sent_in_less_than_150_kb():
    kernel = discover()["transpose.tiled"]
    launch = Launch(kernel.family.problem(M=8192, N=8192), kernel.config(BLOCK_M=64, BLOCK_N=128), GPUS["H200"])
    plan = schedule(kernel, launch, 6)
    random, pids = np.random.default_rng(0), np.arange(plan.programs)
    start = pids // 792 * 11_008 + random.integers(0, 60, plan.programs) * 32
    end = start + random.integers(200, 400, plan.programs) * 32
    course = Execution(pids * 7 % 132, start - start.min(), end - start.min(), 132)
    assert plan.programs == 8192
    for color in ("order", "wave"):
        sent = drawn(gantt_figure(course, plan, color, "title"), about="x")
        assert len(sent) < MOST_BYTES
        assert len(zlib.decompress(zlib.decompress(base64.b64decode(json.loads(sent)["packed"])))) > 5 * 4 * 2 * 8192
