"""Joins, splits, gathers and histograms in addresses, and next to atomics."""

import torch
import triton
import triton.language as tl


@triton.jit
def pairs(source, target, SIZE: tl.constexpr):
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    at = tl.join(i * 2, i * 2 + 1)
    tl.store(target + at, tl.load(source + at))


@triton.jit
def interleaved(source, target, SIZE: tl.constexpr):
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    at = tl.interleave(i, i + 4096)
    tl.store(target + at, tl.load(source + at))


@triton.jit
def halves(source, target, SIZE: tl.constexpr):
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    a, b = tl.split(tl.reshape(i * 3, [SIZE // 2, 2]))
    tl.store(target + a, tl.load(source + b))


@triton.jit
def gathered(source, order, target, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    at = tl.gather(i * 7, tl.load(order + i), 0)
    tl.store(target + at, tl.load(source + at))


@triton.jit
def one_line(values, bins, SIZE: tl.constexpr, BINS: tl.constexpr):
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.atomic_add(bins + tl.arange(0, BINS), tl.histogram(tl.load(values + i), BINS))


@triton.jit
def relaxed(values, bins, n, SIZE: tl.constexpr, BINS: tl.constexpr):
    b = tl.arange(0, BINS)
    counts = tl.zeros((BINS,), tl.int32)
    for start in range(0, n, SIZE):
        counts += tl.histogram(
            tl.load(values + tl.program_id(0) * n + start + tl.arange(0, SIZE)), BINS
        )
    tl.atomic_add(bins + b, counts, sem="relaxed", mask=counts > -1)


@triton.jit
def two(values, bins, SIZE: tl.constexpr):
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    v = tl.load(values + i)
    tl.atomic_add(bins + tl.arange(0, 64), tl.histogram(v % 64, 64))
    tl.atomic_max(bins + tl.arange(0, 256), tl.histogram(v, 256), sem="relaxed")


x = torch.empty(1 << 15, device="cuda")
y = torch.empty(1 << 15, device="cuda")
pairs[(4,)](x, y, 512)
interleaved[(4,)](x, y, 512)
halves[(4,)](x, y, 512)
gathered[(1,)](x, (torch.arange(1024, device="cuda") * 37 % 1024).to(torch.int32), y, 1024)
v = torch.randint(0, 256, (16 * 1024,), dtype=torch.int32, device="cuda")
h = torch.zeros(256, dtype=torch.int32, device="cuda")
one_line[(16,)](v, h, 1024, 256)
relaxed[(4,)](v, h, 4096, 1024, 256)
two[(16,)](v, h, 1024)
