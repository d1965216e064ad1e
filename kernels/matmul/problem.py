"""The matmul family: C[M, N] = A[M, K] @ B[K, N], K the reduction. Problem, tensors, reference, costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from kernels import orders
from kernels.accesses import Access, Axis
from kernels.jit import on_arrays
from kernels.knobs import ConfigError, knob, powers
from kernels.matmul import tile
from kernels.matmul.rounding import Arithmetic, allowance
from kernels.source import memory_lines
from kernels.spec import DTYPE_BYTES, Allowance, ConfigFields, Family, Launch, Rounding, TensorSpec

LAYOUTS = ("NN", "NT", "TN", "TT")
PRECISIONS = ("tf32", "tf32_rounded", "tf32x3", "ieee")


@dataclass(frozen=True)
class Problem:
    M: int = knob(512, "Shape", "Rows of A and C.", low=1, high=16384, stops="powers")
    N: int = knob(512, "Shape", "Columns of B and C.", low=1, high=16384, stops="powers")
    K: int = knob(512, "Shape", "Columns of A, rows of B: the reduction.", low=1, high=16384, stops="powers")
    dtype: str = knob("float16", "Shape", "Type of A, B and C; sums are float32.", choices=tuple(DTYPE_BYTES))
    layout: str = knob(
        "NN", "Shape", "How A and B are stored: N as they are, T as their transpose, so that NT is K-major B.",
        choices=LAYOUTS,
    )  # fmt: skip
    precision: str = knob(
        "tf32", "Shape",
        "How float32 is multiplied: truncated to tf32, rounded to tf32, as three tf32 products, or in full.",
        choices=PRECISIONS, only_with=("dtype", ("float32",)),
    )  # fmt: skip


class TileConfig(ConfigFields, Protocol):
    """What the config of every matmul has."""

    @property
    def BLOCK_M(self) -> int: ...

    @property
    def BLOCK_N(self) -> int: ...

    @property
    def BLOCK_K(self) -> int: ...


class GroupedConfig(TileConfig, Protocol):
    """That of a matmul in grouped order."""

    @property
    def GROUP_SIZE(self) -> int: ...


def block_m(default: int = 64) -> Any:
    return knob(default, "Tile", "Rows of C that a program computes.", choices=powers(16, 256))


def block_n(default: int = 64, low: int = 16) -> Any:
    return knob(default, "Tile", "Columns of C that a program computes.", choices=powers(low, 256))


def block_k(default: int = 32) -> Any:
    return knob(default, "Tile", "Elements along K that a program loads at a time.", choices=powers(16, 256))


def group_size(default: int) -> Any:
    # At most all rows of tiles: 16,384 / 16.
    text = "Rows of tiles that are filled together before the next column."
    return knob(default, "Tile", text, low=1, high=1024, reach=64)


def extents(launch: Launch[Problem, TileConfig]) -> dict[str, int]:
    """Tiles of C along M and N, blocks along K."""
    problem, config = launch.problem, launch.config
    return {
        "m": -(-problem.M // config.BLOCK_M),
        "n": -(-problem.N // config.BLOCK_N),
        "k": -(-problem.K // config.BLOCK_K),
    }


def axes(launch: Launch[Problem, TileConfig]) -> tuple[Axis, Axis, Axis]:
    """Tiles along M, N and K."""
    start, config = on_arrays(orders.tile_start), launch.config
    return Axis("m", config.BLOCK_M, start), Axis("n", config.BLOCK_N, start), Axis("k", config.BLOCK_K, start)


def accesses(launch: Launch[Problem, TileConfig]) -> tuple[Access, ...]:
    """The loads of A and B and the store of C of a kernel built from `matmul.tile`, with pointers."""
    m, n, _ = axes(launch)
    (store_c,) = memory_lines(tile.store)
    return *operand_loads(launch), Access("store", "C", m, n, ("m", "n"), store_c)


def operand_loads(launch: Launch[Problem, TileConfig]) -> tuple[Access, Access]:
    """The loads of `tile.multiply`."""
    m, n, k = axes(launch)
    load_a, load_b = memory_lines(tile.multiply)
    return _operand("load", "A", m, k, launch, load_a), _operand("load", "B", k, n, launch, load_b)


def tma_loads(launch: Launch[Problem, TileConfig]) -> tuple[Access, Access]:
    """The copies of `tile.load_tma`: for each operand a line of its own where it is stored transposed."""
    m, n, k = axes(launch)
    a_transposed, a_plain, b_transposed, b_plain = memory_lines(tile.load_tma)
    a, b = (letter == "T" for letter in launch.problem.layout)
    return (
        _operand("descriptor", "A", m, k, launch, a_transposed if a else a_plain),
        _operand("descriptor", "B", k, n, launch, b_transposed if b else b_plain),
    )


def _operand(
    op: str, name: str, rows: Axis, columns: Axis, launch: Launch[Problem, TileConfig], line: tuple[str, int]
) -> Access:
    stored = (columns, rows) if _tensors(launch.problem)[name].transposed else (rows, columns)
    # Pointers follow the operand as it is multiplied, a descriptor's block the operand as it is stored.
    pointers = None if op == "descriptor" else (rows.index, columns.index)
    return Access(op, name, *stored, ("m", "n", "k"), line, pointers=pointers)


def arguments(tensors: Mapping[str, Any], launch: Launch[Problem, TileConfig]) -> dict[str, Any]:
    """What every matmul kernel takes: three tensors, three sizes, six strides, the tile and the launch options."""
    problem, config = launch.problem, launch.config
    a, b, c = tensors["A"], tensors["B"], tensors["C"]
    return {
        **{"a": a, "b": b, "c": c, "M": problem.M, "N": problem.N, "K": problem.K},
        **{"stride_am": a.stride(0), "stride_ak": a.stride(1)},
        **{"stride_bk": b.stride(0), "stride_bn": b.stride(1)},
        **{"stride_cm": c.stride(0), "stride_cn": c.stride(1)},
        **{"BLOCK_M": config.BLOCK_M, "BLOCK_N": config.BLOCK_N, "BLOCK_K": config.BLOCK_K},
        "PRECISION": problem.precision if problem.dtype == "float32" else "tf32",
        **{"num_warps": config.num_warps, "num_stages": config.num_stages},
    }


def _tensors(problem: Problem) -> dict[str, TensorSpec]:
    a_transposed, b_transposed = (letter == "T" for letter in problem.layout)
    return {
        "A": TensorSpec((problem.M, problem.K), is_input=True, transposed=a_transposed),
        "B": TensorSpec((problem.K, problem.N), is_input=True, transposed=b_transposed),
        "C": TensorSpec((problem.M, problem.N), is_input=False),
    }


def _reference(inputs: Mapping[str, Any], rows: slice) -> Any:
    """Those rows of A @ B in the inputs' type; float32 in full, not as tf32."""
    import torch

    tf32 = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        return inputs["A"][rows] @ inputs["B"]
    finally:
        torch.backends.cuda.matmul.allow_tf32 = tf32


