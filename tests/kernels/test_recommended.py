"""Recommended configs: what the file holds, and which one a shape gets."""

from __future__ import annotations

import dataclasses
import json

import pytest

from kernels import discover, recommended
from kernels.gpus import GPUS
from kernels.spec import Launch
from scripts import search_configs

PERSISTENT = discover()["matmul.persistent"]


def found(size: int, gpu: str = "H200", **fields: str) -> recommended.Recommended | None:
    problem = PERSISTENT.family.problem(M=size, N=size, K=size, **fields)
    return recommended.recommend(PERSISTENT, problem, GPUS[gpu])


def test_writing_a_line_gives_the_line_that_was_read() -> None:
    lines = recommended.FILE.read_text(encoding="utf-8").splitlines()
    assert lines
    assert [json.dumps(one.to_json()) for one in recommended.shipped()] == lines


def test_each_stands_for_another_launch_and_was_compared_with_others() -> None:
    every = recommended.shipped()
    assert len({(one.gpu, one.experiment.kernel, one.experiment.problem) for one in every}) == len(every)
    assert all(one.ratio and one.ratio > 0.3 and one.compared > 10 for one in every)


@pytest.mark.parametrize("one", recommended.shipped(), ids=lambda one: f"{one.experiment.kernel} {one.gpu}")
def test_what_was_found_is_recommended_for_the_shape_it_was_found_for(one: recommended.Recommended) -> None:
    kernel = discover()[one.experiment.kernel]
    assert recommended.recommend(kernel, one.experiment.problem, GPUS[one.gpu]) == one


@pytest.mark.parametrize(("size", "searched"), [(4096, 4096), (5000, 4096), (1000, 1024), (512, 1024), (16384, 8192)])
def test_a_shape_gets_the_config_of_the_nearest_one(size: int, searched: int) -> None:
    one = found(size)
    assert one is not None
    assert searched == one.experiment.problem.M


def test_a_shape_that_is_more_than_three_octaves_away_gets_none() -> None:
    assert found(512) is not None
    assert found(511) is None


@pytest.mark.parametrize(
    "fields", [{"dtype": "float8_e5m2"}, {"layout": "TT"}, {"dtype": "float32", "precision": "ieee"}]
)
def test_another_dtype_layout_or_precision_gets_none(fields: dict[str, str]) -> None:
    assert found(4096, **fields) is None


def test_a_precision_that_makes_no_difference_does_not_matter() -> None:
    assert found(4096, precision="ieee") == found(4096)


def test_another_gpu_of_the_same_compute_capability_gets_what_was_found_there() -> None:
    one = found(4096, gpu="H100")
    assert one is not None
    assert one.experiment.problem.M == 4096
    assert found(4096, gpu="T4") is None


def test_a_search_tries_only_what_the_kernel_takes_and_each_config_once() -> None:
    problem = {"M": 64, "N": 64, "K": 64, "dtype": "float8_e4m3fn"}
    space = [{"BLOCK_M": [64], "BLOCK_K": [16, 32]}, {"BLOCK_M": [64, 3], "BLOCK_K": [32]}]
    tried = search_configs.candidates("matmul.grouped", problem, "events", space)
    assert [(one.config.BLOCK_M, one.config.BLOCK_K) for one in tried] == [(64, 32)]


def test_every_case_of_the_search_has_many_legal_configs() -> None:
    for case in search_configs.cases():
        assert len(search_configs.candidates(*case)) >= 16


@pytest.mark.parametrize("programs_per_sm", [1, 2, 8])
def test_a_persistent_kernel_starts_no_more_programs_than_tiles(programs_per_sm: int) -> None:
    config = PERSISTENT.config(PROGRAMS_PER_SM=programs_per_sm)
    gpu = dataclasses.replace(GPUS["H200"], sms=4)
    problem = PERSISTENT.family.problem(M=640, N=640, K=64)
    assert PERSISTENT.programs(Launch(problem, config, gpu)) == min(25, 4 * programs_per_sm)
