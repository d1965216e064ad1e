"""Each picture in a real browser: requests as flow, DRAM reads, the scoreboard, and a sweep with its table."""

import re

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

PLOT = "document.querySelector('#request-plot .live-plot')"


def title(tab, plot="request-plot"):
    return str(tab.evaluate(f"document.querySelector('#{plot} .live-plot').layout.title.text"))


def wait_for_title(tab, part):
    tab.wait_for_function(f"part => {PLOT}.layout?.title.text.includes(part)", arg=part)


def open_compiled(tab, query):
    tab.open(f"?{query}&tab=requests")
    wait_for_title(tab, "Compiled: ")


def test_the_worst_operation_is_drawn_first_beside_a_kernel_that_wastes_nothing(tab):
    open_compiled(tab, "kernel=transpose.flat")
    tab.says("#requests-headline .number", "8 ×")
    tab.says(
        "#requests-headline .lead", "adjacent lanes are 4,096 bytes apart, and each uses 4 bytes."
    )
    assert "32 sectors: 128 of 1,024 bytes used" in title(tab)
    assert "16 sectors: all 512 bytes used" in title(tab, "contrast")
    axis = "document.querySelector('#contrast .live-plot').layout.yaxis.title.text"
    assert tab.evaluate(axis) == "address in B, bytes (bars: gaps)", (
        "lines 0, 1, 32 and 33, and those below"
    )
    tab.says(
        "#flow-launch", "1,048,576 sectors, 12.5 % used. Nsight Compute counted the same on H200"
    )
    tab.says("#contrast-launch", "131,072 sectors, 100 % used.")
    menu = tab.field("Memory operation")
    assert menu.locator("option:checked").inner_text() == "most wasteful"
    menu.select_option(label="load A")
    tab.wait_for_function(f"{PLOT}.layout.yaxis.title.text.includes('A')")
    tab.at("operation=0")
    tab.says("#requests-headline .number", "100 %")
    assert not tab.find("#contrast").is_visible()
    menu.select_option(label="store B")
    tab.press("transpose: tiles", "link")
    tab.at("kernel=transpose.tiled")
    tab.says("#flow-title", "This kernel: transpose: tiles, 64 × 128, store B")


def test_requests_are_stepped_through_without_the_server_and_stand_in_the_address(tab):
    open_compiled(tab, "kernel=transpose.tiled&operation=1")
    scrubber = tab.find("#scrubber input")
    assert scrubber.get_attribute("max") == "63"
    sent = len(tab.requests)
    first = title(tab)
    scrubber.focus()
    scrubber.press("ArrowRight")
    tab.at("request=1")
    tab.press("Next request")
    tab.at("request=2")
    assert "request 3 of 64" in title(tab)
    assert "request 3 of 32" in title(tab, "contrast")
    assert first != title(tab)
    assert [url for url in tab.requests[sent:] if "queue" in url or "call" in url] == []


def test_the_switch_moves_the_lines_to_the_textbooks_request_for_the_same_bytes(tab):
    tab.emulate_media(reduced_motion="no-preference")
    open_compiled(tab, "kernel=transpose.tiled&operation=1&request=2")
    tab.evaluate(
        """() => {
          window.moves = 0;
          document.addEventListener("transitionrun", ({ target }) => { window.moves += target.matches(".js-line"); });
        }"""
    )
    tab.get_by_role("button", name="Textbook", exact=True, pressed=False).click()
    wait_for_title(tab, "Textbook: request 33 of 256")
    tab.get_by_role("button", name="Textbook", exact=True, pressed=True).wait_for()
    tab.at("model=textbook&request=32")
    tab.wait_for_function("window.moves === 32")
    tab.wait_for_function(f"!{PLOT}.classList.contains('moving')")
    tab.emulate_media(reduced_motion="reduce")
    tab.press("Compiled", exact=True)
    wait_for_title(tab, "Compiled: request 3 of 64")
    tab.wait_for_function(f"!{PLOT}.classList.contains('moving')")
    assert tab.evaluate("window.moves") == 32


