"""Runs from the page, under the interpreter, and the figures, tables and scripts that the browser saves."""

import io
import json
import re
import struct
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

from tests.messages import text_of
from tests.visualize.page.conftest import FIRST
from tilescope.declare.discovery import discover

pytestmark = pytest.mark.browser

STALE = re.compile(r"\bstale\b")

# About ten seconds under the interpreter: long enough to be caught in the middle.
LONG = "?kernel=matmul.grouped&M=512&N=512&K=512&BLOCK_M=32&BLOCK_N=32&BLOCK_K=32"


@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(name, marks=() if name in FIRST else pytest.mark.all_combinations)
        for name in discover()
    ],
)
def test_a_run_shows_its_check_and_no_time_and_the_worst_tile_with_its_values(tab, kernel):
    tab.open(f"?kernel={kernel}&M=129&N=100&tab=program-order")
    tab.run()
    tab.says("#card", "✓ 0 wrong")
    tab.says("#card", "interpreter")
    assert (
        tab.get_by_role("button", name="Order", exact=True).get_attribute("aria-current") == "page"
    ), "it stays"
    tab.tab("result")
    tab.wait_for_draw("diff-plot")
    tab.unfold("#result-numbers")
    tab.says("#result-tables", "0 of 12,900")
    if kernel.startswith("matmul"):  # a transpose has no error
        tab.says("#result-tables", "computed by pid")
        around = re.search(r"Around the worst element \[(\d+), (\d+)\]", tab.text("#result-tables"))
        assert around is not None
        values = tab.find("#result-tables .around")
        expect(values.locator("th", has_text=f"column {around[2]}")).to_have_count(1)
        expect(values.locator("td", has_text=around[1]).first).to_be_visible()


def test_a_result_is_greyed_while_the_controls_differ_and_a_recorded_run_has_no_other_runs_picture(
    tab,
):
    tab.open("?kernel=transpose.tiled&M=128&N=128&tab=result")
    tab.run()
    tab.wait_for_draw("diff-plot")
    card, slider = (
        tab.find("#card [data-experiment]"),
        tab.get_by_label("BLOCK_M slider"),
    )
    expect(card).not_to_have_class(STALE)
    slider.press("ArrowRight")
    expect(card).to_have_class(STALE)
    expect(card).to_have_attribute(
        "data-stale", "Result for other settings (BLOCK_M 64). Run to update."
    )
    slider.press("ArrowLeft")
    expect(card).not_to_have_class(STALE)
    gpu = tab.field("GPU")
    chosen = gpu.input_value()
    gpu.select_option("H100")
    expect(card).to_have_attribute("data-stale", re.compile(r"\(default GPU"))
    gpu.select_option(chosen)
    expect(card).not_to_have_class(STALE)
    for name in ("M", "N"):
        tab.field(name).fill("8192")  # too large for the interpreter
    tab.at("N=8192")
    tab.click("#run")
    tab.says("#card", "recorded")
    tab.says("#result", "was not recorded", folded=True)
    tab.expect("#diff-plot .main-svg").to_have_count(0)


def test_control_and_enter_runs_and_the_result_comes_back_after_a_reload(tab):
    tab.open("?kernel=transpose.tiled&M=136&N=128")
    tab.field("M").press("Control+Enter")
    tab.ended()
    card = tab.text("#card")
    assert "✓ 0 wrong" in card
    tab.open(tab.query())
    tab.says("#card", "✓ 0 wrong")
    assert tab.text("#card").split() == card.split()


def test_cancel_ends_the_work_and_the_next_run_succeeds(tab, app):
    tab.open(LONG)
    tab.click("#run")
    tab.wait_for_selector("#card li.now:has-text('launch')")
    before = set(app.workers())
    tab.click("#cancel")
    tab.wait_for_selector("#card .failure[data-kind=cancelled]")
    header = tab.find("#header").bounding_box()
    assert tab.find("#card.toast").bounding_box()["y"] >= header["y"] + header["height"]
    tab.key("Escape")
    tab.expect("#card.toast").to_have_count(0)
    tab.field("M").fill("64")
    tab.at("M=64&")
    tab.run()
    tab.says("#card", "✓ 0 wrong")
    assert before - set(app.workers()), "the cancelled worker has been replaced"


