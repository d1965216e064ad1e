"""The player in a real browser: both orders in lock-step, without the server, and a link to a step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from kernels import discover
from kernels.gpus import GPUS
from kernels.spec import Launch
from tests.page.conftest import Tab
from visualize.models.schedule import Schedule, row_major, schedule

pytestmark = pytest.mark.browser

PLOTS = ("schedule-plot", "row-major-plot")
LAUNCH = "?kernel=matmul.grouped&gpu=H200&M=2048&N=2048&K=512&BLOCK_M=64&BLOCK_N=64&GROUP_SIZE=4&programs_per_sm=1"


def orders() -> Iterator[tuple[str, Schedule]]:
    """What the page shows in either plot: 1,024 programs, 8 waves."""
    kernel = discover()["matmul.grouped"]
    config = kernel.config(BLOCK_M=64, BLOCK_N=64, GROUP_SIZE=4)
    planned = schedule(kernel, Launch(kernel.family.problem(2048, 2048, 512), config, GPUS["H200"]))
    yield from zip(PLOTS, (planned, row_major(planned)), strict=True)


def drawn(tab: Tab, plot: str, trace: int) -> np.ndarray:
    """The values of a map as it stands on the page."""
    read = "([plot, i]) => document.querySelector(`#${plot} .live-plot`).data[i].z.map((row) => Array.from(row))"
    return np.array(tab.page.evaluate(read, [plot, trace]))


def told(tab: Tab, plot: str) -> str:
    """The line below a plot's title."""
    return str(tab.page.evaluate(f"document.querySelector('#{plot} .live-plot').layout.annotations[0].text"))


def wait_for_step(tab: Tab, step: int) -> None:
    tab.page.wait_for_function(f"document.querySelector('.player')?.dataset.step === '{step}'")
    tab.page.wait_for_timeout(100)


def assert_shows(tab: Tab, step: int) -> None:
    """Both plots show this step, counted from 1, as the model has it."""
    for plot, order in orders():
        wave = np.full(order.extents, -1)
        wave[order.tiles.pid_m, order.tiles.pid_n] = order.wave
        now = wave == step - 1
        c, a, b = (drawn(tab, plot, trace) for trace in range(3))
        assert np.array_equal(c, np.where(now, 2, wave < step - 1)), plot
        earlier = wave < step - 1
        assert np.array_equal(a[:, 0], np.where(now.any(1), 2, earlier.any(1))), plot
        assert np.array_equal(b[0], np.where(now.any(0), 2, earlier.any(0))), plot
        panels = f"{now.any(1).sum()} + {now.any(0).sum()} panels"
        assert told(tab, plot).startswith(f"wave {step} of 8: {now.sum()} programs; {panels}, ")


def open_page(tab: Tab, more: str = "") -> None:
    tab.open(LAUNCH + more)
    for plot in PLOTS:
        tab.wait_for_draw(plot)


def test_one_step_on_draws_the_next_wave_of_both_orders_without_the_server(tab: Tab) -> None:
    open_page(tab)
    assert "whole launch: 1,024 programs, 8 waves" in told(tab, "schedule-plot")
    tab.page.wait_for_timeout(500)
    before = len(tab.requests)
    for step in (1, 2, 3):
        tab.page.get_by_role("button", name="One step on").click()
        wait_for_step(tab, step)
        assert_shows(tab, step)
    tab.page.get_by_role("button", name="One step back").click()
    wait_for_step(tab, 2)
    assert_shows(tab, 2)
    assert len(tab.requests) == before
    assert "step=2" in tab.page.evaluate("location.search")


