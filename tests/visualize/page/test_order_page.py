"""The Order view in a real browser, without the server: the player, the layer over the map, and the timeline."""

import numpy as np
import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

# One program per SM, in eight waves
LAUNCH = (
    "?kernel=matmul.grouped&gpu=H200&M=8192&N=4096&K=512&BLOCK_M=128&BLOCK_N=256&BLOCK_K=64&GROUP_SIZE=4"
    "&num_warps=8"
)
ARTICLE = "?kernel=matmul.grouped&gpu=H200&M=576&N=576&K=288&BLOCK_M=64&BLOCK_N=64&BLOCK_K=32&GROUP_SIZE=3&first=9"


def count(tab, half):
    """Return the large number beside an order, and what it counts."""
    corner = tab.find("#program-order-plot .corner").nth(half)
    what = str(corner.locator(".count").get_attribute("title"))
    return int(corner.locator(".count b").inner_text().replace(",", "")), what


def wait_for_step(tab, step):
    tab.wait_for_function(f"document.querySelector('.player')?.dataset.step === '{step}'")


def open_page(tab, query):
    tab.open(query)
    tab.wait_for_draw("program-order-plot")
    tab.wait_for_compiled()


def test_the_nine_results_are_stepped_through_without_the_server_until_54_and_90_blocks(tab):
    """By the buttons, and by the scrubber from the keyboard, which names the step and its loads."""
    open_page(tab, ARTICLE)
    tab.reads("#program-order-headline .number", "54 blocks instead of 90 for the first 9 programs")
    tab.reads("#player output", "whole launch")
    before = len(tab.requests)
    for step in (1, 2):
        tab.press("One step on")
        wait_for_step(tab, step)
    assert [count(tab, half) for half in (0, 1)] == [
        (27, "distinct blocks for the first 2 programs"),
        (27, "distinct blocks for the first 2 programs"),
    ]
    tab.press("One step back")
    wait_for_step(tab, 1)
    scrub = tab.get_by_role("slider", name="Step", exact=True)
    scrub.focus()
    for _ in range(8):
        scrub.press("ArrowRight")
    wait_for_step(tab, 9)
    assert [count(tab, half)[0] for half in (0, 1)] == [54, 90]
    assert "program 9 of 81: pid 8; grouped order, GROUP_SIZE 3: 54 distinct blocks" in str(
        scrub.get_attribute("aria-valuetext")
    )
    assert "step=9" in tab.query()
    assert len(tab.requests) == before, "the server is not asked"
    assert all(url.startswith((tab.url, "data:", "blob:")) for url in tab.requests)
    scrub.press("Home")
    wait_for_step(tab, 0)
    tab.reads("#player .first", "first 9 programs")
    tab.follow("kernel=transpose.tiled&tab=program-order")
    tab.wait_for_selector("#player .first", state="hidden")


def test_a_link_opens_its_step_a_slider_keeps_it_and_a_preset_ends_it(tab):
    open_page(tab, LAUNCH + "&step=5")
    wait_for_step(tab, 5)
    assert count(tab, 0)[1].startswith("distinct blocks for wave 5: ")
    before = tab.draws("program-order-plot")
    tab.field("GROUP_SIZE").fill("8")
    tab.wait_for_draw("program-order-plot", after=before)
    tab.says("#program-order-plot", "GROUP_SIZE 8")
    tab.reads("#player output", "wave 5 of 8")
    assert "step=5" in tab.query()
    tab.preset("A tail group: 7 rows of tiles in groups of 4")
    wait_for_step(tab, 0)
    tab.wait_for_function("!location.search.includes('step=')")
    tab.follow(LAUNCH + "&step=999")
    wait_for_step(tab, 8)


