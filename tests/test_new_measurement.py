"""Adding a measurement is adding one file and listing it: submit, known, recordings, cancel and the cache follow."""

from __future__ import annotations

import json

import pytest

from tests.kernels.trees import copied, python

pytestmark = pytest.mark.xdist_group("new measurement")

FILE = '''"""How many programs a launch has, and in which process they ran."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from kernels.experiment import Experiment, launch_key
from kernels.gpus import Gpu
from kernels.results.records import RecordForm
from kernels.results import Device
from kernels.results.codec import MeasuredExperiment
from kernels.measuring.measurement import Measurement, Stages
from kernels.measuring.run import prepare


@dataclass(frozen=True)
class ProgramCount:
    experiment: MeasuredExperiment
    backend: str
    device: Device
    programs: int
    process: int
    note: str = ""


def count_programs(experiment: Experiment, stages: Stages) -> ProgramCount:
    device = stages.device()
    programs, process = stages.work("launch", counted, experiment, stages.gpu)
    return ProgramCount(experiment, device.backend, device, programs, process)


PROGRAMS = Measurement(
    "programs",
    RecordForm("programs", ProgramCount, key=launch_key, verb="Numbered"),
    count_programs,
    "Programs are counted where they run: this machine has {this}, and no programs were counted on {gpu}.",
    is_interpreted=True,
)


def counted(experiment: Experiment, gpu: Gpu) -> tuple[int, int]:
    """Launch once, and count. In the run worker."""
    if experiment.run.seed == 99:
        time.sleep(600)
    prepared = prepare(experiment, gpu)
    prepared.launch()
    return prepared.kernel.programs(prepared.setting), os.getpid()
'''

SCRIPT = """
import json, os, sys, time
from dataclasses import replace
from pathlib import Path

if __name__ == "__main__":
    from kernels import discover
    from kernels.results import Failure, records
    from kernels.results.codec import to_json
    from kernels.experiment import Run, from_json
    from kernels.measuring import session as sessions
    from kernels.measuring.session import MEASUREMENTS

    def reply(outcome):
        return {"failure": vars(outcome)} if isinstance(outcome, Failure) else to_json(outcome)

    sessions.MAX_RESULTS = 1
    session = sessions.Session(None, Path(sys.argv[1]))
    form = MEASUREMENTS["programs"].form
    one = from_json({"kernel": "matmul.grid_2d", "problem": {"M": 100, "N": 70, "K": 16}}, discover())
    elsewhere = replace(one, gpu="A100-40GB")
    said = {"recorded": reply(session.submit(elsewhere, "programs").result())}
    if sys.argv[2] == "again":
        print(json.dumps(said))
        session.close()
        sys.exit()
    counted = session.submit(one, "programs").result()
    said["counted"], said["here"] = reply(counted), os.getpid()
    said["known"] = session.known(replace(one, run=Run(seed=5)), "programs") is counted
    said["known elsewhere"] = session.known(elsewhere, "programs") is counted
    job = session.submit(replace(one, run=Run(seed=99)), "programs")
    while job.progress.stage != "launch":
        time.sleep(0.01)
    job.cancel()
    said["cancelled"] = reply(job.result(60))
    other = replace(one, problem=replace(one.problem, M=16))
    session.submit(other, "programs").result()
    said["forgotten"] = session.known(one, "programs") is None
    session.close()
    line = form.line(records.Recording("A100-40GB", "2026-01-02", counted))
    (records.DIRECTORY / "a100_programs.jsonl").write_text(line + "\\n", encoding="utf-8")
    said["torch"] = "torch" in sys.modules
    print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """The project with one file more, and the list that names it."""
    tree = copied(tmp_path_factory.mktemp("measurement") / "tree")
    folder = tree / "kernels" / "measuring"
    (folder / "programs.py").write_text(FILE, encoding="utf-8")
    listed = (folder / "session.py").read_text(encoding="utf-8")
    for before, after in (("run, timeline", "programs, run, timeline"), (".TIMELINE", ".TIMELINE, programs.PROGRAMS")):
        assert listed.count(before) == 1
        listed = listed.replace(before, after)
    (folder / "session.py").write_text(listed, encoding="utf-8")
    return tree


@pytest.fixture(scope="module")
def runs(tree):
    """What is said before there is a recording, and of the one that the first run wrote."""
    (tree / "ask.py").write_text(SCRIPT, encoding="utf-8")
    said = []
    for turn in ("first", "again"):
        ended = python(tree, "ask.py", tree / "cache", turn)
        assert ended.returncode == 0, ended.stderr
        said.append(json.loads(ended.stdout))
    return said


def test_it_is_measured_in_the_run_worker(runs):
    counted = runs[0]["counted"]
    assert (counted["backend"], counted["programs"]) == ("interpreter", 2 * 2)
    assert counted["process"] != runs[0]["here"]
    assert not runs[0]["torch"], "the process that submits imports no torch"


def test_it_is_known_afterwards_whatever_the_seed_and_until_others_were_used(runs):
    assert runs[0]["known"] is True
    assert runs[0]["known elsewhere"] is False
    assert runs[0]["forgotten"] is True


def test_it_is_cancelled_while_it_works(runs):
    failure = runs[0]["cancelled"]["failure"]
    assert (failure["stage"], failure["kind"]) == ("launch", "cancelled")


def test_on_another_gpu_it_is_refused_in_its_own_words_until_it_is_recorded(runs):
    before, after = (said["recorded"] for said in runs)
    assert (before["failure"]["stage"], before["failure"]["kind"]) == ("config", "not_recorded")
    expected = (
        "Programs are counted where they run: this machine has no GPU, and no programs were counted on A100-40GB."
    )
    assert before["failure"]["message"] == expected
    assert (after["backend"], after["programs"]) == ("recorded", 4)
    assert after["device"]["backend"] == "recorded"
    assert after["note"] == "Numbered on A100-40GB, 2026-01-02."
    assert after["process"] == runs[0]["counted"]["process"]


def test_what_holds_for_every_measurement_holds_for_it(tree, runs):
    files = ["tests/kernels/test_measurements.py", "tests/kernels/test_records.py"]
    every = ("-q", "-p", "no:cacheprovider", "--all-combinations", "-m", "not gpu")
    ended = python(tree, "-m", "pytest", *every, *files, "-k", "programs")
    assert ended.returncode == 0, ended.stdout[-3000:]
    assert int(ended.stdout.split(" passed")[0].split()[-1]) >= 2, ended.stdout
