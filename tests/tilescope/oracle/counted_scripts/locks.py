"""Locks: a counter behind a lock (as in Triton's layer norm), a lock by exchange, a flag that programs wait for."""

import torch
import triton
import triton.language as tl


@triton.jit
def partial_rows(source, total, locks, rows, GROUP: tl.constexpr, WIDTH: tl.constexpr):
    pid = tl.program_id(0)
    i = tl.arange(0, WIDTH)
    lock, count = locks + pid % GROUP, locks + GROUP + pid % GROUP
    row = tl.load(source + pid * WIDTH + i)
    at = total + pid % GROUP * WIDTH + i
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    if tl.load(count) == 0:
        tl.atomic_xchg(count, 1)
    else:
        row += tl.load(at)
    tl.store(at, row)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@triton.jit
def exchange_lock(source, total, lock, WIDTH: tl.constexpr):
    i = tl.arange(0, WIDTH)
    row = tl.load(source + tl.program_id(0) * WIDTH + i)
    while tl.atomic_xchg(lock, 1) == 1:
        pass
    tl.store(total + i, tl.load(total + i) + row)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@triton.jit
def counted_tries(source, total, lock, tries, WIDTH: tl.constexpr):
    i = tl.arange(0, WIDTH)
    n = 0
    row = tl.load(source + tl.program_id(0) * WIDTH + i)
    while tl.atomic_cas(lock, 0, 1) == 1:
        n += 1
    tl.store(tries + tl.program_id(0), n)
    tl.store(total + i, tl.load(total + i) + row)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


x = torch.ones(64, 1024, device="cuda")
partial_rows[(64,)](
    x,
    torch.zeros(8, 1024, device="cuda"),
    torch.zeros(16, dtype=torch.int32, device="cuda"),
    64,
    GROUP=8,
    WIDTH=1024,
)
exchange_lock[(64,)](
    x,
    torch.zeros(1024, device="cuda"),
    torch.zeros(1, dtype=torch.int32, device="cuda"),
    WIDTH=1024,
)
counted_tries[(64,)](
    x,
    torch.zeros(1024, device="cuda"),
    torch.zeros(1, dtype=torch.int32, device="cuda"),
    torch.zeros(64, dtype=torch.int32, device="cuda"),
    WIDTH=1024,
)
