"""The persistent matmul: one loop over the steps of all tiles, in which half a tile waits for the next one."""

from __future__ import annotations

from typing import Any

import pytest

from kernels import discover
from kernels.accesses import Access
from kernels.experiment import from_json
from kernels.gpus import GPUS
from kernels.results import RunResult
from kernels.runner.session import Session
from kernels.spec import Launch

KERNEL = discover()["matmul.persistent"]
WIDE = {"BLOCK_M": 128, "BLOCK_N": 256, "num_warps": 8}


@pytest.mark.xdist_group("interpreted")
@pytest.mark.parametrize("steps", range(1, 7))
@pytest.mark.parametrize("group_size", [1, 3])
def test_each_half_of_each_tile_is_stored_however_few_steps_a_tile_has(
    session: Session, steps: int, group_size: int
) -> None:
    """On 132 SMs four programs have a second tile; 17 rows of tiles are groups of one, and no groups of three."""
    problem = {"M": 17 * 128, "N": 8 * 256, "K": 16 * steps}
    config = {**WIDE, "BLOCK_K": 16, "GROUP_SIZE": group_size}
    payload = {"kernel": KERNEL.id, "problem": problem, "config": config}
    found = session.submit(from_json(payload, discover())).result()
    assert isinstance(found, RunResult), found
    assert found.check.passed
    assert found.check.nonfinite == 0


@pytest.mark.parametrize(
    ("dtype", "tile", "blocks", "is_later"),
    [
        ("float8_e4m3fn", (128, 256), [256], False),
        ("float8_e4m3fn", (256, 256), [128, 128], True),
        ("float16", (128, 128), [128], False),
        ("float16", (128, 256), [128, 128], True),
        ("float32", (128, 64), [64], False),
        ("float32", (128, 128), [64, 64], False),
    ],
)
def test_a_tile_of_more_than_32_kib_is_stored_in_halves(
    dtype: str, tile: tuple[int, int], blocks: list[int], is_later: bool
) -> None:
    block_m, block_n = tile
    launch: Launch[Any, Any] = Launch(
        KERNEL.family.problem(dtype=dtype), KERNEL.config(BLOCK_M=block_m, BLOCK_N=block_n), GPUS["H200"]
    )
    stores = [one for one in KERNEL.accesses(launch) if isinstance(one, Access) and one.tensor == "C"]
    assert [one.columns.block for one in stores] == blocks
    lines = [one.source[1] for one in stores]
    if len(lines) == 2:
        assert (lines[1] - lines[0] > 5) == is_later, "the line of a half that waits is below the others"
