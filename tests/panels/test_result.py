"""What the page says of a run: passed, wrong, timed, recorded."""

from __future__ import annotations

import html
from dataclasses import replace

import numpy as np

from kernels.experiment import from_json
from kernels.gpus import GPUS
from kernels.measuring.run import RUN
from kernels.results import Diff, records
from kernels.results.run import Closeup
from kernels.spec import Launch
from visualize.panels import result_tab
from visualize.views import words
from visualize.widgets.plot import NONE

EXPERIMENT = from_json({"kernel": "matmul.grouped"})


def recorded():
    run = records.find(RUN.form, EXPERIMENT, "H200")
    assert run is not None, "the default experiment was recorded"
    return run


def drawn(run):
    """Strip, claim, the two pictures and the tables."""
    experiment = run.experiment
    return result_tab.drawn_result(run, Launch(experiment.problem, experiment.config, GPUS["H200"]))


def test_a_recorded_run_says_so_at_every_number():
    strip, _, whole, closeup, times, tables = drawn(recorded())
    assert strip.count('class="mark recorded"') == strip.count('class="figure"')
    assert "NVIDIA H200" in tables
    assert whole == closeup == NONE
    assert "recorded" in times


def test_a_measured_run_shows_spread_samples_rate_ratio_and_share():
    run = replace(recorded(), backend="cuda")
    strip, *_, tables = drawn(run)
    timing, baseline, peak = run.timing, run.baseline, run.peak
    assert words.milliseconds(timing.median_ms) in strip
    assert f"median of {timing.samples}" in strip
    assert f"{baseline.ratio:.3f} ×" in strip
    assert words.percent(peak.share) in strip
    assert 'class="mark measured"' in strip
    assert words.milliseconds(timing.p20_ms) in tables


def test_a_wrong_result_says_how_many_are_wrong_and_where_and_shows_no_time():
    check = replace(recorded().check, passed=False, mismatched=1234, worst_index=(17, 42))
    cells = np.full((4, 4), 2.0, dtype=np.float32)
    got = np.full((7, 7), 1.5, dtype=np.float32)
    near = Closeup(cells, (48, 96), (0, 0), (192, 384), (14, 39), got, got + 1, got)
    diff = Diff(cells, (128, 128), (512, 512), exact=False, tile=(64, 128), closeup=near)
    run = replace(recorded(), backend="cuda", check=check, diff=diff, timing=None, baseline=None, peak=None)
    strip, claim, whole, closeup, times, tables = drawn(run)
    assert times == NONE
    assert "failed: 1,234 wrong" in strip
    assert "ms" not in strip
    assert "[17, 42]" in claim
    assert "tile [0, 0], computed by pid 0" in tables
    assert tables.count("1.5000") == tables.count("2.5000") == 49
    assert whole
    assert "pid 5" in closeup


def test_numbers_read_as_people_write_them():
    assert words.milliseconds(0.00733) == "7.33 µs"
    assert words.milliseconds(0.19) == "0.190 ms"
    assert words.milliseconds(192.6) == "193 ms"
    assert words.percent(0.936) == "94 %"
    assert words.percent(0.0026) == "0.26 %"
    assert words.significant(1460.3) == "1,460"
    assert words.significant(float("nan")) == "not finite"


def test_a_race_that_passes_is_still_called_one_and_says_why_it_can_not_show():
    experiment = from_json({"kernel": "matmul.split_k_race"})
    lost = records.find(RUN.form, experiment, "H200")
    assert not lost.check.passed, "the default lost its race when it was recorded"
    won = replace(lost, backend="interpreter", check=recorded().check, recorded=lost)
    strip, claim, *_ = drawn(won)
    assert "passed, still a race" in strip
    assert f"failed: {lost.check.mismatched:,} wrong" in strip
    assert "Passed, and is still a race" in claim
    assert "it can't show a race" in html.unescape(claim)
    _, claim, *_ = drawn(replace(won, backend="cuda", recorded=None))
    assert "This time it did not show in the result." in claim
    assert "<b>0</b> of 262,144 elements are wrong" in claim, "that it passed is luck, and counts more than its speed"
    _, claim, *_ = drawn(lost)
    assert "still a race" not in claim


def test_a_launch_that_falls_back_on_pointers_says_why():
    experiment = from_json({"kernel": "matmul.persistent", "problem": {"K": 4095}})
    _, claim, *_ = drawn(replace(recorded(), experiment=experiment))
    assert "A row of A takes 8,190 bytes. A tensor descriptor needs a multiple of 16" in claim
    assert "falls back to pointers" in claim


def test_an_error_that_only_shows_as_a_whole_is_not_called_zero_wrong_elements():
    check = replace(recorded().check, passed=False, mismatched=0)
    strip, claim, *_ = drawn(replace(recorded(), check=check))
    assert "failed as a whole" in strip
    assert "though no single element shows it" in claim
    assert "0 wrong" not in strip + claim
