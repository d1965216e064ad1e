"""Tours, talk mode, the embed view, keys and sharing, in a real browser."""

from __future__ import annotations

import json
import re

import pytest

from tests.page.conftest import Tab
from visualize.tours import tours
from visualize.web.dialogs import draw_qr

pytestmark = pytest.mark.browser

TOLD = "!document.querySelector('.tour')?.innerText.includes('…')"


def at_stop(tab: Tab, number: int, of: int) -> None:
    """Wait until the bar shows a stop with its numbers."""
    tab.page.wait_for_function(
        "said => document.querySelector('.tour .where span')?.innerText === said", arg=f"{number} of {of}"
    )
    tab.page.wait_for_function(TOLD, timeout=60_000)


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
    bar = tab.page.locator(".tour").bounding_box()
    question = tab.page.get_by_role("region", name="Question").bounding_box()
    assert bar is not None
    assert question is not None
    assert question["y"] > bar["y"], "in the bar, not over the picture"
    for visible in ("#controls", "#schedule-plot .overplot >> nth=0"):
        assert tab.page.locator(visible).is_visible(), visible
    for answer in ("#schedule-claim .headline", ".corner >> nth=0", "#outcome"):
        assert not tab.page.locator(answer).is_visible(), answer
    tab.page.keyboard.press("a")
    assert tab.text(".choice.right").split() == ["B", "54"]
    assert tab.text(".choice.wrong").split() == ["A", "18"]
    tab.says(".verdict", "No")
    tab.page.keyboard.press("Enter")  # on Next, which has the focus
    tab.says(".tour .said", "54")
    tab.says("#schedule-claim", "54")


def test_back_and_the_menu_lead_through_tours(tab: Tab) -> None:
    tab.open()
    tab.page.locator(".tours summary").click()
    tab.page.get_by_role("link", name="A tail wave").click()
    at_stop(tab, 1, 5)
    assert tab.page.locator(".tours[open]").count() == 0
    tab.page.locator(".tour .next").click()
    at_stop(tab, 2, 5)
    tab.page.go_back()
    at_stop(tab, 1, 5)
    tab.page.keyboard.press("Escape")
    tab.page.wait_for_function("!document.body.classList.contains('touring')")
    assert "M=1536" in tab.page.evaluate("location.search"), "what the tour showed stays"


def test_on_a_phone_the_bar_takes_the_place_of_the_controls(tab: Tab) -> None:
    tab.page.set_viewport_size({"width": 390, "height": 844})
    tab.open("?tour=tail-wave&stop=3")
    at_stop(tab, 3, 5)
    assert not tab.page.locator("#controls").is_visible()
    tab.page.locator(".tour .next").click()
    at_stop(tab, 4, 5)
    tab.page.keyboard.press("Escape")
    tab.page.locator("#run").wait_for(state="visible")


def test_an_unknown_tour_opens_the_page_without_a_bar_and_a_question_mark_lists_the_keys(tab: Tab) -> None:
    tab.open("?tour=nowhere&stop=99")
    tab.page.wait_for_timeout(500)
    assert tab.page.locator(".tour").count() == 0
    assert not shows(tab, "touring")
    a_question_mark_lists_the_keys(tab)


