"""The estimated time of a compile, and which launches are refused because of it."""

import itertools
import re

import pytest

from kernels import discover
from kernels.compiling.compile_cost import (
    COMPILE_DEADLINE_S,
    QUICK_COMPILE_S,
    compile_seconds,
    estimate_shared_bytes,
    refuse_compile,
    suggest_smaller_config,
)
from kernels.experiment import from_json, launch_of, resolve_gpu
from kernels.gpus import GPUS
from kernels.measuring.counters import COUNTERS
from kernels.measuring.session import MEASUREMENTS
from kernels.recommended import shipped
from kernels.results import records
from visualize.tours import tours
from visualize.views.tabs import SETTINGS


def launch_from(payload):
    chosen = from_json(payload)
    return launch_of(chosen, resolve_gpu(chosen, None))


def product(gpu, rows, columns, depth, warps, **problem):
    config = {"BLOCK_M": rows, "BLOCK_N": columns, "BLOCK_K": depth, "num_warps": warps}
    return launch_from(
        {"kernel": "matmul.grouped", "gpu": gpu, "problem": problem, "config": config}
    )


# Seconds that Triton 3.7.1 took on one core of an x86 server.
MEASURED_S = [
    (2.3, "H200", 128, 128, 16, 4), (3.2, "H200", 256, 128, 16, 4), (3.1, "H200", 256, 256, 16, 8),
    (31.0, "H200", 256, 128, 16, 2), (28.7, "H200", 256, 128, 64, 2), (2.6, "A100-80GB", 128, 128, 16, 4),
    (4.1, "T4", 128, 128, 16, 4), (11.8, "T4", 128, 128, 64, 4), (7.8, "T4", 256, 128, 16, 4),
    (8.6, "T4", 256, 256, 16, 8), (23.6, "T4", 256, 128, 16, 2), (25.5, "T4", 256, 256, 16, 4),
]  # fmt: skip


@pytest.mark.parametrize(("measured_s", "gpu", "rows", "columns", "depth", "warps"), MEASURED_S)
def test_the_estimate_is_within_a_factor_of_two(measured_s, gpu, rows, columns, depth, warps):
    assert (
        measured_s / 2
        < compile_seconds(*product(gpu, rows, columns, depth, warps))
        < measured_s * 2
    )


def test_a_large_transpose_on_one_warp_is_estimated_to_take_long():
    """It took 15 s."""
    config = {"BLOCK_M": 256, "BLOCK_N": 256, "num_warps": 1}
    assert (
        7
        < compile_seconds(
            *launch_from({"kernel": "transpose.tiled", "gpu": "H200", "config": config})
        )
        < 30
    )


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("warps", [1, 2])
def test_a_compile_that_would_exceed_its_deadline_is_refused_with_the_figures(gpu, warps):
    """256 × 256 × 64: the tile that stopped a page for minutes."""
    failure = refuse_compile(*product(gpu, 256, 256, 64, warps))
    assert failure.stage == "compile"
    assert failure.kind == "too_slow_to_compile"
    why = failure.message
    assert (
        f"takes {2048 // warps} registers per thread with num_warps {warps}; a thread has 255"
        in why
    )
    assert f"the limit is {COMPILE_DEADLINE_S:.0f} s" in why
    assert re.search(r"would take about (\d+ h )?\d+ min", why), "seconds would be unreadable"


def test_recorded_kernels_need_hardly_more_shared_memory_than_estimated():
    needs = []
    for recording in records.shipped(COUNTERS.form):
        estimate = estimate_shared_bytes(
            *launch_of(recording.measured.experiment, GPUS[recording.gpu])
        )
        needs.append(recording.measured.compiled.shared_bytes / estimate)
    assert len(needs) > 700
    assert max(needs) < 1.25
    assert sum(need > 1.01 for need in needs) < 10


@pytest.mark.parametrize(
    ("kernel", "gpu", "config", "expected"),
    [
        (
            "matmul.grouped",
            "H200",
            {"BLOCK_M": 256, "BLOCK_N": 256, "BLOCK_K": 256, "num_stages": 5},
            "BLOCK_K 32",
        ),
        ("matmul.persistent", "T4", {"BLOCK_M": 256, "BLOCK_N": 256, "BLOCK_K": 256}, "BLOCK_K 64"),
        ("transpose.tiled", "T4", {"BLOCK_M": 256, "BLOCK_N": 256}, "BLOCK_N 64"),
    ],
)
def test_the_suggested_config_changes_few_knobs_and_fits_by_the_estimate(
    kernel, gpu, config, expected
):
    declared, launch = launch_from({"kernel": kernel, "gpu": gpu, "config": config})
    assert (
        suggest_smaller_config(declared, launch, estimate_shared_bytes(declared, launch))
        == expected
    )


def everything_shown():
    """Each experiment that the project shows: defaults, presets, tours, recordings, and configs found by searches."""
    for kernel in discover().values():
        for preset in kernel.presets:
            yield {
                "kernel": kernel.id,
                "problem": dict(preset.problem),
                "config": dict(preset.config),
            }
    for tour in tours().values():
        yield from (SETTINGS.state(stop.fields, None).experiment.to_json() for stop in tour.stops)
    yield from ({**found.experiment.to_json(), "gpu": found.gpu} for found in shipped())
    for measurement, gpu in itertools.product(MEASUREMENTS.values(), GPUS):
        for experiment in records.experiments(measurement.form, gpu):
            yield {**experiment.to_json(), "gpu": gpu}


def test_nothing_that_the_project_shows_is_refused():
    shown = list(everything_shown())
    assert len(shown) > 300
    assert [payload for payload in shown if refuse_compile(*launch_from(payload))] == []


@pytest.mark.parametrize("gpu", GPUS)
def test_defaults_and_presets_may_use_the_worker_reserved_for_short_jobs(gpu):
    for kernel in discover().values():
        for preset in ({}, *(dict(declared.config) for declared in kernel.presets)):
            launch = launch_from({"kernel": kernel.id, "config": preset, "gpu": gpu})
            if launch[1].gpu.compute_capability >= (8, 0):
                assert compile_seconds(*launch) <= QUICK_COMPILE_S, preset
