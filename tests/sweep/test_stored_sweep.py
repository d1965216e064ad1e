"""Sweeps in the store: rows are there before the next trial, and a sweep goes on after its process is gone."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from fakes import GPU, STEADY, FakeBuilder, FakeDevice, grid, predicting, swept

from kernels.results import Failure, Strategy
from kernels.results.store import Store
from kernels.sweep import stored_sweep
from kernels.sweep.search import MAX_PER_TRIAL, REFERENCE_AMONG
from kernels.sweep.stored_sweep import NEW, load_sweep, stored_version
from kernels.sweep.sweep_run import SweepRun
from tests.kernels.stores import again
from tests.kernels.trees import ROOT

WITHIN = grid({"BLOCK_M": [16, 32, 64, 128], "BLOCK_N": [16, 32, 64], "num_warps": [2, 4, 8]})


def sweeping(store, device=None, strategy=None, within=WITHIN, resume=None, builder=None):
    """A sweep that resumes from a store and is stored."""
    device, builder = device or FakeDevice(), builder or FakeBuilder()
    return SweepRun(within, strategy or Strategy("grid"), [device], builder, predicting(), resume=resume, store=store)


def ended(one):
    one.start()
    return one.result(60)


def explored(device):
    return [one for trial in device.trials if trial.phase == "explore" for one in trial.experiments]


def test_a_sweep_comes_back_with_all_that_was_found(store):
    refused = Failure("compile", "out_of_resources", "Too much shared memory.")
    builder = FakeBuilder(failures=lambda one: refused if one.config.num_warps == 2 else None)
    device = FakeDevice(noise=0.01, wrong=lambda one: one.config.BLOCK_M == 16)
    found = ended(sweeping(store, device, builder=builder))
    assert {row.status for row in found.rows} == {"timed", "wrong", "set aside"}
    back = load_sweep(again(store), WITHIN, GPU)[0]
    assert (back.rows, back.final, back.strategy) == (found.rows, found.final, found.strategy)
    assert (back.ended, back.seconds) == ("complete", found.seconds)
    assert (back.backend, back.source, back.device) == (
        "recorded",
        "recorded",
        replace(found.device, backend="recorded"),
    )
    assert back.note.startswith("Swept on this machine, 20")
    assert back.best == found.best
    assert store.problem == ""


def test_what_varies_alone_tells_a_space_so_that_its_base_may_have_any_of_its_values(store):
    ended(sweeping(store))
    moved = replace(WITHIN, base=WITHIN.experiments[-1])
    assert load_sweep(store, moved, GPU)[0].space == moved
    assert load_sweep(store, grid({"BLOCK_M": [16, 32]}), GPU) is None


@pytest.mark.parametrize("strategy", [Strategy("grid"), Strategy("random", seed=3), Strategy("guided")])
def test_a_sweep_that_is_cancelled_goes_on_from_the_store_after_a_restart(store, strategy):
    whole = swept(strategy, FakeDevice(), within=WITHIN)
    device = FakeDevice()
    cut = sweeping(store, device, strategy)
    device.before = lambda trial: cut.cancel() if len(device.trials) > 1 else None
    rows = ended(cut).rows
    assert 0 < sum(row.is_done for row in rows) < len(rows)
    there, rest = again(store), FakeDevice()
    resumed = sweeping(there, rest, strategy)
    assert resumed.resumed == sum(row.is_done for row in rows)
    found = ended(resumed)
    assert [row.status for row in found.rows] == [row.status for row in whole.rows]
    assert found.best.experiment == whole.best.experiment
    assert not set(explored(rest)) & {row.experiment for row in rows if row.is_done}
    assert len(there.sweeps(9)) == 1, "it is the same sweep"
    back = load_sweep(again(store), WITHIN, GPU)[0]
    assert [row for row in back.rows if row.is_done] == [row for row in found.rows if row.is_done]


def test_rows_are_stored_before_the_next_trial_begins(store):
    device, reader, seen = FakeDevice(), again(store), []
    one = sweeping(store, device)
    device.before = lambda trial: seen.append(
        (sum(row.is_done for row in one.snapshot().rows), len(reader.sweep_rows(one.name)))
    )
    ended(one)
    assert [told for told, _ in seen[:3]] == [0, REFERENCE_AMONG, REFERENCE_AMONG + MAX_PER_TRIAL]
    assert all(told == stored for told, stored in seen)


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, "tests/sweep")
from fakes import FakeDevice
from kernels.results.store import Store
from tests.sweep.test_stored_sweep import ended, sweeping

device = FakeDevice()
device.before = lambda trial: os.kill(os.getpid(), signal.SIGKILL) if len(device.trials) == int(sys.argv[2]) else None
ended(sweeping(Store(Path(sys.argv[1])), device))
"""


