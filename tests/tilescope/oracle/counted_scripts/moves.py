"""Loads that may move, and merges in unrolled loops of integers and on one line."""

import torch
import triton
import triton.language as tl


@triton.jit
def in_else(table, target, SIZE: tl.constexpr):
    pid = tl.program_id(0)
    a = tl.load(table + pid)
    b = tl.load(table + pid + 64)
    i = tl.arange(0, SIZE)
    if a > 2:
        tl.store(target + pid * SIZE + i, a + i)
    else:
        for k in range(b):
            tl.store(target + pid * SIZE + i, i + k + b)


@triton.jit
def in_while(table, target, n, SIZE: tl.constexpr):
    pid = tl.program_id(0)
    i = tl.arange(0, SIZE)
    for g in range(3):
        a = tl.load(table + g)
        b = tl.load(table + g + 64)
        k = pid
        while k < a * 16:
            tl.store(target + k * SIZE + i, i + b)
            k += 16


@triton.jit
def in_both(table, target, SIZE: tl.constexpr):
    pid = tl.program_id(0)
    a = tl.load(table + pid)
    b = tl.load(table + pid + 64)
    i = tl.arange(0, SIZE)
    for k in range(a):
        tl.store(target + pid * SIZE + i, i + k + b)
    if a > 3:
        tl.store(target + pid * SIZE + i, b + i)


@triton.jit
def same_line(source, target, n, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    total = tl.zeros((SIZE,), tl.float32)
    for k in range(n):
        total += tl.load(source + k * SIZE + i) * tl.load(source + (k + 1) * SIZE + i)
    tl.store(target + i, total)


@triton.jit
def integers(source, target, n, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    total = tl.zeros((SIZE,), tl.int32)
    for k in range(n):
        left = tl.load(source + k * SIZE + i)
        right = tl.load(source + (k + 1) * SIZE + i)
        total ^= left * right
    tl.store(target + i, total)


@triton.jit
def integers_on_one_line(source, target, n, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    total = tl.zeros((SIZE,), tl.int32)
    for k in range(n):
        total ^= tl.load(source + k * SIZE + i) * tl.load(source + (k + 1) * SIZE + i)
    tl.store(target + i, total)


@triton.jit
def recurrence(source, gate, target, n, D: tl.constexpr):
    d = tl.arange(0, D)
    h = tl.zeros((D,), tl.float32)
    for k in range(n):
        at = tl.program_id(0) * n * D + k * D + d
        h = tl.load(gate + at).to(tl.float32) * h + tl.load(source + at).to(tl.float32)
        tl.store(target + at, h.to(tl.bfloat16))


@triton.jit
def clamped(source, target, n, SIZE: tl.constexpr):
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    left = tl.load(source + tl.maximum(i - 1, 0), mask=i < n)
    here = tl.load(source + i, mask=i < n)
    right = tl.load(source + tl.minimum(i + 1, n - 1), mask=i < n)
    tl.store(target + i, left + here + right, mask=i < n)


t = (torch.arange(128, device="cuda") % 5).to(torch.int32)
y = torch.empty(1 << 16, dtype=torch.int32, device="cuda")
x = torch.empty(1 << 16, device="cuda")
in_else[(64,)](t, y, 256)
in_while[(16,)](t, y, 0, 256)
in_both[(64,)](t, y, 256)
same_line[(1,)](x, torch.empty_like(x), 13, 256, num_warps=2)
integers[(1,)](y, torch.empty_like(y), 13, 256, num_warps=2)
integers_on_one_line[(1,)](y, torch.empty_like(y), 13, 256, num_warps=2)
b = torch.empty(4 * 11 * 256, dtype=torch.bfloat16, device="cuda")
recurrence[(4,)](b, b, torch.empty_like(b), 11, 256)
clamped[(5,)](x, torch.empty_like(x), 1111, 256)
