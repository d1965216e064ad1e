"""The scoreboard in a real browser: points and rows open their launch, and facets change the picture."""

from __future__ import annotations

import re

import pytest

from tests.page.conftest import Tab

pytestmark = pytest.mark.browser

_HIGHEST = """() => {
  const points = [...document.querySelectorAll("#scoreboard-plot .scatterlayer path.point")];
  const highest = points.map((point) => point.getBoundingClientRect()).sort((a, b) => a.top - b.top)[0];
  return [highest.left + highest.width / 2, highest.top + highest.height / 2];
}"""


def test_points_and_rows_open_their_launch_and_facets_change_the_picture(tab: Tab) -> None:
    tab.open("?kernel=matmul.grouped&tab=scoreboard&score_kernel=transpose.flat&score_gpu=H200")
    tab.wait_for_draw("scoreboard-plot")
    exact, total = re.findall(r"\d+", tab.text("#scoreboard-claim"))[:2]
    assert exact == total
    assert tab.page.locator("#scoreboard-plot .xy .points path.point").count() == int(total)
    tab.page.mouse.move(*tab.page.evaluate(_HIGHEST))
    hover = tab.page.locator("#scoreboard-plot .hovertext")
    hover.wait_for()
    label = re.search(
        r"of transpose\.flat, H200(\d+) × (\d+), .*predicted ([\d,]+), counted ([\d,]+)", hover.text_content() or ""
    )
    assert label is not None
    assert label[3] == label[4]
    tab.page.mouse.click(*tab.page.evaluate(_HIGHEST))
    tab.page.wait_for_function("location.search.includes('tab=coalescing')")
    address = tab.page.evaluate("Object.fromEntries(new URLSearchParams(document.body.dataset.address))")
    assert (address["kernel"], address["gpu"]) == ("transpose.flat", "H200")
    assert (address["M"], address["N"]) == (label[1], label[2])
    tab.page.go_back()
    tab.page.wait_for_function("location.search.includes('score_gpu=H200')")
    tab.page.wait_for_function("document.querySelector('#scoreboard-claim').checkVisibility()")

    before = tab.draws("scoreboard-plot")
    tab.page.get_by_role("link", name="DRAM reads").click()
    tab.wait_for_draw("scoreboard-plot", after=before)
    tab.says("#scoreboard-claim", "median error of DRAM reads")
    assert "score_count=dram_bytes" in tab.page.url
    tab.page.locator("#scoreboard-rows tbody tr").first.get_by_role("link").click()
    tab.page.wait_for_function("location.search.includes('tab=reuse')")
