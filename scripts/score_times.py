"""Compare predicted times with measured ones: `python -m scripts.score_times FOLDER...`. No GPU needed.

The folders hold FAMILY.jsonl.gz, a launch per line with its times and its `device` (an H100 if it has none), and the
captures that its lines name. Writes the file whose errors the report and the page state, and prints the tables of
docs/measurements.md. Without folders, it only prints them.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilescope.captures.listings import UnsupportedOperation
from tilescope.captures.reader import Capture
from tilescope.declare.gpus import GPUS
from tilescope.evaluate.captured import count_launch
from tilescope.inside.inspect import inspect
from tilescope.results import codec
from tilescope.timing.gpus import find_constants
from tilescope.timing.launches import predict_launch
from tilescope.timing.scores import FILE, TimeScore
from visualize.views.library.other_kernels import list_errors, list_ranges, list_worst

_DEVICE = "NVIDIA H100 80GB HBM3"
_NOT_CAPTURED = "Its arguments depend on a value that the host reads from an earlier launch."
# Three constants were chosen with the times of some libraries in view. These are their values before.
_BEFORE = {"l2_cycles": 430, "queue_cycles": 210, "barrier_cycles": 70}
# The constants that are fitted to times, if a family is left out. None was fitted to families without an entry.
WITHOUT: dict[str, dict[str, float]] = {
    "fla": _BEFORE,
    "inference": _BEFORE,
    "gemm": {
        "start_cycles": 285,
        "turnaround": 0.315,
        "l2_cycles": 330,
        "dram_cycles": 600,
        "drift": 0.354,
        "barrier_cycles": 43.5,
        "matrix_issue_cycles": 1.18,
    },
    "elements": {
        "start_cycles": 508,
        "turnaround": 0.315,
        "l2_cycles": 406,
        "dram_cycles": 708,
        "drift": 0.435,
        "barrier_cycles": 63,
        "matrix_issue_cycles": 1.0,
    },
    "flash": {
        "start_cycles": 285,
        "turnaround": 0.315,
        "l2_cycles": 589,
        "dram_cycles": 508,
        "drift": 0.435,
        "barrier_cycles": 63,
        "matrix_issue_cycles": 0.85,
    },
    "liger": {
        "start_cycles": 285,
        "turnaround": 0.315,
        "l2_cycles": 589,
        "dram_cycles": 600,
        "drift": 0.3,
        "barrier_cycles": 63,
        "matrix_issue_cycles": 0.85,
    },
}
# Explanations of large errors: of gemm, elements, flash and liger from Nsight Compute's counters, of the others from
# their compiled code and addresses.
_SCATTERED = "Each lane of a request accesses a different cache line."
REASONS = {
    ("rms_norm_residual", 1): "It spills 1.6 KB per thread; the model overstates the cost.",
    ("attorch_batch_norm", 0): "It spills 6 KB per thread; the model overstates the cost.",
    ("mul_transposed", 0): _SCATTERED,
    ("index_select", 0): _SCATTERED,
    ("flash_mla", 0): "Only 64 of 132 SMs have a program.",
    ("embedding", 1): "Half of the waits are for memory barriers around its atomics.",
    ("float16 odd", 0): "Rows are misaligned, and most waits are for loads.",
    ("float32 without tensor cores 2048", 0): "Warps wait for shared memory, which is 80 % busy.",
    ("bfloat16 low rank", 0): "Warps wait for loads, and at their end until stores have drained.",
    (
        "backward, 32 heads of 128",
        1,
    ): "Warps wait for loads and barriers; tensor cores are 29 % busy.",
    ("full, 32 heads of 128", 0): "Warps wait for barriers and loads; tensor cores are 43 % busy.",
    (
        "causal, 32 heads of 128",
        0,
    ): "Warps wait for loads and barriers; tensor cores are 36 % busy.",
    ("cross_entropy", 0): "Warps wait for loads; DRAM is 65 % busy.",
    ("attn_res", 1): "A third of the waits are for memory barriers around its atomics.",
    ("batch of 1024 × 128", 0): "Half of the waits are for loads; DRAM is 56 % busy.",
    ("sum of columns, narrow", 0): "Warps wait for loads; DRAM is 82 % busy.",
    ("group_norm", 0): "It spills 8.7 KB per thread; warps wait for loads, and DRAM is 73 % busy.",
    ("sort 16384 × 1024", 0): "Warps wait for shared memory, which is 95 % busy.",
    ("tf32x3 2048", 0): "Warps wait for loads and shared memory, which is 71 % busy.",
    ("transpose int8 32 × 128", 0): "Warps wait for loads; DRAM is 76 % busy.",
    (
        "cross_entropy_large",
        0,
    ): "It reads each row twice, and a third of the second reads hit in the L2.",
    ("dyt", 0): "The issue slots are 82 % busy, and DRAM is 74 % busy.",
}


def read_launches(folders: Sequence[Path]) -> Iterator[tuple[list[dict[str, Any]], Path | None]]:
    """Yield the timings of each launch, one per GPU, and its capture; None if there is none."""
    timings: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for path in (path for folder in folders for path in sorted(folder.glob("*.jsonl.gz"))):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for row in map(json.loads, lines):
                key = row["family"], row["case"], row["number"], row["capture"]
                timings.setdefault(key, []).append(row)
    for (*_, name), rows in timings.items():
        captures = (folder / name for folder in folders)
        yield rows, next((each for each in captures if each.exists()), None)


def score_launch(rows: Sequence[dict[str, Any]], path: Path | None) -> list[TimeScore]:
    """Return the scores of a launch, one per GPU."""
    scores = [
        TimeScore(
            row["family"],
            row["case"],
            row["number"],
            row["kernel"],
            row.get("device", _DEVICE).split()[1],
            row["times"]["cold"]["median_us"],
            why=REASONS.get((row["case"], row["number"]), ""),
        )
        for row in rows
    ]
    number = scores[0].number
    capture = Capture(path) if path else None
    if capture is None or number >= len(capture.content.launches):
        return [replace(score, why=_NOT_CAPTURED) for score in scores]
    launch = capture.content.launches[number]
    counts = count_launch(capture, launch)
    inside, executions = inspect(capture, launch, counts)
    if executions is None or counts.refused:
        why = counts.refused or inside.not_executed
        return [replace(score, why=why) for score in scores]
    for place, score in enumerate(scores):
        gpu = GPUS[score.gpu]
        constants, _ = find_constants(gpu)
        unseen = replace(constants, **WITHOUT.get(score.family, {}))
        try:
            prediction = predict_launch(capture, launch, counts, executions, gpu, constants)
            other = predict_launch(capture, launch, counts, executions, gpu, unseen)
        except UnsupportedOperation as error:
            return [replace(score, why=str(error)) for score in scores]
        scores[place] = replace(
            score,
            predicted_us=round(prediction.total_us, 1),
            unseen_us=round(other.total_us, 1),
            bound_by=prediction.bound_by,
        )
    return scores


def main(folders: Sequence[Path]) -> None:
    scores = []
    for rows, path in read_launches(folders):
        for score in score_launch(rows, path):
            scores.append(score)
            print(
                f"{score.error:+.1%} {score.unseen_error:+.1%}",
                score.gpu,
                score.case,
                score.why,
                flush=True,
            )
    lines = (
        json.dumps(
            codec.to_json(score, omit_defaults=True), ensure_ascii=False, separators=(",", ":")
        )
        for score in scores
    )
    if scores:
        FILE.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        print(f"{FILE}: {len(scores)} launches, {FILE.stat().st_size:,} bytes")
    for header, *rows in (list_errors(), list_ranges(), list_worst()):
        for row in (header, ["---"] * len(header), *rows):
            print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main(list(map(Path, sys.argv[1:])))
