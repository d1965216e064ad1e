"""A map that is redrawn where it stands, in a real browser: it looks as Plotly draws it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.page.conftest import Tab

pytestmark = pytest.mark.browser

# More tiles than have gaps between them, so that each cell is a pixel; more programs than are resident.
MAP = (
    "?kernel=matmul.grouped&gpu=H200&tab=schedule&M=2560&N=2560&K=512&BLOCK_M=64&BLOCK_N=64&first=132&programs_per_sm=1"
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


def redraw(tab: Tab, change: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the picture before a change, redrawn in place, and redrawn by Plotly."""
    # Once the kernel is compiled, the same picture is drawn again; Plotly follows when the plot rests.
    tab.fold("waves")
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


@pytest.mark.parametrize("color", ["order", pytest.param("group", marks=pytest.mark.all_combinations)])
def test_a_moved_slider_and_a_step_look_in_place_as_plotly_draws_them(tab: Tab, color: str) -> None:
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
    tab.page.locator("#player .forward").click()  # from the whole launch's colours to those of a step
    before, in_place, by_plotly = redraw(tab, "document.querySelector('.player .forward').click()")
    assert in_place == by_plotly
    assert in_place["maps"][0] != before["maps"][0]
