"""The whole window in a real browser: Pin, tours, talk mode, the embed view, keys, sharing, and how each tab looks."""

import re
from urllib.parse import quote

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Error, expect

from tests.visualize.page import stored_sweep
from visualize.tours import tours
from visualize.web.actions import draw_qr

pytestmark = pytest.mark.browser

NINE = "?kernel=matmul.grouped&M=576&N=576&K=288&BLOCK_M=64&BLOCK_N=64&BLOCK_K=32&GROUP_SIZE=1"
_TWIN = "document.querySelector('#{} .pinned-plot .main-svg')"


def test_what_is_pinned_stays_beside_what_is_set_until_it_is_unpinned(tab):
    tab.open(NINE)
    tab.wait_for_draw("program-order-plot")
    assert tab.find(".pinned-plot, .pinned").count() == 0
    tab.press("Pin", "link", exact=True)
    tab.wait_for_function(_TWIN.format("program-order-plot"))
    tab.field("GROUP_SIZE").fill("3")
    tab.says("#compare", "GROUP_SIZE 1 → 3")
    tab.says("#program-order-plot", "GROUP_SIZE 3")
    assert tab.find("#compare").bounding_box()["height"] < 60
    tab.click("#compare summary")
    row = tab.find("#compare tbody tr:first-child > *")
    expect(row).to_contain_text(["GROUP_SIZE", "3", "1"])

    tab.open(tab.query())
    tab.wait_for_function(_TWIN.format("program-order-plot"))
    expect(row).to_contain_text(["GROUP_SIZE", "3", "1"])
    scrub = tab.get_by_role("slider", name="Step", exact=True)
    scrub.fill("9")  # the pinned picture steps along
    corners = tab.find("#program-order-plot .corner .count b")
    expect(corners).to_have_text(["54", "90", "90", "90"])
    assert str(scrub.get_attribute("aria-valuetext")).count("; Pinned: ") == 2
    tab.press("Unpin", "link")
    tab.wait_for_function("!document.querySelector('.paired, .pinned')")
    assert "with=" not in tab.query()
    assert tab.field("GROUP_SIZE").input_value() == "3"


def test_a_pinned_run_has_legible_labels_and_keeps_its_colours_beside_a_config_without_a_run(tab):
    recorded = "kernel=matmul.grouped&M={0}&N={0}&K=4096&BLOCK_M=128&BLOCK_N=256&BLOCK_K=64&GROUP_SIZE=8&num_warps=8"
    pinned = quote(f"{recorded.format(16384)}&gpu=H100")
    tab.open(f"?{recorded.format(4096)}&gpu=H100&tab=result&with={pinned}")
    tab.wait_for_selector("#time-plot .pinned-plot .textpoint text")
    labels = tab.evaluate(
        """[...document.querySelectorAll("#time-plot .textpoint text")].map((text) => {
          const { width, height, right } = text.getBoundingClientRect();
          return [parseFloat(getComputedStyle(text).fontSize), width > height, right <= innerWidth, text.textContent];
        })"""
    )
    assert len(labels) == 4
    assert [label for label in labels if not (label[0] >= 11 and label[1] and label[2])] == []
    tab.field("GROUP_SIZE").fill("3")
    tab.says("#result .own", "No result for this config.")
    is_stale = "node => Boolean(node.closest('.stale') ?? node.querySelector('.stale'))"
    assert not tab.find("#time-plot").evaluate(is_stale)
    tab.says("#predicted-time .pinned", "bound by")  # both launches are compiled
    tab.wait_for_draw("predicted-plot")
    assert not tab.find("#predicted-plot").evaluate(is_stale), "it follows the controls"


# In a frame of another site, browsers may refuse all storage: private windows, Safari and Brave do.
_REFUSE_STORAGE = """
if (window !== top) for (const name of ["localStorage", "sessionStorage", "indexedDB"]) {
  Object.defineProperty(window, name, { get() { throw new DOMException(`${name} is denied.`, "SecurityError"); } });
}
"""


