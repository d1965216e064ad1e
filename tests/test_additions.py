"""A family is added in one folder, and a panel and a measurement in one file each: everything else follows."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass, replace

import pytest

from kernels.experiment import Run, from_json, launch_key
from kernels.measuring.measurement import Measurement
from kernels.measuring.run import prepare
from kernels.measuring.session import MEASUREMENTS, Session
from kernels.results import Failure, Measured, records
from kernels.results.store import Store
from tests.kernels.trees import ROOT, copied, python

CONTRACT = ("tests/kernels/test_contract.py", "tests/kernels/test_declarations.py", "tests/predict/test_textbook.py")


def test_a_family_and_a_panel_are_added(tmp_path):
    """A copy of the project gets both. It runs its own tests of the panel, and the contract tests of the kernel."""
    tree = copied(tmp_path / "tree")
    shutil.copytree(tree / "tests" / "softmax", tree / "kernels" / "softmax")
    shutil.copy(tree / "tests" / "tiles_panel.py", tree / "visualize" / "views" / "order" / "tiles_panel.py")
    tabs = tree / "visualize" / "views" / "tabs.py"
    text, found = re.subn(
        r'(    Tab\("compiler".*\n)', r'\1    Tab("tiles", "Tiles", (TilesPanel,)),\n', tabs.read_text(encoding="utf-8")
    )
    assert found == 1
    added = "\nfrom visualize.views.order.tiles_panel import TilesPanel\n\n\n"
    tabs.write_text(text.replace("\n\n\n", added, 1), encoding="utf-8")
    cache = f"cache_dir={ROOT / '.pytest_cache'}"  # its compiled kernels are reused
    ended = python(
        tree,
        "-m",
        "pytest",
        "-o",
        cache,
        "tests/additions.py",
        *CONTRACT,
        "-k",
        "additions or (row_blocks and not largest)",
    )
    assert ended.returncode == 0, ended.stdout[-5000:] + ended.stderr[-3000:]
    (passed,) = re.findall(r"(\d+) passed", ended.stdout)
    assert int(passed) > 20, ended.stdout


# Interpreted by the worker that interprets the contract's cases.
INTERPRETED = pytest.mark.xdist_group("interpreted")

EXPERIMENT = from_json({"kernel": "matmul.grid_2d", "problem": {"M": 100, "N": 70, "K": 16}})
ELSEWHERE = replace(EXPERIMENT, gpu="A100-40GB")


@dataclass(frozen=True)
class ProgramCount(Measured):
    """How many programs a launch has, and in which process they ran."""

    programs: int
    process: int


def launch_and_count(experiment, gpu):
    """In the run worker."""
    prepared = prepare(experiment, gpu)
    prepared.launch()
    return prepared.kernel.programs(prepared.setting), os.getpid()


def count_programs(experiment, stages):
    device = stages.device()
    programs, process = stages.work("launch", launch_and_count, experiment, stages.gpu)
    return ProgramCount(experiment, device.backend, device, programs, process)


PROGRAMS = Measurement(
    "programs",
    records.RecordForm("programs", ProgramCount, key=launch_key, verb="Numbered"),
    count_programs,
    "Programs are counted where they run: this machine has {this}, and none were counted on {gpu}.",
    is_interpreted=True,
)


@pytest.fixture
def start(monkeypatch, compiled_before, store_path):
    """Starts sessions on one store, one after the other, with the measurement listed."""
    monkeypatch.setitem(MEASUREMENTS, "programs", PROGRAMS)
    started = []

    def session():
        for before in started:
            before.close()
        started.append(Session(None, compiled_before, Store(store_path)))
        return started[-1]

    yield session
    started[-1].close()


@INTERPRETED
def test_it_is_measured_in_the_run_worker_and_found_afterwards_for_any_seed(start):
    session = start()
    counted = session.submit(EXPERIMENT, "programs").result(60)
    assert (counted.backend, counted.programs) == ("interpreter", 2 * 2)
    assert counted.process == session.call_runner(os.getpid) != os.getpid()
    assert session.find_value(replace(EXPERIMENT, run=Run(seed=5)), "programs") is counted
    assert session.find_value(ELSEWHERE, "programs") is None
    stored = start().find_value(EXPERIMENT, "programs")
    assert stored.note.startswith("Numbered earlier on this machine, ")
    assert replace(stored, note="") == counted


@INTERPRETED
def test_another_gpu_is_refused_with_the_declared_sentence_and_recorded_lines_can_be_read(start, tmp_path):
    session = start()
    reason = "Programs are counted where they run: this machine has no GPU, and none were counted on A100-40GB."
    assert session.submit(ELSEWHERE, "programs").result(0) == Failure("config", "not_recorded", reason, "gpu")
    counted = session.submit(EXPERIMENT, "programs").result(60)
    line = PROGRAMS.form.line(records.Recording("A100-40GB", "2026-01-02", counted))
    (tmp_path / "a100_programs.jsonl").write_text(line, encoding="utf-8")
    (recording,) = records.shipped(PROGRAMS.form, tmp_path)
    assert recording.measured == counted