def _baseline(inputs: Mapping[str, Any], output: Any, problem: Problem) -> Callable[[], None] | str:
    """torch.matmul into `output`: float32 as tf32, or in full where the problem asks for more than tf32."""
    import torch

    a, b = inputs["A"], inputs["B"]
    if problem.dtype.startswith("float8"):
        return _float8_baseline(a, b, output, problem)
    tf32 = baseline_uses_tf32(problem)

    def call() -> None:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.matmul(a, b, out=output)

    return call


def _alternatives(inputs: Mapping[str, Any], output: Any, problem: Problem) -> dict[str, Callable[[], None]]:
    """The same call by cuBLASLt. torch takes cuBLAS for it, unless told otherwise."""
    import torch

    if problem.dtype.startswith("float8"):
        return {}  # torch has cuBLASLt alone for these
    call = _baseline(inputs, output, problem)
    assert not isinstance(call, str)

    def by_cublaslt() -> None:
        preferred = torch.backends.cuda.preferred_blas_library()
        torch.backends.cuda.preferred_blas_library("cublaslt")
        try:
            call()
        finally:
            torch.backends.cuda.preferred_blas_library(preferred)

    return {"torch.matmul, cuBLASLt": by_cublaslt}


def baseline_uses_tf32(problem: Problem) -> bool:
    """Whether the library's call multiplies float32 as tf32: only where the kernel is no more precise."""
    return problem.precision in ("tf32", "tf32_rounded")


