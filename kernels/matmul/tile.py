"""Jitted building blocks of every matmul kernel: load the blocks of a tile, multiply them, store the tile.

Loads come in two forms: with pointers, for any strides, and with tensor descriptors, which copy whole blocks.
"""

from kernels.orders import tile_offsets
from tilescope.declare.jit import tl, triton


@triton.jit
def multiply(
    a, b, pid_m, pid_n, steps, shape, a_strides, b_strides, blocks, PRECISION: tl.constexpr
):
    """Return tile (pid_m, pid_n) of A @ B in float32. Elements past an edge are loaded as zeros.

    Args:
        steps: the first step along K to add up, and the step after the last.
        shape: (M, N, K).
        blocks: (BLOCK_M, BLOCK_N, BLOCK_K).
    """
    M, N, K = shape
    BLOCK_M: tl.constexpr = blocks[0]
    BLOCK_N: tl.constexpr = blocks[1]
    BLOCK_K: tl.constexpr = blocks[2]
    rows, columns = tile_offsets(pid_m, BLOCK_M), tile_offsets(pid_n, BLOCK_N)
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(steps[0], steps[1]):
        inner = tile_offsets(step, BLOCK_K)
        inside_a = (rows[:, None] < M) & (inner[None, :] < K)
        a_pointers = a + rows[:, None] * a_strides[0] + inner[None, :] * a_strides[1]
        a_tile = tl.load(a_pointers, mask=inside_a, other=0.0)
        inside_b = (inner[:, None] < K) & (columns[None, :] < N)
        b_pointers = b + inner[:, None] * b_strides[0] + columns[None, :] * b_strides[1]
        b_tile = tl.load(b_pointers, mask=inside_b, other=0.0)
        accumulator = add_product(a_tile, b_tile, accumulator, PRECISION)
    return accumulator


@triton.jit
def load_tma(a, b, row, column, inner, A_TRANSPOSED: tl.constexpr, B_TRANSPOSED: tl.constexpr):
    """Load one step's blocks with descriptors: A's block starts at (row, inner), B's at (inner, column)."""
    a_tile = a.load([inner, row]).T if A_TRANSPOSED else a.load([row, inner])
    b_tile = b.load([column, inner]).T if B_TRANSPOSED else b.load([inner, column])
    return a_tile, b_tile


@triton.jit
def add_product(a_tile, b_tile, accumulator, PRECISION: tl.constexpr):
    """Return accumulator + a_tile @ b_tile. PRECISION matters only for float32 operands."""
    if PRECISION == "tf32_rounded":
        a_tile, b_tile = rounded_to_tf32(a_tile), rounded_to_tf32(b_tile)
    precision: tl.constexpr = "tf32" if PRECISION == "tf32_rounded" else PRECISION
    return tl.dot(a_tile, b_tile, accumulator, input_precision=precision)


@triton.jit
def rounded_to_tf32(tile):
    """Round float32 to tf32: drop the last 13 mantissa bits, ties away from zero, as PTX's cvt.rna.tf32 does.

    The matrix unit itself truncates. Infinities and NaNs get no special treatment.
    """
    bits = tile.to(tl.int32, bitcast=True)
    return ((bits + (1 << 12)) & -(1 << 13)).to(tl.float32, bitcast=True)


@triton.jit
def locate(c, pid_m, pid_n, M, N, c_strides, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return the pointers to the elements of tile (pid_m, pid_n) of C, and whether they lie inside C."""
    rows, columns = tile_offsets(pid_m, BLOCK_M), tile_offsets(pid_n, BLOCK_N)
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    return c + rows[:, None] * c_strides[0] + columns[None, :] * c_strides[1], inside


@triton.jit
def store(
    c, accumulator, pid_m, pid_n, M, N, c_strides, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Convert the tile to C's type and store its elements that lie inside C."""
    pointers, inside = locate(c, pid_m, pid_n, M, N, c_strides, BLOCK_M, BLOCK_N)
    tl.store(pointers, accumulator.to(c.dtype.element_ty), mask=inside)


@triton.jit
def halves(tile, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Split a tile into its left and right BLOCK_N / 2 columns."""
    return tl.split(tl.permute(tl.reshape(tile, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1)))


@triton.jit
def to_run(block, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return a tile's elements as one run that each warp stores in whole lines, without shared memory.

    This is the order in which Hopper's Tensor Cores leave a tile in registers: in each 16 × 8 block, a lane holds two
    columns of two rows. Other layouts are converted. The run's first half is the tile's left half.
    """
    parts = tl.reshape(block, (ROWS // 16, 2, 8, COLUMNS // 8, 4, 2))
    return tl.reshape(tl.permute(parts, (3, 0, 2, 4, 1, 5)), (ROWS * COLUMNS,))


@triton.jit
def from_run(run, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return the tile of a run that `to_run` returned."""
    parts = tl.reshape(run, (COLUMNS // 8, ROWS // 16, 8, 4, 2, 2))
    return tl.reshape(tl.permute(parts, (1, 4, 2, 0, 3, 5)), (ROWS, COLUMNS))
