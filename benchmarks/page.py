"""Time the page's start, opening and redraws against plain Gradio, alternately on the same machine.

    python -m benchmarks.page start          from `python app.py` to the first reply, beside `import gradio`
    python -m benchmarks.page open URL       from navigation to the first and the live picture, beside an empty page
    python -m benchmarks.page slider URL     from a slider's move to the redrawn picture, beside a gr.Number's echo

URL is that of a running page. CHROMIUM names the browser.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import subprocess
import sys
import time
import urllib.request

import gradio as gr
from playwright.sync_api import Browser, Page

from benchmarks.browser import WINDOW, chromium

TURNS, MOVES, WARM_UP = 8, 24, 3

MAX_OPENING = 1.5
EMPTY = "document.querySelector('#hello')?.innerText.includes('hello')"
PICTURES = {
    # The first picture is part of the page's reply. The live one, drawn by Plotly, replaces it.
    "first picture": "document.querySelector('#first-picture path')",
    "live picture": "document.querySelector('#program-order-plot .live-plot')?.dataset.draws > 0",
}

CASES = {
    "64 × 64": "M=2048&N=2048&BLOCK_M=32&BLOCK_N=32",
    "512 × 512": "M=8192&N=8192&BLOCK_M=16&BLOCK_N=16",
}
MAX_REDRAW = {"64 × 64": 1.35, "512 × 512": 2.44}

# Checks in each frame: an element that exists in one frame is painted before the next.
_WATCH = """(() => {
  const look = () => requestAnimationFrame((%s) ? (at) => { window.seenAt = at; } : look);
  requestAnimationFrame(look);
})()"""

# Sets an input, and resolves two frames after a condition holds, with the milliseconds in between.
_TIMED = """async (value) => {
  const frame = () => new Promise(requestAnimationFrame);
  const until = async (done) => { while (!done()) await new Promise((go) => setTimeout(go, 1)); };
  const start = performance.now();
  %s
  input.value = String(value);
  input.dispatchEvent(new Event('input', { bubbles: true }));
  await until(isDone);
  const done = performance.now();
  await frame();
  await frame();
  return [performance.now() - start, replied - start, done - replied];
}"""

MOVE = (
    _TIMED
    % """
  const plot = document.querySelector('#program-order-plot .live-plot');
  const input = document.querySelector('#knob-GROUP_SIZE-slider');
  const before = plot.dataset.draws;
  let replied = start;
  plot.addEventListener('tilescope:paint', () => { replied = performance.now(); }, { once: true });
  const isDone = () => plot.dataset.draws !== before;"""
)
ECHO = (
    _TIMED
    % """
  const [input, echo] = document.querySelectorAll('input[type=number]');
  const replied = start, isDone = () => echo.value === String(value);"""
)


def measure_start() -> None:
    """Print the time of the first reply beside that of `import gradio`."""
    _import_gradio_s(), _first_reply_s()  # fills the file caches
    pairs = [(_first_reply_s(), _import_gradio_s()) for _ in range(TURNS)]
    for reply, gradio in pairs:
        print(
            f"first reply {reply:.2f} s, import gradio {gradio:.2f} s, ratio {reply / gradio:.2f}"
        )
    print(f"median ratio {statistics.median(reply / gradio for reply, gradio in pairs):.2f}")


def _import_gradio_s() -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import gradio"], check=True)
    return time.perf_counter() - start


def _first_reply_s() -> float:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    start = time.perf_counter()
    app = subprocess.Popen(
        [sys.executable, "app.py", "--port", str(port)], stdout=subprocess.DEVNULL
    )
    try:
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60).read()
                return time.perf_counter() - start
            except OSError:
                if app.poll() is not None:
                    raise SystemExit("app.py ended before it replied") from None
                time.sleep(0.01)
    finally:
        app.terminate()
        app.wait()


def measure_opening(url: str) -> None:
    """Print the time until a browser without a cache paints each picture."""
    with gr.Blocks(analytics_enabled=False) as empty:
        gr.HTML("hello", elem_id="hello")
    _, address, _ = empty.launch(prevent_thread_lock=True, quiet=True, ssr_mode=False)
    pages = {
        "empty page": (address, EMPTY),
        **{name: (url, script) for name, script in PICTURES.items()},
    }
    with chromium() as browser:
        # The first turn fills the servers' caches.
        turns = [
            {name: _seen_ms(browser, *page) for name, page in pages.items()}
            for _ in range(TURNS + 1)
        ][1:]
    empty.close()
    for name in pages:
        times = [turn[name] for turn in turns]
        ratio = statistics.median(turn[name] / turn["empty page"] for turn in turns)
        spread = f"{min(times):.0f} to {max(times):.0f}"
        print(
            f"{name}: median {statistics.median(times):.0f} ms ({spread}), {ratio:.2f} × the empty page, paired"
        )
    print(f"The limit for the first picture is {MAX_OPENING}.")


def _seen_ms(browser: Browser, url: str, is_there: str) -> float:
    context = browser.new_context(viewport=WINDOW)
    page = context.new_page()
    page.add_init_script(_WATCH % is_there)
    page.goto(url, wait_until="commit")
    page.wait_for_function("window.seenAt")
    seen = float(page.evaluate("window.seenAt"))
    context.close()
    return seen


def measure_slider(url: str) -> None:
    """Print the time from a move of GROUP_SIZE to its picture."""
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
            page.goto(f"{url}?kernel=matmul.grouped&tab=program-order&{query}")
            page.wait_for_selector("#program-order-plot .live-plot[data-draws]")
            page.wait_for_timeout(2500)
            _compare(name, page, gradio)
            page.close()
    echoing.close()


def _compare(name: str, page: Page, gradio: Page) -> None:
    sizes: list[int] = []
    page.on("requestfinished", lambda request: sizes.append(request.sizes()["responseBodySize"]))
    moves, echoes = [], []
    for move in range(MOVES + WARM_UP):
        page.bring_to_front()
        # The slider steps through powers of two and opens on its step 2, so each of these moves changes it.
        moves.append(page.evaluate(MOVE, (3 + move) % 6))
        page.wait_for_timeout(400)
        gradio.bring_to_front()
        echoes.append(
            gradio.evaluate(
                ECHO, 1000 + move + int(gradio.input_value("input[type=number] >> nth=0"))
            )[0]
        )
        gradio.wait_for_timeout(100)
    whole, replied, drawn = (
        statistics.median(column) for column in zip(*moves[WARM_UP:], strict=True)
    )
    echo = statistics.median(echoes[WARM_UP:])
    print(
        f"{name} tiles: median {whole:.0f} ms ({replied:.0f} until the reply is unpacked, {drawn:.0f} to draw it), "
        f"Gradio's echo {echo:.0f} ms: {whole / echo:.2f} ×, limit {MAX_REDRAW[name]}; "
        f"{sum(sizes) / len(moves) / 1000:.1f} kB per move"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("start", "open", "slider"))
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:7860/")
    flags = parser.parse_args()
    if flags.what == "start":
        measure_start()
    else:
        {"open": measure_opening, "slider": measure_slider}[flags.what](flags.url)


if __name__ == "__main__":
    main()
