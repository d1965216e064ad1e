"""Causal attention, forward pass. Look at the loads of K and V: programs for later rows load more of them."""

import torch
import triton
import triton.language as tl


@triton.jit
def attention(
    q, k, v, out, length, scale, DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    start, base = tl.program_id(0) * BLOCK_M, tl.program_id(1).to(tl.int64) * length * DIM
    rows, dims = start + tl.arange(0, BLOCK_M), tl.arange(0, DIM)
    at = base + rows[:, None] * DIM + dims[None, :]
    inside = rows[:, None] < length
    queries = tl.load(q + at, mask=inside, other=0.0)
    total = tl.zeros((BLOCK_M, DIM), tl.float32)
    highest, weight = tl.full((BLOCK_M,), -1e30, tl.float32), tl.zeros((BLOCK_M,), tl.float32)
    for first in range(0, tl.minimum(start + BLOCK_M, length), BLOCK_N):
        columns = first + tl.arange(0, BLOCK_N)
        place = base + columns[:, None] * DIM + dims[None, :]
        keys = tl.load(k + place, mask=columns[:, None] < length, other=0.0)
        scores = tl.dot(queries, keys.T) * scale
        scores = tl.where(rows[:, None] >= columns[None, :], scores, -1e30)
        new = tl.maximum(highest, tl.max(scores, 1))
        powers, correction = tl.exp(scores - new[:, None]), tl.exp(highest - new)
        values = tl.load(v + place, mask=columns[:, None] < length, other=0.0)
        weight = weight * correction + tl.sum(powers, 1)
        total = tl.dot(powers.to(values.dtype), values, total * correction[:, None])
        highest = new
    tl.store(out + at, (total / weight[:, None]).to(out.dtype.element_ty), mask=inside)


def case(
    batch=4, heads=16, length=2048, DIM=64, BLOCK_M=128, BLOCK_N=64, num_warps=4, num_stages=3
):
    q, k, v = (
        torch.randn(batch, heads, length, DIM, device="cuda", dtype=torch.float16) for _ in range(3)
    )
    arguments = dict(
        q=q, k=k, v=v, out=torch.empty_like(q), length=length, scale=DIM**-0.5, DIM=DIM, BLOCK_M=BLOCK_M,
        BLOCK_N=BLOCK_N, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return attention, (triton.cdiv(length, BLOCK_M), batch * heads), arguments, {"out": expected}
