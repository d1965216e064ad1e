"""Search configs on this machine's GPU: `python -m scripts.search_configs FILE [--append] [--only WORD ...]`.

For each case: compile every candidate on all cores, time those that compile in turns, keep the faster ones and time
these longer, and rank the last few in turns with the library's call. A config whose result fails its check is out.
FILE gets one line for each case, as kernels/recommended.jsonl holds them.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import itertools
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels.runner.sampling import Effort

if TYPE_CHECKING:
    from kernels.experiment import Experiment
    from kernels.gpus import Gpu
    from kernels.recommended import Recommended
    from kernels.runner.prepared import Prepared

# Candidates that go on after each round.
ROUNDS = (24, 8, 4)

# Candidates that are timed in turns: a stream holds about a thousand launches and events before it starts.
AT_ONCE = 15

# The last few are timed until their ratios are known, or this is over.
LAST_ROUND = Effort(half_width=0.001, fewest=40, most=2000, least_ms=200.0, most_s=4.0, warm_s=0.5)

# A compile that takes longer is out.
MOST_COMPILE_S = 60.0

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
                                 (8191, 8193, "float32")):  # fmt: skip
        yield "transpose.tiled", {"M": rows, "N": columns, "dtype": dtype}, "events", _COPIES


def candidates(kernel: str, problem: Mapping[str, Any], timer: str, space: Space) -> list[Experiment]:
    """The experiments of a space, each once; those that a kernel refuses are left out."""
    from kernels import discover
    from kernels.experiment import from_json
    from kernels.knobs import ConfigError

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


def compiling(cache: str) -> Executor:
    """Processes that compile into `cache`, one for each core but one."""
    from kernels.runner import worker

    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(
        max(1, (os.cpu_count() or 2) - 1), context, initializer=worker.start, initargs=("compile", cache)
    )


def that_compile(tried: Sequence[Experiment], gpu: Gpu, pool: Executor) -> list[Experiment]:
    """Those that compile for the GPU, and fit it."""
    from kernels.compiled.compiler import compile_for

    futures = [(one, pool.submit(compile_for, one, gpu)) for one in tried]
    end = time.monotonic() + MOST_COMPILE_S
    left = []
    for one, future in futures:
        try:
            if future.result(max(0.0, end - time.monotonic())) is None:
                left.append(one)
        except TimeoutError:
            future.cancel()
    return left


def ranked(tried: Sequence[Experiment], gpu: Gpu) -> tuple[list[tuple[Experiment, float, float | None]], str]:
    """The last few, fastest first: each with its median in ms and the ratio of the library's time to it; its name."""
    import numpy as np

    from kernels.pairs import pair
    from kernels.runner import timing
    from kernels.runner.measurements.run_measurement import library_calls
    from kernels.runner.prepared import prepare

    first = prepare(tried[0], gpu)
    run = first.experiment.run
    left = [dataclasses.replace(first, experiment=one) for one in tried]
    for count in ROUNDS:
        left = [left[place] for place in np.argsort(_relative_times(left), kind="stable")[:count]]
    left = [one for one in left if is_right(one)]
    if not left:
        return [], ""
    family, problem = first.kernel.family, first.experiment.problem
    library, _ = library_calls(family, first.inputs, _empty_like(first.output), problem)
    # Together with every call of the library, as the benchmark takes them: what runs before a launch leaves its mark.
    calls = [*(one.ready() for one in left), *library.values()]
    times = timing.in_turns(calls, run.l2, run.timer, LAST_ROUND).times_ms
    found = [
        (one.experiment, float(np.median(ours)), pair(times[len(left)], ours).ratio if library else None)
        for one, ours in zip(left, times[: len(left)], strict=True)
    ]
    order = np.argsort(np.median(times[: len(left)] / times[0], axis=1), kind="stable")
    return [found[place] for place in order], next(iter(library), "")


def _relative_times(left: Sequence[Prepared]) -> list[float]:
    """The time of each over that of the first, in turns with it."""
    import numpy as np

    from kernels.runner import timing

    run, found = left[0].experiment.run, [1.0]
    for begin in range(1, len(left), AT_ONCE):
        together = [left[0], *left[begin : begin + AT_ONCE]]
        times = timing.in_turns([one.ready() for one in together], run.l2, run.timer).times_ms
        found += [float(ratio) for ratio in np.median(times[1:] / times[0], axis=1)]
    return found


def is_right(prepared: Prepared) -> bool:
    """Whether its result passes the check, from a poisoned output."""
    import torch

    prepared.output.fill_(0.0 if prepared.kernel.zeroed_output else float("nan"))
    prepared.launch()
    torch.cuda.synchronize()
    return prepared.check()[0].passed


def _empty_like(tensor: Any) -> Any:
    import torch

    return torch.empty_like(tensor)


def searched(case: tuple[str, dict[str, Any], str, Space], gpu: Gpu, pool: Executor) -> Recommended | None:
    """The best of a case, after a line for each of the last few; None where no config was right."""
    from kernels.recommended import Recommended

    began = time.monotonic()
    tried = candidates(*case)
    left = that_compile(tried, gpu, pool)
    found, library = ranked(left, gpu) if left else ([], "")
    seconds = time.monotonic() - began
    print(f"{case[0]} {case[1]}: {len(tried)} configs, {len(left)} compiled, {seconds:.0f} s", flush=True)
    for experiment, median_ms, ratio in found:
        print(f"    {median_ms:.4f} ms, {ratio or 0:.4f} of {library}: {experiment.config}", flush=True)
    if not found:
        return None
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    experiment, median_ms, ratio = found[0]
    return Recommended(experiment, gpu.name, date, len(left), median_ms, library, ratio)


def main() -> int:
    """Search; returns the number of cases in which no config was right."""
    from kernels.gpus import this_gpu
    from kernels.runner import worker

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--append", action="store_true", help="keep what the file holds")
    parser.add_argument("--only", nargs="*", default=[""], help="cases whose kernel or problem has one of these words")
    flags = parser.parse_args()
    gpu, without = this_gpu(), 0
    if gpu is None:
        print("There is no GPU here, so there is nothing to search on.", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as cache, compiling(cache) as pool:
        worker.start("cuda", cache)
        with flags.file.open("a" if flags.append else "w", encoding="utf-8") as target:
            for case in cases():
                if not any(word in f"{case[0]} {case[1]}" for word in flags.only):
                    continue
                if best := searched(case, gpu, pool):
                    target.write(json.dumps(best.to_json()) + "\n")
                    target.flush()
                else:
                    without += 1
    return without


if __name__ == "__main__":
    sys.exit(main())
