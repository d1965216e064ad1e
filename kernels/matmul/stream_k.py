"""C = A @ B, one program per SM: whole tiles in full waves, and the tiles of the last, partial wave in slices of K."""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from kernels.matmul import padding, persistent, tile
from kernels.matmul import problem as family
from kernels.matmul.problem import Problem, block_k, block_m, block_n, deal, group_size, tiles_at
from kernels.orders import grouped, slice_of_k, tile_start
from tilescope.declare.jit import memory_lines, on_arrays, tl, triton
from tilescope.declare.knobs import knob, num_stages, num_warps, powers
from tilescope.declare.spec import (
    Access,
    Axis,
    FlatAccess,
    Launch,
    Tensors,
    TensorSpec,
    Tiles,
    preset,
)

# Times in µs for choosing the number of slices, measured on an H100: a million products of 2-byte elements; storing a
# million partial sums; the fixed cost of a part that is added and stored; and adding a million partial sums.
_PRODUCTS_US = 0.36
_STORE_US = 76.0
_FIRST_PART_US = 3.0
_ADD_US = 37.0

# Maximum number of slices per tile. A program polls all of their flags with one instruction.
_MOST_SLICES = 16


@dataclass(frozen=True)
class Config:
    BLOCK_M: int = block_m(128)
    BLOCK_N: int = block_n(128, low=32)
    BLOCK_K: int = block_k(64)
    GROUP_SIZE: int = group_size(8)
    SPLIT_K: int = knob(
        0, "Tile", "Maximum slices per tile of the last wave. 0: the number with the shortest estimated time.",
        choices=(0, *powers(1, _MOST_SLICES)),
    )  # fmt: skip
    num_warps: int = num_warps()
    num_stages: int = num_stages()
    PAD: str = padding.pad()


