"""The occupancy model against what Nsight Compute said of launches on an H200 (see count_launches.py)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernels.gpus import GPUS
from visualize.models.occupancy import occupancy

RECORDED = json.loads(Path(__file__).with_name("h200_launches.json").read_text(encoding="utf-8"))


@pytest.fixture(params=RECORDED["launches"], ids=lambda case: "-".join(map(str, case["experiment"]["config"].values())))
def case(request):
    return request.param


def test_enough_was_recorded(kernels):
    assert {case["experiment"]["kernel"] for case in RECORDED["launches"]} == set(kernels)
    assert {case["experiment"]["config"]["num_warps"] for case in RECORDED["launches"]} == {1, 2, 4, 8}


def test_registers_and_shared_memory_of_the_compile_are_those_of_the_launch(case):
    for name in ("registers", "shared_bytes"):
        assert case["compiled"][name] == case["counted"][name]


def test_occupancy_is_what_was_counted_and_so_is_each_limit(case):
    compiled, counted = case["compiled"], case["counted"]
    num_warps = case["experiment"]["config"]["num_warps"]
    held = occupancy(GPUS[RECORDED["gpu"]], num_warps, compiled["registers"], compiled["shared_bytes"])
    assert 100 * held.occupancy == pytest.approx(counted["occupancy_percent"], abs=0.01)
    for name in ("warps", "programs", "registers"):
        assert held.limits[name] == counted[f"limit_{name}"], name
    # The driver gives no more of the memory to a kernel than it needs for the programs that the rest allows, so the
    # limit counted is that of a part of the memory.
    assert held.limits["shared memory"] >= counted["limit_shared"] >= held.programs_per_sm
