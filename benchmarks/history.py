"""How soon the History tab opens with 100,000 stored runs: the queries, the text and the figure. At most 500 ms.

python -m benchmarks.history [RUNS]
"""

from __future__ import annotations

import datetime
import json
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import gradio as gr

from kernels import discover
from kernels.experiment import Experiment, from_json
from kernels.results.store import Store
from kernels.results.stored import experiment_key, experiment_text
from visualize.panels.history_tab import HistoryPanel, reply
from visualize.panels.tabs import SETTINGS
from visualize.state.known import Known

RUNS, REPETITIONS, BAR_MS = 100_000, 9, 500

# Runs of one Experiment that was measured again and again.
OFTEN = {"kernel": "matmul.grouped", "problem": {"M": 4096, "N": 4096, "K": 4096}}
MOST_OF_ONE = 500

CASES: dict[str, dict[str, object]] = {
    "an Experiment with 500 runs": {"kernel": "matmul.grouped", "M": 4096, "N": 4096, "K": 4096},
    "one with none": {"kernel": "matmul.grouped", "M": 17, "N": 17, "K": 17},
    "filtered, on an old page": {
        "kernel": "matmul.grouped",
        "history_kernel": "transpose.tiled",
        "history_before": 999,
    },
}


def rows(count: int) -> Iterator[tuple[Any, ...]]:
    """Rows of runs as the store has them: of every kernel, on two devices, over two years."""
    dice, begun = random.Random(0), datetime.datetime(2025, 1, 1, tzinfo=datetime.UTC)
    kernels = list(discover())
    often = _named(from_json(OFTEN, discover()))
    for number in range(count):
        named = often if number % (count // MOST_OF_ONE) == 0 else _some(kernels[number % len(kernels)], dice)
        gpu, device = ("H200", "NVIDIA H200") if number % 3 else ("H100", "NVIDIA H100 80GB HBM3")
        median_ms = 0.2 * dice.uniform(0.995, 1.005) * (1.08 if number > count / 2 else 1.0)
        ended = begun + datetime.timedelta(minutes=10 * number)
        times = {"median_ms": median_ms, "p20_ms": 0.995 * median_ms, "p80_ms": 1.005 * median_ms, "samples": 100}
        summary = json.dumps({**times, "ratio": 1.2, "ratio_low": 1.19, "ratio_high": 1.21, "passed": True})
        versions = ("cuda", "2.13.0", "3.7.1", ended.isoformat(timespec="seconds"))
        yield ("run", *named, gpu, device, *versions, summary)


def _some(kernel: str, dice: random.Random) -> tuple[str, str, str]:
    return _named(from_json({"kernel": kernel, "problem": {"M": dice.randrange(1, 9000)}}, discover()))


def _named(experiment: Experiment) -> tuple[str, str, str]:
    return experiment.kernel, experiment_key(experiment), experiment_text(experiment)


def fill(path: Path, count: int) -> None:
    """Write so many runs, in one transaction: the store's own way takes an fsync for each."""
    Store(path).close()
    columns = "kind, kernel, key, experiment, gpu, device, backend, torch, triton, ended, summary, recording"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany(
            f"INSERT INTO result ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, zeroblob(2500))", rows(count)
        )


def main(count: int) -> None:
    panel = HistoryPanel()
    with gr.Blocks():
        panel.build()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tilescope.db"
        began = time.perf_counter()
        fill(path, count)
        print(f"{count:,} runs, {path.stat().st_size / 1e6:.0f} MB, written in {time.perf_counter() - began:.0f} s")
        opened = {name: lambda f=flat: opening(panel, path, f) for name, flat in CASES.items()}
        opened["/history of an experiment"] = lambda: answering(path)
        worst = max(timed(name, call) for name, call in opened.items())
    if worst > BAR_MS:
        raise SystemExit(f"The slowest took {worst:.0f} ms; the bar is {BAR_MS} ms.")


def opening(panel: HistoryPanel, path: Path, flat: dict[str, object]) -> None:
    """Open the tab with a store that has just been opened."""
    store = Store(path)
    panel.draw(Known(SETTINGS.state({"tab": "history", **flat}, None), store=store))
    store.close()


def answering(path: Path) -> None:
    store = Store(path)
    reply(store, OFTEN, "", "", "", 500, 0)
    store.close()


def timed(name: str, call: Any) -> float:
    """The median, in ms."""
    times = []
    for _ in range(REPETITIONS):
        begun = time.perf_counter()
        call()
        times.append((time.perf_counter() - begun) * 1000)
    print(f"{name}: median {statistics.median(times):.0f} ms, {min(times):.0f} to {max(times):.0f}")
    return statistics.median(times)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else RUNS)
