"""The schedule against plain counting, every program, one after the other; and the occupancy by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import FEW_SMS
from tests.experiments import fill_sms
from tilescope.declare.discovery import discover
from tilescope.declare.gpus import GPUS, occupancy
from tilescope.declare.knobs import knobs
from tilescope.declare.spec import Launch
from visualize.predict.schedule import loads, max_programs_per_sm, row_major, schedule

KERNELS = tuple(discover().values())
H200 = GPUS["H200"]


REDUCING = tuple(kernel for kernel in KERNELS if "K" in kernel.problem_knobs())
SIZES = st.sampled_from((1, 2, 9, 64, 129, 448, 577, 1000, 1023))


@st.composite
def launches(draw, kernels=KERNELS, sizes=SIZES, least_block=16, most_block=8192):
    """A kernel, a problem of at most some thousand tiles, and a config."""
    kernel = draw(st.sampled_from(kernels))
    problem = {}
    for name, knob in kernel.problem_knobs().items():
        if name != "precision":
            problem[name] = draw(sizes if name in "MNK" else st.sampled_from(knob.choices))
    config = {}
    for name, knob in knobs(kernel.config).items():
        choices = knob.choices or range(knob.low, knob.high + 1)
        if name.startswith("BLOCK"):
            choices = [c for c in choices if least_block <= c <= most_block]
        config[name] = draw(st.sampled_from(choices))
    if problem["dtype"].startswith("float8") and "BLOCK_K" in config:
        config["BLOCK_K"] = max(32, config["BLOCK_K"])
    gpu = draw(st.sampled_from((H200, GPUS["T4"], FEW_SMS)))
    return kernel, Launch(kernel.family.problem(**problem), kernel.config(**config), gpu)


@given(launches(kernels=REDUCING), st.integers(1, 80))
def test_loads_are_the_distinct_blocks_of_the_first_programs(launch, first):
    planned = schedule(*launch)
    for order in (planned, row_major(planned)):
        tiles = order.tiles
        seen = set()
        expected = []
        length = -(-order.k_blocks // order.slices)
        for program in range(min(order.programs, first)):
            for entry in np.flatnonzero(tiles.program == program):
                m, n, k = (int(x[entry]) for x in (tiles.pid_m, tiles.pid_n, tiles.pid_k))
                for step in range(k * length, min((k + 1) * length, order.k_blocks)):
                    seen |= {("A", m, step), ("B", step, n)}
            expected.append(len(seen))
        assert loads(order, np.arange(1, len(expected) + 1)).tolist() == expected


@given(launches(kernels=REDUCING))
def test_row_major_has_the_same_tiles_row_by_row(launch):
    planned = schedule(*launch)
    tiles = row_major(planned).tiles
    assert np.array_equal(tiles.program, planned.tiles.program)
    assert np.array_equal(tiles.pid_k, planned.tiles.pid_k)
    order = np.lexsort((tiles.program, planned.turn, tiles.pid_k))
    places = tiles.pid_m[order] * planned.extents[1] + tiles.pid_n[order]
    assert places.tolist() == [*range(np.prod(planned.extents))] * planned.slices


@given(launches())
def test_the_entry_of_each_slice_of_each_tile_computes_it(launch):
    planned = schedule(*launch)
    computed = (
        column[planned.entry]
        for column in (planned.tiles.pid_k, planned.tiles.pid_m, planned.tiles.pid_n)
    )
    assert np.array_equal(np.stack([*computed]), np.indices(planned.entry.shape))


@given(launches(), st.integers(1, 4))
def test_waves_are_filled_one_after_the_other(launch, programs_per_sm):
    kernel, launch = launch
    programs_per_sm = min(programs_per_sm, max_programs_per_sm(launch.gpu, launch.config.num_warps))
    planned = fill_sms(schedule(kernel, launch), programs_per_sm)
    resident = launch.gpu.sms * programs_per_sm
    programs = kernel.programs(launch)
    assert planned.programs == programs
    assert planned.resident_programs == resident
    assert planned.waves == math.ceil(programs / resident)
    assert planned.tail_programs == programs % resident


# The GPU, warps, registers and bytes of shared memory of a program; then how many an SM holds, and what limits them.
# A warp has a multiple of 256 registers. 115,712 bytes and 1 KiB per program fill 228 KiB to the last byte.
OCCUPANCIES = """
H200 1 16 0 32 programs
H200 4 97 0 4 registers
H200 4 64 115712 2 shared memory
H200 4 64 115713 1 shared memory
A100-40GB 4 32 166912 1 shared memory
L4 16 40 0 3 warps, registers
T4 4 32 65536 1 shared memory
"""


@pytest.mark.parametrize("row", OCCUPANCIES.strip().splitlines())
def test_an_sm_holds_what_its_scarcest_resource_allows(row):
    gpu, *numbers, limited_by = row.split(" ", 5)
    num_warps, registers, shared_bytes, programs = map(int, numbers)
    held = occupancy(GPUS[gpu], num_warps, registers, shared_bytes)
    assert held.programs_per_sm == programs
    assert ", ".join(held.limited_by) == limited_by
    assert held.occupancy == pytest.approx(programs * num_warps / GPUS[gpu].max_warps_per_sm)


def test_warps_and_program_slots_limit_an_sm_before_a_compile():
    cases = ((H200, 1), (H200, 4), (GPUS["T4"], 4), (GPUS["L4"], 16), (GPUS["T4"], 64))
    assert [max_programs_per_sm(gpu, warps) for gpu, warps in cases] == [32, 16, 8, 3, 1]
