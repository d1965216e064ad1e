"""The text of a run: verdict, ratio and interval, rates, clock, a call's cost, the card, configs that cannot launch."""

from __future__ import annotations

import html
import re
from dataclasses import replace

import pytest

from kernels.experiment import from_json, launch_of
from kernels.gpus import GPUS
from kernels.measuring.run import RUN
from kernels.results import Failure, RunResult, Timing, records
from kernels.results.run import Baseline, Clocks, LaunchOverhead
from visualize.views.result import text

MATMUL = {"kernel": "matmul.grouped"}
FITS_L2 = {"kernel": "transpose.tiled"}
LARGE = {"kernel": "transpose.tiled", "problem": {"M": 8192, "N": 8192}}


def recorded(payload=MATMUL) -> RunResult:
    return records.find(RUN.form, from_json(payload), "H200")


def measured(payload=MATMUL, median_ms=0.007, ratio=(0.97, 0.975, 0.98), **changes) -> RunResult:
    """A recorded run, as if this machine had just measured it, with all that a run measures."""
    run = recorded(payload)
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
    return replace(run, **{**fields, **changes})


def with_options(run, **options):
    return replace(run, experiment=replace(run.experiment, run=replace(run.experiment.run, **options)))


def wrong(run=None, **check):
    run = run or measured()
    failed = replace(run.check, **{"passed": False, "mismatched": 1234, **check})
    return replace(run, check=failed, timing=None, baseline=None, peak=None)


def plain_text(markup):
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", markup)).split())


def render(run, renderer, **more):
    return plain_text(renderer(run, *launch_of(run.experiment, GPUS["H200"]), **more))


def headline(run, **more):
    return render(run, text.render_headline, **more)


def tables(run):
    return render(run, text.render_tables)


def card(run):
    return render(run, text.render_card)


@pytest.mark.parametrize(
    ("ratio", "is_tie"),
    [
        ((0.970, 0.975, 0.980), False),
        ((0.994, 0.998, 1.003), True),
        ((0.994, 0.998, 0.9999), False),
        ((1.0001, 1.002, 1.003), False),
    ],
)
def test_a_ratio_has_its_interval_and_is_a_tie_only_if_that_contains_1(ratio, is_tie):
    run = measured(ratio=ratio)
    number, interval = f"{ratio[1]:.3f}", f"95 % CI {ratio[0]:.3f}–{ratio[2]:.3f}"
    if is_tie:
        assert headline(run).startswith(f"Tied with torch.matmul: {number}, {interval} measured")
        assert card(run) == f"✓ 0 wrong · 7.00 µs · tied with torch ({number} ×) measured"
    else:
        assert headline(run).startswith(f"{number} × the speed of torch.matmul ({interval}) measured")
        assert card(run) == f"✓ 0 wrong · 7.00 µs · {number} × torch measured"
    assert f"TFLOP/s {'tied, ' * is_tie}{number} ×, {interval}" in tables(run)
    assert tables(run).count("cuBLASLt") == 1
    assert "Compared with torch.matmul, cuBLASLt: 1.200 ×, 95 % CI 1.190–1.210." in headline(run)


def test_a_ratio_without_an_interval_has_two_decimals():
    run = measured(baseline=replace(measured().baseline, ratio_low=None))
    assert headline(run).startswith("0.97 × the speed of torch.matmul measured")


def test_a_call_that_costs_more_than_the_kernel_comes_first():
    first, _, rest = headline(measured()).partition("More")
    assert "A call from Python takes 31.0 µs; the kernel takes 7.00 µs. In a loop, Python is the bottleneck" in first
    assert "A call from Python takes" not in rest
    assert "44.0 µs" in tables(measured())
    first, _, rest = headline(measured(median_ms=1.4)).partition("More")
    assert "A call from Python takes" not in first
    assert "A call from Python takes 31.0 µs; the kernel takes 1.40 ms, so the call hides behind it." in rest


