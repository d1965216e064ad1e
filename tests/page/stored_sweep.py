"""A stored sweep with times of a made-up device, so that the page shows every picture without a GPU."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kernels.results import Failure, Prediction, Strategy, Sweep
from kernels.results.store import Store
from kernels.sweep.sweep_run import SweepRun
from tests.sweep.fakes import FakeBuilder, FakeDevice, grid, true_ms

VARY = {
    "BLOCK_M": [32, 64, 128, 256],
    "BLOCK_N": [32, 64, 128, 256],
    "BLOCK_K": [32, 64],
    "num_warps": [2, 4, 8],
    "num_stages": [2, 3, 4],
}
# The page's address that shows the sweep.
QUERY = "?kernel=matmul.grouped&M=4096&N=4096&K=4096&gpu=H200&tab=sweep&sweep_vary=" + "+".join(
    f"{name}%3D{','.join(map(str, values))}" for name, values in VARY.items()
)
_RESOURCES = ("arithmetic", "L2", "DRAM", "latency")


def predict(kernel: Any, launch: Any, compiled: Any) -> Prediction:
    """Predict a time that is off by about 15 %, and by half for the smallest tiles."""
    rng = np.random.default_rng(zlib.crc32(repr(launch.config).encode()))
    experiment = replace(grid().base, problem=launch.problem, config=launch.config)
    resource = _RESOURCES[int(np.log2(launch.config.BLOCK_M * launch.config.BLOCK_N)) % 4]
    off = 0.5 if launch.config.BLOCK_M * launch.config.BLOCK_N <= 2048 else 1.0
    ms = true_ms(experiment) * off * float(rng.lognormal(0, 0.15))
    return Prediction(ms, resource, ((resource, ms),))


def _refused(experiment: Any) -> Failure | None:
    config = experiment.config
    needed = 2 * (config.BLOCK_M + config.BLOCK_N) * config.BLOCK_K * config.num_stages
    message = f"This config needs {needed:,} bytes of shared memory per program; H200 allows 232,448."
    return Failure("compile", "out_of_resources", message) if needed > 232_448 else None


def fill(path: Path, vary: Any = None, strategy: Strategy | None = None) -> Sweep:
    """Sweep, and write the result to the store of that path."""
    store, within = Store(path), grid(vary or VARY, M=4096, N=4096, K=4096)
    within = replace(within, base=replace(within.base, gpu="H200"))
    device = FakeDevice(noise=0.02, wrong=lambda each: each.config.BLOCK_K == 64 and each.config.BLOCK_M == 32)
    sweep_run = SweepRun(
        within, strategy or Strategy("random", seed=1), [device], FakeBuilder(predict, _refused), predict, store=store
    )
    sweep_run.start()
    sweep = sweep_run.result(120)
    store.close()
    return sweep
