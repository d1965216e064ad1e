"""Fused softmax, one row per program. Look at the bytes per lane when cols is not a multiple of 16."""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax(x, out, cols, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    mask = column < cols
    values = tl.load(x + row * cols + column, mask=mask, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * cols + column, powers / tl.sum(powers, axis=0), mask=mask)


def case(rows=4096, cols=1000, num_warps=4):
    x = torch.randn(rows, cols, device="cuda")
    arguments = dict(
        x=x,
        out=torch.empty_like(x),
        cols=cols,
        BLOCK=triton.next_power_of_2(cols),
        num_warps=num_warps,
    )
    return softmax, (rows,), arguments, {"out": torch.softmax(x, 1)}
