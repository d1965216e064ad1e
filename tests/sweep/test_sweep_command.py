"""`python app.py sweep`: exit status, files and messages. One sweep is real; the others run on a fake device."""

from __future__ import annotations

import _thread
import csv
import json
import os
import signal
import subprocess
import sys

import pytest
from fakes import FakeBuilder, FakeDevice, explored, make_run

from kernels.results import Failure
from kernels.sweep import files
from tests.kernels.trees import ROOT
from visualize.command import sweep_command
from visualize.command.sweep_flags import make_parser

VARY = ["--vary", "BLOCK_M=16,32,64,128", "--vary", "BLOCK_N=16,64", "--vary", "num_warps=2,4"]
SIZE = 16


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    """The file of an experiment, on a machine without GPUs and stored sweeps."""
    monkeypatch.setenv("TILESCOPE_DB", str(tmp_path / "tilescope.db"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    path = tmp_path / "experiment.json"
    path.write_text('{"kernel": "matmul.grouped"}', encoding="utf-8")
    return path


class Command:
    """The command on a fake device, which a test may change; `out` and `err` are the last call's output."""

    def __init__(self, experiment, capsys):
        self.experiment, self.capsys = experiment, capsys
        self.device, self.builder = FakeDevice(), FakeBuilder()
        self.out = self.err = ""

    def sweep(self, *arguments):
        def prepare(session, space, strategy, predict, resume):
            return make_run(
                strategy, self.device, within=space, builder=self.builder, resume=resume, store=session.store
            )

        self.device.trials.clear()
        status = sweep_command.main([str(argument) for argument in (self.experiment, *arguments)], prepare)
        self.out, self.err = self.capsys.readouterr()
        return status


@pytest.fixture
def command(experiment, capsys):
    return Command(experiment, capsys)


def run_app(*arguments, **options):
    command = [sys.executable, ROOT / "app.py", "sweep", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def test_a_sweep_without_a_gpu_predicts(tmp_path, tilescope_cache):
    """An H200 has too little shared memory for one of the two configs. The other is compiled, predicted and not run."""
    described = {"kernel": "matmul.grouped", "config": {"BLOCK_M": 128, "BLOCK_K": 64}, "gpu": "H200"}
    (tmp_path / "experiment.json").write_text(json.dumps(described), encoding="utf-8")
    cache = {"TILESCOPE_CACHE": str(tilescope_cache), "TILESCOPE_DB": "off", "CUDA_VISIBLE_DEVICES": ""}
    arguments = ["experiment.json", "--vary", "num_stages=3,8", "--out", "rows.csv"]
    done = run_app(*arguments, cwd=tmp_path, env={**os.environ, **cache})
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


def test_an_invalid_flag_ends_with_2_and_one_line_without_a_traceback(tmp_path):
    done = run_app("nowhere.json", "--vary", "BLOCK_M=64", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "[Errno 2] No such file or directory: 'nowhere.json'\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Vary at least one knob"),
        (["--vary", "BLOCK_M"], "--vary must be KNOB=VALUE,VALUE"),
        (["--vary", "BLOCK_M="], "such as BLOCK_M=64,128 (got 'BLOCK_M=')."),
        (["--vary", "K=64"], "The config of matmul.grouped has no field 'K'"),
        (["--vary", "BLOCK_M=63"], "BLOCK_M must be 16, 32, 64, 128 or 256 (got 63)."),
        ([*VARY, "--out", "rows.txt"], "The file must end in .jsonl, .json or .csv (got 'rows.txt')."),
        ([*VARY, "--out", "nowhere/rows.csv"], "The folder nowhere of --out does not exist."),
        ([*VARY, "--budget", "0"], "--budget must be a whole number from 1 (got 0)."),
        ([*VARY, "--gpus", "two"], "--gpus must be all or a whole number from 1 (got 'two')."),
        ([*VARY, "--gpus", "2"], "--gpus is 2; this host has none."),
        ([*VARY, "--resume", "rows.csv"], "The file must end in .jsonl or .json"),
        ([*VARY, "--resume", "nowhere.jsonl"], "No such file"),
        ([*VARY, "--resume", "rows.jsonl", "--anew"], "--anew tries every config, and --resume rows.jsonl skips some"),
    ],
)
def test_invalid_flags_are_refused_with_the_reason(command, arguments, message):
    assert command.sweep(*arguments) == 2
    (line,) = command.err.splitlines()
    assert message in line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "experiment.json is not JSON"),
        ("[]", "experiment.json: The experiment must be a JSON object with a kernel (got a list)."),
        ('{"kernel": "x"}', "experiment.json: kernel must be "),
    ],
)
def test_an_invalid_experiment_is_refused_with_the_reason(command, text, message):
    command.experiment.write_text(text, encoding="utf-8")
    assert command.sweep(*VARY) == 2
    assert message in command.err