@pytest.mark.parametrize("plays", [pytest.param(False, marks=pytest.mark.all_combinations), True])
def test_the_player_and_the_comparison_start_again_when_steps_become_waves(tab, plays):
    open_page(tab, ARTICLE + "&first=9&step=9")
    wait_for_step(tab, 9)
    if plays:
        tab.press("Play")
        # At the end of what is compared, it starts again
        tab.wait_for_function("document.querySelector('.player').dataset.step < 9")
    for name in "MNK":
        tab.field(name).fill("4096")
    tab.wait_for_function(
        "/M=4096&N=4096&K=4096/.test(location.search) && !location.search.includes('first=')"
    )
    tab.reads("#player output", "whole launch")
    tab.wait_for_function("!location.search.includes('step=')")
    tab.says("#program-order-headline .number", "for the first 1,056 programs")


def test_the_player_stops_for_another_kernel_and_is_hidden_without_a_picture(tab):
    open_page(tab, "?kernel=matmul.grouped&M=4096&N=4096&tab=program-order")
    for script, picture in (("softmax", "visible"), ("histogram", "hidden")):
        tab.press("Play")
        tab.wait_for_function("document.querySelector('.player').dataset.step > 0")
        tab.find("#knob-kernel").select_option(label=f"script: {script}")
        tab.says("#launches", script)
        tab.find("#program-order-plot").wait_for(state=picture)
        tab.find("#player .player").wait_for(state=picture)
    assert "Pause" not in str(tab.find("#player .play").text_content())


@pytest.mark.parametrize(
    "motion", ["no-preference", pytest.param("reduce", marks=pytest.mark.all_combinations)]
)
def test_without_an_address_it_plays_once_by_itself(tab, motion):
    tab.add_init_script(
        "window.seen = []; document.addEventListener('tilescope:paint', () => setTimeout(() => "
        "window.seen.push(Number(document.querySelector('.player').dataset.step)), 0))"
    )
    tab.emulate_media(reduced_motion=motion)
    tab.go()
    tab.wait_for_function("/step=9(&|$)/.test(location.search)")
    seen = set(tab.evaluate("window.seen"))
    assert 9 in seen
    assert bool(seen & set(range(1, 9))) == (motion == "no-preference"), (
        "on a slow machine some steps are left out"
    )


# Too many tiles for gaps between them, so that each cell is a pixel, and more programs than are resident.
MAP = (
    "?kernel=matmul.grouped&gpu=H200&tab=program-order&M=2560&N=2560&K=512&BLOCK_M=64&BLOCK_N=64"
    "&first=132"
)

# The visible picture: the pixels of each map, the words, and the outlines.
SEEN = """async () => {
  const plot = document.querySelector('#program-order-plot .live-plot');
  const pixels = async (image) => {
    const loaded = new Image();
    loaded.src = image.getAttribute('href') ?? image.getAttributeNS('http://www.w3.org/1999/xlink', 'href');
    await loaded.decode();
    const canvas = Object.assign(document.createElement('canvas'), { width: loaded.width, height: loaded.height });
    canvas.getContext('2d').drawImage(loaded, 0, 0);
    return [loaded.width, ...canvas.getContext('2d').getImageData(0, 0, loaded.width, loaded.height).data];
  };
  const rounded = (part) => (isNaN(part) ? part : Math.round(part * 100));
  const path = (line) => line.getAttribute('d').match(/[ML]|-?[\\d.]+/g).map(rounded);
  return {
    maps: await Promise.all([...plot.querySelectorAll('.hm image')].map(pixels)),
    words: [...plot.querySelectorAll('.annotation text')].map((text) => text.textContent),
    outlines: [...plot.querySelectorAll('.shapelayer path')].map(path),
  };
}"""


