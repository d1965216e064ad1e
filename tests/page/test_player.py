"""The player in a real browser: both orders in lock-step, without the server, and a link to a step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from kernels import discover
from kernels.gpus import GPUS
from kernels.spec import Launch
from tests.page.conftest import Tab
from visualize.predict.schedule import Schedule, loads, row_major, schedule, steps
from visualize.views.order.map_figure import map_grid

pytestmark = pytest.mark.browser

LAUNCH = "?kernel=matmul.grouped&gpu=H200&M=2048&N=2048&K=512&BLOCK_M=64&BLOCK_N=64&GROUP_SIZE=4&programs_per_sm=1"
ARTICLE = "?kernel=matmul.grouped&gpu=H200&M=576&N=576&K=288&BLOCK_M=64&BLOCK_N=64&BLOCK_K=32&GROUP_SIZE=3&first=9"
EARLIER, AGAIN, NEW = 1, 2, 3


def orders(problem: tuple[int, int, int], size: int) -> Iterator[tuple[int, Schedule]]:
    """Yield the number and the schedule of each half of the picture."""
    kernel = discover()["matmul.grouped"]
    config = kernel.config(BLOCK_M=64, BLOCK_N=64, GROUP_SIZE=size)
    planned = schedule(kernel, Launch(kernel.family.problem(*problem), config, GPUS["H200"]))
    yield from enumerate((planned, row_major(planned)))


def values(tab: Tab, half: int, name: str = "z") -> np.ndarray:
    """Return the values in the cells of one half of the picture."""
    read = (
        "([i, name]) => document.querySelector('#schedule-plot .live-plot').data[i][name]"
        ".map((row) => Array.from(row, (value) => Number.isNaN(value) ? null : value))"
    )
    return np.array(tab.page.evaluate(read, [half, name]))


def parts(tab: Tab, half: int, launch: Schedule) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the values of C, A and B in one half, with one column or row per cell along K."""
    grid, place = values(tab, half), map_grid(launch)
    top, left = place.down.lead, place.across.lead
    a, b = grid[top:, : left - place.across.gap], grid[: top - place.down.gap, left:]
    return grid[top:, left:].astype(float), a[:, :: place.across.repeat], b[:: place.down.repeat]


def count(tab: Tab, half: int) -> tuple[int, str]:
    """Return the large number beside an order, and what it counts."""
    corner = tab.page.locator("#schedule-plot .corner").nth(half)
    what = str(corner.locator(".what").get_attribute("title"))
    return int(corner.locator(".count b").inner_text().replace(",", "")), what


def wait_for_step(tab: Tab, step: int) -> None:
    tab.page.wait_for_function(f"document.querySelector('.player')?.dataset.step === '{step}'")
    tab.page.wait_for_timeout(100)


