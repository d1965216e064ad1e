"""One look on every tab: the picture first, text that can be read, and nothing that axe-core finds."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.page import stored_sweep
from tests.page.conftest import Tab

pytestmark = pytest.mark.browser

# One state per tab, with what its picture is drawn from.
TABS = {
    "result": "?kernel=matmul.grouped&tab=result",
    "schedule": "?kernel=matmul.grouped&tab=schedule",
    "reuse": "?kernel=matmul.grouped&tab=reuse&M=4096&N=4096&K=4096",
    "coalescing": "?kernel=transpose.flat&tab=coalescing",
    "compiler": "?kernel=transpose.tiled&tab=compiler",
    "sweep": stored_sweep.QUERY,
    "scoreboard": "?kernel=matmul.grouped&tab=scoreboard",
}
# The share of a 1280 × 720 window that the main picture takes at least.
LEAST_SHARE = 0.4

# Windows, and the smallest type in each, in pixels.
SIZES = ((1280, 720, 14), (1920, 1080, 16.5), (390, 844, 14))

_PICTURE = """() => {
  const picture = document.querySelector(".tabitem:not([hidden]) .picture");
  const { top, bottom, width, height } = picture.getBoundingClientRect();
  return [top, bottom, width * height / (innerWidth * innerHeight)];
}"""

# Gradio's buttons grow to their new size little by little.
_SETTLED = """() => {
  getComputedStyle(document.body).fontSize;
  for (const animation of document.getAnimations()) if (animation instanceof CSSTransition) animation.finish();
}"""

_SMALL = """least => [...document.querySelectorAll("body *")].filter((node) =>
    node.checkVisibility() && [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim())
    && !node.closest("footer, .figure .mark, .js-plotly-plot, .sr-only")
    && parseFloat(getComputedStyle(node).fontSize) < least - 0.1)
  .map((node) => `${node.tagName} ${node.className} ${getComputedStyle(node).fontSize}: ${node.innerText.slice(0, 40)}`)
"""


def wait_for_picture(tab: Tab, name: str) -> None:
    """Wait until a tab is open and its picture drawn."""
    tab.page.wait_for_function(
        """name => [...document.querySelectorAll(`#${name}-tab .picture :is(.js-plotly-plot, .pane)`)].some(
            (node) => node.checkVisibility())""",
        arg=name,
    )


def serious(tab: Tab, name: str, within: str = "html") -> set[tuple[str, str, str]]:
    """Return axe-core's findings above a minor impact: tab, rule and element."""
    found = Axe().run(tab.page, context=within).response["violations"]
    return {
        (name, rule["id"], node["html"][:160]) for rule in found if rule["impact"] != "minor" for node in rule["nodes"]
    }


def test_every_picture_is_whole_in_the_first_screen_and_all_text_can_be_read(tab: Tab) -> None:
    """The picture takes most of the screen. At no size is text small, or the page wider than the window.

    The header and the controls are the same everywhere, so axe-core reads them once.
    """
    tab.open("?__theme=light")
    found = set()
    for place, (name, query) in enumerate(TABS.items()):
        tab.page.set_viewport_size({"width": 1280, "height": 720})
        tab.follow(query)
        wait_for_picture(tab, name)
        top, bottom, share = tab.page.evaluate(_PICTURE)
        assert top >= 0, name
        assert bottom <= 720, name
        assert share >= LEAST_SHARE, name
        found |= serious(tab, name, f"#{name}-tab" if place else "html")
        for width, height, least in SIZES:
            tab.page.set_viewport_size({"width": width, "height": height})
            tab.page.wait_for_function("width => innerWidth === width", arg=width)
            tab.page.evaluate(_SETTLED)
            assert tab.page.evaluate(_SMALL, least) == [], (name, width)
            assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (name, width)
    assert found == set()


@pytest.mark.all_combinations
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_on_any_tab_in_a_tour_or_in_talk_mode(tab: Tab, theme: str) -> None:
    tab.open(f"?__theme={theme}")
    assert tab.page.evaluate("document.body.classList.contains('dark')") == (theme == "dark")
    found = set()
    for name, query in TABS.items():
        tab.follow(query)
        wait_for_picture(tab, name)
        found |= serious(tab, name)
    tab.follow("?tour=why-grouping&stop=2")
    tab.page.wait_for_selector("#tour .next")
    found |= serious(tab, "tour")
    tab.page.keyboard.press("t")
    found |= serious(tab, "talk")
    assert found == set()


@pytest.mark.parametrize(
    "name", ["compiler", *(pytest.param(name, marks=pytest.mark.all_combinations) for name in ("reuse", "coalescing"))]
)
def test_the_picture_does_not_move_when_the_compiler_answers(tab: Tab, name: str) -> None:
    tab.open(TABS[name])
    tab.page.wait_for_selector(".picture:visible")
    before = tab.page.evaluate(_PICTURE)[:2]
    wait_for_picture(tab, name)
    assert tab.page.evaluate(_PICTURE)[:2] == pytest.approx(before, abs=2)
