"""The Result view: pictures of a run, what /run replies, the roofline, and the run that a browser keeps."""

from __future__ import annotations

import datetime
import html
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from kernels import discover
from kernels.experiment import from_json, launch_of
from kernels.gpus import GPUS
from kernels.measuring.run import RUN
from kernels.results import records
from kernels.results.records import Recording
from kernels.results.run import Check, Closeup, Diff, Peak
from tests.figure_values import decode
from tests.views.test_result_text import FITS_L2, LARGE, MATMUL, measured, recorded, wrong
from visualize.predict.bounds import Roof, intensity, predicted_point
from visualize.predict.reuse import asked_bytes
from visualize.predict.schedule import schedule
from visualize.views import theme
from visualize.views.result.figures import closeup_figure, error_figure, time_figure
from visualize.views.result.text import ENQUEUED, SYNCHRONIZED, THIS_KERNEL
from visualize.views.result.view import (
    decode_run,
    draw_result,
    draw_roofline,
    encode_run,
    roofs,
    run_json,
    run_reply,
    tile_marks,
)
from visualize.views.slots import NONE
from visualize.views.tabs import SETTINGS

H200 = GPUS["H200"]
GROUPED = discover()["matmul.grouped"]


def draw(run):
    """Return the map, the closeup, the times and the tables."""
    slots = draw_result(run, launch_of(run.experiment, H200)[1])
    return [slots[name] for name in ("diff-plot", "closeup-plot", "time-plot", "result-tables")]


def test_a_recorded_run_has_a_picture_of_its_times_and_none_of_its_error():
    whole, closeup, times, _ = draw(recorded())
    assert whole == closeup == NONE
    assert "recorded" in decode(times)["about"]


def test_a_wrong_result_has_pictures_of_its_error_with_programs_and_values_and_none_of_its_times():
    cells = np.full((4, 4), 2.0, dtype=np.float32)
    got = np.full((7, 7), 1.5, dtype=np.float32)
    near = Closeup(cells, (48, 96), (0, 0), (192, 384), (14, 39), got, got + 1, got)
    diff = Diff(cells, (128, 128), (512, 512), exact=False, tile=(64, 128), closeup=near)
    whole, closeup, times, tables = draw(replace(wrong(worst_index=(17, 42)), diff=diff))
    assert times == NONE
    assert "Error of C" in decode(whole)["layout"]["title"]["text"]
    assert "pid 5" in str(decode(closeup))
    assert "Around the worst element [17, 42], in tile [0, 0], computed by pid 0" in tables
    assert tables.count("1.5000") == tables.count("2.5000") == 49


def marks_of(cells, cell, tile, exact=False):
    cells = np.array(cells, dtype=np.float32)
    shape = tuple(count * side for count, side in zip(cells.shape, cell, strict=True))
    return tile_marks(replace(wrong(), diff=Diff(cells, cell, shape, exact, tile)))


def test_a_tile_is_marked_if_one_of_its_cells_is_wrong():
    cells = np.zeros((8, 8))
    cells[0, 0], cells[5, 7], cells[2, 3] = 1.5, np.inf, 0.9
    assert marks_of(cells, (32, 32), (64, 128)) == {"wrong": ["10", "00", "01", "00"], "tiles": [1, 1]}
    assert marks_of(cells, (32, 32), (64, 128), exact=True)["wrong"] == ["10", "10", "01", "00"]
    assert marks_of([[0, 2]], (256, 256), (64, 128)) == {"wrong": ["01"], "tiles": [4, 2]}, "coarser than the tiles"


def test_the_tiles_of_a_passed_run_are_right_even_without_a_picture_and_those_of_a_lost_one_unknown():
    assert tile_marks(recorded())["wrong"] == ["0"]
    assert tile_marks(replace(wrong(), diff=None)) is None


@pytest.mark.parametrize(("payload", "fits"), [(FITS_L2, True), (LARGE, False)])
def test_the_reply_says_whether_the_working_set_fits_in_the_l2(payload, fits):
    run = measured(payload)
    kernel, launch = launch_of(run.experiment, H200)
    snapshot = SimpleNamespace(state=SimpleNamespace(kernel=kernel), launch=launch, failure=None)
    reply = run_reply(run, snapshot)
    assert (reply["fits_l2"], reply["working_set_bytes"]) == (fits, kernel.family.minimal_bytes(launch.problem))


