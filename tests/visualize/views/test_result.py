"""The Result view: the text of a run, its pictures, and what /run replies."""

from dataclasses import replace

import numpy as np
import plotly.graph_objects as go

from tests.experiments import experiment_of
from tests.messages import decode, opened, text_of
from tilescope.declare.experiment import launch_of
from tilescope.declare.gpus import GPUS
from tilescope.inside.report import ChangedTime, Inside, LineSpills
from tilescope.measure.run import RUN
from tilescope.results import Failure, Timing, records
from tilescope.results.run import Baseline, Check, Clocks, Closeup, Diff, LaunchOverhead, Peak
from tilescope.timing.changes import list_options
from visualize.views.result import text, view
from visualize.views.result.figures import (
    error_figure,
    resources_figure,
    time_figure,
)
from visualize.views.result.text import render_predicted
from visualize.views.slots import NONE
from visualize.views.state import Snapshot

MATMUL = "matmul.grouped"
FITS_L2 = "transpose.tiled"
LARGE = "transpose.tiled M=8192 N=8192"


def recorded(launch=MATMUL):
    return records.find(RUN.form, experiment_of(launch), "H200")


def measured(launch=MATMUL, median_ms=0.007, ratio=(0.97, 0.975, 0.98), **changes):
    """A recorded run, as if this machine had just measured it, with all that a run measures."""
    run = recorded(launch)
    gbps = None if run.timing.gbps is None else 1000.0
    timing = Timing(
        median_ms, 0.99 * median_ms, 1.02 * median_ms, 340, None if gbps else 40.0, gbps
    )
    library = replace(timing, median_ms=ratio[1] * median_ms)
    low, middle, high = ratio
    first = Baseline("torch.matmul", library, middle, low, high)
    other = Baseline("torch.matmul, cuBLASLt", library, 1.2, 1.19, 1.21)
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


def test_a_time_that_is_not_known_is_in_no_number_and_in_no_picture():
    panel = view.ResultPanel()
    state = opened("matmul.grouped M=900 N=900 K=900")
    failure = Failure("compile", "no_triton", "Triton is not installed here.")
    for known, sentence in (
        ({}, "Predicting the time from the compiled code…"),
        ({"failure": failure}, "No predicted time: Triton is not installed here."),
        ({"inspected": failure}, "No predicted time: Triton is not installed here."),
    ):
        snapshot = Snapshot(state, **known)
        slots = panel.draw(snapshot)
        assert (text_of(slots["predicted-time"]), slots["predicted-plot"]) == (sentence, NONE)
        assert not panel.summary(snapshot)
    inside = Inside(predicted_us=7.0, range_us=(6.0, 9.0), by_resource_us={"L2": 5.0})
    (number,) = panel.summary(Snapshot(state, inspected=(inside, None)))
    assert str(number) == "7.00 µs"


def render(run, failure=None):
    """Return a run's card, headline and tables."""
    kernel, launch = launch_of(run.experiment, GPUS["H200"])
    headline = text.render_headline(run, kernel, launch, failure=failure)
    card = text.render_card(run, kernel, launch)
    return "\n</p>".join(map(str, (card, headline, text.render_tables(run, kernel, launch))))


def draw(run, gpu="H200"):
    """Return the slots of a run."""
    return view.draw_result(run, launch_of(run.experiment, GPUS[gpu])[1])


def locate_error(run):
    """Return a wrong run with a picture of its error, and of the tiles around its worst element."""
    cells = np.array([[2, 0.5, 2, 2]] * 3 + [[2, 2, 2, 700]], dtype=np.float32)
    output = np.full((7, 7), 1.5, dtype=np.float32)
    near = Closeup(cells, (48, 96), (0, 0), (192, 384), (14, 39), output, output + 1, output)
    diff = Diff(cells, (128, 128), (512, 512), exact=False, tile=(64, 128), closeup=near)
    return replace(run, diff=diff)


DRAWN = {
    "a recorded run": (recorded(),),
    "a measured run": (replace(recorded(), backend="cuda", copy_gbps=4100.0),),
    "a wrong run": (locate_error(wrong(worst_index=(17, 42))),),
    "a copy": (recorded(FITS_L2),),
    "a GPU without recordings": (recorded(), "L4"),
}


def resize(run, m, n, k):
    problem = replace(run.experiment.problem, M=m, N=n, K=k)
    return replace(run, experiment=replace(run.experiment, problem=problem))


def test_the_texts_are_the_approved_ones(approve):
    live = measured()
    long = measured(median_ms=1.4)
    lost = recorded("matmul.split_k_race")
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
        "much slower than torch": recorded("matmul.fused_add_relu"),
    }
    texts = {name: render(run) for name, run in texts.items()}
    assert "BLOCK_M=64&amp;BLOCK_N=128&amp;BLOCK_K=128" in texts["much slower than torch"]
    too_large = Failure("compile", "out_of_resources", "It needs 2,097,152 bytes.")
    for name, run in DRAWN.items():
        slots = draw(*run)
        texts[f"{name}: roofline"] = slots["roofline"]
        if name == "a wrong run":
            texts[f"{name}: tables"] = slots["result-tables"]
    texts["too large for the GPU"] = render(checked, too_large)
    for run, failure in (
        (checked, replace(too_large, kind="timeout")),
        (replace(checked, backend="cuda"), too_large),
    ):
        assert "This config can't launch" not in render(run, failure)
    approve("result", texts)


