"""How soon a sweep finds a fast config, on recorded times of every config of eight shapes."""

from __future__ import annotations

import pytest

from benchmarks.search import FIRST, RECORDED, read, replay, sweep, timed_rows
from kernels.results import Strategy

SHAPES = read(RECORDED)


@pytest.mark.parametrize("recorded", SHAPES, ids=lambda recorded: str(recorded.space.base.problem)[8:40])
def test_the_models_order_has_a_config_within_one_per_cent_of_the_best_among_the_first_eight(recorded):
    times = {experiment: row.relative for experiment, row in recorded.rows.items()}
    tried = [row.experiment for row in timed_rows(sweep(recorded, Strategy("guided", budget=FIRST), 0))]
    assert len(tried) == FIRST
    assert min(times[experiment] for experiment in tried) <= 1.01 * min(times.values())


def test_the_winner_among_all_configs_is_within_one_per_cent_of_the_best():
    result = replay(SHAPES[0])
    assert (result.configs, result.grid <= 0.01, result.guided <= 0.01) == (212, True, True)
    assert result.tried < result.configs / 4
    low, median, high = result.random_first
    assert result.first < low < median < high
