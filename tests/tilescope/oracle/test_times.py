"""Times of launches with an L2 that held none of their data, measured on an H100 (Triton 3.6.0)."""

import math
from copy import copy
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from scripts.score_times import fit_ranges
from tilescope.captures.reader import Capture
from tilescope.declare.gpus import GPUS
from tilescope.evaluate.captured import count_launch
from tilescope.inside.inspect import inspect
from tilescope.inside.report import ChangedTime
from tilescope.numbers import milliseconds, percent
from tilescope.reports.comparison import differences
from tilescope.reports.launch import make_report
from tilescope.reports.text import table
from tilescope.results.scores import (
    classify,
    shipped_scores,
    stated_ranges,
    summarize,
    unfitted_scores,
)
from tilescope.timing.changes import describe_changes
from tilescope.timing.constants import find_constants
from tilescope.timing.launches import add_time, predict_launch

FOLDER = Path(__file__).parent / "times"
CASES = {
    "elements-softmax-8192-4096": "softmax 8192 × 4096",
    "elements-transpose-scattered-stores": "transpose, scattered stores",
    "elements-empty-65536-programs": "empty, 65536 programs",
    "gemm-float16-4096-tiles-of-64": "float16 4096, tiles of 64",
    "flash-full-32-heads-of-64-small-tiles": "full, 32 heads of 64, small tiles",
}


@cache
def make_report_of(name):
    return make_report(Capture(FOLDER / f"{name}.tilescope"))


@pytest.mark.parametrize("name", CASES)
def test_a_measured_time_is_in_the_predicted_range(name):
    (launch, *_) = make_report_of(name).launches
    names = {"case": CASES[name], "number": 0, "gpu": "H100"}
    (score,) = (
        each
        for each in shipped_scores()
        if each.model == "time" and names.items() <= each.launch.items()
    )
    low, high = launch.range_us
    assert low < score.counted < high
    assert launch.predicted_us == pytest.approx(score.predicted, rel=0.01)
    assert launch.bound_by == score.part
    assert not launch.not_predicted
    assert not launch.assumed


@pytest.mark.parametrize(("gpu", "median", "high"), [("H100", 0.08, 0.28), ("H200", 0.1, 0.32)])
def test_nine_of_ten_launches_of_families_that_no_constant_was_fitted_to_have_small_errors(
    gpu, median, high
):
    scores = [
        each
        for each in shipped_scores()
        if (each.model, each.launch["gpu"]) == ("held_out_time", gpu)
    ]
    predicted = [score for score in scores if score.is_compared]
    errors = summarize(predicted)
    assert errors.median < median
    assert errors.high < high
    assert len(scores) - len(predicted) <= 0.06 * len(scores)
    assert all(score.why for score in scores if not score.predicted)


def test_nine_of_ten_launches_are_in_the_range_of_other_repositories_launches():
    scores = unfitted_scores()
    inside = []
    for held in scores:
        case = held.launch["case"]
        ranges = fit_ranges(score for score in scores if score.launch["case"] != case)
        expected = ranges[classify(held.part, held.launch.get("spilled_bytes", 0))]
        inside.append(expected.low <= held.counted / held.predicted <= expected.high)
    assert len(inside) == 139
    assert sum(inside) >= 0.89 * len(inside)


def test_the_stated_ranges_hold_nine_of_ten_launches_and_are_narrowest_if_dram_bounds_them():
    ranges = stated_ranges()
    assert ranges == fit_ranges(unfitted_scores())
    widths = {name: each.high / each.low for name, each in ranges.items()}
    assert min(widths, key=widths.get) == "DRAM"
    for each in ranges.values():
        assert each.inside >= 0.9
        assert each.low < 1 < each.high


def test_the_time_of_shared_memory_includes_the_bank_conflicts_of_copies():
    path = FOLDER.parent / "shared_memory" / "matmul.tilescope"
    launch = make_report(Capture(path)).launches[5]
    (copies,) = (each for each in launch.shared if each.opcode == "LDGSTS" and each.conflicts)
    gpu = GPUS["H200"]
    assert launch.by_resource_us["L1"] > copies.conflicts / gpu.sms / gpu.clock_mhz


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("elements-layer-norm-backward", "Other programs decide whether it retries."),
        ("elements-scattered-reads", "The capture holds no copy of the tensor's values."),
    ],
)
def test_a_launch_without_a_predicted_time_says_why(name, why):
    launch = make_report_of(name).launches[0]
    assert launch.predicted_us is None
    assert launch.range_us is None
    assert launch.not_predicted.endswith(why)
    assert f"No predicted time: {launch.not_predicted}" in table(make_report_of(name))


