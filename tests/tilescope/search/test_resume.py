"""Cancelled, killed and resumed sweeps; what the store and files keep of them."""

from dataclasses import replace

import pytest
from fakes import (
    ALL,
    GPU,
    FakeBuilder,
    FakeDevice,
    explored,
    grid,
    make_run,
    predicting,
    swept,
)

from tests.experiments import experiment_of
from tests.stores import again, execute
from tests.waiting import PATIENCE_S
from tilescope.results import Failure, SweepRow
from tilescope.results.sweep import DONE
from tilescope.search.search import MAX_PER_TRIAL

SOME = grid({"BLOCK_M": [16, 32, 64, 128], "BLOCK_N": [16, 32, 64], "num_warps": [2, 4, 8]})
REFUSED = Failure("compile", "out_of_resources", "Too much shared memory.")


def cut_off(trials, **options):
    """Cancel a sweep after a number of trials."""
    device = FakeDevice()
    run = make_run(device, predicting(error=0.1), **options)
    device.before = lambda trial: run.cancel() if len(device.trials) > trials else None
    return run.start().result(PATIENCE_S)


def without_builds(rows):
    """Rows without the compiles of untried configs: how many are compiled ahead depends on time."""
    return [(row.experiment, row.status) if row.status == "not tried" else row for row in rows]


@pytest.mark.parametrize("budget", [None, 50], ids=["all", "guided"])
@pytest.mark.parametrize("trials", [1, 5])
def test_a_cancelled_sweep_resumes_from_the_store_to_the_rows_of_an_uninterrupted_one(
    store, budget, trials
):
    whole = swept(FakeDevice(), predicting(error=0.1), budget=budget)
    cut = cut_off(trials, store=store, budget=budget)
    assert cut.ended == "cancelled"
    assert cut.final is None
    reopened = again(store)
    device = FakeDevice()
    run = make_run(device, predicting(error=0.1), store=reopened, budget=budget)
    done = {row.experiment for row in cut.rows if row.status in DONE}
    assert run.progress.done == len(done) < len(ALL)
    resumed = run.start().result(PATIENCE_S)
    assert without_builds(resumed.rows) == without_builds(whole.rows)
    assert resumed.best.experiment == whole.best.experiment
    assert resumed.ended == whole.ended
    assert not done & set(explored(device))
    assert len(reopened.sweeps(9)) == 1, "the same sweep goes on"
    assert without_builds(again(store).load_sweep(grid(), GPU).rows) == without_builds(resumed.rows)


@pytest.mark.parametrize(
    "changed", [{"device": "A100-80GB"}, {"status": "failed", "reason": "It died."}], ids=str
)
def test_rows_of_another_gpu_and_failed_rows_are_tried_again(changed):
    device = FakeDevice()
    earlier = swept(budget=20)
    rows = tuple(replace(row, **changed) for row in earlier.rows)
    sweep = swept(device, earlier=replace(earlier, rows=rows), budget=20)
    assert len(explored(device)) == sweep.count("timed") == 20
    assert sweep.count("failed") == 0
    assert {row.device for row in sweep.rows} == {"H200"}


def test_a_machine_that_takes_no_times_keeps_timed_rows_and_one_that_does_times_predicted_rows():
    few = grid({"BLOCK_M": [16, 32]})
    whole = swept(within=few)
    checking = FakeDevice()
    checking.takes_times = False
    resumed = swept(checking, within=few, earlier=whole)
    assert resumed.rows == whole.rows
    assert resumed.best == whole.best
    assert checking.trials == []
    predicted = tuple(
        SweepRow(experiment, "predicted", "No GPU.", GPU.name) for experiment in few.experiments
    )
    assert swept(within=few, earlier=replace(whole, rows=predicted)).count("timed") == few.size


def test_a_timed_config_that_no_longer_compiles_does_not_hold_up_the_race():
    cut = cut_off(19)
    best = min(
        (row for row in cut.rows if row.status == "timed"), key=lambda row: row.relative
    ).experiment
    died = Failure("compile", "worker_died", "The compiler died.")
    builder = FakeBuilder(failures=lambda experiment: died if experiment == best else None)
    sweep = swept(builder=builder, earlier=cut)
    assert [row.experiment for row in sweep.rows if row.status == "failed"] == [best]
    assert best not in {finalist.experiment for finalist in sweep.final.finalists}


