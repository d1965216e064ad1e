"""The picture of a request on memory, in the browser: stepped through without the server, by slider and by keys."""

from __future__ import annotations

import pytest

from tests.page.conftest import Tab

pytestmark = pytest.mark.browser

STATE = "document.querySelector('#textbook-plot .live-plot')"


def titles(tab: Tab) -> list[str]:
    return [
        str(tab.page.evaluate(f"document.querySelector('#{plot} .live-plot').layout.title.text"))
        for plot in ("textbook-plot", "request-plot")
    ]


def compiled(tab: Tab, query: str) -> None:
    tab.open(f"?{query}&tab=coalescing")
    tab.wait_for_draw("request-plot")
    tab.wait_for_draw("textbook-plot")


def test_the_worst_operation_is_drawn_first_and_the_claim_speaks_of_it(tab: Tab) -> None:
    compiled(tab, "kernel=transpose.flat")
    tab.says("#coalescing-claim .number", "8 ×")
    tab.says("#coalescing-claim .claim", "store of B")
    assert "32 sectors: 128 of 1,024 bytes used" in titles(tab)[1]
    menu = tab.page.get_by_label("operation", exact=True)
    assert menu.locator("option:checked").inner_text() == "most wasteful"
    menu.select_option(label="load A")
    tab.page.wait_for_function(f"{STATE}.layout.yaxis.title.text.includes('A')")
    assert "operation=0" in tab.page.evaluate("location.search")
    tab.says("#coalescing-claim .number", "100 %")


def test_requests_are_stepped_through_without_the_server_and_stand_in_the_address(tab: Tab) -> None:
    compiled(tab, "kernel=transpose.tiled&operation=1")
    scrubber = tab.page.locator("#scrubber input")
    assert scrubber.get_attribute("max") == "63"
    asked = len(tab.requests)
    shown = titles(tab)
    scrubber.focus()
    scrubber.press("ArrowRight")
    tab.page.wait_for_function("location.search.includes('request=1')")
    tab.page.get_by_role("button", name="Next request").click()
    tab.page.wait_for_function("location.search.includes('request=2')")
    assert "request 3 of 64" in titles(tab)[1]
    assert "request 33 of 256" in titles(tab)[0], "the textbook's request for the same bytes"
    assert shown != titles(tab)
    lane = f"{STATE}.data[0].hovertext[0][0]"
    assert "lane 0" in tab.page.evaluate(lane)
    assert [url for url in tab.requests[asked:] if "queue" in url or "call" in url] == []


def test_a_link_opens_a_request_that_the_first_figure_would_not_carry(tab: Tab) -> None:
    query = "kernel=transpose.tiled&model=textbook&lanes=loaded&operation=1&request=200"
    compiled(tab, query)
    assert "request 201 of 256" in titles(tab)[0]
    before = tab.draws("textbook-plot")
    tab.page.locator("#scrubber input").fill("3")
    tab.wait_for_draw("textbook-plot", after=before)
    tab.page.wait_for_function(f"{STATE}.layout.title.text.includes('request 4 of 256')")


@pytest.mark.all_combinations
def test_numbers_of_lanes_never_touch_each_other(tab: Tab) -> None:
    """On a narrow window, and on wider ones, where the next program's request is drawn."""
    for place, width in enumerate((390, 1040, 1280)):
        tab.page.set_viewport_size({"width": width, "height": 720})
        if place == 0:
            compiled(tab, "kernel=transpose.tiled&operation=1")
        else:
            plots = ("request-plot", "textbook-plot")
            before = [tab.draws(plot) for plot in plots]
            tab.follow(f"?kernel=transpose.tiled&operation=1&tab=coalescing&program={place}")
            for plot, draws in zip(plots, before, strict=True):
                tab.wait_for_draw(plot, after=draws)
        boxes = tab.page.evaluate(
            """() => [...document.querySelectorAll("#memory-picture .heatmap-label")].map((label) => {
              const { left, right, top, bottom } = label.getBoundingClientRect();
              return [left, right, top, bottom];
            })"""
        )
        assert len(boxes) >= 12, width
        for number, (left, right, top, bottom) in enumerate(boxes):
            for other in boxes[number + 1 :]:
                apart = other[0] >= right or other[1] <= left or other[2] >= bottom - 2 or other[3] <= top + 2
                assert apart, width


def test_the_toy_shows_its_whole_memory(tab: Tab) -> None:
    tab.open("?kernel=transpose.tiled&tab=coalescing")
    tab.preset("Blackboard: 8 × 8, tiles of 4 × 4")
    tab.page.locator("#coalescing-claim .number", has_text="8").wait_for()
    tab.page.wait_for_function(f"{STATE}.data?.[0].z.length === 16")
    assert tab.page.evaluate(f"{STATE}.data[0].z[0].length") == 4, "lines of 16 bytes, floats"


def test_the_picture_is_sent_in_150_kilobytes(tab: Tab) -> None:
    compiled(tab, "kernel=transpose.tiled&lanes=loaded&model=textbook")
    sizes = tab.answers()
    before = tab.draws("textbook-plot")
    tab.page.get_by_label("program slider").fill("3")
    tab.wait_for_draw("textbook-plot", after=before)
    tab.page.wait_for_timeout(300)
    assert 0 < max(sizes) <= 150_000
