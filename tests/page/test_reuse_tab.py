"""The Reuse tab in a browser."""

from __future__ import annotations

from tests.page.conftest import Tab

ADDRESS = "?tab=reuse&M=8192&N=8192&K=8192&BLOCK_M=128&BLOCK_N=256&BLOCK_K=64&GROUP_SIZE=8&num_warps=8"


def test_the_tab_draws_bytes_times_and_bounds_and_a_moved_group_size_redraws_the_claim(tab: Tab) -> None:
    """Without a GPU the button can not be pressed, and says why."""
    tab.open(ADDRESS)
    for plot in ("reuse-plot", "times-plot"):
        tab.wait_for_draw(plot)
    tab.fold("reuse-behind")
    tab.wait_for_draw("resources-plot")
    tab.page.wait_for_function("document.querySelector('#reuse-way').innerText.includes('requested by loads')")
    tab.says("#reuse-claim", "Nsight Compute counted 1.49 GB")
    tab.says("#reuse-plot", "this: 8")
    tab.says("#resources-plot", "(bottleneck)")
    tab.says("#reuse-way", "recorded")
    before = tab.draws("reuse-plot")
    tab.page.get_by_label("GROUP_SIZE", exact=True).fill("1")
    tab.wait_for_draw("reuse-plot", after=before)
    tab.page.wait_for_function("document.querySelector('#reuse-claim').innerText.includes('counted 2.6')")
    tab.fold("compare-fold")
    button = tab.page.locator("#compare-sizes")
    assert button.is_disabled()
    tab.says("#compare-sizes", "(needs a GPU)")