def test_rows_are_stored_before_anyone_sees_them(store):
    device = FakeDevice()
    reader = again(store)
    seen = []
    run = make_run(device, store=store)

    def look(trial):
        sweep = run.snapshot()
        stored = reader.load_sweep(grid(), GPU)
        seen.append((sweep.ended, sweep.count("timed"), stored.count("timed")))

    device.before = look
    run.start().result(PATIENCE_S)
    first = [0, MAX_PER_TRIAL, 2 * MAX_PER_TRIAL]
    assert [shown for _, shown, _ in seen[:3]] == first
    assert all((ended, shown) == ("running", stored) for ended, shown, stored in seen)


def test_a_device_that_does_not_start_ends_the_sweep_with_its_reason():
    device = FakeDevice()
    device.describe = lambda: Failure("worker", "error", "There is no driver.")
    sweep = swept(device)
    assert sweep.ended == "failed"
    assert sweep.note == "There is no driver."


def sweep_mixed(**options):
    """Return a sweep with timed, wrong and set-aside configs."""
    device = FakeDevice(noise=0.01, wrong=lambda experiment: experiment.config.BLOCK_M == 16)
    builder = FakeBuilder(
        failures=lambda experiment: REFUSED if experiment.config.num_warps == 8 else None
    )
    return swept(device, builder=builder, **options)


def test_a_stored_sweep_comes_back_whole_and_is_marked_as_recorded(store):
    sweep = sweep_mixed(within=SOME, store=store)
    assert {row.status for row in sweep.rows} == {"timed", "wrong", "set aside"}
    execute(
        store.path,
        "UPDATE sweep SET details = json_insert(details, '$.strategy', 'of an earlier version')",
        "UPDATE sweep_row SET row = json_insert(row, '$.where', 'of an earlier version')",
    )
    back = again(store).load_sweep(SOME, GPU)
    recorded = replace(sweep, device=replace(sweep.device, backend="recorded"), note=back.note)
    assert back == recorded
    assert back.source == "recorded"
    assert back.note.startswith("Swept on this machine, 20")
    moved = replace(SOME, base=SOME.experiments[-1])
    assert store.load_sweep(moved, GPU).space == moved, (
        "the base's own values of varied knobs have no effect"
    )
    assert store.load_sweep(grid({"BLOCK_M": [16, 32]}), GPU) is None


def test_a_sweep_with_another_triton_starts_again_and_says_so(store):
    swept(within=SOME, store=store)
    execute(store.path, "UPDATE sweep SET triton = '99.1'")
    sweep = store.load_sweep(SOME, GPU)
    assert "with Triton 99.1. Triton 3" in sweep.note
    assert "is installed now, so the next sweep starts from scratch." in sweep.note
    assert not sweep.name
    device = FakeDevice()
    swept(device, within=SOME, store=store)
    assert len(explored(device)) == SOME.size
    assert [stored.triton == "99.1" for stored in store.sweeps(5)] == [False, True]


def test_an_unreadable_stored_sweep_is_logged_and_ignored(store, caplog):
    swept(within=SOME, store=store)
    execute(store.path, """UPDATE sweep_row SET row = '{"median_ms": "fast"}' WHERE place = 0""")
    assert store.load_sweep(SOME, GPU) is None
    assert "A stored sweep can't be read" in caplog.text
    assert make_run(within=SOME, store=store).progress.done == 0


def test_the_line_of_a_config_is_a_valid_triton_config():
    triton = pytest.importorskip("triton")
    experiment = experiment_of("matmul.persistent PROGRAMS_PER_SM=2 num_warps=8")
    line = experiment.config_line()
    assert line.endswith("# launch: PROGRAMS_PER_SM=2")
    (made,) = eval(f"[{line}\n]", {"triton": triton})
    config = vars(experiment.config)
    assert made.num_warps == 8
    assert made.kwargs.items() <= config.items()
    assert made.kwargs.keys() == {"BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_SIZE"}
