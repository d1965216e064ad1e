"""The Result view: the text of a run, its pictures, what /run replies, and the run that a browser keeps."""

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
from kernels.results import Failure, Timing, records
from kernels.results.run import Baseline, Check, Clocks, Closeup, Diff, LaunchOverhead, Peak
from kernels.space import space
from tests.messages import decode, text_of
from visualize.predict.bounds import Roof, intensity, predicted_point
from visualize.predict.reuse import asked_bytes
from visualize.predict.schedule import schedule
from visualize.views import theme
from visualize.views.result import text, view
from visualize.views.result.figures import closeup_figure, error_figure, time_figure
from visualize.views.result.text import ENQUEUED, SYNCHRONIZED, THIS_KERNEL
from visualize.views.slots import NONE
from visualize.views.state import Snapshot
from visualize.views.tabs import SETTINGS
from visualize.views.tune.view import predict_sweep

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


def test_a_launch_without_a_timed_run_has_a_predicted_time():
    """The same as in Tune; a recorded run has its own."""

    def drawn(payload):
        state = SETTINGS.state({**payload, "tab": "result"}, None)
        run = records.find(RUN.form, state.experiment, "H200")
        snapshot = Snapshot(state, measured={"run": run} if run else {})
        panel = view.ResultPanel()
        (number,) = panel.summary(snapshot)
        (row,) = predict_sweep(space(state.experiment, {"num_warps": [4]}), state.gpu).rows
        assert number.value == row.predicted.ms
        return panel.draw(snapshot), str(number)

    slots, number = drawn({"kernel": "matmul.grouped", "M": 900, "N": 900, "K": 900})
    assert (
        text_of(slots["predicted-time"])
        == f"{number} predicted without compiling predicted Dominated by latency."
    )
    alone, time, _ = decode(slots["predicted-plot"])["data"]
    assert set(alone["y"]) == {"L2", "latency", "arithmetic", "shared memory", "DRAM"}
    assert f"{sum(time['x']):.1f} µs" == number
    slots, _ = drawn(MATMUL)
    assert slots == {"predicted-time": "", "predicted-plot": NONE}


def render(run, renderer, **more):
    return text_of(renderer(run, *launch_of(run.experiment, GPUS["H200"]), **more))


def headline(run, **more):
    return render(run, text.render_headline, **more)


def tables(run):
    return render(run, text.render_tables)


def card(run):
    return render(run, text.render_card)


def test_a_run_much_slower_than_torch_links_to_the_recommended_config():
    state = SETTINGS.state({"kernel": "matmul.fused_add_relu"}, None)
    run = records.find(RUN.form, state.experiment, "H200")
    link = text.render_card(run, state.kernel, state.launch).partition("<a ")[2]
    assert "Try 64 × 128 × 128" in link
    assert "BLOCK_M=64&amp;BLOCK_N=128&amp;BLOCK_K=128" in link
    fast = records.find(RUN.form, SETTINGS.state(MATMUL, None).experiment, "H200")
    assert fast.baseline.ratio > 0.5
    assert "Try" not in card(fast)


@pytest.mark.parametrize(
    ("ratio", "is_tie"),
    [((0.97, 0.975, 0.98), False), ((0.994, 0.998, 1.003), True), ((0.994, 0.998, 0.9999), False)],
)
def test_a_ratio_has_its_interval_and_is_a_tie_only_if_that_contains_1(ratio, is_tie):
    run = measured(ratio=ratio)
    number = f"{ratio[1]:.3f}"
    interval = f"95 % CI {ratio[0]:.3f}–{ratio[2]:.3f}"
    tied = f"Tied with torch.matmul: {number}, {interval}"
    beside = f"{number} × the speed of torch.matmul ({interval})"
    assert headline(run).startswith(f"{tied if is_tie else beside} measured")
    relation = f"tied with torch ({number} ×)" if is_tie else f"{number} × torch’s speed"
    assert card(run) == f"✓ 0 wrong · 7.00 µs · {relation} measured"
    assert f"TFLOP/s {'tied, ' * is_tie}{number} ×, {interval}" in tables(run)
    assert "Compared with torch.matmul, cuBLASLt: 1.200 ×, 95 % CI 1.190–1.210." in headline(run)
    older = replace(run, baseline=replace(run.baseline, ratio_low=None))
    assert headline(older).startswith(f"{ratio[1]:.2f} × the speed of torch.matmul measured")


