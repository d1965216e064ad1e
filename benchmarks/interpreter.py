"""Fit the constants that estimate the time of Triton's interpreter: `python -m benchmarks.interpreter`.

`tilescope/declare/spec.py` holds these constants.
"""

from __future__ import annotations

import math

import numpy as np

from tilescope.declare.discovery import discover
from tilescope.declare.experiment import from_json
from tilescope.declare.gpus import GPUS
from tilescope.declare.spec import Launch
from tilescope.results import Failure


def main() -> None:
    # Worker processes import this file before they set how Triton runs, so imports of Triton come later.
    from tilescope.declare.spec import interpreter_seconds
    from tilescope.measure.session import Session

    payloads = [
        {
            "kernel": kernel,
            "problem": dict(zip("MNK", shape, strict=False)) | {"dtype": dtype},
            "config": config,
        }
        for kernel, shape, config in (
            ("matmul.grouped", (512, 512, 512), {}),
            ("matmul.grouped", (512, 512, 512), {"BLOCK_M": 32, "BLOCK_N": 32}),
            ("matmul.grid_2d", (1024, 1024, 512), {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64}),
            (
                "matmul.grid_2d",
                (1024, 1024, 1024),
                {"BLOCK_M": 256, "BLOCK_N": 256, "BLOCK_K": 128},
            ),
            ("matmul.grouped", (256, 256, 256), {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16}),
            ("transpose.tiled", (4096, 4096), {"BLOCK_M": 256, "BLOCK_N": 256}),
            ("transpose.tiled", (1024, 1024), {"BLOCK_M": 32, "BLOCK_N": 32}),
            ("transpose.row_strip", (1024, 1024), {}),
        )
        for dtype in ("float16", "float32")
    ]
    session = Session(None)
    rows, seconds = [], []
    for payload in payloads:
        experiment = from_json(payload)
        kernel = discover()[experiment.kernel]
        outcome = session.submit(experiment).result()
        if isinstance(outcome, Failure):
            raise SystemExit(outcome.message)
        launch = Launch(experiment.problem, experiment.config, GPUS["H200"])
        extents = kernel.extents(launch)
        counts = [
            (math.prod(extents[i] for i in access.over), access.elements)
            for access in kernel.accesses(launch)
        ]
        products = (
            math.prod(extents.values()) * experiment.config.BLOCK_M * experiment.config.BLOCK_N
        )
        products *= getattr(experiment.config, "BLOCK_K", 0)
        rows.append([sum(n for n, _ in counts), sum(n * size for n, size in counts), products])
        seconds.append(outcome.stages["launch"])
        estimate = interpreter_seconds(kernel, launch)
        print(f"{payload}: {seconds[-1]:.2f} s, estimated {estimate:.2f} s")
    weights = 1 / np.array(seconds)
    fit, *_ = np.linalg.lstsq(np.array(rows) * weights[:, None], np.ones(len(rows)), rcond=None)
    print("seconds per operation, element and product:", *(f"{value:.2g}" for value in fit))
    session.close()


if __name__ == "__main__":
    main()