def test_a_sweep_without_failures_returns_0_and_prints_the_best_and_its_ratio_to_the_library(command, tmp_path):
    out = tmp_path / "rows.json"
    assert command.sweep(*VARY, "--strategy", "grid", "--out", out) == 0
    assert f"{SIZE} configs on Fake H200: {SIZE} timed." in command.out
    assert "torch.matmul takes " in command.out
    assert 'triton.Config({"BLOCK_M": 128, "BLOCK_N": 64' in command.out
    assert f"{SIZE}/{SIZE}" in command.err
    assert len(files.read_rows(out)) == SIZE


def test_a_failed_config_returns_1_and_so_does_a_sweep_without_a_correct_one(command):
    command.device.deadly = lambda one: one.config.BLOCK_M == 16 and one.config.BLOCK_N == 16
    assert command.sweep(*VARY) == 1
    assert "2 failed" in command.out
    command.device = FakeDevice(wrong=lambda one: True)
    assert command.sweep(*VARY, "--anew") == 1
    assert "No config was right" in command.out


def test_a_config_that_is_set_aside_is_no_failure(command):
    refused = Failure("compile", "out_of_resources", "This config needs too much.")
    command.builder.failures = lambda one: refused if one.config.BLOCK_M == 16 else None
    assert command.sweep(*VARY) == 0
    assert "4 set aside" in command.out


@pytest.fixture
def interruptible():
    """Restore Ctrl+C, which a shell makes background processes ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_keeps_the_rows_and_resuming_skips_them(command, tmp_path):
    out, device = tmp_path / "rows.jsonl", command.device

    def interrupt(trial):
        """Press Ctrl+C in the second trial, and wait for the cancel."""
        if len(device.trials) == 2:
            _thread.interrupt_main()
            while not device.is_cancelled:
                pass

    device.before = interrupt
    assert command.sweep(*VARY, "--strategy", "grid", "--out", out) == 130
    kept = [row for row in files.read_rows(out) if row.status == "timed"]
    assert 4 <= len(kept) < SIZE
    command.device = FakeDevice()
    assert command.sweep(*VARY, "--strategy", "grid", "--out", out, "--resume", out) == 0
    assert f"{len(kept)} of {SIZE} configs were done before." in command.err
    assert len(explored(command.device)) == SIZE - len(kept)
    assert all(row.status == "timed" for row in files.read_rows(out))


def test_stored_rows_are_not_tried_again_except_with_anew(command):
    hint = f"{SIZE} of {SIZE} configs were done before. They are stored; --anew tries them again."
    for flags, message, tried in (([], "", SIZE), ([], hint, 0), (["--anew"], "", SIZE)):
        assert command.sweep(*VARY, "--strategy", "grid", *flags) == 0
        assert f"{SIZE} timed." in command.out
        assert message in command.err
        assert ("done before" in command.err) == bool(message)
        assert len(explored(command.device)) == tried


def test_rows_of_another_space_are_refused_and_not_overwritten(command, tmp_path):
    out = tmp_path / "rows.jsonl"
    assert command.sweep("--vary", "BLOCK_M=16,32", "--out", out) == 0
    assert command.sweep("--vary", "BLOCK_N=16,32", "--resume", out) == 2
    assert "none of its 2 rows is of this experiment and these values" in command.err
    partly = ["--vary", "BLOCK_M=16,64", "--resume", out, "--out"]
    assert command.sweep(*partly, out) == 2
    assert "holds 1 rows of other configs: name another file as --out" in command.err
    assert command.sweep(*partly, tmp_path / "others.jsonl") == 0


def test_rows_of_another_gpu_are_not_overwritten(command, tmp_path):
    out, arguments = tmp_path / "rows.jsonl", ["--vary", "BLOCK_M=16,32", "--out"]
    assert command.sweep(*arguments, out) == 0
    text = out.read_text(encoding="utf-8").replace('"device": "H200"', '"device": "A100-80GB"')
    out.write_text(text, encoding="utf-8")
    assert command.sweep(*arguments, out, "--resume", out) == 2
    assert "holds rows of A100-80GB, and this sweep is for H200: name another file" in command.err
    assert out.read_text(encoding="utf-8") == text
    assert command.sweep(*arguments, tmp_path / "others.jsonl", "--resume", out) == 0


def test_help_names_every_exit_status_and_every_suffix():
    text = make_parser().format_help()
    assert all(word in text for word in ("0;", "1 where", "2 for", "130 after", ".jsonl", ".json", ".csv"))
