"""The time that the L2 and the units of the SMs need: bytes / rate, products / units, requests / cycle."""

import itertools
from dataclasses import replace

import pytest

from tests.experiments import launch_from
from tests.tables import read_table
from tilescope.declare.experiment import launch_of
from tilescope.declare.gpus import GPUS
from tilescope.evaluate.declared import count_accesses
from tilescope.measure.counters import COUNTERS
from tilescope.results import records
from tilescope.timing.l2 import SUSTAINED, l2_gbps
from visualize.predict.reuse import pressure, time_resources


def times_of(text="", received_bytes=0.0, clock_mhz=None):
    kernel, launch = launch_from(f"matmul.grouped {text}")
    return time_resources(kernel, launch, (), received_bytes, clock_mhz)


def counted(kernel_id, wanted):
    """Each launch of the atlas with such operations, its operations as compiled, and ncu's counts."""
    for recording in records.shipped(COUNTERS.form):
        measured = recording.measured
        operations = measured.compiled.operations
        if measured.experiment.kernel == kernel_id and wanted([op.op for op in operations]):
            launch = launch_of(measured.experiment, GPUS[recording.gpu])
            yield launch, count_accesses(*launch, operations), measured.launch


def cycles_of(counts, op):
    return max(counts[f"{op}_requests"], counts[f"{op}_sectors"] / 4)


def test_the_l2s_rate_is_the_gpus_own_if_measured_and_else_an_h200s_per_sm():
    """Bytes at 132 × 77 GB/s, and at 108 × 77 GB/s."""
    assert l2_gbps(GPUS["H100"]) == 132 * 70
    for gpu in ("H200", "A100-80GB"):
        received = GPUS[gpu].sms * 77 * 1e6
        assert times_of(f"gpu={gpu}", received)["L2"] == pytest.approx(1)


def test_without_a_known_rate_of_products_the_pressure_is_0():
    kernel, launch = launch_from("matmul.grouped")
    gpu = replace(launch.gpu, matrix_tflops={})
    found = time_resources(kernel, replace(launch, gpu=gpu), (), 1e12)
    assert set(found) == {"L2"}
    assert pressure(found, ()) == 0


def test_products_take_their_number_over_the_rate_and_longer_at_a_lower_clock():
    """2 · 8192³ operations at 989.4 TFLOP/s, the rate at 1830 MHz."""
    text = "M=8192 N=8192 K=8192"
    whole_ms = times_of(text)["arithmetic"]
    assert whole_ms == pytest.approx(2 * 8192**3 / 989.4e12 * 1e3)
    assert times_of(text, clock_mhz=915)["arithmetic"] == pytest.approx(2 * whole_ms)


def test_matrix_units_take_half_as_long_for_half_the_width_and_three_times_as_long_in_three_parts():
    halves = times_of()["arithmetic"]
    dtypes = {"float16": 1, "bfloat16": 1, "float8_e4m3fn": 0.5, "float8_e5m2": 0.5, "float32": 2}
    for (dtype, times), precision in itertools.product(
        dtypes.items(), ("tf32", "tf32_rounded", "tf32x3")
    ):
        ms = times_of(f"dtype={dtype} precision={precision}")["arithmetic"]
        parts = 3 if (dtype, precision) == ("float32", "tf32x3") else 1
        assert ms == pytest.approx(times * parts * halves, rel=1e-3), (dtype, precision)


FLOAT32_UNITS = """
H200 | 128 | float32
L4 | 128 | float32
A100-80GB | 64 | float32
T4 | 64 | float32
T4 | 64 | float16
"""


@pytest.mark.parametrize(("gpu", "units", "dtype"), read_table(FLOAT32_UNITS))
def test_float32_in_full_and_all_products_of_a_t4_take_the_float32_units(gpu, units, dtype):
    """One multiply-add per unit and cycle. Triton uses no matrix units of a T4."""
    ms = times_of(f"M=1024 N=1024 K=1024 dtype={dtype} precision=ieee gpu={gpu}")["arithmetic"]
    assert ms == pytest.approx(1024**3 / (units * GPUS[gpu].sms) / GPUS[gpu].clock_mhz / 1e3)


def test_a_copy_has_no_arithmetic():
    assert set(time_resources(*launch_from("transpose.tiled"), (), 0.0)) == {"L2"}


def test_load_and_store_units_take_a_cycle_per_request_or_per_128_bytes():
    """A copy, with the requests and sectors that an H200 counted."""
    cases = list(counted("transpose.tiled", lambda ops: ops == ["load", "store"]))
    assert len(cases) > 10
    for launch, operations, counts in cases:
        cycles = cycles_of(counts, "ld") + cycles_of(counts, "st")
        for clock in (1830, 915):
            ms = time_resources(*launch, operations, 0.0, clock)["load and store"]
            assert ms == pytest.approx(cycles / 132 / clock / 1e3), launch


@pytest.mark.parametrize(("kind", "passes"), [("load", 2), ("async copy", 1)])
def test_operands_staged_through_registers_pass_twice_and_copies_to_shared_memory_once(
    kind, passes
):
    """By ncu's sums over both operands: the larger of requests and bytes, if the same one is larger for both."""
    equal = 0
    for launch, operations, counts in counted(
        "matmul.grouped", lambda ops: ops == [kind, kind, "store"]
    ):
        loads = cycles_of(counts, "ld")
        stores = cycles_of(counts, "st")
        cycles = time_resources(*launch, operations, 0.0)["load and store"] * 132 * 1830e3
        assert cycles >= 0.999 * (passes * loads + stores), launch
        assert cycles <= 1.001 * (
            passes * (counts["ld_requests"] + counts["ld_sectors"] / 4) + stores
        ), launch
        equal += cycles == pytest.approx(passes * loads + stores)
    assert equal > 5


def test_pressure_is_the_l2s_time_over_that_of_the_slowest_other_resource():
    launch, operations, _ = next(
        counted("matmul.grouped", lambda ops: "async copy" in ops and "load" not in ops)
    )
    found, twice = (time_resources(*launch, operations, amount) for amount in (1e9, 2e9))
    arithmetic = found["arithmetic"] / SUSTAINED
    units = found["load and store"]
    assert pressure(found, operations) == pytest.approx(found["L2"] / max(arithmetic, units))
    assert pressure(twice, operations) == pytest.approx(2 * pressure(found, operations))
    alone = time_resources(*launch, (), 1e9)
    assert "load and store" not in alone
    assert pressure(alone, ()) == pytest.approx(found["L2"] / arithmetic)
    launch, operations, _ = next(counted("matmul.grouped", lambda ops: "load" in ops))
    staged = time_resources(*launch, operations, 1e12)
    assert pressure(staged, operations) == 0, "operands are staged through registers"
