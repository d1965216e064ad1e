"""Shared memory and executed instructions, counted with Nsight Compute on an H100 (Triton 3.6.0).

`python -m scripts.score_shared_memory` writes the captures, and the executions of their instructions as runs of
[times, number of instructions].
"""

import json
import shutil
from itertools import groupby
from pathlib import Path

import pytest

from tilescope.captures.content import CountedLaunch
from tilescope.captures.reader import Capture
from tilescope.inside.report import INSIDE_COUNTERS
from tilescope.reports.launch import Launches, make_report
from tilescope.reports.text import table
from tilescope.results.scores import shipped_scores
from visualize.views.library import LINE_COUNTS

# One worker inspects each launch once
pytestmark = pytest.mark.xdist_group("shared memory")

FOLDER = Path(__file__).parent / "shared_memory"
FAMILIES = sorted(path.stem for path in FOLDER.glob("*.tilescope"))

# The counts of each source line and opcode.
SCORES = [score for score in shipped_scores() if score.model in LINE_COUNTS]


def counted_launches(family):
    """Return what was counted in each launch."""
    return list(map(json.loads, (FOLDER / f"{family}.jsonl").read_text("utf-8").splitlines()))


def find_scores(family, row):
    names = {"family": family, "case": row["case"], "number": row["number"]}
    return [score for score in SCORES if names.items() <= score.launch.items()]


@pytest.fixture(scope="module", params=FAMILIES)
def compared(request, tmp_path_factory):
    """Return a family's launches, their report beside the counters, and what was counted."""
    path = Path(
        shutil.copy(FOLDER / f"{request.param}.tilescope", tmp_path_factory.mktemp("shared"))
    )
    rows = counted_launches(request.param)
    Capture(path).write_counters([CountedLaunch(row["counters"], None) for row in rows])
    launches = Launches(Capture(path))
    return launches, make_report(launches.capture, counted=launches), rows


def test_every_instruction_is_executed_as_often_as_counted_and_every_line_has_its_wavefronts(
    compared, request
):
    launches, _, rows = compared
    for number, row in enumerate(rows):
        inside, executions = launches.inspections(number)
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
        scores = find_scores(request.node.callspec.params["compared"], row)
        counted = {(score.model, score.part): score.counted for score in scores}
        assert predicted == counted, row["case"]


def test_the_launches_have_every_opcode():
    launches = [find_scores(family, row) for family in FAMILIES for row in counted_launches(family)]
    assert len(launches) == 41
    opcodes = {score.part.split()[-1] for scores in launches for score in scores}
    assert opcodes == {"LDS", "STS", "LDSM", "STSM", "LDGSTS", "ATOMS"}


def test_the_counters_of_a_launch_agree_or_are_not_compared_if_an_atomic_may_retry(compared):
    _, report, rows = compared
    for launch, row in zip(report.launches, rows, strict=True):
        assert launch.agrees
        if launch.kernel == "layer_norm_backward":  # takes locks
            assert set(launch.uncompared) == set(INSIDE_COUNTERS)
        else:
            assert {name: launch.totals[name] for name in INSIDE_COUNTERS} == row["counters"]
    text = table(report)
    assert text.count("Nsight Compute: all 6 counters agree") + text.count("not predicted") == len(
        rows
    )