def test_a_link_opens_a_request_that_the_first_figure_would_not_carry(tab):
    tab.open(
        "?kernel=transpose.tiled&model=textbook&lanes=loaded&operation=1&request=200&tab=requests"
    )
    wait_for_title(tab, "Textbook: request 201 of 256")
    lanes = tab.field("Textbook lanes")
    assert lanes.locator("option:checked").inner_text() == "lanes store what they load"
    tab.find("#scrubber input").fill("3")
    wait_for_title(tab, "request 4 of 256")
    tab.preset("Textbook: 8 × 8, tiles of 4 × 4")
    tab.wait_for_function(f"{PLOT}.data[0].z.length >= 4 && {PLOT}.data[0].z[0].length === 4")


def test_dram_reads_have_bytes_and_times_and_a_moved_group_size_redraws_the_headline(tab):
    """Without a GPU, nothing can be counted, and the page has no button for it."""
    tab.open(
        "?tab=dram-reads&M=8192&N=8192&K=8192&BLOCK_M=128&BLOCK_N=256&BLOCK_K=64&GROUP_SIZE=8&num_warps=8"
    )
    tab.unfold("#dram-reads-numbers")
    for plot in ("dram-reads-plot", "times-plot"):
        tab.wait_for_draw(plot)
    for slot, words in (
        ("headline", "Nsight Compute counted 1.49 GB"),
        ("plot", "GROUP_SIZE 8"),
        ("stages", "requested by loads"),
        ("stages", "recorded"),
    ):
        tab.says(f"#dram-reads-{slot}", words)
    before = tab.draws("dram-reads-plot")
    tab.field("GROUP_SIZE").fill("1")
    tab.wait_for_draw("dram-reads-plot", after=before)
    tab.says("#dram-reads-headline", "counted 2.6")
    assert tab.find("#compare-sizes").is_hidden()


_HIGHEST = """() => {
  const points = [...document.querySelectorAll("#scoreboard-plot .scatterlayer path.point")];
  const highest = points.map((point) => point.getBoundingClientRect()).sort((a, b) => a.top - b.top)[0];
  return [highest.left + highest.width / 2, highest.top + highest.height / 2];
}"""


def test_a_scoreboards_points_open_their_launch_and_links_change_the_quantity(tab):
    tab.open("?kernel=matmul.grouped&tab=scoreboard")
    tab.wait_for_draw("scoreboard-plot")
    exact, total = re.findall(r"[\d,]+", tab.text("#scoreboard-headline"))[:2]
    assert exact == total
    points = tab.find("#scoreboard-plot .xy .points path.point").count()
    assert points == int(total.replace(",", ""))
    tab.mouse.move(*tab.evaluate(_HIGHEST))
    hover = tab.find("#scoreboard-plot .hovertext")
    hover.wait_for()
    label = hover.text_content() or ""
    tab.mouse.click(*tab.evaluate(_HIGHEST))
    tab.at("tab=requests")
    address = tab.evaluate("Object.fromEntries(new URLSearchParams(document.body.dataset.address))")
    assert "of {kernel}, {gpu}{M} × {N}".format(**address) in label
    tab.go_back()
    tab.at("tab=scoreboard")
    tab.wait_for_function("document.querySelector('#scoreboard-headline').checkVisibility()")

    before = tab.draws("scoreboard-plot")
    tab.press("DRAM reads", "link")
    tab.wait_for_draw("scoreboard-plot", after=before)
    tab.says("#scoreboard-headline", "median error of DRAM reads")


def test_a_sweep_lists_its_configs_and_a_link_sets_one(tab):
    """The interpreter checks both configs in no time, so the sweep spends its time on compiling."""
    tab.open("?kernel=transpose.tiled&M=65&N=33&tab=sweep&sweep_vary=BLOCK_M%3D16,128")
    tab.says("#sweep-headline", "config")
    tab.click("#sweep-start")
    tab.says("#sweep-headline", "All configs were tried", folded=True)
    tab.unfold("#sweep-ranking")
    rows = tab.find("#sweep-table tbody tr")
    expect(rows).to_have_count(2)
    rows.last.get_by_role("link").click()
    tab.at(f"BLOCK_M={rows.last.locator('td').nth(1).inner_text()}")
