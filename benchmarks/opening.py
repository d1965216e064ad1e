"""How soon a browser shows the page's first picture, beside what an empty Gradio page takes on the same machine.

python -m benchmarks.opening URL (of a running page; CHROMIUM names the browser)

In turns, each in a browser context of its own, with nothing kept: from the start of the navigation to the frame after
the picture is there. The first picture is the one in the page's reply; the live one, drawn by Plotly, takes its place.
"""

from __future__ import annotations

import statistics
import sys

import gradio as gr
from playwright.sync_api import Browser

from benchmarks.browser import WINDOW, chromium

AT_MOST = 1.5
TURNS = 8

EMPTY = "document.querySelector('#hello')?.innerText.includes('hello')"
FIRST = "document.querySelector('#first-picture path')"
LIVE = "document.querySelector('#schedule-plot .live-plot')?.dataset.draws > 0"

# Looks in each frame; what is there in one was painted before the next.
_WATCH = """(() => {
  const seen = (at) => { window.seenAt = at; };
  const look = () => requestAnimationFrame((%s) ? seen : look);
  requestAnimationFrame(look);
})()"""


def main(url: str) -> None:
    with gr.Blocks(analytics_enabled=False) as empty:
        gr.HTML("hello", elem_id="hello")
    _, address, _ = empty.launch(prevent_thread_lock=True, quiet=True, ssr_mode=False)
    with chromium() as browser:
        wanted = {"empty page": (address, EMPTY), "first picture": (url, FIRST), "live picture": (url, LIVE)}
        for name in wanted:  # fills the servers' caches
            seen_ms(browser, *wanted[name])
        turns = [{name: seen_ms(browser, *one) for name, one in wanted.items()} for _ in range(TURNS)]
    empty.close()
    for name in wanted:
        times = [turn[name] for turn in turns]
        ratio = statistics.median(turn[name] / turn["empty page"] for turn in turns)
        print(
            f"{name}: median {statistics.median(times):.0f} ms ({min(times):.0f} to {max(times):.0f}), "
            f"{ratio:.2f} × the empty page, paired"
        )
    print(f"For the first picture at most {AT_MOST} are allowed.")


def seen_ms(browser: Browser, url: str, is_there: str) -> float:
    """Milliseconds from the navigation's start until a browser with nothing kept has painted what is looked for."""
    context = browser.new_context(viewport=WINDOW)
    page = context.new_page()
    page.add_init_script(_WATCH % is_there)
    page.goto(url, wait_until="commit")
    page.wait_for_function("window.seenAt")
    seen = float(page.evaluate("window.seenAt"))
    context.close()
    return seen


if __name__ == "__main__":
    main(sys.argv[1])
