"""Histogram with atomics. Look at the sectors of the atomic: its lanes update bins in different sectors."""

import torch
import triton
import triton.language as tl


@triton.jit
def histogram(values, bins, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.atomic_add(bins + tl.load(values + i, mask=mask, other=0), 1, mask=mask, sem="relaxed")


def case(n=1 << 18, count=1024, BLOCK=512, num_warps=4):
    torch.manual_seed(0)  # two captures have equal counts
    values = torch.randint(0, count, (n,), device="cuda")
    bins = torch.zeros(count, device="cuda", dtype=torch.int32)
    arguments = dict(values=values, bins=bins, n=n, BLOCK=BLOCK, num_warps=num_warps)
    return (
        histogram,
        (triton.cdiv(n, BLOCK),),
        arguments,
        {"bins": torch.bincount(values, minlength=count).int()},
    )
