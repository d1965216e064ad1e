"""What the SMs of this GPU receive from the L2 where that is what limits a launch: `python -m benchmarks.l2`.

Times float16 products whose small tiles ask for more of the L2 than of anything else, in the GROUP_SIZEs that read
little from DRAM, and prints what all programs asked for over the time. The most of the launches of a millisecond and
more is the GPU's rate, `l2_gbps_per_sm` of `kernels/gpus.py`: bursts are faster, at a higher clock. About ten seconds.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernels.gpus import Gpu

SHAPES = (8192, 4096, 6144), (8192, 8192, 4096), (8192, 8192, 8192)
TILES = (64, 64), (64, 128)
GROUP_SIZES = 16, 32, 64
_LONG_MS = 0.9


def main() -> int:
    """Print the table, and the rate; returns how many launches could not be timed."""
    from kernels.gpus import this_gpu
    from kernels.measuring import worker
    from kernels.results import Failure

    gpu = this_gpu()
    if gpu is None:
        print("There is no GPU here, so there is nothing to time.", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as cache:
        worker.start("cuda", cache)
        device = worker.describe()
        if isinstance(device, Failure):
            print(device.message, file=sys.stderr)
            return 1
        print(f"{device.name}, torch {device.torch}, Triton {device.triton}")
        long = []
        for said, ms, gbps in _received(gpu):
            print(f"{said:46} {ms:7.3f} ms {gbps:8,.0f} GB/s {gbps / gpu.sms:6.1f} per SM", flush=True)
            if ms >= _LONG_MS:
                long.append(gbps / gpu.sms)
        print(f"l2_gbps_per_sm: {max(long):.0f}, the most of those of {_LONG_MS} ms and more.")
    return 0


def _received(gpu: Gpu) -> Iterator[tuple[str, float, float]]:
    """Each launch in words, its median time, and what its SMs receive, in GB/s."""
    import numpy as np

    from kernels import discover
    from kernels.experiment import Experiment
    from kernels.measuring.gated_stream import GatedStream
    from kernels.measuring.run import prepare
    from kernels.measuring.timing import Effort, sample
    from kernels.spec import Launch, shape_text
    from visualize.predict.reuse import asked_bytes
    from visualize.predict.schedule import schedule

    kernel = discover()["matmul.grouped"]
    effort = Effort(0.005, fewest=20, most=400, least_ms=50.0, most_s=1.0, warm_s=0.2)
    for sizes, (block_m, block_n) in itertools.product(SHAPES, TILES):
        problem = kernel.family.problem(**dict(zip("MNK", sizes, strict=True)), dtype="float16")
        configs = [
            kernel.config(BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=32, num_warps=4, num_stages=3, GROUP_SIZE=size)
            for size in GROUP_SIZES
        ]
        calls = [prepare(Experiment(kernel.id, problem, config), gpu).ready() for config in configs]
        launch = Launch(problem, configs[0], gpu)
        asked = asked_bytes(kernel, launch, schedule(kernel, launch, 1, "assumed"))
        samples = sample(GatedStream(calls, "warm", "events"), effort)
        for config, times in zip(configs, samples.times_ms, strict=True):
            ms = float(np.median(times))
            said = f"{shape_text(problem)}, {block_m} × {block_n} tiles, GROUP_SIZE {config.GROUP_SIZE}"
            yield said, ms, asked / ms / 1e6


if __name__ == "__main__":
    sys.exit(main())