def test_the_tiles_of_a_lost_race_stay_marked_in_the_program_order_until_something_changes(tab):
    tab.open("?kernel=matmul.split_k_race&gpu=H200&tab=program-order")
    tab.wait_for_draw("program-order-plot")
    tab.resize(390, 844)
    tab.run()
    tab.says("#card", "✗")
    card = tab.find("#card").bounding_box()
    assert 0 <= card["y"] < card["y"] + card["height"] < 300
    tab.click("#card")
    tab.expect("#card.toast").to_have_count(0)
    tab.resize(1280, 720)
    tiles = tab.find("#run-tiles[data-state=checked]")
    wrong = int(tiles.get_attribute("data-wrong") or 0)
    assert 0 < wrong <= 32
    tab.says("#program-order-plot", f"✗ {wrong} of ")
    tab.tab("result")
    tab.tab("program-order")
    tiles.wait_for()
    tab.get_by_label("num_warps slider").press("ArrowRight")
    tab.expect("#run-tiles").to_have_count(0)
    tab.expect("#program-order-plot").not_to_contain_text("✗")


GROUPED = (
    "?kernel=matmul.grouped&M=576&N=576&K=288&BLOCK_M=64&BLOCK_N=64&GROUP_SIZE=3&gpu=H200&tab="
)
BUTTONS = ["Zoom", "Pan", "Reset axes", "Save as PNG, at 2×", "Save as SVG"]


def saved(tab, selector):
    """Click a button and return the name and the content of the file that it saves."""
    with tab.expect_download() as download:
        tab.find(selector).first.click()
    return download.value.suggested_filename, Path(download.value.path()).read_bytes()


def test_a_figure_is_saved_with_its_title_its_config_and_its_mark_and_so_is_a_script(tab):
    tab.open(GROUPED + "dram-reads")
    tab.wait_for_draw("dram-reads-plot")
    plot = tab.find("#dram-reads-plot .live-plot")
    plot.hover()
    assert [
        button.get_attribute("data-title") for button in plot.locator(".modebar-btn").all()
    ] == BUTTONS
    title = plot.locator(".gtitle").bounding_box()
    buttons = plot.locator(".modebar").bounding_box()
    assert buttons["y"] > title["y"] + title["height"]
    _, png = saved(tab, "#dram-reads-plot [data-title='Save as PNG, at 2×']")
    width, height = struct.unpack(">II", png[16:24])
    box = plot.bounding_box()
    assert width == pytest.approx(2 * box["width"], abs=4)
    assert height > 2 * 0.9 * box["height"]
    here = urlsplit(tab.url).netloc
    assert {urlsplit(url).netloc for url in tab.requests if url.startswith("http")} == {here}
    tab.follow(GROUPED + "result")
    tab.unfold("#take-it")
    for kind, end, part in (
        ("script", "py", "problem = SimpleNamespace(M=576, N="),
        ("notebook", "ipynb", '"cells"'),
    ):
        name, file = saved(tab, f"#save-{kind}")
        assert name == f"matmul_grouped_576x576x288_float16.{end}"
        assert part in file.decode()
    tab.follow(GROUPED + "program-order")
    assert tab.find("#save-trace").is_hidden(), "this launch has no timeline"
    tab.follow("?kernel=transpose.tiled&M=4096&N=4096&tab=program-order&gpu=H200")
    name, file = saved(tab, "#save-trace")
    assert name == "transpose_tiled_H200_timeline.json"
    assert len(json.loads(file)["traceEvents"]) > 2048


