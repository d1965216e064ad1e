"""The flags and output of `tilescope tune`. One test really tunes a script; the others use fake devices."""

import _thread
import json
import signal

import pytest

from tests.tilescope.search.fakes import FakeTuner, explored
from tests.trees import ROOT, python
from tilescope.__main__ import run
from tilescope.cli import tune as command
from tilescope.cli.command import run_command
from tilescope.search.cluster import ClusterLost

OVER = ["--over", "M=256,512"]
SET = ["--set", "BLOCK_M=16,32,64,128", "--set", "num_warps=4,8"]
SCRIPT = """
import torch
import triton
import triton.language as tl

@triton.jit
def copy(x, out, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + place, tl.load(x + place, mask=place < n), mask=place < n)

print("A line on stdout.")
tuned = triton.autotune([triton.Config({"BLOCK": 256})], key=["n"])(copy)

def case_tuned(n=1 << 20, num_warps=4):
    x = torch.empty(n, device="cuda")
    return tuned, (1024,), dict(x=x, out=torch.empty_like(x), n=n, num_warps=num_warps)

def case(n=1 << 20, dtype="float32", shape=(1, 2), BLOCK=1024, num_warps=8):
    x = torch.empty(n, device="cuda", dtype=getattr(torch, dtype))
    return copy, (triton.cdiv(n, BLOCK),), dict(
        x=x, out=torch.empty_like(x), n=n, BLOCK=BLOCK, num_warps=num_warps
    )
"""


class FakeLocalTuner(FakeTuner):
    """Keeps the devices of the latest tuner."""

    def __init__(self, session, gpu, rows):
        super().__init__(rows)
        type(self).devices = self.devices