def test_a_recording_is_read_back_and_leaves_out_what_was_not_measured():
    run = measured()
    line = RUN.form.line(Recording("H200", "2026-11-22", run))
    assert RUN.form.recording(json.loads(line)).measured == run
    baseline = replace(run.baseline, ratio_low=None, ratio_high=None)
    run = replace(run, baseline=baseline, baselines=(), clocks=None, launch_overhead=None, launches_per_sample=1)
    fields = json.loads(RUN.form.line(Recording("H200", "2026-11-22", run)))["run"]
    assert not {"baselines", "clocks", "launch_overhead", "launches_per_sample"} & fields.keys()
    assert "ratio_low" not in fields["baseline"]
    assert run_json(run)["baseline"]["ratio_low"] is None


def test_intensity_is_work_over_each_tensor_moved_once_and_memory_is_the_roof_below_the_ridge():
    assert intensity(GROUPED, GROUPED.family.problem()) == 2 * 512**3 / (3 * 512**2 * 2)
    roof = Roof("H200", gbps=4000, tflops=800, source="measured")
    assert roof.ridge == 200
    assert (roof.at(100), roof.at(200), roof.at(2000)) == (400, 800, 800)


def test_a_gpus_roof_is_the_median_of_its_runs_peaks_in_this_dtype():
    run = recorded()

    def with_peak(rate, unit, dtype="float16"):
        problem = replace(run.experiment.problem, dtype=dtype)
        return replace(run, peak=Peak(rate, unit, "", 0.5), experiment=replace(run.experiment, problem=problem))

    runs = [("H200", with_peak(rate, "TFLOP/s")) for rate in (700, 780, 790)]
    runs += [("H200", with_peak(4000, "GB/s", "float32")), ("H200", with_peak(500, "TFLOP/s", "float32"))]
    runs += [("H100", with_peak(760, "TFLOP/s"))]
    assert roofs(runs, "float16") == (Roof("H200", 4000, 780, "recorded"),), "no copy was measured on the H100"


def test_the_predicted_bound_is_the_slowest_resource_and_follows_the_clock():
    config = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "num_warps": 8}
    _, launch = launch_of(from_json({**MATMUL, "problem": {"M": 8192, "N": 8192, "K": 8192}, "config": config}), H200)
    received = asked_bytes(schedule(GROUPED, launch))
    point, slowest = predicted_point(GROUPED, launch, received, 1830)
    assert point.tflops == pytest.approx(2 * 8192**3 / slowest.ms / 1e9)
    slower, resource = predicted_point(GROUPED, launch, received, 600)
    assert resource.name == "arithmetic"
    assert slower.tflops == pytest.approx(989.4 * 600 / 1830, rel=1e-3)


def roofline(run, gpu=H200):
    """The text, and the traces of the picture by name, up to a colon; {} if there is no picture."""
    text, picture = draw_roofline(run, launch_of(run.experiment, gpu)[1]).values()
    traces = {} if picture == NONE else {trace["name"].split(":")[0]: trace for trace in decode(picture)["data"]}
    return html.unescape(re.sub(r"<[^>]*>", "", str(text))), traces


def test_a_recorded_run_is_below_recorded_roofs_and_a_measured_run_below_its_devices_own():
    run = recorded()
    text, traces = roofline(run)
    recordings = {f"recorded on {gpu}" for gpu in ("H100", "H200")}
    assert traces.keys() == {"H100", "H200", THIS_KERNEL, "library", "predicted bound"} | recordings
    assert (traces["H200"]["line"]["dash"], traces["H100"]["line"]["dash"]) == ("solid", "dash")
    assert traces[THIS_KERNEL]["y"] == [run.timing.tflops]
    assert traces["library"]["y"] == [call.timing.tflops for call in run.baselines]
    assert set(traces[THIS_KERNEL]["x"]) == set(traces["library"]["x"]) == {intensity(GROUPED, run.experiment.problem)}
    assert re.match(
        r"This kernel reaches [\d.]+ % of its roof of \d+ TFLOP/s recorded\. At 171 FLOP per byte, DRAM is", text
    )
    assert "The slowest resource alone is " in text
    text, traces = roofline(replace(run, backend="cuda", copy_gbps=4100.0))
    assert traces["H200"]["name"] == f"H200: 4,100 GB/s, {run.peak.rate:,.0f} TFLOP/s (measured)"
    assert "measured" in text


def test_a_copy_an_unmeasured_gpu_and_a_wrong_result_have_no_place_below_a_roof_and_the_page_says_why():
    for run, gpu, reason in (
        (recorded(FITS_L2), H200, "does no arithmetic"),
        (recorded(), GPUS["L4"], "no roof to draw"),
    ):
        text, traces = roofline(run, gpu)
        assert (traces, reason in text) == ({}, True)
    text, traces = roofline(wrong())
    assert traces
    assert THIS_KERNEL not in traces
    assert "reaches" not in text