def test_talk_mode_fills_a_projector_with_the_picture(tab: Tab) -> None:
    tab.page.set_viewport_size({"width": 1920, "height": 1080})
    tab.open("?kernel=matmul.grouped&M=4096&N=4096&K=4096&tab=reuse&gpu=H200")
    tab.wait_for_draw("reuse-plot")
    tab.page.keyboard.press("t")
    tab.page.wait_for_function("location.search.includes('talk=1')")
    for hidden in ("#header", "#controls", "#outcome", ".folded >> nth=0"):
        assert not tab.page.locator(hidden).is_visible(), hidden
    tab.page.wait_for_function(
        "document.querySelector('#reuse-plot .live-plot svg.main-svg').getBoundingClientRect().height > 600"
    )
    box = tab.page.locator("#reuse-plot").locator("xpath=ancestor::*[contains(@class, 'picture')]").bounding_box()
    assert box is not None
    assert box["width"] * box["height"] >= 0.6 * 1920 * 1080
    assert box["y"] + box["height"] <= 1080
    smallest = tab.page.evaluate("""() => Math.min(...[...document.querySelectorAll('#results *')]
        .filter((n) => n.checkVisibility() && [...n.childNodes].some((c) => c.nodeType === 3 && c.data.trim()))
        .map((n) => parseFloat(getComputedStyle(n).fontSize)))""")
    assert smallest >= 16, "ticks of a logarithmic axis between the powers are Plotly's own, smaller ones"
    assert tab.page.evaluate("parseFloat(getComputedStyle(document.querySelector('.headline .claim')).fontSize)") >= 20
    tab.page.keyboard.press("Escape")
    tab.page.locator("#controls").wait_for(state="visible")
    assert "talk" not in tab.page.evaluate("location.search")


@pytest.mark.all_combinations
def test_talk_mode_says_what_is_on_show_and_leaves_no_part_of_the_window_empty(tab: Tab) -> None:
    tab.page.set_viewport_size({"width": 1920, "height": 1080})
    for query, plot, lowest in (
        ("kernel=matmul.grouped&tab=schedule", "schedule", "#schedule-plot"),
        ("kernel=transpose.flat&tab=coalescing", "request", "#memory-picture"),
    ):
        tab.open(f"?{query}&gpu=H200&talk=1")
        tab.wait_for_draw(f"{plot}-plot")
        shape = "512 × 512 × 512 float16" if plot == "schedule" else "1024 × 1024 float32"
        tab.reads(".on-stage", f"{query.split('&')[0].removeprefix('kernel=')} · {shape} · H200")
        box = tab.page.locator(lowest).bounding_box()
        assert box is not None
        assert 0.92 * 1080 <= box["y"] + box["height"] <= 1080, plot
    tab.says("#scrubber", "wasted")  # what the colours mean


def test_talk_mode_shows_the_picture_that_a_stop_speaks_of(tab: Tab) -> None:
    tab.page.set_viewport_size({"width": 1920, "height": 1080})
    tab.open("?tour=tail-wave&stop=2&talk=1")
    at_stop(tab, 2, 5)
    tab.page.keyboard.press("c")
    tab.page.keyboard.press("Enter")  # on Next, which has the focus
    tab.wait_for_draw("gantt-plot")
    assert not tab.page.locator("#schedule-picture, #player, #schedule-claim").filter(visible=True).count()
    tab.page.wait_for_function(
        "document.querySelector('#gantt-plot .main-svg').getBoundingClientRect().height > 0.5 * innerHeight"
    )
    box, bar = tab.page.locator("#gantt-plot").bounding_box(), tab.page.locator(".tour").bounding_box()
    assert box is not None
    assert bar is not None
    assert box["y"] + box["height"] <= bar["y"] + 1, "the bar covers nothing of it"
    tab.says("#timeline", "On NVIDIA H200, 133 programs ran on 132 SMs")
    tab.page.keyboard.press(" ")
    tab.page.get_by_role("button", name="Pause").wait_for()
    tab.page.keyboard.press(" ")
    tab.open("?kernel=matmul.grouped&tab=schedule&talk=1")
    tab.page.locator("#schedule-picture").wait_for(state="visible")
    tab.page.locator("#gantt-plot").wait_for(state="hidden")


