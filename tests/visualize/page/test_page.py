"""The page in a real browser: what users set, and what they see."""

import pytest

from kernels.matmul import tile
from tilescope.declare.jit import memory_lines

pytestmark = pytest.mark.browser


def test_a_copied_link_reopens_the_same_page(tab):
    tab.open(
        "?kernel=transpose.tiled&M=1000&N=129&BLOCK_M=32&tab=requests&operation=1&warp_size=16&seed=7"
    )
    address = tab.query()
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab.unfold("#header .more")
    tab.press("Share: link and QR code")
    tab.press("Copy link")
    copied = tab.evaluate("navigator.clipboard.readText()")
    assert copied.endswith(address)
    tab.open(copied.removeprefix(tab.url))
    assert tab.query() == address
    assert tab.field("M").input_value() == "1000"
    assert (
        tab.get_by_role("button", name="Memory", exact=True).get_attribute("aria-current") == "page"
    )
    assert tab.field("Memory operation").locator("option:checked").inner_text() == "store B"
    tab.press("Result", exact=True)
    tab.unfold("#run-options-fold")
    tab.expect("#knob-seed").to_have_value("7")


def test_bad_values_get_sentences_beside_them_and_the_last_picture_stays(tab):
    tab.open("?kernel=matmul.grouped&tab=program-order&M=banana&N=1024&BLOCK_K=17")
    tab.says(
        '.field[data-field="M"] .problem',
        "M must be a whole number from 1 to 16384 (got 'banana').",
    )
    tab.says(
        '.field[data-field="BLOCK_K"] .problem', "BLOCK_K must be 16, 32, 64, 128 or 256 (got 17)."
    )
    assert tab.field("N").input_value() == "1024"
    tab.wait_for_draw("program-order-plot")
    # Compare the picture and not the number of draws: the same picture is drawn again once the kernel is compiled.
    plot = "document.querySelector('#program-order-plot .live-plot')"
    picture = f"JSON.stringify({plot}.data.map(({{name, z}}) => [name, z]))"
    before, headline = tab.evaluate(picture), tab.text("#program-order-headline")
    assert before
    tab.field("M").fill("20000")
    tab.reads(
        '.field[data-field="M"] .problem', "M must be a whole number from 1 to 16384 (got 20000)."
    )
    assert tab.evaluate(picture) == before
    assert tab.text("#program-order-headline") == headline
    tab.field("M").fill("1024")
    tab.find('.field[data-field="M"] .problem').wait_for(state="hidden")
    tab.open("?kernel=matmul.grouped&dtype=float64")
    tab.expect('.field[data-field="dtype"] .problem').to_be_visible()
    tab.says('.field[data-field="dtype"] .problem', "(got 'float64')")


def test_a_number_is_sent_when_it_is_typed_and_a_rejected_one_leaves_the_picture(tab):
    tab.open("?kernel=matmul.grouped")
    tab.wait_for_compiled()
    headline = tab.text("#program-order-headline")
    sent = []
    tab.on("request", lambda request: sent.append(request.post_data_json["settings"]["M"]))
    box = tab.field("M")
    box.press("Control+a")
    box.press_sequentially("99999")
    tab.says('.field[data-field="M"] .problem', "(got 99999)")
    assert sent == [99999]
    assert tab.text("#program-order-headline") == headline
    box.press("Control+a")
    box.press_sequentially("1024")
    box.press("Enter")
    tab.says("#program-order-headline", "all 64 programs")


def test_the_longest_numbers_fit_into_their_boxes(tab):
    tab.open("?kernel=matmul.grouped&M=16384&N=16384&K=16384&seed=1234567&tab=result")
    tab.unfold("#run-options-fold")
    tab.expect("#knob-seed").to_have_value("1234567")
    for width in (1280, 1440):
        tab.resize(width, 720)
        cut = tab.evaluate(
            """[...document.querySelectorAll(".knobs input[type=number]")]
              .filter((box) => box.checkVisibility() && box.scrollWidth > box.clientWidth).map((box) => box.value)"""
        )
        assert cut == []


