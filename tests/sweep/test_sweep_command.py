"""`python app.py sweep`: exit status, files, sentences. One sweep goes its whole way; others are on a fake device."""

from __future__ import annotations

import _thread
import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeBuilder, FakeDevice, grid, predicting

from kernels.results import Failure
from kernels.sweep import files
from kernels.sweep.sweep_run import SweepRun
from visualize.command import sweep_command
from visualize.command.sweep_flags import make_parser

ROOT = Path(__file__).resolve().parents[2]
VARY = ["--vary", "BLOCK_M=16,32,64,128", "--vary", "BLOCK_N=16,64", "--vary", "num_warps=2,4"]
SIZE = 16


@pytest.fixture(autouse=True)
def own_store(tmp_path, monkeypatch):
    """No test's sweep is found by another, nor by whoever works here."""
    monkeypatch.setenv("TILESCOPE_DB", str(tmp_path / "tilescope.db"))


@pytest.fixture
def experiment(tmp_path):
    path = tmp_path / "experiment.json"
    path.write_text('{"kernel": "matmul.grouped"}', encoding="utf-8")
    return str(path)


@pytest.fixture
def faked(monkeypatch):
    """Sweeps are on a fake device, which the test may change beforehand."""
    device, builder = FakeDevice(), FakeBuilder()

    def sweep_here(session: Any, space: Any, strategy: Any, predict: Any, resume: Any) -> SweepRun:
        return SweepRun(space, strategy, [device], builder, predicting(), resume=resume, store=session.store)

    monkeypatch.setattr(sweep_command, "sweep_here", sweep_here)
    device.builder = builder
    return device


def test_a_sweep_goes_its_whole_way_where_there_is_no_gpu(tmp_path, tilescope_cache):
    """Compiled for an H200, which has too little shared memory for one config; the other is predicted, and not run."""
    described = {"kernel": "matmul.grouped", "config": {"BLOCK_M": 128, "BLOCK_K": 64}, "gpu": "H200"}
    (tmp_path / "experiment.json").write_text(json.dumps(described), encoding="utf-8")
    arguments = ["experiment.json", "--vary", "num_stages=3,8", "--out", "rows.csv"]
    environment = {**os.environ, "TILESCOPE_CACHE": str(tilescope_cache), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, ROOT / "app.py", "sweep", *arguments],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with (tmp_path / "rows.csv").open(encoding="utf-8") as file:
        right, aside = csv.DictReader(file)
    assert (right["num_stages"], right["status"], right["device"]) == ("3", "predicted", "H200")
    assert float(right["predicted_ms"]) > 0
    assert int(float(right["registers"])) > 16
    assert (aside["num_stages"], aside["status"]) == ("8", "set aside")
    assert "bytes of shared memory per program; H200 allows 232,448" in aside["reason"]
    assert "ranked by their predicted time on H200" in done.stdout
    assert 'triton.Config({"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP_SIZE": 4}' in done.stdout
    assert "2/2" in done.stderr


def test_a_bad_flag_ends_with_2_and_a_sentence_and_no_traceback(tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "app.py", "sweep", "nowhere.json", "--vary", "BLOCK_M=64"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "[Errno 2] No such file or directory: 'nowhere.json'\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "No knob is varied"),
        (["--vary", "BLOCK_M"], "--vary is 'BLOCK_M'; write KNOB=VALUE,VALUE"),
        (["--vary", "BLOCK_M="], "--vary is 'BLOCK_M='"),
        (["--vary", "K=64"], "The config of matmul.grouped has no field 'K'"),
        (["--vary", "BLOCK_M=63"], "BLOCK_M is 63; allowed are"),
        ([*VARY, "--out", "rows.txt"], "rows.txt ends in '.txt'; allowed are .jsonl, .json, .csv."),
        ([*VARY, "--out", "nowhere/rows.csv"], "there is no folder nowhere"),
        ([*VARY, "--budget", "0"], "--budget is 0"),
        ([*VARY, "--gpus", "two"], "--gpus is 'two'; allowed are all and whole numbers from 1."),
        ([*VARY, "--gpus", "2"], "--gpus is 2; this host has none."),
        ([*VARY, "--resume", "rows.csv"], "allowed are .jsonl, .json"),
        ([*VARY, "--resume", "nowhere.jsonl"], "No such file"),
        ([*VARY, "--resume", "rows.jsonl", "--anew"], "--anew tries every config, and --resume rows.jsonl skips some"),
    ],
)
def test_flags_that_make_no_sense_are_told_in_a_sentence(experiment, capsys, monkeypatch, arguments, said):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert sweep_command.main([experiment, *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "experiment.json: this is not JSON"),
        ("[]", "experiment.json: The experiment is a list"),
        ('{"kernel": "x"}', "experiment.json: kernel is 'x'; allowed are"),
    ],
)
def test_an_experiment_that_is_none_is_told_in_a_sentence(experiment, capsys, text, said):
    Path(experiment).write_text(text, encoding="utf-8")
    assert sweep_command.main([experiment, *VARY]) == 2
    assert said in capsys.readouterr().err


