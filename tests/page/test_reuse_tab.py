"""The Reuse tab and /reuse, in a browser and through the API."""

from __future__ import annotations

from gradio_client import Client

from tests.page.conftest import Tab

WIDE = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "GROUP_SIZE": 8, "num_warps": 8}
LARGE = {"kernel": "matmul.grouped", "problem": {"M": 8192, "N": 8192, "K": 8192}, "config": WIDE}
ADDRESS = "?tab=reuse&M=8192&N=8192&K=8192&BLOCK_M=128&BLOCK_N=256&BLOCK_K=64&GROUP_SIZE=8&num_warps=8"


def test_reads_are_predicted_for_every_group_size_beside_what_was_counted(client: Client) -> None:
    reply = client.predict(LARGE, api_name="/reuse")
    assert (reply["gpu"], reply["resident_source"], reply["resident_programs"]) == ("H200", "compiled", 132)
    assert list(reply["by_group_size"]) == [str(size) for size in range(1, 65)]
    assert reply["by_group_size"]["8"] == reply["dram_read_bytes"]
    assert reply["compulsory_bytes"] == 2 * 2 * 8192 * 8192
    counted = {row["group_size"]: sorted(row["dram_read_bytes"])[2] for row in reply["measured"]["rows"]}
    assert abs(reply["dram_read_bytes"] / counted[8] - 1) < 0.02
    fewest = min(reply["by_group_size"].values())
    assert reply["by_group_size"][str(reply["recommended_group_size"])] <= 1.16 * fewest, "nearly the fewest bytes"
    assert reply["flags"] == []
    assert "GROUP_SIZE" in reply["note"]
    assert "<" not in reply["note"]


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
