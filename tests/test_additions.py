"""Another package of kernels replaces ours, and a measurement is added in one file: everything else follows."""

import os
from dataclasses import dataclass, replace

import pytest

from tests.experiments import experiment_of
from tests.trees import ROOT, python
from tests.waiting import PATIENCE_S
from tilescope.declare.experiment import Run, launch_key
from tilescope.measure.measurement import Measurement
from tilescope.measure.run import prepare
from tilescope.measure.session import MEASUREMENTS, Session
from tilescope.results import Failure, Measured, records
from tilescope.results.store import Store


def test_another_package_of_kernels_opens_on_the_same_page(monkeypatch):
    """A process with this package runs its own tests of it."""
    monkeypatch.setenv("TILESCOPE_KERNELS", "tests.own_kernels")
    ended = python(ROOT, "-m", "pytest", "tests/additions.py")
    assert ended.returncode == 0, ended.stdout[-5000:] + ended.stderr[-3000:]


EXPERIMENT = experiment_of("matmul.grid_2d M=100 N=70 K=16")
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


def count_programs(job):
    device = job.device()
    programs, process = job.work("launch", launch_and_count, job.experiment, job.gpu)
    return ProgramCount(job.experiment, device.backend, device, programs, process)


PROGRAMS = Measurement(
    "programs",
    records.RecordForm("programs", ProgramCount, key=launch_key, verb="Numbered"),
    count_programs,
    "Programs are counted where they run: this machine has {this}, and none were counted on {gpu}.",
    is_interpreted=True,
)


@pytest.mark.xdist_group("interpreted")
def test_a_measurement_is_made_stored_recorded_and_refused(
    monkeypatch, compiled_before, store_path, tmp_path
):
    monkeypatch.setitem(MEASUREMENTS, "programs", PROGRAMS)
    session = Session(None, compiled_before, Store(store_path))
    reason = "Programs are counted where they run: this machine has no GPU, and none were counted on A100-40GB."
    refused = session.submit(ELSEWHERE, "programs").result(0)
    assert refused == Failure("config", "not_recorded", reason, "gpu")
    counted = session.submit(EXPERIMENT, "programs").result(PATIENCE_S)
    assert counted.backend == "interpreter"
    assert counted.programs == 2 * 2
    assert counted.process == session.call_runner(os.getpid) != os.getpid()
    assert session.find_value(replace(EXPERIMENT, run=Run(seed=5)), "programs") is counted
    session.close()
    later = Session(None, compiled_before, Store(store_path))
    stored = later.find_value(EXPERIMENT, "programs")
    later.close()
    assert stored.note.startswith("Numbered earlier on this machine, ")
    assert replace(stored, note="") == counted
    line = PROGRAMS.form.line(records.Recording("A100-40GB", "2026-01-02", counted))
    (tmp_path / "a100_programs.jsonl").write_text(line)
    (recording,) = records.shipped(PROGRAMS.form, tmp_path)
    assert recording.measured == counted
