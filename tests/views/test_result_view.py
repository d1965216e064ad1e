"""The Result view: which pictures a run has, what /run replies, and the roofline from recordings."""

from __future__ import annotations

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
from kernels.results import Diff
from kernels.results.records import Recording
from kernels.results.run import Closeup, Peak
from tests.figure_values import decode
from tests.views.test_result_text import FITS_L2, LARGE, MATMUL, measured, recorded, wrong
from visualize.predict.bounds import Roof, intensity, predicted_point
from visualize.predict.reuse import asked_bytes
from visualize.predict.schedule import schedule
from visualize.views.result.text import THIS_KERNEL
from visualize.views.result.view import draw_result, draw_roofline, roofs, run_json, run_reply, tile_marks
from visualize.views.slots import NONE

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
