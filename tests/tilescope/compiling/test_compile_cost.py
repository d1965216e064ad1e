"""The estimated time of a compile, and which launches are refused because of it."""

import itertools
import re
from dataclasses import replace

import pytest

from tests.experiments import experiment_of, launch_from
from tests.messages import opened
from tilescope.compiling.compiler import suggest_smaller_config
from tilescope.compiling.estimates import (
    COMPILE_DEADLINE_S,
    QUICK_COMPILE_S,
    compile_seconds,
    estimate_shared_bytes,
    refuse_compile,
)
from tilescope.declare.discovery import discover
from tilescope.declare.experiment import launch_of, resolve_gpu
from tilescope.declare.gpus import GPUS
from tilescope.measure.counters import COUNTERS
from tilescope.measure.session import MEASUREMENTS
from tilescope.results import records
from visualize.predict.offer import shipped
from visualize.tours import tours

# Seconds that Triton 3.7.1 took on one core of an x86 server, and the kernel, the GPU, the tile and num_warps.
MEASURED = """
2.3 matmul.grouped gpu=H200 BLOCK_M=128 BLOCK_N=128 BLOCK_K=16 num_warps=4
3.2 matmul.grouped gpu=H200 BLOCK_M=256 BLOCK_N=128 BLOCK_K=16 num_warps=4
3.1 matmul.grouped gpu=H200 BLOCK_M=256 BLOCK_N=256 BLOCK_K=16 num_warps=8
31.0 matmul.grouped gpu=H200 BLOCK_M=256 BLOCK_N=128 BLOCK_K=16 num_warps=2
28.7 matmul.grouped gpu=H200 BLOCK_M=256 BLOCK_N=128 BLOCK_K=64 num_warps=2
2.6 matmul.grouped gpu=A100-80GB BLOCK_M=128 BLOCK_N=128 BLOCK_K=16 num_warps=4
4.1 matmul.grouped gpu=T4 BLOCK_M=128 BLOCK_N=128 BLOCK_K=16 num_warps=4
11.8 matmul.grouped gpu=T4 BLOCK_M=128 BLOCK_N=128 BLOCK_K=64 num_warps=4
7.8 matmul.grouped gpu=T4 BLOCK_M=256 BLOCK_N=128 BLOCK_K=16 num_warps=4
8.6 matmul.grouped gpu=T4 BLOCK_M=256 BLOCK_N=256 BLOCK_K=16 num_warps=8
23.6 matmul.grouped gpu=T4 BLOCK_M=256 BLOCK_N=128 BLOCK_K=16 num_warps=2
25.5 matmul.grouped gpu=T4 BLOCK_M=256 BLOCK_N=256 BLOCK_K=16 num_warps=4
15.0 transpose.tiled gpu=H200 BLOCK_M=256 BLOCK_N=256 num_warps=1
"""


@pytest.mark.parametrize("row", MEASURED.strip().splitlines())
def test_the_estimate_is_within_a_factor_of_two(row):
    measured_s, text = row.split(maxsplit=1)
    assert 0.5 < compile_seconds(*launch_from(text)) / float(measured_s) < 2


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("warps", [1, 2])
def test_a_compile_that_would_exceed_its_deadline_is_refused_with_the_figures(gpu, warps):
    """256 × 256 × 64: the tile that stopped a page for minutes."""
    text = f"matmul.grouped gpu={gpu} BLOCK_M=256 BLOCK_N=256 BLOCK_K=64 num_warps={warps}"
    failure = refuse_compile(*launch_from(text))
    assert failure.stage == "compile"
    assert failure.kind == "too_slow_to_compile"
    registers = f"takes {2048 // warps} registers per thread with num_warps {warps}"
    assert f"{registers}; a thread has 255" in failure.message
    assert f"the limit is {COMPILE_DEADLINE_S:.0f} s" in failure.message
    assert re.search(r"would take about (\d+ h )?\d+ min", failure.message), "not in seconds"


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
    ("text", "expected"),
    [
        ("matmul.grouped gpu=H200 BLOCK_M=256 BLOCK_N=256 BLOCK_K=256 num_stages=5", "BLOCK_K 32"),
        ("matmul.persistent gpu=T4 BLOCK_M=256 BLOCK_N=256 BLOCK_K=256", "BLOCK_K 64"),
        ("transpose.tiled gpu=T4 BLOCK_M=256 BLOCK_N=256", "BLOCK_N 64"),
    ],
)
def test_the_suggested_config_changes_few_knobs_and_fits_by_the_estimate(text, expected):
    declared, launch = launch_from(text)
    needed = estimate_shared_bytes(declared, launch)
    assert suggest_smaller_config(declared, launch, needed) == expected


def everything_shown():
    """Each experiment that the project shows: defaults, presets, tours, recordings, and configs found by searches."""
    for kernel in discover().values():
        for preset in kernel.presets:
            yield experiment_of(kernel.id, **preset.problem, **preset.config)
    for tour in tours().values():
        yield from (opened(stop.fields).experiment for stop in tour.stops)
    yield from (replace(found.experiment, gpu=found.gpu) for found in shipped())
    for measurement, gpu in itertools.product(MEASUREMENTS.values(), GPUS):
        for experiment in records.experiments(measurement.form, gpu):
            yield replace(experiment, gpu=gpu)


def test_nothing_that_the_project_shows_is_refused():
    shown = list(everything_shown())
    assert len(shown) > 300
    for experiment in shown:
        assert not refuse_compile(*launch_of(experiment, resolve_gpu(experiment, None))), experiment


@pytest.mark.parametrize("gpu", GPUS)
def test_defaults_and_presets_may_use_the_worker_reserved_for_short_jobs(gpu):
    for kernel in discover().values():
        for config in ({}, *(declared.config for declared in kernel.presets)):
            launch = launch_from(f"{kernel.id} gpu={gpu}", **config)
            if launch[1].gpu.compute_capability >= (8, 0):
                assert compile_seconds(*launch) <= QUICK_COMPILE_S, config
