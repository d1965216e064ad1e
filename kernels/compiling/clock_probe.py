"""A kernel that reads each SM's cycle counter and the GPU's own time: two of them give the clock in between."""

from __future__ import annotations

from kernels.jit import tl, triton

# What a program writes, in this order: one 32-byte sector of int64.
FIELDS = ("sm", "cycles", "time_ns", "written")


@triton.jit
def read_clocks(record):
    """Write down where this program runs, the SM's cycles, and the time in ns, the last two one after the other."""
    mine = record + tl.program_id(0) * 4
    cycles = tl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)
    time = tl.extra.cuda.globaltimer()
    tl.store(mine, tl.extra.cuda.smid().to(tl.int64))
    tl.store(mine + 1, cycles)
    tl.store(mine + 2, time)
    tl.store(mine + 3, 1)
