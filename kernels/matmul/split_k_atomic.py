"""C += A @ B by slices of K that add their partial tiles with relaxed atomics."""

from kernels.accesses import Access
from kernels.jit import tl, triton
from kernels.matmul import split_k
from kernels.matmul.problem import FAMILY, Problem
from kernels.matmul.split_k import Config, arguments, extents, grid, partial_product, tiles_of
from kernels.orders import tile_offsets
from kernels.source import memory_lines
from kernels.spec import Kernel, Launch, Preset


@triton.jit
def matmul_split_k_atomic(
    a,
    b,
    c,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    partial = partial_product(
        a, b, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, BLOCK_M, BLOCK_N, BLOCK_K, SPLIT_K, PRECISION
    )
    rows = tile_offsets(tl.program_id(0), BLOCK_M)
    columns = tile_offsets(tl.program_id(1), BLOCK_N)
    # Nothing else is ordered by these adds, so they need no fences: relaxed, they are plain reductions in the L2.
    tl.atomic_add(
        c + rows[:, None] * stride_cm + columns[None, :] * stride_cn,
        partial.to(c.dtype.element_ty),
        mask=(rows[:, None] < M) & (columns[None, :] < N),
        sem="relaxed",
    )


def accesses(launch: Launch[Problem, Config]) -> tuple[Access, ...]:
    (add,) = memory_lines(matmul_split_k_atomic)
    return *split_k.family.operand_loads(launch), split_k.adds("atomic", launch, add)


def note(launch: Launch[Problem, Config]) -> str:
    """Whether the split pays: it fills SMs that tiles alone leave idle, and adds each element SPLIT_K times."""
    extent, split, gpu = extents(launch), launch.config.SPLIT_K, launch.gpu
    tiles = extent["m"] * extent["n"]
    if split == 1:
        return "With SPLIT_K 1 each tile has one program, and its atomic adds buy nothing."
    adds = f"Each element of C is added {split} times by atomics"
    if tiles >= gpu.sms:
        return (
            f"Slow here: {tiles:,} tiles fill the {gpu.sms} SMs of {gpu.name} without a split. {adds}, "
            "where a kernel without a split writes it once."
        )
    filled = min(tiles * split, gpu.sms)
    steps = -(-extent["k"] // split)
    weighs = "the split wins" if steps >= 8 else "the fewer they are, the more adding and zeroing C weigh"
    return (
        f"Without a split, {tiles:,} tiles would fill {tiles:,} of the {gpu.sms} SMs of {gpu.name}; "
        f"{split} slices fill {filled:,}. The longest sums {steps} of K's {extent['k']} steps: {weighs}. {adds}."
    )


KERNEL = Kernel(
    id="matmul.split_k_atomic",
    title="split K, with atomics",
    claim="Slices of K add their partial tiles with atomics: right; slow with many tiles, quick with few and a long K.",
    family=FAMILY,
    config=Config,
    jitted=matmul_split_k_atomic,
    grid=grid,
    extents=extents,
    tiles=tiles_of,
    accesses=accesses,
    arguments=arguments,
    dtypes=split_k.DTYPES,
    zeroed_output=True,
    roundings=split_k.roundings,
    note=note,
    presets=(
        Preset("It wins: 512 × 512 × 16384", {"M": 512, "N": 512, "K": 16384}, {"BLOCK_K": 64}, {"tab": "result"}),
        Preset(
            "In true time: 512 × 512 × 8192",
            {"M": 512, "N": 512, "K": 8192},
            {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 32, "SPLIT_K": 8},
            {"tab": "schedule", "color": "wave"},
        ),
        Preset("It is slow: 4096³", {"M": 4096, "N": 4096, "K": 4096}, {"BLOCK_K": 64}, {"tab": "result"}),
    ),
)