def piece_values(now: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Return the values of a panel's pieces: new, reused, earlier, or not used yet."""
    return np.where(now & before, AGAIN, np.where(now, NEW, np.where(before, EARLIER, 0)))


def assert_shows(tab: Tab, step: int, single: bool = False) -> None:
    """Assert that both halves show this step, counted from 1, as the model has it."""
    for half, order in orders((576, 576, 288) if single else (2048, 2048, 512), 3 if single else 4):
        when = np.full(order.extents, -1)
        when[order.tiles.pid_m, order.tiles.pid_n] = order.tiles.program if single else order.step
        now, before = when == step - 1, when < step - 1
        c, a, b = parts(tab, half, order)
        assert np.array_equal(c, np.where(now, NEW, before)), half
        rows, columns = piece_values(now.any(1), before.any(1)), piece_values(now.any(0), before.any(0))
        assert all(np.array_equal(column, rows) for column in a.T), half
        assert all(np.array_equal(row, columns) for row in b), half
        blocks, what = count(tab, half)
        if single:
            assert blocks == loads(order, np.array([step]))[0], half
            assert what == f"blocks loaded by {step} program{'s' if step > 1 else ''}"
        else:
            assert blocks == (now.any(1).sum() + now.any(0).sum()) * order.k_blocks, half
            assert what.startswith(f"blocks loaded by wave {step}: ")


def open_page(tab: Tab, query: str) -> None:
    tab.open(query)
    tab.wait_for_draw("schedule-plot")


def test_the_nine_results_program_by_program_until_54_and_90_blocks(tab: Tab) -> None:
    open_page(tab, ARTICLE)
    paths = tab.page.evaluate("document.querySelector('#schedule-plot .live-plot').layout.shapes.map((s) => s.path)")
    corners = [np.array([point.split(",") for point in path[1:].replace("M", "L").split("L")], int) for path in paths]
    sizes = [np.ptp(points, axis=0).tolist() for points in corners]
    assert sizes == [[3, 3], [3, 3], [9, 1], [9, 1]], "outlines of columns and rows of tiles, in black on white"
    tab.reads("#schedule-claim .number", "54 blocks loaded by 9 programs, not 90")
    tab.page.wait_for_timeout(500)
    before = len(tab.requests)
    for step in range(1, 10):
        tab.page.get_by_role("button", name="One step on").click()
        wait_for_step(tab, step)
        assert_shows(tab, step, single=True)
    assert [count(tab, half)[0] for half in (0, 1)] == [54, 90]
    assert len(tab.requests) == before, "the server is not asked"
    tab.reads("#player .first", "first 9 programs")
    tab.follow("kernel=transpose.tiled&tab=schedule")
    tab.page.wait_for_selector("#player .first", state="hidden")


@pytest.mark.all_combinations
def test_play_pauses_at_the_compared_programs_and_events_of_the_document_do_what_buttons_do(tab: Tab) -> None:
    open_page(tab, ARTICLE)
    send = "([name, detail]) => document.dispatchEvent(new CustomEvent(name, { detail }))"
    tab.page.evaluate(send, ["tilescope:step", {"by": 1}])
    wait_for_step(tab, 1)
    tab.page.evaluate(send, ["tilescope:step", {"by": -1}])
    wait_for_step(tab, 0)
    tab.page.get_by_label("Speed").select_option(label="20 steps/s")
    tab.page.evaluate(send, ["tilescope:play", None])
    tab.page.wait_for_function("/step=9(&|$)/.test(location.search)")
    assert [count(tab, half)[0] for half in (0, 1)] == [54, 90]
    tab.page.get_by_role("button", name="Play").click()
    tab.page.wait_for_function("location.search.includes('step=81')")
    assert [count(tab, half)[0] for half in (0, 1)] == [162, 162], "all blocks of A and B"
    tab.tab("reuse")
    tab.page.evaluate(send, ["tilescope:step", {"by": -1}])
    tab.page.wait_for_timeout(200)
    assert tab.page.locator(".player").first.get_attribute("data-step") == "81", "the player is hidden"


def test_one_step_on_draws_the_next_wave_of_both_orders(tab: Tab) -> None:
    """By the buttons, and by the scrubber from the keyboard, which names the step."""
    open_page(tab, LAUNCH)
    tab.reads("#player output", "whole launch")
    for step in (1, 2, 3):
        tab.page.get_by_role("button", name="One step on").click()
        wait_for_step(tab, step)
        assert_shows(tab, step)
    tab.page.get_by_role("button", name="One step back").click()
    wait_for_step(tab, 2)
    assert_shows(tab, 2)
    assert "step=2" in tab.page.evaluate("location.search")
    scrub = tab.page.get_by_role("slider", name="Step", exact=True)
    scrub.focus()
    scrub.press("Home")
    wait_for_step(tab, 0)
    assert parts(tab, 0, next(orders((2048, 2048, 512), 4))[1])[0].max() == 1023
    for _ in range(4):
        scrub.press("ArrowRight")
    wait_for_step(tab, 4)
    assert_shows(tab, 4)
    assert "wave 4 of 8; grouped order, GROUP_SIZE 4: 640 blocks" in str(scrub.get_attribute("aria-valuetext"))


@pytest.mark.all_combinations
def test_play_ends_at_the_last_wave_and_pause_writes_the_step_into_the_address(tab: Tab) -> None:
    open_page(tab, LAUNCH)
    tab.page.get_by_label("Speed").select_option(label="20 steps/s")
    tab.page.get_by_role("button", name="Play").click()
    tab.page.wait_for_function("location.search.includes('step=8')")
    assert_shows(tab, 8)
    assert "100 of 132 programs" in count(tab, 0)[1]
    tab.page.get_by_label("Speed").select_option(label="1 step/s")
    tab.page.get_by_role("button", name="Play").click()
    wait_for_step(tab, 1)
    tab.page.get_by_role("button", name="Pause").click()
    tab.page.get_by_role("button", name="Play").wait_for()
    step = int(tab.page.locator(".player").first.get_attribute("data-step") or 0)  # on a slow machine, later than 1
    tab.page.wait_for_function("n => new URLSearchParams(location.search).get('step') === String(n)", arg=step)
    assert_shows(tab, step)


def test_a_link_opens_its_step_a_slider_keeps_it_and_a_preset_ends_it(tab: Tab) -> None:
    open_page(tab, LAUNCH + "&step=5")
    wait_for_step(tab, 5)
    assert_shows(tab, 5)
    tab.page.get_by_role("button", name="One step on").click()
    wait_for_step(tab, 6)
    before = tab.draws("schedule-plot")
    tab.page.get_by_label("GROUP_SIZE", exact=True).fill("8")
    tab.wait_for_draw("schedule-plot", after=before)
    tab.says("#schedule-plot", "GROUP_SIZE 8")
    tab.reads("#player output", "wave 6 of 8")
    assert "step=6" in tab.page.evaluate("location.search")
    tab.preset("The 9 × 9 tiles of the article")
    wait_for_step(tab, 0)
    tab.page.wait_for_function("!location.search.includes('step=')")
    tab.follow(LAUNCH + "&step=999")
    wait_for_step(tab, 8)
    assert_shows(tab, 8)


@pytest.mark.all_combinations
def test_a_tile_of_split_k_says_how_many_of_its_slices_have_started(tab: Tab) -> None:
    tab.open(
        "?kernel=matmul.split_k_atomic&gpu=H200&M=512&N=512&K=4096&BLOCK_M=64&BLOCK_N=64&SPLIT_K=8"
        "&programs_per_sm=1&step=2"
    )
    wait_for_step(tab, 2)
    tab.says("#schedule-claim", "Each tile of C is summed by 8 programs, one per slice of K", folded=True)
    kernel = discover()["matmul.split_k_atomic"]
    config = kernel.config(BLOCK_M=64, BLOCK_N=64, SPLIT_K=8)
    launch = schedule(kernel, Launch(kernel.family.problem(M=512, N=512, K=4096), config, GPUS["H200"]))
    place = map_grid(launch)
    started = values(tab, 0, "text")[place.down.lead :, place.across.lead :].astype(int)
    pids = np.arange(2 * 132)  # started in two waves, pid_m first, then pid_n, then the slice
    assert np.array_equal(started.T.ravel(), np.bincount(pids % 64, minlength=64))
    _, a, _ = parts(tab, 0, launch)
    assert a.shape == (8, 8)
    assert np.array_equal(a[0], [1, 1, AGAIN, NEW, NEW, 0, 0, 0]), "pids 132 to 263 are of slices 2, 3 and 4"
    assert count(tab, 0)[0] == steps(launch).blocks[1]


@pytest.mark.all_combinations
def test_a_transpose_has_its_input_and_output_side_by_side(tab: Tab) -> None:
    tab.open("?kernel=transpose.tiled&gpu=H200&M=512&N=1024&BLOCK_M=64&BLOCK_N=64&tab=schedule&step=3&by=program")
    wait_for_step(tab, 3)
    read, written = values(tab, 0), values(tab, 1)
    assert read.shape == (8, 16)
    assert np.array_equal(read.T, written)
    assert sorted(read.ravel())[-4:] == [0, EARLIER, EARLIER, NEW]
    assert tab.page.locator(".corner").count() == 0, "nothing is loaded twice"


@pytest.mark.parametrize("motion", ["no-preference", pytest.param("reduce", marks=pytest.mark.all_combinations)])
def test_without_an_address_it_plays_once_by_itself(tab: Tab, motion: str) -> None:
    tab.page.add_init_script(
        "window.seen = []; document.addEventListener('tilescope:paint', () => setTimeout(() => "
        "window.seen.push(Number(document.querySelector('.player').dataset.step)), 0))"
    )
    tab.page.emulate_media(reduced_motion=motion)
    tab.go()
    tab.page.wait_for_function("/step=9(&|$)/.test(location.search)", timeout=40_000)
    seen = set(tab.page.evaluate("window.seen"))
    assert 9 in seen
    assert bool(seen & set(range(1, 9))) == (motion == "no-preference"), "on a slow machine some steps are left out"
