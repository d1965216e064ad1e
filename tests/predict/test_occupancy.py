"""What a SM holds, by hand."""

from __future__ import annotations

import pytest

from kernels.gpus import GPUS
from visualize.predict.occupancy import occupancy


@pytest.mark.parametrize(
    ("gpu", "num_warps", "registers", "shared_bytes", "programs", "limited_by"),
    [
        ("H200", 4, 32, 0, 16, ("warps", "registers")),
        ("H200", 1, 16, 0, 32, ("programs",)),
        ("H200", 4, 114, 36864, 4, ("registers",)),
        ("H200", 4, 97, 0, 4, ("registers",)),  # a warp has a multiple of 256: 104 per thread
        ("H200", 4, 64, 100_000, 2, ("shared memory",)),
        ("H200", 8, 255, 0, 1, ("registers",)),
        ("A100-40GB", 4, 32, 163 * 1024, 1, ("shared memory",)),
        ("L4", 16, 40, 0, 3, ("warps", "registers")),
        ("T4", 4, 32, 65536, 1, ("shared memory",)),
    ],
)
def test_a_sm_holds_what_its_scarcest_resource_allows(gpu, num_warps, registers, shared_bytes, programs, limited_by):
    held = occupancy(GPUS[gpu], num_warps, registers, shared_bytes)
    assert (held.programs_per_sm, held.limited_by) == (programs, limited_by)
    assert held.occupancy == pytest.approx(programs * num_warps / GPUS[gpu].max_warps_per_sm)


def test_the_last_program_that_fits_fits_exactly():
    gpu = GPUS["H200"]
    room = gpu.shared_bytes_per_sm // 2 - 1024
    assert occupancy(gpu, 1, 16, room).limits["shared memory"] == 2
    assert occupancy(gpu, 1, 16, room + 1).limits["shared memory"] == 1
