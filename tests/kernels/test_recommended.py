"""Recommended configs: what the file holds, and which one a shape gets."""

from __future__ import annotations

import json

import pytest

from kernels import discover, recommended
from kernels.gpus import GPUS
from scripts import search_configs

PERSISTENT = discover()["matmul.persistent"]


def test_each_config_is_recommended_for_the_shape_it_was_found_for() -> None:
    """Each is for a different launch, and was compared with other configs."""
    every = recommended.shipped()
    assert len({(one.gpu, one.experiment.kernel, one.experiment.problem) for one in every}) == len(every)
    for one in every:
        assert (one.ratio or 0) > 0.3
        assert one.compared > 10
        kernel = discover()[one.experiment.kernel]
        assert recommended.recommend(kernel, one.experiment.problem, GPUS[one.gpu]) == one


@pytest.mark.parametrize(
    ("size", "gpu", "fields", "searched"),
    [
        *((size, "H200", {}, searched) for size, searched in ((4096, 4096), (5000, 4096), (1000, 1024), (512, 1024))),
        (16384, "H200", {}, 8192),
        (511, "H200", {}, None),  # more than three octaves away
        (4096, "H100", {}, 4096),  # of the same compute capability
        (4096, "T4", {}, None),
        (4096, "H200", {"dtype": "float8_e5m2"}, None),
        (4096, "H200", {"layout": "TT"}, None),
        (4096, "H200", {"dtype": "float32", "precision": "ieee"}, None),
        (4096, "H200", {"precision": "ieee"}, 4096),  # has no effect on half types
    ],
)
def test_a_shape_gets_the_config_of_the_nearest_similar_problem(size, gpu, fields, searched) -> None:
    problem = PERSISTENT.family.problem(M=size, N=size, K=size, **fields)
    found = recommended.recommend(PERSISTENT, problem, GPUS[gpu])
    assert (found and found.experiment.problem.M) == searched


def test_writing_a_line_gives_the_line_that_was_read() -> None:
    lines = recommended.FILE.read_text(encoding="utf-8").splitlines()
    assert lines
    assert [json.dumps(one.to_json()) for one in recommended.shipped()] == lines


def test_a_search_tries_only_configs_that_the_kernel_accepts_and_each_once() -> None:
    problem = {"M": 64, "N": 64, "K": 64, "dtype": "float8_e4m3fn"}
    space = [{"BLOCK_M": [64], "BLOCK_K": [16, 32]}, {"BLOCK_M": [64, 3], "BLOCK_K": [32]}]
    tried = search_configs.candidates("matmul.grouped", problem, "events", space)
    assert [(one.config.BLOCK_M, one.config.BLOCK_K) for one in tried] == [(64, 32)]


def test_every_case_of_the_search_has_many_legal_configs() -> None:
    for case in search_configs.cases():
        assert len(search_configs.candidates(*case)) >= 16