@triton.jit
def matmul_stream_k(
    a,
    b,
    c,
    partials,
    flags,
    num_tiles,
    division,
    M,
    N,
    K,
    a_strides,
    b_strides,
    c_strides,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    PRECISION: tl.constexpr,
    USE_TMA: tl.constexpr,
    STORE_TMA: tl.constexpr,
    WHOLE_GROUPS: tl.constexpr,
    IN_HALVES: tl.constexpr,
    RIGHT_LATER: tl.constexpr,
    A_TRANSPOSED: tl.constexpr,
    B_TRANSPOSED: tl.constexpr,
    HAS_SLICES: tl.constexpr,
    MOST_SLICES: tl.constexpr,
    ADD_STAGES: tl.constexpr,
):
    slices, first_adder, adders = division
    num_pid_m, num_pid_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    pid, tail = tl.program_id(0), num_pid_m * num_pid_n - num_tiles
    SIDES: tl.constexpr = 2 if IN_HALVES else 1
    if HAS_SLICES and pid < tail * slices:
        pid_m, pid_n = grouped(
            num_tiles + pid % tail, num_pid_m, num_pid_n, GROUP_SIZE, WHOLE_GROUPS
        )
        first_step, end_step = slice_of_k(pid // tail, tl.cdiv(K, BLOCK_K), slices)
        if USE_TMA:
            row, column = tile_start(pid_m, BLOCK_M), tile_start(pid_n, BLOCK_N)
            partial = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            for step in range(first_step, end_step):
                a_tile, b_tile = tile.load_tma(
                    a, b, row, column, tile_start(step, BLOCK_K), A_TRANSPOSED, B_TRANSPOSED
                )
                partial = tile.add_product(a_tile, b_tile, partial, PRECISION)
        else:
            partial = tile.multiply(
                a, b, pid_m, pid_n, (first_step, end_step), (M, N, K), a_strides, b_strides,
                (BLOCK_M, BLOCK_N, BLOCK_K), PRECISION,
            )  # fmt: skip
        elements = pid * (BLOCK_M * BLOCK_N) + tl.arange(0, BLOCK_M * BLOCK_N)
        tl.store(partials + elements, tile.to_run(partial, BLOCK_M, BLOCK_N))
        # Only after a barrier does one thread's release cover the stores of all threads.
        tl.debug_barrier()
        tl.atomic_xchg(flags + pid * SIDES + tl.arange(0, SIDES), 1, sem="release")
    persistent.matmul_persistent(
        a, b, c, num_tiles, M, N, K, a_strides, b_strides, c_strides, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_SIZE, PRECISION,
        USE_TMA, STORE_TMA, WHOLE_GROUPS, IN_HALVES, RIGHT_LATER, A_TRANSPOSED, B_TRANSPOSED,
    )  # fmt: skip
    # No program waits for a higher pid, so a launch can't hang, even if only a few of its programs run at a time.
    adder = pid - first_adder
    if HAS_SLICES and (adder >= 0) & (adder < adders):
        SIZE: tl.constexpr = BLOCK_M * BLOCK_N // SIDES
        for item in range(adder, tail * SIDES, adders):
            number = tl.arange(0, MOST_SLICES)
            part_flags = flags + (number * tail + item % tail) * SIDES + item // tail
            # The exchange that finds a flag raised also lowers it for the next launch.
            raised = tl.zeros((MOST_SLICES,), tl.int32)
            while tl.sum(raised) < slices:
                lowered = tl.atomic_xchg(part_flags, 0, mask=number < slices, sem="acquire")
                raised += tl.where(number < slices, lowered, 0)
        total = tl.zeros((SIZE,), tl.float32)
        # A single loop over the parts of all items keeps loads in flight from one item to the next.
        for i in tl.range(0, tl.cdiv(tail * SIDES - adder, adders) * slices, num_stages=ADD_STAGES):
            item, number = adder + i // slices * adders, i % slices
            place, side = item % tail, item // tail
            part = (number * tail + place) * SIDES + side
            total += tl.load(partials + part * SIZE + tl.arange(0, SIZE))
            if number == slices - 1:
                pid_m, pid_n = grouped(
                    num_tiles + place, num_pid_m, num_pid_n, GROUP_SIZE, WHOLE_GROUPS
                )
                block = tile.from_run(total, BLOCK_M, BLOCK_N // SIDES)
                if STORE_TMA:
                    row, column = tile_start(pid_m, BLOCK_M), tile_start(pid_n, BLOCK_N)
                    if side == 0:
                        persistent.store_left(c, block.to(c.dtype), row, column)
                    else:
                        persistent.store_right(c, block.to(c.dtype), row, column, BLOCK_N)
                else:
                    tile.store(c, block, pid_m, pid_n, M, N, c_strides, BLOCK_M, BLOCK_N)
                total = tl.zeros((SIZE,), tl.float32)


class Division(NamedTuple):
    """How a launch's tiles are divided among its programs.

    Attributes:
        whole: number of tiles that one program computes alone: the tiles of full waves, or all tiles if none is split.
        tail: number of tiles of the last wave that are split into slices; 0 if none is.
        slices: number of slices per tile of the tail; 1 without a tail. Program
            `slice * tail + tile` computes slice `slice` of the tail's tile `tile`.
        first_adder, adders: the programs that add partial tiles.
        sides: number of parts of a tile that are added and stored one by one: 2 for halves.
        reduction_us: the estimated time that storing and adding partial tiles adds to the launch.
    """

    programs: int
    whole: int
    tail: int
    slices: int
    first_adder: int
    adders: int
    sides: int
    reduction_us: float = 0.0

    @property
    def partials(self) -> int:
        """The number of partial tiles."""
        return self.tail * self.slices


def divide_tiles(launch: Launch[Problem]) -> Division:
    """Choose the number of slices: the largest that SPLIT_K allows or, if it is 0, the one with the shortest time.

    Programs without a slice can add partial tiles while the others compute theirs. If that is estimated to take longer,
    or if every program has a slice, the program with a tile's last slice adds that tile's parts.
    """
    extents = family.extents(launch)
    config = launch.config
    sms = launch.gpu.sms
    tiles = int(extents["m"] * extents["n"])
    steps = int(extents["k"])
    tail = tiles % sms
    sides = 2 if persistent.is_in_halves(launch) else 1
    millions = int(config.BLOCK_M * config.BLOCK_N) / 1e6
    step_us = _PRODUCTS_US * millions * config.BLOCK_K * launch.element_bytes / 2
    chosen = Division(min(tiles, sms), tiles, 0, 1, 0, 0, sides)
    best_us = steps * step_us
    most = min(sms // tail, steps, config.SPLIT_K or _MOST_SLICES) if tail else 1
    for split in range(2, most + 1):
        length = -(-steps // split)
        slices = -(-steps // length)  # without empty slices
        used = tail * slices
        programs = sms if tiles > sms else tail * slices
        slice_us = length * step_us + _STORE_US * millions
        idle = programs - used
        add_us = _FIRST_PART_US + _ADD_US * slices * millions / sides
        by_others_us = max(slice_us, -(-tail * sides // idle) * add_us) if idle else math.inf
        by_last_us = slice_us + sides * add_us
        if (time_us := min(by_others_us, by_last_us)) < best_us or config.SPLIT_K:
            adders = (used, idle) if by_others_us <= by_last_us else (used - tail, tail)
            best_us = time_us
            chosen = Division(
                programs, tiles - tail, tail, slices, *adders, sides, time_us - length * step_us
            )
    return chosen


def extents(launch: Launch[Problem]) -> dict[str, int]:
    division = divide_tiles(launch)
    slices = {
        "slice": division.slices,
        "partial": division.partials,
        "part": division.partials * division.sides,
    }
    return {**persistent.KERNEL.extents(launch), **(slices if division.tail else {})}


def workspaces(launch: Launch[Problem]) -> dict[str, TensorSpec]:
    """Return the workspaces of padded operands, the partial tiles, and a flag for each part of a partial tile."""
    spaces = persistent.KERNEL.workspaces(launch)
    size = launch.config.BLOCK_M * launch.config.BLOCK_N
    division = divide_tiles(launch)
    if partials := division.partials:
        spaces["partials"] = TensorSpec((partials, size), is_input=False, dtype="float32")
        spaces["flags"] = TensorSpec(
            (partials, division.sides), is_input=False, dtype="int32", starts_zeroed=True
        )
    return spaces


def tiles(pids: np.ndarray, launch: Launch[Problem]) -> Tiles:
    division = divide_tiles(launch)
    program, place = deal(pids, division.whole, division.programs)
    pid_k = np.tile(np.arange(division.slices), len(program))
    program = program.repeat(division.slices)
    place = place.repeat(division.slices)
    sliced = pids[pids < division.partials]
    pid_k = np.append(sliced // division.tail, pid_k)
    pid_of = np.append(sliced, program)
    place = np.append(division.whole + sliced % division.tail, place)
    order = np.argsort(pid_of, kind="stable")
    return tiles_at(pid_of[order], place[order], pid_k[order], launch)


def accesses(launch: Launch[Problem]) -> tuple[Access | FlatAccess, ...]:
    division = divide_tiles(launch)
    config = launch.config
    shared = persistent.accesses(launch)
    if not division.tail:
        return shared
    size = config.BLOCK_M * config.BLOCK_N
    start = on_arrays(tile_start)
    store, load = memory_lines(matmul_stream_k)
    return (
        *shared[:2],
        FlatAccess("store", "partials", Axis("partial", size, start), ("partial",), store),
        FlatAccess(
            "load", "partials", Axis("part", size // division.sides, start), ("part",), load
        ),
        *shared[2:],
    )


def arguments(tensors: Tensors, launch: Launch[Problem]) -> dict[str, Any]:
    division = divide_tiles(launch)
    c = tensors["C"]
    config = launch.config
    part_bytes = int(config.BLOCK_M * config.BLOCK_N) * 4 // division.sides
    step_bytes = int((config.BLOCK_M + config.BLOCK_N) * config.BLOCK_K) * launch.element_bytes
    return {
        **persistent.arguments(tensors, launch),
        "partials": tensors.get("partials", c),
        "flags": tensors.get("flags", c),
        "num_tiles": division.whole,
        "division": (division.slices, division.first_adder, division.adders),
        "HAS_SLICES": division.tail > 0,
        "MOST_SLICES": _MOST_SLICES,
        # Limited so that the partial sums in flight fit in the shared memory of the operands.
        "ADD_STAGES": 1 + min(3, config.num_stages * step_bytes // part_bytes),
    }


def note(launch: Launch[Problem]) -> str:
    """Say how tiles are split, or why none is, and what the counts omit."""
    division = divide_tiles(launch)
    split = "All waves are full, or splitting the last one would take longer, so no tile is split."
    if division.tail:
        megabytes = division.partials * launch.config.BLOCK_M * launch.config.BLOCK_N * 4 / 1e6
        split = (
            f"Tiles split along K: {division.tail}, into {division.slices} slices each. "
            f"Their partial sums take {megabytes:,.3g} MB. "
            "The counts omit the flags that signal finished partial sums."
        )
    return " ".join(filter(None, (split, persistent.KERNEL.note(launch))))


KERNEL = replace(
    persistent.KERNEL,
    id="matmul.stream_k",
    title="Stream-K, persistent",
    headline="No tail wave: the tiles of the last, partial wave are split along K, so more SMs share the work.",
    config=Config,
    jitted=matmul_stream_k,
    grid=lambda launch: (divide_tiles(launch).programs,),
    extents=extents,
    workspaces=workspaces,
    tiles=tiles,
    accesses=accesses,
    arguments=arguments,
    reduction_ms=lambda launch: divide_tiles(launch).reduction_us / 1e3,
    note=note,
    presets=(
        preset(
            "No tail: 3072³", "M=3072&N=3072&K=3072", "BLOCK_N=256&num_warps=8", "tab=program-order"
        ),
    ),
)
