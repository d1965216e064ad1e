"""Take README's animated picture from a running page: `python -m scripts.capture URL FILE.gif`.

It walks the page as a newcomer would: the nine results, program by program, then the shape where the order matters,
then a store that is not coalesced, then a race. CHROMIUM names the browser.
"""

from __future__ import annotations

import io
import os
import sys

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from visualize.panels.tabs import SETTINGS
from visualize.widgets.link import query

SIZE = {"width": 1280, "height": 720}
# Milliseconds that a frame stays: one of the steps, and a picture that is to be read.
STEP_MS, READ_MS = 700, 3500

# The stops after the nine results: what opens them, and what they are drawn in.
STOPS = (
    (
        "kernel=matmul.grouped&M=16384&N=16384&K=4096&BLOCK_M=128&BLOCK_N=256&BLOCK_K=64&GROUP_SIZE=8&num_warps=8"
        "&first=132",
        "#schedule-plot",
    ),
    ("kernel=transpose.flat&tab=coalescing", "#memory-picture"),
    ("kernel=matmul.split_k_race&tab=result", "#diff-plot"),
)


def frames(page: Page, url: str) -> list[tuple[Image.Image, int]]:
    """Pictures of the page, and how long each stays."""
    taken: list[tuple[Image.Image, int]] = []

    def take(milliseconds: int) -> None:
        taken.append((Image.open(io.BytesIO(page.screenshot())).convert("RGB"), milliseconds))

    open_at(page, f"{url}?{query(SETTINGS.opening)}", "#schedule-plot")
    for step in range(1, 10):
        page.evaluate("document.dispatchEvent(new CustomEvent('tilescope:step', { detail: { by: 1 } }))")
        page.wait_for_function(f"document.querySelector('#player .player').dataset.step === '{step}'")
        page.wait_for_timeout(300)
        take(STEP_MS if step < 9 else READ_MS)
    for address, plot in STOPS:
        open_at(page, f"{url}?{address}", plot)
        take(READ_MS)
    return taken


def open_at(page: Page, address: str, plot: str) -> None:
    """Open an address, and wait until its picture is drawn and compiled."""
    page.goto(address)
    page.wait_for_selector("#experiment [data-ready] .field")
    page.wait_for_selector(f"{plot} .live-plot[data-draws]")
    page.wait_for_timeout(6000)


def main(url: str, file: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM", "chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport=SIZE)
        page.set_default_timeout(120_000)
        taken = frames(page, url)
        browser.close()
    first, *others = (image.quantize(128, dither=Image.Dither.NONE) for image, _ in taken)
    first.save(file, save_all=True, append_images=others, duration=[stays for _, stays in taken], loop=0, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
