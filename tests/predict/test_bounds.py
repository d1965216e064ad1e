"""The time that each resource needs, from first principles: bytes / rate, products / units, requests / cycle."""

import itertools
from dataclasses import replace

import pytest

from kernels import discover
from kernels.evaluate.declared import count_accesses
from kernels.gpus import GPUS
from kernels.measuring.counters import COUNTERS
from kernels.results import records
from kernels.spec import Launch
from visualize.predict.bounds import SUSTAINED, bounds, l2_gbps, l2_pressure

H200, A100, T4, L4 = (GPUS[name] for name in ("H200", "A100-80GB", "T4", "L4"))
GROUPED = discover()["matmul.grouped"]
TILED = discover()["transpose.tiled"]


def launch_of(gpu=H200, kernel=GROUPED, config=None, **problem):
    return Launch(kernel.family.problem(**problem), kernel.config(**(config or {})), gpu)


def by_name(
    launch, kernel=GROUPED, operations=(), dram_bytes=0.0, received_bytes=0.0, clock_mhz=None
):
    return {
        b.name: b for b in bounds(kernel, launch, operations, dram_bytes, received_bytes, clock_mhz)
    }


def counted(kernel, wanted):
    """Each launch of the atlas with such operations, its operations as compiled, and ncu's counts."""
    for recording in records.shipped(COUNTERS.form):
        measured = recording.measured
        experiment = recording.measured.experiment
        launch = Launch(experiment.problem, experiment.config, GPUS[recording.gpu])
        if experiment.kernel == kernel.id and wanted(
            [op.op for op in measured.compiled.operations]
        ):
            yield (
                launch,
                count_accesses(kernel, launch, measured.compiled.operations),
                measured.launch,
            )


def test_bytes_take_their_number_over_the_rate():
    """4.8 GB at 4,800 GB/s, and 10.164 GB at 132 × 77 GB/s, take a millisecond."""
    found = by_name(launch_of(), dram_bytes=4.8e9, received_bytes=132 * 77 * 1e6)
    assert (found["DRAM"].ms, found["L2"].ms) == pytest.approx((1, 1))
    assert "4.8 GB at 4,800 GB/s" in found["DRAM"].why
    assert "10,164 GB/s (measured)" in found["L2"].why


def test_the_l2s_rate_is_the_gpus_own_if_measured_and_else_an_h200s_per_sm():
    assert l2_gbps(GPUS["H100"]) == 132 * 70
    assumed = by_name(launch_of(A100), dram_bytes=1e9, received_bytes=108 * 77 * 1e6)["L2"]
    assert assumed.ms == pytest.approx(1)
    assert "8,316 GB/s (assumed)" in assumed.why


def test_bounds_without_a_known_rate_are_omitted_and_the_pressure_is_0():
    assert "DRAM" not in by_name(launch_of(replace(H200, dram_gbps=0)), dram_bytes=1e9)
    found = by_name(launch_of(replace(H200, matrix_tflops={})), received_bytes=1e12)
    assert set(found) == {"DRAM", "L2"}
    assert l2_pressure(found.values(), ()) == 0


def test_products_take_their_number_over_the_rate_and_longer_at_a_lower_clock():
    """2 · 8192³ operations at 989.4 TFLOP/s, the rate at 1830 MHz."""
    launch = launch_of(M=8192, N=8192, K=8192)
    whole = by_name(launch)["arithmetic"]
    slower = by_name(launch, clock_mhz=915)["arithmetic"]
    assert whole.ms == pytest.approx(2 * 8192**3 / 989.4e12 * 1e3)
    assert slower.ms == pytest.approx(2 * whole.ms)
    assert "915 MHz" in slower.why


def test_matrix_units_take_half_as_long_for_half_the_width_and_three_times_as_long_in_three_parts():
    halves = by_name(launch_of())["arithmetic"].ms
    dtypes = {"float16": 1, "bfloat16": 1, "float8_e4m3fn": 0.5, "float8_e5m2": 0.5, "float32": 2}
    for (dtype, times), precision in itertools.product(
        dtypes.items(), ("tf32", "tf32_rounded", "tf32x3")
    ):
        bound = by_name(launch_of(dtype=dtype, precision=precision))["arithmetic"]
        parts = 3 if (dtype, precision) == ("float32", "tf32x3") else 1
        assert bound.ms == pytest.approx(times * parts * halves, rel=1e-3), (dtype, precision)
        assert "matrix units" in bound.why


