"""Vector add. Each lane moves 16 bytes per instruction; set offset = 1 to see the cost of a misaligned view."""

import torch
import triton
import triton.language as tl


@triton.jit
def vector_add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(out + i, tl.load(x + i, mask=mask) + tl.load(y + i, mask=mask), mask=mask)


def case(n=1 << 20, offset=0, BLOCK=1024, num_warps=4):
    x, y = torch.randn(n + offset, device="cuda")[offset:], torch.randn(n, device="cuda")
    out = torch.empty_like(y)
    arguments = dict(x=x, y=y, out=out, n=n, BLOCK=BLOCK, num_warps=num_warps)
    return vector_add, (triton.cdiv(n, BLOCK),), arguments, {"out": x + y}
