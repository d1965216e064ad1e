"""What the page says of times: ratios with their interval, ties, the L2's rates, the clock, and what a call costs."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from kernels import discover
from kernels.experiment import from_json
from kernels.gpus import GPUS
from kernels.measuring.run import RUN
from kernels.results import RunResult, Timing, records
from kernels.results.records import Recording
from kernels.results.run import Baseline, Clocks, LaunchOverhead
from kernels.spec import Launch
from visualize.figures.time_figure import ENQUEUED, OURS, WAITED, time_figure
from visualize.panels import result_tab
from visualize.panels.result_tab import run_json
from visualize.views import theme
from visualize.views.numbers import key_numbers

SMALL = {"kernel": "matmul.grouped"}
FITS = {"kernel": "transpose.tiled"}
LARGE = {"kernel": "transpose.tiled", "problem": {"M": 8192, "N": 8192}}


def measured(payload=SMALL, median_ms=0.007, ratio=(0.97, 0.975, 0.98), **changed) -> RunResult:
    """A run that was recorded without them, with all that is measured now."""
    run = records.find(RUN.form, from_json(payload), "H200")
    gbps = None if run.timing.gbps is None else 1000.0
    timing = Timing(median_ms, 0.99 * median_ms, 1.02 * median_ms, 340, None if gbps else 40.0, gbps)
    first = Baseline("torch.matmul", replace(timing, median_ms=ratio[1] * median_ms), ratio[1], ratio[0], ratio[2])
    other = replace(first, name="torch.matmul, cuBLASLt", ratio=1.2, ratio_low=1.19, ratio_high=1.21)
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
    return replace(run, **{**fields, **changed})


def drawn(run):
    """Strip, claim, and tables, as text."""
    experiment = run.experiment
    strip, claim, *_, tables = result_tab.drawn_result(run, Launch(experiment.problem, experiment.config, GPUS["H200"]))
    return [html.unescape(re.sub(r"<[^>]*>", " ", part)) for part in (strip, claim, tables)]


def shown(run):
    """The strip with its hover texts."""
    experiment = run.experiment
    strip, *_ = result_tab.drawn_result(run, Launch(experiment.problem, experiment.config, GPUS["H200"]))
    return html.unescape(strip)


def test_a_ratio_stands_beside_its_interval_everywhere():
    strip, claim, tables = drawn(measured())
    assert "0.975 ×" in strip
    assert "timed in turns: 0.975 ×, 95\u00a0% CI 0.970–0.980" in shown(measured())
    assert "the speed of torch.matmul (95\u00a0% CI 0.970–0.980)" in claim
    assert "0.975 ×, 95\u00a0% CI 0.970–0.980" in tables


def test_an_interval_that_holds_1_is_a_tie():
    strip, claim, tables = drawn(measured(ratio=(0.994, 0.998, 1.003)))
    assert "tie (0.998 ×)" in strip
    assert "Tied" in claim
    assert "with torch.matmul: 0.998, 95\u00a0% CI 0.994–1.003" in claim
    assert "tied, 0.998 ×" in tables


@pytest.mark.parametrize("ratio", [(0.994, 0.998, 0.9999), (1.0001, 1.002, 1.003)])
def test_an_interval_beside_1_is_no_tie(ratio):
    assert "Tied" not in drawn(measured(ratio=ratio))[1]


def test_the_librarys_other_calls_are_named_with_their_ratios():
    _, claim, tables = drawn(measured())
    assert "Beside torch.matmul, cuBLASLt: 1.200 ×, 95\u00a0% CI 1.190–1.210." in claim
    assert tables.count("cuBLASLt") == 1


def test_a_call_that_costs_more_than_the_kernel_takes_comes_first():
    _, claim, tables = drawn(measured())
    said = "A call from Python takes 31.0 µs; the kernel takes 7.00 µs. Python is the limit in a loop"
    assert said in claim.split("More")[0]
    assert claim.count("A call from Python takes") == 1
    assert "44.0 µs" in tables
    _, claim, _ = drawn(measured(median_ms=1.4))
    assert "A call from Python takes" not in claim.split("More")[0]
    assert "A call from Python takes 31.0 µs; the kernel takes 1.40 ms, so the call hides behind it." in claim


def test_what_fits_in_the_l2_has_no_dram_bandwidth():
    strip, claim, tables = drawn(measured(FITS))
    assert "useful rate, in L2" in strip
    assert "useful rate, in L2" in tables
    assert "of a copy's best" not in strip
    assert "The working set of 8.39 MB fits in the L2 (62.9 MB): this is no DRAM bandwidth." in claim
    cold = measured(FITS)
    experiment = replace(cold.experiment, run=replace(cold.experiment.run, l2="cold"))
    strip, claim, _ = drawn(replace(cold, experiment=experiment))
    assert "useful rate, in L2" not in strip
    assert "working set" not in claim
    strip, claim, _ = drawn(measured(LARGE))
    assert "useful rate, in L2" not in strip
    assert "working set" not in claim


def test_the_reply_says_whether_the_working_set_fits():
    for payload, expected in ((FITS, True), (LARGE, False)):
        run = measured(payload)
        kernel, launch = (
            discover()["transpose.tiled"],
            Launch(run.experiment.problem, run.experiment.config, GPUS["H200"]),
        )
        known = SimpleNamespace(state=SimpleNamespace(kernel=kernel), launch=launch)
        reply = result_tab.reply(run, known)
        assert (reply["fits_l2"], reply["working_set_bytes"]) == (expected, kernel.family.minimal_bytes(launch.problem))


def test_a_short_launch_that_events_time_is_told_of_graphs():
    _, claim, _ = drawn(measured())
    assert "timer graph takes 20 in a row" in claim
    assert "timer graph takes" not in drawn(measured(median_ms=1.4))[1]
    graph = measured(launches_per_sample=20)
    graph = replace(graph, experiment=replace(graph.experiment, run=replace(graph.experiment.run, timer="graph")))
    _, claim, tables = drawn(graph)
    assert "timer graph takes" not in claim
    assert "graph of 20 launches" in tables


def test_the_clock_is_shown_with_its_range_and_how_it_was_read():
    assert "SM clock 1755 MHz (1740–1980, cycles over global time)" in drawn(measured())[2]
    assert "SM clock 1755 MHz" in drawn(measured(clocks=None))[2]


def test_the_figure_has_bars_for_every_call_and_its_own_for_python():
    (bars,) = time_figure(measured()).data
    assert list(bars.y) == [OURS, "torch.matmul", "torch.matmul, cuBLASLt", ENQUEUED, WAITED]
    assert list(bars.x) == pytest.approx([7.0, 6.825, 6.825, 31.0, 44.0])
    colors = dict(zip(bars.y, bars.marker.color, strict=True))
    assert colors[OURS] == theme.HARDWARE
    assert colors[ENQUEUED] == colors[WAITED] != colors["torch.matmul"]
    assert list(bars.error_x.array)[-2:] == [None, None]
    assert all(error > 0 for error in bars.error_x.array[:-2])
    assert ["7.00 µs" in bars.text[0], "31.0 µs" in bars.text[3]] == [True, True], "three digits, zeros included"
    title = time_figure(measured()).layout.xaxis.title.text
    assert max(map(len, title.split("<br>"))) <= 20, "a phone has room for it"


def older():
    """A run that was recorded before these were measured."""
    run = records.find(RUN.form, from_json(SMALL), "H200")
    baseline = replace(run.baseline, ratio_low=None, ratio_high=None)
    missing = {"baselines": (), "clocks": None, "launch_overhead": None, "launches_per_sample": 1}
    return replace(run, baseline=baseline, **missing)


def test_the_figure_of_an_older_recording_has_the_two_bars_that_it_had():
    run = older()
    (bars,) = time_figure(run).data
    assert list(bars.y) == [OURS, run.baseline.name]


def test_all_of_it_can_be_recorded_and_read_back():
    run = measured()
    line = RUN.form.line(Recording("H200", "2026-11-22", run))
    read = RUN.form.recording(json.loads(line)).measured
    assert read == run
    assert read.baseline.is_tie is False
    assert key_numbers(read)[0].value == 0.007


def test_a_recording_without_it_stays_as_short_as_it_was():
    run = older()
    recorded = json.loads(RUN.form.line(Recording("H200", "2026-11-22", run)))["run"]
    assert not {"baselines", "clocks", "launch_overhead", "launches_per_sample"} & recorded.keys()
    assert "ratio_low" not in recorded["baseline"]
    assert run_json(run)["baseline"]["ratio_low"] is None
