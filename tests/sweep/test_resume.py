"""A sweep that is cut off and resumed gives the rows of one that was not; files hold rows as they are."""

from __future__ import annotations

import csv
import json
from concurrent.futures import Future
from dataclasses import replace

import pytest
from fakes import ALL, GPU, FakeBuilder, FakeDevice, grid, predicting, swept, true_ms

from kernels import discover
from kernels.experiment import from_json
from kernels.export.script import config_line
from kernels.gpus import GPUS
from kernels.knobs import ConfigError
from kernels.results import Failure, Strategy, Sweep, SweepRow, codec
from kernels.results.codec import UnreadableRecording
from kernels.space import space
from kernels.sweep import files
from kernels.sweep.search import MAX_PER_TRIAL, REFERENCE_AMONG
from kernels.sweep.stored_sweep import ResumePoint
from kernels.sweep.sweep_run import SweepRun, estimate_seconds

STRATEGIES = [Strategy("grid"), Strategy("random", seed=3), Strategy("guided")]


def settled(sweep):
    """Rows without what is known of configs that were compiled ahead, and then not tried: how many depends on time."""
    return [(row.experiment, row.status) if row.status == "not tried" else row for row in sweep.rows]


def cut_off(strategy, after, **options):
    """A sweep that is cancelled when so many trials are over."""
    device = FakeDevice()
    sweeping = SweepRun(
        grid(), strategy, [device], FakeBuilder(predicting(error=0.1)), predicting(error=0.1), **options
    )
    device.before = lambda trial: sweeping.cancel() if len(device.trials) > after else None
    sweeping.start()
    return sweeping.result(60), device


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
@pytest.mark.parametrize("after", [1, 5])
def test_a_sweep_that_is_cancelled_and_resumed_has_the_rows_of_one_that_was_not(strategy, after):
    whole = swept(strategy, FakeDevice(), predicting(error=0.1))
    cut, _ = cut_off(strategy, after)
    assert cut.ended == "cancelled"
    assert cut.final is None
    again = FakeDevice()
    resumed = swept(strategy, again, predicting(error=0.1), resume=ResumePoint(cut.rows))
    assert settled(resumed) == settled(whole)
    assert (resumed.best.experiment, resumed.ended) == (whole.best.experiment, whole.ended)
    explored = {one for trial in again.trials if trial.phase == "explore" for one in trial.experiments}
    assert not explored & {row.experiment for row in cut.rows if row.status == "timed"}


def test_a_cancelled_sweep_keeps_what_is_done_and_ranks_it():
    cut, _ = cut_off(Strategy("grid"), 4)
    assert cut.count("timed") == REFERENCE_AMONG + 3 * MAX_PER_TRIAL
    assert cut.best.median_ms == min(row.median_ms for row in cut.rows if row.median_ms)


def test_rows_of_another_gpu_and_rows_that_failed_are_tried_again():
    done = swept(Strategy("grid", budget=20)).rows
    for changed in ({"device": "A100-80GB"}, {"status": "failed", "reason": "It died."}):
        device = FakeDevice()
        found = swept(
            Strategy("grid", budget=20), device, resume=ResumePoint(tuple(replace(row, **changed) for row in done))
        )
        explored = [one for trial in device.trials if trial.phase == "explore" for one in trial.experiments]
        assert len(explored) == found.count("timed") == 20
        assert found.count("failed") == 0
        assert {row.device for row in found.rows} == {"H200"}


def test_what_was_timed_is_kept_where_nothing_can_be_timed():
    whole = swept(Strategy("grid"), within=grid({"BLOCK_M": [16, 32]}))
    checking = FakeDevice()
    checking.takes_times = False
    again = swept(Strategy("grid"), checking, within=grid({"BLOCK_M": [16, 32]}), resume=ResumePoint(whole.rows))
    assert again.rows == whole.rows
    assert again.best.experiment == whole.best.experiment
    assert checking.trials == []


def test_what_was_only_predicted_is_timed_where_it_can_be():
    few = grid({"BLOCK_M": [16, 32]})
    guessed = [SweepRow(one, "predicted", "No GPU.", GPU.name) for one in few.experiments]
    assert swept(Strategy("grid"), within=few, resume=ResumePoint(tuple(guessed))).count("timed") == few.size


def test_a_compile_whose_answer_can_not_be_read_is_a_failed_row_and_no_endless_wait():
    builder = FakeBuilder()
    submit = builder.submit

    def broken(experiment):
        if experiment != ALL[0]:
            return submit(experiment)
        result = Future()
        result.set_exception(EOFError("half an answer"))
        return result

    builder.submit = broken
    found = swept(Strategy("grid"), builder=builder, within=grid())
    assert (found.rows[0].status, found.rows[0].reason) == ("failed", "EOFError: half an answer")
    assert found.count("timed") == len(ALL) - 1


def test_a_config_that_was_timed_and_can_not_be_compiled_any_more_does_not_hold_up_the_race():
    cut, _ = cut_off(Strategy("grid"), 19)
    best = min((row for row in cut.rows if row.status == "timed"), key=lambda row: row.relative)
    died = Failure("compile", "worker_died", "The compiler died.")
    builder = FakeBuilder(failures=lambda one: died if one == best.experiment else None)
    found = swept(Strategy("grid"), builder=builder, resume=ResumePoint(cut.rows))
    assert [row.experiment for row in found.rows if row.status == "failed"] == [best.experiment]
    assert found.final is not None
    assert best.experiment not in {one.experiment for one in found.final.finalists}


