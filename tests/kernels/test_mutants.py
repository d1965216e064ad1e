"""Kernels with one mistake each: the check of every one of them fails, in every type."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from kernels import discover
from tests.kernels.trees import checks, checks_of_trees, copied

pytestmark = pytest.mark.xdist_group("mutants")

TWO_MASKS = "mask=(rows[:, None] < M) & (inner[None, :] < K)", "mask=(inner[:, None] < K) & (columns[None, :] < N)"


class Mutant(NamedTuple):
    """What is replaced by what in which file, and an experiment that shows it: kernel, problem and config."""

    file: str
    replaced: tuple[tuple[str, str], ...]
    kernel: str
    problem: dict[str, int]
    config: dict[str, int]


MUTANTS = {
    "a mask forgotten": Mutant(
        "kernels/matmul/tile.py",
        ((TWO_MASKS[0], "mask=(rows[:, None] < M)"), (TWO_MASKS[1], "mask=(columns[None, :] < N)")),
        "matmul.grouped",
        {"M": 48, "N": 80, "K": 40},
        {},
    ),
    "the last k skipped": Mutant(
        "kernels/matmul/grouped.py",
        (
            ("0, tl.cdiv(K, BLOCK_K)", "0, K // BLOCK_K"),
            ("0,\n        tl.cdiv(K, BLOCK_K)", "0,\n        K // BLOCK_K"),
        ),
        "matmul.grouped",
        {"M": 128, "N": 128, "K": 4097},
        {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 256},
    ),
    "two tiles swapped": Mutant(
        "kernels/matmul/grouped.py",
        (("tile.store(c, accumulator, pid_m, pid_n,", "tile.store(c, accumulator, pid_m, pid_n ^ (pid_m == 0),"),),
        "matmul.grouped",
        {"M": 256, "N": 256, "K": 64},
        {},
    ),
    "the tail group dropped": Mutant(
        "kernels/orders.py",
        (("min(num_pid_m - first_row, GROUP_SIZE)", "GROUP_SIZE"),),
        "matmul.grouped",
        {"M": 448, "N": 256, "K": 64},
        {},
    ),
    "the ReLU left out": Mutant(
        "kernels/matmul/fused_add_relu.py",
        (
            (
                "tl.maximum(left + c.load([row, column]).to(tl.float32), 0.0)",
                "left + c.load([row, column]).to(tl.float32)",
            ),
            ("tl.maximum(accumulator + added.to(tl.float32), 0.0)", "accumulator + added.to(tl.float32)"),
        ),
        "matmul.fused_add_relu",
        {"M": 128, "N": 256, "K": 64},
        {},
    ),
    "one element wrong": Mutant(
        "kernels/matmul/tile.py",
        (
            (
                "accumulator.to(c.dtype.element_ty),",
                "tl.where((rows[:, None] == M - 1) & (columns[None, :] == N // 2), 1.5 * accumulator, accumulator)"
                ".to(c.dtype.element_ty),",
            ),
        ),
        "matmul.grouped",
        {"M": 512, "N": 512, "K": 16},
        {"BLOCK_M": 256, "BLOCK_N": 256},
    ),
}


def mutated(tree, mutant):
    """Make the mistake in a copy of the source. At least one of the texts to replace must be there."""
    file = tree / mutant.file
    before = text = file.read_text(encoding="utf-8")
    for right, wrong in mutant.replaced:
        text = text.replace(right, wrong)
    assert text != before, "the kernel was rewritten: rewrite the mutant"
    file.write_text(text, encoding="utf-8")


def payloads(mutant, dtypes):
    """The experiment in each of these types."""
    for dtype in dtypes:
        yield {"kernel": mutant.kernel, "problem": {**mutant.problem, "dtype": dtype}, "config": mutant.config}


# What a GPU is given instead: more elements, and tiles that fit in its shared memory.
ON_A_GPU = {
    "one element wrong": {"problem": {"M": 8192, "N": 8192, "K": 16}, "config": {}},
    "the last k skipped": {"config": {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64}},
}


def experiments(name, backend, every_dtype):
    """In every type that the kernel takes; or else in two, in turns: each type shows a mutant then."""
    mutant, place = MUTANTS[name], list(MUTANTS).index(name)
    dtypes = discover()[mutant.kernel].problem_knobs()["dtype"].choices
    taken = dtypes if every_dtype else [dtypes[(place + step) % len(dtypes)] for step in range(2)]
    return list(payloads(mutant._replace(**ON_A_GPU.get(name, {})) if backend == "cuda" else mutant, taken))


UNCHANGED = "unchanged"


def planted(directory, name):
    """A copy of the kernels with the mistake of that name, or as they are."""
    tree = copied(directory / name.replace(" ", "_"), ("kernels",))
    if name != UNCHANGED:
        mutated(tree, MUTANTS[name])
    return tree


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory, all_combinations):
    """Each mutant's checks, and those of all experiments with unchanged kernels."""
    directory = tmp_path_factory.mktemp("mutants")
    cases = {name: experiments(name, "interpreter", all_combinations) for name in MUTANTS}
    cases[UNCHANGED] = [experiment for several in cases.values() for experiment in several]
    found = checks_of_trees({planted(directory, name): several for name, several in cases.items()})
    return dict(zip(cases, found, strict=True))


@pytest.fixture(params=["interpreter", pytest.param("cuda", marks=pytest.mark.gpu)])
def checks_of(request, tmp_path):
    """Name, experiments → their checks, on one of two backends."""
    if request.param == "cuda":
        return lambda name, several: checks(planted(tmp_path, name), several, "cuda")
    return lambda name, several: request.getfixturevalue("interpreted")[name]


@pytest.fixture
def experiments_of(request, all_combinations):
    """Name → its experiments, on that backend."""
    backend = request.node.callspec.params["checks_of"]
    return lambda name: experiments(name, backend, all_combinations or backend == "cuda")


def test_what_shows_a_mutant_is_right_before_it_is_changed(checks_of, experiments_of):
    every = [experiment for name in MUTANTS for experiment in experiments_of(name)]
    for experiment, check in zip(every, checks_of(UNCHANGED, every), strict=True):
        assert check.get("passed"), (experiment, check)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_fails_its_check(checks_of, experiments_of, name):
    several = experiments_of(name)
    for experiment, check in zip(several, checks_of(name, several), strict=True):
        assert check.get("passed") is False, (experiment, check)
        if name == "one element wrong":
            assert check["mismatched"] == 1