def test_a_frame_of_another_site_without_storage_draws_and_runs(tab):
    tab.add_init_script(_REFUSE_STORAGE)
    tab.goto(tab.url.replace("127.0.0.1", "localhost") + "theme.css")
    address = f"{tab.url}?kernel=transpose.tiled&M=64&N=64"
    tab.evaluate(
        "src => document.body.replaceChildren(Object.assign(document.createElement('iframe'), "
        "{ src, width: 1200, height: 700 }))",
        address,
    )
    frame = tab.frame_locator("iframe")
    expect(frame.locator("#program-order-plot .main-svg").first).to_be_visible()
    (inner,) = tab.main_frame.child_frames
    inner.wait_for_function("location.search.includes('kernel=')")
    with pytest.raises(Error, match="localStorage is denied"):
        inner.evaluate("localStorage.length")
    frame.locator("#run").click()
    expect(frame.locator("#card .result-card")).to_contain_text("0 wrong")
    frame.locator("#program-order-plot .touch").press("ArrowRight")
    expect(frame.locator(".tile-tip")).to_contain_text("computes this tile")
    frame.locator("#header .more summary").click()
    frame.get_by_role("button", name="Share: link and QR code").click()
    frame.locator("#share .copy >> nth=0").click()
    expect(frame.locator(".message")).to_contain_text("refused access to the clipboard")
    refusal = "The Clipboard API has been blocked"  # the browser's own message
    tab.errors[:] = [error for error in tab.errors if refusal not in error]


def test_a_menu_closes_on_escape_on_a_click_elsewhere_and_after_a_choice(tab):
    tab.open(
        "?kernel=matmul.grouped&M=16384&N=16384&K=4096&BLOCK_M=128&BLOCK_N=256&BLOCK_K=64&GROUP_SIZE=8&num_warps=8"
    )
    tab.wait_for_compiled()  # it replaces the headline, whose menu would lose the focus
    for summary, choice in (
        ("#header .more > summary", ".more .theme-switch"),
        (".presets > summary", ".presets button >> nth=0"),
        ("#program-order-headline summary", "#program-order-headline details a >> nth=0"),
        (".tours > summary", ".tours a >> nth=0"),
    ):
        opener, menu = tab.find(summary), tab.find(f"{summary} >> xpath=..")
        opener.click()
        expect(menu).to_have_attribute("open", "")
        tab.key("Escape")
        expect(menu).not_to_have_attribute("open", "")
        expect(opener).to_be_focused()
        opener.click()
        tab.click("#title h1")
        expect(menu).not_to_have_attribute("open", "")
        opener.click()
        tab.click(choice)
        expect(menu).not_to_have_attribute("open", "")


def test_descriptions_and_messages_close_on_escape(tab):
    tab.open("?kernel=matmul.grouped&tab=nowhere&with=nothing")
    message = tab.find("#elsewhere")
    expect(message).to_contain_text("There is no picture 'nowhere'.")
    tab.unfold("#experiment .more")
    tab.get_by_text("num_stages").hover()
    description = tab.find("#help-num_stages")
    expect(description).to_be_in_viewport(ratio=1)
    knob, box = tab.field("num_stages").bounding_box(), description.bounding_box()
    assert box["x"] >= knob["x"] + knob["width"], "beside the knobs"
    tab.key("Escape")
    expect(message).to_be_empty()
    tab.key("Escape")
    expect(description).to_be_hidden()


def test_a_chosen_theme_is_remembered_but_an_address_decides(tab):
    tab.open()
    tab.unfold("#header .more")
    tab.press("Light / dark")
    for query, is_dark in (("", True), ("?__theme=light", False), ("?kernel=transpose.flat", True)):
        tab.open(query)
        assert shows(tab, "dark") == is_dark, query


