"""The matmul family: C[M, N] = A[M, K] @ B[K, N]. K is the reduction axis."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy import ndarray

from kernels import orders
from kernels.matmul import tile
from tilescope.declare.jit import memory_lines, on_arrays
from tilescope.declare.knobs import ConfigError, knob, powers, problem_size
from tilescope.declare.spec import (
    DTYPE_BYTES,
    DTYPE_ROUNDOFF,
    Access,
    Allowance,
    Axis,
    Family,
    Launch,
    Tensors,
    TensorSpec,
    Tiles,
)

LAYOUTS = ("NN", "NT", "TN", "TT")
PRECISIONS = ("tf32", "tf32_rounded", "tf32x3", "ieee")

# A tensor descriptor, and cuBLAS's fast kernels, require rows that start at multiples of this.
ALIGNED_BYTES = 16

# A tile size that cuBLAS often chooses, and the longest K for which storing C may take most of its time.
_LIBRARY_TILE = 128
_SHORT_K = 512

# Relative error of a product from converting its operands to tf32: (mean, spread). tf32 keeps 10 mantissa bits.
# Truncation moves a value by [0, 2^-10) toward zero, on average by 0.36 · 2^-10 for values spread over a binade. The
# errors of two operands add up. Rounding has no bias and a spread of 0.41 · 2^-11. "tf32x3" omits the product of the
# two remainders.
_CONVERSION_ERRORS = {
    "tf32": (0.75 * 2.0**-10, 0.5 * 2.0**-10),
    "tf32_rounded": (0.0, 0.6 * 2.0**-11),
    "tf32x3": (0.0, 0.6 * 2.0**-21),
    "exact": (0.0, 0.0),
}

# Error of Hopper's matrix unit when it adds float8 products, relative to |A| @ |B|. Measured on an H200 (float32
# results, 512 × 512, K from 16 to 16384): 4e-5 RMS and at most 5e-4, where sums are large. Half types err by at
# most 1.5e-6, float32 by 3e-7. Ada is assumed to behave like Hopper; it was not measured.
_COARSE_ERROR = 2.0**-11


@dataclass(frozen=True)
class Problem:
    M: int = problem_size(512, "Rows of A and C.")
    N: int = problem_size(512, "Columns of B and C.")
    K: int = problem_size(512, "Columns of A, rows of B: the reduction axis.")
    dtype: str = knob(
        "float16", "Shape", "Type of A, B and C. Sums are float32.", choices=tuple(DTYPE_BYTES)
    )
    layout: str = knob(
        "NN", "Shape", "How A and B are stored: N row-major, T transposed (NT: K-major B).",
        choices=LAYOUTS, label="Layout",
    )  # fmt: skip
    precision: str = knob(
        "tf32", "Shape",
        "tf32 truncates float32, tf32_rounded rounds it, tf32x3 adds three products, ieee keeps full precision.",
        choices=PRECISIONS, label="Precision", only_with=("dtype", ("float32",)),
    )  # fmt: skip


def block_m(default: int = 64) -> Any:
    return knob(default, "Tile", "Rows of C in one tile.", choices=powers(16, 256))


def block_n(default: int = 64, low: int = 16) -> Any:
    return knob(default, "Tile", "Columns of C in one tile.", choices=powers(low, 256))


def block_k(default: int = 32) -> Any:
    return knob(
        default, "Tile", "Elements along K that a program loads per step.", choices=powers(16, 256)
    )


def group_size(default: int) -> Any:
    # The maximum is the largest number of tile rows: 16,384 / 16.
    text = "Rows of tiles in a group. Programs fill a group column by column."
    return knob(default, "Tile", text, low=1, high=1024, stops="powers", cap=("M", "BLOCK_M"))


def extents(launch: Launch[Problem]) -> dict[str, int]:
    """Return the number of tiles of C along M and N, and the number of blocks along K."""
    problem = launch.problem
    config = launch.config
    m = -(-problem.M // config.BLOCK_M)
    n = -(-problem.N // config.BLOCK_N)
    return {"m": m, "n": n, "k": -(-problem.K // config.BLOCK_K)}


def grouped_tiles(pids: ndarray, launch: Launch[Problem], programs: int) -> Tiles:
    """Return the tiles of each program in grouped order: program pid takes tiles pid, pid + programs, and so on."""
    tiles = extents(launch)
    program, place = deal(pids, tiles["m"] * tiles["n"], programs)
    return tiles_at(program, place, np.zeros_like(program), launch)


def deal(pids: ndarray, tiles: int, programs: int) -> tuple[ndarray, ndarray]:
    """Deal tiles to programs in turn. Return the program of each tile, and the tile's place in the order."""
    turns = -(-(tiles - pids) // programs)
    program = np.repeat(pids, turns)
    turn = np.arange(len(program)) - np.repeat(np.cumsum(turns) - turns, turns)
    return program, program + turn * programs


def tiles_at(program: ndarray, place: ndarray, pid_k: ndarray, launch: Launch[Problem]) -> Tiles:
    """Return the tiles at the given places in grouped order."""
    tiles = extents(launch)
    size = launch.config.GROUP_SIZE
    pid_m, pid_n = on_arrays(orders.grouped)(place, tiles["m"], tiles["n"], size)
    return Tiles(program, pid_m, pid_n, pid_k)


def axes(launch: Launch[Problem]) -> tuple[Axis, Axis, Axis]:
    """Return the axes of the tiles along M, N and K."""
    start = on_arrays(orders.tile_start)
    config = launch.config
    return (
        Axis("m", config.BLOCK_M, start),
        Axis("n", config.BLOCK_N, start),
        Axis("k", config.BLOCK_K, start),
    )


def accesses(launch: Launch[Problem]) -> tuple[Access, ...]:
    """Return the accesses of a kernel that calls `tile.multiply` and `tile.store`."""
    m, n, _ = axes(launch)
    (store_c,) = memory_lines(tile.store)
    return *operand_loads(launch), Access("store", "C", m, n, ("m", "n"), store_c)


def operand_loads(launch: Launch[Problem], op: str = "load") -> tuple[Access, Access]:
    """Return the two loads of `tile.multiply` or, if `op` is "descriptor", the two copies of `tile.load_tma`."""
    m, n, k = axes(launch)
    # An operand's two forms in `load_tma`, transposed and not, share a source line.
    load_a, load_b = (
        memory_lines(tile.load_tma)[::2] if op == "descriptor" else memory_lines(tile.multiply)
    )
    return _operand(op, "A", m, k, launch, load_a), _operand(op, "B", k, n, launch, load_b)


def _operand(
    op: str, name: str, rows: Axis, columns: Axis, launch: Launch[Problem], line: tuple[str, int]
) -> Access:
    stored = (columns, rows) if _tensors(launch.problem)[name].transposed else (rows, columns)
    # Pointers are laid out like the operand in the product, a descriptor's block like the operand in memory.
    pointers = None if op == "descriptor" else (rows.index, columns.index)
    return Access(op, name, *stored, ("m", "n", "k"), line, pointers=pointers)


def arguments(tensors: Tensors, launch: Launch[Problem]) -> dict[str, Any]:
    """Return the arguments that all matmul kernels take: tensors, sizes, strides, precision and the whole config."""
    problem = launch.problem
    a = tensors["A"]
    b = tensors["B"]
    c = tensors["C"]
    return {
        "a": a,
        "b": b,
        "c": c,
        "M": problem.M,
        "N": problem.N,
        "K": problem.K,
        "a_strides": a.stride(),
        "b_strides": b.stride(),
        "c_strides": c.stride(),
        "PRECISION": problem.precision if problem.dtype == "float32" else "tf32",
        **vars(launch.config),
    }


def _tensors(problem: Problem) -> dict[str, TensorSpec]:
    a_transposed, b_transposed = (letter == "T" for letter in problem.layout)
    return {
        "A": TensorSpec((problem.M, problem.K), is_input=True, transposed=a_transposed),
        "B": TensorSpec((problem.K, problem.N), is_input=True, transposed=b_transposed),
        "C": TensorSpec((problem.M, problem.N), is_input=False),
    }


def is_aligned(spec: TensorSpec, problem: Problem) -> bool:
    """Return whether every row of the contiguous tensor starts at a multiple of 16 bytes."""
    return spec.stored[1] * DTYPE_BYTES[problem.dtype] % ALIGNED_BYTES == 0


def _why_library_is_slow(launch: Launch[Problem]) -> str:
    problem = launch.problem
    sms = launch.gpu.sms
    odd = [
        name
        for name, spec in _tensors(problem).items()
        if spec.is_input and not is_aligned(spec, problem)
    ]
    if odd:
        return f"rows of {' and '.join(odd)} are not {ALIGNED_BYTES}-byte aligned"
    tiles = math.prod(-(-size // _LIBRARY_TILE) for size in (problem.M, problem.N))
    if tiles < sms:
        return f"tiles of {_LIBRARY_TILE} × {_LIBRARY_TILE} fill only {tiles:,} of {sms} SMs"
    return (
        f"K is only {problem.K:,}, so storing the output dominates" if problem.K <= _SHORT_K else ""
    )


def multiply_rows(inputs: Tensors, rows: slice) -> Any:
    """Return the given rows of A @ B in the inputs' type. float32 is multiplied in full, not as tf32."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False  # each library call sets its own precision
    return inputs["A"][rows] @ inputs["B"]


def allowance(
    dtype: str,
    reduction: int,
    operands: str = "exact",
    roundings: int = 1,
    coarse_sums: bool = False,
) -> Allowance:
    """Return the error that rounding alone can cause in a sum of products. Its error scale is |A| @ |B|.

    The reference is computed in a wider type, so the rounding of the final result is known exactly. Any further error
    comes from the sum itself: truncated operands, the order of the additions, rounded partial results. That error is
    small enough that a check detects one missing product in four thousand, in every type.

    This is not a worst-case bound. Operands are random, so the sum of K rounding errors grows with √K.

    >>> allowance("float16", 1024).of_scale < 1e-5 < allowance("float32", 1024, "tf32").of_scale
    True

    Args:
        dtype: type of the operands and the result.
        reduction: number of products summed in float32 per element.
        operands: how operands are converted before they are multiplied: "exact", "tf32" (truncated), "tf32_rounded" or
            "tf32x3".
        roundings: number of partial sums that are rounded to `dtype` and added up in it.
        coarse_sums: whether an Ada or Hopper matrix unit adds float8 products. It keeps only a few bits of each.
    """
    bias, spread = _CONVERSION_ERRORS[operands]
    # For normal operands, √(Σ a²b²) is (π/2)/√K times Σ|a||b|: a random error shrinks by this factor relative to it.
    by_chance = (math.pi / 2) / math.sqrt(reduction)
    sums = 2.0**-23 * math.sqrt(reduction)
    coarse = _COARSE_ERROR if coarse_sums else 0.0
    # Each partial sum is rounded, and so is each running total except the last. The j-th of n totals is about √(j/n) of
    # the final one. One rounding contributes 0.41 unit roundoffs (uniform error, values spread over a binade; 0.5
    # leaves a margin). If the result is far from 0, so were the running totals.
    roundoff = DTYPE_ROUNDOFF[dtype] if roundings > 1 else 0.0
    partial = 0.5 * roundoff * math.sqrt((roundings - 1) / 2 + 1)
    of_sums = 3 * 0.5 * roundoff * math.sqrt((roundings - 1) / 3)
    most = 2 * spread + 2 * roundings * roundoff
    return Allowance(
        of_value=1.4 * bias + of_sums + 4 * coarse,
        of_scale=min(6 * math.hypot(spread, partial) * by_chance, most) + sums + coarse,
        expected_of_value=bias,
        expected_of_scale=math.hypot(spread, partial) * by_chance + sums / 4 + coarse / 12,
        # Products of half types are exact in float32, products of float32 in float64.
        reference_dtype="float64" if dtype == "float32" else "float32",
    )


def _allowance(
    problem: Problem, partial_sums: int, distribution: str, capability: tuple[int, int] | None
) -> Allowance:
    operands = "exact"
    # Small integers are exact in tf32. Matrix units multiply float32 from compute capability 8.0 on.
    if problem.dtype == "float32" and distribution not in ("integers", "zeros"):
        has_matrix_units = capability is not None and capability >= (8, 0)
        if problem.precision == "tf32_rounded" or (
            problem.precision in ("tf32", "tf32x3") and has_matrix_units
        ):
            operands = problem.precision
    is_float8 = problem.dtype.startswith("float8")
    coarse_sums = is_float8 and capability is not None and capability < (10, 0)
    return allowance(problem.dtype, problem.K, operands, partial_sums, coarse_sums)


def with_tf32(problem: Problem, call: Callable[[], Any]) -> Callable[[], Any]:
    """Wrap a library call so that it multiplies float32 as tf32, or in full if the problem's precision is higher."""
    import torch

    tf32 = baseline_uses_tf32(problem)

    def configured() -> Any:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        return call()

    return configured


def _baseline(inputs: Tensors, output: Any, problem: Problem) -> Callable[[], Any] | str:
    """Return a call of torch.matmul into `output`, or of torch._scaled_mm with scales of 1.

    torch._scaled_mm accepts only a row-major A and a K-major B, so it gets copies in these layouts.
    """
    import torch

    a = inputs["A"]
    b = inputs["B"]
    if not problem.dtype.startswith("float8"):
        return with_tf32(problem, lambda: torch.matmul(a, b, out=output))
    if problem.dtype == "float8_e5m2":
        return "torch can't multiply two float8_e5m2 matrices."
    if problem.K % 16 or problem.N % 16:
        return f"torch._scaled_mm accepts only multiples of 16; K is {problem.K}, N is {problem.N}."
    a = a.contiguous()
    b = b.t().contiguous().t()
    unit = torch.ones((), device=a.device)
    return lambda: torch._scaled_mm(a, b, scale_a=unit, scale_b=unit, out_dtype=a.dtype, out=output)


def _alternatives(inputs: Tensors, output: Any, problem: Problem) -> dict[str, Callable[[], None]]:
    """Return the same call through cuBLASLt. torch defaults to cuBLAS."""
    import torch

    call = _baseline(inputs, output, problem)
    if problem.dtype.startswith("float8") or isinstance(call, str):
        return {}  # torch multiplies float8 with cuBLASLt only

    def call_cublaslt() -> None:
        preferred = torch.backends.cuda.preferred_blas_library()
        torch.backends.cuda.preferred_blas_library("cublaslt")
        try:
            call()
        finally:
            torch.backends.cuda.preferred_blas_library(preferred)

    return {"torch.matmul, cuBLASLt": call_cublaslt}


def baseline_uses_tf32(problem: Problem) -> bool:
    """Return whether the library call multiplies float32 as tf32, which it does unless the kernel is more precise."""
    return problem.precision in ("tf32", "tf32_rounded")


def _baseline_name(problem: Problem) -> str:
    if problem.dtype.startswith("float8"):
        return "torch._scaled_mm (K-major B)"
    if problem.dtype == "float32" and not baseline_uses_tf32(problem):
        return "torch.matmul, IEEE float32"
    return "torch.matmul"


def _refuse(problem: Problem, config: Any) -> None:
    """Raise ConfigError for float8 with BLOCK_K below 32: the matrix unit needs at least 32 float8 elements along K."""
    if DTYPE_BYTES[problem.dtype] == 1 and (size := config.BLOCK_K) < 32:
        raise ConfigError(
            "out_of_range",
            f"BLOCK_K must be at least 32 for {problem.dtype} (got {size}).",
            "BLOCK_K",
        )


_NOTES = {
    "tf32": "GPUs of compute capability 8.0 or higher multiply float32 as tf32. This kernel truncates mantissas to 10 "
    "bits; torch rounds them. The interpreter multiplies in full.",
    "tf32_rounded": "This kernel rounds float32 operands to tf32 (10 mantissa bits) before multiplying, as torch does.",
    "tf32x3": "On GPUs of compute capability 8.0 or higher, this kernel splits each float32 operand into two tf32 "
    "numbers and adds three products. torch and the interpreter multiply in full.",
    "ieee": "float32 operands are multiplied in full, without matrix units.",
}


def _note(problem: Problem) -> str:
    size = DTYPE_BYTES[problem.dtype]
    notes = []
    if problem.dtype == "float32":
        notes.append(_NOTES[problem.precision])
    # On an H200, NT is 3 times as fast as NN in tf32, and 15 times in float8.
    if problem.layout != "NT" and size != 2 and (size == 1 or problem.precision != "ieee"):
        name = "float8" if size == 1 else "tf32"
        notes.append(
            f"Hopper's Tensor Cores need K-major {name} operands. In layouts other than NT, Triton transposes blocks "
            "through registers, which is several times slower."
        )
    return " ".join(notes)


FAMILY = Family(
    id="matmul",
    problem=Problem,
    tensors=_tensors,
    reference=multiply_rows,
    baseline=_baseline,
    baseline_name=_baseline_name,
    alternatives=_alternatives,
    magnitude="|A| @ |B|",
    allowance=_allowance,
    error_scale=multiply_rows,
    panels=("A", "B"),
    work=lambda problem: 2 * problem.M * problem.N * problem.K,
    # Three tf32 products make up a float32 product; IEEE float32 uses no matrix unit.
    matrix_passes=lambda problem: (
        {"ieee": 0, "tf32x3": 3}.get(problem.precision, 1) if problem.dtype == "float32" else 1
    ),
    best=lambda problem: replace(problem, M=8192, N=8192, K=8192, layout="NN"),
    why_library_is_slow=_why_library_is_slow,
    note=_note,
    refuse=_refuse,
    essential=lambda problem: (
        problem if problem.dtype == "float32" else replace(problem, precision="tf32")
    ),
)
