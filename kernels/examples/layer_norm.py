"""Layer norm, one row per program. Look at the weights: every program loads them again, mostly from L1 or L2."""

import torch
import triton
import triton.language as tl


@triton.jit
def layer_norm(x, weight, bias, out, cols, eps, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    mask = column < cols
    values = tl.load(x + row * cols + column, mask=mask, other=0.0).to(tl.float32)
    centered = tl.where(mask, values - tl.sum(values, axis=0) / cols, 0.0)
    scale = tl.rsqrt(tl.sum(centered * centered, axis=0) / cols + eps)
    w = tl.load(weight + column, mask=mask).to(tl.float32)
    b = tl.load(bias + column, mask=mask).to(tl.float32)
    tl.store(out + row * cols + column, centered * scale * w + b, mask=mask)


def case(rows=4096, cols=4096, num_warps=8):
    x = torch.randn(rows, cols, device="cuda", dtype=torch.float16)
    weight, bias = (torch.randn(cols, device="cuda", dtype=torch.float16) for _ in range(2))
    arguments = dict(
        x=x, weight=weight, bias=bias, out=torch.empty_like(x), cols=cols, eps=1e-5,
        BLOCK=triton.next_power_of_2(cols), num_warps=num_warps,
    )  # fmt: skip
    return (
        layer_norm,
        (rows,),
        arguments,
        {"out": torch.nn.functional.layer_norm(x, (cols,), weight, bias)},
    )