def test_a_call_that_costs_more_than_the_kernel_comes_first():
    first, _, rest = headline(measured()).partition("More")
    assert (
        "A call from Python takes 31.0 µs; the kernel takes 7.00 µs. In a loop, Python is the bottleneck"
        in first
    )
    assert "A call from Python takes" not in rest
    assert "44.0 µs" in tables(measured())
    assert "SM clock 1755 MHz (1740–1980, cycles over global time)" in tables(measured())
    first, _, rest = headline(measured(median_ms=1.4)).partition("More")
    assert "A call from Python takes" not in first
    assert (
        "A call from Python takes 31.0 µs; the kernel takes 1.40 ms, so the call hides behind it."
        in rest
    )


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ((4097, 4097, 4097), "rows of A and B are not 16-byte aligned."),
        ((512, 512, 512), "tiles of 128 × 128 fill only 16 of 132 SMs."),
        ((8192, 8192, 64), "K is only 64, so storing C dominates."),
    ],
)
def test_the_page_says_why_the_library_is_below_half_of_its_best_rate(sizes, reason):
    m, n, k = sizes
    run = measured(median_ms=1.4)
    problem = replace(run.experiment.problem, M=m, N=n, K=k)
    shaped = replace(run, experiment=replace(run.experiment, problem=problem))
    slow = replace(shaped, peak=Peak(100.0, "TFLOP/s", "torch.matmul", 0.4))
    first, _, _ = headline(slow).partition("More")
    assert f"torch.matmul reaches 40 % of its best rate: {reason}" in first
    assert "of its best" not in headline(replace(shaped, peak=replace(slow.peak, rate=80.0)))


def test_a_working_set_that_fits_in_the_l2_has_no_dram_bandwidth():
    run = measured(FITS_L2)
    assert "useful rate, in L2" in tables(run)
    assert "a copy's best" not in tables(run)
    assert (
        "The working set of 8.39 MB fits in the L2 (62.9 MB), so the rate is no DRAM bandwidth."
        in headline(run)
    )
    for from_dram in (with_options(run, l2="cold"), measured(LARGE)):
        assert "useful rate, in L2" not in tables(from_dram)
        assert "working set" not in headline(from_dram)
        assert re.search(
            r"a copy's best rate on this GPU [\d,.]+ GB/s this kernel reaches \d+ %",
            tables(from_dram),
        )


def test_short_event_times_include_launch_overhead_and_a_graphs_do_not():
    caveat = "Event times this short include launch overhead"
    assert caveat in headline(measured())
    assert caveat not in headline(measured(median_ms=1.4))
    graph = with_options(measured(launches_per_sample=20), timer="graph")
    assert caveat not in headline(graph)
    assert "graph of 20 launches" in tables(graph)


def test_a_wrong_result_says_how_many_are_wrong_and_where_and_has_no_time():
    run = wrong(worst_index=(17, 42))
    assert headline(run).startswith(
        "1,234 of 262,144 elements are wrong measured Wrong beyond rounding"
    )
    assert "at element [17, 42]" in headline(run)
    assert card(run) == "✗ 1,234 of 262,144 wrong measured"
    assert headline(wrong(mismatched=1)).startswith("1 of 262,144 elements is wrong")
    whole = wrong(mismatched=0)
    for part in (headline(whole), card(whole)):
        assert "rong as a whole" in part
        assert not part.startswith(("0", "✗ 0"))
    assert "No element exceeds its limit" in headline(whole)


def test_a_race_that_passes_is_still_called_one_and_the_headline_says_why_it_does_not_show():
    lost = recorded({"kernel": "matmul.split_k_race"})
    assert not lost.check.passed, "the default lost its race when it was recorded"
    won = replace(lost, backend="interpreter", check=recorded().check, recorded=lost)
    assert (
        card(won)
        == f"✓ 0 wrong, still a race, checked in the interpreter ✗ {lost.check.mismatched:,} of 262,144 wrong recorded"
    )
    assert "It passed, but it is still a race: 8 programs" in headline(won)
    assert "so it can't show a race" in headline(won)
    live = headline(replace(measured(), experiment=lost.experiment))
    assert live.startswith("0 of 262,144 elements are wrong measured It passed, but"), (
        "luck matters more than speed"
    )
    assert "It did not show in this result." in live
    assert "still a race" not in headline(lost)


