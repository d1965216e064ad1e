"""Loads that the assembler may merge, drop or move."""

import torch
import triton
import triton.language as tl


@triton.jit
def window(source, target, STEPS: tl.constexpr, STRIDE: tl.constexpr, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    total = tl.zeros((SIZE,), tl.float32)
    for step in tl.static_range(STEPS):
        total += tl.load(source + STRIDE * step + i)
    tl.store(target + i, total)


@triton.jit
def twice(source, target, n, SIZE: tl.constexpr):
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    a = tl.load(source + i, mask=i < n)
    b = tl.load(source + i, mask=i < n)
    c = tl.load(source + i + 4, mask=i < n)
    tl.store(target + i, a * b + c, mask=i < n)


@triton.jit
def unrolled(source, target, rows, cols, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    total = tl.zeros((SIZE,), tl.float32)
    base = source + tl.program_id(0) * rows * cols
    for row in range(rows):
        x = tl.load(base + row * cols + i)
        y = tl.load(base + row * cols + i)
        z = tl.load(base + row * cols + i + SIZE)
        total += x * y + z
    tl.store(target + tl.program_id(0) * SIZE + i, total)


@triton.jit
def neighbours(source, target, n, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    total = tl.zeros((SIZE,), tl.float32)
    for k in range(n):
        left = tl.load(source + k * SIZE + i)
        right = tl.load(source + (k + 1) * SIZE + i)
        total += left * right
    tl.store(target + i, total)


@triton.jit
def three_neighbours(source, weight, target, n, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    total = tl.zeros((SIZE,), tl.float32)
    for k in range(n):
        left = tl.load(source + k * SIZE + i)
        right = tl.load(source + (k + 1) * SIZE + i)
        w = tl.load(weight + k * SIZE + i)
        total += left * right * w
    tl.store(target + i, total)


@triton.jit
def scalars(source, table, target, n, SIZE: tl.constexpr):
    pid = tl.program_id(0)
    a = tl.load(table + pid)
    b = tl.load(table + pid + 64)
    i = tl.arange(0, SIZE)
    if a > 0:
        for k in range(a):
            tl.store(target + b * 8192 + k * SIZE + i, tl.load(source + b * 8192 + k * SIZE + i))


@triton.jit
def small_branch(source, table, target, n, SIZE: tl.constexpr):
    pid = tl.program_id(0)
    a = tl.load(table + pid)
    b = tl.load(table + pid + 64)
    i = tl.arange(0, SIZE)
    if a > 2:
        tl.store(target + pid * SIZE + i, b.to(tl.float32) + i)


@triton.jit
def unused(source, table, target, n, SIZE: tl.constexpr, USE: tl.constexpr):
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    w = tl.load(source + i, mask=i < n, other=0.0)
    v = tl.load(source + i + 16, mask=(i < n) & (i % 2 == 3), other=0.0)
    tl.store(target + i, tl.where(i % 2 == 3, w, v), mask=i < n)


x = torch.empty(1 << 16, device="cuda")
y = torch.empty(1 << 18, device="cuda")
for steps, stride in ((4, 2), (3, 4), (5, 1), (4, 4), (8, 2)):
    window[(1,)](x, y, steps, stride, 512, num_warps=4)
twice[(3,)](x, y, 1500, 512)
for rows in (1, 5, 7, 16):
    unrolled[(2,)](x, y, rows, 512, 256)
for n in (3, 8, 13):
    neighbours[(1,)](x, y, n, 256, num_warps=2)
    three_neighbours[(1,)](x, y, y, n, 256, num_warps=2)
t = (torch.arange(128, device="cuda") % 5).to(torch.int32)
scalars[(64,)](x, t, y, 0, 256)
small_branch[(64,)](x, t, y, 0, 256)
unused[(3,)](x, t, y, 1500, 512, 0)
