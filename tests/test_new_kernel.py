"""Adding a kernel means adding one file: endpoints, schedule and contract tests follow from it."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.xdist_group("grown")

FILE = '''"""B = A.T, one strip of BLOCK_N columns per program, read BLOCK_M rows at a time."""

from dataclasses import dataclass

import numpy as np

from kernels.jit import tl, triton
from kernels.knobs import knob, num_stages, num_warps, powers
from kernels.orders import tile_offsets
from kernels.spec import Kernel, Preset, Tiles
from kernels.transpose.problem import FAMILY, accesses, arguments, extents


@dataclass(frozen=True)
class Config:
    BLOCK_M: int = knob(64, "Tile", "Rows of the strip that a program moves at a time.", choices=powers(8, 256))
    BLOCK_N: int = knob(32, "Tile", "Columns of A in a program's strip.", choices=powers(4, 64))
    num_warps: int = num_warps()
    num_stages: int = num_stages()


@triton.jit
def transpose_column_strip(a, b, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    columns = tile_offsets(tl.program_id(0), BLOCK_N)
    for step in range(0, tl.cdiv(M, BLOCK_M)):
        rows = tile_offsets(step, BLOCK_M)
        inside = (rows[:, None] < M) & (columns[None, :] < N)
        strip = tl.load(a + rows[:, None] * N + columns[None, :], mask=inside)
        tl.store(b + columns[None, :] * M + rows[:, None], strip, mask=inside)


def grid(launch):
    return (extents(launch)["n"],)


def tiles_of(pids, launch):
    steps = extents(launch)["m"]
    program = np.repeat(pids, steps)
    return Tiles(program, np.tile(np.arange(steps), len(pids)), program, np.zeros_like(program), group=program)


KERNEL = Kernel(
    id="transpose.column_strip",
    title="column strips",
    headline="A program walks down a strip of columns.",
    family=FAMILY,
    config=Config,
    jitted=transpose_column_strip,
    grid=grid,
    extents=extents,
    tiles=tiles_of,
    accesses=lambda launch: accesses(transpose_column_strip, launch, stored=("m", "n")),
    arguments=arguments,
    presets=(Preset("Small", {"M": 64, "N": 64}, {}),),
)
'''

KERNEL = "transpose.column_strip"
EXPERIMENT = {"kernel": KERNEL, "problem": {"M": 300, "N": 200}, "config": {"BLOCK_N": 16}}


def add(tree):
    file = tree / "kernels" / "transpose" / "column_strip.py"
    assert not file.exists()
    file.write_text(FILE, encoding="utf-8")


def test_the_endpoints_know_the_kernel(grown_client):
    (entry,) = (one for one in grown_client.predict(api_name="/kernels")["kernels"] if one["id"] == KERNEL)
    assert [knob["name"] for knob in entry["knobs"]] == ["BLOCK_M", "BLOCK_N", "num_warps", "num_stages"]
    assert entry["knobs"][0]["choices"] == [8, 16, 32, 64, 128, 256]
    assert [preset["title"] for preset in entry["presets"]] == ["Small"]
    schedule = grown_client.predict(EXPERIMENT, api_name="/schedule")
    assert schedule["programs"] == -(-200 // 16)
    assert schedule["tiles"][2] == [[0, 2, 0], [1, 2, 0], [2, 2, 0], [3, 2, 0], [4, 2, 0]]
    ops = grown_client.predict(EXPERIMENT, "textbook", api_name="/coalescing")["ops"]
    assert [op["op"] for op in ops] == ["load", "store"]
    assert all(op["file"].endswith("column_strip.py") for op in ops)


def test_the_contract_tests_hold_it(contract):
    outcomes, printed = contract
    own = {name: outcome for name, outcome in outcomes.items() if "column_strip" in name}
    assert set(own.values()) == {"PASSED"}, printed[-3000:]
    assert len(own) > 20, printed
    assert any("test_interpreter_addresses" in name for name in own), printed
