"""The Result view: the text of a run, its pictures, what /run replies, and the run that a browser keeps."""

import datetime
import html
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from tests.experiments import fields
from tests.messages import decode, opened, text_of
from tilescope.declare.discovery import discover
from tilescope.declare.experiment import from_json, launch_of
from tilescope.declare.gpus import GPUS
from tilescope.inside.report import Inside
from tilescope.measure.run import RUN
from tilescope.results import Failure, Timing, records
from tilescope.results.run import Baseline, Check, Clocks, Closeup, Diff, LaunchOverhead, Peak
from visualize.predict.bounds import Roof, intensity
from visualize.views.result import text, view
from visualize.views.result.figures import (
    closeup_figure,
    error_figure,
    time_figure,
)
from visualize.views.result.predicted import resources_figure
from visualize.views.result.text import THIS_KERNEL
from visualize.views.slots import NONE
from visualize.views.state import Snapshot
from visualize.views.tabs import SETTINGS

MATMUL = {"kernel": "matmul.grouped"}
FITS_L2 = {"kernel": "transpose.tiled"}
LARGE = {"kernel": "transpose.tiled", "problem": {"M": 8192, "N": 8192}}


def recorded(payload=MATMUL):
    return records.find(RUN.form, from_json(payload), "H200")


def measured(payload=MATMUL, median_ms=0.007, ratio=(0.97, 0.975, 0.98), **changes):
    """A recorded run, as if this machine had just measured it, with all that a run measures."""
    run = recorded(payload)
    gbps = None if run.timing.gbps is None else 1000.0
    timing = Timing(
        median_ms, 0.99 * median_ms, 1.02 * median_ms, 340, None if gbps else 40.0, gbps
    )
    first = Baseline(
        "torch.matmul",
        replace(timing, median_ms=ratio[1] * median_ms),
        ratio[1],
        ratio[0],
        ratio[2],
    )
    other = replace(
        first, name="torch.matmul, cuBLASLt", ratio=1.2, ratio_low=1.19, ratio_high=1.21
    )
    fields = {
        "backend": "cuda",
        "note": "",
        "timing": timing,
        "baseline": first,
        "baselines": (first, other),
        "clock_mhz": 1755,
        "clocks": Clocks(1755.0, 1740.0, 1980.0, "cycles over global time", ("power limit",)),
        "launch_overhead": LaunchOverhead(0.031, 0.044, 200),
    }
    return replace(run, **{**fields, **changes})


def with_options(run, **options):
    return replace(
        run, experiment=replace(run.experiment, run=replace(run.experiment.run, **options))
    )


def wrong(run=None, **check):
    run = run or measured()
    failed = replace(run.check, **{"passed": False, "mismatched": 1234, **check})
    return replace(run, check=failed, timing=None, baseline=None, peak=None)


def test_a_time_is_predicted_from_compiled_code_alone():
    state = opened(fields("matmul.grouped M=900 N=900 K=900"))
    panel = view.ResultPanel()
    failure = Failure("compile", "no_triton", "Triton is not installed here.")
    for known, sentence in (
        ({}, "Predicting the time from the compiled code…"),
        ({"failure": failure}, "No predicted time: Triton is not installed here."),
        ({"inspected": failure}, "No predicted time: Triton is not installed here."),
    ):
        snapshot = Snapshot(state, **known)
        slots = panel.draw(snapshot)
        assert text_of(slots["predicted-time"]) == sentence
        assert slots["predicted-plot"] == NONE
        assert not panel.summary(snapshot)
    inside = Inside(
        predicted_us=7.0, range_us=(6.0, 9.0), bound_by="L2", by_resource_us={"L2": 5.0, "DRAM": 2}
    )
    snapshot = Snapshot(state, inspected=(inside, None))
    assert [str(number) for number in panel.summary(snapshot)] == ["7.00 µs"]
    slots = panel.draw(snapshot)
    assert text_of(slots["predicted-time"]).startswith(
        "7.00 µs (6.00 µs to 9.00 µs) predicted Bound by L2 (71 %)."
    )
    bars, _ = decode(slots["predicted-plot"])["data"]
    assert dict(zip(bars["y"], bars["x"], strict=True)) == {"L2": 5, "DRAM": 2, "predicted": 7}


def render(run, failure=None):
    """Return a run's card, headline and tables."""
    kernel, launch = launch_of(run.experiment, GPUS["H200"])
    headline = text.render_headline(run, kernel, launch, failure=failure)
    card = text.render_card(run, kernel, launch)
    return "\n</p>".join(map(str, (card, headline, text.render_tables(run, kernel, launch))))