def test_all_fine_is_0_and_the_best_is_printed_with_its_ratio_to_the_library(experiment, faked, capsys, tmp_path):
    out = tmp_path / "rows.json"
    assert sweep_command.main([experiment, *VARY, "--strategy", "grid", "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert f"{SIZE} configs on Fake H200: {SIZE} timed." in said.out
    assert "torch.matmul takes " in said.out
    assert 'triton.Config({"BLOCK_M": 128, "BLOCK_N": 64' in said.out
    assert f"{SIZE}/{SIZE}" in said.err
    assert len(files.read_rows(out)) == SIZE


def test_a_config_that_failed_is_1_and_so_is_no_right_one(experiment, faked, capsys):
    faked.deadly = lambda one: one.config.BLOCK_M == 16 and one.config.BLOCK_N == 16
    assert sweep_command.main([experiment, *VARY]) == 1
    assert "2 failed" in capsys.readouterr().out
    faked.deadly = lambda one: False
    faked.wrong = lambda one: True
    assert sweep_command.main([experiment, *VARY, "--anew"]) == 1
    assert "No config was right" in capsys.readouterr().out


def test_what_is_set_aside_is_no_failure(experiment, faked, capsys):
    refused = Failure("compile", "out_of_resources", "This config needs too much.")
    faked.builder.failures = lambda one: refused if one.config.BLOCK_M == 16 else None
    assert sweep_command.main([experiment, *VARY]) == 0
    assert "4 set aside" in capsys.readouterr().out


@pytest.fixture
def interruptible():
    """A shell has what it starts in the background ignore Ctrl+C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_keeps_the_rows_and_resuming_goes_on_from_them(experiment, faked, capsys, tmp_path):
    out = tmp_path / "rows.jsonl"
    arguments = [experiment, *VARY, "--strategy", "grid", "--out", str(out)]
    faked.before = interrupting(faked)
    assert sweep_command.main(arguments) == 130
    kept = [row for row in files.read_rows(out) if row.status == "timed"]
    assert 4 <= len(kept) < SIZE
    capsys.readouterr()

    faked.is_cancelled, faked.before = False, lambda trial: None
    faked.trials.clear()
    assert sweep_command.main([*arguments, "--resume", str(out)]) == 0
    assert f"{len(kept)} of {SIZE} configs were done before." in capsys.readouterr().err
    explored = [one for trial in faked.trials if trial.phase == "explore" for one in trial.experiments]
    assert len(explored) == SIZE - len(kept)
    assert all(row.status == "timed" for row in files.read_rows(out))


def test_what_is_stored_is_not_tried_again_unless_that_is_asked_for(experiment, faked, capsys):
    arguments = [experiment, *VARY, "--strategy", "grid"]
    for flags, said, tried in (
        ([], "", SIZE),
        ([], f"{SIZE} of {SIZE} configs were done before. They are stored; --anew tries them again.", 0),
        (["--anew"], "", SIZE),
    ):
        faked.trials.clear()
        assert sweep_command.main([*arguments, *flags]) == 0
        told = capsys.readouterr()
        assert f"{SIZE} timed." in told.out
        assert said in told.err
        assert ("done before" in told.err) == bool(said)
        assert len([one for trial in faked.trials if trial.phase == "explore" for one in trial.experiments]) == tried


def interrupting(device):
    """A Ctrl+C in the second trial, which then waits for the cancel that follows."""

    def before(trial):
        if len(device.trials) == 2:
            _thread.interrupt_main()
            while not device.is_cancelled:
                pass

    return before


def test_rows_of_another_space_are_told(experiment, faked, capsys, tmp_path):
    out = tmp_path / "rows.jsonl"
    assert sweep_command.main([experiment, "--vary", "BLOCK_M=16,32", "--out", str(out)]) == 0
    capsys.readouterr()
    assert sweep_command.main([experiment, "--vary", "BLOCK_N=16,32", "--resume", str(out)]) == 2
    assert "none of its 2 rows is of this experiment and these values" in capsys.readouterr().err
    again = [experiment, "--vary", "BLOCK_M=16,64", "--resume", str(out), "--out"]
    assert sweep_command.main([*again, str(out)]) == 2
    assert "holds 1 rows of other configs: name another file as --out" in capsys.readouterr().err
    assert sweep_command.main([*again, str(tmp_path / "others.jsonl")]) == 0


def test_rows_of_another_gpu_are_not_overwritten(experiment, faked, capsys, tmp_path):
    out = tmp_path / "rows.jsonl"
    arguments = [experiment, "--vary", "BLOCK_M=16,32", "--out", str(out)]
    assert sweep_command.main(arguments) == 0
    text = out.read_text(encoding="utf-8").replace('"device": "H200"', '"device": "A100-80GB"')
    out.write_text(text, encoding="utf-8")
    capsys.readouterr()
    assert sweep_command.main([*arguments, "--resume", str(out)]) == 2
    assert "holds rows of A100-80GB, and this sweep is for H200: name another file" in capsys.readouterr().err
    assert out.read_text(encoding="utf-8") == text
    assert sweep_command.main([*arguments[:-1], str(tmp_path / "others.jsonl"), "--resume", str(out)]) == 0


def test_help_names_every_exit_status_and_every_suffix():
    said = make_parser().format_help()
    assert all(word in said for word in ("0;", "1 where", "2 for", "130 after", ".jsonl", ".json", ".csv"))
    assert grid().size > SIZE
