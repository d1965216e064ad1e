"""The history in a real browser: a run appears on the open tab, and is still listed after a restart of the app."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from kernels.measuring.session import MEASUREMENTS
from kernels.results.store import Store
from tests.kernels.results_made_up import NEWER, START, experiment, noisy, run
from tests.page.conftest import Tab, served

pytestmark = pytest.mark.browser

QUICK = "?kernel=matmul.grid_2d&M=96&N=80&K=33&tab=history"


def fill(path: Path) -> None:
    """Store runs of the default transpose on an H200, slower since an upgrade."""
    store = Store(path)
    older = [run(experiment(), median) for median in noisy(0.2, 5)]
    newer = [run(experiment(), median, NEWER) for median in noisy(0.216, 4)]
    assert all(store.put(MEASUREMENTS["run"], "H200", stored, START) for stored in [*older, *newer])
    store.close()


@pytest.mark.all_combinations
def test_a_run_appears_on_the_open_tab_and_is_listed_after_a_restart(
    browser: Browser, tmp_path: Path, tilescope_cache: Path
) -> None:
    fill(tmp_path / "tilescope.db")
    for is_restarted in (False, True):
        context = browser.new_context(viewport={"width": 1280, "height": 720})
        context.set_default_timeout(60_000)
        with served(tmp_path, cache=tilescope_cache) as app:
            tab = Tab(context.new_page(), app.url).open(QUICK)
            claim = tab.page.locator("#history-claim")
            if not is_restarted:
                tab.says("#history-claim", "No runs of this Experiment are stored")
                tab.run()
                claim.get_by_text("checks passed").wait_for()
            tab.says("#history-claim", "1 of 1")
            tab.says("#history-instead", "Triton's interpreter")
            if is_restarted:
                tab.says("#card", "stored on this machine")
                tab.fold("history-latest-fold")
                tab.page.locator("#history-latest").get_by_role("link", name="transpose.tiled").nth(1).click()
                tab.page.wait_for_function("location.search.includes('tab=result')")
                assert "gpu=H200" in tab.page.url
                tab.page.go_back()
                claim.get_by_text("checks passed").wait_for()
                check_change(tab)
            assert tab.errors == []
            context.close()


def check_change(tab: Tab) -> None:
    before = tab.draws("history-plot")
    tab.follow("?kernel=transpose.tiled&gpu=H200&tab=history")
    tab.wait_for_draw("history-plot", after=before)
    tab.says("#history-claim", "1.08 × slower since 2026-11-01")
    assert not tab.page.locator("#history-instead").is_visible()
    points = tab.page.locator("#history-plot .points path.point")
    assert points.count() == 9
    points.first.hover(force=True)
    hover = tab.page.locator("#history-plot .hovertext")
    hover.wait_for()
    assert "NVIDIA H200, torch 2.11.0, triton 3.6.0" in (hover.text_content() or "")
    tab.fold("history-runs-fold")
    expect(tab.page.locator("#history-runs tbody tr")).to_have_count(9)
