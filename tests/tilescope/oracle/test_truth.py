"""Counts of real hardware: the compiled model gives every one of them, for kernels compiled here."""

import csv
from pathlib import Path

import pytest

from tests.experiments import launch_from
from tests.tilescope.oracle.counted_kernels import KERNELS
from tilescope.compiling.compiler import compile_launch
from tilescope.declare.gpus import GPUS
from tilescope.declare.spec import Launch
from tilescope.evaluate.counts import NO_COST
from tilescope.evaluate.declared import count_accesses
from tilescope.results import Compiled

DTYPES = {"f32": "float32", "f16": "float16"}
FILE = Path(__file__).parent / "h200_requests_sectors.csv"
ROWS = list(csv.DictReader(FILE.read_text().splitlines()))
LOADS = list(csv.DictReader((FILE.parent / "load_sectors.csv").read_text().splitlines()))


@pytest.fixture(autouse=True)
def cache(compiled_before, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(compiled_before))


def count(kernel, launch):
    """Compile a kernel in this process, and count its operations."""
    compiled = compile_launch(kernel, launch)
    assert isinstance(compiled, Compiled), compiled
    return count_accesses(kernel, launch, compiled.operations)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['kernel']} {row['values']}")
def test_the_model_gives_what_was_counted(row):
    values = dict(zip(row["parameters"].split(), row["values"].split(), strict=True))
    dtype = DTYPES[values.pop("dtype")]
    config = {name: int(value) for name, value in values.items()}
    problem = {name: config.pop(name) for name in ("M", "N", "K") if name in config}
    kernel = KERNELS[row["kernel"]]
    launch = Launch(
        kernel.family.problem(**problem, dtype=dtype), kernel.config(**config), GPUS["H200"]
    )
    totals = dict.fromkeys(("ld", "st"), NO_COST)
    for op in count(kernel, launch):
        totals["ld" if op.access.op == "load" else "st"] += op.launch
    for op, total in totals.items():
        assert total.requests == int(row[f"{op}_requests"])
        assert total.sectors == int(row[f"{op}_sectors"]), op


@pytest.mark.parametrize("row", LOADS, ids=lambda row: row["problem"])
def test_what_is_read_in_the_middle_of_sectors_and_past_edges_is_what_was_counted(row):
    """Of launches in no atlas: by descriptors, and by copies that bypass L1."""
    kernel, launch = launch_from(f"{row['kernel']} gpu=H200 {row['problem']} {row['config']}")
    tensors = kernel.family.tensors(launch.problem)
    read = [op for op in count(kernel, launch) if tensors[op.access.tensor].is_input]
    assert {op.is_box for op in read} == {row["counter"] == "tma_ld"}
    assert sum(op.launch.sectors for op in read) == int(row["sectors"])
    assert any(op.launch.extra_sectors for op in read), "not all is plain"
