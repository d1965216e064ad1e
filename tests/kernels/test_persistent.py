"""The persistent matmul: one loop over the steps of all tiles, in which half a tile waits for the next one."""

from dataclasses import replace

import pytest

from tests.experiments import experiment_of, launch_from
from tests.tables import read_table
from tilescope.declare.gpus import GPUS
from tilescope.declare.spec import Access


@pytest.mark.xdist_group("interpreted")
@pytest.mark.parametrize(
    ("shape", "group_size"),
    [
        ((17 * 128, 3 * 256, 1 * 16), 3),
        pytest.param((17 * 128, 3 * 256, 2 * 16), 1, marks=pytest.mark.all_combinations),
        pytest.param((17 * 128, 3 * 256, 4 * 16), 3, marks=pytest.mark.all_combinations),
        ((17 * 128 - 8, 6 * 256 - 136, 5 * 16 - 8), 1),
    ],
)
def test_each_half_of_each_tile_is_stored(session, shape, group_size):
    """The shapes have 1, 2, 4 and 5 steps. Their 17 rows of tiles divide into groups of one, and not of three.

    On the 48 SMs of a GB10, three programs have two tiles. In the last shape, six have three, and the last halves are
    outside C.
    """
    sizes = dict(zip("MNK", shape, strict=True), GROUP_SIZE=group_size)
    text = "matmul.persistent gpu=GB10 BLOCK_M=128 BLOCK_N=256 BLOCK_K=16 num_warps=8"
    result = session.submit(experiment_of(text, **sizes), interprets_any_gpu=True).result()
    assert result.check.passed, result


TILE = "matmul.persistent gpu=H200 dtype={} BLOCK_M={} BLOCK_N={} BLOCK_K=32 num_warps=8"


def test_no_more_programs_start_than_there_are_tiles():
    gpu = replace(GPUS["H200"], sms=4)
    for per_sm, programs in ((1, 4), (2, 8), (8, 25)):
        text = f"matmul.persistent M=640 N=640 K=64 PROGRAMS_PER_SM={per_sm}"
        kernel, launch = launch_from(text)
        assert kernel.programs(replace(launch, gpu=gpu)) == programs


HALVES = """
float8_e4m3fn | 128 | 256 | 1
float8_e4m3fn | 256 | 256 | 2
float16 | 128 | 128 | 1
float16 | 128 | 256 | 2
float32 | 128 | 64 | 1
float32 | 128 | 128 | 2
"""


@pytest.mark.parametrize(("dtype", "rows", "columns", "halves"), read_table(HALVES))
def test_a_tile_of_more_than_32_kib_is_stored_in_halves(dtype, rows, columns, halves):
    kernel, launch = launch_from(TILE.format(dtype, rows, columns))
    stores = [access for access in kernel.accesses(launch) if access.tensor == "C"]
    blocks = [access.columns.block for access in stores if isinstance(access, Access)]
    assert blocks == [columns // halves] * halves


@pytest.mark.xdist_group("compiled")
@pytest.mark.parametrize(("dtype", "columns"), [("float16", 256), ("float32", 128)])
def test_each_half_is_stored_on_its_declared_line(compile_kernel, dtype, columns):
    """The right half is stored later in 16-bit types, and immediately in float32."""
    assert not compile_kernel(experiment_of(TILE.format(dtype, 128, columns))).unreadable
