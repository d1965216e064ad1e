"""The Order view in a real browser, without the server: the player, the replay, and the layer over the map."""

import functools

import numpy as np
import pytest
from playwright.sync_api import expect

from kernels import discover
from kernels.gpus import GPUS
from kernels.spec import Launch
from tests.views.test_order import RECORDED as TIMELINES
from tests.views.test_order import recorded
from visualize.numbers import count_noun
from visualize.predict.execution import ideal_clock
from visualize.predict.schedule import loads, row_major, schedule
from visualize.views.order.map_figure import map_grid

pytestmark = pytest.mark.browser

LAUNCH = "?kernel=matmul.grouped&gpu=H200&M=2048&N=2048&K=512&BLOCK_M=64&BLOCK_N=64&GROUP_SIZE=4&programs_per_sm=1"
ARTICLE = "?kernel=matmul.grouped&gpu=H200&M=576&N=576&K=288&BLOCK_M=64&BLOCK_N=64&BLOCK_K=32&GROUP_SIZE=3&first=9"
EARLIER = 1
AGAIN = 2
NEW = 3


def orders(problem, size):
    """Yield the number and the schedule of each half of the picture."""
    kernel = discover()["matmul.grouped"]
    config = kernel.config(BLOCK_M=64, BLOCK_N=64, GROUP_SIZE=size)
    planned = schedule(kernel, Launch(kernel.family.problem(*problem), config, GPUS["H200"]))
    yield from enumerate((planned, row_major(planned)))


def parts(tab, half, launch):
    """Return the values of C, A and B in one half, with one column or row per cell along K."""
    read = (
        "(i) => document.querySelector('#schedule-plot .live-plot').data[i].z"
        ".map((row) => Array.from(row, (value) => Number.isNaN(value) ? null : value))"
    )
    grid = np.array(tab.page.evaluate(read, half))
    place = map_grid(launch)
    top = place.down.lead
    left = place.across.lead
    a = grid[top:, : left - place.across.gap]
    b = grid[: top - place.down.gap, left:]
    return grid[top:, left:].astype(float), a[:, :: place.across.repeat], b[:: place.down.repeat]


def count(tab, half):
    """Return the large number beside an order, and what it counts."""
    corner = tab.page.locator("#schedule-plot .corner").nth(half)
    what = str(corner.locator(".what").get_attribute("title"))
    return int(corner.locator(".count b").inner_text().replace(",", "")), what


def wait_for_step(tab, step):
    tab.page.wait_for_function(f"document.querySelector('.player')?.dataset.step === '{step}'")


def piece_values(now, before):
    """Return the values of a panel's pieces: new, reused, earlier, or not used yet."""
    return np.where(now & before, AGAIN, np.where(now, NEW, np.where(before, EARLIER, 0)))


def assert_shows(tab, step, single=False):
    """Assert that both halves show this step, counted from 1, as the model has it."""
    for half, order in orders((576, 576, 288) if single else (2048, 2048, 512), 3 if single else 4):
        when = np.full(order.extents, -1)
        when[order.tiles.pid_m, order.tiles.pid_n] = order.tiles.program if single else order.step
        now = when == step - 1
        before = when < step - 1
        c, a, b = parts(tab, half, order)
        assert np.array_equal(c, np.where(now, NEW, before)), half
        rows = piece_values(now.any(1), before.any(1))
        columns = piece_values(now.any(0), before.any(0))
        assert all(np.array_equal(column, rows) for column in a.T), half
        assert all(np.array_equal(row, columns) for row in b), half
        blocks, what = count(tab, half)
        if single:
            assert blocks == loads(order, np.array([step]))[0], half
            assert what == f"distinct blocks for {step} program{'s' if step > 1 else ''}"
        else:
            assert blocks == (now.any(1).sum() + now.any(0).sum()) * order.k_blocks, half
            assert what.startswith(f"distinct blocks for wave {step}: ")


def open_page(tab, query):
    tab.open(query)
    tab.wait_for_draw("schedule-plot")
    tab.wait_for_compiled()


