"""A 3 × 3 convolution of images stored row by row. Look at the loads: each tile is loaded nine times, shifted."""

import torch
import triton
import triton.language as tl


@triton.jit
def convolution(image, weight, out, height, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    plane = tl.program_id(2) * height * width
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for i in range(3):
        for j in range(3):
            y, x = rows[:, None] + i - 1, columns[None, :] + j - 1
            inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
            pixels = tl.load(image + plane + y * width + x, mask=inside, other=0.0)
            total += pixels * tl.load(weight + i * 3 + j)
    inside = (rows[:, None] < height) & (columns[None, :] < width)
    tl.store(out + plane + rows[:, None] * width + columns[None, :], total, mask=inside)


def case(images=32, height=224, width=224, ROWS=8, COLUMNS=64, num_warps=4):
    image, weight = (
        torch.randn(images, height, width, device="cuda"),
        torch.randn(3, 3, device="cuda"),
    )
    arguments = dict(
        image=image, weight=weight, out=torch.empty_like(image), height=height, width=width, ROWS=ROWS,
        COLUMNS=COLUMNS, num_warps=num_warps,
    )  # fmt: skip
    expected = torch.nn.functional.conv2d(image[:, None], weight[None, None], padding=1)[:, 0]
    return (
        convolution,
        (triton.cdiv(width, COLUMNS), triton.cdiv(height, ROWS), images),
        arguments,
        {"out": expected},
    )
