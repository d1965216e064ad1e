"""The scoreboard in a real browser: a point says what it is, a click on it opens its launch, and Back returns."""

from __future__ import annotations

import re

import pytest

from tests.page.conftest import Tab

pytestmark = pytest.mark.browser

_HIGHEST = """() => {
  const points = [...document.querySelectorAll("#scoreboard-plot .scatterlayer path.point")];
  const highest = points.map((one) => one.getBoundingClientRect()).sort((a, b) => a.top - b.top)[0];
  return [highest.left + highest.width / 2, highest.top + highest.height / 2];
}"""


def test_a_point_names_its_launch_and_a_click_opens_it(tab: Tab) -> None:
    tab.open("?kernel=matmul.grouped&tab=scoreboard&score_kernel=transpose.flat&score_gpu=H200")
    tab.wait_for_draw("scoreboard-plot")
    exact, of = re.findall(r"\d+", tab.text("#scoreboard-claim"))[:2]
    assert exact == of
    assert tab.page.locator("#scoreboard-plot .xy .points path.point").count() == int(of)
    tab.page.mouse.move(*tab.page.evaluate(_HIGHEST))
    hover = tab.page.locator("#scoreboard-plot .hovertext")
    hover.wait_for()
    said = hover.text_content() or ""
    assert "of transpose.flat, H200" in said
    numbers = re.search(r"predicted ([\d,]+), counted ([\d,]+)", said)
    assert numbers is not None
    assert numbers[1] == numbers[2]
    size = re.search(r"H200(\d+) × (\d+), ", said)
    assert size is not None
    tab.page.mouse.click(*tab.page.evaluate(_HIGHEST))
    tab.page.wait_for_function("location.search.includes('tab=coalescing')")
    address = tab.page.evaluate("Object.fromEntries(new URLSearchParams(document.body.dataset.address))")
    assert (address["kernel"], address["gpu"]) == ("transpose.flat", "H200")
    assert (address["M"], address["N"]) == size.groups()
    tab.page.go_back()
    tab.page.wait_for_function("location.search.includes('score_gpu=H200')")
    tab.page.wait_for_function("document.querySelector('#scoreboard-claim').checkVisibility()")


@pytest.mark.all_combinations
def test_the_facets_change_the_picture_and_the_address(tab: Tab) -> None:
    tab.open("?kernel=matmul.grouped&tab=scoreboard")
    tab.wait_for_draw("scoreboard-plot")
    before = tab.draws("scoreboard-plot")
    sizes = tab.answers()
    tab.page.get_by_role("link", name="DRAM reads").click()
    tab.wait_for_draw("scoreboard-plot", after=before)
    tab.says("#scoreboard-claim", "median error of DRAM reads")
    assert tab.page.evaluate("new URLSearchParams(location.search).get('score_count')") == "dram_bytes"
    tab.page.locator("#scoreboard-rows tbody tr").first.get_by_role("link").click()
    tab.page.wait_for_function("location.search.includes('tab=reuse')")
    assert 0 < max(sizes) <= 150_000
