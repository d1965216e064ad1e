"""C += A @ B by slices of K that add their partial tiles without atomics: a data race."""

from kernels.accesses import Access
from kernels.jit import tl, triton
from kernels.matmul import split_k
from kernels.matmul.problem import FAMILY, Problem
from kernels.matmul.split_k import Config, arguments, extents, grid, partial_product, tiles_of
from kernels.orders import tile_offsets
from kernels.source import memory_lines
from kernels.spec import Kernel, Launch, Preset


@triton.jit
def matmul_split_k_race(
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
    place = c + rows[:, None] * stride_cm + columns[None, :] * stride_cn
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    # Between this load and the store, another slice may load the same tile: what it adds is lost, or this is.
    before = tl.load(place, mask=inside, other=0.0)
    after = before.to(tl.float32) + partial
    tl.store(place, after.to(c.dtype.element_ty), mask=inside)


def accesses(launch: Launch[Problem, Config]) -> tuple[Access, ...]:
    load, store = memory_lines(matmul_split_k_race)
    return (
        *split_k.family.operand_loads(launch),
        split_k.adds("load", launch, load),
        split_k.adds("store", launch, store),
    )


def race(launch: Launch[Problem, Config]) -> str:
    split = launch.config.SPLIT_K
    if split == 1:
        return ""
    return f"{split} programs load, add to and store the same tile of C, and nothing keeps them apart"


KERNEL = Kernel(
    id="matmul.split_k_race",
    title="split K, with a race",
    claim="Slices of K add their partial tiles into C without atomics: where two do so at once, one of them is lost.",
    family=FAMILY,
    config=Config,
    jitted=matmul_split_k_race,
    grid=grid,
    extents=extents,
    tiles=tiles_of,
    accesses=accesses,
    arguments=arguments,
    dtypes=split_k.DTYPES,
    zeroed_output=True,
    roundings=split_k.roundings,
    race=race,
    presets=(
        Preset("The race: 512³, 8 slices", {"M": 512, "N": 512, "K": 512}, {}, {"tab": "result"}),
        Preset("No race: one slice", {"M": 512, "N": 512, "K": 512}, {"SPLIT_K": 1}, {"tab": "result"}),
    ),
)
