"""What every matmul kernel does with its tile: multiply along K, and store. Jitted."""

from kernels.jit import tl, triton
from kernels.orders import tile_offsets


@triton.jit
def multiply(
    a,
    b,
    pid_m,
    pid_n,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Tile (pid_m, pid_n) of A @ B in float32. Elements past an edge are loaded as zeros."""
    rows = tile_offsets(pid_m, BLOCK_M)
    columns = tile_offsets(pid_n, BLOCK_N)
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(0, tl.cdiv(K, BLOCK_K)):
        inner = tile_offsets(step, BLOCK_K)
        a_tile = tl.load(
            a + rows[:, None] * stride_am + inner[None, :] * stride_ak,
            mask=(rows[:, None] < M) & (inner[None, :] < K),
            other=0.0,
        )
        b_tile = tl.load(
            b + inner[:, None] * stride_bk + columns[None, :] * stride_bn,
            mask=(inner[:, None] < K) & (columns[None, :] < N),
            other=0.0,
        )
        accumulator = tl.dot(a_tile, b_tile, accumulator)
    return accumulator


@triton.jit
def store(c, accumulator, pid_m, pid_n, M, N, stride_cm, stride_cn, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Write the tile to C, in C's type."""
    rows = tile_offsets(pid_m, BLOCK_M)
    columns = tile_offsets(pid_n, BLOCK_N)
    tl.store(
        c + rows[:, None] * stride_cm + columns[None, :] * stride_cn,
        accumulator.to(c.dtype.element_ty),
        mask=(rows[:, None] < M) & (columns[None, :] < N),
    )
