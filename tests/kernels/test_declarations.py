"""What a kernel declares agrees with itself, and with the source of the function that it launches."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from pathlib import Path

import numpy as np
import pytest

import kernels as package
from kernels import orders
from kernels.experiment import from_json
from kernels.jit import on_arrays
from kernels.spec import ConfigError, knobs

SHAPES = ((1, 1, 1), (1, 129, 577), (577, 1, 129), (577, 1000, 129), (1023, 577, 1000), (448, 1023, 1))
ROOT = Path(package.__file__).parent.parent


def cases(configs, problem_of):
    """Problems and configs of at most some 100,000 tiles."""
    for shape in SHAPES:
        for name, config in configs.items():
            if not (name == "smallest" and shape[0] * shape[1] > 300_000):
                yield problem_of(shape), config


def test_every_file_that_declares_a_kernel_is_found(kernels):
    files = [path for path in (ROOT / "kernels").glob("*/*.py") if "\nKERNEL = " in path.read_text(encoding="utf-8")]
    assert len(files) == len(kernels) > 0
    assert {f"{path.parent.name}.{path.stem}" for path in files} == set(kernels)


def test_the_id_names_the_family(kernel):
    assert kernel.id.split(".")[0] == kernel.family.id


def test_every_tile_is_computed_exactly_once(kernel, configs, problem_of):
    for problem, config in cases(configs, problem_of):
        extents = kernel.extents(problem, config)
        tiles = kernel.tiles(np.arange(kernel.programs(problem, config)), problem, config)
        computed = np.stack([tiles.pid_m, tiles.pid_n, tiles.pid_k], axis=1)
        slices = int(tiles.pid_k.max()) + 1
        assert len(computed) == extents["m"] * extents["n"] * slices, (problem, config)
        assert len(np.unique(computed, axis=0)) == len(computed), (problem, config)
        assert (computed.min(axis=0) >= 0).all()
        assert (computed.max(axis=0) < (extents["m"], extents["n"], slices)).all()


def test_every_program_computes_a_tile_in_launch_order(kernel, configs, problem_of):
    for problem, config in cases(configs, problem_of):
        programs = kernel.programs(problem, config)
        tiles = kernel.tiles(np.arange(programs), problem, config)
        assert (np.diff(tiles.program) >= 0).all()
        assert np.array_equal(np.unique(tiles.program), np.arange(programs))


def test_some_programs_have_the_tiles_that_they_have_among_all(kernel, configs, problem_of):
    for problem, config in cases(configs, problem_of):
        programs = kernel.programs(problem, config)
        some = np.unique(np.array([0, programs // 3, programs // 2, programs - 1]))
        whole, part = (kernel.tiles(pids, problem, config) for pids in (np.arange(programs), some))
        kept = np.isin(whole.program, some)
        for field in dataclasses.fields(part):
            assert np.array_equal(getattr(part, field.name), getattr(whole, field.name)[kept]), (problem, config)
        group = kernel.group(np.arange(programs), problem, config)
        assert np.array_equal(kernel.group(some, problem, config), group[some])


def test_groups_are_runs_of_programs(kernel, configs, problem_of):
    for problem, config in cases(configs, problem_of):
        group = kernel.group(np.arange(kernel.programs(problem, config)), problem, config)
        assert group[0] == 0
        assert set(np.diff(group)) <= {0, 1}


def test_blocks_of_an_access_cover_its_tensor_once(kernel, configs, problem_of):
    for problem, config in cases(configs, problem_of):
        extents, tensors = kernel.extents(problem, config), kernel.family.tensors(problem)
        for access in kernel.accesses(problem, config):
            for axis, length in zip((access.rows, access.columns), tensors[access.tensor].shape, strict=True):
                starts = axis.start(np.arange(extents[axis.index]), axis.block)
                elements = (starts[:, None] + np.arange(axis.block)).ravel()
                assert np.array_equal(np.sort(elements[elements < length]), np.arange(length)), (problem, config)
                assert (starts < length).all(), "a block with nothing in bounds"
                assert axis.index in access.over


def test_grids_are_what_cuda_can_launch(kernel, configs, problem_of):
    sizes = {name: knob for name, knob in knobs(kernel.family.problem).items() if knob.high}
    largest = kernel.family.problem(**{name: knob.high for name, knob in sizes.items()})
    for problem, config in [*cases(configs, problem_of), *((largest, config) for config in configs.values())]:
        grid = kernel.grid(problem, config)
        assert 1 <= len(grid) <= 3
        # CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
        assert all(1 <= extent <= most for extent, most in zip(grid, (2**31 - 1, 65535, 65535), strict=False))
        assert kernel.programs(problem, config) == np.prod(grid, dtype=np.int64)


def memory_calls(function, seen):
    """(file, line, name) of every load, store and atomic in a jitted function and in those that it calls."""
    path = Path(inspect.getsourcefile(function)).resolve()
    if function in seen or not path.is_relative_to(ROOT / "kernels"):  # the language's own functions touch no memory
        return set()
    seen.add(function)
    lines, first = inspect.getsourcelines(function)
    found = set()
    for node in ast.walk(ast.parse("".join(lines))):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name):
            target = function.__globals__.get(called.id)
        elif isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
            target = getattr(function.__globals__.get(called.value.id), called.attr, None)
        else:
            target = None
        if hasattr(target, "fn"):
            found |= memory_calls(target.fn, seen)
        elif isinstance(called, ast.Attribute) and (
            called.attr in ("load", "store") or called.attr.startswith("atomic_")
        ):
            found.add((str(path.relative_to(ROOT)), first + node.lineno - 1, called.attr))
    return found


def test_every_load_and_store_of_the_source_is_declared_once(kernel, configs, problem_of):
    called = memory_calls(kernel.jitted.fn, set())
    assert called
    for problem, config in cases(configs, problem_of):
        declared = [(*access.source, access.op) for access in kernel.accesses(problem, config)]
        assert sorted(declared) == sorted(called)


def test_accesses_load_inputs_and_write_the_output(kernel, problem_of):
    problem = problem_of((577, 129, 1000))
    tensors = kernel.family.tensors(problem)
    written = {access.tensor for access in kernel.accesses(problem, kernel.config()) if access.op != "load"}
    loaded = {access.tensor for access in kernel.accesses(problem, kernel.config()) if access.op == "load"}
    assert written == {kernel.family.output(problem)}
    assert loaded >= {name for name, tensor in tensors.items() if tensor.is_input}


def test_every_knob_says_what_it_is_for(kernel):
    for declared in (kernel.family.problem, kernel.config):
        assert knobs(declared).keys() == {field.name for field in dataclasses.fields(declared)}
        for name, knob in knobs(declared).items():
            assert knob.help.endswith("."), name
            assert knob.group, name
            assert knob.choices or knob.low < knob.high, name


def test_defaults_are_legal(kernel):
    for declared in (kernel.family.problem, kernel.config):
        for name, knob in knobs(declared).items():
            assert knob.checked(name, getattr(declared(), name)) == getattr(declared(), name)


def test_presets_are_legal_and_have_names_of_their_own(kernel, kernels):
    titles = [preset.title for preset in kernel.presets]
    assert len(set(titles)) == len(titles) > 0
    for preset in kernel.presets:
        experiment = from_json({"kernel": kernel.id, "problem": preset.problem, "config": preset.config}, kernels)
        for part, values in ((experiment.problem, preset.problem), (experiment.config, preset.config)):
            assert {name: getattr(part, name) for name in values} == dict(values)


def test_a_preset_with_a_field_that_is_not_there_would_be_noticed(kernel, kernels):
    with pytest.raises(ConfigError, match="no field 'BLOCK_Z'"):
        from_json({"kernel": kernel.id, "config": {"BLOCK_Z": 1}}, kernels)


def test_claims_are_sentences(kernel):
    assert kernel.title
    assert kernel.claim.endswith(".")


def walk_of_groups(rows, columns, group_size):
    """Tiles in grouped order, walked: down each group's rows, then one column on."""
    for first in range(0, rows, group_size):
        for column in range(columns):
            for row in range(first, min(first + group_size, rows)):
                yield row, column, first // group_size


