"""Record runs and comparisons of layouts on this machine's GPU: `python -m scripts.record_runs FILE [--append]`.

Every kernel's default and presets, in every dtype, and the large square shapes. The file holds one recording a line.
The picture of the error is kept of those runs whose error has something to show. To record these alone, and put them in
the place of what another file holds of them:

    python -m scripts.record_runs NEW --pictured --replace kernels/records/h200.jsonl
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from scripts.recording import Wanted, flags_of, record, submitted

# Whose layouts are compared: the large square product in every type that has a story there.
COMPARED: list[dict[str, Any]] = [
    {"kernel": kernel, "problem": {"M": 4096, "N": 4096, "K": 4096, "dtype": dtype}, "config": config}
    for dtype, block_k in (("float16", 64), ("float32", 32), ("float8_e4m3fn", 128))
    for kernel in ("matmul.grouped", "matmul.persistent")
    for config in ({"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": block_k, "GROUP_SIZE": 8, "num_warps": 8},)
]


# A race that loses less than all: two or four slices of K per tile, and tiles that don't divide the shape.
RACES: list[dict[str, Any]] = [
    {"kernel": "matmul.split_k_race", "problem": {"M": m, "N": n, "K": k}, "config": {"SPLIT_K": slices}}
    for (m, n, k), slices in (
        ((512, 512, 512), 2),
        ((512, 512, 512), 4),
        ((2048, 2048, 2048), 2),
        ((577, 1000, 512), 2),
    )
]

# Types whose rounding can be seen in the picture of the error: few digits, or fewer than they store.
_ROUGH = ("float8_e4m3fn", "float8_e5m2", "bfloat16", "float32")


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
    yield from ((race, "run") for race in RACES)
    yield from ((compared, "layouts") for compared in COMPARED)


def is_pictured(wanted: Wanted) -> bool:
    """Whether the picture of its error is kept: every race's, and the default launch's in coarse types."""
    payload, name = wanted
    is_default = payload["kernel"] == "matmul.grouped" and not payload["config"]
    return name == "run" and (
        payload["kernel"] == "matmul.split_k_race" or (is_default and payload["problem"].get("dtype") in _ROUGH)
    )


def main() -> int:
    """Record; returns the number of experiments that could not be."""
    parser = flags_of(__doc__)
    parser.add_argument("--pictured", action="store_true", help="only runs whose picture of the error is kept")
    parser.add_argument("--replace", type=Path, help="a file of recordings; FILE gets them with what is measured now")
    flags = parser.parse_args()
    wanted = [one for one in experiments() if is_pictured(one) or not flags.pictured]
    outcomes = ((one, without_picture(one, outcome)) for one, outcome in submitted(wanted))
    return record(outcomes, _said, flags.file, flags.append, replaced=flags.replace)


def without_picture(wanted: Wanted, outcome: Any) -> Any:
    """The outcome as it is recorded: a picture takes some kilobytes, and most show rounding alone."""
    from kernels.results import RunResult

    return replace(outcome, diff=None) if isinstance(outcome, RunResult) and not is_pictured(wanted) else outcome


def _said(measured: Any) -> str:
    from kernels.results import RunResult

    timing = measured.timing if isinstance(measured, RunResult) else measured.rows[0].timing
    pictured = ", with its picture" if isinstance(measured, RunResult) and measured.diff else ""
    wrong = f"{measured.check.mismatched:,} wrong" if isinstance(measured, RunResult) else ""
    return (f"{timing.median_ms:.4f} ms" if timing else wrong) + pictured


if __name__ == "__main__":
    sys.exit(main())
