"""Atomics on 16 bits, packed or as loops; other orders."""

import torch
import triton
import triton.language as tl


@triton.jit
def scatter(source, index, target, SEM: tl.constexpr, SIZE: tl.constexpr):
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.atomic_add(target + tl.load(index + i), tl.load(source + i), sem=SEM)


@triton.jit
def add_rows(source, target, SIZE: tl.constexpr):
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.atomic_add(target + i, tl.load(source + i), sem="relaxed")


@triton.jit
def last_adds(source, target, counter, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    x = tl.load(source + tl.program_id(0) * SIZE + i)
    tl.store(target + tl.program_id(0) * SIZE + i, x)
    if tl.atomic_cas(counter, 0, 1) == 0:
        tl.store(target + i, x + 1)


i = torch.randint(0, 512, (1024,), dtype=torch.int32, device="cuda")
for dtype in (torch.bfloat16, torch.float16, torch.float32):
    x = torch.ones(1024, dtype=dtype, device="cuda")
    t = torch.zeros(1024, dtype=dtype, device="cuda")
    for sem in ("relaxed", "acq_rel"):
        scatter[(2,)](x, i, t, sem, 512)
    add_rows[(2,)](x, t, 512)
last_adds[(4,)](
    torch.ones(1024, device="cuda"),
    torch.zeros(1024, device="cuda"),
    torch.zeros(1, dtype=torch.int32, device="cuda"),
    256,
)
