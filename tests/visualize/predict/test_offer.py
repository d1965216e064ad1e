"""Recommended configs: what the file holds, and which config is offered for a shape."""

import json
from dataclasses import replace

import pytest

from tests.experiments import launch_from
from tilescope.compiling.estimates import compile_seconds, estimate_shared_bytes, estimate_time
from tilescope.declare.discovery import discover, read_text
from tilescope.declare.gpus import GPUS
from tilescope.declare.spec import Launch
from tilescope.results import codec
from visualize.predict import offer as offers
from visualize.predict.offer import FOUND, NEIGHBOUR, RANKED, Offer, offer
from visualize.views.state import explain_opening, opening_config


def test_each_config_is_offered_for_the_shape_it_was_found_for():
    """Each is for a different launch, and was compared with other configs."""
    every = offers.shipped()
    launches = {(each.gpu, each.experiment.kernel, each.experiment.problem) for each in every}
    assert len(launches) == len(every)
    for entry in every:
        assert entry.ratio is None or entry.ratio > 0.3
        assert entry.compared > 10
        kernel = discover()[entry.experiment.kernel]
        offered = offer(kernel, entry.experiment.problem, GPUS[entry.gpu])
        assert offered == Offer(entry.experiment, FOUND, entry)


@pytest.mark.parametrize(
    ("size", "fields", "origin", "searched"),
    [
        (4096, "gpu=H200", FOUND, 4096),
        (4096, "gpu=H100", FOUND, 4096),  # of the same compute capability
        (4096, "gpu=H200 precision=ieee", FOUND, 4096),  # has no effect on half types
        (5000, "gpu=H200", NEIGHBOUR, 8192),  # 8192 × 6144 × 4096: a config with more stages
        (512, "gpu=H200 dtype=bfloat16 layout=NT", RANKED, None),
        (4096, "gpu=T4", RANKED, None),
    ],
)
def test_another_shape_gets_a_neighbours_config_only_if_the_model_ranks_it_first(
    size, fields, origin, searched
):
    kernel, launch = launch_from(f"matmul.persistent M={size} N={size} K={size} {fields}")
    offered = offer(kernel, launch.problem, launch.gpu)
    assert offered.origin == origin
    assert (offered.search and offered.search.experiment.problem.M) == searched
    if origin != FOUND:
        similar = offers.similar(kernel, launch.problem, launch.gpu)
        experiments = [offered.experiment, *(entry.experiment for entry in similar)]
        launches = [replace(launch, config=each.config) for each in experiments]
        first, *others = [estimate_time(kernel, each) for each in launches]
        assert all(first <= 1.07 * time for time in others if time)


@pytest.mark.parametrize("gpu", GPUS)
def test_every_matmul_preset_gets_a_config_that_fits_in_shared_memory(gpu):
    for kernel in discover().values():
        for preset in kernel.presets:
            problem = kernel.family.problem(**preset.problem)
            offered = offer(kernel, problem, GPUS[gpu])
            if not kernel.family.panels:
                continue
            launch = Launch(problem, offered.experiment.config, GPUS[gpu])
            assert estimate_shared_bytes(kernel, launch) <= GPUS[gpu].shared_bytes_per_program


_FUSED = "matmul.fused_add_relu"
REPLACED = {
    (_FUSED, "RTX5090"): "takes 112 KiB of shared memory; RTX5090 has 99 KiB.",
    (_FUSED, "RTXPRO6000"): "takes 112 KiB of shared memory; RTXPRO6000 has 99 KiB.",
    (_FUSED, "GB10"): "takes 112 KiB of shared memory; GB10 has 99 KiB.",
    (_FUSED, "T4"): "would spill registers and take minutes to compile.",
}


@pytest.mark.parametrize("gpu", GPUS)
def test_every_kernel_opens_with_a_config_that_launches(kernel, gpu):
    """The published default wherever it fits. All pairs of kernel and architecture but 10.3 and 12.1 were compiled."""
    problem = kernel.family.problem()
    launch = Launch(problem, opening_config(kernel, problem, GPUS[gpu]), GPUS[gpu])
    assert estimate_shared_bytes(kernel, launch) <= GPUS[gpu].shared_bytes_per_program
    assert compile_seconds(kernel, launch) <= 12
    why = REPLACED.get((kernel.id, gpu))
    assert (launch.config == kernel.config()) == (why is None)
    text = explain_opening(kernel, launch)
    expected = f"The default config {why} The recommended config replaces it." if why else ""
    assert text == expected
    assert explain_opening(kernel, replace(launch, config=kernel.config())) == "", (
        "the user chose the default"
    )


def test_misaligned_rows_get_padding():
    kernel, launch = launch_from("matmul.persistent M=4097 N=4097 K=4097 gpu=H200")
    offered = offer(kernel, launch.problem, launch.gpu)
    assert offered.experiment.config.PAD == "auto"


def test_writing_a_line_gives_the_line_that_was_read():
    lines = read_text(offers.FILE).splitlines()
    assert lines
    assert [json.dumps(codec.to_json(entry)) for entry in offers.shipped()] == lines
