"""Compiler errors become a sentence, the compiler prints nothing to the terminal, and a damaged cache is repaired."""

import errno
import os
import sys
from contextlib import suppress

import pytest

from tests.experiments import experiment_of
from tests.trees import ROOT, python
from tilescope.compiling.compiler import (
    capture_output,
    compile_experiment,
    explain_rejection,
    hide_paths,
)
from tilescope.declare import jit
from tilescope.declare.discovery import discover
from tilescope.declare.gpus import GPUS
from tilescope.declare.jit import display_path
from tilescope.declare.spec import Launch
from tilescope.measure.pool import Call, Pool
from tilescope.results import Compiled

GROUPED = discover()["matmul.grouped"]
LAUNCH = Launch(GROUPED.family.problem(), GROUPED.config(num_warps=16), GPUS["H200"])

REPRO = "Repro command: /usr/lib/ptxas -lineinfo /tmp/x.ptx -o /tmp/x.ptx.o"
TARGET = (
    "PTXAS error: Internal Triton PTX codegen error\n`ptxas` stderr:\nptxas /tmp/x.ptx, line 57; error   : Feature "
    f"'/tmp/bf16' needs .target sm_80 or higher\nptxas fatal   : Ptx assembly aborted due to errors\n\n{REPRO}\n"
)

COMPILE = """
import sys
from tilescope.declare.discovery import discover
from tilescope.compiling.compiler import compile_experiment
from tilescope.declare.experiment import Experiment
from tilescope.declare.gpus import GPUS
from tilescope.results import Stopped

kernel = discover()["matmul.grouped"]
config = kernel.config(BLOCK_M=256, BLOCK_N=256, num_warps=16)
try:
    compile_experiment(Experiment(kernel.id, kernel.family.problem(), config, "H200"), GPUS["H200"])
except Stopped as stopped:
    open(sys.argv[1], "w").write(stopped.failure.kind + ": " + stopped.failure.message)
"""


@pytest.mark.parametrize(
    ("error", "printed", "expected"),
    [
        (TARGET, "", "Feature 'bf16' needs .target sm_80 or higher"),
        (
            f"PTXAS error: `ptxas` raised SIGSEGV\n`ptxas` stderr:\n\n{REPRO}\n",
            "",
            "`ptxas` raised SIGSEGV",
        ),
        (
            "PassManager::run failed",
            "/a/b/tile.py:9:0: error: 'tt.dot' op is odd\nmodule {}\n",
            "'tt.dot' op is odd",
        ),
        ("at 3:4:\n  tl.dot(a)\n  ^\nshapes differ", "", "RuntimeError: shapes differ"),
        (f"cannot open {jit.__file__}", "", "RuntimeError: cannot open tilescope/declare/jit.py"),
        ("", "", "RuntimeError: no message"),
        (OSError(errno.EACCES, "no"), "", "PermissionError: [Errno 13] no"),
    ],
)
def test_any_other_error_is_its_first_line_without_paths_or_commands(error, printed, expected):
    error = RuntimeError(error) if isinstance(error, str) else error
    failure = explain_rejection(error, printed, LAUNCH)
    assert failure.kind == "compile_error"
    assert failure.message == f"Triton could not compile this config: {expected}"


def test_a_full_disk_is_named_without_its_path(monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", "/somewhere/of/mine/tilescope")
    failure = explain_rejection(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "", LAUNCH)
    assert failure.stage == "compile"
    assert failure.kind == "disk_full"
    assert failure.message.startswith("The disk of tilescope is full (No space left on device)")
    assert "/somewhere" not in failure.message


def test_a_tile_that_does_not_fit_in_registers_is_refused_and_nothing_is_printed(tmp_path):
    variables = {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    ended = python(ROOT, "-c", COMPILE, tmp_path / "reply", **variables)
    assert ended.returncode == 0, ended.stderr
    reply = (tmp_path / "reply").read_text()
    assert reply.startswith("out_of_resources: This config needs at least ")
    assert "registers per thread; with 512 threads per program, H200 allows 128." in reply
    assert ended.stdout + ended.stderr == ""


def test_native_output_is_captured_and_the_terminal_comes_back(capfd):
    with suppress(ValueError), capture_output() as printed:
        os.write(1, b"native\n")
        print("python")
        os.write(2, b"dump\n")
        seen = printed()
        print("later", file=sys.stderr)
        assert printed() == f"{seen}later\n"
        raise ValueError("odd")
    print("after")
    os.write(2, b"after, too\n")
    assert sorted(seen.split()) == ["dump", "native", "python"]
    assert capfd.readouterr() == ("after\n", "after, too\n")


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        (jit.__file__, "tilescope/declare/jit.py"),
        ("/home/other/checkout/kernels/orders.py", "kernels/orders.py"),
        ("/opt/python/site-packages/tilescope/page/kernels/orders.py", "kernels/orders.py"),
        ("/home/other/kernels/none_of_ours.py", "none_of_ours.py"),
        ("/opt/python/site-packages/triton/language/standard.py", "standard.py"),
        (
            str(ROOT / ".venv/lib/python3.11/site-packages/triton/kernels/orders.py"),
            "orders.py",
        ),
        ("/tmp/x.ptx", "x.ptx"),
    ],
)
def test_a_path_is_shown_relative_to_the_repository_or_as_a_name(path, shown):
    assert display_path(path) == shown
    assert hide_paths(f'\t//## File "{path}", line 25') == f'\t//## File "{shown}", line 25'
    assert hide_paths(f'#loc2 = loc("{path}":26:38)') == f'#loc2 = loc("{shown}":26:38)'


def test_a_directory_in_place_of_a_cached_file_is_replaced(tmp_path):
    experiment = experiment_of("transpose.tiled M=256 N=256")
    pool = Pool("compile", str(tmp_path))
    try:
        call = Call("compile", compile_experiment, (experiment, GPUS["H200"]))
        first = pool.submit(call).result()
        assert isinstance(first, Compiled), first
        for suffix in (".cubin", ".json"):
            (file,) = tmp_path.rglob(f"transpose*{suffix}")
            file.unlink()
            file.mkdir()
            second = pool.submit(call).result()
            assert isinstance(second, Compiled), second
            assert first.registers == second.registers
            assert first.ptx == second.ptx
    finally:
        pool.close()
