"""A kernel's declarations agree with each other and with the source of its jitted function."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest

import kernels as package
from kernels import orders
from tests.conftest import FEW_SMS, accepted
from tests.covering import covering
from tilescope.declare.experiment import GPU, declared_parts, from_json, kernel_knob
from tilescope.declare.jit import on_arrays
from tilescope.declare.knobs import knobs
from tilescope.declare.spec import DTYPE_BYTES, FlatAccess, Launch

SHAPES = (
    (1, 1, 1), (1, 129, 577), (577, 1, 129), (577, 1000, 129), (1023, 577, 1000), (448, 1023, 1), (448, 512, 144),
    (577, 512, 1000)
)  # fmt: skip
LAYOUTS = ("NN", "TT", "NT", "TN")
ROOT = Path(package.__file__).parent.parent


@pytest.fixture
def launches(kernel, configs, launch_of, all_combinations):
    """Return launches of up to about 100,000 tiles in each type and layout; some rows are no multiple of 16 bytes."""
    types = kernel.problem_knobs()["dtype"].choices
    every = [
        (shape, name, layout, dtype)
        for shape, name, layout, dtype in itertools.product(SHAPES, configs, LAYOUTS, types)
        if not (name == "smallest" and shape[0] * shape[1] > 300_000)
    ]
    launches = (
        launch_of(shape, configs[name], dtype, layout=layout)
        for shape, name, layout, dtype in (every if all_combinations else covering(every))
    )
    return [launch for launch in launches if accepted(kernel, launch.problem, launch.config)]


def test_every_file_that_declares_a_kernel_is_found_and_families_have_distinct_ids(kernels):
    files = [
        path for path in (ROOT / "kernels").glob("*/*.py") if "\nKERNEL = " in path.read_text()
    ]
    assert {f"{path.parent.name}.{path.stem}" for path in files} == set(kernels)
    families = {kernel.family.id: kernel.family for kernel in kernels.values()}
    for kernel in kernels.values():
        assert families[kernel.family.id] is kernel.family
        assert kernel.id.split(".")[0] == kernel.family.root.id
        assert kernel.family.problem is kernel.family.root.problem


def test_tensors_have_the_bytes_and_strides_of_an_array_of_their_shape(kernel, launches):
    for launch in launches:
        moved = 0
        for spec in kernel.family.tensors(launch.problem).values():
            stored = np.empty(spec.stored, dtype=np.int8)
            seen = stored.T if spec.transposed else stored
            moved += stored.size * DTYPE_BYTES[launch.problem.dtype]
            assert seen.shape == spec.shape
            # NumPy does not define strides along axes of length 1.
            sizes = zip(seen.shape, seen.strides, spec.strides, strict=True)
            assert (
                all(length == 1 or stride == expected for length, stride, expected in sizes)
                or seen.size == 1
            )
        assert kernel.family.minimal_bytes(launch.problem) == moved


def test_every_tile_is_computed_once_by_programs_in_launch_order(kernel, launches):
    for launch in launches:
        extents = kernel.extents(launch)
        programs = kernel.programs(launch)
        tiles = kernel.tiles(np.arange(programs), launch)
        every = np.stack([tiles.pid_m, tiles.pid_n, tiles.pid_k], axis=1)
        shape = extents["m"], extents["n"], extents.get("slice", 1)
        assert len(every) == len(np.unique(every, axis=0)) == np.prod(shape), launch
        assert (every.min(axis=0) >= 0).all()
        assert (every.max(axis=0) < shape).all()
        assert (np.diff(tiles.program) >= 0).all()
        assert np.array_equal(np.unique(tiles.program), np.arange(programs))


def test_some_programs_have_the_same_tiles_alone_as_among_all(kernel, launches):
    for launch in launches:
        programs = kernel.programs(launch)
        some = np.unique(np.array([0, programs // 3, programs // 2, programs - 1]))
        whole, part = (kernel.tiles(pids, launch) for pids in (np.arange(programs), some))
        kept = np.isin(whole.program, some)
        for field in dataclasses.fields(part):
            assert np.array_equal(getattr(part, field.name), getattr(whole, field.name)[kept]), (
                launch
            )


def test_accesses_agree_with_tensors_panels_and_output_tiles(kernel, launches):
    """The models read panels from the family, not from the accesses."""
    for launch in launches:
        tensors = kernel.family.tensors(launch.problem)
        output = kernel.family.output(launch.problem)
        extents = kernel.extents(launch)
        panels = kernel.family.panels or ()
        workspaces = kernel.workspaces(launch)
        accesses = [access for access in kernel.accesses(launch) if access.tensor not in workspaces]
        assert {access.tensor for access in accesses} == set(tensors)
        written = {access.tensor for access in accesses if access.op in ("store", "atomic")}
        assert written <= {output}
        assert written or any(
            access.op == "descriptor" and access.tensor == output for access in accesses
        )
        assert {access.tensor for access in accesses if "k" in access.over} == set(panels)
        assert ("k" in extents) == bool(panels)
        for name, side in zip(panels, "mn", strict=False):
            assert tensors[name].is_input
            (load,) = (access for access in accesses if access.tensor == name)
            assert {load.rows.index, load.columns.index} == {side, "k"}
        if (tile := kernel.output_tile(launch)) is None:
            assert all(isinstance(access, FlatAccess) for access in accesses)
        else:
            counts = [
                -(-length // side) for length, side in zip(tensors[output].shape, tile, strict=True)
            ]
            assert counts == [extents[axis.index] for axis in kernel.output_axes(launch)]


def test_grids_are_what_cuda_can_launch(kernel, configs, launches):
    sizes = {name: knob for name, knob in knobs(kernel.family.problem).items() if knob.high}
    largest = kernel.family.problem(**{name: knob.high for name, knob in sizes.items()})
    for launch in [*launches, *(Launch(largest, config, FEW_SMS) for config in configs.values())]:
        grid = kernel.grid(launch)
        assert 1 <= len(grid) <= 3
        # CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
        assert all(
            1 <= extent <= most
            for extent, most in zip(grid, (2**31 - 1, 65535, 65535), strict=False)
        )
        assert kernel.programs(launch) == np.prod(grid, dtype=np.int64)


def test_knobs_presets_and_headlines_are_complete_and_legal(kernel):
    assert kernel.title
    assert kernel.headline.endswith(".")
    for declared, allowed in (declared_parts(kernel)[part] for part in ("problem", "config")):
        assert allowed.keys() == {field.name for field in dataclasses.fields(declared)}
        for name, knob in allowed.items():
            assert knob.help.endswith("."), name
            assert knob.group, name
            assert knob.choices or knob.low < knob.high, name
            assert knob.validate(name, getattr(declared(), name)) == getattr(declared(), name)
    assert len({preset.title for preset in kernel.presets}) == len(kernel.presets) > 0
    for preset in kernel.presets:
        experiment = from_json(
            {"kernel": kernel.id, "problem": preset.problem, "config": preset.config}
        )
        assert preset.problem.items() <= vars(experiment.problem).items()
        assert preset.config.items() <= vars(experiment.config).items()


@pytest.mark.parametrize(
    ("rows", "columns", "size"),
    [(1, 1, 1), (7, 5, 4), (9, 9, 3), (129, 3, 64), (5, 1000, 1), (10, 7, 100)],
)
def test_grouped_order_walks_down_the_rows_of_a_group_and_then_moves_to_the_next_column(
    rows, columns, size
):
    walk = [
        (row, column, first // size)
        for first in range(0, rows, size)
        for column in range(columns)
        for row in range(first, min(first + size, rows))
    ]
    pids = np.arange(rows * columns)
    pid_m, pid_n = on_arrays(orders.grouped)(pids, rows, columns, size)
    assert (
        list(zip(pid_m, pid_n, on_arrays(orders.group_of)(pids, columns, size), strict=True))
        == walk
    )
    if rows % size == 0:
        whole = on_arrays(orders.grouped)(pids, rows, columns, size, WHOLE_GROUPS=True)
        assert np.array_equal(whole, (pid_m, pid_n))


def test_a_label_is_unique_in_its_form(kernel):
    declared = {"kernel": kernel_knob(), "gpu": GPU}
    for _, allowed in declared_parts(kernel).values():
        declared |= allowed
    labels = [knob.label or name for name, knob in declared.items()]
    assert len(set(labels)) == len(labels)