def test_an_interpreters_check_says_if_the_gpu_could_not_launch_the_config():
    run = replace(
        recorded(), backend="interpreter", timing=None, baseline=None, recorded=recorded()
    )
    assert re.fullmatch(
        r"✓ 0 wrong, checked in the interpreter ✓ 0 wrong · .* torch’s speed recorded", card(run)
    )
    too_large = Failure("compile", "out_of_resources", "It needs 2,097,152 bytes.")
    expected = "This config can't launch on H200; the interpreter has no such limit. It needs 2,097,152 bytes."
    for each, failure in (
        (run, replace(too_large, kind="timeout")),
        (replace(run, backend="cuda"), too_large),
    ):
        assert expected not in headline(each, failure=failure)
    assert expected in headline(run, failure=too_large)


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
        "tiles": [1, 1],
    }
    assert marks_of(cells, (32, 32), (64, 128), exact=True)["wrong"] == ["10", "10", "01", "00"]
    assert marks_of([[0, 2]], (256, 256), (64, 128)) == {"wrong": ["01"], "tiles": [4, 2]}, (
        "coarser than the tiles"
    )
    assert view.tile_marks(recorded())["wrong"] == ["0"], "a run that passed needs no picture"
    assert view.tile_marks(replace(wrong(), diff=None)) is None


@pytest.mark.parametrize(("payload", "fits"), [(FITS_L2, True), (LARGE, False)])
def test_the_reply_says_whether_the_working_set_fits_in_the_l2(payload, fits):
    run = measured(payload)
    kernel, launch = launch_of(run.experiment, H200)
    snapshot = SimpleNamespace(state=SimpleNamespace(kernel=kernel), launch=launch, failure=None)
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


def test_the_predicted_bound_is_the_slowest_resource_and_follows_the_clock():
    config = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "num_warps": 8}
    _, launch = launch_of(
        from_json({**MATMUL, "problem": {"M": 8192, "N": 8192, "K": 8192}, "config": config}), H200
    )
    received = asked_bytes(schedule(GROUPED, launch))
    point, slowest = predicted_point(GROUPED, launch, received, 1830)
    assert point.tflops == pytest.approx(2 * 8192**3 / slowest.ms / 1e9)
    slower, resource = predicted_point(GROUPED, launch, received, 600)
    assert resource.name == "arithmetic"
    assert slower.tflops == pytest.approx(989.4 * 600 / 1830, rel=1e-3)


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
    assert traces.keys() == {"H100", "H200", THIS_KERNEL, "library", "predicted bound"} | recordings
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
    return error_figure(Diff(cells, (1, 1), cells.shape, exact), check_of(cells), "C").data[0]


def test_one_wrong_cell_is_beyond_the_limit_and_ringed():
    cells = np.full((128, 128), 0.8, dtype=np.float32)
    cells[78, 19] = 1.5
    diff = Diff(cells, (64, 64), (8192, 8192), exact=False)
    figure = error_figure(diff, check_of(cells, cell=64), "C")
    heatmap, ring = figure.data
    assert np.argwhere(heatmap.z > 0).tolist() == [[78, 19]]
    assert ring.y[0] == 78 * 64
    assert ring.x[0] == 19 * 64
    assert heatmap.y0 == 31.5
    assert heatmap.dy == 64
    assert figure.layout.title.text.startswith("Error of C ÷ its rounding limit")
    exact = error_figure(replace(diff, exact=True), check_of(cells), "C")
    assert exact.layout.title.text == "Error of C (max of each 64 × 64)"
    none = 0 * cells  # such as a race on zeros
    assert (
        len(error_figure(replace(diff, cells=none), check_of(none, passed=True), "C").data) == 1
    ), "no ring"


def test_a_result_that_is_wrong_everywhere_has_colours_from_its_smallest_to_its_largest_error():
    """A lost race: with a scale that ends at 100 × the limit, it would have one colour everywhere."""
    picture = error_map(np.geomspace(133, 348, 64).reshape(8, 8))
    assert 10**picture.zmin == pytest.approx(133)
    assert 10**picture.zmax == pytest.approx(348)
    assert (np.diff(picture.z.ravel()) > 0).all()
    assert {color for _, color in picture.colorscale} == {"#fcd29f", "#e2691b", "#6d1602"}, (
        "no colour of right cells"
    )
    assert list(picture.colorbar.ticktext) == ["150 ×", "200 ×", "300 ×"]


