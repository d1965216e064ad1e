"""The matmul family: C[M, N] = A[M, K] @ B[K, N], K the reduction. Problem, tensors, reference, costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernels import orders
from kernels.jit import on_arrays
from kernels.matmul import tile
from kernels.source import memory_lines
from kernels.spec import DTYPE_BYTES, Access, Axis, Family, TensorSpec, knob, powers


@dataclass(frozen=True)
class Problem:
    M: int = knob(512, "Shape", "Rows of A and C.", low=1, high=16384, stops="powers")
    N: int = knob(512, "Shape", "Columns of B and C.", low=1, high=16384, stops="powers")
    K: int = knob(512, "Shape", "Columns of A, rows of B: the reduction.", low=1, high=16384, stops="powers")
    dtype: str = knob(
        "float16",
        "Shape",
        "Type of A, B and C; sums are float32. float32 multiplies as tf32.",
        choices=tuple(DTYPE_BYTES),
    )


def block_m(default: int = 64) -> Any:
    return knob(default, "Tile", "Rows of C that a program computes.", choices=powers(16, 256))


def block_n(default: int = 64) -> Any:
    return knob(default, "Tile", "Columns of C that a program computes.", choices=powers(16, 256))


def block_k() -> Any:
    return knob(32, "Tile", "Elements along K that a program loads at a time.", choices=powers(16, 256))


def extents(problem: Problem, config: Any) -> dict[str, int]:
    """Tiles of C along M and N, blocks along K."""
    return {
        "m": -(-problem.M // config.BLOCK_M),
        "n": -(-problem.N // config.BLOCK_N),
        "k": -(-problem.K // config.BLOCK_K),
    }


def accesses(problem: Problem, config: Any) -> tuple[Access, ...]:
    """The loads of A and B and the store of C of a kernel built from `matmul.tile`."""
    start = on_arrays(orders.tile_start)
    m = Axis("m", config.BLOCK_M, start)
    n = Axis("n", config.BLOCK_N, start)
    k = Axis("k", config.BLOCK_K, start)
    load_a, load_b = memory_lines(tile.multiply)
    (store_c,) = memory_lines(tile.store)
    return (
        Access("load", "A", m, k, ("m", "n", "k"), load_a),
        Access("load", "B", k, n, ("m", "n", "k"), load_b),
        Access("store", "C", m, n, ("m", "n"), store_c),
    )


def arguments(tensors: Any, problem: Problem, config: Any) -> dict[str, Any]:
    """What every matmul kernel takes: three tensors, three sizes, six strides, the tile and the launch options."""
    a, b, c = tensors["A"], tensors["B"], tensors["C"]
    return {
        **{"a": a, "b": b, "c": c, "M": problem.M, "N": problem.N, "K": problem.K},
        **{"stride_am": a.stride(0), "stride_ak": a.stride(1)},
        **{"stride_bk": b.stride(0), "stride_bn": b.stride(1)},
        **{"stride_cm": c.stride(0), "stride_cn": c.stride(1)},
        **{"BLOCK_M": config.BLOCK_M, "BLOCK_N": config.BLOCK_N, "BLOCK_K": config.BLOCK_K},
        **{"num_warps": config.num_warps, "num_stages": config.num_stages},
    }


def _tensors(problem: Problem) -> dict[str, TensorSpec]:
    return {
        "A": TensorSpec((problem.M, problem.K), is_input=True),
        "B": TensorSpec((problem.K, problem.N), is_input=True),
        "C": TensorSpec((problem.M, problem.N), is_input=False),
    }


def _reference(inputs: dict[str, Any], rows: slice) -> Any:
    """Those rows of A @ B in the inputs' type; float32 in full, not as tf32."""
    import torch

    tf32 = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        return inputs["A"][rows] @ inputs["B"]
    finally:
        torch.backends.cuda.matmul.allow_tf32 = tf32


def _baseline(inputs: dict[str, Any], output: Any) -> None:
    """torch.matmul into `output`; float32 as tf32, like the kernels."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = True
    torch.matmul(inputs["A"], inputs["B"], out=output)


_TF32_NOTE = (
    "On a GPU float32 operands are multiplied as tf32, by this kernel (which cuts their mantissas to 10 bits) and by "
    "torch (which rounds them); the interpreter multiplies them in full."
)

FAMILY = Family(
    id="matmul",
    problem=Problem,
    tensors=_tensors,
    reference=_reference,
    baseline=_baseline,
    baseline_name="torch.matmul",
    reduction=lambda problem: problem.K,
    work=lambda problem: 2 * problem.M * problem.N * problem.K,
    minimal_bytes=lambda problem: (
        (problem.M * problem.K + problem.K * problem.N + problem.M * problem.N) * DTYPE_BYTES[problem.dtype]
    ),
    note=lambda problem: _TF32_NOTE if problem.dtype == "float32" else "",
)
