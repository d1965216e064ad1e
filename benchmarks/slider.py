"""How soon a moved slider is seen, beside what Gradio itself takes to echo a number on the same machine.

python -m benchmarks.slider URL (of a running page; CHROMIUM names the browser)

The two are measured in turns: the page's from the input event to the picture redrawn, Gradio's from the input event of
a gr.Number to its echo by `lambda x: x`. Both end two frames later.
"""

from __future__ import annotations

import statistics
import sys

import gradio as gr
from playwright.sync_api import Page

from benchmarks.browser import WINDOW, chromium

CASES = {"64 × 64": "M=2048&N=2048&BLOCK_M=32&BLOCK_N=32", "512 × 512": "M=8192&N=8192&BLOCK_M=16&BLOCK_N=16"}
AT_MOST = {"64 × 64": 1.6, "512 × 512": 2.5}
MOVES, WARM_UP = 24, 3

_TIMED = """
  const frame = () => new Promise(requestAnimationFrame);
  const until = async (done) => { while (!done()) await new Promise((go) => setTimeout(go, 1)); };
  const start = performance.now();
"""

# Moves GROUP_SIZE; the time ends two frames after the picture was drawn, its parts at the answer and at the drawing.
MOVE = (
    "async (size) => {"
    + _TIMED
    + """
  const plot = document.querySelector('#schedule-plot .live-plot');
  const slider = document.querySelector('#experiment-GROUP_SIZE-slider');
  const before = plot.dataset.draws;
  let answered = 0, reacted = 0;
  plot.addEventListener('tilescope:paint', () => { answered = performance.now(); }, { once: true });
  slider.value = String(size);
  slider.dispatchEvent(new Event('input', { bubbles: true }));
  await until(() => plot.dataset.draws !== before);
  reacted = performance.now();
  await frame();
  await frame();
  return [performance.now() - start, answered - start, reacted - answered];
}"""
)

ECHO = (
    "async (value) => {"
    + _TIMED
    + """
  const [number, echo] = document.querySelectorAll('input[type=number]');
  number.value = String(value);
  number.dispatchEvent(new Event('input', { bubbles: true }));
  await until(() => echo.value === String(value));
  await frame();
  await frame();
  return performance.now() - start;
}"""
)


def main(url: str) -> None:
    with gr.Blocks() as echoing:
        number, echo = gr.Number(0), gr.Number(0)
        number.input(lambda x: x, number, echo)
    _, address, _ = echoing.launch(prevent_thread_lock=True, quiet=True)
    with chromium() as browser:
        gradio = browser.new_page(viewport=WINDOW)
        gradio.goto(address)
        gradio.wait_for_selector("input[type=number] >> nth=1")
        for name, query in CASES.items():
            page = browser.new_page(viewport=WINDOW)
            page.goto(f"{url}?kernel=matmul.grouped&tab=schedule&{query}")
            page.wait_for_selector("#schedule-plot .live-plot[data-draws]")
            page.wait_for_timeout(2500)
            compare(name, page, gradio)
            page.close()
    echoing.close()


def compare(name: str, page: Page, gradio: Page) -> None:
    """Measure one case in turns with Gradio's echo, and print what came of it."""
    sizes: list[int] = []
    page.on("requestfinished", lambda request: sizes.append(request.sizes()["responseBodySize"]))
    times: list[list[float]] = []
    echoes: list[float] = []
    for move in range(MOVES + WARM_UP):
        page.bring_to_front()
        times.append(page.evaluate(MOVE, 2 + move))
        page.wait_for_timeout(400)
        gradio.bring_to_front()
        echoes.append(gradio.evaluate(ECHO, 1000 + move + int(gradio.input_value("input[type=number] >> nth=0"))))
        gradio.wait_for_timeout(100)
    whole, answered, drawn = (statistics.median(column) for column in zip(*times[WARM_UP:], strict=True))
    echo = statistics.median(echoes[WARM_UP:])
    print(
        f"{name} tiles: median {whole:.0f} ms ({answered:.0f} until the answer is unpacked, {drawn:.0f} to draw it), "
        f"Gradio's echo {echo:.0f} ms: {whole / echo:.2f} ×, at most {AT_MOST[name]} allowed; "
        f"{sum(sizes) / len(times) / 1000:.1f} kB per move"
    )


if __name__ == "__main__":
    main(sys.argv[1])
