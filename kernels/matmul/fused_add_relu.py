"""D = relu(A @ B + C) in one kernel: what follows the sum is done while the tile is still on chip."""

from dataclasses import dataclass, replace
from typing import Any

from kernels import orders
from kernels.jit import on_arrays, tl, triton
from kernels.matmul import problem as family
from kernels.matmul import tile
from kernels.matmul.grouped import grid, group_of, tiles_of
from kernels.matmul.problem import FAMILY, Problem, block_k, block_m, block_n, extents
from kernels.orders import grouped, tile_offsets
from kernels.source import memory_lines
from kernels.spec import DTYPE_BYTES, Access, Axis, Kernel, Preset, TensorSpec, knob, num_stages, num_warps


@dataclass(frozen=True)
class Config:
    BLOCK_M: int = block_m(128)
    BLOCK_N: int = block_n(256)
    BLOCK_K: int = block_k()
    GROUP_SIZE: int = knob(8, "Tile", "Rows of tiles that are filled together before the next column.", low=1, high=64)
    num_warps: int = num_warps()
    num_stages: int = num_stages()


@triton.jit
def matmul_fused_add_relu(
    a,
    b,
    c,
    d,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    stride_dm,
    stride_dn,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
):
    pid_m, pid_n = grouped(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_SIZE)
    accumulator = tile.multiply(
        a, b, pid_m, pid_n, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, BLOCK_M, BLOCK_N, BLOCK_K
    )
    rows = tile_offsets(pid_m, BLOCK_M)
    columns = tile_offsets(pid_n, BLOCK_N)
    added = tl.load(
        c + rows[:, None] * stride_cm + columns[None, :] * stride_cn,
        mask=(rows[:, None] < M) & (columns[None, :] < N),
        other=0.0,
    )
    result = tl.maximum(accumulator + added.to(tl.float32), 0.0)
    tile.store(d, result, pid_m, pid_n, M, N, stride_dm, stride_dn, BLOCK_M, BLOCK_N)


def accesses(problem: Problem, config: Config) -> tuple[Access, ...]:
    """As of every matmul, with a load of C, and the store into D."""
    load_a, load_b, store = family.accesses(problem, config)
    start = on_arrays(orders.tile_start)
    m, n = Axis("m", config.BLOCK_M, start), Axis("n", config.BLOCK_N, start)
    (line,) = memory_lines(matmul_fused_add_relu)
    return load_a, load_b, Access("load", "C", m, n, ("m", "n"), line), replace(store, tensor="D")


def arguments(tensors: Any, problem: Problem, config: Config) -> dict[str, Any]:
    d = tensors["D"]
    return {
        **family.arguments(tensors, problem, config),
        **{"d": d, "stride_dm": d.stride(0), "stride_dn": d.stride(1), "GROUP_SIZE": config.GROUP_SIZE},
    }


def _tensors(problem: Problem) -> dict[str, TensorSpec]:
    shape = (problem.M, problem.N)
    product = FAMILY.tensors(problem)
    return {**product, "C": TensorSpec(shape, is_input=True), "D": TensorSpec(shape, is_input=False)}


def _reference(inputs: dict[str, Any], rows: slice) -> Any:
    return (FAMILY.reference(inputs, rows) + inputs["C"][rows]).relu_()


def _baseline(inputs: dict[str, Any], output: Any) -> None:
    """torch.addmm into `output`, then ReLU in place; float32 as tf32, like the kernel."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = True
    torch.addmm(inputs["C"], inputs["A"], inputs["B"], out=output).relu_()


KERNEL = Kernel(
    id="matmul.fused_add_relu",
    title="fused add and ReLU",
    claim="The sum with C and the ReLU cost one more load: the product never goes to memory and back.",
    family=replace(
        FAMILY,
        tensors=_tensors,
        reference=_reference,
        baseline=_baseline,
        baseline_name="torch.addmm, then relu_",
        minimal_bytes=lambda problem: (
            FAMILY.minimal_bytes(problem) + problem.M * problem.N * DTYPE_BYTES[problem.dtype]
        ),
    ),
    config=Config,
    jitted=matmul_fused_add_relu,
    grid=grid,
    extents=extents,
    tiles=tiles_of,
    group=group_of,
    accesses=accesses,
    arguments=arguments,
    presets=(
        Preset(
            "Large: 4096³",
            {"M": 4096, "N": 4096, "K": 4096},
            {"BLOCK_K": 64, "num_warps": 8},
        ),
    ),
)