def check_of(cells, passed=False, cell=1):
    row, column = (int(place) * cell for place in np.unravel_index(np.argmax(cells), cells.shape))
    return Check(passed, 0.1, 0.01, 1.0, 0.1, 1, 0, cells.size, (row, column), 2.0, 1.0, float(cells.max()))


def error_map(cells, exact=False):
    cells = np.array(cells, dtype=np.float32)
    return error_figure(Diff(cells, (1, 1), cells.shape, exact), check_of(cells), "C").data[0]


def test_one_wrong_cell_is_beyond_the_limit_and_ringed():
    cells = np.full((128, 128), 0.8, dtype=np.float32)
    cells[78, 19] = 1.5
    figure = error_figure(Diff(cells, (64, 64), (8192, 8192), exact=False), check_of(cells, cell=64), "C")
    heatmap, ring = figure.data
    assert np.argwhere(heatmap.z > 0).tolist() == [[78, 19]]
    assert (ring.y[0], ring.x[0]) == (78 * 64, 19 * 64)
    assert (heatmap.y0, heatmap.dy) == (31.5, 64)


def test_a_result_without_any_error_such_as_a_race_on_zeros_has_no_ring():
    cells = np.zeros((4, 4), dtype=np.float32)
    assert len(error_figure(Diff(cells, (8, 8), (32, 32), exact=False), check_of(cells, passed=True), "C").data) == 1


@pytest.mark.parametrize(
    ("cell", "exact", "title"),
    [((1, 1), False, "Error of C ÷ limit"), ((4, 8), True, "Error of C (max of each 4 × 8)")],
)
def test_the_maps_title_has_its_unit_and_its_cells(cell, exact, title):
    cells = np.full((2, 2), 200, dtype=np.float32)
    figure = error_figure(Diff(cells, cell, (2 * cell[0], 2 * cell[1]), exact), check_of(cells), "C")
    assert figure.layout.title.text == title


def test_a_result_that_is_wrong_everywhere_has_colours_from_its_smallest_to_its_largest_error():
    """A lost race: with a scale that ends at 100 × the limit, it would have one colour everywhere."""
    picture = error_map(np.geomspace(133, 348, 64).reshape(8, 8))
    assert (10**picture.zmin, 10**picture.zmax) == (pytest.approx(133), pytest.approx(348))
    assert (np.diff(picture.z.ravel()) > 0).all()
    assert {color for _, color in picture.colorscale} == {"#fcd29f", "#e2691b", "#6d1602"}, "no colour of right cells"
    assert list(picture.colorbar.ticktext) == ["150 ×", "200 ×", "300 ×"]


def test_the_colour_jumps_at_the_limit_and_the_scale_ends_at_the_largest_error():
    picture = error_map([[0.2, 0.9], [1.0, 261]])
    assert (picture.zmin, 10**picture.zmax) == (-2, pytest.approx(261))
    limit = 2 / (picture.zmax - picture.zmin)
    assert [color for at, color in picture.colorscale if at == pytest.approx(limit)] == ["#cfe0f3", "#fcd29f"]
    labels = dict(zip(picture.colorbar.tickvals, picture.colorbar.ticktext, strict=True))
    assert labels == {-2: "≤ 0.01 ×", -1: "0.1 ×", 0: "the limit", 1: "10 ×", 2: "100 ×"}


def test_a_result_that_passed_has_no_colour_of_wrong_cells():
    picture = error_map([[0, 0.3]])
    assert (picture.zmin, picture.zmax) == (-2, 0)
    assert picture.colorbar.ticktext[-1] == "the limit"
    assert {color for _, color in picture.colorscale} == {"#0b2a5b", "#cfe0f3"}


def test_a_map_and_its_closeup_share_one_scale_and_the_closeup_names_programs_and_has_borders():
    cells, got = np.full((2, 2), 200, dtype=np.float32), np.zeros((1, 1), dtype=np.float32)
    near = Closeup(np.array([[0.5, 700]], dtype=np.float32), (2, 2), (2, 2), (2, 4), (0, 0), got, got, got)
    diff = Diff(cells, (4, 4), (8, 8), exact=False, tile=(2, 2), closeup=near)
    whole, (heatmap, borders, labels, ring) = (
        error_figure(diff, check_of(cells), "C").data[0],
        closeup_figure(diff, near, check_of(cells), "C", {(1, 1): [7, 8], (1, 2): [5]}).data,
    )
    assert [(each.zmin, 10**each.zmax) for each in (whole, heatmap)] == [(-2, pytest.approx(700))] * 2
    assert (heatmap.x0, heatmap.y0) == (2.5, 2.5)
    assert list(zip(labels.y, labels.x, labels.text, strict=True)) == [(2, 2, "pid 7 and 1 more"), (2, 4, "pid 5")]
    assert list(borders.x)[:2] == [1.5, 5.5], "a line between rows of tiles spans the columns of the closeup"
    assert list(borders.y)[:2] == [1.5, 1.5]
    assert list(borders.x)[3:] == [1.5, 1.5, None, 3.5, 3.5, None]
    assert list(borders.y)[3:5] == [1.5, 3.5]
    assert (ring.y[0], ring.x[0]) == check_of(cells).worst_index


