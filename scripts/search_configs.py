"""Search configs on this machine's GPU: `python -m scripts.search_configs FILE [--only WORD ...]`.

Each case is a sweep of its whole space (`kernels.sweep`): each candidate is compiled ahead, checked and timed in turns,
the faster ones go on with more samples, and the last few are ranked in turns with the library's calls. Of those that
tie, the simplest is taken. One line for each case is appended to FILE, as kernels/recommended.jsonl holds them.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels import discover
from kernels.experiment import Experiment, from_json
from kernels.gpus import this_gpu
from kernels.knobs import ConfigError
from kernels.recommended import Recommended
from kernels.results import Strategy, Sweep
from kernels.space import Space as SweptSpace

# Worker processes import this file before they set how Triton runs, so modules that import Triton are imported below.
if TYPE_CHECKING:
    from kernels.measuring.session import Session

# What is tried: lists of knobs and their values; a space is the union of its lists' products.
Space = Sequence[Mapping[str, Sequence[int]]]


def _tiles(
    sizes: Sequence[tuple[int, int, int]], block_k: Sequence[int], stages: Sequence[int], **more: Sequence[int]
) -> Space:
    """Tiles of (BLOCK_M, BLOCK_N, warps) with each of the other values."""
    return [
        {"BLOCK_M": [m], "BLOCK_N": [n], "num_warps": [w], "BLOCK_K": block_k, "num_stages": stages, **more}
        for m, n, w in sizes
    ]


_LARGE = ((128, 256, 8), (256, 128, 8), (128, 128, 4), (128, 128, 8), (64, 256, 4))
_SMALL = ((128, 128, 4), (128, 128, 8), (128, 64, 4), (64, 128, 4), (64, 64, 4), (128, 64, 8), (64, 256, 4))
_GROUPS = (8, 16)
_COPIES: Space = [
    {"BLOCK_M": [m], "BLOCK_N": [n], "num_warps": [2, 4, 8]}
    for m, n in itertools.product((16, 32, 64, 128, 256), repeat=2)
    if 2048 <= m * n <= 16384
]


def _cube(size: int, **more: str) -> dict[str, Any]:
    return {"M": size, "N": size, "K": size, **more}


def cases() -> Iterator[tuple[str, dict[str, Any], str, Space]]:
    """Kernel, problem, timer and space of each search."""
    halves = ("float16", "bfloat16")
    for dtype in halves:
        for problem in (_cube(8192), _cube(4096), {"M": 8192, "N": 6144, "K": 4096}):
            space = _tiles(_LARGE[:2], (64,), (3, 4), GROUP_SIZE=(4, 8, 16, 32))
            yield "matmul.persistent", {**problem, "dtype": dtype}, "events", space
        for size in (2048, 1024):
            space = _tiles(
                (*_SMALL, (128, 256, 8)), (64, 128), (3, 4, 5), GROUP_SIZE=_GROUPS[:1], PROGRAMS_PER_SM=(1, 2)
            )
            yield "matmul.persistent", _cube(size, dtype=dtype), "graph", space
            yield (
                "matmul.grouped",
                _cube(size, dtype=dtype),
                "graph",
                _tiles((*_SMALL, (128, 256, 8)), (32, 64, 128), (3, 4, 5), GROUP_SIZE=_GROUPS[:1]),
            )
        for k in (128, 512, 1024, 4096):
            space = _tiles(_LARGE, (32, 64), (2, 3, 4), GROUP_SIZE=_GROUPS, PROGRAMS_PER_SM=(1, 2))
            yield "matmul.fused_add_relu", {"M": 8192, "N": 8192, "K": k, "dtype": dtype}, "events", space
    yield "matmul.grouped", _cube(4096, dtype="float16"), "events", _tiles(_LARGE, (64,), (3, 4), GROUP_SIZE=_GROUPS)
    for size in (8192, 4096):
        space = _tiles(_LARGE[:3], (64, 128), (3, 4), GROUP_SIZE=_GROUPS)
        yield "matmul.persistent", _cube(size, dtype="float8_e4m3fn", layout="NT"), "events", space
    for kernel in ("matmul.persistent", "matmul.grouped"):
        space = _tiles(_LARGE, (32, 64), (2, 3, 4), GROUP_SIZE=_GROUPS)
        yield kernel, _cube(4096, dtype="float32", layout="NT"), "events", space
    yield "matmul.grouped", _cube(4096, dtype="float32"), "events", _tiles(_LARGE, (32,), (3, 4), GROUP_SIZE=_GROUPS)
    for rows, columns, dtype in ((8192, 8192, "float32"), (8192, 8192, "float16"), (7000, 6000, "float32"),
                                 (8191, 8193, "float32"), (8200, 8200, "float32")):  # fmt: skip
        yield "transpose.tiled", {"M": rows, "N": columns, "dtype": dtype}, "events", _COPIES


def candidates(kernel: str, problem: Mapping[str, Any], timer: str, space: Space) -> list[Experiment]:
    """The experiments of a space, each once; those that a kernel refuses are left out."""
    found: dict[Experiment, None] = {}
    for choices in space:
        for values in itertools.product(*choices.values()):
            config = dict(zip(choices, values, strict=True))
            try:
                payload = {"kernel": kernel, "problem": problem, "config": config, "run": {"timer": timer}}
                found[from_json(payload, discover())] = None
            except ConfigError:
                continue
    return list(found)


def searched(case: tuple[str, dict[str, Any], str, Space], session: Session) -> Recommended | None:
    """The best of a case, after a line for each of the last few; None where no config was right."""
    from kernels.sweep.sweep_run import sweep_here

    tried = candidates(*case)
    # The space of a case is not a product; what all of its configs share says what was searched.
    sweeping = sweep_here(session, SweptSpace(tried[0], ()), Strategy("grid"), experiments=tried)
    sweeping.start()
    found = sweeping.result()
    print(f"{case[0]} {case[1]}: {len(tried)} configs, {found.count('timed')} timed, {found.seconds:.0f} s", flush=True)
    for one in found.final.finalists if found.final else ():
        tie = ", a tie" if one.is_tie else ""
        print(f"    {one.median_ms:.4f} ms, × {one.ratio:.4f}{tie}: {one.experiment.config}", flush=True)
    return recommendation(found)


def recommendation(found: Sweep) -> Recommended | None:
    """What a sweep recommends; None where nothing was timed to the end."""
    if found.final is None:
        return None
    best = next(one for one in found.final.finalists if one.experiment == found.final.best)
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    gpu = next(row.device for row in found.rows if row.experiment == best.experiment)
    first = found.final.baselines[0] if found.final.baselines else None
    name, ratio = (first.name, first.ratio) if first else ("", None)
    return Recommended(best.experiment, gpu, date, found.count("timed"), best.median_ms, name, ratio)


def main() -> int:
    """Search; returns the number of cases in which no config was right."""
    from kernels.measuring.session import Session

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", nargs="*", default=[""], help="cases whose kernel or problem has one of these words")
    flags = parser.parse_args()
    gpu, without = this_gpu(), 0
    if gpu is None:
        print("There is no GPU here, so there is nothing to search on.", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as cache:
        session = Session(gpu, Path(cache))
        try:
            with flags.file.open("a", encoding="utf-8") as target:
                for case in cases():
                    if not any(word in f"{case[0]} {case[1]}" for word in flags.only):
                        continue
                    if best := searched(case, session):
                        target.write(json.dumps(best.to_json()) + "\n")
                        target.flush()
                    else:
                        without += 1
        finally:
            session.close()
    return without


if __name__ == "__main__":
    sys.exit(main())
