"""Launches counted with Nsight Compute on an H100 (Triton 3.6.0): each total is exact, or a bound that says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import kernels.compiling
from kernels.compiling.capture_file import Capture
from kernels.compiling.captured_counts import count_launch

FOLDER = Path(__file__).parent / "counted_scripts"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py"))


@pytest.fixture(scope="module", params=SCRIPTS)
def capture(request, tmp_path_factory, compiled_before):
    """The capture of a script, and what was counted of each launch."""
    path = tmp_path_factory.mktemp("counted") / f"{request.param}.tilescope"
    command = [sys.executable, Path(kernels.compiling.__file__).with_name("capture.py"), "--out", path]
    environment = {**os.environ, "TRITON_CACHE_DIR": str(compiled_before), "TRITON_INTERPRET": "0"}
    script = FOLDER / f"{request.param}.py"
    done = subprocess.run([*command, script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Capture(path), json.loads(script.with_suffix(".json").read_text())


def test_totals_are_exact_or_bounds(capture):
    recording, counted = capture
    assert len(recording.content.launches) == len(counted)
    for number, (launch, expected) in enumerate(zip(recording.content.launches, counted, strict=True)):
        if expected.get("triton", recording.content.triton) != recording.content.triton:
            continue  # another version compiles it to other instructions
        counts = count_launch(recording, launch)
        totals = counts.totals()
        for name, value in expected["exact"].items():
            assert totals[name] == value, (number, name)
        for name, value in expected["bounds"].items():
            assert totals[name] is None, (number, name)
            assert counts.lower_bound(name) <= value, (number, name)
        if expected["bounds"]:
            assert counts.refused or any(op.tally.refused for op in counts.operations)


WRAPS = """
import torch, triton
import triton.language as tl
@triton.jit
def scatter(x, SIZE: tl.constexpr):
    i = tl.program_id(0) * 1048576 + tl.arange(0, SIZE)
    tl.store(x + i * 16, 1.0)
x = torch.empty(1024, device="cuda")
scatter[(130,)](x, SIZE=256)
scatter[(1, 70000)](x, SIZE=256)
"""


@pytest.fixture(scope="module")
def wrapped(tmp_path_factory, compiled_before):
    """The capture of a launch whose offsets wrap, and of a launch with too many programs along y."""
    folder = tmp_path_factory.mktemp("wraps")
    (folder / "wraps.py").write_text(WRAPS)
    command = [
        sys.executable,
        Path(kernels.compiling.__file__).with_name("capture.py"),
        "--out",
        folder / "out.tilescope",
    ]
    environment = {**os.environ, "TRITON_CACHE_DIR": str(compiled_before), "TRITON_INTERPRET": "0"}
    subprocess.run([*command, folder / "wraps.py"], env=environment, check=True)
    return Capture(folder / "out.tilescope")


def test_the_first_program_whose_offset_wraps_is_noted(wrapped):
    (overflow,) = count_launch(wrapped, wrapped.content.launches[0]).overflows
    assert (overflow.source, overflow.program) == (("wraps.py", 7), 128)
    assert (overflow.value, overflow.bits) == (1 << 31, 32)


def test_a_grid_that_no_gpu_launches_is_refused(wrapped):
    refused = count_launch(wrapped, wrapped.content.launches[1]).refused
    assert "70,000 programs along y" in refused
    assert "65,535" in refused
