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


def seen_at_once_and_later(tab: Tab, move: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the picture before and after Plotly has drawn the change that `move` makes."""
    # Once the kernel is compiled, the same picture is drawn again.
    tab.fold("waves")
    tab.page.locator("#schedule-occupancy", has_text="registers per thread").wait_for()
    tab.page.wait_for_timeout(400)  # until it rests
    found = tab.page.evaluate(
        f"""async () => {{
          const plot = document.querySelector('#schedule-plot .live-plot'), seen = {SEEN}, before = plot.dataset.draws;
          const until = async (done) => {{
            for (const end = performance.now() + 40_000; !done();) {{
              const counted = `draws ${{before}} to ${{plot.dataset.draws}}`;
              if (performance.now() > end) throw new Error(`${{done}}: ${{counted}}`);
              await new Promise((go) => setTimeout(go, 1));
            }}
          }};
          const isTold = () => plot._fullData[0].z === plot.data[0].z;
          {move};
          await until(() => plot.dataset.draws !== before);
          const isInPlace = !isTold(), atOnce = await seen();
          await until(isTold);
          return [isInPlace, atOnce, await seen()];
        }}"""
    )
    is_in_place, at_once, later = found
    assert is_in_place, "it was Plotly that drew it"
    return at_once, later


def moved(control: str, value: int) -> str:
    return f"""
      const slider = document.querySelector('#{control}-slider');
      slider.value = {value};
      slider.dispatchEvent(new Event('input', {{ bubbles: true }}))"""


@pytest.mark.parametrize("color", ["order", "group"])
def test_a_moved_slider_shows_at_once_what_plotly_shows_later(tab: Tab, color: str) -> None:
    tab.open(f"{MAP}&color={color}&GROUP_SIZE=4")
    tab.wait_for_draw("schedule-plot")
    before = tab.page.evaluate(SEEN)
    at_once, later = seen_at_once_and_later(tab, moved("experiment-GROUP_SIZE", 5))
    assert len(at_once["maps"]) == 2
    assert max(at_once["maps"][0]) == 255
    assert at_once["maps"] == later["maps"]
    assert at_once["maps"][0] != before["maps"][0], "this order"
    assert at_once["maps"][1] == before["maps"][1], "row-major order"
    assert at_once["words"] == later["words"] != before["words"]
    assert at_once["outlines"] == later["outlines"] != before["outlines"]


@pytest.mark.all_combinations
def test_a_step_of_the_player_shows_at_once_what_plotly_shows_later(tab: Tab) -> None:
    tab.open(f"{MAP}&GROUP_SIZE=4&step=3")
    tab.wait_for_draw("schedule-plot")
    before = tab.page.evaluate(SEEN)
    at_once, later = seen_at_once_and_later(tab, "document.querySelector('.player .forward').click()")
    assert at_once == later
    assert at_once["maps"][0] != before["maps"][0]
