"""What each resource needs, from first principles: bytes over rates, products over units, requests over cycles."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernels import discover, records
from kernels.gpus import GPUS
from kernels.measuring.measurements.counters_measurement import COUNTERS
from kernels.spec import Launch
from visualize.predict.bounds import SUSTAINED, bounds, l2_gbps, l2_pressure
from visualize.predict.coalescing import operations
from visualize.predict.schedule import schedule

H200, A100, T4, L4 = (GPUS[name] for name in ("H200", "A100-80GB", "T4", "L4"))
GROUPED = discover()["matmul.grouped"]
ATLAS = records.shipped(COUNTERS.form)


def launch_of(gpu=H200, kernel=GROUPED, config=None, **problem):
    return Launch(kernel.family.problem(**problem), kernel.config(**(config or {})), gpu)


def found(launch, kernel=GROUPED, operations=(), dram_bytes=0.0, received_bytes=0.0, clock_mhz=None):
    """The bounds by name."""
    several = bounds(kernel, launch, schedule(kernel, launch), operations, dram_bytes, received_bytes, clock_mhz)
    return {bound.name: bound for bound in several}


def counted(kernel, wanted):
    """A launch of the atlas with what it asks of memory as it was compiled, and ncu's counts."""
    declared = discover()[kernel]
    for recording in ATLAS:
        measured, experiment = recording.measured, recording.measured.experiment
        launch = Launch(experiment.problem, experiment.config, GPUS[recording.gpu])
        if experiment.kernel == kernel and wanted([op.op for op in measured.compiled.operations]):
            yield launch, operations(declared, launch, measured.compiled.operations), measured.launch


def test_bytes_take_their_number_over_the_rate():
    """4.8 GB at 4,800 GB/s, and 10.164 GB at 132 × 77 GB/s, take a millisecond."""
    several = found(launch_of(), dram_bytes=4.8e9, received_bytes=132 * 77 * 1e6)
    assert several["DRAM"].ms == pytest.approx(1)
    assert several["L2"].ms == pytest.approx(1)
    assert "4.8 GB at 4,800 GB/s" in several["DRAM"].why
    assert "10,164 GB/s (measured)" in several["L2"].why


def test_the_l2s_rate_is_the_gpus_own_where_it_was_measured_and_else_an_h200s_per_sm():
    assert l2_gbps(GPUS["H100"]) == 132 * 70
    assert l2_gbps(GPUS["A100-80GB"]) == 108 * 77
    assumed = found(launch_of(GPUS["A100-80GB"]), dram_bytes=1e9, received_bytes=108 * 77 * 1e6)["L2"]
    assert (assumed.ms, "8,316 GB/s (assumed)" in assumed.why) == (pytest.approx(1), True)


def test_without_a_known_rate_nothing_is_said_of_dram():
    assert "DRAM" not in found(launch_of(replace(H200, dram_gbps=0)), dram_bytes=1e9)


def test_products_take_their_number_over_the_rate_and_longer_at_a_lower_clock():
    """2 · 8192³ operations at 989.4 TFLOP/s, which are those of 1830 MHz."""
    launch = launch_of(M=8192, N=8192, K=8192)
    whole = found(launch)["arithmetic"]
    assert whole.ms == pytest.approx(2 * 8192**3 / 989.4e12 * 1e3)
    assert "matrix units" in whole.why
    slower = found(launch, clock_mhz=915)["arithmetic"]
    assert slower.ms == pytest.approx(2 * whole.ms)
    assert "915 MHz" in slower.why


@pytest.mark.parametrize(
    ("dtype", "precision", "times"),
    [
        ("float16", "ieee", 1),
        ("bfloat16", "tf32x3", 1),
        ("float8_e4m3fn", "tf32", 0.5),
        ("float8_e5m2", "tf32x3", 0.5),
        ("float32", "tf32", 2),
        ("float32", "tf32_rounded", 2),
        ("float32", "tf32x3", 6),
    ],
)
def test_matrix_units_take_half_as_long_for_half_the_width_and_three_times_as_long_in_three_parts(
    dtype, precision, times
):
    halves = found(launch_of())["arithmetic"].ms
    several = found(launch_of(dtype=dtype, precision=precision))
    assert several["arithmetic"].ms == pytest.approx(times * halves, rel=1e-3)
    assert "matrix units" in several["arithmetic"].why


