"""Record runs and comparisons of layouts on this machine's GPU: `python -m scripts.record_runs FILE [--append]`.

Every kernel's default and presets, in every dtype, and the large square shapes. The file holds one recording a line.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from scripts.recording import Wanted, flags_of, record, submitted

# Whose layouts are compared: the large square product in every type that has a story there.
COMPARED: list[dict[str, Any]] = [
    {"kernel": kernel, "problem": {"M": 4096, "N": 4096, "K": 4096, "dtype": dtype}, "config": config}
    for dtype, block_k in (("float16", 64), ("float32", 32), ("float8_e4m3fn", 128))
    for kernel in ("matmul.grouped", "matmul.persistent")
    for config in ({"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": block_k, "GROUP_SIZE": 8, "num_warps": 8},)
]


def experiments() -> Iterator[Wanted]:
    """The payloads that are recorded, each with its measurement: "run" or "layouts"."""
    from kernels import discover
    from kernels.experiment import from_json

    for kernel in discover().values():
        settings = [({}, {}), *((dict(preset.problem), dict(preset.config)) for preset in kernel.presets)]
        seen: list[object] = []
        for problem, config in settings:
            for dtype in [problem["dtype"]] if "dtype" in problem else kernel.problem_knobs()["dtype"].choices or ():
                payload: dict[str, Any] = {"kernel": kernel.id, "config": config}
                payload["problem"] = {**problem, "dtype": dtype}
                if (experiment := from_json(payload, discover())) not in seen:
                    seen.append(experiment)
                    yield payload, "run"
    yield from ((compared, "layouts") for compared in COMPARED)


def main() -> int:
    """Record; returns the number of experiments that could not be."""
    flags = flags_of(__doc__).parse_args()
    return record(submitted(list(experiments())), _said, flags.file, flags.append)


def _said(measured: Any) -> str:
    from kernels.results import RunResult

    timing = measured.timing if isinstance(measured, RunResult) else measured.rows[0].timing
    return f"{timing.median_ms:.4f} ms" if timing else "wrong"


if __name__ == "__main__":
    sys.exit(main())
