"""How soon a sweep finds a fast config, on recorded times of every config of eight shapes."""

from __future__ import annotations

import pytest

from benchmarks.search import RECORDED
from benchmarks.search_replay import FIRST, replayed, swept
from benchmarks.search_times import Found, read
from kernels.results import Strategy

RECORDED_SHAPES = read(RECORDED)


def name(found: Found) -> str:
    problem = found.space.base.problem
    return f"{problem.M}x{problem.N}x{problem.K}"


@pytest.mark.parametrize("found", RECORDED_SHAPES, ids=name)
def test_the_models_order_has_a_config_within_one_per_cent_of_the_best_among_the_first_eight(found):
    times = {one: row.relative for one, row in found.rows.items()}
    tried = [row.experiment for row in swept(found, Strategy("guided", budget=FIRST), 0).rows if row.status == "timed"]
    assert len(tried) == FIRST
    assert min(times[one] for one in tried) <= 1.01 * min(times.values())


def test_the_winner_among_all_configs_is_within_one_per_cent_of_the_best():
    found = RECORDED_SHAPES[0]
    one = replayed(found)
    assert (one.configs, one.grid <= 0.01, one.guided <= 0.01) == (212, True, True)
    assert one.tried < one.configs / 4
    low, median, high = one.random_first
    assert one.first < low < median < high
