"""What axe-core finds: nothing above a minor impact, on any tab, in light and in dark."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.page.conftest import Tab
from tests.page.test_look import TABS, wait_for_picture

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.all_combinations)])
def test_axe_finds_nothing_above_a_minor_impact(tab: Tab, theme: str) -> None:
    tab.open(f"?__theme={theme}")
    serious = set()
    for name, query in TABS.items():
        tab.follow(query)
        wait_for_picture(tab, name)
        assert tab.page.evaluate("document.body.classList.contains('dark')") == (theme == "dark")
        for one in Axe().run(tab.page).response["violations"]:
            if one["impact"] != "minor":
                serious |= {(name, one["id"], node["html"][:160]) for node in one["nodes"]}
    assert serious == set()
