"""The project's own kernels, evaluated from their TTGIR like any script's: counts equal those of declared accesses."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest

from kernels import orders
from tests.experiments import experiment_of
from tests.trees import ROOT, python
from tests.visualize.predict.plain_counting import begin, executions, locate
from tilescope.captures.reader import Capture
from tilescope.compiling.compiler import compile_launch
from tilescope.declare.experiment import launch_of
from tilescope.declare.gpus import GPUS
from tilescope.declare.jit import on_arrays
from tilescope.declare.spec import FlatAccess
from tilescope.evaluate.captured import count_launch
from tilescope.evaluate.declared import count_accesses
from tilescope.evaluate.global_memory import STORAGE_STEP, storage_number

# One worker prepares what all tests use
pytestmark = pytest.mark.xdist_group("evaluated")

MATMUL = "M=333 N=264 K=136"
TILE = "BLOCK_M=64 BLOCK_N=64 BLOCK_K=32"
SMALL_TILE = "BLOCK_M=16 BLOCK_N=32 BLOCK_K=16"
# Few SMs, so that programs compute several tiles, and tiles are split.
GPU = replace(GPUS["H200"], sms=5)
# A matmul, and a shape that no side of a tile divides. Descriptors need rows of a multiple of 16 bytes.
SHAPES = {
    "grouped": "M=37 N=53 K=29 layout=NN",
    "grid_2d": "M=1 N=129 K=1 layout=TT",
    "fused_add_relu": "M=73 N=40 K=88 layout=NN",
    "persistent": "M=40 N=104 K=72 layout=TT",
    "stream_k": "M=65 N=1 K=33 layout=NT",
    "split_k_atomic": "M=83 N=47 K=64 layout=TN",
    "split_k_race": "M=37 N=53 K=29 layout=NN",
}
EXPERIMENTS = [
    *(f"matmul.{name} {MATMUL} {TILE}" for name in SHAPES),
    *(f"matmul.{name} {shape} {SMALL_TILE}" for name, shape in SHAPES.items()),
    f"matmul.persistent M=333 N=257 K=129 {TILE} PAD=always",
    f"matmul.grouped {MATMUL} dtype=float32 layout=NT {TILE}",
    f"matmul.grouped {MATMUL} dtype=float8_e4m3fn layout=NT {TILE}",
    *(
        f"transpose.{name} {shape}"
        for name in ("flat", "row_strip", "tiled")
        for shape in ("M=333 N=257", "M=1 N=129", "M=65 N=1")
    ),
]

RECORD = """
import json, sys
from dataclasses import replace
from pathlib import Path
import torch
from tilescope.record.capture_file import write_capture
from tilescope.record.patches import recording
from tilescope.declare.experiment import from_json, launch_of
from tilescope.declare.gpus import GPUS
for number, payload in enumerate(json.loads(sys.argv[1])):
    kernel, launch = launch_of(from_json(payload), replace(GPUS["H200"], sms=int(sys.argv[3])))
    folder = Path(sys.argv[2], str(number))
    folder.mkdir()
    with recording(folder):
        tensors = {
            name: torch.empty_strided(
                spec.shape, spec.strides, dtype=getattr(torch, spec.dtype_in(launch.problem)), device="cuda"
            )
            for name, spec in kernel.tensors(launch).items()
        }
        kernel.jitted[kernel.grid(launch)](**kernel.arguments(tensors, launch))
    write_capture(folder, folder.with_suffix(".tilescope"))
"""


@pytest.fixture(scope="module")
def captures(tmp_path_factory, compiled_before):
    """The folder of a capture per experiment, recorded in a separate process."""
    folder = tmp_path_factory.mktemp("own")
    payloads = [experiment_of(text).to_json() for text in EXPERIMENTS]
    arguments = json.dumps(payloads), folder, GPU.sms
    done = python(ROOT, "-c", RECORD, *arguments, TRITON_CACHE_DIR=str(compiled_before))
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(
    scope="module",
    params=range(len(EXPERIMENTS)),
    ids=lambda number: EXPERIMENTS[number].split()[0],
)
def case(request, captures, compiled_before):
    """A kernel, its launch, its declared operations, and the evaluated ones."""
    kernel, launch = launch_of(experiment_of(EXPERIMENTS[request.param]), GPU)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(compiled_before))
        compiled = compile_launch(kernel, launch)
    capture = Capture(captures / f"{request.param}.tilescope")
    (captured,) = capture.content.launches
    evaluated = count_launch(capture, captured).operations
    return kernel, launch, count_accesses(kernel, launch, compiled.operations), evaluated


def test_evaluated_requests_and_sectors_equal_the_declared_ones(case):
    kernel, _, operations, evaluated_operations = case
    declared, evaluated = Counter(), Counter()
    for op in operations:
        declared[op.instruction.source, "requests"] += op.requests
        declared[op.instruction.source, "sectors"] += op.sectors
    sources = {source for source, _ in declared}
    for op in evaluated_operations:
        # Retries are not counted
        assert not op.tally.refused or op.instruction.swaps
        if op.source in sources:
            evaluated[op.source, "requests"] += op.requests
            evaluated[op.source, "sectors"] += op.sectors
        else:  # exchanges of flags
            assert (kernel.id, op.op) == ("matmul.stream_k", "atomic")
    assert +evaluated == +declared


def first_byte(op, start):
    """The lowest byte of the execution that begins at `start`, from the tensor's start; None if it is outside."""
    matrix = op.pattern.matrix
    is_run = isinstance(op.access, FlatAccess)
    places = [[place] for place in range(op.access.elements)] if is_run else [[0, 0]]
    shape = matrix.rows, matrix.columns
    elements = (locate(op.access, start, place, shape) for place in places)
    inside = [
        row * matrix.columns + column
        for row, column in elements
        if row < matrix.rows and column < matrix.columns
    ]
    return min(inside) * matrix.element_bytes if inside else None


def test_every_program_accesses_the_blocks_of_its_tiles(case):
    kernel, launch, operations, evaluated_operations = case
    extents = kernel.extents(launch)
    tiles = kernel.tiles(np.arange(kernel.programs(launch)), launch)
    slices = extents.get("slice", 1)
    steps = extents.get("k", 1)
    begins, ends = on_arrays(orders.slice_of_k)(np.arange(slices), steps, slices)
    evaluated = defaultdict(Counter)
    for op in evaluated_operations:
        if op.launch.is_lower_bound:  # a compare-and-swap loop, which is listed as a load, too
            continue
        for programs, address in op.tally.starts:
            offset = address - (storage_number(address) + 1) * STORAGE_STEP
            evaluated[op.source].update(zip(programs.tolist(), offset.tolist(), strict=True))
    for op in operations:
        access = op.access
        if op.launch.is_lower_bound:
            continue
        own = evaluated[op.instruction.source]
        if "slice" in extents and not {"k", "slice"} & set(access.over):
            # Another program may add and store the slices of a tile.
            own = Counter(offset for _, offset in own.elements())
            starts = executions(access, extents)
            expected = [first_byte(op, start) for start in starts]
        else:
            parts = (tiles.program, tiles.pid_m, tiles.pid_n, tiles.pid_k)
            expected = [
                (program, first_byte(op, begin(access, {"m": m, "n": n, "k": k})))
                for program, m, n, piece in zip(*(part.tolist() for part in parts), strict=True)
                for k in (range(begins[piece], ends[piece]) if "k" in access.over else (0,))
            ]
            expected = [(program, offset) for program, offset in expected if offset is not None]
        assert own == Counter(expected), access
