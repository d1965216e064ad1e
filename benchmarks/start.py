"""How soon the page answers: `python app.py` to its first reply, over `import gradio` alone, in turns.

python -m benchmarks.start [RUNS]
"""

from __future__ import annotations

import socket
import statistics
import subprocess
import sys
import time
import urllib.request


def import_gradio_s() -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import gradio"], check=True)
    return time.perf_counter() - start


def first_reply_s() -> float:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    start = time.perf_counter()
    app = subprocess.Popen([sys.executable, "app.py", "--port", str(port)], stdout=subprocess.DEVNULL)
    try:
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60).read()
                return time.perf_counter() - start
            except OSError:
                if app.poll() is not None:
                    raise SystemExit("app.py ended before it answered") from None
                time.sleep(0.01)
    finally:
        app.terminate()
        app.wait()


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    import_gradio_s(), first_reply_s()  # fills the file caches
    pairs = [(import_gradio_s(), first_reply_s()) for _ in range(runs)]
    for ours, theirs in ((reply, gradio) for gradio, reply in pairs):
        print(f"first reply {ours:.2f} s, import gradio {theirs:.2f} s, ratio {ours / theirs:.2f}")
    print(f"median ratio {statistics.median(reply / gradio for gradio, reply in pairs):.2f}")


if __name__ == "__main__":
    main()
