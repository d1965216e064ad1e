"""How long the compiled model takes once a kernel is compiled: `python -m benchmarks.coalescing`. No GPU needed.

Large launches of every kernel, with their default tiles and with the smallest. The bar is 50 ms each.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

REPEATS = 7
SIZE = 8192
BAR_MS = 50


def main() -> None:
    """Compile, count several times, print the median, and the time beside that of an eighth of the size."""
    from kernels import discover
    from kernels.experiment import Experiment
    from kernels.gpus import GPUS
    from kernels.knobs import knobs
    from kernels.measuring.session import Session
    from kernels.results import Compiled
    from kernels.spec import Launch
    from visualize.predict.coalescing import operations

    with tempfile.TemporaryDirectory() as cache:
        session = Session(None, Path(cache))
        print(f"{'kernel':24} {'tile':12} {'size':>6} {'dtype':8} {'ms':>8} {'÷ 1/8':>6}")
        for kernel in discover().values():
            tile = {n: k for n, k in knobs(kernel.config).items() if k.group == "Tile" and k.choices}
            small = {name: 16 if 16 in knob.choices else knob.choices[0] for name, knob in tile.items()}
            for name, config in (("default", {}), ("16 × 16", {**small, "num_warps": 4})):
                for size, dtype in ((SIZE, "float16"), (SIZE, "float32"), (SIZE - 1, "float16")):
                    times = []
                    for side in (size, size // 8):
                        sizes = {field: side for field in ("M", "N", "K") if field in kernel.problem_knobs()}
                        problem = kernel.family.problem(**sizes, dtype=dtype)
                        chosen = kernel.config(**{"num_warps": 8, **config})
                        made = session.compiled(Experiment(kernel.id, problem, chosen, "H200"))
                        if not isinstance(made, Compiled):
                            print(f"{kernel.id:24} {name:12} {side:6} {dtype:8} {made.message}")
                            break
                        launch = Launch(problem, chosen, GPUS["H200"])
                        times.append(_median_ms(lambda k=kernel, w=launch, m=made: operations(k, w, m.operations)))
                    else:
                        over = "  over the bar" if times[0] > BAR_MS else ""
                        ratio = times[0] / times[1]
                        print(f"{kernel.id:24} {name:12} {size:6} {dtype:8} {times[0]:8.1f} {ratio:6.2f}{over}")
        session.close()


def _median_ms(call) -> float:
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        call()
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


if __name__ == "__main__":
    main()