def test_a_term_opens_the_glossary_at_its_definition(tab):
    tab.open("?kernel=transpose.flat&tab=requests")
    tab.get_by_role("button", name="sectors", exact=True).first.click()
    term = tab.find("#glossary dt", has_text=re.compile("^sector$"))
    expect(term).to_be_in_viewport()
    tab.key("Escape")
    expect(term).not_to_be_visible()


def at_stop(tab, number, of):
    """Wait until the bar shows a stop with its numbers."""
    tab.wait_for_function(
        """place => document.querySelector('.tour .where span')?.innerText === place
            && !document.querySelector('.tour').innerText.includes('…')""",
        arg=f"{number} of {of}",
    )


def edges(tab, selector):
    """Return the top and the bottom of an element."""
    box = tab.find(selector).bounding_box()
    return box["y"], box["y"] + box["height"]


def is_visible(tab, selector):
    return tab.find(selector).first.is_visible()


def shows(tab, name):
    return bool(tab.evaluate("name => document.body.classList.contains(name)", name))


def test_a_tour_is_walked_with_the_arrow_keys_alone(tab):
    tour = tours()["fusing"]
    tab.open("?tour=fusing")
    for number, stop in enumerate(tour.stops, start=1):
        at_stop(tab, number, len(tour.stops))
        tab.wait_for_function(
            "k => new URLSearchParams(document.body.dataset.address).get('K') === k",
            arg=stop.fields.get("K", "512"),
        )
        assert shows(tab, "asked") == (stop.ask is not None)
        if stop.ask:
            tab.wait_for_draw("time-plot")
            bars = tab.find("#time-plot .overplot")
            assert not bars.is_visible(), "the bars would answer"
            assert tab.find("#results").evaluate("({ inert }) => inert")
            tab.key("ArrowRight")
            assert bars.is_visible()
        tab.says(".tour .said", stop.say.replace("**", ""))
        tab.key("ArrowRight")
    tab.wait_for_function("!document.body.classList.contains('touring')")
    assert "tour=" not in tab.query()


def test_a_question_leaves_the_picture_and_the_controls_in_view_and_hides_what_would_answer_it(
    tab,
):
    tab.open("?tour=why-grouping&stop=2")
    at_stop(tab, 2, 7)
    tab.wait_for_draw("program-order-plot")
    question = "role=region[name=Question]"
    assert edges(tab, question)[0] > edges(tab, ".tour")[0], "in the bar, not over the picture"
    for selector in ("#controls", "#program-order-plot .overplot"):
        assert is_visible(tab, selector), selector
    for answer in ("#program-order-headline .headline", ".corner", "#outcome"):
        assert not is_visible(tab, answer), answer
    tab.key("a")
    assert tab.text("[aria-pressed][data-right=yes]").split() == ["b", "54"]
    assert tab.text("[aria-pressed=true][data-right=no]").split() == ["a", "18"]
    tab.says(".verdict", "No")
    assert is_visible(tab, "#program-order-headline .headline"), "the reader has answered"
    tab.key("Enter")  # on Next, which has the focus
    tab.says(".tour .said", "54")
    tab.says("#program-order-headline", "54")


def test_back_and_the_menu_lead_through_tours_also_on_a_phone(tab):
    tab.open()
    tab.click(".tours summary")
    tab.press("A tail wave", "link")
    at_stop(tab, 1, 6)
    assert not is_visible(tab, ".tours[open]")
    tab.click(".tour .next")
    at_stop(tab, 2, 6)
    tab.go_back()
    at_stop(tab, 1, 6)
    tab.resize(390, 844)
    tab.find("#controls").wait_for(state="hidden")
    tab.click(".tour .next")
    at_stop(tab, 2, 6)
    tab.find(".question").wait_for()
    assert edges(tab, ".question")[1] < edges(tab, ".tour .go")[0], (
        "the bar is as high as its content"
    )
    tab.key("Escape")
    tab.wait_for_function("!document.body.classList.contains('touring')")
    tab.find("#run").wait_for()
    assert "M=2432" in tab.query(), "the tour's settings stay"
    tab.press("Controls", exact=True)
    tab.find("#controls").wait_for()
    tab.key("Escape")
    tab.find("#controls").wait_for(state="hidden")