def test_a_working_set_that_fits_in_the_l2_has_no_dram_bandwidth():
    run = measured(FITS_L2)
    assert "useful rate, in L2" in tables(run)
    assert "a copy's best" not in tables(run)
    assert "The working set of 8.39 MB fits in the L2 (62.9 MB), so the rate is no DRAM bandwidth." in headline(run)
    for from_dram in (with_options(run, l2="cold"), measured(LARGE)):
        assert "useful rate, in L2" not in tables(from_dram)
        assert re.search(r"a copy's best rate on this GPU [\d,.]+ GB/s this kernel reaches \d+ %", tables(from_dram))
        assert "working set" not in headline(from_dram)


def test_short_event_times_include_launch_overhead_and_a_graphs_do_not():
    caveat = "Event times this short include launch overhead"
    assert caveat in headline(measured())
    assert caveat not in headline(measured(median_ms=1.4))
    graph = with_options(measured(launches_per_sample=20), timer="graph")
    assert caveat not in headline(graph)
    assert "graph of 20 launches" in tables(graph)


def test_the_clock_has_its_range_and_how_it_was_read():
    assert "SM clock 1755 MHz (1740–1980, cycles over global time)" in tables(measured())
    assert "SM clock" not in tables(measured(clocks=None))


def test_a_wrong_result_says_how_many_are_wrong_and_where_and_has_no_time():
    run = wrong(worst_index=(17, 42))
    assert headline(run).startswith("1,234 of 262,144 elements are wrong measured Wrong beyond rounding")
    assert "at element [17, 42]" in headline(run)
    assert card(run) == "✗ 1,234 of 262,144 wrong measured"
    assert headline(wrong(mismatched=1)).startswith("1 of 262,144 elements is wrong")


def test_an_error_that_no_single_element_shows_is_not_called_zero_wrong_elements():
    run = wrong(mismatched=0)
    for part in (headline(run), card(run)):
        assert "rong as a whole" in part
        assert not part.startswith(("0", "✗ 0"))
    assert "though no single element does" in headline(run)


def test_a_race_that_passes_is_still_called_one_and_the_headline_says_why_it_does_not_show():
    lost = recorded({"kernel": "matmul.split_k_race"})
    assert not lost.check.passed, "the default lost its race when it was recorded"
    won = replace(lost, backend="interpreter", check=recorded().check, recorded=lost)
    assert card(won) == f"✓ 0 wrong, still a race interpreter ✗ {lost.check.mismatched:,} of 262,144 wrong recorded"
    assert "It passed, but it is still a race: 8 programs" in headline(won)
    assert "so it can't show a race" in headline(won)
    live = headline(replace(measured(), experiment=lost.experiment))
    assert live.startswith("0 of 262,144 elements are wrong measured It passed, but"), "luck matters more than speed"
    assert "It did not show in this result." in live
    assert "still a race" not in headline(lost)


def test_a_launch_that_falls_back_on_pointers_says_why():
    experiment = from_json({"kernel": "matmul.persistent", "problem": {"K": 4095}})
    said = headline(replace(recorded(), experiment=experiment))
    assert "A row of A takes 8,190 bytes. A tensor descriptor needs a multiple of 16" in said
    assert "falls back to pointers" in said


def test_the_cards_lines_of_an_interpreters_check_and_a_recorded_time_name_their_sources():
    run = recorded()
    interpreted = replace(run, backend="interpreter", timing=None, baseline=None, recorded=run)
    rendered = text.render_card(interpreted, *launch_of(run.experiment, GPUS["H200"]))
    first, second = (plain_text(line) for line in rendered.split("</p>")[:2])
    assert first == "✓ 0 wrong interpreter"
    assert second.startswith("✓ 0 wrong · ")
    assert second.endswith("torch recorded")


def test_an_interpreters_check_says_if_the_gpu_could_not_launch_the_config():
    run = replace(recorded(), backend="interpreter", timing=None)
    too_large = Failure("compile", "out_of_resources", "It needs 2,097,152 bytes.")
    expected = "This config can't launch on H200; the interpreter has no such limit. It needs 2,097,152 bytes."
    assert expected in headline(run, failure=too_large)
    assert expected not in headline(run, failure=replace(too_large, kind="timeout"))
    assert expected not in headline(replace(run, backend="cuda"), failure=too_large)
