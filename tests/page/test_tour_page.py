"""Tours, talk mode, the embed view, keys and sharing, in a real browser."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import FloatRect, expect

from tests.page.conftest import Tab
from visualize.tours import tours
from visualize.web.redraw import draw_qr

pytestmark = pytest.mark.browser

PROJECTOR = {"width": 1920, "height": 1080}


def at_stop(tab: Tab, number: int, of: int) -> None:
    """Wait until the bar shows a stop with its numbers."""
    tab.page.wait_for_function(
        """place => document.querySelector('.tour .where span')?.innerText === place
            && !document.querySelector('.tour').innerText.includes('…')""",
        arg=f"{number} of {of}",
    )


def box(tab: Tab, selector: str) -> FloatRect:
    bounds = tab.page.locator(selector).bounding_box()
    assert bounds is not None, selector
    return bounds


def bottom(tab: Tab, selector: str) -> float:
    bounds = box(tab, selector)
    return bounds["y"] + bounds["height"]


def is_visible(tab: Tab, selector: str) -> bool:
    return tab.page.locator(selector).first.is_visible()


def shows(tab: Tab, name: str) -> bool:
    return bool(tab.page.evaluate("name => document.body.classList.contains(name)", name))


def test_a_tour_is_walked_with_the_arrow_keys_alone(tab: Tab) -> None:
    tour = tours()["fusing"]
    tab.open("?tour=fusing")
    for number, stop in enumerate(tour.stops, start=1):
        at_stop(tab, number, len(tour.stops))
        tab.page.wait_for_function(
            "k => new URLSearchParams(document.body.dataset.address).get('K') === k", arg=stop.fields.get("K", "512")
        )
        assert shows(tab, "asked") == (stop.ask is not None)
        if stop.ask:
            tab.wait_for_draw("time-plot")
            bars = tab.page.locator("#time-plot .overplot")
            assert not bars.is_visible(), "the bars would answer"
            assert tab.page.locator("#results").evaluate("({ inert }) => inert")
            tab.page.keyboard.press("ArrowRight")
            assert bars.is_visible()
        for fact in (fact for name, fact in stop.facts.items() if f"{{{name}}}" in stop.say):
            tab.says(".tour .said", fact.shown)
        tab.page.keyboard.press("ArrowRight")
    tab.page.wait_for_function("!document.body.classList.contains('touring')")
    assert "tour=" not in tab.page.evaluate("location.search")


def test_a_question_leaves_the_picture_and_the_controls_in_view_and_hides_its_answer_until_next(tab: Tab) -> None:
    tab.open("?tour=why-grouping&stop=2")
    at_stop(tab, 2, 7)
    tab.wait_for_draw("schedule-plot")
    question = tab.page.get_by_role("region", name="Question").bounding_box()
    assert question is not None
    assert question["y"] > box(tab, ".tour")["y"], "in the bar, not over the picture"
    for selector in ("#controls", "#schedule-plot .overplot"):
        assert is_visible(tab, selector), selector
    for answer in ("#schedule-claim .headline", ".corner", "#outcome"):
        assert not is_visible(tab, answer), answer
    tab.page.keyboard.press("a")
    assert tab.text(".choice.right").split() == ["B", "54"]
    assert tab.text(".choice.wrong").split() == ["A", "18"]
    tab.says(".verdict", "No")
    tab.page.keyboard.press("Enter")  # on Next, which has the focus
    tab.says(".tour .said", "54")
    tab.says("#schedule-claim", "54")


def test_back_and_the_menu_lead_through_tours_also_on_a_phone(tab: Tab) -> None:
    tab.open()
    tab.page.locator(".tours summary").click()
    tab.page.get_by_role("link", name="A tail wave").click()
    at_stop(tab, 1, 5)
    assert not is_visible(tab, ".tours[open]")
    tab.page.locator(".tour .next").click()
    at_stop(tab, 2, 5)
    tab.page.go_back()
    at_stop(tab, 1, 5)
    tab.page.set_viewport_size({"width": 390, "height": 844})
    tab.page.locator("#controls").wait_for(state="hidden")
    tab.page.locator(".tour .next").click()
    at_stop(tab, 2, 5)
    assert bottom(tab, ".question") < box(tab, ".tour .go")["y"], "the bar is as high as its content"
    tab.page.keyboard.press("Escape")
    tab.page.wait_for_function("!document.body.classList.contains('touring')")
    tab.page.locator("#run").wait_for()
    assert "M=2432" in tab.page.evaluate("location.search"), "the tour's settings stay"


def test_talk_mode_fills_a_projector_with_the_picture(tab: Tab) -> None:
    tab.page.set_viewport_size(PROJECTOR)
    tab.open("?kernel=matmul.grouped&M=4096&N=4096&K=4096&tab=reuse&gpu=H200")
    tab.wait_for_draw("reuse-plot")
    tab.page.keyboard.press("t")
    tab.page.wait_for_function("location.search.includes('talk=1')")
    for selector in ("#header", "#controls", "#outcome", ".folded"):
        assert not is_visible(tab, selector), selector
    tab.page.wait_for_function(
        "document.querySelector('#reuse-plot .live-plot svg.main-svg').getBoundingClientRect().height > 600"
    )
    picture = box(tab, ".picture:has(#reuse-plot)")
    tab.reads(".on-stage", "matmul.grouped · 4096 × 4096 × 4096 float16 · H200")
    assert picture["width"] * picture["height"] >= 0.6 * 1920 * 1080
    assert picture["y"] + picture["height"] <= 1080
    smallest = tab.page.evaluate("""() => Math.min(...[...document.querySelectorAll('#results *')]
        .filter((n) => n.checkVisibility() && [...n.childNodes].some((c) => c.nodeType === 3 && c.data.trim()))
        .map((n) => parseFloat(getComputedStyle(n).fontSize)))""")
    assert smallest >= 16, "ticks of a logarithmic axis between the powers are Plotly's own, smaller ones"
    assert tab.page.evaluate("parseFloat(getComputedStyle(document.querySelector('.headline .claim')).fontSize)") >= 20
    tab.page.keyboard.press("Escape")
    tab.page.locator("#controls").wait_for()
    assert "talk" not in tab.page.evaluate("location.search")


def test_talk_mode_shows_the_picture_that_a_stop_speaks_of(tab: Tab) -> None:
    tab.page.set_viewport_size(PROJECTOR)
    tab.open("?tour=tail-wave&stop=2&talk=1")
    at_stop(tab, 2, 5)
    tab.page.keyboard.press("c")
    tab.page.keyboard.press("Enter")  # on Next, which has the focus
    tab.wait_for_draw("gantt-plot")
    assert not tab.page.locator("#schedule-picture, #player, #schedule-claim").filter(visible=True).count()
    tab.page.wait_for_function(
        "document.querySelector('#gantt-plot .main-svg').getBoundingClientRect().height > 0.5 * innerHeight"
    )
    assert bottom(tab, "#gantt-plot") <= box(tab, ".tour")["y"] + 1, "the bar covers nothing of it"
    tab.says("#timeline", "On NVIDIA H200, 133 programs ran on 132 SMs")
    tab.page.keyboard.press(" ")
    tab.page.get_by_role("button", name="Pause").wait_for()
    tab.page.keyboard.press(" ")
    tab.open("?kernel=matmul.grouped&tab=schedule&talk=1")
    tab.page.locator("#schedule-picture").wait_for()
    tab.page.locator("#gantt-plot").wait_for(state="hidden")


def test_the_embed_view_has_the_claim_the_picture_and_a_link_and_takes_no_keys(tab: Tab) -> None:
    tab.page.set_viewport_size({"width": 800, "height": 500})
    tab.open("?kernel=matmul.grouped&M=4096&N=4096&K=4096&tab=reuse&gpu=H200&embed=1")
    tab.wait_for_draw("reuse-plot")
    for selector in ("#header", "#controls", ".open-keys", ".pictures"):
        assert not is_visible(tab, selector), selector
    for selector in ("#reuse-claim .headline", "#times-plot"):
        assert is_visible(tab, selector), selector
    link = tab.page.get_by_role("link", name="Open in Tilescope")
    expect(link).to_be_visible()
    assert re.search(r"\?(?!.*embed).*M=4096", link.get_attribute("href") or "")
    assert tab.page.evaluate("document.documentElement.scrollHeight <= window.innerHeight + 1")
    tab.page.keyboard.press("t")
    assert not shows(tab, "talk")
    tab.page.set_viewport_size({"width": 560, "height": 400})
    tab.page.locator("#times-plot").wait_for(state="hidden")
    assert is_visible(tab, "#reuse-plot"), "a narrow frame has room for one picture"


def test_keys_step_play_open_tabs_and_list_themselves_and_leave_fields_alone(tab: Tab) -> None:
    tab.open("?tab=schedule&tour=nowhere&stop=99")
    assert not shows(tab, "touring"), "an unknown tour has no bar"
    tab.page.evaluate("""() => {
        window.heard = [];
        for (const name of ["play", "step"]) document.addEventListener(`tilescope:${name}`,
            (event) => window.heard.push(event.detail ? event.detail.by : name));
    }""")
    for key in ("ArrowRight", "ArrowLeft", " ", "Control+ArrowRight", "Alt+ArrowLeft"):
        tab.page.keyboard.press(key)
    assert tab.page.evaluate("window.heard") == [1, -1, "play"]
    field = tab.page.get_by_label("M", exact=True)
    for key in ("t", "ArrowRight", "2", "?", "q"):
        field.press(key)
    tab.page.get_by_label("GROUP_SIZE slider").press("ArrowRight")
    tab.unfold("#header .more")
    tab.page.get_by_role("button", name="Light / dark").press(" ")
    assert tab.page.evaluate("window.heard") == [1, -1, "play"], "a field and a button keep their keys"
    assert not shows(tab, "talk")
    assert "__theme=" in tab.page.evaluate("location.search"), "Space pressed the button"
    tab.page.evaluate("document.activeElement.blur()")
    tab.page.keyboard.press("3")
    tab.page.wait_for_function("document.querySelector('[role=tab][aria-selected=true]').innerText.trim() === 'Result'")
    tab.page.keyboard.press("?")
    dialog = tab.page.get_by_role("dialog", name="Keys")
    expect(dialog).to_contain_text(re.compile("Space.*talk mode.*QR.*Esc", re.DOTALL))
    tab.page.keyboard.press("t")
    assert not shows(tab, "talk"), "an open dialog has the keys"
    tab.page.keyboard.press("Escape")
    dialog.wait_for(state="hidden")


def test_the_qr_code_is_that_of_the_short_link(tab: Tab) -> None:
    link = "?kernel=transpose.flat&tab=coalescing"
    tab.open("?kernel=transpose.flat&M=1024&N=1024&tab=coalescing")
    tab.page.keyboard.press("q")
    dialog = tab.page.get_by_role("dialog", name="Share this page")
    expect(dialog.get_by_label("Link", exact=True)).to_have_value(tab.url + link)
    tab.page.wait_for_function("link => document.querySelector('.qr').dataset.link === link", arg=tab.url + link)
    path = tab.page.locator(".qr path").last.get_attribute("d")
    codes = [re.findall(r' d="([^"]+)"', draw_qr(tab.url + text))[-1] for text in (link, f"{link}x")]
    assert [path == code for code in codes] == [True, False]
