"""How soon a moved slider is seen: from the input event to the schedule redrawn, in headless Chromium.

python -m benchmarks.slider URL (of a running page; CHROMIUM names the browser)
"""

from __future__ import annotations

import os
import statistics
import sys

from playwright.sync_api import sync_playwright

CASES = {"64 × 64": "M=2048&N=2048&BLOCK_M=32&BLOCK_N=32", "512 × 512": "M=8192&N=8192&BLOCK_M=16&BLOCK_N=16"}

# Moves GROUP_SIZE 20 times; a time ends two frames after both maps have been drawn.
MOVE = """async () => {
  const maps = ['schedule-plot', 'row-major-plot'].map((id) => document.querySelector(`#${id} .live-plot`));
  const slider = document.querySelector('#experiment-GROUP_SIZE-slider');
  const draws = () => maps[0].dataset.draws;
  const frame = () => new Promise(requestAnimationFrame);
  const times = [];
  for (let size = 2; size < 22; size++) {
    const before = draws(), start = performance.now();
    slider.value = String(size);
    slider.dispatchEvent(new Event('input', { bubbles: true }));
    while (draws() === before) await new Promise((done) => setTimeout(done, 2));
    await frame();
    await frame();
    times.push(performance.now() - start);
    await new Promise((done) => setTimeout(done, 150));
  }
  return times;
}"""


def main(url: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM", "chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        for name, query in CASES.items():
            page = browser.new_page(viewport={"width": 1280, "height": 720})
            page.goto(f"{url}?kernel=matmul.grouped&tab=schedule&{query}")
            page.wait_for_selector("#row-major-plot .live-plot[data-draws]")
            page.wait_for_timeout(1500)
            sizes: list[int] = []
            page.on("requestfinished", lambda request, sizes=sizes: sizes.append(request.sizes()["responseBodySize"]))
            times = page.evaluate(MOVE)
            page.wait_for_timeout(300)
            print(
                f"{name} tiles: median {statistics.median(times):.0f} ms, {min(times):.0f} to {max(times):.0f}; "
                f"{sum(sizes) / len(times) / 1000:.1f} kB a move"
            )
            page.close()
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])
