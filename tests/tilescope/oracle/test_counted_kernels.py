"""Launches counted with Nsight Compute on an H100 (Triton 3.6.0), and some whose counts are clear: exact, or bounds."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tilescope.captures.reader import Capture
from tilescope.evaluate.captured import count_launch
from tilescope.reports.launch import Launches
from tilescope.timing.launches import add_time

FOLDER = Path(__file__).parent / "counted_scripts"
SCRIPTS = sorted(FOLDER.glob("*.py"))
# Kernels that wait for other programs, or whose accesses depend on them or on an operation that is not evaluated.
UNPREDICTED = {
    "partial_rows",
    "exchange_lock",
    "counted_tries",
    "last_adds",
}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_totals_are_exact_or_bounds(capture_server, script, tmp_path):
    path = tmp_path / "capture"
    capture_server.capture(path, [str(script)])
    recording = Capture(path)
    launches = Launches(recording)
    counted = json.loads(script.with_suffix(".json").read_text())
    assert len(recording.content.launches) == len(counted)
    for number, (launch, expected) in enumerate(
        zip(recording.content.launches, counted, strict=True)
    ):
        if expected.get("triton", recording.content.triton) != recording.content.triton:
            continue  # another version compiles it to other instructions
        counts = launches.counts(number)
        totals = counts.totals()
        for name, value in expected["exact"].items():
            assert totals[name] == value, (number, name)
        for name, value in expected["bounds"].items():
            assert totals[name] is None, (number, name)
            assert counts.lower_bound(name) <= value, (number, name)
        if expected["bounds"]:
            assert counts.refused or any(op.tally.refused for op in counts.operations)
        timed = add_time(recording, launch, counts, launches.inspections(number))
        name = recording.content.kernels[launch.kernel].name
        assert bool(timed.not_predicted) == (name in UNPREDICTED), (number, timed.not_predicted)


# Launches whose counts follow from arithmetic: their blocks are whole sectors.
SCRIPT = """
import torch, triton
import triton.language as tl

@triton.jit
def copy_row(source, target, row, rows, WIDTH: tl.constexpr):
    i = tl.arange(0, WIDTH)
    if row >= rows:
        tl.store(target + row * WIDTH + i, 0.0)
        return
    tl.store(target + row * WIDTH + i, tl.load(source + row * WIDTH + i))

@triton.jit
def copy_rows(source, target, rows, PER_PROGRAM: tl.constexpr, WIDTH: tl.constexpr):
    first = tl.program_id(0) * PER_PROGRAM
    for k in range(PER_PROGRAM):
        copy_row(source, target, first + k, rows, WIDTH)
    if first == 0:
        copy_row(source, target, rows + PER_PROGRAM, rows, WIDTH)

@triton.jit
def find(table, key, count):
    if key >= count:
        return count
    return tl.multiple_of(tl.load(table + key), 1)

@triton.jit
def gather(source, table, target, count, PER_PROGRAM: tl.constexpr, WIDTH: tl.constexpr):
    i = tl.arange(0, WIDTH)
    for k in range(PER_PROGRAM):
        key = tl.program_id(0) * PER_PROGRAM + k
        tl.store(target + key * WIDTH + i, tl.load(source + find(table, key, count) * WIDTH + i))

@triton.jit
def wave(source, target, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    tl.store(target + i, tl.sin(tl.load(source + i)))

@triton.jit
def assembly(source, target, CODE: tl.constexpr, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    pointers = (source + i).to(tl.int64, bitcast=True)
    x = tl.inline_asm_elementwise(CODE, "=r,l", [pointers], dtype=tl.int32, is_pure=False, pack=1)
    tl.store(target + i, tl.load(source + i) + x)

x = torch.empty(32, 256, device="cuda")
copy_rows[(3,)](x, x, 10, 5, 256)
table = torch.arange(20, 0, -1, dtype=torch.int32, device="cuda")
gather[(4,)](x, table, torch.empty_like(x), 17, 8, 256)
wave[(1,)](x, x, 256)
y = torch.empty(256, dtype=torch.int32, device="cuda")
for code in ("ld.global.nc.b32 $0, [$1];", "ld.b32 $0, [$1];", "ld.volatile.global.b32 $0, [$1];"):
    assembly[(1,)](y, y, code, 256)
"""
CALLS, CALLS_WITH_RESULTS, *UNCOUNTED_LOADS = range(6)


@pytest.fixture(scope="module")
def computed(captured):
    return Capture(captured)


@pytest.fixture(scope="module")
def counts(computed):
    """The counts of each launch of SCRIPT."""
    return [count_launch(computed, launch) for launch in computed.content.launches]


def test_a_grid_that_no_gpu_launches_is_refused(computed):
    """An earlier version recorded such launches."""
    launch = replace(computed.content.launches[CALLS], grid=(1, 70000, 1))
    refused = count_launch(computed, launch).refused
    assert "70,000 programs along y" in refused
    assert "65,535" in refused


def test_called_functions_are_counted_at_each_call(counts):
    totals = counts[CALLS].totals()
    assert (totals["ld_requests"], totals["ld_sectors"]) == (10 * 4, 10 * 32)
    assert (totals["st_requests"], totals["st_sectors"]) == (16 * 4, 16 * 32)


def test_called_functions_return_what_addresses_depend_on(counts):
    totals = counts[CALLS_WITH_RESULTS].totals()
    # Each of 4 warps loads the key; the function returns early for 15 of 32 keys.
    assert (totals["ld_requests"], totals["ld_sectors"]) == (17 * 4 + 32 * 4, 17 * 4 + 32 * 32)


@pytest.mark.parametrize("number", UNCOUNTED_LOADS)
def test_loads_of_no_operation_make_a_total_a_bound(counts, number):
    totals = counts[number].totals()
    assert (totals["ld_requests"], totals["st_requests"]) == (None, 4)
    assert counts[number].lower_bound("ld_requests") == 4
    assert any("inline assembly" in op.tally.refused.lower() for op in counts[number].operations)
