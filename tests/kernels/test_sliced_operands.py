"""Kernels that take strides are right on operands that are slices of larger tensors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kernels.trees import ROOT, python


@pytest.mark.parametrize("backend", ["interpreter", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_slices_of_larger_tensors_are_multiplied_right(kernels, tmp_path, backend, all_combinations):
    which = "all" if all_combinations or backend == "cuda" else "pairs"
    ended = python(ROOT, Path(__file__).with_name("run_sliced.py"), backend, which, tmp_path)
    assert ended.returncode == 0, ended.stderr
    cases = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [case["what"] for case in cases if not case["passed"]] == []
    assert {case["kernel"] for case in cases} == {name for name in kernels if name.startswith("matmul.")}
