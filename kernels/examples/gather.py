"""Gather rows of a table, as an embedding does. With DIM = 8, half of each sector is wasted."""

import torch
import triton
import triton.language as tl


@triton.jit
def gather(ids, table, out, DIM: tl.constexpr, ROWS: tl.constexpr):
    rows, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, DIM)
    picked = tl.load(ids + rows)
    tl.store(
        out + rows[:, None] * DIM + columns[None, :],
        tl.load(table + picked[:, None] * DIM + columns[None, :]),
    )


def case(count=65536, entries=32000, DIM=64, ROWS=16, num_warps=4):
    torch.manual_seed(0)  # two captures have equal counts
    ids = torch.randint(0, entries, (count,), device="cuda")
    table = torch.randn(entries, DIM, device="cuda", dtype=torch.float16)
    out = torch.empty(count, DIM, device="cuda", dtype=torch.float16)
    arguments = dict(ids=ids, table=table, out=out, DIM=DIM, ROWS=ROWS, num_warps=num_warps)
    return gather, (count // ROWS,), arguments, {"out": table[ids]}
