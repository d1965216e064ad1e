"""What the compiler rejects becomes a sentence, and nothing of it reaches the terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels import discover, source
from kernels.compiling.listing import with_shown_paths
from kernels.compiling.rejection import captured_output, rejection
from kernels.gpus import GPUS
from kernels.source import shown_path
from kernels.spec import Launch

ROOT = Path(source.__file__).parent.parent
GROUPED = discover()["matmul.grouped"]
LAUNCH = Launch(GROUPED.family.problem(), GROUPED.config(num_warps=16), GPUS["H200"])

REPRO = "Repro command: /usr/lib/ptxas -lineinfo /tmp/x.ptx -o /tmp/x.ptx.o"
REGISTERS = (
    "PTXAS error: Internal Triton PTX codegen error\n`ptxas` stderr:\nptxas fatal   : (C7602) Insufficient registers "
    "(128) to compile instruction at line 578 in function f. Try to compile with register target of 154 or higher.\n"
    f"ptxas fatal   : Ptx assembly aborted due to errors\n\n{REPRO}\n"
)
TARGET = (
    "PTXAS error: Internal Triton PTX codegen error\n`ptxas` stderr:\nptxas /tmp/x.ptx, line 57; error   : Feature "
    f"'/tmp/bf16' needs .target sm_80 or higher\nptxas fatal   : Ptx assembly aborted due to errors\n\n{REPRO}\n"
)

COMPILE = """
from kernels import discover
from kernels.compiling.compiler import compiled_for
from kernels.experiment import Experiment
from kernels.gpus import GPUS

kernel = discover()["matmul.grouped"]
config = kernel.config(BLOCK_M=256, BLOCK_N=256, num_warps=16)
failure = compiled_for(Experiment(kernel.id, kernel.family.problem(), config, "H200"), GPUS["H200"])
open(OUT, "w").write(failure.kind + ": " + failure.message)
"""


def test_too_few_registers_are_told_with_both_numbers():
    failure = rejection(RuntimeError(REGISTERS), "", LAUNCH)
    assert (failure.stage, failure.kind) == ("compile", "out_of_resources")
    assert "at least 154 registers per thread" in failure.message
    assert "512 threads per program, H200 allows 128." in failure.message


@pytest.mark.parametrize(
    ("raised", "printed", "expected"),
    [
        (TARGET, "", "Feature 'bf16' needs .target sm_80 or higher"),
        (f"PTXAS error: `ptxas` raised SIGSEGV\n`ptxas` stderr:\n\n{REPRO}\n", "", "`ptxas` raised SIGSEGV"),
        ("PassManager::run failed", "/a/b/tile.py:9:0: error: 'tt.dot' op is odd\nmodule {}\n", "'tt.dot' op is odd"),
        ("at 3:4:\n  tl.dot(a)\n  ^\nshapes differ", "", "RuntimeError: shapes differ"),
        (f"cannot open {source.__file__}", "", "RuntimeError: cannot open kernels/source.py"),
        ("", "", "RuntimeError: no message"),
    ],
)
def test_any_other_error_is_its_first_line_without_paths_or_commands(raised, printed, expected):
    failure = rejection(RuntimeError(raised), printed, LAUNCH)
    assert failure.kind == "compile_error"
    assert failure.message == f"Triton could not compile this config: {expected}"


def test_a_tile_that_registers_can_not_hold_is_refused_and_nothing_is_printed(tmp_path):
    said = tmp_path / "said"
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    code = f"OUT = {str(said)!r}\n{COMPILE}"
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    assert said.read_text().startswith("out_of_resources: This config needs at least ")
    assert "registers per thread; with 512 threads per program, H200 allows 128." in said.read_text()
    assert ended.stdout + ended.stderr == ""


def test_what_native_code_prints_is_kept_and_the_terminal_comes_back(capfd):
    with captured_output() as printed:
        os.write(1, b"native\n")
        print("python")
        os.write(2, b"dump\n")
        seen = printed()
        print("later", file=sys.stderr)
        assert printed() == f"{seen}later\n"
    print("after")
    os.write(2, b"after, too\n")
    assert sorted(seen.split()) == ["dump", "native", "python"]
    assert capfd.readouterr() == ("after\n", "after, too\n")


def test_the_terminal_comes_back_after_an_error(capfd):
    with pytest.raises(ValueError, match="odd"), captured_output():
        raise ValueError("odd")
    os.write(1, b"after\n")
    assert capfd.readouterr().out == "after\n"


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        (source.__file__, "kernels/source.py"),
        ("/home/other/checkout/kernels/orders.py", "kernels/orders.py"),
        ("/home/other/kernels/none_of_ours.py", "none_of_ours.py"),
        ("/opt/python/site-packages/triton/language/standard.py", "standard.py"),
        (str(ROOT / ".venv/lib/python3.11/site-packages/triton/kernels/source.py"), "source.py"),
        ("/tmp/x.ptx", "x.ptx"),
    ],
)
def test_a_path_is_shown_relative_to_the_repository_or_as_a_name(path, shown):
    assert shown_path(path) == shown
    assert with_shown_paths(f'\t//## File "{path}", line 25') == f'\t//## File "{shown}", line 25'
    assert with_shown_paths(f'#loc2 = loc("{path}":26:38)') == f'#loc2 = loc("{shown}":26:38)'
