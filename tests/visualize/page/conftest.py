"""The served page: one app process, one browser and its profile, and a new browser tab for each test."""

import os
import shutil
import sys
from contextlib import contextmanager

import pytest
from gradio_client import Client
from playwright.sync_api import expect, sync_playwright

from tests.trees import ROOT, children
from tests.visualize.page import stored_sweep
from tests.waiting import PATIENCE_S, free_port, serving
from tilescope.declare.discovery import discover

# The first kernel of each family.
FIRST = {kernel.family.root.id: kernel.id for kernel in reversed(discover().values())}.values()

_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--process-per-site",  # see Profile
    "--js-flags=--no-opt --no-maglev",  # most code runs too briefly to be worth optimizing
    # Parts of Chromium's window that load other pages next to ours. The list replaces Playwright's own, so it also
    # repeats features that delay a paint or request another address.
    "--disable-features=WebUIOmniboxPopup,WebUIOmniboxAimPopup,HttpsUpgrades,OptimizationHints,PaintHolding",
)

expect.set_options(timeout=1000 * PATIENCE_S)


class App:
    """A running `python app.py`."""

    def __init__(self, process, url):
        self.process = process
        self.url = url

    def workers(self):
        """Return the process ids of its workers, children of the fork server."""
        servers = children(self.process.pid, "forkserver")
        return [worker for server in servers for worker in children(server, "forkserver")]


@contextmanager
def served(directory, cache=None, flags=()):
    """Start the app on a free port, with its log, its store and, unless another is given, its cache in a directory."""
    environment = os.environ | {
        "TILESCOPE_CACHE": str(cache or directory),
        "TILESCOPE_DB": str(directory / "tilescope.db"),
    }
    # The app must not fetch its own page through a proxy: nothing listens at this proxy's address.
    environment |= dict.fromkeys(("HTTP_PROXY", "http_proxy"), "http://127.0.0.1:9")
    port = free_port()
    command = [sys.executable, "app.py", *flags, "--port", str(port)]
    url = f"http://127.0.0.1:{port}/"
    with serving(command, url, directory / "log", cwd=ROOT, env=environment) as (process, _):
        yield App(process, url)


@pytest.fixture(scope="session")
def app(tmp_path_factory, tilescope_cache):
    directory = tmp_path_factory.mktemp("app")
    stored_sweep.fill(directory / "tilescope.db")
    with served(directory, cache=tilescope_cache, flags=("--mcp",)) as running:
        yield running


@pytest.fixture(scope="session")
def browser():
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    chromium = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if not chromium:
        pytest.fail(
            "No Chromium was found: install one (`make test` does), or set CHROMIUM to its path."
        )
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=_FLAGS)
        yield launched
        launched.close()


