"""C += A @ B: slices of K add their partial tiles to C without atomics, which is a data race."""

import dataclasses

from kernels.matmul import split_k_atomic, tile
from kernels.matmul.problem import Problem, operand_loads
from kernels.matmul.split_k_atomic import Config, access_to_c
from kernels.orders import slice_of_k
from tilescope.declare.jit import memory_lines, tl, triton
from tilescope.declare.spec import Access, Launch, preset


@triton.jit
def matmul_split_k_race(
    a,
    b,
    c,
    M,
    N,
    K,
    a_strides,
    b_strides,
    c_strides,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    first_step, last_step = slice_of_k(tl.program_id(2), tl.cdiv(K, BLOCK_K), SPLIT_K)
    pid_m, pid_n = tl.program_id(0), tl.program_id(1)
    partial = tile.multiply(
        a, b, pid_m, pid_n, (first_step, last_step), (M, N, K), a_strides, b_strides,
        (BLOCK_M, BLOCK_N, BLOCK_K), PRECISION,
    )  # fmt: skip
    place, inside = tile.locate(c, pid_m, pid_n, M, N, c_strides, BLOCK_M, BLOCK_N)
    # Between this load and the store, another slice may load the same tile. Then one of the two sums is lost.
    before = tl.load(place, mask=inside, other=0.0)
    after = before.to(tl.float32) + partial
    tl.store(place, after.to(c.dtype.element_ty), mask=inside)


def accesses(launch: Launch[Problem, Config]) -> tuple[Access, ...]:
    load, store = memory_lines(matmul_split_k_race)
    return (
        *operand_loads(launch),
        access_to_c("load", launch, load),
        access_to_c("store", launch, store),
    )


def race(launch: Launch[Problem, Config]) -> str:
    split = launch.config.SPLIT_K
    return (
        f"{split} programs load, add to and store the same tile of C without synchronization"
        if split > 1
        else ""
    )


KERNEL = dataclasses.replace(
    split_k_atomic.KERNEL,
    id="matmul.split_k_race",
    title="split K, with a race",
    headline="Slices of K add partial tiles to C without atomics: if two add at the same time, one sum is lost.",
    jitted=matmul_split_k_race,
    accesses=accesses,
    race=race,
    note=lambda launch: "",
    presets=(preset("No race: one slice", "M=512&N=512&K=512", "SPLIT_K=1", "tab=result"),),
)
