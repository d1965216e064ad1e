"""A sweep in a real browser: it streams, is cancelled and resumed, and a click on its picture sets a config."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.page.conftest import Tab

pytestmark = pytest.mark.browser

# Eight configs that the interpreter checks in no time, so the sweep spends its time on compiling.
FEW = "?kernel=transpose.tiled&M=65&N=33&tab=sweep&sweep_vary=BLOCK_M%3D16,32,64,128+BLOCK_N%3D16,32"
# The same configs with slow checks, so that some remain to be cancelled when all are compiled.
LONGER = FEW.replace("M=65&N=33", "M=513&N=257")

_DONE = "least => Number(document.querySelector('#sweep-progress progress')?.value ?? 0) >= least"
_SAYS = "words => document.querySelector('#sweep-claim').textContent.includes(words)"


def sweep(tab: Tab) -> None:
    """Press Sweep, and wait until all configs were tried."""
    tab.page.locator("#sweep-start").click()
    tab.page.wait_for_function(_SAYS, arg="All configs were tried", timeout=120_000)


def counts(tab: Tab) -> dict[str, int]:
    """Return the number of configs by their outcome, from the headline."""
    text = tab.page.locator("#sweep-claim details").text_content() or ""
    outcomes = re.search(r"\d+ configs: ([^.]*)\.", text)
    assert outcomes is not None, text
    return {name: int(number) for number, name in re.findall(r"(\d+) ([a-z ]+)", outcomes[1])}


# Not by default: with both cores busy, Gradio's client once reported a 404 on the console.
@pytest.mark.all_combinations
def test_a_cancelled_sweep_keeps_its_rows_and_resumes(tab: Tab, tmp_path: Path) -> None:
    tab.open(LONGER)
    tab.page.wait_for_function(_SAYS, arg="configs to try")
    tab.says("#sweep-claim", "8 configs to try")
    tab.page.locator("#sweep-start").click()
    tab.page.wait_for_function(_DONE, arg=1, timeout=60_000)
    tab.page.locator("#sweep-cancel").click()
    tab.page.wait_for_function(_SAYS, arg="It was cancelled", timeout=30_000)
    cut = counts(tab)
    assert cut["checked"] >= 1
    assert sum(cut.values()) == 8
    sweep(tab)
    assert counts(tab) == {"checked": 8}
    tab.says("#sweep-claim", "predicted")
    assert "measured" not in tab.text("#sweep-tab")

    tab.fold("sweep-take")
    assert (tab.page.locator("#sweep-lines pre").text_content() or "").count("triton.Config(") == 8
    tab.fold("sweep-ranking")
    with tab.page.expect_download() as download:
        tab.page.locator("#ranking-csv").click()
    download.value.save_as(tmp_path / "rows.csv")
    with (tmp_path / "rows.csv").open(encoding="utf-8-sig") as file:
        assert [row["status"] for row in csv.DictReader(file)] == ["checked"] * 8

    # The server keeps the rows: a reloaded page shows them.
    tab.open(LONGER)
    tab.wait_for_draw("sweep-plot")
    box = tab.page.locator("#sweep-plot .nsewdrag").bounding_box()
    assert box is not None
    cell = (box["x"] + box["width"] * 7 / 8, box["y"] + box["height"] / 4)
    tab.page.mouse.move(*cell)
    hover = tab.page.locator("#sweep-plot .hovertext")
    hover.wait_for()
    assert "BLOCK_M 128, BLOCK_N 32" in (hover.text_content() or "")
    tab.page.mouse.click(*cell)
    tab.page.wait_for_function("location.search.includes('BLOCK_N=32') && location.search.includes('BLOCK_M=128')")
    tab.reads("#experiment output#experiment-BLOCK_M", "128")
    assert tab.text("#sweep-claim").count("predicted") == 1, "the page still shows the same sweep"


def test_links_sort_and_filter_the_table(tab: Tab) -> None:
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
    expect(rows).to_have_count(4)
    assert set(rows.locator("td:nth-child(3)").all_inner_texts()) == {"32"}
    assert "ranking_BLOCK_N=32" in tab.page.url