def marks_of(cells, cell, tile, exact=False):
    cells = np.array(cells, dtype=np.float32)
    shape = tuple(count * side for count, side in zip(cells.shape, cell, strict=True))
    return view.tile_marks(replace(wrong(), diff=Diff(cells, cell, shape, exact, tile)))


def test_the_marks_of_tiles_are_the_approved_ones(approve):
    cells = np.zeros((8, 8))
    cells[0, 0] = 1.5
    cells[5, 7] = np.inf
    cells[2, 3] = 0.9
    marks = {
        "several cells per tile": marks_of(cells, (32, 32), (64, 128)),
        "an exact result": marks_of(cells, (32, 32), (64, 128), exact=True),
        "cells larger than a tile": marks_of([[0, 2]], (256, 256), (64, 128)),
        "more cells than fit": marks_of(2 * np.eye(512), (1, 1), (1, 1)),
        "a run that passed needs no picture": view.tile_marks(recorded()),
    }
    approve("result_marks", marks)
    assert view.tile_marks(replace(wrong(), diff=None)) is None


def test_the_reply_says_whether_the_working_set_fits_in_the_l2():
    for launch, fits in ((FITS_L2, True), (LARGE, False)):
        run = measured(launch)
        assert view.run_reply(run, Snapshot(opened(run.experiment.to_address())))["fits_l2"] is fits


def test_a_config_that_is_expected_to_be_clearly_faster_is_suggested():
    large = "matmul.grouped M=4096 N=4096 K=4096 gpu=H200"
    assert text_of(text.suggest_config(opened(large))) == (
        "Tune expects 128 × 256 × 64 to be clearly faster."
    )
    found = f"{large} BLOCK_M=128 BLOCK_N=256 BLOCK_K=64 num_warps=8"
    assert text.suggest_config(opened(found)) == ""


def error_map(cells, exact=False, passed=False, cell=1):
    """Return the picture of an error whose cells have `cell` × `cell` elements."""
    cells = np.array(cells, dtype=np.float32)
    row, column = (int(place) * cell for place in np.unravel_index(np.argmax(cells), cells.shape))
    diff = Diff(cells, (cell, cell), tuple(cell * side for side in cells.shape), exact)
    most = float(cells.max())
    check = Check(passed, 0.1, 0.01, 1.0, 0.1, 1, 0, cells.size, (row, column), 2.0, 1.0, most)
    return error_figure(diff, check, "C")


def test_the_figures_are_the_approved_ones(approve):
    one = np.full((3, 4), 0.8)
    one[2, 1] = 1.5
    figures = {
        "one wrong cell": error_map(one, cell=64),
        "an exact result": error_map(one, exact=True),
        "no error": error_map(0 * one, passed=True),  # such as a race on zeros
        "wrong everywhere": error_map(np.geomspace(133, 348, 6).reshape(2, 3)),
        "right and wrong": error_map([[0.2, 0.9], [1.0, 261]]),
        "passed": error_map([[0, 0.3]]),
        "not finite": error_map([[0.5, 40, np.nan]]),
        "exact and not finite": error_map([[0.0, 1e-6], [0.5, np.inf]], exact=True),
        "times": time_figure(measured()),
        "milliseconds": time_figure(measured(median_ms=0.7)),
        "no library": time_figure(measured(baselines=(), launch_overhead=None)),
    }
    times_ms = {"L2": 0.03, "DRAM": 0.02}
    for name, is_bound in (("bound by a resource", True), ("bound by latency", False)):
        figures[name] = resources_figure(times_ms, 0.05, is_bound)
    for name, run in DRAWN.items():
        for slot, value in draw(*run).items():
            if slot.endswith("-plot"):
                figures[f"{name}: {slot}"] = value if value == NONE else decode(value)
    for figure in figures.values():
        if figure != NONE:
            go.Figure(figure["data"], figure["layout"])  # raises if Plotly lacks a property
    approve("result_figures", figures)


# Known milliseconds, and whether they are of launches that follow each other.
KNOWN = {
    "in the range": (0.016, False),
    "longer": (0.0198, False),
    "shorter": (0.0072, False),
    "warm and in the range": (0.0072, True),
    "warm and longer": (0.015, True),
    "warm and shorter": (0.006, True),
}


def test_the_predicted_times_are_the_approved_ones(approve):
    ranges = {"predicted_us": 10.0, "predicted_warm_us": 8.0, "range_us": (8.0, 17.0)}
    inside = Inside(**ranges, bound_by="L2", by_resource_us={"L2": 9.0})
    texts = {name: render_predicted(inside, "", *known) for name, known in KNOWN.items()}
    alike = replace(inside, predicted_warm_us=10.04)
    texts["a warm L2 saves nothing"] = render_predicted(alike, "")
    spills = LineSpills("k.py", 2, 1, 1, 100, 84, 8e9)
    change = ChangedTime("num_warps = 8", 5.0, {"num_warps": 8}, is_compiled=True)
    spilling = replace(inside, spills_by_line=(spills,), changes=(change,))
    texts["spills and a change"] = render_predicted(spilling, "")
    approve("result_predicted", texts)
    assert list_options(spilling, num_warps=4, num_stages=3) == [{"num_warps": 8}]
