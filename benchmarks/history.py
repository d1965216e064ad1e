"""Time to draw the history with 100,000 stored runs: queries, text and figure. The limit is 500 ms.

python -m benchmarks.history [RUNS]
"""

from __future__ import annotations

import datetime
import json
import random
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.models import median_ms
from kernels import discover
from kernels.experiment import from_json
from kernels.measuring.session import Session
from kernels.results.store import Store, experiment_key, experiment_text
from visualize.views.panel import Api
from visualize.views.state import Snapshot
from visualize.views.tabs import SETTINGS
from visualize.views.tune.history import HistoryPanel

RUNS, MAX_MS = 100_000, 500

# An experiment with many runs.
REPEATED = {"kernel": "matmul.grouped", "problem": {"M": 4096, "N": 4096, "K": 4096}}
REPETITIONS = 500

CASES: dict[str, dict[str, object]] = {
    "an experiment with 500 runs": {"kernel": "matmul.grouped", "M": 4096, "N": 4096, "K": 4096},
    "an experiment without runs": {"kernel": "matmul.grouped", "M": 17, "N": 17, "K": 17},
    "filtered, the second page": {
        "kernel": "matmul.grouped",
        "history_kernel": "transpose.tiled",
        "history_page": 2,
    },
}


def rows(count: int) -> Iterator[tuple[Any, ...]]:
    """Yield rows of runs as the store has them: of every kernel, on two devices, over two years."""
    dice, begun, kernels = (
        random.Random(0),
        datetime.datetime(2025, 1, 1, tzinfo=datetime.UTC),
        list(discover()),
    )
    for number in range(count):
        drawn = {
            "kernel": kernels[number % len(kernels)],
            "problem": {"M": dice.randrange(1, 9000)},
        }
        experiment = from_json(REPEATED if number % (count // REPETITIONS) == 0 else drawn)
        gpu, device = ("H200", "NVIDIA H200") if number % 3 else ("H100", "NVIDIA H100 80GB HBM3")
        median_ms = 0.2 * dice.uniform(0.995, 1.005) * (1.08 if number > count / 2 else 1.0)
        ended = begun + datetime.timedelta(minutes=10 * number)
        times = {
            "median_ms": median_ms,
            "p20_ms": 0.995 * median_ms,
            "p80_ms": 1.005 * median_ms,
            "samples": 100,
        }
        summary = json.dumps(
            {**times, "ratio": 1.2, "ratio_low": 1.19, "ratio_high": 1.21, "passed": True}
        )
        versions = ("cuda", "2.13.0", "3.7.1", ended.isoformat(timespec="seconds"))
        key, text = experiment_key(experiment), experiment_text(experiment)
        yield ("run", experiment.kernel, key, text, gpu, device, *versions, summary)


def fill(path: Path, count: int) -> None:
    """Write all runs in one transaction. The store would commit, and wait for the disk, after each run."""
    Store(path).close()
    columns = "kind, kernel, key, experiment, gpu, device, backend, torch, triton, ended, summary, recording"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany(
            f"INSERT INTO result ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, zeroblob(2500))",
            rows(count),
        )


def main(count: int) -> None:
    panel = HistoryPanel()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tilescope.db"
        fill(path, count)
        print(f"{count:,} runs, {path.stat().st_size / 1e6:.0f} MB")

        def open_tab(fields: dict[str, object]) -> None:
            with closing(Store(path)) as store:
                panel.draw(
                    Snapshot(SETTINGS.state({"tab": "history", **fields}, None), store=store)
                )

        times = {
            name: median_ms(lambda fields=fields: open_tab(fields))
            for name, fields in CASES.items()
        }
        with closing(Session(None, Path(folder), Store(path))) as session:
            (endpoint,) = panel.endpoints(Api(session))
            times["/history of an experiment"] = median_ms(
                lambda: endpoint.function(REPEATED, limit=500)
            )
    for name, ms in times.items():
        print(f"{name}: median {ms:.0f} ms{f'  over {MAX_MS} ms' if ms > MAX_MS else ''}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else RUNS)
