"""Descriptors made in the kernel and by the host, of every dtype; in loops and branches; a descriptor's atomic."""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

triton.set_allocator(lambda size, align, stream: torch.empty(size, dtype=torch.int8, device="cuda"))


@triton.jit
def device_copy(source, target, rows, cols, TALL: tl.constexpr, WIDE: tl.constexpr):
    src = tl.make_tensor_descriptor(source, [rows, cols], [cols, 1], [TALL, WIDE])
    dst = tl.make_tensor_descriptor(target, [rows, cols], [cols, 1], [TALL, WIDE])
    y, x = tl.program_id(0) * TALL, tl.program_id(1) * WIDE
    dst.store([y, x], src.load([y, x]))


@triton.jit
def host_copy(src, dst, TALL: tl.constexpr, WIDE: tl.constexpr):
    y, x = tl.program_id(0) * TALL, tl.program_id(1) * WIDE
    dst.store([y, x], src.load([y, x]))


@triton.jit
def in_a_loop(source, target, rows, heads, TALL: tl.constexpr, WIDE: tl.constexpr):
    for head in range(tl.program_id(1), heads, tl.num_programs(1)):
        src = tl.make_tensor_descriptor(
            source + head * rows * WIDE, [rows, WIDE], [WIDE, 1], [TALL, WIDE]
        )
        dst = tl.make_tensor_descriptor(
            target + head * rows * WIDE, [rows, WIDE], [WIDE, 1], [TALL, WIDE]
        )
        y = tl.program_id(0) * TALL
        dst.store([y, 0], src.load([y, 0]) * 2)


@triton.jit
def in_a_branch(source, target, rows, cols, TALL: tl.constexpr, WIDE: tl.constexpr):
    y = tl.program_id(0) * TALL
    if tl.program_id(0) % 3 == 0:
        src = tl.make_tensor_descriptor(source, [rows, cols], [cols, 1], [TALL, WIDE])
        dst = tl.make_tensor_descriptor(target, [rows, cols], [cols, 1], [TALL, WIDE])
        for x in range(0, cols, WIDE):
            dst.store([y, x], src.load([y, x]))


@triton.jit
def three_dimensions(source, target, heads, rows, TALL: tl.constexpr, WIDE: tl.constexpr):
    src = tl.make_tensor_descriptor(
        source, [heads, rows, WIDE], [rows * WIDE, WIDE, 1], [2, TALL, WIDE]
    )
    dst = tl.make_tensor_descriptor(
        target, [heads, rows, WIDE], [rows * WIDE, WIDE, 1], [2, TALL, WIDE]
    )
    h, y = tl.program_id(1) * 2, tl.program_id(0) * TALL
    dst.store([h, y, 0], src.load([h, y, 0]))


@triton.jit
def add_by_descriptor(source, target, rows, cols, TALL: tl.constexpr, WIDE: tl.constexpr):
    src = tl.make_tensor_descriptor(source, [rows, cols], [cols, 1], [TALL, WIDE])
    dst = tl.make_tensor_descriptor(target, [rows, cols], [cols, 1], [TALL, WIDE])
    y, x = tl.program_id(0) * TALL, tl.program_id(1) * WIDE
    dst.atomic_add([y, x], src.load([y, x]))


for dtype in (
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
):
    a = torch.empty(100, 192, dtype=torch.float32, device="cuda").to(dtype)
    b = torch.empty_like(a)
    device_copy[(4, 6)](a, b, 100, 192, 32, 32)
    host_copy[(4, 6)](
        TensorDescriptor.from_tensor(a, [32, 32]), TensorDescriptor.from_tensor(b, [32, 32]), 32, 32
    )
h = torch.empty(7, 256, 64, dtype=torch.bfloat16, device="cuda")
in_a_loop[(4, 3)](h, torch.empty_like(h), 256, 7, TALL=64, WIDE=64)
c = torch.empty(512, 256, dtype=torch.bfloat16, device="cuda")
in_a_branch[(8,)](c, torch.empty_like(c), 512, 256, 64, 64)
three_dimensions[(4, 4)](h, torch.empty_like(h), 7, 256, TALL=64, WIDE=64)
f = torch.zeros(100, 192, device="cuda")
add_by_descriptor[(4, 6)](f, torch.zeros_like(f), 100, 192, 32, 32)
