"""A sweep in a real browser: its table is sorted, filtered and saved."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.page.conftest import Tab

pytestmark = pytest.mark.browser

# Four configs that the interpreter checks in no time, so the sweep spends its time on compiling.
FEW = "?kernel=transpose.tiled&M=65&N=33&tab=sweep&sweep_vary=BLOCK_M%3D16,128+BLOCK_N%3D16,32"
_SAYS = "words => document.querySelector('#sweep-claim').textContent.includes(words)"


def sweep(tab: Tab) -> None:
    """Press Sweep, and wait until all configs were tried."""
    tab.page.locator("#sweep-start").click()
    tab.page.wait_for_function(_SAYS, arg="All configs were tried", timeout=120_000)


def test_links_sort_and_filter_the_table_and_a_button_saves_it(tab: Tab) -> None:
    tab.open(FEW)
    tab.page.wait_for_function(_SAYS, arg="config")
    sweep(tab)
    tab.fold("sweep-ranking")
    rows = tab.page.locator("#sweep-table tbody tr")
    heading = tab.page.locator("#sweep-table th", has_text="BLOCK_M")
    for order, first in (("ascending", "16"), ("descending", "128")):
        heading.get_by_role("link").click()
        # The unsorted table begins with 16, too: only the heading says that the reply has come, with its next link.
        expect(heading).to_have_attribute("aria-sort", order)
        expect(rows.first.locator("td").nth(1)).to_have_text(first)
    tab.page.locator("#sweep-table .facets nav", has_text="BLOCK_N").get_by_role("link", name="32").click()
    expect(rows).to_have_count(2)
    assert set(rows.locator("td:nth-child(3)").all_inner_texts()) == {"32"}
    assert "ranking_BLOCK_N=32" in tab.page.url
    saved: list[str] = []
    tab.page.on("download", lambda file: saved.append(file.suggested_filename))
    with tab.page.expect_download() as download:
        tab.page.locator("#ranking-csv").click()
    assert len(download.value.path().read_text(encoding="utf-8").splitlines()) == 1 + 2
    tab.fold("sweep-take")
    with tab.page.expect_download():
        tab.page.locator("#sweep-json").click()
    assert saved == ["tilescope_ranking.csv", "tilescope_sweep.json"], "an update that repeats a file saves it once"
