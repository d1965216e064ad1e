"""Requests as flow, in the browser: stepped through and switched, by buttons and by keys, beside another kernel."""

from __future__ import annotations

import pytest

from tests.page.conftest import Tab

pytestmark = pytest.mark.browser

PLOT = "document.querySelector('#request-plot .live-plot')"


def title(tab: Tab, plot: str = "request-plot") -> str:
    return str(tab.page.evaluate(f"document.querySelector('#{plot} .live-plot').layout.title.text"))


def wait_for_title(tab: Tab, part: str) -> None:
    tab.page.wait_for_function(f"part => {PLOT}.layout?.title.text.includes(part)", arg=part)


def compiled(tab: Tab, query: str) -> None:
    tab.open(f"?{query}&tab=coalescing")
    wait_for_title(tab, "Compiled: ")


def test_the_worst_operation_is_drawn_first_beside_a_kernel_that_wastes_nothing(tab: Tab) -> None:
    compiled(tab, "kernel=transpose.flat")
    tab.says("#coalescing-claim .number", "8 ×")
    tab.says("#coalescing-claim .claim", "32 lanes store into 32 different sectors and use 4 bytes of each.")
    assert "32 sectors: 128 of 1,024 bytes used" in title(tab)
    assert "16 sectors: all 512 bytes used" in title(tab, "contrast")
    tab.says("#flow-launch", "1,048,576 sectors, 12.5 % used. Counted on H200")
    tab.says("#contrast-launch", "131,072 sectors, 100 % used.")
    menu = tab.page.get_by_label("Memory operation", exact=True)
    assert menu.locator("option:checked").inner_text() == "most wasteful"
    menu.select_option(label="load A")
    tab.page.wait_for_function(f"{PLOT}.layout.yaxis.title.text.includes('A')")
    assert "operation=0" in tab.page.evaluate("location.search")
    tab.says("#coalescing-claim .number", "100 %")
    tab.says("#flow-launch", "The other transpose kernels use as much of what they touch.")
    assert not tab.page.locator("#contrast").is_visible()
    menu.select_option(label="store B")
    tab.page.get_by_role("link", name="transpose: tiles").click()
    tab.page.wait_for_function("location.search.includes('kernel=transpose.tiled')")
    tab.says("#flow-title", "This kernel: transpose: tiles, store of B")


def test_requests_are_stepped_through_without_the_server_and_stand_in_the_address(tab: Tab) -> None:
    compiled(tab, "kernel=transpose.tiled&operation=1")
    scrubber = tab.page.locator("#scrubber input")
    assert scrubber.get_attribute("max") == "63"
    asked = len(tab.requests)
    shown = title(tab), title(tab, "contrast"), tab.page.evaluate(f"[...{PLOT}.data[1].x]")
    scrubber.focus()
    scrubber.press("ArrowRight")
    tab.page.wait_for_function("location.search.includes('request=1')")
    tab.page.get_by_role("button", name="Next request").click()
    tab.page.wait_for_function("location.search.includes('request=2')")
    assert "request 3 of 64" in title(tab)
    assert "request 3 of 32" in title(tab, "contrast")
    assert shown[0] != title(tab)
    assert "lane 0" in tab.page.evaluate(f"{PLOT}.data[0].hovertext[0][0]")
    assert "lane 31<br>bytes " in tab.page.evaluate(f"{PLOT}.data[2].hovertext[31]")
    assert [url for url in tab.requests[asked:] if "queue" in url or "call" in url] == []


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_the_switch_moves_the_lines_to_the_blackboards_request_for_the_same_bytes(tab: Tab, motion: str) -> None:
    tab.page.emulate_media(reduced_motion=motion)
    compiled(tab, "kernel=transpose.tiled&operation=1&request=2")
    switch = tab.page.get_by_role("button", name="Blackboard", exact=True)
    assert switch.get_attribute("aria-pressed") == "false"
    tab.page.evaluate(
        """() => {
          window.moves = 0;
          const path = "#request-plot .js-line";
          document.addEventListener("transitionrun", ({ target }) => { window.moves += target.matches(path); });
        }"""
    )
    switch.click()
    wait_for_title(tab, "Blackboard: request 33 of 256")
    tab.page.locator("[data-model=textbook][aria-pressed=true]").wait_for()
    tab.page.wait_for_function("location.search.includes('model=textbook&request=32')")
    tab.page.wait_for_timeout(300)
    assert tab.page.evaluate("window.moves") == (32 if motion == "no-preference" else 0)
    tab.page.get_by_role("button", name="Compiled", exact=True).click()
    wait_for_title(tab, "Compiled: request 3 of 64")


def test_a_link_opens_a_request_that_the_first_figure_would_not_carry(tab: Tab) -> None:
    tab.open("?kernel=transpose.tiled&model=textbook&lanes=loaded&operation=1&request=200&tab=coalescing")
    wait_for_title(tab, "Blackboard: request 201 of 256")
    before = tab.draws("request-plot")
    tab.page.locator("#scrubber input").fill("3")
    tab.wait_for_draw("request-plot", after=before)
    wait_for_title(tab, "request 4 of 256")


def test_the_toy_shows_its_whole_memory(tab: Tab) -> None:
    tab.open("?kernel=transpose.tiled&tab=coalescing")
    tab.preset("Blackboard: 8 × 8, tiles of 4 × 4")
    tab.page.locator("#coalescing-claim .number", has_text="8").wait_for()
    tab.page.get_by_role("button", name="Blackboard", exact=True).click()
    tab.page.wait_for_function(f"{PLOT}.data?.[0].z.length >= 4 && {PLOT}.data[0].z[0].length === 4")


def test_the_picture_is_sent_in_150_kilobytes(tab: Tab) -> None:
    tab.open("?kernel=transpose.tiled&lanes=loaded&model=textbook&tab=coalescing")
    wait_for_title(tab, "Blackboard: ")
    sizes = tab.answers()
    before = tab.draws("request-plot")
    tab.page.get_by_label("Program slider").fill("3")
    tab.wait_for_draw("request-plot", after=before)
    tab.page.wait_for_timeout(300)
    assert 0 < max(sizes) <= 150_000
