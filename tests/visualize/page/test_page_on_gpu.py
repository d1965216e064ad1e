"""The page on a real GPU, in a real browser: measurements and counts that a button starts."""

import re

import pytest

from tilescope.declare.gpus import table_name

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.idle_gpu,
    pytest.mark.browser,
    pytest.mark.usefixtures("here"),
]

# Seconds that a job may take: compiles, and a profiler that starts Python and torch again.
PATIENCE_S = 90

# Launches of over 200 µs, even on an H200.
MATMUL = "?kernel=matmul.grouped&M=6144&N=6144&K=6144"

# A launch of tenths of a second, of which ten and more are timed.
SLOW = "?kernel=matmul.grid_2d&M=16384&N=16384&K=16384&BLOCK_M=16&BLOCK_N=16&BLOCK_K=16"


def press(tab, button):
    """Press a button whose action takes the GPU, wait for its end, and return what the page says then."""
    place = "card" if button == "run" else "status"
    tab.evaluate("place => document.getElementById(place).replaceChildren()", place)
    tab.find(f"#{button}").click()
    tab.ended(place)
    text = tab.text(f"#{place}")
    assert tab.find(f"#{place} .failure").count() == 0, text
    return text


def match(pattern, text):
    found = re.search(pattern, text)
    assert found, text
    return found


def number(pattern, text):
    return float(match(pattern, text)[1].replace(",", ""))


def is_this_gpu(name, here):
    """Return whether a device's own name is that of this machine's GPU."""
    return here.name in (name, table_name(name))


def traces(tab, plot, fields):
    """Return `fields` of each trace `t` of a live plot, as the browser has it."""
    return tab.evaluate(f"document.querySelector('#{plot} .live-plot').data.map((t) => ({fields}))")


def numbers(tab):
    """Open the result's tables, and return their text."""
    tab.tab("result")
    tab.unfold("#result-numbers")
    return tab.text("#result-tables")


def assert_measured(tab, here, work, rate_unit):
    """The card and the tables show a right result, timed on this GPU, at the rate that its time gives."""
    card, tables = tab.text("#card"), numbers(tab)
    assert "✓ 0 wrong" in card
    assert tab.find("#card .mark.measured").count() == tab.find("#card .mark").count() == 1, card
    assert tab.find("#card .stale").count() == 0
    milliseconds = number(r"([\d.,]+) ms", card)
    assert milliseconds >= 0.2
    rate = number(rf"([\d.,]+) {rate_unit}", tables)
    assert rate == pytest.approx(work / milliseconds, rel=0.02), "three digits each"
    match(r"\d\.\d+ ×|tied", card)  # the speed beside the library's
    match(r"(cuBLAS's|a copy's) best rate", tables)
    for device in (r"Check, on (.+?), torch", r"Time on (.+?), L2 warm, events"):
        assert is_this_gpu(match(device, tables)[1], here), tables


def test_the_page_says_which_gpu_it_runs_on(tab, here):
    tab.open()
    assert f"Live on this machine's {here.name}." in str(
        tab.find("#title h1").get_attribute("title")
    )
    assert f"this: {here.name}" in tab.field("GPU").inner_text()


def test_a_run_is_timed_and_right_on_this_gpu(tab, here):
    tab.open("?kernel=transpose.tiled&M=16384&N=16384")
    press(tab, "run")
    assert_measured(tab, here, 2 * 4 * 16384**2 / 1e6, "GB/s")
    tab.wait_for_draw("diff-plot")


@pytest.mark.parametrize(
    "query",
    [
        "?kernel=matmul.grouped&M=1000&N=520&K=333",
        "?kernel=transpose.row_strip&M=1000&N=777",
        "?kernel=transpose.tiled&M=999&N=520&dtype=float16",
    ],
)
def test_what_is_counted_on_this_gpu_is_what_was_predicted(tab, here, query):
    tab.open(f"{query}&tab=requests")
    tab.says("#requests-headline", f"As compiled for {here.name}", folded=True)
    before = tab.find("#requests-headline").text_content() or ""
    assert "Nsight Compute counted" not in before, "no earlier count is stored"
    assert "Counted by Nsight Compute" in press(tab, "count")
    tab.says("#requests-headline", f"Nsight Compute counted the same on {here.name}", folded=True)
    assert tab.find("#requests-headline .mark.counted").count() == 1
    tab.unfold("#operations-fold")
    tab.says("#requests-table", "DRAM traffic")
    assert tab.find("#requests-table .wrong-value").count() == 0, tab.text("#requests-table")


def test_a_recorded_timeline_holds_every_program(tab, here):
    programs = 96 * 48
    tab.open(f"{MATMUL}&tab=program-order")
    tab.wait_for_draw("program-order-plot")
    tab.says("#timeline", "No timeline", folded=True)
    press(tab, "record-timeline")
    tab.wait_for_draw("gantt-plot")
    device, count, sms = match(
        r"On (.+?), ([\d,]+) programs ran on (\d+) SMs", tab.text("#timeline")
    ).groups()
    assert is_this_gpu(device, here)
    assert count == f"{programs:,}"
    assert int(sms) <= here.sms
    assert tab.find("#timeline .mark.measured").count() >= 1
    assert tab.find("#timeline .mark.recorded").count() == 0
    drawn = [
        pid for pids in traces(tab, "gantt-plot", "Array.from(t.customdata[0])") for pid in pids
    ]
    assert sorted(drawn) == list(range(programs))


def test_a_launch_is_cancelled_in_the_middle_and_the_next_run_is_right(tab, app, here):
    tab.open(SLOW)
    tab.find("#run").click()
    tab.wait_for_selector("#card li.now:has-text('time')", timeout=1000 * PATIENCE_S)
    before = set(app.workers())
    tab.find("#cancel").click()
    tab.wait_for_selector("#card .failure[data-kind=cancelled]")
    tab.says("#card", "Cancelled in the time stage")
    tab.open(MATMUL)
    press(tab, "run")
    assert_measured(tab, here, 2 * 6144**3 / 1e9, "TFLOP/s")
    assert before - set(app.workers()), "the worker that ran it has ended"
