"""Kernels that take strides are right on operands that are slices of larger tensors."""

from __future__ import annotations

import functools

import pytest

from tests.kernels import run_sliced

# Interpreted by the worker that interprets the contract's cases.
pytestmark = pytest.mark.xdist_group("interpreted")


@pytest.mark.parametrize("backend", ["interpreter", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_slices_of_larger_tensors_are_multiplied_right(request, kernels, backend, all_combinations):
    session = request.getfixturevalue("gpu" if backend == "cuda" else "session")
    cases = session.ask_runner(functools.partial(run_sliced.cases, backend, all_combinations or backend == "cuda"))
    assert [case.what for case in cases if not case.passed] == []
    assert {case.kernel for case in cases} == {name for name in kernels if name.startswith("matmul.")}
