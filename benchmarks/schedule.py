"""What a redraw of the Schedule tab costs the server: both orders, their players, the curve of loads and the table.

python -m benchmarks.schedule
"""

from __future__ import annotations

import gzip
import statistics
import time

import gradio as gr

from visualize.panels.schedule_tab import SchedulePanel
from visualize.panels.tabs import SETTINGS
from visualize.state.known import Known

REPETITIONS = 9

CASES: dict[str, dict[str, object]] = {
    "grouped, 64 × 64 tiles": {"kernel": "matmul.grouped", "M": 2048, "N": 2048, "BLOCK_M": 32, "BLOCK_N": 32},
    "grouped, 256 × 256": {"kernel": "matmul.grouped", "M": 4096, "N": 4096, "BLOCK_M": 16, "BLOCK_N": 16},
    "grouped, 512 × 512": {"kernel": "matmul.grouped", "M": 8192, "N": 8192, "BLOCK_M": 16, "BLOCK_N": 16},
    "grouped, 1024 × 1024": {"kernel": "matmul.grouped", "M": 16384, "N": 16384, "BLOCK_M": 16, "BLOCK_N": 16},
    "grouped by 7, 1024 × 1024, wave": {
        **{"kernel": "matmul.grouped", "M": 16384, "N": 16384, "BLOCK_M": 16, "BLOCK_N": 16},
        **{"GROUP_SIZE": 7, "color": "wave"},
    },
    "split-K by 16, 256 × 256": {
        **{"kernel": "matmul.split_k_atomic", "M": 4096, "N": 4096, "K": 16384},
        **{"BLOCK_M": 16, "BLOCK_N": 16, "SPLIT_K": 16},
    },
    "persistent, 1024 × 512": {"kernel": "matmul.persistent", "M": 16384, "N": 16384, "BLOCK_M": 16, "BLOCK_N": 32},
    "grid_2d on a T4, 1024 × 1024": {
        **{"kernel": "matmul.grid_2d", "M": 16384, "N": 16384, "BLOCK_M": 16, "BLOCK_N": 16},
        "gpu": "T4",
    },
    "transpose, 1024 × 1024": {"kernel": "transpose.tiled", "M": 16384, "N": 16384, "BLOCK_M": 16, "BLOCK_N": 16},
}


def main() -> None:
    panel = SchedulePanel()
    with gr.Blocks():
        panel.build()
    for name, fields in CASES.items():
        current = SETTINGS.state(fields, None)
        times = []
        for _ in range(REPETITIONS):
            begun = time.perf_counter()
            values = panel.draw(Known(current)).values()
            times.append((time.perf_counter() - begun) * 1000)
        text = "".join(map(str, values)).encode()
        print(
            f"{name}: median {statistics.median(times):.0f} ms, {min(times):.0f} to {max(times):.0f}; "
            f"{len(text) / 1000:.1f} kB, {len(gzip.compress(text)) / 1000:.1f} kB gzipped"
        )


if __name__ == "__main__":
    main()
