"""Record runs on this machine's GPU: `python -m scripts.record_runs FILE [--append]`.

Every kernel's default and presets in every dtype, races, the configs that a search found, and then every kernel and
dtype over several shapes and tiles. The file holds one recording a line. `--most N` ends after
the first N.
The picture of the error is kept of those runs whose error has something to show. To record these alone, and put them in
the place of what another file holds of them:

    python -m scripts.record_runs NEW --pictured --replace kernels/results/recorded/h200.jsonl

To record what a file lacks, and write both:

    python -m scripts.record_runs NEW --lacking --replace kernels/results/recorded/h200.jsonl
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from scripts.recording import Wanted, flags_of, record, submitted, unrecorded

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

# Shapes that every kernel of a family runs, in every dtype: powers of two, long and short K, and sizes that no tile
# divides.
SHAPES: dict[str, list[dict[str, int]]] = {
    "matmul": [
        *({"M": size, "N": size, "K": size} for size in (1024, 2048, 4096, 8192)),
        {"M": 8192, "N": 8192, "K": 1024},
        {"M": 1024, "N": 1024, "K": 8192},
        {"M": 1000, "N": 1333, "K": 777},
    ],
    "transpose": [{"M": m, "N": n} for m, n in ((2048, 2048), (4096, 4096), (8192, 8192), (7000, 6000), (8191, 8193))],
}

# Tiles that they run it with, where they take them, besides their defaults.
TILES: dict[str, list[dict[str, int]]] = {
    "matmul": [
        {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 32, "num_warps": 4},
        {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "num_warps": 8},
    ],
    "transpose": [{"BLOCK_M": 32, "BLOCK_N": 32}, {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 8}],
}

# Types whose rounding can be seen in the picture of the error: few digits, or fewer than they store.
_ROUGH = ("float8_e4m3fn", "float8_e5m2", "bfloat16", "float32")


def experiments() -> Iterator[Wanted]:
    """The payloads that are recorded, each once, with its measurement."""
    from kernels import discover
    from kernels.experiment import from_json
    from kernels.recommended import shipped

    seen: set[object] = set()
    searched = (one.experiment.to_json() for one in shipped())
    for payload in itertools.chain(_defaults_and_presets(), RACES, searched, _broad()):
        if (experiment := from_json(payload, discover())) not in seen:
            seen.add(experiment)
            yield payload, "run"


def _defaults_and_presets() -> Iterator[dict[str, Any]]:
    from kernels import discover

    for kernel in discover().values():
        settings = [({}, {}), *((dict(preset.problem), dict(preset.config)) for preset in kernel.presets)]
        for problem, config in settings:
            for dtype in [problem["dtype"]] if "dtype" in problem else kernel.problem_knobs()["dtype"].choices or ():
                yield {"kernel": kernel.id, "config": config, "problem": {**problem, "dtype": dtype}}


def _broad() -> Iterator[dict[str, Any]]:
    """Every kernel and dtype over the shapes and tiles of its family. Split-K keeps its own tile."""
    from kernels import discover
    from kernels.knobs import knobs

    for kernel in discover().values():
        family = kernel.family.root.id
        declared = knobs(kernel.config)
        tiles = [one for one in TILES.get(family, []) if one.keys() <= declared.keys() and "SPLIT_K" not in declared]
        for problem, dtype, config in itertools.product(
            SHAPES.get(family, []), kernel.problem_knobs()["dtype"].choices or (), tiles or [{}]
        ):
            yield {"kernel": kernel.id, "problem": {**problem, "dtype": dtype}, "config": config}


def is_pictured(wanted: Wanted) -> bool:
    """Whether the picture of its error is kept: a race's, but for the broad ones, and the default's in coarse types."""
    payload, _ = wanted
    kernel, problem = payload["kernel"], payload["problem"]
    sizes = {field: value for field, value in problem.items() if isinstance(value, int)}
    is_race = kernel == "matmul.split_k_race" and (payload in RACES or sizes not in SHAPES["matmul"])
    is_default = kernel == "matmul.grouped" and not payload.get("config") and not sizes
    return is_race or (is_default and problem.get("dtype") in _ROUGH)


def main() -> int:
    """Record; returns the number of experiments that could not be."""
    parser = flags_of(__doc__)
    parser.add_argument("--pictured", action="store_true", help="only runs whose picture of the error is kept")
    parser.add_argument("--replace", type=Path, help="a file of recordings; FILE gets them with what is measured now")
    parser.add_argument("--lacking", action="store_true", help="only what --replace's file has no recording of")
    parser.add_argument("--most", type=int, help="end after so many")
    flags = parser.parse_args()
    wanted = [one for one in experiments() if is_pictured(one) or not flags.pictured]
    if flags.lacking:
        wanted = unrecorded(wanted, flags.replace)
    wanted = wanted[: flags.most]
    outcomes = ((one, without_picture(one, outcome)) for one, outcome in submitted(wanted))
    return record(outcomes, _said, flags.file, flags.append, replaced=flags.replace)


def without_picture(wanted: Wanted, outcome: Any) -> Any:
    """The outcome as it is recorded: a picture takes some kilobytes, and most show rounding alone."""
    from kernels.results import RunResult

    return replace(outcome, diff=None) if isinstance(outcome, RunResult) and not is_pictured(wanted) else outcome


def _said(measured: Any) -> str:
    time = f"{measured.timing.median_ms:.4f} ms" if measured.timing else f"{measured.check.mismatched:,} wrong"
    return time + ", with its picture" * bool(measured.diff)


if __name__ == "__main__":
    sys.exit(main())
