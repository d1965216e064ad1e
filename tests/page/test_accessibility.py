"""axe-core finds nothing above a minor impact, in the whole page on any tab, in light and in dark."""

from __future__ import annotations

import pytest

from tests.page.conftest import Tab
from tests.page.test_look import TABS, serious, wait_for_picture

# By default test_look.py asks axe-core on its way through the tabs.
pytestmark = [pytest.mark.browser, pytest.mark.all_combinations]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_above_a_minor_impact(tab: Tab, theme: str) -> None:
    tab.open(f"?__theme={theme}")
    found = set()
    for name, query in TABS.items():
        tab.follow(query)
        wait_for_picture(tab, name)
        assert tab.page.evaluate("document.body.classList.contains('dark')") == (theme == "dark")
        found |= serious(tab, name)
    assert found == set()
