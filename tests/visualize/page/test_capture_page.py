"""A script on the page, in a real browser: its pictures and code, and what happens when the script is saved."""

import json
import shutil
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from gradio_client import Client

from tests.trees import ROOT
from tests.visualize.page.conftest import Tab, served
from tests.visualize.page.test_mcp import ask
from tests.waiting import run_coroutine

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    return Path(
        shutil.copy(ROOT / "kernels" / "examples" / "softmax.py", tmp_path_factory.mktemp("shown"))
    )


@pytest.fixture(scope="module")
def url(script, tilescope_cache):
    flags = ("show", str(script), "--gpu", "H200", "--mcp")
    with served(script.parent, tilescope_cache, flags) as running:
        yield running.url


@pytest.fixture
def shown(browser, url):
    page = browser.new_page(viewport={"width": 1280, "height": 720}, reduced_motion="reduce")
    tab = Tab(page, url)
    tab.go()
    tab.wait_for_draw("request-plot")
    yield tab
    assert not tab.errors
    page.close()


def test_a_capture_opens_on_a_request_with_the_textbooks_the_code_and_the_order_one_click_away(
    shown,
):
    shown.says("#launches", "softmax")
    shown.says("#requests-headline", "1 finding, on line 12.")
    shown.says("#requests-headline", "cols = 1000 is not a multiple of 16", folded=True)
    shown.says("#request-plot", "4 sectors: all 128 bytes used")
    shown.says("#requests-table", "softmax.py:12")
    assert not [
        v["id"] for v in Axe().run(shown.page).response["violations"] if v["impact"] == "critical"
    ]
    shown.press("Textbook")
    shown.says("#request-plot", "Textbook: request 1")
    shown.press("Compiler", exact=True)
    shown.says(".pane[data-name=Source] .marked", "tl.load")
    shown.says(".pane[data-name=SASS] .marked >> nth=0", "LDG")
    shown.press("Order", exact=True)
    shown.says("#program-order-plot", "Programs that write out")
    shown.says("#program-order-headline", "4,096 programs in 2 waves")
    shown.press("Result", exact=True)
    shown.says("#predicted-plot", "Time each resource would take alone")


def test_a_case_has_a_control_for_each_parameter_and_the_page_opens_at_the_most_wasteful_request(
    shown,
):
    cols = shown.find("#knob-case_cols")
    cols.fill("777")
    shown.says("#requests-headline", "cols = 777 is not a multiple of 16", folded=True)
    shown.go()
    shown.wait_for_draw("request-plot")
    shown.says("#request-plot", "5 sectors: 128 of 160 bytes used")
    cols.fill("1024")
    shown.says("#requests-headline", "requests 102,400 → 32,768")
    cols.fill("1000")
    shown.says("#requests-headline", "requests 32,768 → 131,072")


@pytest.mark.all_combinations
def test_a_sweep_stays_in_its_field(shown):
    field = shown.find("#knob-sweep")
    field.fill("cols=512,640")
    field.press("Enter")
    shown.says("#launches", "cols=640")
    assert field.input_value() == "cols=512,640"
    field.fill("")
    field.press("Enter")
    shown.find("#launches", has_text="cols=640").wait_for(state="hidden")


def test_saving_the_script_redraws_the_page_and_a_script_that_raises_loses_nothing(shown, script):
    text = script.read_text()
    line = text[: text.index("    x = torch")].count("\n") + 1
    script.write_text(
        text.replace("    x = torch", "    raise ValueError('no data')\n    x = torch"),
        encoding="utf-8",
    )
    shown.says(
        "#elsewhere",
        f"ValueError: no data ({script.name}, line {line}). The report below is from before this change.",
    )
    gray = "getComputedStyle(document.querySelector('#launches')).filter"
    shown.wait_for_function(f"{gray} === 'grayscale(1)'")
    assert "No counts" not in shown.text("#requests-headline")
    script.write_text(text.replace("cols=1000", "cols=2048"))
    shown.says("#requests-headline", "Line 12, load x: sectors 512,000 → ")
    shown.wait_for_function(f"{gray} === 'none'")
    script.write_text("import missing_module\n" + text)
    shown.says("#elsewhere", "No module named 'missing_module'")
    shown.says("#requests-headline", "ideal sectors")
    script.write_text(text)
    shown.says("#requests-headline", "→ 512,000")


def test_the_report_is_an_endpoint_and_a_tool(url):
    reply = Client(url, verbose=False).predict(api_name="/requests")
    tools, (result,) = run_coroutine(ask(url, ("requests", {})))
    descriptions = {tool.name: tool.description for tool in tools}
    assert "every Triton launch" in descriptions["requests"]
    assert json.loads(result.content[0].text) == reply
    (launch,) = reply["launches"]
    assert launch["totals"]["ld_sectors"] == 512_000


@pytest.mark.all_combinations
def test_the_script_is_compiled_for_another_gpu_that_is_chosen_on_the_page(shown):
    shown.field("GPU").select_option(label="A100-80GB")
    shown.says("#launches", "for A100-80GB")