def redraw(tab, change):
    """Return the picture before a change, redrawn in place, and redrawn by Plotly."""
    # Once the kernel is compiled, the same picture is drawn again; Plotly follows when the plot rests.
    tab.unfold("#waves")
    tab.find("#program-order-occupancy", has_text="compiled").wait_for()
    tab.wait_for_timeout(400)
    before, is_in_place, in_place, by_plotly = tab.evaluate(
        f"""async () => {{
          const plot = document.querySelector('#program-order-plot .live-plot');
          const seen = {SEEN}, draws = plot.dataset.draws;
          const until = async (done) => {{
            for (const end = performance.now() + 40_000; !done();) {{
              if (performance.now() > end) throw new Error(`${{done}}: draws ${{draws}} to ${{plot.dataset.draws}}`);
              await new Promise((go) => setTimeout(go, 1));
            }}
          }};
          const isPlotly = () => plot._fullData[0].z === plot.data[0].z, before = await seen();
          {change};
          await until(() => plot.dataset.draws !== draws);
          const isInPlace = !isPlotly(), inPlace = await seen();
          await until(isPlotly);
          return [before, isInPlace, inPlace, await seen()];
        }}"""
    )
    assert is_in_place, "Plotly drew it"
    return before, in_place, by_plotly


MOVE = """
  const slider = document.querySelector('#knob-GROUP_SIZE-slider');
  slider.value = 5;
  slider.dispatchEvent(new Event('input', { bubbles: true }))"""


def check_alike(drawn, by_plotly):
    """Compare two drawings. Colours are rounded to shades of the scale, so a channel may differ by 1 of 255."""
    for pixels, others in zip(drawn.pop("maps"), by_plotly.pop("maps"), strict=True):
        assert np.abs(np.subtract(pixels, others)).max() <= 1
    assert drawn == by_plotly


def test_a_moved_slider_and_a_step_look_in_place_as_plotly_draws_them(tab):
    tab.open(f"{MAP}&GROUP_SIZE=4")
    tab.wait_for_draw("program-order-plot")
    before, in_place, by_plotly = redraw(tab, MOVE)
    assert len(in_place["maps"]) == 2
    assert max(in_place["maps"][0]) == 255
    assert in_place["maps"][0] != before["maps"][0], "this order"
    assert in_place["maps"][1] == before["maps"][1], "row-major order"
    assert in_place["words"] != before["words"]
    assert in_place["outlines"] != before["outlines"]
    check_alike(in_place, by_plotly)
    tab.find("#player .forward").click()  # from the whole launch's colours to those of a step
    before, in_place, by_plotly = redraw(tab, "document.querySelector('.player .forward').click()")
    assert in_place["maps"][0] != before["maps"][0]
    check_alike(in_place, by_plotly)


RECORDED = (
    "?kernel=matmul.grouped&M=4096&N=4096&K=4096&BLOCK_M=128&BLOCK_N=256&BLOCK_K=64&GROUP_SIZE=8&num_warps=8"
    "&tab=program-order&gpu=H200"
)


# Client coordinates of the middle of a program's bar, by its pid.
_BAR = """(pid) => {
  const plot = document.querySelector('#gantt-plot .live-plot'), frame = plot.getBoundingClientRect();
  const { xaxis, yaxis } = plot._fullLayout, trace = plot.data.find(({ customdata }) => customdata[0].includes(pid));
  const at = 5 * trace.customdata[0].indexOf(pid);
  const [x, y] = [[trace.x, 1], [trace.y, 2]].map(([values, corner]) => (values[at] + values[at + corner]) / 2);
  return [frame.x + xaxis._offset + xaxis.d2p(x), frame.y + yaxis._offset + yaxis.d2p(y)];
}"""


