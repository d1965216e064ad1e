"""C += A @ B: the grid's third axis splits K into slices, which add their partial tiles with relaxed atomics."""

from dataclasses import dataclass

from kernels.matmul import problem as family
from kernels.matmul import tile
from kernels.matmul.problem import FAMILY, Problem, arguments, block_k, block_m, block_n
from kernels.orders import slice_of_k, tile_offsets
from tilescope.declare.jit import memory_lines, tl, triton
from tilescope.declare.knobs import knob, num_stages, num_warps, powers
from tilescope.declare.spec import Access, Kernel, Launch, grid_of, preset, tiles_on_grid


@dataclass(frozen=True)
class Config:
    BLOCK_M: int = block_m()
    BLOCK_N: int = block_n(128)
    BLOCK_K: int = block_k()
    SPLIT_K: int = knob(
        8, "Tile", "Slices of K. Each slice of a tile has its own program.", choices=powers(1, 16)
    )
    num_warps: int = num_warps()
    num_stages: int = num_stages()


@triton.jit
def matmul_split_k_atomic(
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
    # Not with `tile.locate`: ptxas 12.8 sometimes attributes atomics on Ada to the inlined function's file.
    rows, columns = tile_offsets(pid_m, BLOCK_M), tile_offsets(pid_n, BLOCK_N)
    # Relaxed adds are plain reductions in the L2. No other access depends on their order, so they need no fences.
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    pointers = c + rows[:, None] * c_strides[0] + columns[None, :] * c_strides[1]
    tl.atomic_add(pointers, partial.to(c.dtype.element_ty), mask=inside, sem="relaxed")


def extents(launch: Launch[Problem, Config]) -> dict[str, int]:
    return {**family.extents(launch), "slice": launch.config.SPLIT_K}


def accesses(launch: Launch[Problem, Config]) -> tuple[Access, ...]:
    (add,) = memory_lines(matmul_split_k_atomic)
    return *family.operand_loads(launch), access_to_c("atomic", launch, add)


def access_to_c(op: str, launch: Launch[Problem, Config], line: tuple[str, int]) -> Access:
    """Return an access to C: the atomic addition of a partial tile, or the load or store of a non-atomic one."""
    m, n, _ = family.axes(launch)
    return Access(op, "C", m, n, ("m", "n", "slice"), line)


def roundings(launch: Launch[Problem, Config]) -> int:
    """Count the nonempty slices. Each rounds its partial tile and the running sum to C's type."""
    tiles = extents(launch)
    steps_per_slice = -(-tiles["k"] // tiles["slice"])  # as in `slice_of_k`
    return -(-tiles["k"] // steps_per_slice)


def note(launch: Launch[Problem, Config]) -> str:
    """Explain whether splitting pays off: it fills idle SMs, but adds to each element SPLIT_K times."""
    extent = extents(launch)
    split = launch.config.SPLIT_K
    gpu = launch.gpu
    tiles = extent["m"] * extent["n"]
    if split == 1:
        return "With SPLIT_K 1, each tile has one program, so atomic adds bring no benefit."
    adds = f"Atomics add to each element of C {split} times"
    if tiles >= gpu.sms:
        return (
            f"Slow here: {tiles:,} tiles fill the {gpu.sms} SMs of {gpu.name} without a split. {adds}; "
            "a kernel without a split writes it once."
        )
    steps = -(-extent["k"] // split)
    weighs = (
        "the split wins" if steps >= 8 else "with so few steps, adding to C and zeroing it dominate"
    )
    return (
        f"Without a split, C's tiles would fill {tiles:,} of the {gpu.sms} SMs of {gpu.name}; {split} slices fill"
        f" {min(tiles * split, gpu.sms):,}. The longest slice has {steps} of K's {extent['k']} steps: {weighs}. {adds}."
    )


KERNEL = Kernel(
    id="matmul.split_k_atomic",
    title="split K, with atomics",
    headline="Slices of K add partial tiles with atomics: correct, slow for many tiles, fast for few tiles and long K.",
    family=FAMILY,
    config=Config,
    jitted=matmul_split_k_atomic,
    grid=lambda launch: grid_of(extents(launch)),
    extents=extents,
    tiles=lambda pids, launch: tiles_on_grid(pids, extents(launch)),
    accesses=accesses,
    arguments=arguments,
    dtypes=("float16", "bfloat16", "float32"),  # atomic adds don't support float8
    zeroed_output=True,
    roundings=roundings,
    note=note,
    presets=(
        preset("Split wins: 512 × 512 × 16384", "M=512&N=512&K=16384", "BLOCK_K=64", "tab=result"),
        preset(
            "In measured time: 512 × 512 × 8192",
            "M=512&N=512&K=8192",
            "",
            "tab=program-order",
        ),
        preset("Split is slow: 4096³", "M=4096&N=4096&K=4096", "BLOCK_K=64", "tab=result"),
    ),
)