def resize(run, m, n, k):
    problem = replace(run.experiment.problem, M=m, N=n, K=k)
    return replace(run, experiment=replace(run.experiment, problem=problem))


def test_a_run_much_slower_than_torch_links_to_the_recommended_config():
    link = render(recorded({"kernel": "matmul.fused_add_relu"})).partition("<a ")[2]
    assert "BLOCK_M=64&amp;BLOCK_N=128&amp;BLOCK_K=128" in link


def test_the_texts_are_the_approved_ones(approve):
    live = measured()
    long = measured(median_ms=1.4)
    lost = recorded({"kernel": "matmul.split_k_race"})
    won = replace(lost, backend="interpreter", check=recorded().check, recorded=lost)
    interpreted = {"backend": "interpreter", "timing": None, "baseline": None}
    checked = replace(recorded(), **interpreted, recorded=recorded())
    slow = replace(long, peak=Peak(100.0, "TFLOP/s", "torch.matmul", 0.4))
    texts = {
        "slower": live,
        "tied": measured(ratio=(0.994, 0.998, 1.003)),
        "slower by less than a thousandth": measured(ratio=(0.994, 0.998, 0.9999)),
        "without an interval": replace(live, baseline=replace(live.baseline, ratio_low=None)),
        "longer than a call": long,
        "the library is slow on misaligned rows": resize(slow, 4097, 4097, 4097),
        "the library is slow on few tiles": resize(slow, 512, 512, 512),
        "the library is slow on a short K": resize(slow, 8192, 8192, 64),
        "the library is fast": replace(slow, peak=replace(slow.peak, rate=80.0)),
        "a copy in the L2": measured(FITS_L2),
        "a copy with a cold L2": with_options(measured(FITS_L2), l2="cold"),
        "a large copy": measured(LARGE),
        "a graph": with_options(measured(launches_per_sample=20), timer="graph"),
        "wrong": wrong(worst_index=(17, 42)),
        "one wrong element": wrong(mismatched=1),
        "wrong overall": wrong(mismatched=0),
        "a lost race": lost,
        "a race in the interpreter": won,
        "a race that did not show": replace(live, experiment=lost.experiment),
        "checked in the interpreter": checked,
        "much slower than torch": recorded({"kernel": "matmul.fused_add_relu"}),
    }
    texts = {name: render(run) for name, run in texts.items()}
    too_large = Failure("compile", "out_of_resources", "It needs 2,097,152 bytes.")
    texts["too large for the GPU"] = render(checked, too_large)
    for run, failure in (
        (checked, replace(too_large, kind="timeout")),
        (replace(checked, backend="cuda"), too_large),
    ):
        assert "This config can't launch" not in render(run, failure)
    approve("result", texts)


H200 = GPUS["H200"]
GROUPED = discover()["matmul.grouped"]


def draw(run):
    """Return the map, the closeup, the times and the tables."""
    slots = view.draw_result(run, launch_of(run.experiment, H200)[1])
    return [slots[name] for name in ("diff-plot", "closeup-plot", "time-plot", "result-tables")]


def test_a_wrong_result_has_pictures_of_its_error_with_programs_and_values_and_none_of_its_times():
    cells = np.full((4, 4), 2.0, dtype=np.float32)
    output = np.full((7, 7), 1.5, dtype=np.float32)
    near = Closeup(cells, (48, 96), (0, 0), (192, 384), (14, 39), output, output + 1, output)
    diff = Diff(cells, (128, 128), (512, 512), exact=False, tile=(64, 128), closeup=near)
    whole, closeup, times, tables = draw(replace(wrong(worst_index=(17, 42)), diff=diff))
    assert times == NONE
    assert "Error of C" in decode(whole)["layout"]["title"]["text"]
    assert "pid 5" in str(decode(closeup))
    assert "Around the worst element [17, 42], in tile [0, 0], computed by pid 0" in tables
    assert tables.count(">1.5000<") == tables.count(">2.5000<") == 49


def marks_of(cells, cell, tile, exact=False):
    cells = np.array(cells, dtype=np.float32)
    shape = tuple(count * side for count, side in zip(cells.shape, cell, strict=True))
    return view.tile_marks(replace(wrong(), diff=Diff(cells, cell, shape, exact, tile)))


