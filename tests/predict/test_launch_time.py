"""The model that orders a sweep, against recorded launches and between configs; and the random search next to it."""

import math
from dataclasses import replace
from itertools import groupby, permutations

import numpy as np
import pytest

from kernels import discover
from kernels.compiling.compile_cost import explain_spill
from kernels.experiment import from_json
from kernels.gpus import GPUS
from kernels.instructions import CompiledFacts
from kernels.knobs import ConfigError
from kernels.measuring.group_sizes import GROUP_SIZES
from kernels.results import records
from kernels.spec import Launch
from visualize.predict.launch_time import expected_best, predict_time

H200 = GPUS["H200"]
KERNEL = discover()["matmul.grouped"]


def launch_of(gpu=H200, kernel="matmul.grouped", problem=None, **config):
    problem = problem or {"M": 4096, "N": 4096, "K": 4096}
    experiment = from_json({"kernel": kernel, "problem": problem, "config": config})
    return Launch(experiment.problem, experiment.config, gpu)


def facts(registers, shared_bytes, spilled_bytes=0):
    return CompiledFacts(
        registers, spilled_bytes, shared_bytes, (), (), "Operations were not recorded."
    )


def recorded():
    """(launch, compiled, ms) of float16 products, by problem with at least five tiles."""
    found = []
    for recording in records.shipped(GROUP_SIZES.form):
        study = recording.measured
        if (
            recording.gpu != "H200"
            or study.experiment.kernel != KERNEL.id
            or study.experiment.problem.dtype != "float16"
        ):
            continue
        config = study.experiment.config
        row = next(row for row in study.rows if row.group_size == config.GROUP_SIZE)
        launch = Launch(study.experiment.problem, config, H200)
        found.append(
            (launch, facts(row.registers, row.shared_bytes), float(np.median(row.times_ms)))
        )
    by_problem = groupby(
        sorted(found, key=lambda row: repr(row[0].problem)), key=lambda row: row[0].problem
    )
    return [rows for _, group in by_problem if len(rows := list(group)) >= 5]


@pytest.mark.parametrize("is_compiled", [False, True], ids=["before a compile", "compiled"])
def test_the_predicted_tile_is_within_1_percent_of_the_fastest_recorded_one(is_compiled):
    groups = recorded()
    assert len(groups) == 14
    for group in groups:
        times = [ms for _, _, ms in group]
        named = [
            predict_time(KERNEL, launch, compiled if is_compiled else None).ms
            for launch, compiled, _ in group
        ]
        assert times[int(np.argmin(named))] <= 1.01 * min(times), group[0][0].problem


def test_times_of_launches_with_asynchronous_copies_are_within_35_percent_and_half_of_them_within_10():
    """K of 3,000 is no multiple of 16 bytes' elements: its loads are staged, and no facts of that are recorded."""
    off = [
        predict_time(KERNEL, launch, compiled).ms / ms
        for group in recorded()
        for launch, compiled, ms in group
        if launch.problem.K % 16 == 0
    ]
    assert len(off) == 65
    assert max(abs(math.log(ratio)) for ratio in off) < math.log(1.35)
    assert np.median(np.abs(np.log(off))) < math.log(1.1)


def by_resource(compiled=None, **config):
    return dict(predict_time(KERNEL, launch_of(**config), compiled).by_resource)


def test_fewer_stages_few_warps_or_rows_and_spilled_registers_cost_time():
    latency = [by_resource(BLOCK_K=32, num_stages=stages)["latency"] for stages in (1, 2, 3, 4)]
    assert latency == sorted(latency, reverse=True)
    whole = by_resource(BLOCK_M=64, BLOCK_N=128, num_warps=4)["arithmetic"]
    for config in ({"BLOCK_M": 64, "num_warps": 2}, {"BLOCK_M": 32}):
        assert by_resource(BLOCK_N=128, **config)["arithmetic"] > 1.5 * whole, (
            "Hopper multiplies 4 warps, 64 rows"
        )
    launch = launch_of(BLOCK_M=128, BLOCK_N=128)
    plain, spilled = (
        predict_time(KERNEL, launch, facts(255, 49152, amount)) for amount in (0, 296)
    )
    assert spilled.resource == "spills"
    assert spilled.ms > 2 * plain.ms
    assert predict_time(KERNEL, launch, facts(64, H200.shared_bytes_per_program + 1)) is None, (
        "fits on no SM"
    )


def test_only_an_accumulator_larger_than_the_registers_spills():
    spill = explain_spill(KERNEL, launch_of(BLOCK_M=256, BLOCK_N=256, num_warps=4))
    assert "512 registers per thread with num_warps 4" in spill
    assert not explain_spill(KERNEL, launch_of(BLOCK_M=128, BLOCK_N=256, num_warps=8))
    assert not explain_spill(
        discover()["transpose.tiled"], transposed(BLOCK_M=256, BLOCK_N=256, num_warps=1)
    )


def transposed(**config):
    return launch_of(
        kernel="transpose.tiled", problem={"M": 8192, "N": 8192, "dtype": "float32"}, **config
    )


@pytest.mark.parametrize("gpu", ["H200", "A100-80GB", "T4", "B200"])
def test_every_kernel_has_a_time_on_every_gpu(kernel, gpu):
    """Before a compile, three defaults do not fit a T4."""
    launch = Launch(kernel.family.problem(), kernel.config(), GPUS[gpu])
    for compiled in (None, facts(64, 16384)):
        found = predict_time(kernel, launch, compiled)
        if compiled is None and gpu == "T4" and found is None:
            assert kernel.id in ("matmul.persistent", "matmul.stream_k", "matmul.fused_add_relu")
            continue
        times = dict(found.by_resource)
        assert all(ms >= 0 and math.isfinite(ms) for ms in times.values())
        assert found.ms >= times[found.resource] == max(times.values()) > 0


def test_too_many_tiles_to_schedule_are_refused_once_the_config_is_compiled():
    launch = launch_of(problem={"M": 16384, "N": 16384, "K": 64}, BLOCK_M=16, BLOCK_N=16)
    assert predict_time(KERNEL, launch, None).ms > 0
    many = replace(launch, config=replace(launch.config, BLOCK_M=4, BLOCK_N=4))
    with pytest.raises(ConfigError, match="too many to schedule"):
        predict_time(KERNEL, many, facts(64, 16384))


@pytest.mark.parametrize(
    "times", [[], [5.0], [2.0, 2.0], [3.0, 1.0, 2.0], [4.0, 1.0, 1.0, 9.0, 2.5]]
)
def test_the_expected_best_of_a_random_search_is_the_mean_over_all_orders(times):
    mean = np.minimum.accumulate(np.array(list(permutations(times))), axis=1).mean(axis=0)
    assert expected_best(np.array(times)) == pytest.approx(mean)


def test_the_expected_best_of_thousands_falls_from_the_mean_to_the_fastest():
    times = np.random.default_rng(0).lognormal(0, 1, 4096)
    found = expected_best(times)
    assert (found[0], found[-1]) == pytest.approx((times.mean(), times.min()))
    assert (np.diff(found) <= 1e-12).all()
