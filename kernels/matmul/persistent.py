"""C = A @ B with tensor descriptors: one program per SM computes tile after tile in grouped order."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kernels.matmul import padding, tile
from kernels.matmul import problem as family
from kernels.matmul.problem import (
    ALIGNED_BYTES,
    FAMILY,
    Problem,
    block_k,
    block_m,
    block_n,
    group_size,
    is_aligned,
)
from kernels.orders import grouped, tile_start
from tilescope.declare.jit import memory_lines, on_arrays, tl, triton
from tilescope.declare.knobs import LAUNCH, knob, num_stages, num_warps, powers
from tilescope.declare.spec import Access, Axis, Kernel, Launch, Specs, Tensors, TensorSpec, preset

# The largest tile that is stored in one piece. Four stages of 128 × 256 × 128 in float8 take 192 of the 227 KiB that a
# program may use on Hopper. The stored tile must fit in the rest.
_WHOLE_BYTES = 32 * 1024


@dataclass(frozen=True)
class Config:
    BLOCK_M: int = block_m(128)
    BLOCK_N: int = block_n(128, low=32)
    BLOCK_K: int = block_k(64)
    GROUP_SIZE: int = group_size(8)
    num_warps: int = num_warps()
    num_stages: int = num_stages()
    PROGRAMS_PER_SM: int = knob(
        1, LAUNCH, "Programs launched per SM. With two, one computes while the other writes.",
        choices=powers(1, 8),
    )  # fmt: skip
    PAD: str = padding.pad()


@triton.jit
def matmul_persistent(
    a,
    b,
    c,
    num_tiles,
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
):
    """Compute this program's share of the first `num_tiles` tiles of C: tile pid, then pid + programs, and so on."""
    num_pid_m = tl.cdiv(M, BLOCK_M)
    num_pid_n = tl.cdiv(N, BLOCK_N)
    first, programs = tl.program_id(0), tl.num_programs(0)
    if USE_TMA:
        # A single loop over the steps of all tiles lets the next tile's loads start before this tile is stored.
        steps = tl.cdiv(K, BLOCK_K)
        end = tl.cdiv(num_tiles - first, programs) * steps
        # Start one step before the first tile.
        place, step = first - programs, steps - 1
        row, column = 0, 0
        # Always zero, but not a constant: for a constant, ptxas emits two moves per register of the accumulator.
        zero = (end < 0).to(tl.float32)
        accumulator = tl.full((BLOCK_M, BLOCK_N), zero, tl.float32)
        if RIGHT_LATER:
            # Both halves share one shared-memory buffer. The right half waits three steps, while the left half is
            # written out. If a tile has four steps or fewer, the right half is stored immediately.
            due = min(3, steps - 1)
            waiting = tl.zeros((BLOCK_M, BLOCK_N // 2), c.dtype)
            waiting_row, waiting_column = 0, 0
        for i in range(0, end):
            step = tl.where(step == steps - 1, 0, step + 1)
            if step == 0:
                place += programs
                pid_m, pid_n = grouped(place, num_pid_m, num_pid_n, GROUP_SIZE, WHOLE_GROUPS)
                row, column = tile_start(pid_m, BLOCK_M), tile_start(pid_n, BLOCK_N)
            a_tile, b_tile = tile.load_tma(
                a, b, row, column, tile_start(step, BLOCK_K), A_TRANSPOSED, B_TRANSPOSED
            )
            accumulator = tile.add_product(a_tile, b_tile, accumulator, PRECISION)
            if step == steps - 1:
                if STORE_TMA:
                    left = accumulator
                    if IN_HALVES:
                        left, right = tile.halves(accumulator, BLOCK_M, BLOCK_N)
                    store_left(c, left.to(c.dtype), row, column)
                    if RIGHT_LATER:
                        waiting = right.to(c.dtype)
                        waiting_row, waiting_column = row, column
                    elif IN_HALVES:
                        store_right(c, right.to(c.dtype), row, column, BLOCK_N)
                else:
                    tile.store(
                        c,
                        accumulator,
                        row // BLOCK_M,
                        column // BLOCK_N,
                        M,
                        N,
                        c_strides,
                        BLOCK_M,
                        BLOCK_N,
                    )
                accumulator = tl.full((BLOCK_M, BLOCK_N), zero, tl.float32)
            if RIGHT_LATER:
                is_due = (step == due) & ((i >= steps) | (due == steps - 1))
                if is_due | (i == end - 1):
                    store_right(c, waiting, waiting_row, waiting_column, BLOCK_N)
    else:
        for place in range(first, num_tiles, programs):
            pid_m, pid_n = grouped(place, num_pid_m, num_pid_n, GROUP_SIZE, WHOLE_GROUPS)
            accumulator = tile.multiply(
                a, b, pid_m, pid_n, (0, tl.cdiv(K, BLOCK_K)), (M, N, K), a_strides, b_strides,
                (BLOCK_M, BLOCK_N, BLOCK_K), PRECISION,
            )  # fmt: skip
            tile.store(c, accumulator, pid_m, pid_n, M, N, c_strides, BLOCK_M, BLOCK_N)


@triton.jit
def store_left(c, block, row, column):
    """Store a tile, or the left half of one, with a descriptor. The tile starts at (row, column)."""
    c.store([row, column], block)


@triton.jit
def store_right(c, block, row, column, BLOCK_N: tl.constexpr):
    """Store the right half of the tile that starts at (row, column)."""
    c.store([row, column + BLOCK_N // 2], block)


def grid(launch: Launch[Problem]) -> tuple[int]:
    """Return a grid of PROGRAMS_PER_SM programs per SM, or of one program per tile if there are fewer tiles."""
    tiles = family.extents(launch)
    return (min(tiles["m"] * tiles["n"], launch.gpu.sms * launch.config.PROGRAMS_PER_SM),)


def half_columns(launch: Launch[Problem]) -> tuple[Axis, Axis]:
    """Return the column axes of a tile's left and right half."""
    start = on_arrays(tile_start)
    block = launch.config.BLOCK_N // 2
    return (
        Axis("n", block, lambda index, block: start(2 * index, block)),
        Axis("n", block, lambda index, block: start(2 * index + 1, block)),
    )


def tma_fallback_reason(tensors: Specs, launch: Launch[Problem]) -> str:
    """Return why this launch falls back to pointers, or "" if it loads A and B with tensor descriptors.

    With PAD, a launch with descriptors may still store its output with pointers if a descriptor can't.
    """
    gpu = launch.gpu
    size = launch.element_bytes
    fallback = "so this launch falls back to pointers."
    if not gpu.has_tma:
        major, minor = gpu.compute_capability
        return f"{gpu.name} has compute capability {major}.{minor}, but tensor descriptors need 9.0, {fallback}"
    padded = padding.workspaces(tensors, launch)
    for name, tensor in tensors.items():
        needs_descriptor = name in ("A", "B") or launch.config.PAD == "never"
        if needs_descriptor and name not in padded and not is_aligned(tensor, launch.problem):
            hint = (
                "Set PAD to copy A and B to aligned rows first."
                if launch.config.PAD == "never"
                else "Copying them first would take longer."
            )
            row = f"A row of {name} takes {tensor.stored[1] * size:,} bytes."
            return (
                f"{row} A tensor descriptor needs a multiple of {ALIGNED_BYTES}, {fallback} {hint}"
            )
    return ""


def stores_with_pointers(tensors: Specs, launch: Launch[Problem]) -> bool:
    """Return whether a launch that loads A and B with descriptors needs pointers for another tensor."""
    return not all(
        is_aligned(spec, launch.problem) for name, spec in tensors.items() if name not in ("A", "B")
    )


def persistent_arguments(
    tensors: Tensors, specs: Specs, columns: Mapping[str, int], launch: Launch[Problem]
) -> dict[str, Any]:
    """Return the arguments of a persistent matmul, with descriptors instead of tensors where the tensors allow them.

    Args:
        columns: for each tensor that is copied once per tile, the number of columns per copy.
    """
    config = launch.config
    are_whole = family.extents(launch)["m"] % config.GROUP_SIZE == 0
    plain = {**family.arguments(tensors, launch), "WHOLE_GROUPS": are_whole}
    for name in (
        "PROGRAMS_PER_SM",
        "SPLIT_K",
        "PAD",
    ):  # only the grid, the slices and the copies depend on them
        plain.pop(name, None)
    blocks = {"A": (config.BLOCK_M, config.BLOCK_K), "B": (config.BLOCK_K, config.BLOCK_N)}
    store_tma = not stores_with_pointers(specs, launch)
    if store_tma:
        blocks |= {name: (config.BLOCK_M, count) for name, count in columns.items()}
    specs = dict(specs)
    read = dict(tensors)
    for name, spec in padding.workspaces(specs, launch).items():
        specs[name] = spec
        read[name] = tensors[f"padded {name}"]
    if tma_fallback_reason(specs, launch) or not all(
        _fits_descriptor(read[name]) for name in blocks
    ):
        return {
            **plain,
            "USE_TMA": False,
            "STORE_TMA": False,
            "A_TRANSPOSED": False,
            "B_TRANSPOSED": False,
        }
    descriptors = {
        name.lower(): _descriptor(read[name], specs[name], blocks[name]) for name in blocks
    }
    form = {f"{name}_TRANSPOSED": specs[name].transposed for name in ("A", "B")}
    return {**plain, **descriptors, "USE_TMA": True, "STORE_TMA": store_tma, **form}


def _fits_descriptor(tensor: Any) -> bool:
    """Return whether all rows start at multiples of 16 bytes. Rows of a slice of a larger tensor may not."""
    pitch = max(tensor.stride(0), tensor.stride(1)) * tensor.dtype.itemsize
    return tensor.data_ptr() % ALIGNED_BYTES == 0 and pitch % ALIGNED_BYTES == 0


def _descriptor(tensor: Any, spec: TensorSpec, block: tuple[int, int]) -> Any:
    """Return a descriptor of the tensor as stored, for copies of one block at a time."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    pitch, shape = (tensor.stride(1), block[::-1]) if spec.transposed else (tensor.stride(0), block)
    return TensorDescriptor(tensor, list(spec.stored), [pitch, 1], list(shape))


def loads(specs: Specs, launch: Launch[Problem]) -> tuple[Access, ...]:
    """Return the copies of A and B with descriptors, from their workspaces if they were padded."""
    padded = padding.workspaces(specs, launch)
    return tuple(
        replace(access, tensor=f"padded {access.tensor}") if access.tensor in padded else access
        for access in family.operand_loads(launch, "descriptor")
    )


def accesses(launch: Launch[Problem]) -> tuple[Access, ...]:
    specs = FAMILY.tensors(launch.problem)
    if tma_fallback_reason(specs, launch):
        return family.accesses(launch)
    if stores_with_pointers(specs, launch):
        return *loads(specs, launch), family.accesses(launch)[-1]
    m, n, _ = family.axes(launch)
    (left,) = memory_lines(store_left)
    (right,) = memory_lines(store_right)
    pieces = (
        zip(half_columns(launch), (left, right), strict=True)
        if is_in_halves(launch)
        else [(n, left)]
    )
    stores = (Access("descriptor", "C", m, columns, ("m", "n"), line) for columns, line in pieces)
    return *loads(specs, launch), *stores


def arguments(tensors: Tensors, launch: Launch[Problem]) -> dict[str, Any]:
    halves = is_in_halves(launch)
    columns = launch.config.BLOCK_N
    stored = {"C": columns // 2 if halves else columns}
    tiles = family.extents(launch)
    shared = persistent_arguments(tensors, FAMILY.tensors(launch.problem), stored, launch)
    # The right half stays in registers until the next tile. A float32 half needs too many registers.
    right_later = halves and launch.element_bytes <= 2
    return {
        **shared,
        "num_tiles": tiles["m"] * tiles["n"],
        "IN_HALVES": halves,
        "RIGHT_LATER": right_later,
    }


def is_in_halves(launch: Launch[Problem]) -> bool:
    """Return whether descriptors store a tile in two halves that share one half-size buffer."""
    config = launch.config
    uses_pointers = stores_with_pointers(FAMILY.tensors(launch.problem), launch)
    return (
        not uses_pointers and config.BLOCK_M * config.BLOCK_N * launch.element_bytes > _WHOLE_BYTES
    )


def note(specs: Specs, launch: Launch[Problem]) -> str:
    return tma_fallback_reason(specs, launch) or padding.note(specs, launch)


# Any config, because the variants of this kernel replace it.
KERNEL = Kernel[Problem, Any](
    id="matmul.persistent",
    title="persistent, descriptors",
    headline="One program per SM computes tile after tile. The tensor memory accelerator (TMA) copies whole blocks.",
    family=FAMILY,
    config=Config,
    jitted=matmul_persistent,
    grid=grid,
    extents=family.extents,
    **padding.fields(FAMILY.tensors),
    tiles=lambda pids, launch: family.grouped_tiles(pids, launch, grid(launch)[0]),
    accesses=accesses,
    arguments=arguments,
    note=lambda launch: note(FAMILY.tensors(launch.problem), launch),
    presets=(
        preset("Large: 4096³", "M=4096&N=4096&K=4096", "BLOCK_N=256&num_warps=8"),
        preset("No descriptor: K = 4095", "M=4096&N=4096&K=4095", "num_warps=8", "tab=result"),
        preset("More tiles than SMs: 2048³", "M=2048&N=2048&K=2048", "", "tab=program-order"),
    ),
)