def test_the_colour_jumps_at_the_limit_and_the_scale_ends_at_the_largest_error():
    picture = error_map([[0.2, 0.9], [1.0, 261]])
    assert picture.zmin == -2
    assert 10**picture.zmax == pytest.approx(261)
    limit = 2 / (picture.zmax - picture.zmin)
    assert [color for at, color in picture.colorscale if at == pytest.approx(limit)] == [
        "#cfe0f3",
        "#fcd29f",
    ]
    labels = dict(zip(picture.colorbar.tickvals, picture.colorbar.ticktext, strict=True))
    assert labels == {-2: "≤ 0.01 ×", -1: "0.1 ×", 0: "limit", 1: "10 ×", 2: "100 ×"}
    passed = error_map([[0, 0.3]])
    assert passed.zmin == -2
    assert passed.zmax == 0
    assert passed.colorbar.ticktext[-1] == "limit"
    assert {color for _, color in passed.colorscale} == {"#0b2a5b", "#cfe0f3"}, (
        "no colour of wrong cells"
    )


def test_a_map_and_its_closeup_share_one_scale_and_the_closeup_names_programs_and_has_borders():
    cells = np.full((2, 2), 200, dtype=np.float32)
    output = np.zeros((1, 1), dtype=np.float32)
    near = Closeup(
        np.array([[0.5, 700]], dtype=np.float32),
        (2, 2),
        (2, 2),
        (2, 4),
        (0, 0),
        output,
        output,
        output,
    )
    diff = Diff(cells, (4, 4), (8, 8), exact=False, tile=(2, 2), closeup=near)
    check = check_of(cells)
    whole = error_figure(diff, check, "C").data[0]
    heatmap, borders, labels, ring = closeup_figure(
        diff, near, check, "C", {(1, 1): [7, 8], (1, 2): [5]}
    ).data
    assert [(each.zmin, 10**each.zmax) for each in (whole, heatmap)] == [
        (-2, pytest.approx(700))
    ] * 2
    assert heatmap.x0 == 2.5
    assert heatmap.y0 == 2.5
    assert list(zip(labels.y, labels.x, labels.text, strict=True)) == [
        (2, 2, "pid 7 +1"),
        (2, 4, "pid 5"),
    ]
    assert list(borders.x) == [1.5, 5.5, None, 1.5, 1.5, None, 3.5, 3.5, None]
    assert list(borders.y)[:5] == [1.5, 1.5, None, 1.5, 3.5], "from the first row of tiles down"
    assert (ring.y[0], ring.x[0]) == check.worst_index


def test_an_element_that_is_not_finite_is_above_all_errors_and_all_errors_of_an_exact_result_look_alike():
    picture = error_map([[0.5, 40, np.nan]])
    assert picture.z[0, 2] == pytest.approx(picture.zmax)
    assert picture.z[0, 2] > picture.z[0, 1]
    assert picture.colorbar.ticktext[-1] == "not finite"
    (right, tiny), (half, infinite) = error_map([[0.0, 1e-6], [0.5, np.inf]], exact=True).z
    assert right < tiny == half == infinite


def test_the_time_figure_has_a_bar_per_call_and_another_colour_for_the_host():
    figure = time_figure(measured())
    bars, labels = figure.data
    assert list(bars.y) == [
        THIS_KERNEL,
        "torch.matmul",
        "torch.matmul, cuBLASLt",
        ENQUEUED,
        SYNCHRONIZED,
    ]
    assert max(map(len, figure.layout.xaxis.title.text.split("<br>"))) <= 20, (
        "a phone has no room for more"
    )
    assert list(bars.x) == pytest.approx([7.0, 6.825, 6.825, 31.0, 44.0])
    kernel, library, _, *host = bars.marker.color
    assert kernel == theme.HARDWARE
    assert len(set(host)) == 1
    assert library not in host
    assert [error > 0 for error in bars.error_x.array] == [True, True, True, False, False]
    assert "7.00 µs" in labels.text[0]
    assert "31.0 µs" in labels.text[3], "three digits, zeros included"
    assert all(np.array(labels.x) >= bars.x), "beside the bars"
    bars, _ = time_figure(measured(baselines=(), launch_overhead=None)).data
    assert list(bars.y) == [THIS_KERNEL], "a dtype that no library call accepts"


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
    for unreadable in (
        None,
        7,
        "",
        "{",
        "[]",
        "null",
        "[" * 50_000,
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