def test_the_nine_results_program_by_program_until_54_and_90_blocks(tab):
    open_page(tab, ARTICLE)
    paths = tab.page.evaluate(
        "document.querySelector('#schedule-plot .live-plot').layout.shapes.map((s) => s.path)"
    )
    corners = [
        np.array([point.split(",") for point in path[1:].replace("M", "L").split("L")], int)
        for path in paths
    ]
    sizes = [np.ptp(points, axis=0).tolist() for points in corners]
    assert sizes == [[3, 3], [3, 3], [9, 1], [9, 1]], (
        "outlines of columns and rows of tiles, in black on white"
    )
    tab.reads("#schedule-claim .number", "54 blocks instead of 90 for 9 programs")
    before = len(tab.requests)
    for step in range(1, 10):
        tab.page.get_by_role("button", name="One step on").click()
        wait_for_step(tab, step)
        assert_shows(tab, step, single=True)
    assert [count(tab, half)[0] for half in (0, 1)] == [54, 90]
    assert tab.text("#schedule-plot .corner .hits >> nth=0") == "108 of 162 loads hit"
    assert len(tab.requests) == before, "the server is not asked"
    tab.reads("#player .first", "first 9 programs")
    tab.follow("kernel=transpose.tiled&tab=schedule")
    tab.page.wait_for_selector("#player .first", state="hidden")


def test_one_step_on_draws_the_next_wave_of_both_orders(tab):
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
    assert "wave 4 of 8; grouped order, GROUP_SIZE 4: 640 distinct blocks" in str(
        scrub.get_attribute("aria-valuetext")
    )


def test_a_link_opens_its_step_a_slider_keeps_it_and_a_preset_ends_it(tab):
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


@pytest.mark.parametrize("plays", [False, True])
def test_the_player_and_the_comparison_start_again_when_steps_become_waves(tab, plays):
    open_page(tab, ARTICLE + "&first=9&step=9")
    wait_for_step(tab, 9)
    if plays:
        tab.page.get_by_label("Speed").select_option("1")
        tab.page.get_by_role("button", name="Play").click()
        wait_for_step(tab, 10)
    for name in "MNK":
        tab.page.get_by_label(name, exact=True).fill("4096")
    tab.page.wait_for_function(
        "/M=4096&N=4096&K=4096/.test(location.search) && !location.search.includes('first=')"
    )
    tab.reads("#player output", "whole launch")
    tab.page.wait_for_function("!location.search.includes('step=')")
    expect(tab.page.locator("#schedule-claim .number")).to_contain_text("for 1,056 programs")
    expect(tab.page.locator("#schedule-view-first")).to_have_value("0")


@pytest.mark.parametrize(
    "motion", ["no-preference", pytest.param("reduce", marks=pytest.mark.all_combinations)]
)
def test_without_an_address_it_plays_once_by_itself(tab, motion):
    tab.page.add_init_script(
        "window.seen = []; document.addEventListener('tilescope:paint', () => setTimeout(() => "
        "window.seen.push(Number(document.querySelector('.player').dataset.step)), 0))"
    )
    tab.page.emulate_media(reduced_motion=motion)
    tab.go()
    tab.page.wait_for_function("/step=9(&|$)/.test(location.search)", timeout=40_000)
    seen = set(tab.page.evaluate("window.seen"))
    assert 9 in seen
    assert bool(seen & set(range(1, 9))) == (motion == "no-preference"), (
        "on a slow machine some steps are left out"
    )


# More tiles than have gaps between them, so that each cell is a pixel; more programs than are resident.
MAP = (
    "?kernel=matmul.grouped&gpu=H200&tab=schedule&M=2560&N=2560&K=512&BLOCK_M=64&BLOCK_N=64"
    "&first=132&programs_per_sm=1"
)

