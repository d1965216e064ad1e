"""Instrumented kernels that read a GPU's clocks: a timed build of any kernel, and a probe of each SM's cycle counter.

The timed build's programs record where and when they ran. A generated wrapper with the kernel's parameters calls the
kernel's own jitted function unchanged. It is generated because a jitted function's parameters are fixed in its source,
and a tensor descriptor must be a separate parameter: Triton can't launch a kernel with one inside a tuple.
"""

import dataclasses
import functools
import linecache
from collections.abc import Mapping
from typing import Any

from tilescope.declare.jit import tl, triton
from tilescope.declare.spec import Kernel, Launch

# Fields that a program writes, in this order: four int64, which fill one 32-byte sector.
TIMED_FIELDS = ("start", "end", "sm", "writes")
CLOCK_FIELDS = ("sm", "cycles", "time_ns", "written")


@triton.jit
def read_clocks(record):
    """Record this program's SM, its cycle counter and the time in ns. It reads both clocks back to back."""
    mine = record + tl.program_id(0) * 4
    cycles = tl.inline_asm_elementwise(
        "mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )
    time = tl.extra.cuda.globaltimer()
    tl.store(mine, tl.extra.cuda.smid().to(tl.int64))
    tl.store(mine + 1, cycles)
    tl.store(mine + 2, time)
    tl.store(mine + 3, 1)


@triton.jit
def place(record):
    """Return a pointer to this program's row. Its linear id is x + y·grid_x + z·grid_x·grid_y."""
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    return record + (x + tl.num_programs(0) * (y + tl.num_programs(1) * z)) * 4


@triton.jit
def enter(record):
    """Store the start time before the kernel runs, so that no register holds it in the meantime.

    Only the first warp's clock is stored, because a program's warps start together.
    """
    tl.store(place(record), tl.extra.cuda.globaltimer())


@triton.jit
def leave(record):
    """Record the SM, and the time at which all warps of the program have arrived.

    By then, the kernel has issued all of its stores. Some may still be on their way to memory.
    """
    tl.debug_barrier()
    end = tl.extra.cuda.globaltimer()
    mine = place(record)
    tl.store(mine + 1, end)
    tl.store(mine + 2, tl.extra.cuda.smid().to(tl.int64))
    tl.atomic_add(mine + 3, 1, sem="relaxed")


def add_timer(kernel: Kernel, record: Any) -> Kernel:
    """Return the kernel's timed build.

    Args:
        record: (programs, 4) int64 on the device, TIMED_FIELDS of each program. The build increments `writes`.
    """

    def arguments(tensors: Mapping[str, Any], launch: Launch) -> dict[str, Any]:
        return {"record": record, **kernel.arguments(tensors, launch)}

    return dataclasses.replace(kernel, jitted=_wrap(kernel.jitted), arguments=arguments)


@functools.cache
def _wrap(jitted: Any) -> Any:
    """Return a jitted function whose parameters are `record` and those of `jitted`."""
    name = f"{jitted.fn.__name__}_timed"
    parameters = ", ".join(
        p.name + (": tl.constexpr" if p.is_constexpr else "") for p in jitted.params
    )
    call = ", ".join(p.name for p in jitted.params)
    text = f"def {name}(record, {parameters}):\n    enter(record)\n    kernel({call})\n    leave(record)\n"
    file = f"<{name}>"
    # Triton reads a function's source from linecache, as tracebacks do.
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict[str, Any] = {
        "tl": tl,
        "kernel": jitted,
        "enter": enter,
        "leave": leave,
        "__name__": __name__,
    }
    exec(compile(text, file, "exec"), names)
    return triton.jit(names[name])
