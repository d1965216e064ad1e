"""Runs from the page, under the interpreter: progress, result, cancel, and a worker that is killed."""

from __future__ import annotations

import datetime
import os
import re
import signal
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from kernels import discover
from tests.kernels.trees import is_alive
from tests.page.conftest import App, Tab, served
from tests.waiting import until

pytestmark = pytest.mark.browser

# About ten seconds under the interpreter: long enough to be caught in the middle.
LONG = "?kernel=matmul.grouped&M=512&N=512&K=512&BLOCK_M=32&BLOCK_N=32&BLOCK_K=32"


KERNELS = discover().values()
FIRST_OF_FAMILY = {kernel.family.root.id: kernel.id for kernel in reversed(KERNELS)}.values()


@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(kernel.id, marks=[] if kernel.id in FIRST_OF_FAMILY else pytest.mark.all_combinations)
        for kernel in KERNELS
    ],
)
def test_a_run_shows_its_check_and_no_time(tab: Tab, kernel: str) -> None:
    tab.open(f"?kernel={kernel}&M=129&N=100&tab=schedule")
    tab.run()
    tab.says("#card", "✓ 0 wrong")
    tab.says("#card", "interpreter")
    assert tab.page.get_by_role("tab", name="Order").get_attribute("aria-selected") == "true", "it stays"
    tab.tab("result")
    tab.wait_for_draw("diff-plot")
    tab.fold("result-numbers")
    tab.says("#result-tables", "0 of 12,900")


def test_the_result_is_greyed_once_the_controls_move_on(tab: Tab) -> None:
    """And a recorded run shows no picture of another one."""
    tab.open("?kernel=transpose.tiled&M=128&N=128")
    tab.run()
    card = tab.page.locator("#card [data-experiment]")
    assert "stale" not in (card.get_attribute("class") or "")
    tab.page.get_by_label("BLOCK_M slider").press("ArrowRight")
    tab.page.wait_for_selector("#card [data-experiment].stale")
    assert card.get_attribute("data-stale") == "Result for BLOCK_M 64. Run to update."
    tab.page.get_by_label("BLOCK_M slider").press("ArrowLeft")
    tab.page.wait_for_selector("#card [data-experiment]:not(.stale)")
    tab.tab("result")
    tab.wait_for_draw("diff-plot")
    tab.page.get_by_label("M", exact=True).fill("1024")
    tab.page.get_by_label("N", exact=True).fill("1024")
    tab.page.get_by_label("GPU", exact=True).select_option(label="H200")
    tab.page.wait_for_selector("#card [data-experiment].stale")
    tab.page.wait_for_function("location.search.includes('gpu=H200')")
    tab.page.locator("#run").click()
    tab.page.wait_for_function("document.querySelector('#card').innerText.includes('recorded')")
    tab.page.wait_for_function("!document.querySelector('#diff-plot .main-svg')")
    tab.says("#result", "was not recorded", folded=True)


def test_control_and_enter_runs_and_the_result_comes_back_after_a_reload(tab: Tab) -> None:
    tab.open("?kernel=transpose.tiled&M=136&N=128")
    before = datetime.datetime.now()
    tab.page.get_by_label("M", exact=True).press("Control+Enter")
    tab.ended()
    card = tab.text("#card")
    assert "✓ 0 wrong" in card
    assert "kept by this browser" not in card
    tab.page.wait_for_function("localStorage.getItem('tilescope-run')?.length > 1000")
    tab.open(tab.page.evaluate("location.search"))
    tab.says("#card", "kept by this browser")
    again, _, when = tab.text("#card").partition("run ended")
    assert again.split() == card.split()
    ended = tab.page.locator("#card time").get_attribute("datetime")
    assert ended is not None
    utc = datetime.datetime.fromisoformat(ended)
    assert f"{utc.astimezone():%H:%M}" in when, "the reader's own time"
    assert datetime.timedelta(minutes=-1) <= utc - before.astimezone() <= datetime.timedelta(minutes=3)


@pytest.mark.all_combinations
def test_float32_says_that_a_gpu_multiplies_as_tf32(tab: Tab) -> None:
    tab.open("?kernel=matmul.grid_2d&M=64&N=64&K=64&dtype=float32")
    tab.run()
    tab.tab("result")
    tab.says("#result", "tf32", folded=True)


@pytest.mark.all_combinations
def test_what_takes_too_long_is_refused_with_the_estimate(tab: Tab) -> None:
    tab.open("?kernel=matmul.grouped&M=4096&N=4096&K=4096")
    tab.page.locator("#run").click()
    tab.page.wait_for_selector("#card .failure")
    tab.says("#card", "the interpreter would take about")


def test_cancel_ends_the_work_and_the_next_run_succeeds(tab: Tab, app: App) -> None:
    tab.open(LONG)
    tab.page.locator("#run").click()
    tab.page.wait_for_selector("#card li.now:has-text('launch')")
    before = set(app.workers())
    tab.page.locator("#cancel").click()
    tab.page.wait_for_selector("#card .failure[data-kind=cancelled]")
    tab.page.get_by_label("M", exact=True).fill("64")
    tab.page.wait_for_function("location.search.includes('M=64&')")
    tab.run()
    tab.says("#card", "✓ 0 wrong")
    assert before - set(app.workers()), "the worker that was cancelled is gone"