def test_a_tile_is_marked_if_one_of_its_cells_is_wrong():
    cells = np.zeros((8, 8))
    cells[0, 0] = 1.5
    cells[5, 7] = np.inf
    cells[2, 3] = 0.9
    assert marks_of(cells, (32, 32), (64, 128)) == {
        "wrong": ["10", "00", "01", "00"],
        "count": 2,
        "words": "✗ 2 of 8 tiles wrong",
    }
    assert marks_of(cells, (32, 32), (64, 128), exact=True)["wrong"] == ["10", "10", "01", "00"]
    coarse = marks_of([[0, 2]], (256, 256), (64, 128))
    assert coarse["wrong"] == ["0011"] * 4
    assert coarse["words"] == "✗ 8 of 16 cells wrong"
    large = marks_of(2 * np.eye(512), (1, 1), (1, 1))
    assert large["words"] == "✗ 256 of 65,536 cells wrong"
    assert view.tile_marks(recorded())["wrong"] == [], "a run that passed needs no picture"
    assert view.tile_marks(replace(wrong(), diff=None)) is None


@pytest.mark.parametrize(("payload", "fits"), [(FITS_L2, True), (LARGE, False)])
def test_the_reply_says_whether_the_working_set_fits_in_the_l2(payload, fits):
    run = measured(payload)
    snapshot = Snapshot(opened(run.experiment.to_address()))
    assert view.run_reply(run, snapshot)["fits_l2"] is fits


def test_intensity_is_work_over_each_tensor_moved_once_and_memory_is_the_roof_below_the_ridge():
    assert intensity(GROUPED, GROUPED.family.problem()) == 2 * 512**3 / (3 * 512**2 * 2)
    roof = Roof("H200", gbps=4000, tflops=800, source="measured")
    assert roof.ridge == 200
    assert roof.at(100) == 400
    assert roof.at(200) == 800
    assert roof.at(2000) == 800


def test_a_gpus_roof_is_the_median_of_its_runs_peaks_in_this_dtype():
    run = recorded()

    def with_peak(rate, unit, dtype="float16"):
        problem = replace(run.experiment.problem, dtype=dtype)
        return replace(
            run, peak=Peak(rate, unit, "", 0.5), experiment=replace(run.experiment, problem=problem)
        )

    runs = [("H200", with_peak(rate, "TFLOP/s")) for rate in (700, 780, 790)]
    runs += [
        ("H200", with_peak(4000, "GB/s", "float32")),
        ("H200", with_peak(500, "TFLOP/s", "float32")),
    ]
    runs += [("H100", with_peak(760, "TFLOP/s"))]
    assert view.roofs(runs, "float16") == (Roof("H200", 4000, 780, "recorded"),), (
        "no copy was measured on the H100"
    )


def roofline(run, gpu=H200):
    """The text, and the traces of the picture by name, up to a colon; {} if there is no picture."""
    text, picture = view.draw_roofline(run, launch_of(run.experiment, gpu)[1]).values()
    traces = (
        {}
        if picture == NONE
        else {trace["name"].split(":")[0]: trace for trace in decode(picture)["data"]}
    )
    return html.unescape(re.sub(r"<[^>]*>", "", str(text))), traces


def test_a_recorded_run_is_below_recorded_roofs_and_a_measured_run_below_its_devices_own():
    run = recorded()
    text, traces = roofline(run)
    recordings = {f"recorded on {gpu}" for gpu in ("H100", "H200")}
    assert traces.keys() == {"H100", "H200", THIS_KERNEL, "library"} | recordings
    assert traces[THIS_KERNEL]["y"] == [run.timing.tflops]
    assert traces["library"]["y"] == [call.timing.tflops for call in run.baselines]
    assert (
        set(traces[THIS_KERNEL]["x"])
        == set(traces["library"]["x"])
        == {intensity(GROUPED, run.experiment.problem)}
    )
    reached = r"This kernel reaches [\d.]+ % of its roof of \d+ TFLOP/s recorded\. At 171 FLOP per byte, DRAM is"
    assert re.match(reached, text)
    text, traces = roofline(replace(run, backend="cuda", copy_gbps=4100.0))
    assert traces["H200"]["name"] == f"H200: 4,100 GB/s, {run.peak.rate:,.0f} TFLOP/s (measured)"
    assert "measured" in text


def test_a_copy_an_unmeasured_gpu_and_a_wrong_result_have_no_place_below_a_roof_and_the_page_says_why():
    for run, gpu, reason in (
        (recorded(FITS_L2), H200, "does no arithmetic"),
        (recorded(), GPUS["L4"], "no roof to draw"),
    ):
        text, traces = roofline(run, gpu)
        assert traces == {}
        assert reason in text
    text, traces = roofline(wrong())
    assert bool(traces)
    assert THIS_KERNEL not in traces
    assert "reaches" not in text


def check_of(cells, passed=False, cell=1):
    row, column = (int(place) * cell for place in np.unravel_index(np.argmax(cells), cells.shape))
    return Check(
        passed, 0.1, 0.01, 1.0, 0.1, 1, 0, cells.size, (row, column), 2.0, 1.0, float(cells.max())
    )