def test_the_steps_of_a_launch_are_saved_as_an_animation(tab):
    """The animation has a frame for each of four programs. The last frame looks like the picture of the last step."""
    tab.open(
        "?kernel=matmul.grouped&M=128&N=128&K=64&BLOCK_M=64&BLOCK_N=64&tab=program-order&step=4"
    )
    tab.says("#player output", "program 4 of 4")
    tab.wait_for_compiled()  # it changes the picture's caption
    tab.find("#program-order-plot .live-plot").hover()
    _, png = saved(tab, "#program-order-plot [data-title='Save as PNG, at 2×']")
    name, gif = saved(tab, "#program-order-plot [data-title='Save as GIF of the steps']")
    assert name == "matmul.grouped.gif"
    animation = Image.open(io.BytesIO(gif))
    assert (animation.n_frames, animation.info["loop"]) == (4, 0)
    frames = []
    durations_ms = []
    for number in range(4):
        animation.seek(number)
        durations_ms.append(animation.info["duration"])
        frames.append(np.asarray(animation.convert("RGB"), dtype=int))
    assert durations_ms == [500, 500, 500, 2000]
    still = Image.open(io.BytesIO(png)).convert("RGB").resize(animation.size)
    difference = np.abs(frames[3] - np.asarray(still, dtype=int)).max(axis=2)
    assert (difference > 64).mean() < 0.01
    assert all((one != other).any() for one, other in pairwise(frames))


def test_a_saved_map_has_its_counters_its_legend_and_the_pages_typeface_and_dark_background(tab):
    tab.open(GROUPED + "program-order&first=9&step=9&__theme=dark")
    tab.says("#program-order-plot .corner >> nth=0", "54")
    tab.find("#program-order-plot .live-plot").hover()
    _, svg = saved(tab, "#program-order-plot [data-title='Save as SVG']")
    text = text_of(svg.decode())
    for part in (
        "54 blocks instead of 90 for the first 9 programs",
        "blocks",
        "new",
        "reused",
        "first 9 programs",
        "matmul.grouped · M 576, N 576, K 288",
        "H200 · predicted",
    ):
        assert part in text, part
    assert b"font/woff2" in svg
    dark = tab.evaluate(
        "getComputedStyle(document.querySelector('gradio-app')).backgroundColor.match(/\\d+/g).map(Number)"
    )
    assert max(dark) < 64
    background = re.search(rb'<rect width="\d+" height="\d+" fill="#(\w{6})"', svg)
    assert background[1].decode() == bytes(dark).hex()
    drawn = tab.evaluate(
        """svg => {
          const frame = new DOMParser().parseFromString(svg, "image/svg+xml").documentElement;
          const { left, top, right, bottom } = document.body.appendChild(frame).getBoundingClientRect();
          const cut = [...frame.querySelectorAll("text")].filter((text) => {
            const box = text.getBoundingClientRect();
            return box.width && (box.left < left || box.top < top || box.right > right || box.bottom > bottom);
          });
          frame.remove();
          return cut.map((text) => text.textContent);
        }""",
        svg.decode(),
    )
    assert drawn == [], "nothing is cut"


def test_a_table_is_saved_as_it_stands(tab):
    """And without a GPU, recorded counts are listed, but nothing can be counted."""
    tab.open("?kernel=matmul.grouped&gpu=H200&tab=requests")
    tab.unfold("#operations-fold")
    table = "#requests-table .scroll"
    tab.wait_for_selector(f"{table} td:text-is('compiled')", state="attached")
    tab.find(table).first.hover()
    name, file = saved(tab, f"{table} .save-csv")
    assert name == "Totals_of_the_launch.csv"
    assert re.search(
        '^"load A",.*,"compiled","16 B","4096","65536",', file.decode("utf-8-sig"), re.MULTILINE
    )
    tab.says("#requests-table", "DRAM traffic, starting with cold caches")
    assert tab.find("#count").is_hidden()


def test_no_button_covers_the_caption_of_a_table_on_a_phone(browser, app):
    context = browser.new_context(
        viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True
    )
    page = context.new_page()
    page.goto(
        f"{app.url}?kernel=matmul.grouped&M=4096&N=4096&K=4096&BLOCK_M=128&BLOCK_N=128&gpu=H200&tab=result"
    )
    page.locator("#result-numbers summary").click()
    page.locator("#result-tables .save-csv").last.wait_for()
    covered = page.evaluate(
        """[...document.querySelectorAll("#result-tables .scroll")].map((frame) => {
          const button = frame.querySelector(".save-csv").getBoundingClientRect(), words = document.createRange();
          words.selectNodeContents(frame.querySelector("caption"));
          return [...words.getClientRects()].some((line) => line.right > button.left && line.bottom > button.top
            && line.top < button.bottom);
        })"""
    )
    context.close()
    assert covered == [False, False]
