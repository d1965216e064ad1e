"""Record what the guided tours show and no other campaign records: `python -m scripts.record_tours FILE [--append]`.

Runs and timelines of a few launches on this machine's GPU. The file holds one recording a line.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from scripts.recording import Wanted, flags_of, record, submitted

_WIDE = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "GROUP_SIZE": 8, "num_warps": 8}

# "Fusing pays, until it doesn't": the same output, and a reduction that grows. K = 4096 is a preset.
FUSED_K = (256, 512, 1024, 2048, 8192, 16384)

# "A tail wave": (M, N) of 132 and 133 tiles of 128 × 256, of 16 whole waves on 132 SMs, and of 16 tiles more.
TAILS = ((1536, 2816), (2432, 1792), (6144, 11264), (7168, 9728))

# "tf32: who pays for a row-major B": (dtype, BLOCK_K) of the runs with a K-major B.
K_MAJOR = (("float32", 32), ("float16", 64))

# "A race you can see, and one you can't": (M = N, SPLIT_K). Slices of a tile are as many programs apart as there are
# tiles. 512 is the kernel's default.
RACES = ((1024, 8), (2048, 8), (4096, 8), (4096, 2))


def experiments() -> Iterator[Wanted]:
    """The payloads that are recorded, each with its measurement."""
    for k in FUSED_K:
        problem: dict[str, Any] = {"M": 4096, "N": 4096, "K": k}
        yield {"kernel": "matmul.fused_add_relu", "problem": problem, "config": _WIDE}, "run"
    # An output of eight tiles.
    yield {"kernel": "matmul.fused_add_relu", "config": _WIDE}, "run"
    for m, n in TAILS:
        launch: dict[str, Any] = {"kernel": "matmul.grouped", "problem": {"M": m, "N": n, "K": 4096}, "config": _WIDE}
        yield launch, "run"
        yield launch, "timeline"
    m, n = TAILS[1]
    square = {**_WIDE, "BLOCK_N": 128, "num_warps": 4}
    launch = {"kernel": "matmul.grouped", "problem": {"M": m, "N": n, "K": 4096}, "config": square}
    yield launch, "run"
    yield launch, "timeline"
    for dtype, block_k in K_MAJOR:
        problem = {"M": 4096, "N": 4096, "K": 4096, "dtype": dtype, "layout": "NT"}
        yield {"kernel": "matmul.grouped", "problem": problem, "config": {**_WIDE, "BLOCK_K": block_k}}, "run"
    for size, slices in RACES:
        problem = {"M": size, "N": size, "K": 4096}
        yield {"kernel": "matmul.split_k_race", "problem": problem, "config": {"SPLIT_K": slices}}, "run"
    yield {"kernel": "matmul.split_k_race", "run": {"distribution": "zeros"}}, "run"


def said(measured: Any) -> str:
    """What is printed of a run, or of a timeline."""
    from kernels.results import RunResult

    if not isinstance(measured, RunResult):
        return f"{measured.plain.median_ms:.4f} ms, {len(measured.sm):,} programs"
    check, timing, baseline = measured.check, measured.timing, measured.baseline
    if timing is None:
        return f"{check.mismatched:,} of {check.elements:,} wrong"
    return f"{timing.median_ms:.4f} ms" + (f", library {baseline.timing.median_ms:.4f} ms" if baseline else "")


def main() -> int:
    """Record; returns the number of experiments that could not be."""
    flags = flags_of(__doc__).parse_args()
    outcomes = ((one, without_picture(one, outcome)) for one, outcome in submitted(list(experiments())))
    return record(outcomes, said, flags.file, flags.append)


def without_picture(wanted: Wanted, outcome: Any) -> Any:
    """The outcome as it is recorded: with the picture of its error where that is a race's."""
    from kernels.results import RunResult

    is_race = wanted[0]["kernel"] == "matmul.split_k_race"
    return outcome if is_race or not isinstance(outcome, RunResult) else replace(outcome, diff=None)


if __name__ == "__main__":
    sys.exit(main())
