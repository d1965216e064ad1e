"""Search configs on this machine's GPU: `python -m scripts.search_configs FILE [--only WORD ...]`.

Each case is a sweep of its whole space (`tilescope.search`). Candidates are compiled, checked and timed alternately,
the faster ones with more samples, and the finalists are timed against each other and the library's calls. Among tied
configs, the simplest wins. Appends a line per case to FILE, in the format of kernels/recommended.jsonl.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilescope.declare.experiment import Experiment, from_json
from tilescope.declare.gpus import this_gpu
from tilescope.declare.knobs import ConfigError
from tilescope.declare.space import Space as SweptSpace
from tilescope.results import Sweep, codec
from visualize.predict.offer import Recommended

# Worker processes import this file before they set how Triton runs, so modules that import Triton are imported below.
if TYPE_CHECKING:
    from tilescope.measure.session import Session

# A union of products: in each mapping, values by knob.
Space = Sequence[Mapping[str, Sequence[int | str]]]


def _tiles(
    sizes: Sequence[tuple[int, int, int]],
    block_k: Sequence[int],
    stages: Sequence[int],
    **more: Sequence[int | str],
) -> Space:
    """Tiles of (BLOCK_M, BLOCK_N, num_warps), combined with all other values."""
    return [
        {
            "BLOCK_M": [m],
            "BLOCK_N": [n],
            "num_warps": [w],
            "BLOCK_K": block_k,
            "num_stages": stages,
            **more,
        }
        for m, n, w in sizes
    ]


_LARGE = ((128, 256, 8), (256, 128, 8), (128, 128, 4), (128, 128, 8), (64, 256, 4))
_SMALL = (
    *(
        (128, 128, 4),
        (128, 128, 8),
        (128, 64, 4),
        (64, 128, 4),
        (64, 64, 4),
        (128, 64, 8),
        (64, 256, 4),
    ),
    (128, 256, 8),
)
_GROUPS = (8, 16)
_ODD = (
    (4097, 4097, 4097),
    (8191, 8191, 8191),
    (4096, 4097, 4096),
    (2047, 8191, 4095),
    (1023, 1023, 1023),
)
_COPIES: Space = [
    {"BLOCK_M": [m], "BLOCK_N": [n], "num_warps": [2, 4, 8]}
    for m, n in itertools.product((16, 32, 64, 128, 256), repeat=2)
    if 2048 <= m * n <= 16384
]


def _cube(size: int, **more: str) -> dict[str, Any]:
    return {"M": size, "N": size, "K": size, **more}


def cases() -> Iterator[tuple[str, dict[str, Any], str, Space]]:
    """Yield the kernel, problem, timer and space of each search."""
    halves = ("float16", "bfloat16")
    for dtype in halves:
        for problem in (_cube(8192), _cube(4096), {"M": 8192, "N": 6144, "K": 4096}):
            space = _tiles(_LARGE[:2], (64,), (3, 4), GROUP_SIZE=(4, 8, 16, 32))
            yield "matmul.persistent", {**problem, "dtype": dtype}, "events", space
        for size in (2048, 1024):
            space = _tiles(
                _SMALL, (64, 128), (3, 4, 5), GROUP_SIZE=_GROUPS[:1], PROGRAMS_PER_SM=(1, 2)
            )
            yield "matmul.persistent", _cube(size, dtype=dtype), "graph", space
            space = _tiles(_SMALL, (32, 64, 128), (3, 4, 5), GROUP_SIZE=_GROUPS[:1])
            yield "matmul.grouped", _cube(size, dtype=dtype), "graph", space
        for k in (128, 512, 1024, 4096):
            space = _tiles(_LARGE, (32, 64), (2, 3, 4), GROUP_SIZE=_GROUPS, PROGRAMS_PER_SM=(1, 2))
            yield (
                "matmul.fused_add_relu",
                {"M": 8192, "N": 8192, "K": k, "dtype": dtype},
                "events",
                space,
            )
        for sizes in (
            (3072, 3072, 3072),
            (2304, 2304, 8192),
            (5120, 5120, 2048),
            (1536, 6144, 1024),
            *_ODD,
        ):
            space = [*_tiles(_LARGE[:2], (64,), (3, 4), GROUP_SIZE=(4, 8, 16), PAD=("auto",))]
            space += _tiles(_SMALL[:1], (64,), (4, 5), GROUP_SIZE=_GROUPS, PAD=("auto",))
            space += _tiles(_SMALL[3:4], (64, 128), (3, 4), PAD=("auto",))
            timer = "graph" if max(sizes) < 2048 else "events"
            yield (
                "matmul.stream_k",
                {**dict(zip("MNK", sizes, strict=True)), "dtype": dtype},
                timer,
                space,
            )
    yield (
        "matmul.grouped",
        _cube(4096, dtype="float16"),
        "events",
        _tiles(_LARGE, (64,), (3, 4), GROUP_SIZE=_GROUPS),
    )
    for size in (8192, 4096):
        space = _tiles(_LARGE[:3], (64, 128), (3, 4), GROUP_SIZE=_GROUPS)
        yield "matmul.persistent", _cube(size, dtype="float8_e4m3fn", layout="NT"), "events", space
    for kernel in ("matmul.persistent", "matmul.grouped"):
        space = _tiles(_LARGE, (32, 64), (2, 3, 4), GROUP_SIZE=_GROUPS)
        yield kernel, _cube(4096, dtype="float32", layout="NT"), "events", space
    yield (
        "matmul.grouped",
        _cube(4096, dtype="float32"),
        "events",
        _tiles(_LARGE, (32,), (3, 4), GROUP_SIZE=_GROUPS),
    )
    for rows, columns, dtype in ((8192, 8192, "float32"), (8192, 8192, "float16"), (7000, 6000, "float32"),
                                 (8191, 8193, "float32"), (8200, 8200, "float32")):  # fmt: skip
        yield "transpose.tiled", {"M": rows, "N": columns, "dtype": dtype}, "events", _COPIES


def candidates(
    kernel: str, problem: Mapping[str, Any], timer: str, space: Space
) -> list[Experiment]:
    """Return the distinct experiments of a space that the kernel accepts."""
    accepted: dict[Experiment, None] = {}
    for choices in space:
        for values in itertools.product(*choices.values()):
            config = dict(zip(choices, values, strict=True))
            with suppress(ConfigError):
                payload = {
                    "kernel": kernel,
                    "problem": problem,
                    "config": config,
                    "run": {"timer": timer},
                }
                accepted[from_json(payload)] = None
    return list(accepted)


def search(case: tuple[str, dict[str, Any], str, Space], session: Session) -> Recommended | None:
    """Search a case, print the finalists, and return the best; None if no config passed its check."""
    from tilescope.search.search import Task
    from tilescope.search.sweep_run import make_sweep

    tried = candidates(*case)
    listed = tuple(tuple(vars(one.config).values()) for one in tried)
    varied = tuple(
        (name, tuple(dict.fromkeys(values)))
        for name, values in zip(vars(tried[0].config), zip(*listed, strict=True), strict=True)
    )
    task = Task(SweptSpace(tried[0], varied, listed))
    sweep = make_sweep(session, task).start().result()
    print(
        f"{case[0]} {case[1]}: {len(tried)} configs, {sweep.count('timed')} timed, {sweep.seconds:.0f} s",
        flush=True,
    )
    for finalist in sweep.final.finalists if sweep.final else ():
        tie = ", a tie" if finalist.is_tie else ""
        print(
            f"    {finalist.median_ms:.4f} ms, × {finalist.ratio:.4f}{tie}: {finalist.experiment.config}",
            flush=True,
        )
    return recommendation(sweep)


def recommendation(sweep: Sweep) -> Recommended | None:
    """Return the config that a sweep recommends; None if it has no finalists."""
    if sweep.final is None:
        return None
    best = next(
        finalist for finalist in sweep.final.finalists if finalist.experiment == sweep.final.best
    )
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    gpu = next(row.device for row in sweep.rows if row.experiment == best.experiment)
    name, ratio = next(((call.name, call.ratio) for call in sweep.final.baselines), ("", None))
    return Recommended(
        best.experiment, gpu, date, sweep.count("timed"), best.median_ms, name, ratio
    )


def main() -> int:
    """Search; return the number of cases in which no config passed its check."""
    from tilescope.measure.session import Session

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument(
        "--only",
        nargs="*",
        default=[""],
        help="only cases whose kernel or problem contains one of these words",
    )
    flags = parser.parse_args()
    gpu, without = this_gpu(), 0
    if gpu is None:
        print("There is no GPU here, so there is nothing to search on.", file=sys.stderr)
        return 1
    with (
        tempfile.TemporaryDirectory() as cache,
        closing(Session(gpu, Path(cache))) as session,
        flags.file.open("a", encoding="utf-8") as target,
    ):
        for case in cases():
            if not any(word in f"{case[0]} {case[1]}" for word in flags.only):
                continue
            best = search(case, session)
            without += best is None
            if best:
                print(json.dumps(codec.to_json(best)), file=target, flush=True)
    return without


if __name__ == "__main__":
    sys.exit(main())
