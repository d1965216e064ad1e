"""Score predicted accesses to shared memory: `python -m scripts.score_shared_memory FOLDER...`. No GPU needed.

The folders hold pairs of files: FAMILY.tilescope, a capture, and FAMILY.jsonl.gz, its launches as Nsight Compute
counted them per instruction. Writes the file of the Library's scoreboard, and the captures and executions that
tests/tilescope/oracle checks.
"""

from __future__ import annotations

import gzip
import json
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from scripts.score_file import replace_scores
from tilescope.captures.reader import Capture
from tilescope.evaluate.captured import count_launch
from tilescope.inside.inspect import inspect
from tilescope.inside.report import INSIDE_COUNTERS
from tilescope.measure.ncu import METRICS
from tilescope.results.scores import FILE, Score
from tilescope.sass.instructions import OPCODES
from visualize.views.library import LINE_COUNTS

ROOT = Path(__file__).resolve().parents[1]
ORACLE = ROOT / "tests" / "oracle" / "shared_memory"

_NOT_CAPTURED = "The arguments depend on a value that the host reads from an earlier launch."
# The launches that tests/tilescope/oracle executes. They cover every opcode, width and kind of operation.
CHOSEN = {
    "matmul": (2, 6, 9, 15, 18, 20, 24, 26, 28, 31, 33, 35),
    "attention": (3, 5, 6, 11),
    "rows": (0, 3, 6, 7, 9, 10, 12, 15, 16, 17, 18, 19, 24),
    "transpose": (1, 2, 4, 5, 6, 7, 8, 11, 12, 13),
    "examples": (3, 7),
}
# Executions, wavefronts and ideal wavefronts.
Counts = tuple[int, ...]

# The families with launches that need the values of their arrays.
_NEED_ARRAYS = ("rows", "examples")


def read_counts(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def sum_lines(row: dict[str, Any]) -> dict[tuple[str, int, str], Counts]:
    """Add up the counts of each source line and opcode that was executed."""
    lines = defaultdict[tuple[str, int, str], list[list[int]]](list)
    for values in row["instructions"]:
        each = dict(zip(row["columns"], values, strict=True))
        words = (word for word in each["instruction"].split() if not word.startswith("@"))
        opcode = next(words).partition(".")[0]
        if opcode in OPCODES and OPCODES[opcode].smem:
            file, line = each["places"][0] if each["places"] else ("", 0)
            names = "executed", "wavefronts", "ideal_wavefronts"
            lines[file, line, opcode].append([each[name] or 0 for name in names])
    sums = {place: tuple(map(sum, zip(*counts, strict=True))) for place, counts in lines.items()}
    return {place: counts for place, counts in sums.items() if counts[0]}


def find_launches(
    capture: Capture, rows: Sequence[dict[str, Any]]
) -> Iterator[tuple[dict[str, Any], int | None]]:
    """Yield each counted launch and its captured launch's number, matched by kernel and grid in order, or None."""
    launches = [
        (capture.content.kernels[launch.kernel].name, list(launch.grid))
        for launch in capture.content.launches
    ]
    start = 0
    for row in rows:
        key = row["kernel"], row["grid"]
        if key in launches[start:]:
            number = launches.index(key, start)
            start = number + 1
            yield row, number
        else:
            yield row, None


def score_launch(
    family: str, row: dict[str, Any], capture: Capture, number: int | None
) -> Iterator[Score]:
    """Yield the scores of a launch: its executed instructions, and the counts of each source line and opcode."""
    counted = sum_lines(row)
    total = row["counters"][METRICS["instructions_executed"]]
    names = {name: row[name] for name in ("case", "number", "kernel")}
    launch = {"family": family, **names, "gpu": "H100"}
    if number is None:
        inside = None
        yield Score("instructions", launch, None, total, why=_NOT_CAPTURED, is_compared=False)
    else:
        captured = capture.content.launches[number]
        inside, _ = inspect(capture, captured, count_launch(capture, captured))
        executed = inside.instructions_executed
        yield Score("instructions", launch, executed, total, why=inside.not_executed)
    lines = {(each.file, each.line, each.opcode): each for each in inside.shared} if inside else {}
    for (file, line, opcode), values in counted.items():
        predicted = lines.get((file, line, opcode))
        if predicted:
            expected = predicted.executed, predicted.wavefronts, predicted.ideal_wavefronts
            why = predicted.why if expected != values else ""
        else:
            expected = (0, 0, 0) if inside else (None, None, None)
            why = "" if inside else _NOT_CAPTURED
        for model, before, count in zip(LINE_COUNTS, expected, values, strict=True):
            part = f"{file}:{line} {opcode}"
            yield Score(model, launch, before, count, part, why, is_compared=inside is not None)


def write_oracle(family: str, capture: Capture, rows: Sequence[dict[str, Any]]) -> None:
    """Write a capture of the chosen launches, and how often each of their instructions was executed."""
    chosen = CHOSEN[family]
    ORACLE.mkdir(exist_ok=True)
    with zipfile.ZipFile(capture.path) as old:
        content = json.loads(old.read("capture.json"))
        launches = [content["launches"][number] for number in chosen]
        used = sorted({launch["kernel"] for launch in launches})
        content["kernels"] = [content["kernels"][kernel] for kernel in used]
        for launch in launches:
            launch["kernel"] = used.index(launch["kernel"])
        content["launches"] = launches
        arrays = {
            argument["tensor"]["array"]
            for launch in launches
            for argument in launch["arguments"]
            if argument.get("tensor") and family in _NEED_ARRAYS
        }
        files = {f"kernels/{number}.{stage}": f"kernels/{kernel}.{stage}"
                 for number, kernel in enumerate(used) for stage in ("ttgir", "ptx", "sass")}  # fmt: skip
        files |= {
            f"arrays/{number}.npy": f"arrays/{number}.npy" for number in sorted(arrays - {None})
        }
        path = ORACLE / f"{family}.tilescope"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as new:
            new.writestr(zipfile.ZipInfo("capture.json"), json.dumps(content), zipfile.ZIP_LZMA)
            for name, source in files.items():
                new.writestr(zipfile.ZipInfo(name), old.read(source), zipfile.ZIP_LZMA)
    counts = []
    for number in chosen:
        row = rows[number]
        runs = [(times, len(list(run))) for times, run in groupby(row["executed"])]
        counters = {name: row["counters"][METRICS[name]] for name in INSIDE_COUNTERS}
        key = {name: row[name] for name in ("case", "number")}
        counts.append({**key, "counters": counters, "executed": runs})
    lines = (json.dumps(each, ensure_ascii=False, separators=(",", ":")) for each in counts)
    (ORACLE / f"{family}.jsonl").write_text(
        "".join(f"{line}\n" for line in lines), encoding="utf-8"
    )


def main(folders: Sequence[Path]) -> None:
    scores: list[Score] = []
    for path in sorted(path for folder in folders for path in folder.glob("*.jsonl.gz")):
        family = path.name.partition(".")[0]
        captures = (folder / f"{family}.tilescope" for folder in folders)
        capture = Capture(next(each for each in captures if each.exists()))
        rows = read_counts(path)
        for row, number in find_launches(capture, rows):
            scores += score_launch(family, row, capture, number)
        if family in CHOSEN:
            write_oracle(family, capture, rows)
    replace_scores(FILE, scores)


if __name__ == "__main__":
    main(list(map(Path, sys.argv[1:])))