def test_the_embed_view_holds_the_claim_the_picture_and_a_link(tab: Tab) -> None:
    tab.page.set_viewport_size({"width": 800, "height": 500})
    query = "?kernel=matmul.grouped&M=4096&N=4096&K=4096&tab=reuse&gpu=H200"
    tab.open(f"{query}&embed=1")
    tab.wait_for_draw("reuse-plot")
    assert tab.page.locator("#reuse-claim .headline").is_visible()
    for hidden in ("#header", "#controls", ".open-keys", ".pictures"):
        assert not tab.page.locator(hidden).first.is_visible(), hidden
    link = tab.page.get_by_role("link", name="Open in Tilescope")
    assert link.is_visible()
    href = link.get_attribute("href")
    assert href is not None
    assert "embed" not in href
    assert "M=4096" in href
    assert tab.page.evaluate("document.documentElement.scrollHeight <= window.innerHeight + 1")
    tab.page.keyboard.press("t")
    assert not shows(tab, "talk"), "a frame in a slide takes no keys"
    assert tab.page.locator("#times-plot").is_visible()
    tab.page.set_viewport_size({"width": 560, "height": 400})
    tab.page.locator("#times-plot").wait_for(state="hidden")
    assert tab.page.locator("#reuse-plot").is_visible(), "a narrow frame has room for one picture"


def test_keys_step_and_play_and_open_tabs_and_leave_fields_alone(tab: Tab) -> None:
    tab.open("?tab=schedule")
    tab.page.evaluate("""() => {
        window.heard = [];
        for (const name of ["play", "step"]) document.addEventListener(`tilescope:${name}`,
            (event) => window.heard.push(event.detail ? event.detail.by : name));
    }""")
    for key in ("ArrowRight", "ArrowLeft", " ", "Control+ArrowRight", "Alt+ArrowLeft"):
        tab.page.keyboard.press(key)
    assert tab.page.evaluate("window.heard") == [1, -1, "play"]
    field = tab.page.get_by_label("M", exact=True)
    field.focus()
    for key in ("t", "ArrowRight", "2", "?", "q"):
        field.press(key)
    tab.page.get_by_label("GROUP_SIZE slider").press("ArrowRight")
    tab.unfold("#header .more")
    button = tab.page.get_by_role("button", name="Light / dark")
    button.press(" ")
    assert tab.page.evaluate("window.heard") == [1, -1, "play"], "a field and a button keep their keys"
    assert not shows(tab, "talk")
    assert "__theme=" in tab.page.evaluate("location.search"), "Space pressed the button"
    tab.page.evaluate("document.activeElement.blur()")
    tab.page.keyboard.press("3")
    tab.page.wait_for_function("document.querySelector('[role=tab][aria-selected=true]').innerText.trim() === 'Result'")


def a_question_mark_lists_the_keys(tab: Tab) -> None:
    tab.page.keyboard.press("?")
    listed = tab.page.get_by_role("dialog", name="Keys")
    listed.wait_for(state="visible")
    for key in ("Space", "Esc", "talk mode", "QR"):
        assert key in listed.inner_text()
    tab.page.keyboard.press("t")
    assert not shows(tab, "talk"), "an open dialog has the keys"
    tab.page.keyboard.press("Escape")
    listed.wait_for(state="hidden")


@pytest.mark.parametrize(
    ("query", "link"),
    [
        ("?kernel=transpose.flat&M=1024&N=1024&tab=coalescing", "?kernel=transpose.flat&tab=coalescing"),
        pytest.param("?tour=tail-wave&stop=2", "?tour=tail-wave&stop=2", marks=pytest.mark.all_combinations),
    ],
)
def test_the_qr_code_is_that_of_the_short_link(tab: Tab, query: str, link: str) -> None:
    tab.open(query)
    if "tour" in query:
        at_stop(tab, 2, 5)
        tab.page.wait_for_function("document.body.dataset.link.includes('tour=')")
    tab.page.keyboard.press("q")
    dialog = tab.page.get_by_role("dialog", name="Share this page")
    dialog.wait_for(state="visible")
    shared = dialog.get_by_label("Link", exact=True).input_value()
    assert shared == tab.url + link
    tab.page.wait_for_function("link => document.querySelector('.qr').dataset.link === link", arg=shared)
    drawn = tab.page.locator(".qr path").last.get_attribute("d")
    expected = re.findall(r' d="([^"]+)"', draw_qr(shared))
    assert drawn == expected[-1]
    assert json.dumps(drawn) != json.dumps(re.findall(r' d="([^"]+)"', draw_qr(shared + "x"))[-1])