def test_talk_mode_fills_a_projector_with_the_picture(tab):
    tab.resize(1920, 1080)
    tab.open("?kernel=matmul.grouped&M=4096&N=4096&K=4096&tab=dram-reads&gpu=H200")
    tab.wait_for_draw("dram-reads-plot")
    tab.key("t")
    tab.at("talk=1")
    for selector in ("#header", "#controls", "#outcome", ".folded"):
        assert not is_visible(tab, selector), selector
    tab.wait_for_function(
        "document.querySelector('#dram-reads-plot .live-plot svg.main-svg').getBoundingClientRect().height > 600"
    )
    picture = tab.find(".picture:has(#dram-reads-plot)").bounding_box()
    assert picture["width"] * picture["height"] >= 0.6 * 1920 * 1080
    assert picture["y"] + picture["height"] <= 1080
    tab.reads(".on-stage", "matmul.grouped · 4096 × 4096 × 4096 float16 · H200")
    sizes = tab.evaluate("""() => ["#results :not(.modebar *)", ".headline .lead"].map((selector) => Math.min(
        ...[...document.querySelectorAll(selector)]
        .filter((n) => n.checkVisibility() && [...n.childNodes].some((c) => c.nodeType === 3 && c.data.trim()))
        .map((n) => parseFloat(getComputedStyle(n).fontSize))))""")
    assert sizes[0] >= 16, (
        "ticks of a logarithmic axis between the powers are Plotly's own, smaller ones"
    )
    assert sizes[1] >= 20
    tab.key("Escape")
    tab.find("#controls").wait_for()
    assert "talk" not in tab.query()
    tab.open(
        "?talk=1&kernel=matmul.grouped&GROUP_SIZE=3&with=kernel%3Dmatmul.grouped%26GROUP_SIZE%3D1"
    )
    tab.says("#compare", "GROUP_SIZE 1 → 3")
    assert is_visible(tab, "#compare p"), "the differences from a pinned experiment"
    assert not is_visible(tab, "#compare .ways")


def test_talk_mode_shows_the_picture_that_a_stop_speaks_of(tab):
    tab.resize(1920, 1080)
    tab.open("?tour=tail-wave&stop=2&talk=1")
    at_stop(tab, 2, 6)
    tab.key("c")
    tab.key("Enter")  # on Next, which has the focus
    tab.wait_for_draw("gantt-plot")
    assert (
        not tab.find("#program-order-picture, #player, #program-order-headline")
        .filter(visible=True)
        .count()
    )
    tab.wait_for_function(
        "document.querySelector('#gantt-plot .main-svg').getBoundingClientRect().height > 0.5 * innerHeight"
    )
    assert edges(tab, "#gantt-plot")[1] <= edges(tab, ".tour")[0] + 1, (
        "the bar covers nothing of it"
    )
    tab.says("#timeline", "On NVIDIA H200, 133 programs ran on 132 SMs")
    tab.key("t")  # without talk mode, too, above the other picture
    tab.resize(1280, 720)
    tab.find("#program-order-plot").wait_for()
    top, bottom = edges(tab, "#gantt-plot")
    assert 0 < top < bottom <= min(edges(tab, ".tour")[0], edges(tab, "#program-order-plot")[0]) + 1
    assert not is_visible(tab, "#program-order-headline"), "it speaks of another picture"
    tab.open("?kernel=matmul.grouped&tab=program-order&talk=1")
    tab.find("#program-order-picture").wait_for()
    tab.find("#gantt-plot").wait_for(state="hidden")


