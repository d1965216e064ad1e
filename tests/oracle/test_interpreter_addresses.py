"""The addresses that the models predict are those that Triton's interpreter really loads and stores."""

import collections
import itertools
import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import kernels as package
from kernels import discover, orders
from kernels.experiment import from_json
from kernels.gpus import GPUS
from kernels.jit import on_arrays
from kernels.knobs import knobs
from kernels.spec import FlatAccess, Launch
from tests.covering import covering
from tests.predict.plain_counting import begin, executions

pytestmark = pytest.mark.xdist_group("addresses")

ROOT = Path(package.__file__).parent.parent
SHAPES = (
    {"M": 37, "N": 53, "K": 29, "layout": "NN"},
    {"M": 1, "N": 129, "K": 1, "layout": "TT"},
    {"M": 65, "N": 1, "K": 33, "layout": "NT"},
    {"M": 83, "N": 47, "K": 64, "layout": "TN"},
    {"M": 73, "N": 40, "K": 88, "layout": "NN"},
    {"M": 40, "N": 104, "K": 72, "layout": "TT"},
)
SMS = 5
DTYPES = ("float16", "float32")


def small_tiles(kernel):
    """Configs of the smallest tiles that divide none of the shapes: all sides equal, and each of another length."""
    tile = {name: knob for name, knob in knobs(kernel.config).items() if knob.group == "Tile"}
    for uneven in (0, 1):
        config = {}
        for place, (name, knob) in enumerate(tile.items()):
            allowed = [value for value in knob.choices or () if value >= 4]
            config[name] = (allowed or range(max(knob.low, 2), knob.high + 1))[uneven * (place % 2)]
        yield config


def as_json(kernel_id, shape, config, dtype):
    kernel = discover()[kernel_id]
    sizes = {
        name: size for name, size in SHAPES[shape].items() if name in knobs(kernel.family.problem)
    }
    return {
        "kernel": kernel_id,
        "problem": {**sizes, "dtype": dtype},
        "config": list(small_tiles(kernel))[config],
    }


def launch_of(experiment):
    return Launch(experiment.problem, experiment.config, replace(GPUS["H200"], sms=SMS))


def operation_count(case):
    """Number of memory operations that the interpreter executes: each takes about as long."""
    experiment = from_json(as_json(*case))
    launch = launch_of(experiment)
    kernel = discover()[experiment.kernel]
    return sum(
        len(list(executions(access, kernel.extents(launch)))) for access in kernel.accesses(launch)
    )


# Kernel, place of the shape, place of the config, and dtype. By default a kernel meets each layout, not each shape.
CASES = list(itertools.product(discover(), range(len(SHAPES)), range(2), DTYPES))
WITH_LAYOUT = [(*case, SHAPES[case[1]]["layout"]) for case in CASES]
PAIRS = {
    case[:4]
    for case in covering(
        WITH_LAYOUT, lambda case: operation_count(case[:4]), ((0, 2), (0, 4), (1, 2), (3, 3))
    )
}


@pytest.fixture(scope="module")
def recorded(request, tmp_path_factory):
    """Each case's (op, tensor, source, program, offsets, active) of every execution."""
    out = tmp_path_factory.mktemp("addresses") / "touched.pickle"
    items = [
        item
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    ]
    cases = list(dict.fromkeys(item.callspec.params["case"] for item in items))
    experiments = [as_json(*case) for case in cases]
    ended = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("record_addresses.py")), str(out)],
        input=json.dumps([[*experiment.values(), SMS] for experiment in experiments]),
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return dict(zip(cases, pickle.loads(out.read_bytes()), strict=True))


def predict(access, shape, first):
    """Element offsets and mask of one execution, in the order of the block, as integers: offset · 2 + active."""
    if isinstance(access, FlatAccess):
        place = first[0] + np.arange(access.run.block)
        offset = place % shape[0] * shape[1] + place // shape[0] if access.transposed else place
        return 2 * offset + (place < shape[0] * shape[1])
    row = first[0] + np.arange(access.rows.block)[:, None]
    column = first[1] + np.arange(access.columns.block)
    touched = 2 * (row * shape[1] + column) + ((row < shape[0]) & (column < shape[1]))
    return (touched if access.dims[0] == access.rows.index else touched.T).ravel()


@pytest.fixture(
    params=[
        pytest.param(case, marks=[] if case in PAIRS else pytest.mark.all_combinations)
        for case in CASES
    ],
    ids=lambda case: "-".join(map(str, case)),
)
def case(request, recorded):
    """A case's experiment, its kernel, and what it touched."""
    experiment = from_json(as_json(*request.param))
    return launch_of(experiment), discover()[experiment.kernel], recorded[request.param]


def test_every_operation_touches_the_predicted_elements(case):
    launch, kernel, touched = case
    tensors = kernel.tensors(launch)
    accesses = kernel.accesses(launch)
    assert {t[:3] for t in touched} == {
        (access.op, access.tensor, access.source) for access in accesses
    }
    for access in accesses:
        observed = [
            2 * offsets + active
            for *_, source, _, offsets, active in touched
            if source == access.source
        ]
        shape = tensors[access.tensor].stored
        expected = [
            predict(access, shape, first) for first in executions(access, kernel.extents(launch))
        ]
        assert len(observed) == len(expected), access
        assert np.array_equal(
            np.sort(np.concatenate(observed)), np.sort(np.concatenate(expected))
        ), access


def test_every_program_touches_the_elements_of_its_tiles(case):
    launch, kernel, touched = case
    extents = kernel.extents(launch)
    tensors = kernel.family.tensors(launch.problem)
    programs = kernel.programs(launch)
    tiles = kernel.tiles(np.arange(programs), launch)
    slices = extents.get("slice", 1)
    first_steps, last_steps = on_arrays(orders.slice_of_k)(
        np.arange(slices), extents.get("k", 1), slices
    )
    executed = collections.defaultdict(list)
    for t in touched:
        executed[t[2], t[3]].append(t)
    assert {program for _, program in executed} == set(range(programs))
    for access in kernel.accesses(launch):
        if "slice" in extents and not {"k", "slice"} & set(access.over):
            continue  # another program may add and store the slices of a tile
        for program in range(programs):
            own = tiles.program == program
            expected = [
                predict(
                    access, tensors[access.tensor].stored, begin(access, {"m": m, "n": n, "k": k})
                )
                for m, n, piece in zip(
                    *(x[own].tolist() for x in (tiles.pid_m, tiles.pid_n, tiles.pid_k)), strict=True
                )
                for k in (
                    range(first_steps[piece], last_steps[piece]) if "k" in access.over else (0,)
                )
            ]
            done = executed[access.source, program]
            assert len(done) == len(expected), access
            for touch, block in zip(done, expected, strict=True):
                assert np.array_equal(2 * touch[-2] + touch[-1], block), (
                    access,
                    "in the order of the block, too",
                )