def error_map(cells, exact=False):
    cells = np.array(cells, dtype=np.float32)
    return error_figure(Diff(cells, (1, 1), cells.shape, exact), check_of(cells), "C")


def test_the_figures_are_the_approved_ones(approve):
    one = np.full((3, 4), 0.8, dtype=np.float32)
    one[2, 1] = 1.5
    diff = Diff(one, (64, 64), (192, 256), exact=False)
    none = 0 * one  # such as a race on zeros
    cells = np.full((2, 2), 200, dtype=np.float32)
    output = np.zeros((1, 1), dtype=np.float32)
    worst = np.array([[0.5, 700]], dtype=np.float32)
    near = Closeup(worst, (2, 2), (2, 2), (2, 4), (0, 0), output, output, output)
    close = Diff(cells, (4, 4), (8, 8), exact=False, tile=(2, 2), closeup=near)
    check = check_of(cells)
    programs = {(1, 1): [7, 8], (1, 2): [5]}
    figures = {
        "one wrong cell": error_figure(diff, check_of(one, cell=64), "C"),
        "an exact result": error_figure(replace(diff, exact=True), check_of(one), "C"),
        "no error": error_figure(replace(diff, cells=none), check_of(none, passed=True), "C"),
        "wrong everywhere": error_map(np.geomspace(133, 348, 6).reshape(2, 3)),
        "right and wrong": error_map([[0.2, 0.9], [1.0, 261]]),
        "passed": error_map([[0, 0.3]]),
        "not finite": error_map([[0.5, 40, np.nan]]),
        "exact and not finite": error_map([[0.0, 1e-6], [0.5, np.inf]], exact=True),
        "the whole": error_figure(close, check, "C"),
        "its closeup": closeup_figure(close, near, check, "C", programs),
        "times": time_figure(measured()),
        "milliseconds": time_figure(measured(median_ms=0.7)),
        "no library": time_figure(measured(baselines=(), launch_overhead=None)),
    }
    times_ms = {"L2": 0.03, "DRAM": 0.02}
    for name, is_bound in (("bound by a resource", True), ("bound by latency", False)):
        figures[name] = resources_figure(times_ms, 0.05, is_bound)
    approve("result_figures", figures)


ENDED = datetime.datetime(2026, 11, 21, 13, 2, tzinfo=datetime.UTC)
RUNS = [
    records.find(RUN.form, experiment, "H200")
    for experiment in records.experiments(RUN.form, "H200")
]
PICTURED = next(run for run in RUNS if run.diff)


def read(text, run=PICTURED, **problem):
    experiment = replace(run.experiment, problem=replace(run.experiment.problem, **problem))
    return view.decode_run(text, SETTINGS.state({**experiment.to_address(), "gpu": "H200"}, None))


@pytest.mark.parametrize("run", RUNS[::7], ids=lambda run: run.experiment.kernel)
def test_a_run_is_read_back_for_its_own_experiment_and_gpu(run):
    for original in (run, replace(run, recorded=run)):
        back, ended = read(view.encode_run(original, "H200", ENDED), run)
        assert replace(back, diff=None) == replace(run, diff=None)
        assert ended == ENDED
        assert (back.diff is None) == (run.diff is None)
    assert (
        read(view.encode_run(run, "H200", ENDED), run, M=1 + run.experiment.problem.M % 16_384)
        is None
    )
    assert read(view.encode_run(run, "A100", ENDED), run) is None


def test_a_run_with_a_field_of_another_type_or_the_picture_of_another_output_is_ignored():
    nested = "[" * 50_000
    for unreadable in (
        None,
        7,
        "",
        "{",
        "[]",
        "null",
        nested,
        '{"gpu": "H200"}',
        '{"run": {}}',
        "x" * 200_000,
    ):
        assert read(unreadable) is None
    fields = json.loads(view.encode_run(PICTURED, "H200", ENDED))
    for date in ("yesterday", "2026-11-21", "2026-11-21T14:02", 7, None):  # no time, or no zone
        assert read(json.dumps({**fields, "date": date})) is None
    diff = fields["run"]["diff"]
    for name, value in (
        ("note", 7),
        ("check", "good"),
        ("extra", 1),
        ("experiment", {"kernel": "nothing"}),
        ("diff", {**diff, "tile": [0, 0]}),
        ("diff", {**diff, "shape": [511, 512]}),
    ):
        assert read(json.dumps({**fields, "run": {**fields["run"], name: value}})) is None, name
    assert read(json.dumps(fields)) is not None
