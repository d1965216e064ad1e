"""Cases for `benchmarks.tune`: a softmax in chunks, and the backward pass of an RMS norm. Each has 48 configs."""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax(x, out, cols, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    """Softmax of one row per program, in chunks: one pass for the maximum and the sum, one for the output."""
    start = tl.program_id(0).to(tl.int64) * cols
    largest = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for first in tl.range(0, cols, BLOCK, num_stages=STAGES):
        column = first + tl.arange(0, BLOCK)
        value = tl.load(x + start + column, mask=column < cols, other=float("-inf"))
        new = tl.maximum(largest, value)
        scale = tl.where(new == float("-inf"), 0.0, tl.exp(largest - new))
        total = total * scale + tl.where(new == float("-inf"), 0.0, tl.exp(value - new))
        largest = new
    row_largest = tl.max(largest, axis=0)
    row_total = tl.sum(total * tl.exp(largest - row_largest), axis=0)
    for first in tl.range(0, cols, BLOCK, num_stages=STAGES):
        column = first + tl.arange(0, BLOCK)
        value = tl.load(x + start + column, mask=column < cols, other=float("-inf"))
        tl.store(out + start + column, tl.exp(value - row_largest) / row_total, mask=column < cols)


def case_softmax(rows=4096, cols=4096, BLOCK=1024, STAGES=1, num_warps=4):
    x = torch.randn(rows, cols, device="cuda")
    arguments = dict(
        x=x, out=torch.empty_like(x), cols=cols, BLOCK=BLOCK, STAGES=STAGES, num_warps=num_warps
    )
    return softmax, (rows,), arguments, {"out": torch.softmax(x, 1)}


@triton.jit
def rms_norm_backward(
    x, weight, scale, grad, x_grad, weight_grad, rows, cols,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Gradients of `x * scale * weight` with respect to x and, as one partial sum per program, to weight.

    A program has ROWS rows. `scale` is 1 / the root mean square of each row.
    """
    pid = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    mask = column < cols
    w = tl.load(weight + column, mask=mask, other=0.0).to(tl.float32)
    part = tl.zeros([BLOCK], tl.float32)
    for number in tl.range(0, ROWS, num_stages=STAGES):
        row = pid * ROWS + number
        inside = mask & (row < rows)
        place = row.to(tl.int64) * cols + column
        value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
        out_grad = tl.load(grad + place, mask=inside, other=0.0).to(tl.float32)
        s = tl.load(scale + row, mask=row < rows, other=0.0)
        normal = value * s
        weighted = out_grad * w
        mean = tl.sum(normal * weighted, axis=0) / cols
        tl.store(x_grad + place, (weighted - normal * mean) * s, mask=inside)
        part += out_grad * normal
    tl.store(weight_grad + pid.to(tl.int64) * cols + column, part, mask=mask)


def case_rms_norm_backward(rows=8192, cols=4096, ROWS=4, STAGES=1, num_warps=4):
    x = torch.randn(rows, cols, device="cuda", dtype=torch.bfloat16)
    grad = torch.randn_like(x)
    weight = torch.randn(cols, device="cuda", dtype=torch.bfloat16)
    scale = torch.rsqrt(x.float().square().mean(1) + 1e-6)
    programs = triton.cdiv(rows, ROWS)
    arguments = dict(
        x=x,
        weight=weight,
        scale=scale,
        grad=grad,
        x_grad=torch.empty_like(x),
        weight_grad=torch.empty(programs, cols, device="cuda"),
        rows=rows,
        cols=cols,
        ROWS=ROWS,
        BLOCK=triton.next_power_of_2(cols),
        STAGES=STAGES,
        num_warps=num_warps,
    )
    normal = x.float() * scale[:, None]
    weighted = grad.float() * weight.float()
    expected = (weighted - normal * (normal * weighted).mean(1, keepdim=True)) * scale[:, None]
    return rms_norm_backward, (programs,), arguments, {"x_grad": expected.to(x.dtype)}
