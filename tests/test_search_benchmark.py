"""How soon a sweep finds a fast config, on recorded times of every config of eight shapes."""

from __future__ import annotations

import json

import pytest

from benchmarks import search_times
from benchmarks.search import RECORDED
from benchmarks.search_replay import FIRST, replayed, report, swept
from benchmarks.search_times import Found, line, read, spaces, timed
from kernels.results import Strategy
from tests.sweep.fakes import FakeBuilder, FakeDevice, predicting

RECORDED_SHAPES = read(RECORDED)


def name(found: Found) -> str:
    problem = found.space.base.problem
    return f"{problem.M}x{problem.N}x{problem.K}"


def test_every_shape_was_recorded():
    assert [found.space.to_json() for found in RECORDED_SHAPES] == [one.to_json() for one in spaces()]
    assert {(found.gpu, found.device.name, len(found.rows)) for found in RECORDED_SHAPES} == {
        ("H200", "NVIDIA H200", 212)
    }


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
    table = report([one]).splitlines()
    assert len(table) == 3
    assert table[2].startswith("| 4096, 4096, 4096 | 212 | +0.0 % | +")


def test_every_config_is_timed_beside_one_reference(tmp_path, monkeypatch):
    """With a device whose times are made up."""
    monkeypatch.setattr(search_times, "TURNS", 12)
    monkeypatch.setattr(search_times, "MORE_TURNS", 30)
    within, device = spaces()[0], FakeDevice()
    rows = timed(within, device, FakeBuilder(predicting(error=0.2)))
    assert len(rows) == within.size == 216
    references = {trial.reference for trial in device.trials}
    assert references - {None} == {device.trials[0].experiments[0]}
    assert [len(row.samples) for row in rows] == [12] * 216
    path = tmp_path / "searches.jsonl"
    path.write_text(line(within, device.describe(), "H200", rows))
    (back,) = read(path)
    assert (back.space, list(back.rows.values())) == (within, rows)
    assert json.loads(path.read_text())["device"]["name"] == "Fake H200"