def test_an_element_that_is_not_finite_is_above_all_errors_and_labelled():
    picture = error_map([[0.5, 40, np.nan]])
    assert picture.z[0, 2] == pytest.approx(picture.zmax)
    assert picture.z[0, 2] > picture.z[0, 1]
    assert picture.colorbar.ticktext[-1] == "not finite"


def test_all_wrong_cells_of_an_exact_result_look_alike_and_infinity_is_wrong():
    (right, tiny), (half, infinite) = error_map([[0.0, 1e-6], [0.5, np.inf]], exact=True).z
    assert right < tiny == half == infinite


def test_the_time_figure_has_a_bar_per_call_and_another_colour_for_the_host():
    figure = time_figure(measured())
    (bars,) = figure.data
    assert list(bars.y) == [THIS_KERNEL, "torch.matmul", "torch.matmul, cuBLASLt", ENQUEUED, SYNCHRONIZED]
    assert list(bars.x) == pytest.approx([7.0, 6.825, 6.825, 31.0, 44.0])
    kernel, library, _, *host = bars.marker.color
    assert kernel == theme.HARDWARE
    assert library not in host
    assert host[0] == host[1]
    assert list(bars.error_x.array)[-2:] == list(bars.error_x.arrayminus)[-2:] == [0, 0]
    assert all(error > 0 for error in bars.error_x.array[:-2])
    assert ["7.00 µs" in bars.text[0], "31.0 µs" in bars.text[3]] == [True, True], "three digits, zeros included"
    assert max(map(len, figure.layout.xaxis.title.text.split("<br>"))) <= 20, "a phone has no room for more"
    (bars,) = time_figure(measured(baselines=(), launch_overhead=None)).data
    assert list(bars.y) == [THIS_KERNEL], "a dtype that no library call accepts"


ENDED = datetime.datetime(2026, 11, 21, 13, 2, tzinfo=datetime.UTC)
RUNS = [records.find(RUN.form, experiment, "H200") for experiment in records.experiments(RUN.form, "H200")]
PICTURED = next(run for run in RUNS if run.diff)


def read(text, run=PICTURED, **problem):
    experiment = replace(run.experiment, problem=replace(run.experiment.problem, **problem))
    return decode_run(text, SETTINGS.state({**experiment.to_address(), "gpu": "H200"}, None))


@pytest.mark.parametrize("run", RUNS[::7], ids=lambda run: run.experiment.kernel)
def test_a_run_is_read_back_for_its_own_experiment_and_gpu(run):
    for original in (run, replace(run, recorded=run)):
        back, ended = read(encode_run(original, "H200", ENDED), run)
        assert (replace(back, diff=None), ended) == (replace(run, diff=None), ENDED)
        assert (back.diff is None) == (run.diff is None)
    assert read(encode_run(run, "H200", ENDED), run, M=1 + run.experiment.problem.M % 16_384) is None
    assert read(encode_run(run, "A100", ENDED), run) is None


@pytest.mark.parametrize(
    "text", [None, 7, "", "{", "[]", "null", "[" * 50_000, '{"gpu": "H200"}', '{"run": {}}', "x" * 200_000]
)
def test_unreadable_text_is_ignored(text):
    assert read(text) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("date", date) for date in ("yesterday", "2026-11-21", "2026-11-21T14:02", 7, None)),  # no time, or no zone
        *(("run", {name: value}) for name, value in (("note", 7), ("check", "good"), ("extra", 1))),
        ("run", {"experiment": {"kernel": "nothing"}}),
        *(("run", {"diff": {name: value}}) for name, value in (("tile", [0, 0]), ("shape", [511, 512]))),
    ],
)
def test_a_run_with_a_field_of_another_type_or_the_picture_of_another_output_is_ignored(name, value):
    fields = json.loads(encode_run(PICTURED, "H200", ENDED))
    if isinstance(value, dict):
        diff = {"diff": {**fields["run"]["diff"], **value["diff"]}} if "diff" in value else value
        value = {**fields["run"], **diff}
    assert read(json.dumps({**fields, name: value})) is None