@pytest.mark.parametrize(
    ("gpu", "units", "dtype"),
    [
        (H200, 128, "float32"),
        (L4, 128, "float32"),
        (A100, 64, "float32"),
        (T4, 64, "float32"),
        (T4, 64, "float16"),
    ],
    ids=lambda x: str(x)[:16],
)
def test_float32_in_full_and_all_products_of_a_t4_take_the_float32_units(gpu, units, dtype):
    """One multiply-add per unit and cycle. Triton uses no matrix units of a T4."""
    arithmetic = by_name(launch_of(gpu, M=1024, N=1024, K=1024, dtype=dtype, precision="ieee"))[
        "arithmetic"
    ]
    assert arithmetic.ms == pytest.approx(1024**3 / (units * gpu.sms) / gpu.clock_mhz / 1e3)
    assert "float32 units" in arithmetic.why


def test_a_copy_has_no_arithmetic_and_no_tail():
    assert set(by_name(launch_of(kernel=TILED), TILED)) == {"DRAM", "L2"}


@pytest.mark.parametrize(("tiles", "busiest"), [(128, 1), (132, 1), (133, 2), (264, 2), (1, 1)])
def test_the_tail_is_the_work_of_the_busiest_sm_beyond_the_average(tiles, busiest):
    """64 × 64 tiles in one column, on 132 SMs."""
    found = by_name(launch_of(M=64 * tiles, N=64, K=512, config={"BLOCK_N": 64}))
    alone = 2 * 64 * 64 * 512 / (989.4e12 / 132) * 1e3
    assert found["arithmetic"].ms == pytest.approx(tiles / 132 * alone)
    assert found["arithmetic"].ms + found["tail wave"].ms == pytest.approx(busiest * alone)
    noun = "tile" if busiest == 1 else "tiles"
    assert f"computes {busiest} {noun}, the average" in found["tail wave"].why


def test_load_and_store_units_take_a_cycle_per_request_or_per_128_bytes():
    """A copy, with the requests and sectors that an H200 counted."""
    cases = list(counted(TILED, lambda ops: ops == ["load", "store"]))
    assert len(cases) > 10
    for launch, operations, counts in cases:
        cycles = sum(
            max(counts[f"{op}_requests"], counts[f"{op}_sectors"] / 4) for op in ("ld", "st")
        )
        for clock in (1830, 915):
            bound = by_name(launch, TILED, operations, clock_mhz=clock)["load and store"]
            assert bound.ms == pytest.approx(cycles / 132 / clock / 1e3), launch


@pytest.mark.parametrize(("kind", "passes"), [("load", 2), ("async copy", 1)])
def test_operands_staged_through_registers_pass_twice_and_copies_to_shared_memory_once(
    kind, passes
):
    """By ncu's sums over both operands: the larger of requests and bytes, if the same one is larger for both."""
    equal = 0
    for launch, operations, counts in counted(GROUPED, lambda ops: ops == [kind, kind, "store"]):
        loads = max(counts["ld_requests"], counts["ld_sectors"] / 4)
        stores = max(counts["st_requests"], counts["st_sectors"] / 4)
        cycles = by_name(launch, operations=operations)["load and store"].ms * 132 * 1830e3
        assert cycles >= 0.999 * (passes * loads + stores), launch
        assert cycles <= 1.001 * (
            passes * (counts["ld_requests"] + counts["ld_sectors"] / 4) + stores
        ), launch
        equal += cycles == pytest.approx(passes * loads + stores)
    assert equal > 5


def test_pressure_is_the_l2s_time_over_that_of_the_slowest_other_resource():
    launch, operations, _ = next(
        counted(GROUPED, lambda ops: "async copy" in ops and "load" not in ops)
    )
    found, twice = (
        by_name(launch, operations=operations, received_bytes=amount) for amount in (1e9, 2e9)
    )
    arithmetic = found["arithmetic"].ms / SUSTAINED
    units = found["load and store"].ms
    assert l2_pressure(found.values(), operations) == pytest.approx(
        found["L2"].ms / max(arithmetic, units)
    )
    assert l2_pressure(twice.values(), operations) == pytest.approx(
        2 * l2_pressure(found.values(), operations)
    )
    alone = by_name(launch, received_bytes=1e9)
    assert "load and store" not in alone
    assert l2_pressure(alone.values(), ()) == pytest.approx(found["L2"].ms / arithmetic)
    launch, operations, _ = next(counted(GROUPED, lambda ops: "load" in ops))
    staged = by_name(launch, operations=operations, received_bytes=1e12)
    assert l2_pressure(staged.values(), operations) == 0, "operands are staged through registers"
