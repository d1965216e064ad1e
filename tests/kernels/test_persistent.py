"""The persistent matmul: one loop over the steps of all tiles, in which half a tile waits for the next one."""

from dataclasses import replace

import pytest

from tests.experiments import experiment_of
from tilescope.declare.accesses import Access
from tilescope.declare.discovery import discover
from tilescope.declare.experiment import Experiment
from tilescope.declare.gpus import GPUS
from tilescope.declare.spec import Launch
from tilescope.results import RunResult

KERNEL = discover()["matmul.persistent"]


@pytest.mark.xdist_group("interpreted")
@pytest.mark.parametrize(
    ("shape", "group_size"),
    [
        ((17 * 128, 8 * 256, 1 * 16), 3),
        pytest.param((17 * 128, 8 * 256, 2 * 16), 1, marks=pytest.mark.all_combinations),
        pytest.param((17 * 128, 8 * 256, 4 * 16), 3, marks=pytest.mark.all_combinations),
        ((17 * 128 - 8, 16 * 256 - 136, 5 * 16 - 8), 1),
    ],
)
def test_each_half_of_each_tile_is_stored(session, shape, group_size):
    """The shapes have 1, 2, 4 and 5 steps. Their 17 rows of tiles divide into groups of one, and not of three.

    On 132 SMs, four programs have two tiles. In the last shape, eight have three, and the last halves are outside C.
    """
    sizes = dict(zip("MNK", shape, strict=True), GROUP_SIZE=group_size)
    text = "matmul.persistent BLOCK_M=128 BLOCK_N=256 BLOCK_K=16 num_warps=8"
    found = session.submit(experiment_of(text, **sizes)).result()
    assert isinstance(found, RunResult), found
    assert found.check.passed
    assert found.check.nonfinite == 0


def launch_of(dtype, block_m, block_n):
    config = KERNEL.config(BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=32, num_warps=8)
    return Launch(KERNEL.family.problem(dtype=dtype), config, GPUS["H200"])


def test_no_more_programs_start_than_there_are_tiles():
    gpu = replace(GPUS["H200"], sms=4)
    problem = KERNEL.family.problem(M=640, N=640, K=64)
    for per_sm, programs in ((1, 4), (2, 8), (8, 25)):
        assert (
            KERNEL.programs(Launch(problem, KERNEL.config(PROGRAMS_PER_SM=per_sm), gpu)) == programs
        )


@pytest.mark.parametrize(
    ("dtype", "tile", "blocks"),
    [
        ("float8_e4m3fn", (128, 256), [256]),
        ("float8_e4m3fn", (256, 256), [128, 128]),
        ("float16", (128, 128), [128]),
        ("float16", (128, 256), [128, 128]),
        ("float32", (128, 64), [64]),
        ("float32", (128, 128), [64, 64]),
    ],
)
def test_a_tile_of_more_than_32_kib_is_stored_in_halves(dtype, tile, blocks):
    stores = [access for access in KERNEL.accesses(launch_of(dtype, *tile)) if access.tensor == "C"]
    assert [access.columns.block for access in stores if isinstance(access, Access)] == blocks


@pytest.mark.xdist_group("compiled")
@pytest.mark.parametrize(("dtype", "tile"), [("float16", (128, 256)), ("float32", (128, 128))])
def test_each_half_is_stored_on_its_declared_line(compile_kernel, dtype, tile):
    """The right half is stored later in 16-bit types, and immediately in float32."""
    launch = launch_of(dtype, *tile)
    compiled = compile_kernel(Experiment(KERNEL.id, launch.problem, launch.config, "H200"))
    assert not compiled.unreadable
