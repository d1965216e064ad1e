"""What axe-core finds: nothing above a minor impact, on any tab, in light and in dark."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.page.conftest import Tab
from tests.page.test_look import TABS

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", TABS)
def test_axe_finds_nothing_above_a_minor_impact(tab: Tab, name: str, theme: str) -> None:
    tab.open(f"{TABS[name]}&__theme={theme}")
    tab.page.wait_for_function("document.querySelector('.picture :is(.js-plotly-plot, .pane)')")
    found = Axe().run(tab.page).response["violations"]
    serious = {(one["id"], node["html"][:160]) for one in found if one["impact"] != "minor" for node in one["nodes"]}
    assert serious == set()
