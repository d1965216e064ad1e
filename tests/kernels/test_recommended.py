"""Recommended configs: what the file holds, and which config is offered for a shape."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kernels import discover, recommended
from kernels.compiling.compile_cost import compile_seconds, estimate_shared_bytes
from kernels.gpus import GPUS
from kernels.results import codec
from kernels.spec import Launch
from scripts import search_configs
from visualize.predict.launch_time import predict_time
from visualize.predict.offer import FOUND, NEIGHBOUR, RANKED, Offer, offer
from visualize.views.opening import explain_opening, opening_config

PERSISTENT = discover()["matmul.persistent"]


def test_each_config_is_offered_for_the_shape_it_was_found_for() -> None:
    """Each is for a different launch, and was compared with other configs."""
    every = recommended.shipped()
    assert len({(one.gpu, one.experiment.kernel, one.experiment.problem) for one in every}) == len(every)
    for one in every:
        assert (one.ratio or 0) > 0.3
        assert one.compared > 10
        kernel = discover()[one.experiment.kernel]
        assert offer(kernel, one.experiment.problem, GPUS[one.gpu]) == Offer(one.experiment, FOUND, one)


@pytest.mark.parametrize(
    ("size", "gpu", "fields", "origin", "searched"),
    [
        (4096, "H200", {}, FOUND, 4096),
        (4096, "H100", {}, FOUND, 4096),  # of the same compute capability
        (4096, "H200", {"precision": "ieee"}, FOUND, 4096),  # has no effect on half types
        (5000, "H200", {}, NEIGHBOUR, 8192),  # the config found for 8192 × 6144 × 4096, which has more stages
        (16384, "H200", {}, NEIGHBOUR, 8192),
        (512, "H200", {"dtype": "bfloat16", "layout": "NT"}, RANKED, None),
        (4096, "T4", {}, RANKED, None),
        (4096, "H200", {"layout": "TT"}, RANKED, None),
        (4096, "H200", {"dtype": "float8_e5m2"}, RANKED, None),
    ],
)
def test_another_shape_gets_a_neighbours_config_only_if_the_model_ranks_it_first(
    size, gpu, fields, origin, searched
) -> None:
    problem = PERSISTENT.family.problem(M=size, N=size, K=size, **fields)
    offered = offer(PERSISTENT, problem, GPUS[gpu])
    assert (offered.origin, offered.search and offered.search.experiment.problem.M) == (origin, searched)
    if origin != FOUND:
        times = [
            predict_time(PERSISTENT, Launch(problem, found.config, GPUS[gpu]), None)
            for found in (
                offered.experiment,
                *(one.experiment for one in recommended.similar(PERSISTENT, problem, GPUS[gpu])),
            )
        ]
        assert times[0].ms == min(time.ms for time in times if time)


@pytest.mark.parametrize("gpu", GPUS)
def test_every_matmul_preset_gets_a_config_that_fits_in_shared_memory(gpu) -> None:
    for kernel in discover().values():
        for preset in kernel.presets:
            problem = kernel.family.problem(**preset.problem)
            offered = offer(kernel, problem, GPUS[gpu])
            if not kernel.family.panels:
                continue
            launch = Launch(problem, offered.experiment.config, GPUS[gpu])
            assert estimate_shared_bytes(kernel, launch) <= GPUS[gpu].shared_bytes_per_program


REPLACED = {
    ("matmul.fused_add_relu", "RTX5090"): "takes 112 KiB of shared memory per program; RTX5090 has 99 KiB.",
    ("matmul.fused_add_relu", "RTXPRO6000"): "takes 112 KiB of shared memory per program; RTXPRO6000 has 99 KiB.",
    ("matmul.fused_add_relu", "T4"): "takes 256 registers per thread with num_warps 4; a thread has 255,",
}


@pytest.mark.parametrize("gpu", GPUS)
def test_every_kernel_opens_with_a_config_that_launches(kernel, gpu) -> None:
    """The published default wherever it fits. All 70 pairs of kernel and architecture were compiled."""
    problem = kernel.family.problem()
    launch = Launch(problem, opening_config(kernel, problem, GPUS[gpu]), GPUS[gpu])
    assert estimate_shared_bytes(kernel, launch) <= GPUS[gpu].shared_bytes_per_program
    assert compile_seconds(kernel, launch) <= 12
    why = REPLACED.get((kernel.id, gpu))
    assert (launch.config == kernel.config()) == (why is None)
    text = explain_opening(kernel, launch)
    assert (why in text and text.endswith(f"offered for {gpu}: {RANKED}.")) if why else text == ""
    assert explain_opening(kernel, replace(launch, config=kernel.config())) == "", "the user chose the default"


def test_misaligned_rows_get_padding() -> None:
    offered = offer(PERSISTENT, PERSISTENT.family.problem(M=4097, N=4097, K=4097), GPUS["H200"])
    assert offered.experiment.config.PAD == "auto"


def test_a_transpose_without_a_search_is_offered_nothing() -> None:
    tiled = discover()["transpose.tiled"]
    assert offer(tiled, tiled.family.problem(M=64, N=64), GPUS["T4"]) is None


def test_writing_a_line_gives_the_line_that_was_read() -> None:
    lines = recommended.FILE.read_text(encoding="utf-8").splitlines()
    assert lines
    assert [json.dumps(codec.to_json(one)) for one in recommended.shipped()] == lines


def test_a_search_tries_only_configs_that_the_kernel_accepts_and_each_once() -> None:
    problem = {"M": 64, "N": 64, "K": 64, "dtype": "float8_e4m3fn"}
    space = [{"BLOCK_M": [64], "BLOCK_K": [16, 32]}, {"BLOCK_M": [64, 3], "BLOCK_K": [32]}]
    tried = search_configs.candidates("matmul.grouped", problem, "events", space)
    assert [(one.config.BLOCK_M, one.config.BLOCK_K) for one in tried] == [(64, 32)]


def test_every_case_of_the_search_has_many_legal_configs() -> None:
    for case in search_configs.cases():
        assert len(search_configs.candidates(*case)) >= 16