def test_a_moved_slider_redraws_the_schedule_and_the_address_and_keeps_a_zoom_and_a_drag(tab):
    """The picture's clip paths stay relative (`url(#…)`), so that a new address does not break them."""
    tab.open("?tab=program-order&M=2048&N=2048")
    tab.wait_for_draw("program-order-plot")
    tab.wait_for_compiled()
    ranges = "document.querySelector('#program-order-plot .live-plot')._fullLayout.xaxis.range.map(Number)"
    whole = tab.evaluate(ranges)
    box = tab.find("#program-order-plot .nsewdrag[data-subplot=xy]").bounding_box()
    # Not from the corner at the top left, which shows numbers after the compile
    tab.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + box["height"] * 0.8)
    tab.mouse.down()
    tab.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + box["height"] * 0.4, steps=5)
    tab.field("GROUP_SIZE").fill("5")
    tab.at("GROUP_SIZE=5")
    tab.mouse.up()
    tab.says("#program-order-plot", "GROUP_SIZE 5")
    assert tab.evaluate(ranges) != whole, "a redraw would have ended the drag"
    zoomed = tab.evaluate(ranges)
    tab.field("GROUP_SIZE").fill("7")
    tab.at("GROUP_SIZE=7")
    tab.says("#program-order-plot", "GROUP_SIZE 7")
    assert tab.evaluate(ranges) == zoomed
    clips = tab.find("#program-order-plot [clip-path]").evaluate_all(
        "nodes => nodes.map((node) => node.getAttribute('clip-path'))"
    )
    assert len(clips) >= 2
    assert all(clip.startswith(("url(#", "url('#")) for clip in clips)


def test_the_compiler_shows_an_operation_in_all_texts_and_follows_the_controls(tab):
    tab.open("?kernel=matmul.grouped&tab=compiler")
    tab.wait_for_selector("#listing .pane")
    tab.says("#compiler-headline", "registers")
    for name in ("Source", "TTGIR", "PTX", "SASS"):
        assert tab.find(f'#listing [data-name="{name}"] .marked').count() > 0
    ((_, line),) = memory_lines(tile.store)
    tab.field("memory operation").select_option(label=f"store C, tile.py:{line}")
    assert "tl.store" in tab.find('#listing [data-name="Source"] .marked').first.inner_text()
    assert "STG" in tab.find('#listing [data-name="SASS"] .marked').first.inner_text()
    tab.field("search").fill("mma")
    tab.wait_for_selector('#listing [data-name="SASS"] .found')
    before = tab.text("#compiler-headline")
    tab.get_by_label("BLOCK_N slider").press("ArrowLeft")
    tab.expect("#compiler-headline").not_to_have_text(before, use_inner_text=True)
    tab.says("#compiler-headline", "registers")


def test_a_line_shows_that_the_page_waits_for_a_reply(tab):
    tab.open("?kernel=matmul.grouped")
    line = tab.get_by_role("progressbar", name="Waiting for a reply")
    line.wait_for(state="hidden")
    routes = []
    tab.route("**/messages.json", lambda route: routes.append(route))
    tab.tab("dram-reads")
    line.wait_for()
    routes.pop().continue_()
    tab.unroute("**/messages.json")
    line.wait_for(state="hidden")
    tab.wait_for_draw("dram-reads-plot")


def test_a_change_without_a_reply_stays_in_the_address_and_is_sent_again(tab):
    tab.open("?kernel=matmul.grouped")
    tab.says("#program-order-headline", "all 32 programs")
    tab.route("**/messages.json", lambda route: route.abort())
    tab.field("M").fill("1024")
    tab.at("M=1024")
    tab.unroute("**/messages.json")
    tab.says("#program-order-headline", "all 64 programs")
    tab.errors.clear()  # of the messages without a reply


# Where the still picture's maps lie, and where the live one's do: left, top, right, bottom.
_STILL = """() => {
  const { left, top, right, bottom } = document.querySelector("#first-picture svg").getBoundingClientRect();
  return [left, top, right, bottom];
}"""
_LIVE = """() => {
  const plot = document.querySelector("#program-order-plot .live-plot");
  const { l, t, w, h } = plot._fullLayout._size;
  const { left, top } = plot.getBoundingClientRect();
  return [left + l, top + t, left + l + w, top + t + h];
}"""


def test_before_its_scripts_the_page_has_a_picture_or_a_sentence_where_the_live_picture_comes(tab):
    page = tab.page
    page.route("**/*.js", lambda route: route.abort())
    page.goto(f"{tab.url}?tab=requests")
    page.get_by_text("Opening Tilescope.").wait_for()
    page.goto(tab.url)
    assert tab.find("#first-picture path").count() > 80, "one for each tile, at least"
    assert tab.find("#experiment").count() == 0, "Gradio has built nothing"
    still = page.evaluate(_STILL)
    page.unroute("**/*.js")
    page.goto(tab.url)
    tab.wait_for_draw("program-order-plot")
    page.wait_for_selector("#first-picture", state="detached")
    assert page.evaluate(_LIVE) == pytest.approx(still, abs=12)
    tab.open("?tab=requests")
    page.wait_for_selector("#opening", state="detached")
    tab.errors.clear()  # of the scripts that were kept away
