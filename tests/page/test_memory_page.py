"""Requests as flow, in the browser: stepped through and switched, by buttons and by keys, beside another kernel."""

from __future__ import annotations

import math

import pytest

from tests.page.conftest import Tab

pytestmark = pytest.mark.browser

PLOT = "document.querySelector('#request-plot .live-plot')"

# The lanes' hover texts, each line's last point with its row as y, and the first byte of each row with a tick.
LINES = """({ data: [memory, lines, lanes], layout: { yaxis } }) => [
  lanes.hovertext,
  lanes.hovertext.map((_, lane) => [lines.x[22 * lane + 20], Math.floor(lines.y[22 * lane + 20] * memory.z.length)]),
  Array.from(yaxis.tickvals, (at, i) => [Math.floor(at * memory.z.length), yaxis.ticktext[i]]),
]"""


def title(tab: Tab, plot: str = "request-plot") -> str:
    return str(tab.page.evaluate(f"document.querySelector('#{plot} .live-plot').layout.title.text"))


def wait_for_title(tab: Tab, part: str) -> None:
    tab.page.wait_for_function(f"part => {PLOT}.layout?.title.text.includes(part)", arg=part)


def open_compiled(tab: Tab, query: str) -> None:
    tab.open(f"?{query}&tab=coalescing")
    wait_for_title(tab, "Compiled: ")


def test_the_worst_operation_is_drawn_first_beside_a_kernel_that_wastes_nothing(tab: Tab) -> None:
    open_compiled(tab, "kernel=transpose.flat")
    tab.says("#coalescing-claim .number", "8 ×")
    tab.says("#coalescing-claim .claim", "32 lanes touch 32 different sectors and use 4 bytes of each.")
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
    tab.says("#flow-title", "This kernel: transpose: tiles, 64 × 128, store of B")


def test_requests_are_stepped_through_without_the_server_and_stand_in_the_address(tab: Tab) -> None:
    open_compiled(tab, "kernel=transpose.tiled&operation=1")
    scrubber = tab.page.locator("#scrubber input")
    assert scrubber.get_attribute("max") == "63"
    sent, first = len(tab.requests), title(tab)
    scrubber.focus()
    scrubber.press("ArrowRight")
    tab.page.wait_for_function("location.search.includes('request=1')")
    tab.page.get_by_role("button", name="Next request").click()
    tab.page.wait_for_function("location.search.includes('request=2')")
    assert "request 3 of 64" in title(tab)
    assert "request 3 of 32" in title(tab, "contrast")
    assert first != title(tab)
    assert [url for url in tab.requests[sent:] if "queue" in url or "call" in url] == []


def test_each_lanes_line_ends_at_the_first_byte_that_it_accesses(tab: Tab) -> None:
    open_compiled(tab, "kernel=transpose.flat&operation=1&M=33&N=31&request=31")  # the last lane is inactive
    texts, ends, ticks = tab.page.evaluate(f"({LINES})({PLOT})")
    first_bytes = {row: int(text.replace(",", "")) for row, text in ticks if text}
    assert len(first_bytes) > 2
    assert texts[31] == "lane 31"
    assert math.isnan(ends[31][0])
    for lane, ((x, row), text) in enumerate(zip(ends[:31], texts, strict=False)):
        name, _, place = text.partition("<br>bytes ")
        byte = int(place.split(" to ")[0].replace(",", ""))
        assert name == f"lane {lane}"
        assert x == pytest.approx(byte % 128 / 128)
        assert first_bytes.get(row, byte // 128 * 128) == byte // 128 * 128


def test_the_switch_moves_the_lines_to_the_blackboards_request_for_the_same_bytes(tab: Tab) -> None:
    tab.page.emulate_media(reduced_motion="no-preference")
    open_compiled(tab, "kernel=transpose.tiled&operation=1&request=2")
    tab.page.evaluate(
        """() => {
          window.moves = 0;
          document.addEventListener("transitionrun", ({ target }) => { window.moves += target.matches(".js-line"); });
        }"""
    )
    tab.page.get_by_role("button", name="Blackboard", exact=True, pressed=False).click()
    wait_for_title(tab, "Blackboard: request 33 of 256")
    tab.page.get_by_role("button", name="Blackboard", exact=True, pressed=True).wait_for()
    tab.page.wait_for_function("location.search.includes('model=textbook&request=32')")
    tab.page.wait_for_function("window.moves === 32")
    tab.page.wait_for_function(f"!{PLOT}.classList.contains('moving')")
    tab.page.emulate_media(reduced_motion="reduce")
    tab.page.get_by_role("button", name="Compiled", exact=True).click()
    wait_for_title(tab, "Compiled: request 3 of 64")
    tab.page.wait_for_function(f"!{PLOT}.classList.contains('moving')")
    assert tab.page.evaluate("window.moves") == 32


def test_a_link_opens_a_request_that_the_first_figure_would_not_carry(tab: Tab) -> None:
    tab.open("?kernel=transpose.tiled&model=textbook&lanes=loaded&operation=1&request=200&tab=coalescing")
    wait_for_title(tab, "Blackboard: request 201 of 256")
    sizes, before = tab.answers(), tab.draws("request-plot")
    tab.page.locator("#scrubber input").fill("3")
    wait_for_title(tab, "request 4 of 256")
    tab.wait_for_draw("request-plot", after=before)
    tab.preset("Blackboard: 8 × 8, tiles of 4 × 4")
    tab.page.wait_for_function(f"{PLOT}.data[0].z.length >= 4 && {PLOT}.data[0].z[0].length === 4")
    assert 0 < max(sizes) <= 150_000, "bytes of a reply"
