"""The estimate before a compile, against recorded launches and between configs."""

import math
from collections import defaultdict
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from tests.experiments import launch_from
from tilescope.compiling.estimates import (
    estimate_shared_bytes,
    estimate_time,
    expect_execution,
    explain_spill,
)
from tilescope.declare.discovery import discover
from tilescope.declare.experiment import launch_of as experiment_launch
from tilescope.declare.gpus import GPUS
from tilescope.declare.spec import Launch
from tilescope.measure.counters import GROUP_SIZES
from tilescope.measure.run import RUN
from tilescope.results import records

KERNEL = discover()["matmul.grouped"]
PRODUCT = "matmul.grouped M=4096 N=4096 K=4096"
TRANSPOSE = "transpose.tiled M=8192 N=8192 dtype=float32"


def recorded():
    """(launch, ms) of float16 products, by problem with at least five tiles."""
    by_problem = defaultdict(list)
    for recording in records.shipped(GROUP_SIZES.form):
        study = recording.measured
        problem = study.experiment.problem
        config = study.experiment.config
        is_half = problem.dtype == "float16"
        if is_half and (recording.gpu, study.experiment.kernel) == ("H200", KERNEL.id):
            row = next(row for row in study.rows if row.group_size == config.GROUP_SIZE)
            launch = Launch(problem, config, GPUS["H200"])
            by_problem[problem].append((launch, float(np.median(row.times_ms))))
    return [rows for rows in by_problem.values() if len(rows) >= 5]


def test_the_tile_that_is_expected_to_be_the_fastest_is_within_1_percent_of_the_fastest_recorded_one():
    groups = recorded()
    assert len(groups) == 14
    for group in groups:
        times = [ms for _, ms in group]
        predicted = [estimate_time(KERNEL, launch) for launch, _ in group]
        assert times[int(np.argmin(predicted))] <= 1.01 * min(times), group[0][0].problem


@pytest.mark.parametrize("dtype", ["float32", "float8_e4m3fn", "float8_e5m2"])
def test_operands_that_are_transposed_on_the_way_have_as_good_an_order_and_time(dtype):
    """Recorded products of layout NN. Without the transposition, they would be estimated at 0.12 to 0.3 × the time."""
    ratios = []
    by_problem = {}
    for recording in records.shipped(RUN.form):
        experiment = recording.measured.experiment
        timing = recording.measured.timing
        problem = experiment.problem
        is_product = experiment.kernel.startswith("matmul") and problem.dtype == dtype
        if not (is_product and problem.layout == "NN" and timing and timing.median_ms > 0.05):
            continue
        kernel, launch = experiment_launch(experiment, GPUS[recording.gpu])
        found = estimate_time(kernel, launch)
        if problem.precision != "tf32" or found is None:
            continue
        ratios.append(found / timing.median_ms)
        by_problem.setdefault((recording.gpu, problem), []).append((timing.median_ms, found))
    pairs = [
        (slow, fast)
        for rows in by_problem.values()
        for slow, fast in product(rows, rows)
        if slow[0] > 1.05 * fast[0]
    ]
    assert len(pairs) > 50
    assert sum(slow[1] > fast[1] for slow, fast in pairs) >= 0.9 * len(pairs)
    assert 0.8 < np.median(ratios) < 1.1


def estimate(text, **config):
    return estimate_time(*launch_from(text, **config))


def tensor_cycles(execution):
    steps = zip(execution.steps, execution.executed, strict=True)
    return sum(step.busy * executed for step, executed in steps if "product" in step.effect)


def test_fewer_stages_and_few_warps_or_rows_cost_time():
    by_stages = [estimate(PRODUCT, BLOCK_K=32, num_stages=stages) for stages in (2, 3, 4)]
    assert by_stages == sorted(by_stages, reverse=True)
    whole, *parts = (
        tensor_cycles(expect_execution(*launch_from(f"{PRODUCT} BLOCK_N=128 {tile}")))
        for tile in ("BLOCK_M=64", "BLOCK_M=64 num_warps=2", "BLOCK_M=32")
    )
    assert min(parts) > 1.5 * whole, "Hopper: 4 warps, 64 rows"


@pytest.mark.parametrize("kernel", ["grouped", "persistent", "stream_k"])
def test_products_and_the_bytes_of_each_input_and_output_are_complete(kernel):
    kernel, launch = launch_from(f"matmul.{kernel} M=1000 N=1333 K=776 BLOCK_N=128")
    execution = expect_execution(kernel, launch)
    traffic = execution.traffic
    rows = math.ceil(1000 / launch.config.BLOCK_M)
    columns = math.ceil(1333 / 128)
    loaded = 2 * 776 * (1000 * columns + 1333 * rows)
    stored = 2 * 1000 * 1333
    assert sum(traffic.l2_bytes.values()) == pytest.approx(loaded + stored, rel=0.15)
    assert traffic.read_bytes == 2 * 776 * (1000 + 1333)
    products = 1000 * 1333 * 776
    assert tensor_cycles(execution) * 512 >= products, "512 products per cycle and quarter"


def test_only_an_accumulator_larger_than_the_registers_spills():
    tile = "BLOCK_M=256 BLOCK_N=256"
    spill = explain_spill(*launch_from(f"{PRODUCT} {tile} num_warps=4"))
    assert "512 registers per thread with num_warps 4" in spill
    assert not explain_spill(*launch_from(f"{PRODUCT} BLOCK_M=128 BLOCK_N=256 num_warps=8"))
    assert not explain_spill(*launch_from(f"{TRANSPOSE} {tile} num_warps=1"))


@pytest.mark.parametrize("gpu", GPUS)
def test_every_kernel_has_an_estimate_in_every_type_on_every_gpu_that_it_fits(kernel, gpu):
    for dtype in kernel.dtypes or ("float16", "float32", "float8_e4m3fn"):
        launch = Launch(kernel.family.problem(dtype=dtype), kernel.config(), GPUS[gpu])
        found = estimate_time(kernel, launch)
        if estimate_shared_bytes(kernel, launch) > GPUS[gpu].shared_bytes_per_program:
            assert found is None
            continue
        assert 0 < found < math.inf


def test_a_product_has_no_estimate_on_a_gpu_whose_rate_is_unknown():
    kernel, launch = launch_from(PRODUCT)
    unlisted = replace(launch.gpu, matrix_tflops={})
    assert estimate_time(kernel, replace(launch, gpu=unlisted)) is None
    assert estimate_time(kernel, launch) is not None
