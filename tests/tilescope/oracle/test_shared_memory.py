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
from tilescope.results.scores import shipped_scores
from visualize.views.library import LINE_COUNTS

FOLDER = Path(__file__).parent / "shared_memory"
FAMILIES = sorted(path.stem for path in FOLDER.glob("*.tilescope"))

# The counts of each source line and opcode.
SCORES = [score for score in shipped_scores() if score.model in LINE_COUNTS]


def counted_launches(family):
    """Yield the capture, the number of each launch, what was counted, and its scores."""
    capture = Capture(FOLDER / f"{family}.tilescope")
    rows = list(map(json.loads, (FOLDER / f"{family}.jsonl").read_text("utf-8").splitlines()))
    assert len(rows) == len(capture.content.launches)
    for number, row in enumerate(rows):
        names = {"family": family, "case": row["case"], "number": row["number"]}
        scores = [score for score in SCORES if names.items() <= score.launch.items()]
        yield capture, number, row, scores


@pytest.mark.parametrize("family", FAMILIES)
def test_every_instruction_is_executed_as_often_as_counted_and_every_line_has_its_wavefronts(
    family,
):
    for capture, number, row, scores in counted_launches(family):
        launch = capture.content.launches[number]
        inside, executions = inspect(capture, launch, count_launch(capture, launch))
        runs = [[times, len(list(run))] for times, run in groupby(executions.times.tolist())]
        assert runs == row["executed"], row["case"]
        assert inside.instructions_executed == row["counters"]["instructions_executed"]
        predicted = {
            (model, f"{line.file}:{line.line} {line.opcode}"): count
            for line in inside.shared
            for model, count in zip(
                LINE_COUNTS, (line.executed, line.wavefronts, line.ideal_wavefronts), strict=True
            )
        }
        counted = {(score.model, score.part): score.counted for score in scores}
        assert predicted == counted, row["case"]


def test_the_launches_have_every_opcode():
    launches = [scores for family in FAMILIES for *_, scores in counted_launches(family)]
    assert len(launches) == 41
    opcodes = {score.part.split()[-1] for scores in launches for score in scores}
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
