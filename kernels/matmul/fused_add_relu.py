"""D = relu(A @ B + C) in one kernel: the sum and the ReLU are applied while the tile is still on chip."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kernels.matmul import padding, persistent, tile
from kernels.matmul import problem as family
from kernels.matmul.problem import FAMILY, Problem, block_k, block_n, multiply_rows, with_tf32
from kernels.orders import grouped, tile_start
from tilescope.declare.jit import memory_lines, tl, triton
from tilescope.declare.spec import Access, Launch, Tensors, TensorSpec, preset


@dataclass(frozen=True)
class Config(persistent.Config):
    BLOCK_N: int = block_n(256, low=32)
    BLOCK_K: int = block_k()


@triton.jit
def matmul_fused_add_relu(
    a,
    b,
    c,
    d,
    M,
    N,
    K,
    a_strides,
    b_strides,
    c_strides,
    d_strides,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    PRECISION: tl.constexpr,
    USE_TMA: tl.constexpr,
    STORE_TMA: tl.constexpr,
    WHOLE_GROUPS: tl.constexpr,
    FLATTEN: tl.constexpr,
    A_TRANSPOSED: tl.constexpr,
    B_TRANSPOSED: tl.constexpr,
):
    num_pid_m = tl.cdiv(M, BLOCK_M)
    num_pid_n = tl.cdiv(N, BLOCK_N)
    # Flattening the loops lets the next tile's loads start while this tile is written.
    for place in tl.range(
        tl.program_id(0), num_pid_m * num_pid_n, tl.num_programs(0), flatten=FLATTEN
    ):
        pid_m, pid_n = grouped(place, num_pid_m, num_pid_n, GROUP_SIZE, WHOLE_GROUPS)
        row, column = tile_start(pid_m, BLOCK_M), tile_start(pid_n, BLOCK_N)
        if USE_TMA:
            accumulator = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            for step in range(0, tl.cdiv(K, BLOCK_K)):
                inner = tile_start(step, BLOCK_K)
                a_tile, b_tile = tile.load_tma(a, b, row, column, inner, A_TRANSPOSED, B_TRANSPOSED)
                accumulator = tile.add_product(a_tile, b_tile, accumulator, PRECISION)
        else:
            accumulator = tile.multiply(
                a, b, pid_m, pid_n, (0, tl.cdiv(K, BLOCK_K)), (M, N, K), a_strides, b_strides,
                (BLOCK_M, BLOCK_N, BLOCK_K), PRECISION,
            )  # fmt: skip
        if STORE_TMA:
            left, right = tile.halves(accumulator, BLOCK_M, BLOCK_N)
            column = tile_start(2 * pid_n, BLOCK_N // 2)
            left = tl.maximum(left + c.load([row, column]).to(tl.float32), 0.0)
            d.store([row, column], left.to(d.dtype))
            right = tl.maximum(right + c.load([row, column + BLOCK_N // 2]).to(tl.float32), 0.0)
            d.store([row, column + BLOCK_N // 2], right.to(d.dtype))
        else:
            pointers, inside = tile.locate(c, pid_m, pid_n, M, N, c_strides, BLOCK_M, BLOCK_N)
            added = tl.load(pointers, mask=inside, other=0.0)
            result = tl.maximum(accumulator + added.to(tl.float32), 0.0)
            tile.store(d, result, pid_m, pid_n, M, N, d_strides, BLOCK_M, BLOCK_N)


def accesses(launch: Launch[Problem]) -> tuple[Access, ...]:
    specs = _tensors(launch.problem)
    m, n, _ = family.axes(launch)
    *copy_lines, load_c = memory_lines(matmul_fused_add_relu)
    load_a, load_b, store = family.accesses(launch)
    falls_back = persistent.tma_fallback_reason(specs, launch)
    loads = (load_a, load_b) if falls_back else persistent.loads(specs, launch)
    if falls_back or persistent.stores_with_pointers(specs, launch):
        return *loads, Access("load", "C", m, n, ("m", "n"), load_c), replace(store, tensor="D")
    left, right = persistent.half_columns(launch)
    copies = zip("CDCD", (left, left, right, right), copy_lines, strict=True)
    return *loads, *(
        Access("descriptor", name, m, columns, ("m", "n"), line) for name, columns, line in copies
    )


def arguments(tensors: Tensors, launch: Launch[Problem]) -> dict[str, Any]:
    d = tensors["D"]
    half = launch.config.BLOCK_N // 2
    shared = persistent.persistent_arguments(
        tensors, _tensors(launch.problem), {"C": half, "D": half}, launch
    )
    # With 4-byte elements, tiles of C and D leave too little shared memory for the next tile's operands.
    flatten = shared["USE_TMA"] and launch.element_bytes <= 2
    return {"d": d, "d_strides": d.stride(), **shared, "FLATTEN": flatten}


def _tensors(problem: Problem) -> dict[str, TensorSpec]:
    shape = (problem.M, problem.N)
    return {
        **FAMILY.tensors(problem),
        "C": TensorSpec(shape, is_input=True),
        "D": TensorSpec(shape, is_input=False),
    }


def _reference(inputs: Tensors, rows: slice) -> Any:
    return (multiply_rows(inputs, rows) + inputs["C"][rows]).relu_()


def _baseline(inputs: Tensors, output: Any, problem: Problem) -> Callable[[], Any] | str:
    """Return a call of torch.addmm into `output`, then ReLU in place. `with_tf32` sets the precision of float32."""
    import torch

    if problem.dtype.startswith("float8"):
        return "torch can't add a float8 matrix to a product."
    return with_tf32(
        problem, lambda: torch.addmm(inputs["C"], inputs["A"], inputs["B"], out=output).relu_()
    )


def _alternatives(inputs: Tensors, output: Any, problem: Problem) -> dict[str, Callable[[], Any]]:
    """Return a call that runs product, sum and ReLU as three kernels, with intermediate results in memory."""
    import torch

    return {
        "torch eager, three calls": with_tf32(
            problem, lambda: torch.relu(inputs["A"] @ inputs["B"] + inputs["C"])
        )
    }


KERNEL = replace(
    persistent.KERNEL,
    id="matmul.fused_add_relu",
    title="fused add and ReLU",
    headline="Adding C and applying ReLU costs one extra load: the product never makes a round trip to memory.",
    family=FAMILY.extend(
        "fused_add_relu",
        tensors=_tensors,
        reference=_reference,
        baseline=_baseline,
        baseline_name=lambda problem: "torch.addmm, then relu_",
        alternatives=_alternatives,
        magnitude="|A| @ |B| + |C|",
        error_scale=_reference,
    ),
    config=Config,
    jitted=matmul_fused_add_relu,
    **padding.fields(_tensors),
    accesses=accesses,
    arguments=arguments,
    note=lambda launch: persistent.note(_tensors(launch.problem), launch),
    presets=(
        preset("Large: 4096³", "M=4096&N=4096&K=4096", "BLOCK_K=64&num_warps=8"),
        preset(
            "The article's grid search",
            "M=8192&N=8192&K=1024",
            "BLOCK_K=64&num_warps=8",
            "tab=sweep&sweep_vary=BLOCK_M=64,128,256+BLOCK_N=64,128,256+BLOCK_K=32,64,128+num_warps=4,8"
            "&sweep_configs=all",
        ),
    ),
)