def _float8_baseline(a: Any, b: Any, output: Any, problem: Problem) -> Callable[[], None] | str:
    """torch._scaled_mm with scales of 1. It takes row-major A and K-major B alone: copies of that layout."""
    import torch

    if problem.dtype == "float8_e5m2":
        return "torch multiplies no two float8_e5m2 operands."
    if problem.K % 16 or problem.N % 16:
        return f"torch._scaled_mm takes multiples of 16 only; K is {problem.K}, N is {problem.N}."
    a, b = a.contiguous(), b.t().contiguous().t()
    one = torch.ones((), device=a.device)

    def call() -> None:
        torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=a.dtype, out=output)

    return call


def _baseline_name(problem: Problem) -> str:
    if problem.dtype.startswith("float8"):
        return "torch._scaled_mm (K-major B)"
    if problem.dtype == "float32" and not baseline_uses_tf32(problem):
        return "torch.matmul, IEEE float32"
    return "torch.matmul"


def _refuse(problem: Problem, config: TileConfig) -> None:
    """The matrix unit takes float8 in steps of at least 32 along K."""
    if DTYPE_BYTES[problem.dtype] == 1 and config.BLOCK_K < 32:
        raise ConfigError("out_of_range", f"BLOCK_K is {config.BLOCK_K}; {problem.dtype} needs at least 32.", "BLOCK_K")


def _matrix_passes(problem: Problem) -> int:
    """Three products of tf32 parts make one of float32."""
    if problem.dtype != "float32":
        return 1
    return {"ieee": 0, "tf32x3": 3}.get(problem.precision, 1)


_NOTES = {
    "tf32": "On a GPU (from compute capability 8.0 on) float32 operands are multiplied as tf32: this kernel truncates "
    "their mantissas to 10 bits, torch rounds them; the interpreter multiplies them in full.",
    "tf32_rounded": "float32 operands are rounded to tf32 (10 bits of mantissa) before they are multiplied, as by "
    "torch.",
    "tf32x3": "On a GPU (from compute capability 8.0 on) a float32 operand is split into two tf32 numbers, and three "
    "products are added; torch multiplies in full; so does the interpreter.",
    "ieee": "float32 operands are multiplied in full, without matrix units.",
}


def of_product(rounding: Rounding[Problem]) -> Allowance:
    """What is allowed for an element of A @ B."""
    return allowance(arithmetic(rounding))


def arithmetic(rounding: Rounding[Problem]) -> Arithmetic:
    """What a launch of a matmul does to numbers."""
    problem, gpu = rounding.launch.problem, rounding.launch.gpu
    operands = "exact"
    # Small whole numbers lose no bits as tf32. Matrix units multiply float32 from compute capability 8.0 on.
    if problem.dtype == "float32" and rounding.distribution not in ("integers", "zeros"):
        matrix_units = not rounding.interpreted and gpu.compute_capability >= (8, 0)
        if problem.precision == "tf32_rounded" or (problem.precision in ("tf32", "tf32x3") and matrix_units):
            operands = problem.precision
    is_float8 = DTYPE_BYTES[problem.dtype] == 1
    return Arithmetic(
        dtype=problem.dtype,
        reduction=problem.K,
        operands=operands,
        roundings=rounding.partial_sums,
        coarse_sums=is_float8 and not rounding.interpreted and gpu.compute_capability < (10, 0),
    )


FAMILY = Family(
    id="matmul",
    problem=Problem,
    tensors=_tensors,
    reference=_reference,
    baseline=_baseline,
    baseline_name=_baseline_name,
    alternatives=_alternatives,
    magnitude="|A| @ |B|",
    allowance=of_product,
    error_scale=_reference,
    limit_follows="this dtype and K",
    panels=("A", "B"),
    work=lambda problem: 2 * problem.M * problem.N * problem.K,
    matrix_passes=_matrix_passes,
    best=lambda problem: dataclasses.replace(problem, M=8192, N=8192, K=8192, layout="NN"),
    note=lambda problem: _NOTES[problem.precision] if problem.dtype == "float32" else "",
    refuse=_refuse,
    essential=lambda problem: problem if problem.dtype == "float32" else dataclasses.replace(problem, precision="tf32"),
)
