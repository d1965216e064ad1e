"""A report in a file, in a browser without a network: launches, operations and code, whatever the script contains."""

import pytest
from playwright.sync_api import expect

from tests.visualize.page.conftest import Tab
from tilescope.captures.reader import Capture
from tilescope.reports.launch import Launches
from visualize.web.report_file import render_report

pytestmark = pytest.mark.browser

# Of the two launches, the second one's loads are three elements apart.
SCRIPT = '''"""</script><script>document.title = "owned"</script>"""
import torch, triton, triton.language as tl


@triton.jit
def copy(x, y, step, MARKUP: tl.constexpr, BLOCK: tl.constexpr):
    # </script><img src=x onerror="document.title = 'owned'">
    offsets = tl.arange(0, BLOCK)
    values = tl.load(x + offsets * step)
    tl.store(y + offsets, values)


x = torch.zeros(4096, device="cuda")
y = torch.empty(512, device="cuda")
markup = "<img src=x onerror=document.title='owned'>"
copy[(1,)](x, y, 1, markup, BLOCK=512)
copy[(1,)](x, y, 3, markup, BLOCK=512)
'''


@pytest.fixture(scope="module")
def report(captured):
    path = captured.with_suffix(".html")
    path.write_text(render_report(Launches(Capture(captured))), encoding="utf-8")
    return path


@pytest.fixture
def opened(browser, report):
    """Yield the file in a browser without a network, and check that it requests nothing else."""
    context = browser.new_context(
        viewport={"width": 1280, "height": 720}, offline=True, color_scheme="dark"
    )
    tab = Tab(context.new_page(), report.as_uri())
    tab.go()
    tab.wait_for_draw("request-plot")
    yield tab
    assert tab.errors == []
    assert {url.partition(":")[0] for url in tab.requests} <= {"file", "data", "blob"}
    context.close()


def test_a_report_in_a_file_shows_each_launch_operation_and_text(opened):
    opened.says("#launches [aria-current=true]", "512")
    opened.says("#request-plot", "16 sectors: all 512 bytes used")
    opened.find("#launches td a").nth(1).click()
    opened.says("#request-plot", "32 sectors: 128 of 1,024 bytes used")
    opened.says("#requests-headline", "48 bytes", folded=True)
    opened.click("#scrubber .forward")
    opened.says("#request-plot", "Compiled: request 2 of 16")
    opened.find("#requests-table td a", has_text="script.py:10").first.click()
    opened.says("#request-plot", "address in y")
    opened.tab("compiler")
    opened.says(".pane[data-name=Source] .marked", "tl.store(y + offsets, values)")
    opened.says(".pane[data-name=SASS] .marked >> nth=0", "STG")
    opened.tab("program-order")
    opened.says("#program-order-headline", "1 program")
    opened.tab("result")
    opened.says("#result", "Not run")
    opened.says("#predicted-time", "bound by latency")
    opened.says("#predicted-plot", "predicted")
    opened.tab("shared-memory")
    opened.says("#shared-memory-headline", "This kernel uses no shared memory.")
    opened.tab("registers")
    opened.says("#registers-plot", "live registers")


def test_a_link_to_a_report_in_a_file_opens_its_launch_and_model_and_another_one_its_start(
    opened,
):
    opened.go("?launch=1&operation=1&model=textbook&request=2")
    opened.says("#request-plot", "Textbook: request 3 of 16")
    opened.says("#request-plot", "address in y")
    opened.press("Compiled")
    opened.says("#request-plot", "Compiled: request 1 of 4")
    for query in ("?launch=999", "?tab=dram-reads", "?operation=77"):
        opened.go(query)
        opened.says("#request-plot", "16 sectors: all 512 bytes used")


def test_markup_in_a_script_is_text_in_its_report(opened):
    opened.says("#launches", "<img src=x onerror=document.title='owned'>")
    opened.tab("compiler")
    opened.says(".pane[data-name=Source]", """# </script><img src=x onerror="document.title""")
    assert opened.find("img").count() == 0
    assert opened.title() == "script.py: Tilescope"


def test_a_report_is_dark_for_a_reader_with_a_dark_screen_and_light_on_paper(opened):
    opened.expect("body.dark").to_have_count(1)
    opened.emulate_media(media="print")
    opened.expect("body.dark").to_have_count(0)


def test_without_scripts_a_report_in_a_file_is_a_table(browser, report):
    context = browser.new_context(java_script_enabled=False)
    tab = Tab(context.new_page(), report.as_uri())
    tab.go()
    tab.says("noscript", "script.py:9")
    assert not tab.find("#stage").is_visible()
    context.close()


def test_a_frame_without_an_address_shows_a_report(browser, report):
    """Notebooks and issue trackers show files in frames like this one."""
    page = browser.new_page()
    tab = Tab(page, "about:blank")
    page.set_content('<iframe sandbox="allow-scripts" width="1200" height="700"></iframe>')
    frame = page.locator("iframe")
    frame.evaluate("(frame, html) => { frame.srcdoc = html; }", report.read_text("utf-8"))
    content = frame.content_frame
    content.locator("#launches td a").nth(1).click()
    expect(content.locator("#request-plot")).to_contain_text("32 sectors")
    assert tab.errors == []
    page.close()
