"""Compiles ahead: what dies is compiled once more, and where no worker starts a sweep ends with a sentence."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path

import pytest
from fakes import ALL, GPU, FakeDevice, grid, swept

from kernels.measuring.pool import died
from kernels.results import Failure, Strategy
from kernels.sweep import builder
from kernels.sweep.device import Build, no_prediction
from tests.kernels.trees import ROOT

BUILT = Build(64, 0, 0, 1.0, None)


DIED = died("compile", "killed by SIGABRT")
CLOSED = Failure("compile", "cancelled", "The page was closed.")


class FakePool:
    """A pool that answers as the test says."""

    has_started = True

    def __init__(self, answers):
        self.answers, self.experiments = answers, []

    def submit(self, call):
        self.experiments.append(call.args[0])
        future = Future()
        future.set_result(self.answers(len(self.experiments)))
        return future

    def close(self):
        self.answers = lambda number: CLOSED


@pytest.fixture
def building(monkeypatch):
    def made(answers):
        pool = FakePool(answers)
        monkeypatch.setattr(builder, "Pool", lambda *_: pool)
        return builder.LocalBuilder(GPU, no_prediction, Path(), 1), pool

    return made


def test_a_compile_whose_worker_dies_is_tried_once_more(building):
    made, pool = building(lambda number: DIED if number == 2 else BUILT)
    found = swept(Strategy("grid"), FakeDevice(), within=grid({"BLOCK_M": [16, 32, 64]}), builder=made)
    assert found.count("timed") == 3
    assert len(pool.experiments) == 4


@pytest.mark.parametrize("index", [0, 1])
def test_a_config_that_kills_its_compiler_twice_is_a_failed_row_and_does_not_end_the_sweep(building, index):
    lost = grid({"BLOCK_M": [16, 32, 64]}).experiments[index]
    made, pool = building(lambda number: DIED if pool.experiments[-1] == lost else BUILT)
    found = swept(Strategy("grid"), FakeDevice(), within=grid({"BLOCK_M": [16, 32, 64]}), builder=made)
    assert [row.status for row in found.rows] == ["failed" if row == index else "timed" for row in range(3)]
    assert "The worker died in the compile stage (twice)" in found.rows[index].reason


def test_a_builder_that_is_closed_compiles_nothing_more(building):
    made, pool = building(lambda number: BUILT)
    made.close()
    assert made.submit(ALL[0]).result(5).kind == "cancelled"
    assert len(pool.experiments) == 1


UNGUARDED = """
import sys
from kernels import discover
from kernels.experiment import from_json
from kernels.results import Strategy
from kernels.measuring.session import Session
from kernels.space import space
from kernels.sweep.here import sweeping_here

base = from_json({"kernel": "transpose.tiled", "gpu": "H200"}, discover())
session = Session(None)
sweeping = sweeping_here(session, space(base, {"BLOCK_M": [16, 32]}, discover()), Strategy("grid"))
sweeping.start()
found = sweeping.result(100)
print(found.ended, found.note)
session.close()
"""


def test_a_script_whose_workers_can_not_start_ends_with_a_sentence(tmp_path):
    """Each worker imports the script, which would start a sweep of its own."""
    script = tmp_path / "unguarded.py"
    script.write_text(f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{UNGUARDED}", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout.startswith("failed Nothing can be compiled, as no compile worker starts")
    assert '`if __name__ == "__main__":`' in done.stdout