@pytest.mark.all_combinations
def test_a_killed_worker_ends_its_run_in_a_sentence_and_the_next_run_succeeds(tab: Tab, app: App) -> None:
    tab.open(LONG)
    tab.page.locator("#run").click()
    tab.page.wait_for_selector("#card li.now:has-text('launch')")
    for worker in app.workers():
        os.kill(worker, signal.SIGKILL)
    tab.page.wait_for_selector("#card .failure[data-kind=worker_died]")
    tab.says("#card", "killed by SIGKILL")
    tab.page.get_by_label("M", exact=True).fill("64")
    tab.page.wait_for_function("location.search.includes('M=64&')")
    tab.run()
    tab.says("#card", "✓ 0 wrong")


@pytest.mark.all_combinations
def test_a_second_person_sees_their_place(tab: Tab, app: App) -> None:
    tab.open(LONG.replace("N=512", "N=256"))
    second = Tab(tab.page.context.new_page(), app.url).open("?kernel=transpose.tiled&M=64&N=64")
    tab.page.locator("#run").click()
    tab.page.wait_for_selector("#card li.now:has-text('launch')")
    second.page.locator("#run").click()
    second.page.wait_for_function("document.querySelector('#card').innerText.includes('1 before you')")
    second.ended()
    assert "✓ 0 wrong" in second.text("#card")
    tab.ended()


@pytest.mark.all_combinations
def test_an_app_that_is_ended_takes_its_busy_workers_along(browser: Browser, tmp_path: Path) -> None:
    with served(tmp_path) as app:
        tab = Tab(browser.new_page(), app.url).open(LONG)
        tab.page.locator("#run").click()
        tab.page.wait_for_selector("#card li.now:has-text('launch')")
        workers = app.workers()
        assert workers
    tab.page.close()
    assert not any(map(is_alive, workers))


@pytest.mark.all_combinations
def test_a_run_that_replaces_another_has_the_last_word(tab: Tab) -> None:
    tab.open(LONG)
    tab.page.locator("#run").click()
    tab.page.wait_for_selector("#card li.now:has-text('launch')")
    tab.page.get_by_label("M", exact=True).fill("4096")
    tab.page.wait_for_function("location.search.includes('M=4096&')")
    tab.page.locator("#run").click()
    tab.page.wait_for_selector("#card .failure[data-kind=too_slow_here]")
    tab.page.wait_for_timeout(1500)
    tab.says("#card", "the interpreter would take about")  # the run before it has nothing more to say


@pytest.mark.all_combinations
def test_a_bad_value_keeps_its_sentence_while_a_run_goes_on(tab: Tab) -> None:
    tab.open(LONG)
    tab.page.locator("#run").click()
    tab.page.wait_for_selector("#card li.now:has-text('launch')")
    tab.page.get_by_label("M", exact=True).fill("20000")
    problem = tab.page.locator('.field[data-field="M"] .problem')
    problem.wait_for(state="visible")
    tab.page.wait_for_timeout(1500)
    assert problem.is_visible()
    tab.page.locator("#cancel").click()
    tab.page.wait_for_selector("#card .failure[data-kind=cancelled]")


@pytest.mark.all_combinations
def test_a_page_that_is_closed_ends_its_run(tab: Tab, app: App) -> None:
    closed = Tab(tab.page.context.new_page(), app.url).open(LONG)
    closed.page.locator("#run").click()
    closed.page.wait_for_selector("#card li.now:has-text('launch')")
    busy = app.workers()
    closed.page.close()
    until(lambda: not set(busy) <= set(app.workers()))


def test_the_worst_tile_is_drawn_with_its_program_and_its_values(tab: Tab) -> None:
    tab.open("?kernel=matmul.grouped&M=200&N=300&K=64&tab=result")
    tab.run()
    tab.wait_for_draw("closeup-plot")
    tab.fold("result-numbers")
    tab.says("#result-tables", "computed by pid")
    said = tab.text("#result-tables")
    row, column = re.search(r"Around the worst element \[(\d+), (\d+)\]", said).groups()
    assert tab.page.locator("#result-tables .around th", has_text=f"column {column}").count() == 1
    assert tab.page.locator("#result-tables .around td", has_text=row).count() >= 1


def test_the_tiles_of_a_lost_race_stay_marked_in_the_program_order_until_something_changes(tab: Tab) -> None:
    tab.open("?kernel=matmul.split_k_race&gpu=H200&tab=schedule")
    tab.wait_for_draw("schedule-plot")
    tab.run()
    tab.says("#card", "✗")
    tiles = tab.page.locator("#run-tiles[data-state=checked]")
    assert 0 < int(tiles.get_attribute("data-wrong") or 0) <= 32
    tab.tab("result")
    tab.page.set_viewport_size({"width": 390, "height": 844})
    tab.run()
    card = tab.page.locator("#card").bounding_box()
    assert card is not None
    assert card["y"] >= 0
    assert card["y"] + card["height"] < 300
    tab.page.locator("#card").click()
    expect(tab.page.locator("#card.toast")).to_have_count(0)
    tab.page.set_viewport_size({"width": 1280, "height": 720})
    tab.tab("schedule")
    tiles.wait_for()
    tab.page.get_by_label("num_warps slider").press("ArrowRight")
    expect(tab.page.locator("#run-tiles")).to_have_count(0)