# The visible picture: the pixels of each map, the words, and the outlines.
SEEN = """async () => {
  const plot = document.querySelector('#schedule-plot .live-plot');
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
    tab.page.locator("#schedule-occupancy", has_text="registers per thread").wait_for()
    tab.page.wait_for_timeout(400)
    before, is_in_place, in_place, by_plotly = tab.page.evaluate(
        f"""async () => {{
          const plot = document.querySelector('#schedule-plot .live-plot'), seen = {SEEN}, draws = plot.dataset.draws;
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
  const slider = document.querySelector('#experiment-GROUP_SIZE-slider');
  slider.value = 5;
  slider.dispatchEvent(new Event('input', { bubbles: true }))"""


@pytest.mark.parametrize(
    "color", ["order", pytest.param("group", marks=pytest.mark.all_combinations)]
)
def test_a_moved_slider_and_a_step_look_in_place_as_plotly_draws_them(tab, color):
    tab.open(f"{MAP}&color={color}&GROUP_SIZE=4")
    tab.wait_for_draw("schedule-plot")
    before, in_place, by_plotly = redraw(tab, MOVE)
    assert len(in_place["maps"]) == 2
    assert max(in_place["maps"][0]) == 255
    assert in_place == by_plotly
    assert in_place["maps"][0] != before["maps"][0], "this order"
    assert in_place["maps"][1] == before["maps"][1], "row-major order"
    assert in_place["words"] != before["words"]
    assert in_place["outlines"] != before["outlines"]
    tab.page.locator(
        "#player .forward"
    ).click()  # from the whole launch's colours to those of a step
    before, in_place, by_plotly = redraw(tab, "document.querySelector('.player .forward').click()")
    assert in_place == by_plotly
    assert in_place["maps"][0] != before["maps"][0]


RECORDED = (
    "?kernel=matmul.grouped&M=4096&N=4096&K=4096&BLOCK_M=128&BLOCK_N=256&BLOCK_K=64&GROUP_SIZE=8&num_warps=8"
    "&tab=schedule&gpu=H200&programs_per_sm=1"
)


@functools.cache
def launch():
    """Return the schedule, the start and end of each tile, and the ideal waves' clock."""
    course, plan = recorded(
        next(e for e in TIMELINES if e.kernel == "matmul.grouped" and e.problem.M == 4096)
    )
    begun, done = course.tile_times(plan)
    return plan, course, begun, done, ideal_clock(begun, plan.step, course.span_ns)


def open_timeline(tab, query=RECORDED):
    tab.open(query)
    for plot in ("moment-plot", "ideal-plot", "gantt-plot"):
        tab.wait_for_draw(plot)
    tab.wait_for_compiled()


def assert_shows_time(tab, now):
    """Both maps and the words show this time, in ns, as the model has it."""
    plan, course, begun, done, clock = launch()
    ideal = (clock[plan.step], clock[plan.step + 1])
    step = min(int((clock <= now).sum()), 4)
    times = {"moment-plot": ("programs", begun, done), "ideal-plot": (f"wave {step} of 4", *ideal)}
    for plot, (name, begins, ends) in times.items():
        words = (
            f"{name}: {(ends <= now).sum()} done, {((begins <= now) & (now < ends)).sum()} running"
        )
        live = f"document.querySelector('#{plot} .live-plot')"
        tab.page.wait_for_function(
            f"words => {live}.layout.annotations[0].text === words", arg=words
        )
        expected = np.zeros(plan.extents)
        expected[plan.tiles.pid_m, plan.tiles.pid_n] = np.where(
            ends <= now, 1, np.where(begins <= now, 2, 0)
        )
        z = tab.page.evaluate(f"{live}.data[0].z.map((row) => Array.from(row))")
        assert np.array_equal(z, expected), plot
    running = (course.start_ns <= now) & (now < course.end_ns)
    sms = len(set(course.sm[running].tolist()))
    tab.says(
        "#clock output", f": {count_noun(int(running.sum()), 'program')} on {count_noun(sms, 'SM')}"
    )


def now(tab):
    return int(str(tab.page.locator("#clock .clock").get_attribute("data-now")))


def test_a_recorded_timeline_is_drawn_at_once_with_what_it_cost_and_replayed_without_the_server(
    tab,
):
    open_timeline(tab)
    for words in (
        "On NVIDIA H200, 512 programs ran on 132 SMs in 0.189 ms",
        "Instrumentation overhead: +0.3 % (0.194 ms against 0.193 ms",
        "The timer ticks every 32 ns",
        "Recorded on H200, 2026-11-21",
    ):
        assert words in tab.text("#timeline")
    drawn = "document.querySelector('#gantt-plot .live-plot').data.flatMap((t) => Array.from(t.customdata[0]))"
    assert sorted(tab.page.evaluate(drawn)) == list(range(512))
    assert_shows_time(tab, now(tab))
    before = len(tab.requests)
    scrub = tab.page.get_by_role("slider", name="Time from the first start")
    scrub.focus()
    seen = []
    for key in ("Home", *["PageUp"] * 9, "ArrowRight", "ArrowLeft", "End"):
        scrub.press(key)
        seen.append(now(tab))
        assert_shows_time(tab, seen[-1])
    assert seen[0] == 0
    assert seen[:10] == sorted(set(seen[:10])), "each step goes on"
    assert str(scrub.get_attribute("aria-valuetext")).startswith("188.")
    assert len(tab.requests) == before


# Client coordinates of a place in a map, in tiles.
_PLACE = """([x, y, map]) => {
  const plot = document.querySelector('#schedule-plot .live-plot'), frame = plot.getBoundingClientRect();
  const { [`xaxis${map}`]: across, [`yaxis${map}`]: down } = plot._fullLayout;
  return [frame.x + across._offset + across.d2p(x), frame.y + down._offset + down.d2p(y)];
}"""


def place(tab, x, y, axis=""):
    left, top = tab.page.evaluate(_PLACE, [x, y, axis])
    return left, top


def drag(tab, handle, x, y):
    tab.page.locator(f".handle[data-name={handle}]").hover()  # once it no longer moves
    tab.page.mouse.down()
    tab.page.mouse.move(*place(tab, x, y), steps=4)
    tab.page.mouse.up()


def test_a_tile_lights_up_its_row_and_column_within_50_ms_and_opens_its_program_in_memory(tab):
    """In both maps; a block names its first reader."""
    open_page(tab, ARTICLE)
    before = len(tab.requests)
    lit = tab.page.locator(".touch svg rect[fill-opacity]")
    for axis, at, words, count in (
        ("", (2.5, 1.5), ("pid 7 ", "pid_m 1, pid_n 2: wave 1", "by pid 1."), 2),
        ("2", (2.5, 1.5), ("pid 11 ", "9 blocks: already loaded by pid 9.", "by pid 2."), 2),
        ("", (-7.1, 3.5), ("A: pid_m 3, block 2 of K", "First loaded by pid 27, in wave 1."), 0),
        ("2", (8.5, -9.2), ("B: pid_n 8, block 0 of K", "First loaded by pid 8, in wave 1."), 0),
    ):
        tab.page.mouse.move(*place(tab, *at, axis))
        tab.page.wait_for_selector(".tile-tip:visible")
        assert all(word in tab.text(".tile-tip") for word in words)
        assert lit.count() == count
        tab.page.mouse.move(5, 5)
        tab.page.wait_for_selector(".tile-tip", state="hidden")
        assert lit.count() == 0
    elapsed_ms = tab.page.evaluate(
        """([clientX, clientY]) => {
          const start = performance.now(), surface = document.querySelector('#schedule-plot .nsewdrag');
          surface.dispatchEvent(new PointerEvent('pointermove', { clientX, clientY, bubbles: true }));
          return performance.now() - start;
        }""",
        place(tab, 4.5, 4.5),
    )
    assert elapsed_ms < 50
    assert lit.count() == 2
    assert len(tab.requests) == before, "the server is not asked"
    tab.page.mouse.click(*place(tab, 2.5, 1.5))
    tab.page.wait_for_function(
        "/tab=coalescing/.test(location.search) && /program=7(&|$)/.test(location.search)"
    )


def test_edges_of_a_tile_and_of_a_group_are_dragged(tab):
    open_page(tab, ARTICLE)
    drag(tab, "GROUP_SIZE", 1.5, 5.1)
    tab.page.wait_for_function("document.body.dataset.address.includes('GROUP_SIZE=5')")
    expect(tab.page.get_by_label("GROUP_SIZE", exact=True)).to_have_value("5")
    tab.says("#schedule-plot", "GROUP_SIZE 5")
    tab.page.mouse.move(*place(tab, 2.5, 2.5))
    drag(tab, "BLOCK_N", 4.1, 2.5)
    tab.page.wait_for_function("document.body.dataset.address.includes('BLOCK_N=128')")
    tab.page.wait_for_function(
        "Math.floor(document.querySelector('#schedule-plot .live-plot')._fullLayout.xaxis.range[1]) === 5"
    )
    tab.page.mouse.move(*place(tab, 1.5, 2.5))
    drag(tab, "BLOCK_M", 1.5, 2.45)
    tab.page.wait_for_function("document.body.dataset.address.includes('BLOCK_M=32')")


def test_keys_move_over_tiles_resize_them_and_open_memory(tab):
    open_page(tab, ARTICLE)
    layer = tab.page.get_by_role("application")
    layer.focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
        layer.press(key)
    tab.says(".tile-tip", "pid 7 computes this tile, 64 × 64 elements of C.")
    layer.press("+")
    tab.page.wait_for_function("document.body.dataset.address.includes('GROUP_SIZE=4')")
    layer.press("Shift+ArrowRight")
    tab.page.wait_for_function("document.body.dataset.address.includes('BLOCK_N=128')")
    layer.press("Shift+ArrowUp")
    tab.page.wait_for_function("document.body.dataset.address.includes('BLOCK_M=32')")
    tab.page.wait_for_function("document.querySelector('.tile-tip').innerText.includes('32 × 128')")
    layer.press("Enter")
    tab.page.wait_for_function("/tab=coalescing/.test(location.search)")
