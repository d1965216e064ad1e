"""Counts of real hardware: the compiled model gives every one of them, for kernels compiled here.

The counts in h200_requests_sectors.csv were taken on one H200 (driver 580, torch 2.11.0, triton 3.6.0, 2026-11-20).
Those of matmul.grouped and transpose.row_strip are of kernels with the same instructions and layouts.
"""

import csv
from pathlib import Path

import pytest

from tests.experiments import launch_from
from tilescope.compiling.compiler import compile_launch
from tilescope.evaluate.declared import count_accesses
from tilescope.results import Compiled


def read(name):
    """Return the rows of a file of counts in this folder."""
    return list(csv.DictReader(Path(__file__).with_name(name).read_text().splitlines()))


@pytest.fixture(autouse=True)
def cache(compiled_before, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(compiled_before))


def count(row):
    """Compile a row's kernel in this process. Return its operations on inputs, and those on outputs."""
    kernel, launch = launch_from(f"{row['kernel']} gpu=H200 {row['problem']} {row['config']}")
    compiled = compile_launch(kernel, launch)
    assert isinstance(compiled, Compiled), compiled
    tensors = kernel.family.tensors(launch.problem)
    operations = {True: [], False: []}
    for op in count_accesses(kernel, launch, compiled.operations):
        operations[tensors[op.access.tensor].is_input].append(op)
    return operations[True], operations[False]


@pytest.mark.parametrize(
    "row", read("h200_requests_sectors.csv"), ids=lambda row: f"{row['kernel']} {row['config']}"
)
def test_the_model_gives_what_was_counted(row):
    for name, operations in zip(("ld", "st"), count(row), strict=True):
        assert sum(op.launch.requests for op in operations) == int(row[f"{name}_requests"])
        assert sum(op.launch.sectors for op in operations) == int(row[f"{name}_sectors"]), name


@pytest.mark.parametrize("row", read("load_sectors.csv"), ids=lambda row: row["problem"])
def test_what_is_read_in_the_middle_of_sectors_and_past_edges_is_what_was_counted(row):
    """Of launches in no atlas: by descriptors, and by copies that bypass L1."""
    reads, _ = count(row)
    assert {op.is_box for op in reads} == {row["counter"] == "tma_ld"}
    assert sum(op.launch.sectors for op in reads) == int(row["sectors"])
    assert any(op.launch.extra_sectors for op in reads), "not all is plain"