@pytest.fixture
def tune(tmp_path, monkeypatch, capsys):
    """Run the command without a GPU or stored rows. Return its exit status, stdout and stderr."""
    monkeypatch.setenv("TILESCOPE_DB", str(tmp_path / "tilescope.db"))
    monkeypatch.setenv("TILESCOPE_CACHE", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(command, "LocalTuner", FakeLocalTuner)

    def call(*arguments):
        status = run_command(run, ["tune", *map(str, arguments)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def test_without_a_gpu_a_script_is_ranked_by_predicted_time(tmp_path, tilescope_cache):
    script = tmp_path / "copy.py"
    script.write_text(SCRIPT)
    out = tmp_path / "table.json"
    chosen = ["--set", "BLOCK=128,1024,1000", "--set", "dtype=float32 num_warps=3,8,64"]
    flags = ["--over", "n=1048576,16777216,1048576", *chosen, "--out", out]
    environment = {"TILESCOPE_CACHE": str(tilescope_cache), "TILESCOPE_DB": "off"}
    done = python(
        ROOT, "app.py", "tune", f"{script}:case", *flags, **environment, CUDA_VISIBLE_DEVICES=""
    )
    assert done.returncode == 0, done.stderr
    title, _, header, *lines = done.stdout.splitlines()
    assert title == "copy.py:case on H200, predicted, not timed (cold L2)"
    assert header.split("  ")[-2:] == ["current / best", "next / best"]
    assert lines[0].split()[:3] == ["1048576", "1024", "8"]
    for aside in (
        "3 configs set aside for 2 of 2 problems: AssertionError: num_warps must be a power of 2",
        "2 configs set aside for 2 of 2 problems: out of resource: threads, Required: 2048",
        "2 configs set aside for 2 of 2 problems: CompilationError: arange's range must be a power of 2",
    ):
        assert any(line.startswith(aside) for line in lines), lines
    assert lines[-1] == "triton.Config({\"BLOCK\": 1024}, num_warps=8),  # launch: dtype='float32'"
    assert "A line on stdout." in done.stderr
    result = json.loads(out.read_text())
    assert not result["is_timed"]
    small, large = result["problems"]
    assert large["problem"] == {"n": 1 << 24}
    assert small["configs"][4]["predicted_ms"] < large["configs"][4]["predicted_ms"]
    predicted = [row["config"]["BLOCK"] for row in large["configs"] if row["predicted_ms"]]
    assert predicted == [128, 1024]


# Arguments | part of the message. {set} is replaced by SET.
INVALID = """
| The kernel must be a case such as softmax.py:case, a file with an experiment, or
nowhere.py:case | There is no script
nowhere.json | nowhere.json: No such file or directory.
matmul.grouped --set BLOCK_M | --set must be NAME=VALUE,VALUE
matmul.grouped --set K=64 | The config of matmul.grouped has no field 'K'
matmul.grouped --over BLOCK_M=64 | matmul.grouped's problem has no field
matmul.grouped --over M=0 | M must be
matmul.grouped {set} --out nowhere/t.json | nowhere/t.json: No such file
matmul.grouped {set} --out {script} | Tilescope did not write the existing file.
matmul.grouped {set} --gpu H300 | H300
matmul.grouped {set} --gpus 2 | --gpus is 2; this host has none.
matmul.grouped {set} --gpus two | argument --gpus: must be a whole number from 1
{script}:case --set BLOCK=x | BLOCK must have values like its default, 1024 (got x)
{script}:case --set B=1 | is a number, text or bool. It has n, dtype, BLOCK and num_warps.
{script}:case --set n=1 --over n=2 | n: give --over or --set, not both.
{script}:case_tuned --set num_warps=2 | num_warps: the configs of the kernel's autotuner set it
--join nonsense | --join must be an address such as tcp://host:8786 (got 'nonsense').
{script}:case --over n=1 | The kernel has no autotuner, so --set must vary a parameter
"""


@pytest.mark.parametrize("row", INVALID.strip().splitlines())
def test_invalid_flags_are_refused_with_the_reason(tune, row, tmp_path):
    script = tmp_path / "copy.py"
    script.write_text(SCRIPT)
    arguments, message = row.split("| ")
    status, _, err = tune(*arguments.format(script=script, set=" ".join(SET)).split())
    assert (status, message in err) == (2, True), err
    assert script.read_text() == SCRIPT


def test_tilescope_kernels_are_tuned_and_the_earlier_name_accepts_an_experiment(tune, tmp_path):
    status, out, _ = tune("matmul.grouped", *OVER, *SET)
    assert status == 0
    assert "matmul.grouped on H200, timed (warm L2, sustained load)" in out
    assert "For 2 of 2 problems, this config is within 2 % of the best by" in out
    experiment = tmp_path / "experiment.json"
    experiment.write_text('{"kernel": "matmul.grouped", "problem": {"M": 256}}')
    assert run_command(run, ["sweep", str(experiment), "--vary", "BLOCK_M=16,128"]) == 0


def test_stored_configs_are_tried_again_only_from_scratch(tune):
    tried = []
    for flags in ([], [], ["--from-scratch"]):
        tune("matmul.grouped", *OVER, *SET, "--all", *flags)
        tried.append([len(explored(device)) for device in FakeLocalTuner.devices])
    assert tried == [[8, 8], [0, 0], [8, 8]]


def test_without_a_correct_config_the_status_is_1_and_stderr_says_why(tune, monkeypatch):
    def make_wrong(device):
        device.wrong = lambda experiment: True

    monkeypatch.setattr(FakeLocalTuner, "before", staticmethod(make_wrong))
    status, out, err = tune("matmul.grouped", *OVER, *SET)
    assert status == 1
    assert "8 configs wrong for 2 of 2 problems: " in out
    assert "No config is usable for 2 problems." in err


def test_a_lost_cluster_is_no_mistake_of_the_user(tune, monkeypatch):
    def lose(*arguments, **keywords):
        raise ClusterLost("no_workers", "The cluster has had no worker for 60 s.")

    monkeypatch.setattr(command, "tune_spaces", lose)
    assert tune("matmul.grouped", *OVER, *SET) == (
        1,
        "",
        "The cluster has had no worker for 60 s.\n",
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_sweeps_and_keeps_their_rows(tune, monkeypatch, request, number):
    # A shell's background process ignores Ctrl+C
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))

    def interrupt(device):
        if len(FakeLocalTuner.devices) == 2 and not device.is_cancelled:
            _thread.interrupt_main(number)
            while not device.is_cancelled:
                pass

    monkeypatch.setattr(FakeLocalTuner, "before", staticmethod(interrupt))
    status, _, err = tune("matmul.grouped", *OVER, *SET, "--all")
    assert status == 130
    assert "Cancelled. Finished rows are stored." in err
    monkeypatch.setattr(FakeLocalTuner, "before", staticmethod(lambda device: None))
    assert tune("matmul.grouped", *OVER, *SET, "--all")[0] == 0
    assert [len(explored(device)) for device in FakeLocalTuner.devices] == [0, 8]