def test_the_embed_view_has_the_headline_the_picture_and_a_link_and_takes_no_keys(tab):
    tab.resize(800, 500)
    tab.open("?kernel=matmul.grouped&M=4096&N=4096&K=4096&tab=dram-reads&gpu=H200&embed=1")
    tab.wait_for_draw("dram-reads-plot")
    hidden, shown = (
        ("#header", "#controls", ".open-keys", ".pictures"),
        ("#dram-reads-headline .headline", "#times-plot"),
    )
    assert [is_visible(tab, selector) for selector in (*hidden, *shown)] == [False] * 4 + [True] * 2
    link = tab.get_by_role("link", name="Open in Tilescope")
    expect(link).to_have_attribute("href", re.compile(r"\?(?!.*embed).*M=4096"))
    expect(link).to_be_visible()
    assert tab.evaluate("document.documentElement.scrollHeight <= window.innerHeight + 1")
    tab.key("t")
    assert not shows(tab, "talk")
    tab.resize(560, 400)
    tab.find("#times-plot").wait_for(state="hidden")
    assert is_visible(tab, "#dram-reads-plot"), "a narrow frame has room for one picture"


def test_keys_step_play_open_tabs_and_list_themselves_and_leave_fields_alone(tab):
    tab.open("?tab=program-order&tour=nowhere&stop=99")
    assert not shows(tab, "touring"), "an unknown tour has no bar"
    assert tab.get_by_text("There is no tour 'nowhere'.").count() == 1
    tab.evaluate("""() => {
        window.heard = [];
        for (const name of ["back", "forward", "play"])
            document.querySelector(`.player .${name}`).addEventListener("click", () => window.heard.push(name));
    }""")
    for key in ("ArrowRight", "ArrowLeft", " ", "Control+ArrowRight", "Alt+ArrowLeft"):
        tab.key(key)
    assert tab.evaluate("window.heard") == ["forward", "back", "play"]
    field = tab.field("M")
    for key in ("t", "ArrowRight", "2", "?", "q"):
        field.press(key)
    tab.get_by_label("GROUP_SIZE slider").press("ArrowRight")
    tab.unfold("#header .more")
    tab.get_by_role("button", name="Light / dark").press(" ")
    assert tab.evaluate("window.heard") == ["forward", "back", "play"], (
        "a field and a button keep their keys"
    )
    assert not shows(tab, "talk")
    assert "__theme=" in tab.query(), "Space pressed the button"
    tab.evaluate("document.activeElement.blur()")
    tab.key("4")
    tab.wait_for_function(
        "document.querySelector('#tab [aria-current]').innerText.trim() === 'Result'"
    )
    tab.key("?")
    dialog = tab.get_by_role("dialog", name="Keys")
    expect(dialog).to_contain_text(re.compile("Space.*talk mode.*QR.*Esc", re.DOTALL))
    tab.key("t")
    assert not shows(tab, "talk"), "an open dialog has the keys"
    tab.key("Escape")
    dialog.wait_for(state="hidden")


def test_the_qr_code_is_that_of_the_short_link(tab):
    link = "?kernel=transpose.flat&tab=requests"
    tab.open("?kernel=transpose.flat&M=1024&N=1024&tab=requests")
    tab.key("q")
    dialog = tab.get_by_role("dialog", name="Share this page")
    expect(dialog.get_by_label("Link", exact=True)).to_have_value(tab.url + link)
    frame = f'<iframe src="{tab.url}{link}&embed=1" width="960" height="600"></iframe>'
    expect(dialog.get_by_label("Embed code for a slide or a web page")).to_have_value(frame)
    tab.wait_for_function(
        "link => document.querySelector('.qr').dataset.link === link", arg=tab.url + link
    )
    path = tab.find(".qr path").last.get_attribute("d")
    codes = [
        re.findall(r' d="([^"]+)"', draw_qr(tab.url + text))[-1] for text in (link, f"{link}x")
    ]
    assert [path == code for code in codes] == [True, False]


