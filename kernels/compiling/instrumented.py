"""A build of a kernel in which each program writes down where and when it ran.

The kernel's own jitted function is called unchanged, by a function that is generated from its parameters: a jitted
function's parameters are fixed in its source, and a tensor descriptor must be one of them to be launched (within a
tuple of arguments it would not be). What surrounds the call is written out here.
"""

from __future__ import annotations

import dataclasses
import functools
import linecache
from collections.abc import Mapping
from typing import Any

from kernels.jit import tl, triton
from kernels.spec import Kernel, Launch

# What a program writes, in this order: one 32-byte sector of int64.
FIELDS = ("start", "end", "sm", "writes")


@triton.jit
def place(record):
    """Where this program writes: its row, by its linear id x + y·grid_x + z·grid_x·grid_y."""
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    return record + (x + tl.num_programs(0) * (y + tl.num_programs(1) * z)) * 4


@triton.jit
def enter(record):
    """Write down the time before anything else, at once, so that no registers hold it while the kernel runs.

    The first warp's clock counts; a program's warps start together.
    """
    tl.store(place(record), tl.extra.cuda.globaltimer())


@triton.jit
def leave(record):
    """Write down the time, once all warps of the program have come this far, and the SM.

    By then each of the kernel's stores has been issued; what is still on its way to memory is not waited for.
    """
    tl.debug_barrier()
    end = tl.extra.cuda.globaltimer()
    mine = place(record)
    tl.store(mine + 1, end)
    tl.store(mine + 2, tl.extra.cuda.smid().to(tl.int64))
    tl.atomic_add(mine + 3, 1, sem="relaxed")


def timed(kernel: Kernel, record: Any) -> Kernel:
    """The same kernel with its time written down.

    Args:
        record: (programs, 4) int64 on the device, FIELDS of each program; `writes` is added to.
    """

    def arguments(tensors: Mapping[str, Any], launch: Launch) -> dict[str, Any]:
        return {"record": record, **kernel.arguments(tensors, launch)}

    return dataclasses.replace(kernel, jitted=_surrounded(kernel.jitted), arguments=arguments)


@functools.cache
def _surrounded(jitted: Any) -> Any:
    """A jitted function with the parameters of `jitted`, and `record` before them."""
    name = f"{jitted.fn.__name__}_timed"
    parameters = ", ".join(p.name + (": tl.constexpr" if p.is_constexpr else "") for p in jitted.params)
    call = ", ".join(p.name for p in jitted.params)
    text = f"def {name}(record, {parameters}):\n    enter(record)\n    kernel({call})\n    leave(record)\n"
    file = f"<{name}>"
    # Triton reads a function's source from where tracebacks do.
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict[str, Any] = {"tl": tl, "kernel": jitted, "enter": enter, "leave": leave, "__name__": __name__}
    exec(compile(text, file, "exec"), names)
    return triton.jit(names[name])
