"""The time that the L2 and the units of the SMs need: bytes / rate, products / units, requests / cycle."""

import itertools
from dataclasses import replace

import pytest

from tilescope.declare.discovery import discover
from tilescope.declare.gpus import GPUS
from tilescope.declare.spec import Launch
from tilescope.evaluate.declared import count_accesses
from tilescope.measure.counters import COUNTERS
from tilescope.results import records
from tilescope.timing.l2 import SUSTAINED, l2_gbps
from visualize.predict.bounds import pressure, time_resources

H200, A100, T4, L4 = (GPUS[name] for name in ("H200", "A100-80GB", "T4", "L4"))
GROUPED = discover()["matmul.grouped"]
TILED = discover()["transpose.tiled"]


def launch_of(gpu=H200, kernel=GROUPED, config=None, **problem):
    return Launch(kernel.family.problem(**problem), kernel.config(**(config or {})), gpu)


def times_of(launch, kernel=GROUPED, operations=(), received_bytes=0.0, clock_mhz=None):
    return time_resources(kernel, launch, operations, received_bytes, clock_mhz)


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


def test_the_l2s_rate_is_the_gpus_own_if_measured_and_else_an_h200s_per_sm():
    """Bytes at 132 × 77 GB/s, and at 108 × 77 GB/s."""
    assert l2_gbps(GPUS["H100"]) == 132 * 70
    for gpu in (H200, A100):
        received = gpu.sms * 77 * 1e6
        assert times_of(launch_of(gpu), received_bytes=received)["L2"] == pytest.approx(1)


def test_without_a_known_rate_of_products_the_pressure_is_0():
    found = times_of(launch_of(replace(H200, matrix_tflops={})), received_bytes=1e12)
    assert set(found) == {"L2"}
    assert pressure(found, ()) == 0


def test_products_take_their_number_over_the_rate_and_longer_at_a_lower_clock():
    """2 · 8192³ operations at 989.4 TFLOP/s, the rate at 1830 MHz."""
    launch = launch_of(M=8192, N=8192, K=8192)
    whole_ms = times_of(launch)["arithmetic"]
    assert whole_ms == pytest.approx(2 * 8192**3 / 989.4e12 * 1e3)
    assert times_of(launch, clock_mhz=915)["arithmetic"] == pytest.approx(2 * whole_ms)


def test_matrix_units_take_half_as_long_for_half_the_width_and_three_times_as_long_in_three_parts():
    halves = times_of(launch_of())["arithmetic"]
    dtypes = {"float16": 1, "bfloat16": 1, "float8_e4m3fn": 0.5, "float8_e5m2": 0.5, "float32": 2}
    for (dtype, times), precision in itertools.product(
        dtypes.items(), ("tf32", "tf32_rounded", "tf32x3")
    ):
        ms = times_of(launch_of(dtype=dtype, precision=precision))["arithmetic"]
        parts = 3 if (dtype, precision) == ("float32", "tf32x3") else 1
        assert ms == pytest.approx(times * parts * halves, rel=1e-3), (dtype, precision)


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
    problem = {"M": 1024, "N": 1024, "K": 1024, "dtype": dtype, "precision": "ieee"}
    ms = times_of(launch_of(gpu, **problem))["arithmetic"]
    assert ms == pytest.approx(1024**3 / (units * gpu.sms) / gpu.clock_mhz / 1e3)


def test_a_copy_has_no_arithmetic():
    assert set(times_of(launch_of(kernel=TILED), TILED)) == {"L2"}


def test_load_and_store_units_take_a_cycle_per_request_or_per_128_bytes():
    """A copy, with the requests and sectors that an H200 counted."""
    cases = list(counted(TILED, lambda ops: ops == ["load", "store"]))
    assert len(cases) > 10
    for launch, operations, counts in cases:
        cycles = sum(
            max(counts[f"{op}_requests"], counts[f"{op}_sectors"] / 4) for op in ("ld", "st")
        )
        for clock in (1830, 915):
            ms = times_of(launch, TILED, operations, clock_mhz=clock)["load and store"]
            assert ms == pytest.approx(cycles / 132 / clock / 1e3), launch


@pytest.mark.parametrize(("kind", "passes"), [("load", 2), ("async copy", 1)])
def test_operands_staged_through_registers_pass_twice_and_copies_to_shared_memory_once(
    kind, passes
):
    """By ncu's sums over both operands: the larger of requests and bytes, if the same one is larger for both."""
    equal = 0
    for launch, operations, counts in counted(GROUPED, lambda ops: ops == [kind, kind, "store"]):
        loads = max(counts["ld_requests"], counts["ld_sectors"] / 4)
        stores = max(counts["st_requests"], counts["st_sectors"] / 4)
        cycles = times_of(launch, operations=operations)["load and store"] * 132 * 1830e3
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
        times_of(launch, operations=operations, received_bytes=amount) for amount in (1e9, 2e9)
    )
    arithmetic = found["arithmetic"] / SUSTAINED
    units = found["load and store"]
    assert pressure(found, operations) == pytest.approx(found["L2"] / max(arithmetic, units))
    assert pressure(twice, operations) == pytest.approx(2 * pressure(found, operations))
    alone = times_of(launch, received_bytes=1e9)
    assert "load and store" not in alone
    assert pressure(alone, ()) == pytest.approx(found["L2"] / arithmetic)
    launch, operations, _ = next(counted(GROUPED, lambda ops: "load" in ops))
    staged = times_of(launch, operations=operations, received_bytes=1e12)
    assert pressure(staged, operations) == 0, "operands are staged through registers"
