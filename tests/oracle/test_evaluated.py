"""The project's own kernels, evaluated from their TTGIR like anybody's: equal to their declared accesses."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from kernels.capture.reader import Capture
from kernels.evaluate.captured import count_launch
from kernels.evaluate.declared import count_accesses
from kernels.experiment import from_json, launch_of
from kernels.gpus import GPUS
from kernels.results import Compiled
from tests.kernels.trees import ROOT, python

MATMUL = {"M": 333, "N": 264, "K": 136}
TILE = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32}
EXPERIMENTS = [
    *({"kernel": f"matmul.{name}", "problem": MATMUL, "config": TILE} for name in (
        "grouped", "grid_2d", "fused_add_relu", "persistent", "stream_k", "split_k_atomic", "split_k_race"
    )),
    {"kernel": "matmul.persistent", "problem": {**MATMUL, "N": 257, "K": 129}, "config": {**TILE, "PAD": "always"}},
    {"kernel": "matmul.grouped", "problem": {**MATMUL, "dtype": "float32", "layout": "NT"}, "config": TILE},
    {"kernel": "matmul.grouped", "problem": {**MATMUL, "dtype": "float8_e4m3fn", "layout": "NT"}, "config": TILE},
    *({"kernel": f"transpose.{name}", "problem": {"M": 333, "N": 257}} for name in ("flat", "row_strip", "tiled")),
]  # fmt: skip

RECORD = """
import json, sys
from pathlib import Path
import torch
from kernels.capture import record
from kernels.experiment import from_json, launch_of
from kernels.gpus import GPUS
for number, payload in enumerate(json.loads(sys.argv[1])):
    kernel, launch = launch_of(from_json(payload), GPUS["H200"])
    folder = Path(sys.argv[2], str(number))
    folder.mkdir()
    with record.recording(folder):
        for one in kernel.launches(launch):
            tensors = {
                name: torch.empty_strided(
                    spec.shape, spec.strides, dtype=getattr(torch, spec.dtype_in(launch.problem)), device="cuda"
                )
                for name, spec in one.tensors(launch).items()
            }
            one.jitted[one.grid(launch)](**one.arguments(tensors, launch))
    record.write_capture(folder, folder.with_suffix(".tilescope"))
"""


@pytest.fixture(scope="module")
def captures(tmp_path_factory, compiled_before):
    """The folder of a capture per experiment, recorded in a separate process."""
    folder = tmp_path_factory.mktemp("own")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(compiled_before))
        done = python(ROOT, "-c", RECORD, json.dumps(EXPERIMENTS), str(folder))
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize(
    "number", range(len(EXPERIMENTS)), ids=lambda number: EXPERIMENTS[number]["kernel"]
)
def test_evaluated_requests_and_sectors_equal_the_declared_ones(number, captures, session):
    experiment = from_json({**EXPERIMENTS[number], "gpu": "H200"})
    kernel, launch = launch_of(experiment, GPUS["H200"])
    compiled = session.compile(experiment).result()
    assert isinstance(compiled, Compiled)
    declared, evaluated = Counter(), Counter()
    for operation in count_accesses(kernel, launch, compiled.operations):
        declared[operation.compiled.source, "requests"] += operation.launch.requests
        declared[operation.compiled.source, "sectors"] += operation.launch.sectors
    capture = Capture(captures / f"{number}.tilescope")
    sources = {source for source, _ in declared}
    for captured in capture.content.launches:
        for operation in count_launch(capture, captured).operations:
            # Retries are not counted
            assert not operation.tally.refused or operation.instruction.swaps
            if operation.source in sources:  # the flags of stream-K are not declared
                evaluated[operation.source, "requests"] += operation.requests
                evaluated[operation.source, "sectors"] += operation.sectors
    assert +evaluated == +declared