def test_updates_end_with_the_sweep():
    run = SweepRun(grid(), Strategy("grid"), [FakeDevice()], FakeBuilder(), predicting())
    run.start()
    *_, last = run.updates(0.01)
    found = run.result(0)
    assert (last.phase, last.done, last.total, last.remaining_s) == ("over", len(ALL), len(ALL), 0.0)
    assert last.best.experiment == found.best.experiment
    assert run.changes > 0


def test_what_is_known_so_far_is_a_sweep_that_runs():
    device = FakeDevice()
    sweeping = SweepRun(grid(), Strategy("grid"), [device], FakeBuilder(), predicting())
    seen = []
    device.before = lambda trial: seen.append(sweeping.snapshot())
    sweeping.start()
    sweeping.result(60)
    assert {one.ended for one in seen} == {"running"}
    assert [one.count("timed") for one in seen[:3]] == [0, REFERENCE_AMONG, REFERENCE_AMONG + MAX_PER_TRIAL]


def test_an_error_of_a_device_ends_the_sweep_with_its_sentence():
    device = FakeDevice()
    device.describe = lambda: Failure("worker", "error", "There is no driver.")
    found = swept(Strategy("grid"), device)
    assert found.ended == "failed"
    assert "There is no driver." in found.note


def test_the_estimate_before_a_sweep_is_what_compiling_takes_or_the_trials_where_these_take_longer():
    assert estimate_seconds(200, 15) == pytest.approx(200 * 1.9 / 15 + 6, abs=1)
    assert estimate_seconds(200, 1000) == pytest.approx(26)


@pytest.fixture(scope="module")
def found():
    refused = Failure("compile", "out_of_resources", "Too much shared memory.")
    return swept(
        Strategy("random", budget=40),
        FakeDevice(noise=0.01, wrong=lambda one: one.config.BLOCK_M == 16),
        builder=FakeBuilder(failures=lambda one: refused if one.config.BLOCK_K == 64 else None),
    )


def test_a_sweep_comes_back_from_json(found):
    assert codec.from_json(Sweep, json.loads(json.dumps(codec.to_json(found))), "sweep") == found


@pytest.mark.parametrize("suffix", files.RESUMABLE)
def test_rows_come_back_from_a_file(found, tmp_path, suffix):
    path = tmp_path / f"rows{suffix}"
    files.write_sweep(path, found)
    assert files.read_rows(path) == found.rows
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_table_has_a_line_per_row_and_units_in_its_columns(found, tmp_path):
    path = tmp_path / "rows.csv"
    files.write_sweep(path, found)
    with path.open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(found.rows)
    assert [line["status"] for line in lines] == [row.status for row in found.rows]
    fastest = next(line for line, row in zip(lines, found.rows, strict=True) if row == found.best)
    assert float(fastest["median_ms"]) == found.best.median_ms
    assert int(fastest["BLOCK_M"]) == found.best.experiment.config.BLOCK_M
    assert {"kernel", "M", "dtype", "low_ms", "high_ms", "predicted_ms", "predicted_resource", "device"} <= set(fastest)


def test_a_row_of_a_config_that_its_family_refuses_comes_back():
    one = from_json({"kernel": "matmul.grouped", "problem": {"dtype": "float8_e4m3fn"}}, discover())
    refused = space(one, {"BLOCK_K": [16, 32]}, discover()).experiments[0]
    row = SweepRow(refused, "set aside", "BLOCK_K is 16.", GPU.name)
    assert codec.from_json(SweepRow, json.loads(json.dumps(codec.to_json(row))), "row") == row


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("rows.csv", "", "allowed are .jsonl, .json"),
        ("rows.jsonl", "not JSON", "line 1: this is not JSON"),
        ("rows.jsonl", "[]", "line 1: .*should be an object"),
        (
            "rows.jsonl",
            '{"experiment": {"kernel": "matmul.grouped"}, "status": 7}',
            "line 1: status: Input should be",
        ),
        ("rows.jsonl", '{"experiment": {"kernel": "x"}, "status": "timed"}', "line 1: "),
        ("rows.json", '{"space": {}}', "rows.json: "),
    ],
)
def test_a_file_that_holds_no_rows_is_told_in_a_sentence(tmp_path, name, text, said):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises((ConfigError, UnreadableRecording), match=said):
        files.read_rows(path)


def test_configs_are_written_as_triton_takes_them():
    """Each line is Python that makes a triton.Config with the kernel's own constants."""
    triton = pytest.importorskip("triton")
    kernel = discover()["matmul.persistent"]
    experiment = from_json({"kernel": kernel.id, "config": {"PROGRAMS_PER_SM": 2, "num_warps": 8}}, discover())
    line = config_line(kernel, experiment)
    assert line.endswith("# grid: PROGRAMS_PER_SM=2")
    (made,) = eval(f"[{line}\n]", {"triton": triton})
    config = vars(experiment.config)
    assert made.num_warps == 8
    assert made.kwargs == {n: config[n] for n in config if n.startswith("BLOCK") or n == "GROUP_SIZE"}


def test_true_times_differ_so_that_there_is_one_best():
    times = [true_ms(one) for one in ALL]
    assert sorted(times)[1] > min(times)
    assert GPU is GPUS["H200"]