def test_a_table_has_the_predicted_time_its_range_and_the_busiest_resource():
    report = make_report_of("elements-softmax-8192-4096")
    (launch,) = report.launches
    time, low, high = (milliseconds(us / 1e3) for us in (launch.predicted_us, *launch.range_us))
    busy = percent(launch.resource_shares["DRAM"])
    text = f"Predicted: {time} on H100 80GB HBM3 ({low} to {high}), bound by DRAM ({busy})."
    assert text in table(report)


def test_the_first_change_is_one_that_saves_five_percent():
    """A change that was compiled comes before one that was not, unless the latter saves more."""
    (launch,) = make_report_of("elements-softmax-8192-4096").launches
    hundred = replace(launch, predicted_us=100.0)
    stages = ChangedTime("num_stages = 4", 90.0, {"num_stages": 4}, is_compiled=True)
    limited = ChangedTime("maxnreg = 64", 95.1, {"maxnreg": 64}, is_compiled=True)
    conflicts = ChangedTime("no bank conflicts", 80.0)
    grid = ChangedTime("equal work per SM (132 programs)", 92.0)
    compiled = (
        "With num_stages = 4, the launch would take 90.0 µs, 10 % less (compiled and predicted)."
    )
    estimated = "With no bank conflicts, the launch would take 80.0 µs, 20 % less (predicted without compiling)."
    for changes, text in (
        ((stages, grid), compiled),
        ((conflicts, stages), f"{compiled} {estimated}"),
        ((conflicts, limited), estimated),
        (
            (limited,),
            "Tried, but predicted to save less than 5 %: maxnreg = 64.",
        ),
        ((), ""),
    ):
        assert describe_changes(replace(hundred, changes=changes)) == text


def test_a_slower_prediction_is_printed_but_is_no_regression():
    (launch,) = make_report_of("elements-softmax-8192-4096").launches
    slower = replace(launch, predicted_us=launch.predicted_us * 1.2)
    (change,) = differences([launch], [slower])
    assert change.what == "predicted_us"
    assert not change.is_worse
    times = f"from {launch.predicted_us:,.1f} µs to {slower.predicted_us:,.1f} µs"
    assert f"predicted time rose {times}" in change.sentence
    assert not differences([launch], [replace(launch, predicted_us=launch.predicted_us * 1.04)])


@cache
def inspect_first(name):
    """Return a capture, its first launch, the launch's counts, and its inspection."""
    capture = Capture(FOLDER / f"{name}.tilescope")
    launch = capture.content.launches[0]
    counts = count_launch(capture, launch)
    return capture, launch, counts, inspect(capture, launch, counts)


def predict_on(name, gpu):
    """Predict the time of a launch on another GPU, as if it had been compiled for it."""
    capture, launch, counts, inspection = inspect_first(name)
    capture = copy(capture)
    device = {"name": gpu.name, "sms": gpu.sms, "compute_capability": [*gpu.compute_capability]}
    capture.content = replace(capture.content, gpu=device)
    return add_time(capture, launch, counts, inspection)


def test_other_gpus_have_times_of_their_datasheets_that_are_marked_as_assumed():
    times = {
        name: predict_on("elements-softmax-8192-4096", GPUS[name])
        for name in ("L4", "A100-80GB", "H100", "H200")
    }
    ranked = sorted(times, key=lambda name: -times[name].predicted_us)
    assert ranked == ["L4", "A100-80GB", "H100", "H200"]
    assert times["L4"].assumed.startswith("L4: no measurements on this GPU.")
    assert times["H200"].assumed.startswith("H200: bandwidths were measured")
    assert times["L4"].by_resource_us["DRAM"] == pytest.approx(
        times["H100"].by_resource_us["DRAM"] * 3350 / 300, rel=0.01
    )


@pytest.mark.parametrize(
    "name",
    [
        "elements-layer-norm-16384-4096",
        "flash-full-32-heads-of-64-small-tiles",
    ],
)
def test_a_higher_bandwidth_lengthens_no_predicted_time_by_more_than_five_percent(name):
    capture, launch, counts, (_, executions) = inspect_first(name)
    shortest_us = math.inf
    for dram_gbps in range(2500, 6500, 500):
        constants, _ = find_constants(replace(GPUS["H200"], dram_gbps=dram_gbps))
        prediction = predict_launch(capture, launch, counts, executions, constants)
        assert prediction.total_us < 1.05 * shortest_us, dram_gbps
        shortest_us = min(shortest_us, prediction.total_us)


def test_unknown_rates_of_a_gpu_are_refused_with_a_sentence():
    matrix = predict_on("gemm-float16-4096-tiles-of-64", GPUS["B200"])
    assert matrix.not_predicted.startswith("The rate of HGMMA")
    unknown = replace(GPUS["H100"], name="GH1", sms=100)
    refused = predict_on("elements-softmax-8192-4096", unknown)
    assert refused.not_predicted.startswith("The DRAM bandwidth and the clock of GH1 are unknown")
