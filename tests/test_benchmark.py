"""`make bench` without a GPU, with made-up times; how soon a sweep finds a fast config, on recorded times."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.kernel_cases import CASES, COMPILED
from benchmarks.search import FIRST, RECORDED, read, replay, sweep, timed_rows
from tilescope.declare.gpus import GPUS

pytestmark = pytest.mark.xdist_group("benchmark")


def of_kind():
    """One case of each kind, made small."""
    kinds = {}
    for case in CASES:
        kinds.setdefault(
            (case.kernel, case.rows, case.is_b_transposed_first, case.problem["dtype"]), case
        )
    return [_small(case) for case in kinds.values()]


def _small(case):
    sizes = {name: 32 for name, value in case.problem.items() if isinstance(value, int)}
    rows = tuple(
        replace(row, calls=tuple(name for name in row.calls if name != COMPILED))
        for row in case.rows
    )
    return replace(case, problem={**case.problem, **sizes}, rows=rows)


def _taken(calls, timer):
    """Made-up times: each call's is its place, so that the kernel is first and the last call the slowest."""
    from tilescope.measure.timing import Samples

    for call in calls:
        call()
    times = np.arange(1, len(calls) + 1)[:, None] * np.linspace(1, 1.01, 50)
    return Samples(times, None, "")


def rows_under_the_interpreter():
    """The rows of one case of each kind. In the run worker."""
    from benchmarks.kernels import measure

    return [entry for case in of_kind() for entry in measure(case, GPUS["H200"], _taken)]


def test_every_kind_of_case_is_checked_and_compared_with_the_fastest_of_its_calls(session):
    entries = session.call_runner(rows_under_the_interpreter)
    # Torch multiplies these on a GPU only
    checked = [entry for entry in entries if "float8" not in entry.work]
    assert len(checked) == len(entries) - 1 >= 9
    for entry in checked:
        assert entry.failure == "", entry
        assert 1 < entry.ratio_low <= entry.ratio <= entry.ratio_high
        assert entry.error < 0.01
        if "copy" in entry.against:
            assert entry.their_error is None
        else:
            assert entry.their_error < 0.01
    # Times are made up by place: addmm comes before eager, and one row compares with eager alone.
    eager, best = (entry for entry in entries if entry.work.startswith("relu"))
    assert eager.fastest == "torch eager, three calls"
    assert best.fastest == "torch.addmm, then relu_"
    assert any("transposition counted" in entry.work for entry in checked)


SHAPES = read(RECORDED)


@pytest.mark.parametrize(
    "recorded", SHAPES, ids=lambda recorded: str(recorded.space.base.problem)[8:40]
)
def test_the_models_order_has_a_config_within_four_per_cent_of_the_best_among_the_first_eight(
    recorded,
):
    times = {experiment: row.relative for experiment, row in recorded.rows.items()}
    tried = [row.experiment for row in timed_rows(sweep(recorded, FIRST, 0))]
    assert len(tried) == FIRST
    assert min(times[experiment] for experiment in tried) <= 1.04 * min(times.values())


def test_the_winner_among_all_configs_is_within_one_per_cent_of_the_best():
    result = replay(SHAPES[0])
    assert result.configs == 212
    assert result.grid <= 0.01
    assert result.guided <= 0.01
    assert result.tried < result.configs / 4
    low, median, high = result.random_first
    assert result.first < low < median < high
