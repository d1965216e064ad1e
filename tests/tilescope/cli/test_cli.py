"""The sweep command and the doctor. One sweep is real; the others run on a fake device."""

import _thread
import csv
import json
import signal
import socket
from contextlib import closing

import pytest

from tests.tilescope.search.fakes import FakeBuilder, FakeDevice, explored, make_run
from tests.trees import ROOT, python
from tilescope.cli import sweep as sweep_command
from tilescope.cli.command import run_command
from tilescope.cli.doctor import (
    Problem,
    check_cache,
    check_database,
    check_packages,
    check_python,
    find_problems,
    print_problems,
)
from tilescope.cli.sweep import sweep
from tilescope.results import Failure
from tilescope.results.store import Store

VARY = ["--vary", "BLOCK_M=16,32,64,128", "--vary", "BLOCK_N=16,64", "--vary", "num_warps=2,4"]
SIZE = 16


class Command:
    """The command on a fake device, which a test may change. `out` and `err` are the last call's output."""

    def __init__(self, experiment, capsys):
        self.experiment = experiment
        self.capsys = capsys
        self.device = FakeDevice()
        self.builder = FakeBuilder()
        self.out = self.err = ""

    def sweep(self, *arguments):
        def prepare(session, space, strategy, resume, devices):
            options = {"builder": self.builder, "resume": resume, "store": session.store}
            return make_run(strategy, self.device, within=space, **options)

        self.device.trials.clear()
        flags = [str(argument) for argument in (self.experiment, *arguments)]
        status = run_command(sweep, flags, prepare)
        self.out, self.err = self.capsys.readouterr()
        return status


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """The command on a machine without GPUs and stored sweeps."""
    monkeypatch.setenv("TILESCOPE_DB", str(tmp_path / "tilescope.db"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    path = tmp_path / "experiment.json"
    path.write_text('{"kernel": "matmul.grouped"}', encoding="utf-8")
    return Command(path, capsys)


def test_a_sweep_without_a_gpu_predicts_and_prints_few_lines_into_a_pipe(tmp_path, tilescope_cache):
    """An H200 has too little shared memory for one of the two configs. The other is compiled, predicted and not run."""
    config = {"BLOCK_M": 128, "BLOCK_K": 64}
    described = {"kernel": "matmul.grouped", "config": config, "gpu": "H200"}
    experiment = tmp_path / "experiment.json"
    out = tmp_path / "rows.csv"
    experiment.write_text(json.dumps(described), encoding="utf-8")
    command = ["sweep", experiment, "--vary", "num_stages=3,8", "--out", out]
    cache = {"TILESCOPE_CACHE": str(tilescope_cache), "TILESCOPE_DB": "off"}
    done = python(ROOT, "app.py", *command, **cache, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    with out.open(encoding="utf-8") as file:
        right, aside = csv.DictReader(file)
    assert right["num_stages"] == "3"
    assert right["status"] == "predicted"
    assert right["device"] == "H200"
    assert float(right["predicted_ms"]) > 0
    assert int(float(right["registers"])) > 16
    assert aside["num_stages"] == "8"
    assert aside["status"] == "set aside"
    assert "bytes of shared memory per program; H200 allows 232,448" in aside["reason"]
    assert "µs  predicted       num_stages 3" in done.stdout
    assert 'triton.Config({"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64' in done.stdout
    before, after = done.stderr.splitlines()
    assert before.startswith("2 configs to try, about ")
    assert after.startswith("2 of 2 configs done in ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Vary at least one knob"),
        (["--vary", "BLOCK_M"], "--vary must be KNOB=VALUE,VALUE"),
        (["--vary", "K=64"], "The config of matmul.grouped has no field 'K'"),
        (["--vary", "BLOCK_M=63"], "BLOCK_M must be 16, 32, 64, 128 or 256 (got 63)."),
        (
            [*VARY, "--out", "rows.txt"],
            "The file must end in .jsonl, .json or .csv (got 'rows.txt').",
        ),
        ([*VARY, "--out", "nowhere/rows.csv"], "nowhere/rows.csv: No such file or directory."),
        ([*VARY, "--out", "{experiment}"], "Tilescope did not write the existing file."),
        ([*VARY, "--gpus", "2"], "--gpus is 2; this host has none."),
        ([*VARY, "--resume", "rows.csv"], "The file must end in .jsonl or .json"),
        ([*VARY, "--resume", "nowhere.jsonl"], "No such file"),
        ([*VARY, "--resume", "{nested}"], "this is not JSON: maximum recursion depth exceeded"),
        ([*VARY, "--resume", "{binary}"], "'utf-8' codec can't decode"),
        ([*VARY, "--budget", "0"], "argument --budget: must be a whole number from 1 to"),
        ([*VARY, "--gpus", "two"], "argument --gpus: must be a whole number from 1 to"),
        ([*VARY, "--resume", "a", "--anew"], "argument --anew: not allowed with argument --resume"),
    ],
)
def test_invalid_flags_are_refused_with_the_reason(command, arguments, message, tmp_path):
    files = {"experiment": command.experiment}
    for name, content in (("nested", b"[" * 100_000), ("binary", b"\xff\xfe")):
        files[name] = tmp_path / f"{name}.jsonl"
        files[name].write_bytes(content)
    assert command.sweep(*(argument.format(**files) for argument in arguments)) == 2
    assert command.experiment.read_text(encoding="utf-8") == '{"kernel": "matmul.grouped"}'
    *usage, line = command.err.splitlines()
    assert message in line
    assert bool(usage) == ("argument --" in line)


def test_an_invalid_experiment_is_refused_with_the_reason(command):
    for text, message in (
        ("{", ": Expecting property name"),
        ("[]", ": The experiment must be a JSON object"),
        ('{"kernel": "x"}', ": kernel must be "),
    ):
        command.experiment.write_text(text, encoding="utf-8")
        assert command.sweep(*VARY) == 2
        assert f"experiment.json{message}" in command.err


def test_a_sweep_prints_the_best_config_and_its_rows_are_not_tried_again_except_with_anew(
    command, tmp_path
):
    out = tmp_path / "rows.json"
    hint = f"{SIZE} of {SIZE} configs were done before. They are stored; --anew tries them again."
    for flags, message, tried in (([], "", SIZE), ([], hint, 0), (["--anew"], "", SIZE)):
        assert command.sweep(*VARY, "--strategy", "grid", "--out", out, *flags) == 0
        assert f"{SIZE} configs on Fake H200: {SIZE} timed. All configs were tried." in command.out
        assert message in command.err
        assert ("done before" in command.err) == bool(message)
        assert len(explored(command.device)) == tried
    assert "torch.matmul takes " in command.out
    assert 'triton.Config({"BLOCK_M": 128, "BLOCK_N": 64' in command.out
    assert len(sweep_command.read_rows(out)) == SIZE


def test_a_failed_config_ends_with_1_and_one_that_cannot_launch_with_0(command):
    refused = Failure("compile", "out_of_resources", "This config needs too much.")
    command.builder.failures = lambda experiment: (
        refused if experiment.config.BLOCK_M == 16 else None
    )
    assert command.sweep(*VARY) == 0
    assert "4 set aside" in command.out
    command.builder = FakeBuilder()
    command.device.deadly = lambda experiment: (
        experiment.config.BLOCK_M == 16 and experiment.config.BLOCK_N == 16
    )
    assert command.sweep(*VARY, "--anew") == 1
    assert "2 failed" in command.out
    command.device = FakeDevice(wrong=lambda experiment: True)
    assert command.sweep(*VARY, "--anew") == 1
    assert "No config gave a correct result" in command.out


def test_ctrl_c_keeps_the_rows_and_resuming_skips_them(command, tmp_path, request):
    # A shell's background process ignores it
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    out = tmp_path / "rows.jsonl"
    device = command.device

    def interrupt(trial):
        if len(device.trials) == 2:
            _thread.interrupt_main()
            while not device.is_cancelled:
                pass

    device.before = interrupt
    assert command.sweep(*VARY, "--strategy", "grid", "--out", out) == 130
    assert "Cancelled. Finished rows are kept." in command.err
    kept = [row for row in sweep_command.read_rows(out) if row.status == "timed"]
    assert 4 <= len(kept) < SIZE
    command.device = FakeDevice()
    assert command.sweep(*VARY, "--strategy", "grid", "--out", out, "--resume", out) == 0
    assert f"{len(kept)} of {SIZE} configs were done before." in command.err
    assert len(explored(command.device)) == SIZE - len(kept)
    assert all(row.status == "timed" for row in sweep_command.read_rows(out))


def test_rows_that_a_sweep_does_not_use_are_not_overwritten(command, tmp_path):
    out = tmp_path / "rows.jsonl"
    others = tmp_path / "others.jsonl"
    first = ["--vary", "BLOCK_M=16,32", "--out", out]
    assert command.sweep(*first) == 0
    assert command.sweep("--vary", "BLOCK_N=16,32", "--resume", out) == 2
    assert "none of its 2 rows is for this experiment and these values" in command.err
    partly = ["--vary", "BLOCK_M=16,64", "--resume", out, "--out"]
    assert command.sweep(*partly, out) == 2
    assert (
        "holds 1 row for other configs or for a GPU other than H200: choose another --out file"
        in command.err
    )
    assert command.sweep(*partly, others) == 0

    text = out.read_text(encoding="utf-8").replace('"device": "H200"', '"device": "A100-80GB"')
    out.write_text(text, encoding="utf-8")
    assert command.sweep(*first, "--resume", out) == 2
    assert "holds 2 rows for other configs or for a GPU other than H200" in command.err
    assert out.read_text(encoding="utf-8") == text
    assert command.sweep(*first, "--resume", out, "--out", others) == 0


def test_the_doctor_needs_tested_versions_a_writable_cache_and_stores_results_if_it_can(tmp_path):
    def failures(problems):
        return [problem.is_failure for problem in problems]

    versions = {(3, 10): [True], (3, 11): [], (3, 13): [], (3, 14): [True]}
    assert {version: failures(check_python(version)) for version in versions} == versions
    installed = {
        "gradio": "6",
        "torch": "2",
        "triton": "3.9.0",
        "segno": "1",
        **dict.fromkeys(("pandas", "plotly"), "3"),
    }
    assert list(check_packages(installed)) == []
    (problem,) = check_packages({"gradio": "6"})
    assert not problem.is_failure
    assert problem.remedy == 'pip install "tilescope[torch,page]"'
    assert problem.detail == "torch, triton, pandas, plotly, segno missing."
    assert failures(check_packages(installed | {"triton": "3.5.1"})) == [True]
    (tmp_path / "file").write_text("")
    caches = ((tmp_path / "new", 0), (tmp_path, 1 << 62), (tmp_path / "file" / "below", 0))
    assert [failures(check_cache(path, free)) for path, free in caches] == [[], [False], [True]]
    for path, details in ((tmp_path / "a.db", []), (None, ["off"]), (tmp_path, ["not stored"])):
        with closing(Store(path)) as store:
            problems = list(check_database(store))
        for problem, detail in zip(problems, details, strict=True):
            assert detail in problem.detail
            assert not problem.is_failure


def test_the_doctor_names_what_is_missing_and_ends_with_1_if_a_check_fails(
    tmp_path, tilescope_cache, monkeypatch, capsys
):
    monkeypatch.setenv("TILESCOPE_CACHE", str(tilescope_cache))
    monkeypatch.setenv("TILESCOPE_DB", str(tmp_path / "results.db"))
    assert run_command(print_problems, []) == 0
    assert capsys.readouterr().out == "Everything works.\n"
    failing = [Problem("Python", "3.10", "Use another.", is_failure=True)]
    assert run_command(print_problems, failing) == 1
    assert "fails  Python: 3.10\n         Use another." in capsys.readouterr().out
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        taken.listen()
        gpu, address = find_problems("127.0.0.1", port, None)
    assert address.detail.startswith(f"Port {port} of 127.0.0.1 is in use")
    assert gpu.detail.startswith("none. Triton's interpreter checks results")
