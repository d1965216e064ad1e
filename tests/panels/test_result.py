"""What the page says of a run: passed, wrong, timed, recorded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kernels import discover, records
from kernels.experiment import from_json
from kernels.runner.results import Diff
from visualize.panels import result, words

EXPERIMENT = from_json({"kernel": "matmul.grouped"}, discover())


def recorded():
    run = records.find(EXPERIMENT, "H200")
    assert run is not None, "the default experiment was recorded"
    return run


def test_a_recorded_run_says_so_at_every_number():
    strip, report, picture = result.drawn_result(recorded())
    assert strip.count('class="mark recorded"') == strip.count('class="figure"')
    assert "NVIDIA H200" in report
    assert picture == ""


def test_a_measured_run_shows_spread_samples_rate_ratio_and_share():
    run = replace(recorded(), backend="cuda")
    strip, report, _ = result.drawn_result(run)
    timing, baseline, peak = run.timing, run.baseline, run.peak
    assert words.milliseconds(timing.median_ms) in strip
    assert f"median of {timing.samples}" in strip
    assert f"{baseline.ratio:.2f} ×" in strip
    assert words.percent(peak.share) in strip
    assert 'class="mark measured"' in strip
    assert words.milliseconds(timing.p20_ms) in report


def test_a_wrong_result_says_how_many_are_wrong_and_where_and_shows_no_time():
    check = replace(recorded().check, passed=False, mismatched=1234, worst_index=(17, 42))
    diff = Diff(np.full((4, 4), 2.0, dtype=np.float32), (128, 128), (512, 512), exact=False)
    run = replace(recorded(), backend="cuda", check=check, diff=diff, timing=None, baseline=None, peak=None)
    strip, report, picture = result.drawn_result(run)
    assert "failed: 1,234 wrong" in strip
    assert "ms" not in strip
    assert "[17, 42]" in report
    assert picture


def test_numbers_read_as_people_write_them():
    assert words.milliseconds(0.00733) == "7.33 µs"
    assert words.milliseconds(0.19) == "0.190 ms"
    assert words.milliseconds(192.6) == "193 ms"
    assert words.percent(0.936) == "94 %"
    assert words.percent(0.0026) == "0.26 %"
    assert words.significant(1460.3) == "1,460"
    assert words.significant(float("nan")) == "not finite"
