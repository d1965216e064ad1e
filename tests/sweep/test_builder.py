"""Compiles ahead: what dies is compiled once more, and where no worker starts a sweep ends with a sentence."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path

import pebble
import pytest
from fakes import ALL, GPU, FakeDevice, grid, swept

from kernels.results import Strategy
from kernels.sweep import builder
from kernels.sweep.device import Build, no_prediction
from tests.kernels.trees import ROOT

BUILT = Build(64, 0, 0, 1.0, None)


class Workers:
    """Processes that answer as they are told: a build, or "cancelled" of a pool that is broken."""

    def __init__(self, answers):
        self.answers, self.calls = answers, []

    def submit(self, function, stage, experiment, *rest):
        self.calls.append(experiment)
        answer = self.answers(len(self.calls))
        call = Future()
        if answer == "cancelled":
            call.cancel()
            call.set_running_or_notify_cancel()
        elif isinstance(answer, Exception):
            call.set_exception(answer)
        else:
            call.set_result(answer)
        return call

    def close(self):
        pass


@pytest.fixture
def building(monkeypatch):
    def made(answers):
        workers = Workers(answers)
        monkeypatch.setattr(builder, "Workers", lambda *_: workers)
        return builder.LocalBuilder(GPU, no_prediction, Path(), 1), workers

    return made


def test_what_a_broken_pool_drops_is_compiled_once_more(building):
    made, workers = building(lambda number: "cancelled" if number == 2 else BUILT)
    found = swept(Strategy("grid"), FakeDevice(), within=grid({"BLOCK_M": [16, 32, 64]}), builder=made)
    assert found.count("timed") == 3
    assert len(workers.calls) == 4


def test_what_is_dropped_twice_is_a_failed_row_and_no_endless_wait(building):
    lost = grid({"BLOCK_M": [16, 32, 64]}).experiments[1]
    made, workers = building(lambda number: "cancelled" if workers.calls[-1] == lost else BUILT)
    found = swept(Strategy("grid"), FakeDevice(), within=grid({"BLOCK_M": [16, 32, 64]}), builder=made)
    assert [row.status for row in found.rows] == ["timed", "failed", "timed"]
    assert "The worker died in the compile stage (twice)" in found.rows[1].reason


def test_a_config_that_kills_its_compiler_does_not_end_the_sweep_though_it_is_the_first(building):
    first = grid({"BLOCK_M": [16, 32, 64]}).experiments[0]
    made, workers = building(lambda number: pebble.ProcessExpired("dead", -6) if workers.calls[-1] == first else BUILT)
    found = swept(Strategy("grid"), FakeDevice(), within=grid({"BLOCK_M": [16, 32, 64]}), builder=made)
    assert [row.status for row in found.rows] == ["failed", "timed", "timed"]


def test_a_builder_that_is_closed_compiles_nothing_more(building):
    made, workers = building(lambda number: "cancelled")
    made.close()
    assert made.submit(ALL[0]).result(5).kind == "cancelled"
    assert len(workers.calls) == 1


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
