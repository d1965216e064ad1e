"""Time a redraw of the program order and the compiled model of requests: `python -m benchmarks.models`.

No GPU needed. The model counts large launches of every kernel, with default and with 16 × 16 tiles. The limit is 50 ms
per launch, once the kernel is compiled.
"""

from __future__ import annotations

import gzip
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tilescope.declare.discovery import discover
from tilescope.declare.experiment import Experiment
from tilescope.declare.gpus import GPUS
from tilescope.declare.knobs import knobs
from tilescope.declare.spec import Launch
from tilescope.results import Compiled

REPEATS = 9
SIZE, MAX_MS = 8192, 50

_GROUPED: dict[str, object] = {"kernel": "matmul.grouped", "BLOCK_M": 16, "BLOCK_N": 16}
_LARGE = {"M": 16384, "N": 16384}
REDRAWS: dict[str, dict[str, object]] = {
    "grouped, 64 × 64 tiles": {**_GROUPED, "M": 1024, "N": 1024},
    "grouped, 512 × 512": {**_GROUPED, "M": 8192, "N": 8192},
    "grouped by 7, 1024 × 1024": {**_GROUPED, **_LARGE, "GROUP_SIZE": 7},
    "split-K by 16, 256 × 256": {
        **{
            **_GROUPED,
            "kernel": "matmul.split_k_atomic",
            "M": 4096,
            "N": 4096,
            "K": 16384,
            "SPLIT_K": 16,
        }
    },
    "persistent, 1024 × 512": {**_GROUPED, "kernel": "matmul.persistent", **_LARGE, "BLOCK_N": 32},
    "transpose, 1024 × 1024": {**_GROUPED, "kernel": "transpose.tiled", **_LARGE},
}


def measure_redraws() -> None:
    """Print the time and the bytes of a redraw: both orders, their players, and the table."""
    from visualize.views.order.view import ProgramOrderPanel
    from visualize.views.state import Snapshot
    from visualize.views.tabs import read_state

    panel = ProgramOrderPanel()
    for name, fields in REDRAWS.items():
        state = read_state(fields, None)
        text = "".join(map(str, panel.draw(Snapshot(state)).values())).encode()
        sizes = f"{len(text) / 1000:.1f} kB, {len(gzip.compress(text)) / 1000:.1f} kB gzipped"
        print(
            f"{name}: median {median_ms(lambda state=state: panel.draw(Snapshot(state))):.0f} ms; {sizes}"
        )


def measure_requests() -> None:
    """Print the compiled model's time, and its ratio to the time at an eighth of the size."""
    from tilescope.evaluate.declared import count_accesses
    from tilescope.measure.session import Session

    with tempfile.TemporaryDirectory() as cache:
        session = Session(None, Path(cache))
        for kernel in discover().values():
            tile = {
                n: k for n, k in knobs(kernel.config).items() if k.group == "Tile" and k.choices
            }
            small = {
                name: 16 if 16 in knob.choices else knob.choices[0] for name, knob in tile.items()
            }
            for name, config in (("default", {}), ("16 × 16", {**small, "num_warps": 4})):
                for size, dtype in ((SIZE, "float16"), (SIZE, "float32"), (SIZE - 1, "float16")):
                    times = []
                    for side in (size // 8, size):
                        sizes = {
                            field: side
                            for field in ("M", "N", "K")
                            if field in kernel.problem_knobs()
                        }
                        problem = kernel.family.problem(**sizes, dtype=dtype)
                        chosen = kernel.config(**{"num_warps": 8, **config})
                        made = session.compile(
                            Experiment(kernel.id, problem, chosen, "H200")
                        ).result()
                        if not isinstance(made, Compiled):
                            print(f"{kernel.id:24} {name:12} {side:6} {dtype:8} {made.message}")
                            break
                        launch = Launch(problem, chosen, GPUS["H200"])
                        times.append(
                            median_ms(
                                lambda k=kernel, w=launch, m=made: count_accesses(
                                    k, w, m.operations
                                )
                            )
                        )
                    else:
                        over = f"  over {MAX_MS} ms" if times[1] > MAX_MS else ""
                        ratio = times[1] / times[0]
                        print(
                            f"{kernel.id:24} {name:12} {size:6} {dtype:8} {times[1]:8.1f} ms {ratio:6.2f} ×{over}"
                        )
        session.close()


def median_ms(call: Callable[[], Any]) -> float:
    """Return the median time of REPEATS calls."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


if __name__ == "__main__":
    measure_redraws()
    measure_requests()
