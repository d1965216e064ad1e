"""Measure the rate at which the SMs of this GPU receive bytes from the L2: `python -m benchmarks.l2`.

Times float16 products with small tiles, which the L2 limits, with GROUP_SIZEs that read little from DRAM. Prints the
bytes that all programs request, divided by the time. A GPU's `l2_gbps_per_sm` (`tilescope/declare/gpus.py`) is the
maximum among launches of about a millisecond or longer. Shorter launches are faster, because the clock is higher.
Takes about ten seconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from benchmarks.kernels import open_gpu

if TYPE_CHECKING:
    from tilescope.declare.gpus import Gpu

SHAPES = (8192, 4096, 6144), (8192, 8192, 4096), (8192, 8192, 8192)
TILES = (64, 64), (64, 128)
GROUP_SIZES = 16, 32, 64
_LONG_MS = 0.9


def main() -> None:
    with open_gpu() as (gpu, device):
        print(f"{device.name}, torch {device.torch}, Triton {device.triton}")
        long = []
        for name, ms, gbps in _measure_rates(gpu):
            print(
                f"{name:46} {ms:7.3f} ms {gbps:8,.0f} GB/s {gbps / gpu.sms:6.1f} per SM", flush=True
            )
            if ms >= _LONG_MS:
                long.append(gbps / gpu.sms)
        print(
            f"l2_gbps_per_sm: {max(long):.0f}, the maximum among launches of at least {_LONG_MS} ms."
        )


def _measure_rates(gpu: Gpu) -> Iterator[tuple[str, float, float]]:
    """Each launch's name, its median time in ms, and the rate in GB/s at which the SMs receive data."""
    import numpy as np

    from tilescope.declare.discovery import discover
    from tilescope.declare.experiment import Experiment
    from tilescope.declare.spec import Launch, shape_text
    from tilescope.measure.gated_stream import GatedStream
    from tilescope.measure.run import prepare
    from tilescope.measure.timing import Effort, sample
    from visualize.predict.reuse import requested_bytes
    from visualize.predict.schedule import schedule

    kernel = discover()["matmul.grouped"]
    effort = Effort(0.005, fewest=20, most=400, least_ms=50.0, most_s=1.0, warm_s=0.2)
    for sizes, (block_m, block_n) in itertools.product(SHAPES, TILES):
        problem = kernel.family.problem(**dict(zip("MNK", sizes, strict=True)), dtype="float16")
        configs = [
            kernel.config(
                BLOCK_M=block_m,
                BLOCK_N=block_n,
                BLOCK_K=32,
                num_warps=4,
                num_stages=3,
                GROUP_SIZE=size,
            )
            for size in GROUP_SIZES
        ]
        calls = [prepare(Experiment(kernel.id, problem, config), gpu).bind() for config in configs]
        launch = Launch(problem, configs[0], gpu)
        asked = requested_bytes(schedule(kernel, launch))
        samples = sample(GatedStream(calls, "warm", "events"), effort)
        for config, times in zip(configs, samples.times_ms, strict=True):
            ms = float(np.median(times))
            name = f"{shape_text(problem)}, {block_m} × {block_n} tiles, GROUP_SIZE {config.GROUP_SIZE}"
            yield name, ms, asked / ms / 1e6


if __name__ == "__main__":
    main()
