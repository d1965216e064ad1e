"""Kernels with one mistake each: the check of every one of them fails, in every type."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from kernels import discover
from tests.kernels.trees import checks, copied

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
        (("rows = min(num_pid_m - first_row, GROUP_SIZE)", "rows = GROUP_SIZE"),),
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


def payloads(mutant):
    """The experiment in every type that the kernel takes."""
    for dtype in discover()[mutant.kernel].problem_knobs()["dtype"].choices:
        yield {"kernel": mutant.kernel, "problem": {**mutant.problem, "dtype": dtype}, "config": mutant.config}


# What a GPU is given instead: more elements, and tiles that fit in its shared memory.
ON_A_GPU = {
    "one element wrong": {"problem": {"M": 8192, "N": 8192, "K": 16}, "config": {}},
    "the last k skipped": {"config": {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64}},
}


def experiments(name, backend):
    mutant = MUTANTS[name]
    return list(payloads(mutant._replace(**ON_A_GPU.get(name, {})) if backend == "cuda" else mutant))


BACKENDS = ["interpreter", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_shows_a_mutant_is_right_before_it_is_changed(tmp_path, backend):
    every = [experiment for name in MUTANTS for experiment in experiments(name, backend)]
    for experiment, check in zip(every, checks(copied(tmp_path / "tree"), every, backend), strict=True):
        assert check["passed"], (experiment, check)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_fails_its_check(tmp_path, name, backend):
    tree, planted = copied(tmp_path / "tree"), experiments(name, backend)
    mutated(tree, MUTANTS[name])
    for experiment, check in zip(planted, checks(tree, planted, backend), strict=True):
        assert check["passed"] is False, (experiment, check)
        if name == "one element wrong":
            assert check["mismatched"] == 1