def test_a_process_that_is_killed_in_a_trial_loses_that_trial_alone(store_path):
    """The first process is killed in its third trial, the second, which resumes, in its second."""
    for trial, done in ((3, 19), (2, 34)):
        killed = subprocess.run([sys.executable, "-c", KILLED, str(store_path), str(trial)], cwd=ROOT, check=False)
        assert killed.returncode == -signal.SIGKILL
        store = Store(store_path)
        left = load_sweep(store, WITHIN, GPU)[0]
        assert left.ended == "cut off"
        assert [row.status for row in left.rows] == ["timed"] * done + ["not tried"] * (36 - done)
        assert [row.turn for row in left.rows[:done]] == list(range(done))
        (listed,) = store.sweeps(5)
        assert (listed.done, listed.total, listed.state) == (done, 36, "running")
        assert listed.best_ms == min(row.median_ms for row in left.rows[:done])
        store.close()
    store, rest = Store(store_path), FakeDevice()
    found = ended(sweeping(store, rest))
    assert len(explored(rest)) == 36 - 34
    assert found.best.experiment == swept(Strategy("grid"), within=WITHIN).best.experiment
    store.close()


def test_another_triton_starts_anew_and_says_so(store, monkeypatch):
    ended(sweeping(store))
    monkeypatch.setattr(stored_sweep, "TRITON", "99.1")
    sweep, resume_point = load_sweep(store, WITHIN, GPU)
    assert "Triton 99.1 is installed now, so Sweep starts again." in sweep.note
    assert resume_point == NEW
    device = FakeDevice()
    assert sweeping(store, device).resumed == 0
    ended(sweeping(store, device))
    assert len(explored(device)) == WITHIN.size
    assert [one.triton == "99.1" for one in store.sweeps(5)] == [True, False]


def test_a_sweep_that_starts_anew_leaves_the_earlier_one_as_it_was(store):
    first = sweeping(store)
    ended(first)
    before = stored_version(store, WITHIN, GPU)
    rows = store.sweep_rows(first.name)
    device = FakeDevice(seed=1, noise=10 * STEADY)
    ended(sweeping(store, device, resume=NEW))
    assert len(explored(device)) == WITHIN.size
    assert store.sweep_rows(first.name) == rows
    assert stored_version(store, WITHIN, GPU) != before


def test_what_can_not_be_read_is_as_good_as_not_stored(store, caplog):
    one = sweeping(store)
    ended(one)
    place, row = next(iter(store.sweep_rows(one.name).items()))
    store.add_to_sweep(one.name, {place: {**row, "median_ms": "fast"}}, 1, None)
    assert load_sweep(store, WITHIN, GPU) is None
    assert "A stored sweep cannot be read" in caplog.text
    assert sweeping(store).resumed == 0


def test_a_store_that_is_off_keeps_no_sweep(store_path):
    nothing = Store(None)
    assert ended(sweeping(nothing)).ended == "complete"
    assert load_sweep(nothing, WITHIN, GPU) is None
