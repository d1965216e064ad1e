"""Triton's interpreter: mending what it gets wrong, and what it can finish. It checks, and never times."""

from __future__ import annotations

import math
from typing import Any

from kernels.spec import ConfigError, Kernel

LIMIT_S = 20.0

# Seconds for one execution of a memory operation (its addresses and its share of the loop included), for each element
# that it moves, and for each multiply-add: fitted by benchmarks/interpreter.py, triton 3.7.1, one x86 server core.
_PER_OPERATION_S = 1.2e-3
_PER_ELEMENT_S = 4e-8
_PER_PRODUCT_S = 6e-11


def mend_bfloat16() -> None:
    """Make the interpreter treat bfloat16 as numbers, in two places (defects of triton 3.6 and 3.7.1).

    It keeps bfloat16 as raw 16-bit integers. `tl.dot` multiplies those integers: here they become float32 first,
    which holds every bfloat16 exactly. A cast from float32 truncates: here it rounds to nearest even, as the GPU does.
    """
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    dot, cast = InterpreterBuilder.create_dot, InterpreterBuilder.cast_impl

    def by_value(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return dot(self, by_value(a), by_value(b), *rest)

    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        if (source.dtype.scalar, target.scalar) != (tl.float32, tl.bfloat16):
            return cast(self, source, target)
        bits = np.ascontiguousarray(source.data).view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        raw = np.where(np.isnan(source.data), 0x7FC0, rounded).astype(np.uint16)
        return TensorHandle(raw, tl.bfloat16)

    InterpreterBuilder.create_dot, InterpreterBuilder.cast_impl = create_dot, cast_impl


def estimated_seconds(kernel: Kernel, problem: Any, config: Any) -> float:
    """How long the interpreter takes for one launch, roughly."""
    extents = kernel.extents(problem, config)
    seconds = 0.0
    for access in kernel.accesses(problem, config):
        executions = math.prod(extents[index] for index in access.over)
        seconds += executions * (_PER_OPERATION_S + _PER_ELEMENT_S * access.rows.block * access.columns.block)
    return seconds + _PER_PRODUCT_S * kernel.family.work(problem) / 2


def refuse_what_takes_too_long(kernel: Kernel, problem: Any, config: Any, instead: str = "") -> None:
    """Raise ConfigError, kind too_slow_here, for a launch that the interpreter would not finish in about 20 s.

    `instead` is added to the sentence: what a person can do besides.
    """
    seconds = estimated_seconds(kernel, problem, config)
    if seconds > LIMIT_S:
        shape = " × ".join(str(v) for v in vars(problem).values() if isinstance(v, int))
        raise ConfigError(
            "too_slow_here",
            f"There is no GPU here, and the interpreter would take about {seconds:,.0f} s for {shape} in these tiles; "
            f"allowed is what it finishes in about {LIMIT_S:.0f} s. Make the shape smaller or the tiles larger."
            f"{instead}",
        )