def test_grouped_order_is_the_walk_down_each_group():
    for rows, columns, group_size in ((1, 1, 1), (7, 5, 4), (9, 9, 3), (129, 3, 64), (5, 1000, 1), (10, 7, 100)):
        pids = np.arange(rows * columns)
        pid_m, pid_n = on_arrays(orders.grouped)(pids, rows, columns, group_size)
        group = on_arrays(orders.group_of)(pids, columns, group_size)
        assert list(zip(pid_m, pid_n, group, strict=True)) == list(walk_of_groups(rows, columns, group_size))


JITTED_ORDERS = [value for value in vars(orders).values() if hasattr(value, "fn")]
ARGUMENTS = {"num_pid_m": 7, "num_pid_n": 129, "GROUP_SIZE": 4, "BLOCK": 1}


@pytest.mark.parametrize("jitted", JITTED_ORDERS, ids=lambda jitted: jitted.fn.__name__)
def test_on_arrays_gives_what_integers_give(jitted):
    arguments = {name: ARGUMENTS[name] for name in list(inspect.signature(jitted.fn).parameters)[1:]}
    pids = np.arange(7 * 129)
    together = np.atleast_2d(on_arrays(jitted)(pids, **arguments))
    for pid in pids.tolist():
        alone = on_arrays(jitted)(pid, **arguments)
        assert together[:, pid].tolist() == np.ravel(alone).tolist()