class Tab:
    """A browser tab with the page, the errors of its console, and the addresses that it fetched."""

    def __init__(self, page, url):
        self.page = page
        self.url = url
        self.errors = []
        self.requests = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on(
            "console",
            lambda message: self.errors.append(message.text) if message.type == "error" else None,
        )
        page.on("request", lambda request: self.requests.append(request.url))

    def __getattr__(self, name):
        """Return an attribute of Playwright's page."""
        return getattr(self.page, name)

    def query(self):
        """Return the query of the page's address."""
        return self.page.evaluate("location.search")

    def go(self, query=""):
        self.page.goto(self.url + query)

    def open(self, query=""):
        self.go(query)
        self.page.wait_for_selector("#experiment [data-ready] .field", state="attached")
        self.page.wait_for_function("location.search.includes('kernel=')")
        return self

    def follow(self, query):
        """Follow a link within the page, which takes a fifth of the time that opening the page takes."""
        self.page.evaluate(
            """query => {
              delete document.body.dataset.address;
              document.dispatchEvent(new CustomEvent("tilescope:follow", { detail: query }));
            }""",
            query.removeprefix("?"),
        )
        self.page.wait_for_function("document.body.dataset.address !== undefined")
        return self

    def draws(self, plot):
        """Return how often a live plot has been drawn."""
        return int(self.page.locator(f"#{plot} .live-plot").get_attribute("data-draws") or 0)

    def wait_for_draw(self, plot, after=0):
        self.page.wait_for_function(
            "([plot, n]) => Number(document.querySelector(`#${plot} .live-plot`)?.dataset.draws || 0) > n",
            arg=[plot, after],
        )

    def find(self, selector, **options):
        """Return the elements of a selector."""
        return self.page.locator(selector, **options)

    def field(self, label):
        """Return a control by its label."""
        return self.page.get_by_label(label, exact=True)

    def expect(self, selector, **options):
        """Return the assertions about an element, which wait until they hold."""
        return expect(self.find(selector, **options))

    def at(self, part):
        """Wait until the address contains `part`."""
        self.page.wait_for_function("part => location.search.includes(part)", arg=part)

    def click(self, selector, **options):
        self.find(selector, **options).click()

    def press(self, name, role="button", exact=False):
        """Click a button or a link by its name."""
        self.page.get_by_role(role, name=name, exact=exact).click()

    def key(self, name):
        """Press a key of the keyboard."""
        self.page.keyboard.press(name)

    def resize(self, width, height):
        self.page.set_viewport_size({"width": width, "height": height})

    def preset(self, title):
        self.unfold("#experiment .presets")
        self.press(title)

    def unfold(self, selector):
        """Open a menu or a fold, unless it is already open."""
        details = self.find(selector)
        if details.get_attribute("open") is None:
            details.locator("> summary").click()

    def tab(self, name):
        """Open a picture by its name in the address: its view first."""
        self.click(f"#header [data-tabs~={name}]")
        if not self.find(f"#{name}-tab").is_visible():
            self.find(f".pictures [data-tab={name}]").filter(visible=True).click()

    def run(self):
        """Press Run and wait for its result or failure. The card of an earlier run does not count."""
        self.page.evaluate("document.querySelector('#card').replaceChildren()")
        self.click("#run")
        self.ended()

    def ended(self, place="card"):
        ends = f"#{place} :is([data-finished], .result-card, .failure)"
        self.page.wait_for_selector(ends, state="attached")

    def wait_for_compiled(self):
        """Wait for the last update of the Order view, after which the page sends no more requests."""
        self.page.locator("#program-order-occupancy", has_text="compiled").wait_for(
            state="attached"
        )

    def text(self, selector):
        """Return an element's current text. `says` and `reads` wait for a text."""
        return self.page.locator(selector).inner_text()

    def says(self, selector, part, folded=False):
        """Wait until the text of an element contains `part`. If `folded`, text in a closed fold counts, too."""
        self.expect(selector).to_contain_text(part, use_inner_text=not folded)

    def reads(self, selector, text):
        """Wait until the text of an element is `text`."""
        self.expect(selector).to_have_text(text, use_inner_text=True)


class Profile:
    """A browser profile whose tabs share the page's files and compiled scripts.

    With a profile for each tab, the browser would fetch and compile them in a new process each time, which takes more
    than half of the time to open the page. A tab that stays on a plain file of the app keeps the process alive.
    """

    def __init__(self, browser, url):
        self._browser = browser
        self._url = url
        self._context = None

    def tab(self):
        """Return a new tab, without the storage and the permissions of earlier tabs."""
        if self._context is None:
            # Reduced motion: the opening's animation would cost each test seconds of a core.
            self._context = self._browser.new_context(
                viewport={"width": 1280, "height": 720}, reduced_motion="reduce"
            )
            self._context.set_default_timeout(1000 * PATIENCE_S)
            self._anchor = self._context.new_page()
            self._anchor.goto(f"{self._url}theme.css")
        self._context.clear_cookies()
        self._context.clear_permissions()
        assert self._anchor.evaluate("localStorage.clear() ?? localStorage.length") == 0
        return Tab(self._context.new_page(), self._url)

    def close_tabs(self):
        for page in self._context.pages if self._context else ():
            if page is not self._anchor:
                page.close()

    def discard(self):
        """Close the profile: the next tab gets a new one, in a new process."""
        if self._context:
            self._context.close()
            self._context = None


@pytest.fixture(scope="session")
def profile(app, browser):
    shared = Profile(browser, app.url)
    yield shared
    shared.discard()


@pytest.fixture
def tab(profile, request):
    failed = request.session.testsfailed
    opened = profile.tab()
    yield opened
    profile.close_tabs()
    if opened.errors or request.session.testsfailed > failed:
        profile.discard()
    assert opened.errors == [], "the browser's console must stay clean"


@pytest.fixture(scope="module")
def client(app):
    opened = Client(app.url, verbose=False)
    yield opened
    opened.close()
