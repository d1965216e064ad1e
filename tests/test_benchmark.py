"""`make bench` without a GPU: each kind of case goes its whole way on the interpreter, with made-up times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.kernel_cases import CASES, COMPILED, Case
from benchmarks.kernels import config_of
from kernels import discover
from kernels.gpus import GPUS

pytestmark = pytest.mark.xdist_group("benchmark")

_SIDE = 32


def of_kind():
    """One case of each kind, made small."""
    kinds = {}
    for case in CASES:
        kinds.setdefault((case.kernel, case.rows, case.is_b_transposed_first, case.problem["dtype"]), case)
    return [_small(case) for case in kinds.values()]


def _small(case):
    sizes = {name: _SIDE for name, value in case.problem.items() if isinstance(value, int)}
    rows = tuple(replace(row, calls=tuple(name for name in row.calls if name != COMPILED)) for row in case.rows)
    return replace(case, problem={**case.problem, **sizes}, rows=rows)


def _taken(calls, timer):
    """Made-up times: each call's is its place, so that the kernel is first and the last call the slowest."""
    from kernels.measuring.timing import Samples

    for call in calls:
        call()
    times = np.arange(1, len(calls) + 1)[:, None] * np.linspace(1, 1.01, 50)
    return Samples(times, None, "")


def rows_under_the_interpreter():
    """The rows of one case of each kind. In the run worker."""
    from benchmarks.kernels import measure

    return [entry for case in of_kind() for entry in measure(case, GPUS["H200"], _taken)]


def rows_of_a_wrong_result():
    """The rows of a case whose kernel writes nothing. In the run worker."""
    from benchmarks import kernels
    from kernels.measuring.run import Prepared

    bind, Prepared.bind = Prepared.bind, lambda self: lambda: None
    try:
        return list(kernels.measure(_small(CASES[0]), GPUS["H200"], _taken))
    finally:
        Prepared.bind = bind


@pytest.fixture(scope="module")
def entries(session):
    return session.call_runner(rows_under_the_interpreter)


def test_every_kind_of_case_is_checked_and_compared(entries):
    float8 = [entry for entry in entries if "float8" in entry.work]
    for entry in entries:
        if entry in float8:  # torch multiplies these on a GPU alone
            continue
        assert entry.failure == "", entry
        assert entry.ratio > 1
        assert entry.ratio_low <= entry.ratio <= entry.ratio_high
        assert entry.error < 0.01
        if "copy" in entry.against:
            assert entry.their_error is None
        else:
            assert entry.their_error < 0.01
    assert len(entries) >= 10
    assert len(float8) == 1


def test_a_row_is_beside_the_fastest_of_its_calls(entries):
    """Times are made up by place: addmm comes before eager, and eager alone stands in its own row."""
    eager, best = (entry for entry in entries if entry.work.startswith("relu"))
    assert (eager.fastest, best.fastest) == ("torch eager, three calls", "torch.addmm, then relu_")
    assert best.ratio < eager.ratio


def test_the_transposition_that_counts_is_part_of_what_is_timed_and_checked(entries):
    (entry,) = (entry for entry in entries if "transposition counted" in entry.work)
    assert entry.error < 1e-3


def test_a_wrong_result_has_no_time_and_the_row_says_so(session):
    for entry in session.call_runner(rows_of_a_wrong_result):
        assert entry.failure.startswith("wrong: 1,024 elements")
        assert entry.ratio is entry.ms is None


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.work)
def test_every_case_has_a_config_that_a_search_found_and_its_problem_takes(case):
    config, source = config_of(case, GPUS["H200"])
    kernel = discover()[case.kernel]
    kernel.family.refuse(kernel.family.problem(**case.problem), config)
    assert source.startswith("found on H200 for ")


def test_a_case_that_no_search_is_like_has_its_kernels_default():
    case = Case("tiny", "matmul.grouped", {"M": 16, "N": 16, "K": 16, "dtype": "float16"}, ())
    assert config_of(case, GPUS["H200"]) == (discover()["matmul.grouped"].config(), "default")