def test_a_recorded_timeline_is_drawn_at_once_with_what_it_cost_and_names_its_programs(tab):
    tab.open(RECORDED)
    tab.wait_for_draw("gantt-plot")
    tab.wait_for_compiled()
    for words in (
        "On NVIDIA H200, 512 programs ran on 132 SMs in 0.189 ms",
        "Instrumentation overhead: +0.3 % (0.194 ms against 0.193 ms",
        "The timer ticks every 32 ns",
        "Recorded on H200, 2026-11-21",
    ):
        assert words in tab.text("#timeline")
    drawn = "document.querySelector('#gantt-plot .live-plot').data.flatMap((t) => Array.from(t.customdata[0]))"
    assert sorted(tab.evaluate(drawn)) == list(range(512))
    tab.find("#gantt-plot").scroll_into_view_if_needed()
    tab.mouse.move(*tab.evaluate(_BAR, 300))
    tab.says("#gantt-plot .tip", "pid 300: tile (")
    tab.says("#gantt-plot .tip", "ideal wave 3 of 4")
    tab.mouse.move(5, 5)
    tab.wait_for_selector("#gantt-plot .tip", state="hidden")


# Client coordinates of a place in a map, in tiles.
_PLACE = """([x, y, map]) => {
  const plot = document.querySelector('#program-order-plot .live-plot'), frame = plot.getBoundingClientRect();
  const { [`xaxis${map}`]: across, [`yaxis${map}`]: down } = plot._fullLayout;
  return [frame.x + across._offset + across.d2p(x), frame.y + down._offset + down.d2p(y)];
}"""


def place(tab, x, y, axis=""):
    left, top = tab.evaluate(_PLACE, [x, y, axis])
    return left, top


def drag(tab, handle, x, y):
    tab.find(f".handle[data-name={handle}]").hover()  # once it no longer moves
    tab.mouse.down()
    tab.mouse.move(*place(tab, x, y), steps=4)
    tab.mouse.up()


def test_a_tile_lights_up_its_row_and_column_within_50_ms(tab):
    open_page(tab, ARTICLE)
    before = len(tab.requests)
    lit = tab.find(".touch .panel")
    for axis, at, words, lights in (
        ("", (2.5, 1.5), "pid 7 computes this tile", 2),
        ("2", (8.5, -9.2), "B: pid_n 8, block 0 of K", 0),
    ):
        tab.mouse.move(*place(tab, *at, axis))
        tab.says(".tile-tip", words)
        assert lit.count() == lights
        tab.mouse.move(5, 5)
        tab.wait_for_selector(".tile-tip", state="hidden")
        assert lit.count() == 0
    elapsed_ms = tab.evaluate(
        """([clientX, clientY]) => {
          const start = performance.now(), surface = document.querySelector('#program-order-plot .nsewdrag');
          surface.dispatchEvent(new PointerEvent('pointermove', { clientX, clientY, bubbles: true }));
          return performance.now() - start;
        }""",
        place(tab, 4.5, 4.5),
    )
    assert elapsed_ms < 50
    assert len(tab.requests) == before, "the server is not asked"


def test_edges_of_a_tile_and_of_a_group_are_dragged_and_keys_do_the_same(tab):
    open_page(tab, ARTICLE)
    drag(tab, "GROUP_SIZE", 1.5, 5.1)
    tab.wait_for_function("document.body.dataset.address.includes('GROUP_SIZE=5')")
    expect(tab.field("GROUP_SIZE")).to_have_value("5")
    tab.says("#program-order-plot", "GROUP_SIZE 5")
    tab.mouse.move(*place(tab, 2.5, 2.5))
    drag(tab, "BLOCK_N", 4.1, 2.5)
    tab.wait_for_function("document.body.dataset.address.includes('BLOCK_N=128')")
    tab.wait_for_function(
        "Math.floor(document.querySelector('#program-order-plot .live-plot')._fullLayout.xaxis.range[1]) === 5"
    )
    layer = tab.get_by_role("application")
    layer.focus()
    layer.press("+")
    tab.wait_for_function("document.body.dataset.address.includes('GROUP_SIZE=6')")
    layer.press("Shift+ArrowUp")
    tab.wait_for_function("document.body.dataset.address.includes('BLOCK_M=32')")
    for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
        layer.press(key)
    tab.says(".tile-tip", ", 32 × 128 elements of C.")
