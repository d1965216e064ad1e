"""Shared memory and executed instructions, counted with Nsight Compute on an H100 (Triton 3.6.0).

`python -m scripts.score_shared_memory` writes the captures, and the executions of their instructions as runs of
[times, number of instructions].
"""

import json
import shutil
from itertools import groupby
from pathlib import Path

import pytest

from tilescope.captures.reader import Capture, CountedLaunch
from tilescope.evaluate.captured import count_launch
from tilescope.inside.inspect import inspect
from tilescope.inside.report import INSIDE_COUNTERS
from tilescope.reports.launch import make_report
from tilescope.reports.text import table
from visualize.views.library.other_kernels import shipped_scores

FOLDER = Path(__file__).parent / "shared_memory"
FAMILIES = sorted(path.stem for path in FOLDER.glob("*.tilescope"))
SCORES = {(score.family, score.case, score.number): score for score in shipped_scores()}


def counted_launches(family):
    """Yield the capture, the number of each launch, and what was counted."""
    capture = Capture(FOLDER / f"{family}.tilescope")
    rows = list(map(json.loads, (FOLDER / f"{family}.jsonl").read_text("utf-8").splitlines()))
    assert len(rows) == len(capture.content.launches)
    for number, row in enumerate(rows):
        yield capture, number, row, SCORES[family, row["case"], row["number"]]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_instruction_is_executed_as_often_as_counted_and_every_line_has_its_wavefronts(
    family,
):
    for capture, number, row, score in counted_launches(family):
        launch = capture.content.launches[number]
        inside, executions = inspect(capture, launch, count_launch(capture, launch))
        runs = [[times, len(list(run))] for times, run in groupby(executions.times.tolist())]
        assert runs == row["executed"], row["case"]
        assert inside.instructions_executed == row["counters"]["instructions_executed"]
        predicted = {
            (line.file, line.line, line.opcode): [
                line.executed,
                line.wavefronts,
                line.ideal_wavefronts,
            ]
            for line in inside.shared
        }
        counted = {(line.file, line.line, line.opcode): list(line.counted) for line in score.lines}
        assert predicted == counted, row["case"]


def test_the_launches_have_every_opcode():
    launches = [score for family in FAMILIES for *_, score in counted_launches(family)]
    assert len(launches) == 41
    opcodes = {line.opcode for score in launches for line in score.lines}
    assert opcodes == {"LDS", "STS", "LDSM", "STSM", "LDGSTS", "ATOMS"}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_counters_of_a_launch_agree_or_are_not_compared_if_an_atomic_may_retry(
    family, tmp_path
):
    path = Path(shutil.copy(FOLDER / f"{family}.tilescope", tmp_path))
    rows = [row["counters"] for *_, row, _ in counted_launches(family)]
    Capture(path).write_counters([CountedLaunch(row, None) for row in rows])
    report = make_report(Capture(path))
    for launch, counters in zip(report.launches, rows, strict=True):
        assert launch.agrees
        if launch.kernel == "layer_norm_backward":  # takes locks
            assert set(launch.uncompared) == set(INSIDE_COUNTERS)
        else:
            assert {name: launch.totals[name] for name in INSIDE_COUNTERS} == counters
    text = table(report)
    assert text.count("Nsight Compute: all 6 counters agree") + text.count("not predicted") == len(
        rows
    )