@pytest.mark.parametrize(("gpu", "units"), [(H200, 128), (L4, 128), (A100, 64), (T4, 64)], ids=lambda x: str(x)[:16])
def test_float32_in_full_takes_the_float32_units(gpu, units):
    """A multiply-add a unit and cycle."""
    arithmetic = found(launch_of(gpu, M=1024, N=1024, K=1024, dtype="float32", precision="ieee"))["arithmetic"]
    assert arithmetic.ms == pytest.approx(1024**3 / (units * gpu.sms) / gpu.clock_mhz / 1e3)
    assert "float32 units" in arithmetic.why


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_t4_has_no_matrix_units_that_triton_uses(dtype):
    several = found(launch_of(T4, dtype=dtype))
    assert several["arithmetic"].ms == pytest.approx(512**3 / (64 * 40) / 1590 / 1e3)
    assert "float32 units" in several["arithmetic"].why


def test_where_no_rate_is_known_nothing_is_said_of_arithmetic_and_the_pressure_is_nought():
    several = found(launch_of(replace(H200, matrix_tflops={})), received_bytes=1e12)
    assert set(several) == {"DRAM", "L2"}
    assert l2_pressure(several.values(), ()) == 0


def test_a_copy_has_no_arithmetic_and_no_tail(kernels):
    kernel = kernels["transpose.tiled"]
    assert set(found(launch_of(kernel=kernel), kernel)) == {"DRAM", "L2"}


@pytest.mark.parametrize(("tiles", "busiest"), [(128, 1), (132, 1), (133, 2), (264, 2), (1, 1)])
def test_the_tail_is_what_the_busiest_sm_computes_beyond_the_average(tiles, busiest):
    """64 × 64 tiles in one column, on 132 SMs."""
    several = found(launch_of(M=64 * tiles, N=64, K=512, config={"BLOCK_N": 64}))
    alone = 2 * 64 * 64 * 512 / (989.4e12 / 132) * 1e3
    assert several["arithmetic"].ms == pytest.approx(tiles / 132 * alone)
    assert several["arithmetic"].ms + several["tail wave"].ms == pytest.approx(busiest * alone)


def test_without_the_compiled_kernel_nothing_is_said_of_load_and_store_units():
    launch, asked, _ = next(counted("matmul.grouped", lambda ops: "async copy" in ops))
    assert "load and store" not in found(launch)
    assert "load and store" in found(launch, operations=asked)


def test_load_and_store_units_take_a_cycle_a_request_or_128_bytes_a_cycle(kernels):
    """A copy, with the requests and sectors that an H200 counted."""
    cases = list(counted("transpose.tiled", lambda ops: ops == ["load", "store"]))
    assert len(cases) > 10
    for launch, asked, said in cases:
        cycles = sum(max(said[f"{op}_requests"], said[f"{op}_sectors"] / 4) for op in ("ld", "st"))
        bound = found(launch, kernels["transpose.tiled"], asked)["load and store"]
        assert bound.ms == pytest.approx(cycles / 132 / 1830e3), launch
        half = found(launch, kernels["transpose.tiled"], asked, clock_mhz=915)["load and store"]
        assert half.ms == pytest.approx(2 * bound.ms)


@pytest.mark.parametrize(("kind", "passes"), [("load", 2), ("async copy", 1)])
def test_operands_staged_through_registers_pass_twice_and_copies_to_shared_memory_once(kind, passes):
    """By ncu's sums over both operands: the more of requests and of bytes, where the same is more for both."""
    equal = 0
    for launch, asked, said in counted("matmul.grouped", lambda ops: ops == [kind, kind, "store"]):
        loads = max(said["ld_requests"], said["ld_sectors"] / 4)
        stores = max(said["st_requests"], said["st_sectors"] / 4)
        cycles = found(launch, operations=asked)["load and store"].ms * 132 * 1830e3
        assert cycles >= 0.999 * (passes * loads + stores), launch
        assert cycles <= 1.001 * (passes * (said["ld_requests"] + said["ld_sectors"] / 4) + stores), launch
        equal += cycles == pytest.approx(passes * loads + stores)
    assert equal > 5


def test_pressure_is_the_l2s_time_over_that_of_what_is_slowest_beside_it():
    launch, asked, _ = next(counted("matmul.grouped", lambda ops: "async copy" in ops and "load" not in ops))
    several = found(launch, operations=asked, received_bytes=1e9)
    arithmetic, units = several["arithmetic"].ms / SUSTAINED, several["load and store"].ms
    assert l2_pressure(several.values(), asked) == pytest.approx(several["L2"].ms / max(arithmetic, units))
    alone = found(launch, received_bytes=1e9)
    assert l2_pressure(alone.values(), ()) == pytest.approx(several["L2"].ms / arithmetic)
    twice = found(launch, operations=asked, received_bytes=2e9)
    assert l2_pressure(twice.values(), asked) == pytest.approx(2 * l2_pressure(several.values(), asked))


def test_where_operands_are_staged_through_registers_the_l2_is_not_pressed():
    launch, asked, _ = next(counted("matmul.grouped", lambda ops: "load" in ops))
    assert l2_pressure(found(launch, operations=asked, received_bytes=1e12).values(), asked) == 0