def test_play_ends_at_the_last_wave_and_pause_keeps_the_step_in_the_address(tab: Tab) -> None:
    open_page(tab)
    tab.page.get_by_label("Speed").select_option(label="20 steps per second")
    tab.page.get_by_role("button", name="Play").click()
    tab.page.wait_for_function("location.search.includes('step=8')")
    assert_shows(tab, 8)
    assert "last" not in tab.text(".player .busy")
    assert tab.text(".player .busy") == "wave 8: 100 of 132 SMs busy"
    tab.page.get_by_label("Speed").select_option(label="1 step per second")
    tab.page.get_by_role("button", name="Play").click()
    wait_for_step(tab, 1)
    tab.page.get_by_role("button", name="Pause").click()
    tab.page.wait_for_function("location.search.includes('step=1&') || location.search.endsWith('step=1')")
    tab.page.get_by_role("button", name="Play").wait_for()
    assert_shows(tab, 1)


def test_a_link_opens_at_its_step_and_a_slider_keeps_it(tab: Tab) -> None:
    open_page(tab, "&step=5")
    wait_for_step(tab, 5)
    assert_shows(tab, 5)
    before = tab.draws("schedule-plot")
    tab.page.get_by_label("GROUP_SIZE slider").fill("8")
    tab.wait_for_draw("schedule-plot", after=before)
    assert told(tab, "schedule-plot").startswith("wave 5 of 8")
    assert "step=5" in tab.page.evaluate("location.search")


def test_a_step_beyond_the_last_shows_the_last(tab: Tab) -> None:
    open_page(tab, "&step=999")
    wait_for_step(tab, 8)
    assert_shows(tab, 8)


def test_the_scrubber_works_from_the_keyboard_and_says_where_it_is(tab: Tab) -> None:
    open_page(tab)
    scrub = tab.page.get_by_role("slider", name="Step", exact=True)
    scrub.focus()
    for _ in range(4):
        scrub.press("ArrowRight")
    wait_for_step(tab, 4)
    assert_shows(tab, 4)
    assert str(scrub.get_attribute("aria-valuetext")).startswith("wave 4 of 8: 132 programs")
    scrub.press("Home")
    wait_for_step(tab, 0)
    assert told(tab, "row-major-plot").startswith("whole launch")
    assert drawn(tab, "schedule-plot", 0).max() == 1023


def test_another_kernel_or_a_preset_starts_at_the_whole_launch(tab: Tab) -> None:
    open_page(tab, "&step=5")
    wait_for_step(tab, 5)
    tab.preset("The 9 × 9 tiles of the article")
    wait_for_step(tab, 0)
    tab.page.wait_for_function("location.search.includes('step=0')")


def test_the_steps_of_a_persistent_kernel_are_turns_of_its_loop(tab: Tab) -> None:
    tab.open("?kernel=matmul.persistent&gpu=H200&M=2048&N=4096&step=4&programs_per_sm=1")
    wait_for_step(tab, 4)
    claim = tab.text("#schedule-claim")
    assert "132 programs on 132 SMs of H200" in claim
    assert "loop over 512 tiles in 4 turns of at most 132. The last turn computes 116 tiles" in claim
    assert "wave" not in claim
    assert told(tab, "schedule-plot").startswith("turn 4 of 4: 116 tiles")
    assert tab.text(".player .busy") == "turn 4: 116 of 132 SMs busy"


def test_a_tile_of_split_k_says_how_many_of_its_slices_have_started(tab: Tab) -> None:
    tab.open(
        "?kernel=matmul.split_k_atomic&gpu=H200&M=512&N=512&K=4096&BLOCK_M=64&BLOCK_N=64&SPLIT_K=8"
        "&programs_per_sm=1&step=2"
    )
    wait_for_step(tab, 2)
    assert "Each tile of C is summed by 8 programs, one per slice of K" in tab.text("#schedule-claim")
    begun = tab.page.evaluate(
        "document.querySelector('#schedule-plot .live-plot').data[0].text.map((r) => Array.from(r))"
    )
    pids = np.arange(2 * 132)  # started in two waves, pid_m first, then pid_n, then the slice
    assert np.array_equal(np.array(begun).T.ravel(), np.bincount(pids % 64, minlength=64))
    a = drawn(tab, "schedule-plot", 1)
    assert a.shape == (8, 8)
    assert np.array_equal(a[0], [1, 1, 2, 2, 2, 0, 0, 0]), "pids 132 to 263 are of slices 2, 3 and 4"