# One state per tab, with the source of its picture.
TABS = {
    "result": "?kernel=matmul.grouped&tab=result",
    "program-order": "?kernel=matmul.grouped&tab=program-order",
    "dram-reads": "?kernel=matmul.grouped&tab=dram-reads&M=4096&N=4096&K=4096",
    "requests": "?kernel=transpose.flat&tab=requests",
    "compiler": "?kernel=transpose.tiled&tab=compiler",
    "sweep": stored_sweep.QUERY,
    "scoreboard": "?kernel=matmul.grouped&tab=scoreboard",
}
# Windows, and the smallest type in each, in pixels.
SIZES = ((1280, 720, 14), (1920, 1080, 16.5), (390, 844, 14))

_PICTURE = """() => {
  const picture = document.querySelector(".tabitem:not([hidden]) .picture");
  const { top, bottom, width, height } = picture.getBoundingClientRect();
  return [top, bottom, width * height / (innerWidth * innerHeight)];
}"""

# Gradio animates the change of its buttons' size.
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


def wait_for_picture(tab, name):
    """Wait until a tab is open and its picture drawn."""
    tab.wait_for_function(
        """name => [...document.querySelectorAll(`#${name}-tab .picture :is(.js-plotly-plot, .pane)`)].some(
            (node) => node.checkVisibility())""",
        arg=name,
    )


def serious(tab, name):
    """Return axe-core's findings above a minor impact: tab, rule and element."""
    found = Axe().run(tab.page).response["violations"]
    return {
        (name, rule["id"], node["html"][:160])
        for rule in found
        if rule["impact"] != "minor"
        for node in rule["nodes"]
    }


def test_every_picture_is_whole_in_the_first_screen_and_all_text_can_be_read(tab, all_combinations):
    """The picture takes most of the screen. At no size is text small, or the page wider than the window.

    axe-core reads one tab here; another test reads all of them.
    """
    tab.open("?__theme=light")
    for place, (name, query) in enumerate(TABS.items()):
        tab.resize(1280, 720)
        tab.follow(query)
        wait_for_picture(tab, name)
        top, bottom, share = tab.evaluate(_PICTURE)
        assert top >= 0, name
        assert bottom <= 720, name
        assert share >= 0.4, f"the main picture's share of the window: {name}"
        if not place:
            assert serious(tab, name) == set()
        for width, height, least in SIZES if all_combinations else [SIZES[place % len(SIZES)]]:
            tab.resize(width, height)
            tab.wait_for_function("width => innerWidth === width", arg=width)
            tab.evaluate(_SETTLED)
            assert tab.evaluate(_SMALL, least) == [], (name, width)
            assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), (
                name,
                width,
            )


@pytest.mark.all_combinations
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_on_any_tab_in_a_tour_or_in_talk_mode(tab, theme):
    tab.open(f"?__theme={theme}")
    assert tab.evaluate("document.body.classList.contains('dark')") == (theme == "dark")
    found = set()
    for name, query in TABS.items():
        tab.follow(query)
        wait_for_picture(tab, name)
        found |= serious(tab, name)
    tab.follow("?tour=why-grouping&stop=2")
    tab.wait_for_selector("#tour .next")
    found |= serious(tab, "tour")
    tab.key("t")
    found |= serious(tab, "talk")
    assert found == set()


@pytest.mark.parametrize(
    "name",
    [
        "compiler",
        *(
            pytest.param(name, marks=pytest.mark.all_combinations)
            for name in ("dram-reads", "requests")
        ),
    ],
)
def test_the_picture_does_not_move_when_the_compiler_answers(tab, name):
    tab.open(TABS[name])
    tab.wait_for_selector(".picture:visible")
    before = tab.evaluate(_PICTURE)[:2]
    wait_for_picture(tab, name)
    assert tab.evaluate(_PICTURE)[:2] == pytest.approx(before, abs=2)
