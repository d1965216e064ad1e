"""Compare predicted times with measured ones: `python -m scripts.score_times FOLDER...`. No GPU needed.

The folders hold FAMILY.jsonl.gz, a launch per line with its times and its `device` (an H100 if it has none), and the
captures that its lines name. Replaces the scores of these families in the file whose errors the report and the page
state, prints the errors of docs/measurements.md, and writes the ranges of predicted times. Without folders, it scores
nothing.
"""

from __future__ import annotations

import gzip
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from scripts.score_file import replace_scores
from tilescope.captures.listings import UnsupportedOperation
from tilescope.captures.reader import Capture
from tilescope.declare.gpus import GPUS
from tilescope.evaluate.captured import count_launch
from tilescope.inside.inspect import inspect
from tilescope.numbers import percent
from tilescope.results.scores import (
    FILE,
    RANGES,
    UNFITTED,
    Score,
    TimeRange,
    classify,
    shipped_scores,
    summarize,
    unfitted_scores,
)
from tilescope.timing.constants import find_constants
from tilescope.timing.launches import predict_launch

# Nine of ten normally distributed numbers are within so many standard deviations of their mean.
_DEVIATIONS = 1.645
# With all constants, and with those that were fitted to other families.
_MODELS = ("time", "held_out_time")
_DEVICE = "NVIDIA H100 80GB HBM3"
_NOT_CAPTURED = "Its arguments depend on a value that the host reads from an earlier launch."
# Two constants were chosen with the times of some libraries in view. These are their values before.
_BEFORE = {"queue_cycles": 210, "barrier_cycles": 70}
# The constants that are fitted to times, if a family is left out. None was fitted to families without an entry.
WITHOUT: dict[str, dict[str, float]] = {
    "fla": _BEFORE,
    "inference": _BEFORE,
    "gemm": {
        "start_cycles": 285,
        "turnaround": 0.315,
        "dram_cycles": 600,
        "drift": 0.354,
        "barrier_cycles": 43.5,
        "matrix_issue_cycles": 1.18,
    },
    "elements": {
        "start_cycles": 508,
        "turnaround": 0.315,
        "dram_cycles": 708,
        "drift": 0.435,
        "barrier_cycles": 63,
        "matrix_issue_cycles": 1.0,
    },
    "flash": {
        "start_cycles": 285,
        "turnaround": 0.315,
        "dram_cycles": 508,
        "drift": 0.435,
        "barrier_cycles": 63,
        "matrix_issue_cycles": 0.85,
    },
    "liger": {
        "start_cycles": 285,
        "turnaround": 0.315,
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


def score_launch(rows: Sequence[dict[str, Any]], path: Path | None) -> list[Score]:
    """Return two scores of a launch per GPU: with all constants, and with those fitted to other families."""
    scores = []
    for row in rows:
        names = {name: row[name] for name in ("family", "case", "number", "kernel")}
        launch = {**names, "gpu": row.get("device", _DEVICE).split()[1]}
        why = REASONS.get((row["case"], row["number"]), "")
        measured_us = row["times"]["cold"]["median_us"]
        scores += [Score(model, launch, None, measured_us, why=why) for model in _MODELS]

    def refuse(why: str) -> list[Score]:
        return [replace(score, why=why, is_compared=False) for score in scores]

    number = rows[0]["number"]
    capture = Capture(path) if path else None
    if capture is None or number >= len(capture.content.launches):
        return refuse(_NOT_CAPTURED)
    captured = capture.content.launches[number]
    counts = count_launch(capture, captured)
    inside, executions = inspect(capture, captured, counts)
    if executions is None or counts.refused:
        return refuse(counts.refused or inside.not_executed)
    for place, score in enumerate(scores):
        constants, _ = find_constants(GPUS[score.launch["gpu"]])
        if score.model == "held_out_time":
            constants = replace(constants, **WITHOUT.get(score.launch["family"], {}))
        try:
            prediction = predict_launch(capture, captured, counts, executions, constants)
        except UnsupportedOperation as error:
            return refuse(str(error))
        predicted_us = round(prediction.total_us, 1)
        scores[place] = replace(score, predicted=predicted_us, part=prediction.bound_by)
    return scores


def print_errors() -> None:
    """Print the errors of each family and GPU, as a table of Markdown."""
    groups = defaultdict[tuple[str, str], dict[str, list[Score]]](lambda: defaultdict(list))
    for score in shipped_scores():
        if score.model in (*_MODELS, *UNFITTED) and score.is_compared:
            groups[score.launch["family"], score.launch["gpu"]][score.model].append(score)
    print("| kernels | GPU | launches | median | 9 of 10 within | share within 25 % | median, all fitted | "
          "9 of 10 within, all fitted |")  # fmt: skip
    print(f"|{' --- |' * 8}")
    for (family, gpu), scores in groups.items():
        unfitted = next((scores[name] for name in UNFITTED if name in scores), [])
        held_out = summarize(unfitted or scores["held_out_time"])
        fitted = summarize(unfitted or scores["time"])
        shares = held_out.median, held_out.high, held_out.within, fitted.median, fitted.high
        print(f"| {family} | {gpu} | {fitted.launches} | {' | '.join(map(percent, shares))} |")


def fit_ranges(scores: Iterable[Score]) -> dict[str, TimeRange]:
    """Return the range of each class of launches."""
    classes = defaultdict[str, list[float]](list)
    for score in scores:
        ratio = score.counted / (score.predicted or math.nan)
        name = classify(score.part, score.launch.get("spilled_bytes", 0))
        classes[name].append(math.log(ratio))
    ranges = {}
    for name, logarithms in classes.items():
        half = _find_deviations(len(logarithms)) * stdev(logarithms)
        low = mean(logarithms) - half
        high = mean(logarithms) + half
        inside = sum(low <= each <= high for each in logarithms) / len(logarithms)
        ranges[name] = TimeRange(len(logarithms), math.exp(low), math.exp(high), inside)
    return ranges


def _find_deviations(launches: int) -> float:
    """Return half the width of a 90 % prediction interval, in standard deviations of a sample of launches.

    Student's t is expanded to the first order of 1 / degrees of freedom.
    """
    normal = _DEVIATIONS
    quantile = normal + (normal**3 + normal) / 4 / (launches - 1)
    return quantile * math.sqrt(1 + 1 / launches)


def main(folders: Sequence[Path]) -> None:
    scores = []
    for rows, path in read_launches(folders):
        for score in score_launch(rows, path):
            scores.append(score)
            launch = score.launch
            print(f"{score.error:+.1%}", score.model, launch["gpu"], launch["case"], score.why)
    if scores:
        families = {score.launch["family"] for score in scores}
        scores += [
            score
            for score in shipped_scores()
            if score.model in _MODELS and score.launch["family"] not in families
        ]
        replace_scores(FILE, sorted(scores, key=lambda score: _MODELS.index(score.model)))
    print_errors()
    ranges = fit_ranges(unfitted_scores())
    rows = {name: asdict(each) for name, each in ranges.items()}
    RANGES.write_text(f"{json.dumps(rows, indent=1)}\n", encoding="utf-8")
    for name, each in ranges.items():
        print(
            f"{name}: {each.low:.2f} to {each.high:.2f}, {percent(each.inside)} of {each.launches}"
        )


if __name__ == "__main__":
    main(list(map(Path, sys.argv[1:])))
