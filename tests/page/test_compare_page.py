"""Pin, and the gallery, in a real browser: the twin shows the old numbers, a link reopens both, recordings open."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.page.conftest import Tab

pytestmark = pytest.mark.browser

NINE = "?kernel=matmul.grouped&M=576&N=576&K=288&BLOCK_M=64&BLOCK_N=64&BLOCK_K=32&GROUP_SIZE=1"
_TWIN = "document.querySelector('#{} .twin-plot .main-svg')"


def test_what_is_pinned_stays_beside_what_is_set_until_it_is_unpinned(tab: Tab) -> None:
    tab.open(NINE)
    tab.wait_for_draw("schedule-plot")
    assert tab.page.locator(".twin-plot, .pinned").count() == 0
    claim = tab.text("#schedule-claim")
    tab.page.get_by_role("link", name="Pin", exact=True).click()
    tab.page.wait_for_function(_TWIN.format("schedule-plot"))
    tab.says("#compare", "Nothing differs yet")
    tab.page.get_by_label("GROUP_SIZE", exact=True).fill("3")
    tab.says("#compare", "GROUP_SIZE 1 → 3")
    tab.says("#schedule-plot", "GROUP_SIZE 3")
    assert tab.page.locator("#compare").bounding_box()["height"] < 60  # type: ignore[index]
    tab.page.locator("#compare summary").click()
    expect(tab.page.locator("#compare tbody tr:first-child > *")).to_contain_text(["GROUP_SIZE", "3", "1"])
    expect(tab.page.locator("#compare tbody tr:nth-child(2)")).to_contain_text(re.compile("×|same"))
    tab.says("#schedule-claim .pinned", claim.split("\n")[0])  # the sentence that was there
    assert tab.page.evaluate("new URLSearchParams(location.search).get('with')").endswith("GROUP_SIZE=1")

    address = tab.page.evaluate("location.search")
    tab.open(address)
    tab.page.wait_for_function(_TWIN.format("schedule-plot"))
    expect(tab.page.locator("#compare tbody tr:first-child > *")).to_contain_text(["GROUP_SIZE", "3", "1"])

    tab.page.get_by_role("link", name="Unpin").click()
    tab.page.wait_for_function("!document.querySelector('.twins, .pinned')")
    assert "with=" not in tab.page.evaluate("location.search")
    assert tab.page.get_by_label("GROUP_SIZE", exact=True).input_value() == "3"


@pytest.mark.all_combinations
def test_what_is_pinned_steps_along_with_the_player(tab: Tab) -> None:
    three = NINE.replace("GROUP_SIZE=1", "GROUP_SIZE=3")
    tab.open(
        f"{three}&first=9&with=kernel%3Dmatmul.grouped%26M%3D576%26N%3D576%26K%3D288%26BLOCK_N%3D64%26GROUP_SIZE%3D1"
    )
    tab.page.wait_for_function(_TWIN.format("schedule-plot"))
    tab.wait_for_draw("schedule-plot")
    counts = "[...document.querySelectorAll('#schedule-plot .corner .count b')].map((node) => node.innerText).join()"
    new_cells = """plot => document.querySelector(`#schedule-plot ${plot}`).data.map(({ z }) =>
        z.flatMap((row) => [...row]).filter((value) => value === 3).length)"""
    for step, loaded in ((1, "18,18,18,18"), (2, "27,27,27,27"), (4, "45,45,45,45"), (9, "54,90,90,90")):
        while int(tab.page.locator(".player").first.get_attribute("data-step") or 0) < step:
            tab.page.get_by_role("button", name="One step on").click()
        tab.page.wait_for_function(f"{counts} === '{loaded}'")
        own, pinned = (tab.page.evaluate(new_cells, plot) for plot in (".live-plot", ".twin-plot"))
        assert own[1] == pinned[0] == pinned[1], "GROUP_SIZE 1 is row-major order"
        assert own[0] > 0
    spoken = str(tab.page.get_by_role("slider", name="Step", exact=True).get_attribute("aria-valuetext"))
    assert [part.startswith("Pinned: ") for part in spoken.split("; ")] == [False, False, False, True, True]


@pytest.mark.all_combinations
def test_a_pair_of_plots_has_one_width_and_one_range_for_each_quantity_and_follows_the_theme(tab: Tab) -> None:
    """The two sizes read different amounts of bytes: with separate ranges, both curves would look alike."""
    tab.open("?kernel=matmul.grouped&M=4096&N=4096&K=4096&tab=reuse&with=kernel%3Dmatmul.grouped%26M%3D2048%26N%3D2048")
    tab.page.wait_for_function(_TWIN.format("reuse-plot"))
    tab.wait_for_draw("reuse-plot")
    left, right = (tab.page.locator(f"#reuse-plot {plot}").bounding_box() for plot in (".live-plot", ".twin-plot"))
    assert left is not None
    assert right is not None
    assert right["x"] >= left["x"] + left["width"]
    assert right["width"] == pytest.approx(left["width"], abs=20)
    ranges = """[".live-plot", ".twin-plot"].map((plot) => {
      const { xaxis, yaxis } = document.querySelector(`#reuse-plot ${plot}`)._fullLayout;
      return JSON.stringify([xaxis.range, yaxis.range]);
    })"""
    has_one_range = f"before => (([own, pinned]) => own === pinned && own !== before)({ranges})"
    tab.page.wait_for_function(has_one_range)
    before = tab.page.evaluate(ranges)[0]
    tab.page.get_by_label("K slider", exact=True).press("ArrowRight")
    tab.page.wait_for_function(has_one_range, arg=before)
    colors = """[".live-plot", ".twin-plot"].map((plot) =>
        getComputedStyle(document.querySelector(`#reuse-plot ${plot} .xtick text`)).fill)"""
    light = tab.page.evaluate(colors)
    tab.unfold("#header .more")
    tab.page.get_by_role("button", name="Light / dark").click()
    tab.page.wait_for_function(f"light => {colors}.every((color) => !light.includes(color))", arg=light)


def test_a_recording_is_two_clicks_away_and_a_page_of_recordings_is_sent_in_150_kilobytes(tab: Tab) -> None:
    tab.open("?kernel=matmul.grouped")
    tab.tab("recorded")
    first = tab.page.locator(".recordings tbody tr").first
    first.wait_for()
    sizes = tab.answers()
    tab.page.get_by_role("link", name="Next").click()
    tab.says(".pager", "41–80")
    tab.page.get_by_role("progressbar", name="Waiting for a reply").wait_for(state="hidden")
    assert 0 < max(sizes) <= 150_000
    tab.page.get_by_role("link", name="Timelines").click()
    tab.page.wait_for_function("document.querySelectorAll('.recordings tbody tr').length < 40")
    expect(first).to_contain_text("programs in")
    first.get_by_role("link").click()
    tab.wait_for_draw("gantt-plot")
    tab.says("#timeline", "recorded")
    tab.page.go_back()
    tab.page.wait_for_function("location.search.includes('recorded_kind=timeline')")
    first.wait_for()
