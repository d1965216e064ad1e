"""The measured timeline in a real browser: drawn, replayed without the server, and said where there is none."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from kernels import discover
from kernels.gpus import GPUS
from kernels.measuring.timeline import TIMELINE
from kernels.results import records
from kernels.spec import Launch
from tests.page.conftest import Tab
from visualize.predict.execution import Execution, ideal_clock
from visualize.predict.schedule import schedule
from visualize.views.numbers import count_noun

pytestmark = pytest.mark.browser

RECORDED = (
    "?kernel=matmul.grouped&M=4096&N=4096&K=4096&BLOCK_M=128&BLOCK_N=256&BLOCK_K=64&GROUP_SIZE=8&num_warps=8"
    "&tab=schedule&gpu=H200&programs_per_sm=1"
)
PLOTS = ("moment-plot", "ideal-plot", "gantt-plot")


@functools.cache
def launch():
    """Return the schedule, the start and end of each tile, and the ideal waves' clock."""
    experiment = next(
        e
        for e in records.experiments(TIMELINE.form, "H200")
        if e.kernel == "matmul.grouped" and e.problem.M == 4096 and e.config.GROUP_SIZE == 8
    )
    ran, kernel = records.find(TIMELINE.form, experiment, "H200"), discover()["matmul.grouped"]
    plan = schedule(kernel, Launch(experiment.problem, experiment.config, GPUS["H200"]))
    course = Execution(np.array(ran.sm), np.array(ran.start_ns), np.array(ran.end_ns), 132)
    begun, done = course.tile_times(plan)
    return plan, course, begun, done, ideal_clock(begun, plan.step, course.span_ns)


def opened(tab: Tab, query: str = RECORDED) -> None:
    tab.open(query)
    for plot in PLOTS:
        tab.wait_for_draw(plot)
    tab.page.wait_for_timeout(500)


def assert_shows(tab: Tab, now: int) -> None:
    """Both maps and the words show this time, in ns, as the model has it."""
    plan, course, begun, done, clock = launch()
    ideal = clock[plan.step], clock[plan.step + 1]
    for plot, (begins, ends) in zip(PLOTS, ((begun, done), ideal), strict=False):
        z = tab.page.evaluate(f"document.querySelector('#{plot} .live-plot').data[0].z.map((row) => Array.from(row))")
        expected = np.zeros(plan.extents)
        expected[plan.tiles.pid_m, plan.tiles.pid_n] = np.where(ends <= now, 1, np.where(begins <= now, 2, 0))
        assert np.array_equal(z, expected), plot
        told = tab.page.evaluate(f"document.querySelector('#{plot} .live-plot').layout.annotations[0].text")
        assert told.endswith(f": {(ends <= now).sum()} done, {((begins <= now) & (now < ends)).sum()} running")
        step = min(int((clock <= now).sum()), 4)
        assert told.startswith(f"wave {step} of 4: " if plot == "ideal-plot" else "programs: ")
    running = (course.start_ns <= now) & (now < course.end_ns)
    sms = len(set(course.sm[running].tolist()))
    tab.says("#clock output", f": {count_noun(int(running.sum()), 'program')} on {count_noun(sms, 'SM')}")


def now(tab: Tab) -> int:
    return int(str(tab.page.locator("#clock .clock").get_attribute("data-now")))


def test_a_recorded_timeline_is_drawn_at_once_with_what_it_cost_and_replayed_without_the_server(tab: Tab) -> None:
    opened(tab)
    said = tab.text("#timeline")
    assert "On NVIDIA H200, 512 programs ran on 132 SMs within 0.189 ms" in said
    assert "Instrumentation overhead: +0.3 % (0.194 ms against 0.193 ms" in said
    assert "The timer ticks every 32 ns" in said
    assert "Recorded on H200, 2026-11-21" in said
    drawn = "document.querySelector('#gantt-plot .live-plot').data.flatMap((t) => Array.from(t.customdata[0]))"
    assert sorted(tab.page.evaluate(drawn)) == list(range(512))
    assert_shows(tab, now(tab))
    before = len(tab.requests)
    scrub = tab.page.get_by_role("slider", name="Time from the first start")
    scrub.focus()
    scrub.press("Home")
    seen = []
    for key in (None, *["PageUp"] * 9, "ArrowRight", "ArrowLeft", "End"):
        if key:
            scrub.press(key)
        tab.page.wait_for_timeout(150)
        seen.append(now(tab))
        assert_shows(tab, seen[-1])
    assert seen[0] == 0
    assert seen[:10] == sorted(set(seen[:10])), "each step goes on"
    assert str(scrub.get_attribute("aria-valuetext")).startswith("188.")
    assert len(tab.requests) == before


@pytest.mark.all_combinations
def test_the_cursor_stands_at_the_time_a_bar_names_its_program_and_the_replay_ends_with_every_tile(tab: Tab) -> None:
    opened(tab)
    plan, course, *_ = launch()
    scrub = tab.page.get_by_role("slider", name="Time from the first start")
    scrub.press("Home")
    left = tab.page.evaluate("document.querySelector('.cursor').getBoundingClientRect().x")
    scrub.press("PageUp")
    moved = tab.page.evaluate("document.querySelector('.cursor').getBoundingClientRect().x") - left
    width = tab.page.evaluate("document.querySelector('#gantt-plot .live-plot')._fullLayout.xaxis._length")
    assert moved == pytest.approx(now(tab) / course.span_ns * width, abs=2)
    tab.page.locator("#gantt-plot").scroll_into_view_if_needed()
    place = tab.page.evaluate(
        """([x, y]) => { const plot = document.querySelector('#gantt-plot .live-plot'), full = plot._fullLayout;
        const box = plot.getBoundingClientRect();
        return [box.x + full.xaxis._offset + full.xaxis.d2p(x), box.y + full.yaxis._offset + full.yaxis.d2p(y)]; }""",
        [(course.start_ns[0] + course.end_ns[0]) / 2000, float(course.sm[0])],
    )
    tab.page.mouse.move(*place)
    tip = tab.text(".tip")
    assert f"pid 0: tile ({plan.tiles.pid_m[0]}, {plan.tiles.pid_n[0]})" in tip
    assert f"SM {course.sm[0]}, ideal wave 1 of 4" in tip
    assert f"{course.start_ns[0] / 1000:.2f} to {course.end_ns[0] / 1000:.2f} µs" in tip
    scrub.press("End")
    for _ in range(6):
        scrub.press("PageDown")
    tab.page.get_by_role("button", name="Replay").click()
    tab.page.get_by_role("button", name="Pause").wait_for()
    tab.page.wait_for_function(f"document.querySelector('.clock').dataset.now === '{course.span_ns}'")
    tab.page.get_by_role("button", name="Replay").wait_for()
    assert_shows(tab, course.span_ns)
