"""Take README's screenshot from a running page: `python scripts/screenshot.py URL FILE`. CHROMIUM names the browser."""

from __future__ import annotations

import os
import sys

from playwright.sync_api import sync_playwright

QUERY = (
    "?kernel=matmul.grouped&M=4096&N=4096&K=4096&BLOCK_M=128&BLOCK_N=256&BLOCK_K=64&GROUP_SIZE=8&num_warps=8"
    "&gpu=H200&first=64&step=2"
)


def main(url: str, file: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM", "chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(url + QUERY)
        page.wait_for_selector("#experiment [data-ready] .field")
        page.locator("#run").click()
        page.wait_for_selector("#status [data-finished]")
        page.get_by_role("tab", name="Schedule").click()
        page.wait_for_selector("#schedule-plot .live-plot[data-draws]")
        page.wait_for_timeout(5000)  # until it is compiled, and drawn again
        page.screenshot(path=file)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
