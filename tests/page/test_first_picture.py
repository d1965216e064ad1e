"""The picture in the page's own reply: there without Gradio and Plotly, where the live one comes, and gone then."""

from __future__ import annotations

from tests.page.conftest import Tab

# Where the still picture's maps lie, and where the live one's do: left, top, right, bottom.
_STILL = """() => {
  const { left, top, right, bottom } = document.querySelector("#first-picture svg").getBoundingClientRect();
  return [left, top, right, bottom];
}"""
_LIVE = """() => {
  const plot = document.querySelector("#schedule-plot .live-plot");
  const { l, t, w, h } = plot._fullLayout._size;
  const { left, top } = plot.getBoundingClientRect();
  return [left + l, top + t, left + l + w, top + t + h];
}"""
NEAR = 12  # px


def test_it_needs_no_script_and_stands_where_the_live_picture_comes(tab: Tab) -> None:
    page = tab.page
    for width, height in ((1280, 720), (1920, 1080)):
        page.set_viewport_size({"width": width, "height": height})
        page.route("**/*.js", lambda route: route.abort())
        page.goto(tab.url)
        assert page.locator("#first-picture path").count() > 80, "one for each tile, at least"
        assert page.locator("#experiment").count() == 0, "Gradio has built nothing"
        still = page.evaluate(_STILL)
        page.unroute("**/*.js")
        page.goto(tab.url)
        tab.wait_for_draw("schedule-plot")
        page.wait_for_selector("#first-picture", state="detached")
        live = page.evaluate(_LIVE)
        assert max(abs(now - then) for now, then in zip(still, live, strict=True)) <= NEAR, (width, still, live)
    tab.errors.clear()  # of the scripts that were kept away
