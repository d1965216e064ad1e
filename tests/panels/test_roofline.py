"""The roofline: what allows how much, where launches are below it, and what is said of them."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace

import pytest

from kernels import discover
from kernels.experiment import from_json
from kernels.gpus import GPUS
from kernels.measuring.run import RUN
from kernels.results import records
from kernels.results.run import Peak
from kernels.spec import Launch
from visualize.figures.roofline_figure import roofline_figure
from visualize.panels.roofline_picture import drawn_roofline, points, roofs
from visualize.predict.bounds import Point, Roof, intensity, predicted_point
from visualize.predict.reuse import asked_bytes
from visualize.predict.schedule import schedule
from visualize.widgets.plot import NONE

EXPERIMENT = from_json({"kernel": "matmul.grouped"})
GROUPED = discover()["matmul.grouped"]
H200 = GPUS["H200"]


def recorded(payload=None):
    return records.find(RUN.form, from_json(payload or {"kernel": "matmul.grouped"}), "H200")


def text_of(markup):
    return html.unescape(re.sub(r"<[^>]*>", "", str(markup)))


def test_below_the_ridge_memory_is_the_roof_and_above_it_arithmetic():
    roof = Roof("H200", gbps=4000, tflops=800, source="measured")
    assert roof.ridge == 200
    assert (roof.at(100), roof.at(200), roof.at(2000)) == (400, 800, 800)


def test_the_intensity_is_work_over_each_tensor_moved_once():
    assert intensity(GROUPED, EXPERIMENT.problem) == 2 * 512**3 / (3 * 512**2 * 2)
    transpose = discover()["transpose.tiled"]
    assert intensity(transpose, transpose.family.problem()) == 0


def test_a_gpus_roof_is_the_median_of_what_its_runs_found_in_this_type():
    run = recorded()

    def found(rate, unit, dtype="float16"):
        problem = replace(run.experiment.problem, dtype=dtype)
        peak = Peak(rate, unit, "", 0.5)
        return replace(run, peak=peak, experiment=replace(run.experiment, problem=problem))

    runs = [("H200", found(rate, "TFLOP/s")) for rate in (700, 780, 790)]
    runs += [("H200", found(4000, "GB/s", "float32")), ("H200", found(500, "TFLOP/s", "float32"))]
    runs += [("H100", found(760, "TFLOP/s"))]
    assert roofs(runs, "float16") == (Roof("H200", 4000, 780, "recorded"),), "of the H100 no copy was measured"


def test_a_run_stands_beside_the_librarys_calls_at_one_intensity():
    run = recorded()
    ours, *theirs = points(GROUPED, run, "H200", "recorded")
    assert ours.tflops == run.timing.tflops
    assert [one.tflops for one in theirs] == [one.timing.tflops for one in run.baselines]
    assert len(theirs) == 2
    assert {one.intensity for one in theirs} == {ours.intensity}
    assert points(GROUPED, replace(run, timing=None), "H200", "measured") == ()


def test_the_predicted_bound_is_the_slowest_resource_and_follows_the_clock():
    problem = GROUPED.family.problem(M=8192, N=8192, K=8192)
    launch = Launch(problem, GROUPED.config(BLOCK_M=128, BLOCK_N=256, BLOCK_K=64, num_warps=8), H200)
    received = asked_bytes(schedule(GROUPED, launch))
    point, slowest = predicted_point(GROUPED, launch, received, 1830)
    assert point.tflops == pytest.approx(2 * 8192**3 / slowest.ms / 1e9)
    slower, resource = predicted_point(GROUPED, launch, received, 600)
    assert resource.name == "arithmetic"
    assert slower.tflops == pytest.approx(989.4 * 600 / 1830, rel=1e-3)


def test_the_picture_has_a_line_per_gpu_and_every_launch_where_it_is():
    here, there = Roof("H200", 4000, 800, "measured"), Roof("H100", 3000, 760, "recorded")
    own = [Point("this kernel", "H200", 500, 600, "measured"), Point("torch.matmul", "H200", 500, 700, "measured")]
    dots = [Point("one", "H200", 300, 100, "recorded"), Point("two", "H100", 300, 90, "recorded")]
    bound = Point("predicted bound", "H200", 500, 780, "predicted")
    figure = roofline_figure([here, there], dots, own, bound, "H200")
    traces = {trace.name: trace for trace in figure.data}
    (line,) = (trace for name, trace in traces.items() if name.startswith("H200: "))
    assert dict(zip(line.x, line.y, strict=True))[200] == 800
    assert line.line.dash == "solid"
    assert (traces["this kernel"].x[0], traces["this kernel"].y[0]) == (500, 600)
    assert traces["library"].y[0] == 700
    assert traces["predicted bound"].y[0] == 780
    assert list(traces["recorded on H100"].y) == [90]
    assert "FLOP per byte" in figure.layout.xaxis.title.text
    assert figure.layout.yaxis.title.text == "TFLOP/s"
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log"


def test_a_recorded_run_is_drawn_below_recorded_roofs_of_both_gpus():
    said, picture = drawn_roofline(recorded(), H200)
    names = [trace["name"] for trace in json.loads(picture)["data"]]
    assert [name.split(":")[0] for name in names if "GB/s" in name] == ["H100", "H200"]
    assert {"this kernel", "library", "predicted bound"} <= set(names)
    assert "of its roof of" in text_of(said)
    assert "recorded" in text_of(said)


def test_a_measured_run_has_the_roof_of_its_own_device():
    run = replace(recorded(), backend="cuda", copy_gbps=4100.0)
    said, picture = drawn_roofline(run, H200)
    names = [trace["name"] for trace in json.loads(picture)["data"]]
    assert f"H200: 4,100 GB/s, {run.peak.rate:,.0f} TFLOP/s (measured)" in names
    assert "measured" in text_of(said)


def test_what_computes_nothing_or_was_never_measured_has_no_roof_and_the_page_says_why():
    said, picture = drawn_roofline(recorded({"kernel": "transpose.tiled"}), H200)
    assert picture == NONE
    assert "does no arithmetic" in text_of(said)
    said, picture = drawn_roofline(recorded(), GPUS["L4"])
    assert picture == NONE
    assert "no roof to draw" in text_of(said)


def test_a_wrong_result_has_no_place_below_the_roof():
    run = recorded()
    wrong = replace(run, check=replace(run.check, passed=False), timing=None, baseline=None)
    said, picture = drawn_roofline(wrong, H200)
    assert "this kernel" not in [trace["name"] for trace in json.loads(picture)["data"]]
    assert "reaches" not in text_of(said)
