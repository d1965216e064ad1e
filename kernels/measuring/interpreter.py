"""Triton's interpreter: mending what it gets wrong, and what it can finish. It checks, and never times."""

from __future__ import annotations

import math
from typing import Any

from kernels.knobs import ConfigError
from kernels.spec import Kernel, Launch, shape_text

LIMIT_S = 20.0

# Seconds for one execution of a memory operation (its addresses and its share of the loop included), for each element
# that it moves, and for each multiply-add: fitted by benchmarks/interpreter.py, triton 3.7.1, one x86 server core.
_PER_OPERATION_S = 1.2e-3
_PER_ELEMENT_S = 4e-8
_PER_PRODUCT_S = 6e-11


def mend_small_floats() -> None:
    """Make the interpreter treat bfloat16 and float8 as numbers (defects of triton 3.6 and 3.7.1).

    It keeps both as raw integers. `tl.dot` multiplies the integers of bfloat16: here they become float32 first, which
    holds every bfloat16 exactly. A cast from float32 truncates: here it rounds to nearest even, as the GPU does, and
    float8 stops at its largest number. Atomics refuse bfloat16: here they load, add and store, which is the same thing
    where one program runs after the other.
    """
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    plain = {name: getattr(InterpreterBuilder, name) for name in ("create_dot", "cast_impl", "create_fp_to_fp")}
    atomic = InterpreterBuilder.create_atomic_rmw
    types = {tl.bfloat16: "bfloat16", tl.float8e4nv: "float8_e4m3fn", tl.float8e5: "float8_e5m2"}

    def by_value(handle: Any) -> Any:
        name = types.get(handle.dtype.scalar)
        return handle if name is None else TensorHandle(_decoded(handle.data, name), tl.float32)

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return plain["create_dot"](self, by_value(a), by_value(b), *rest)

    def cast(name: str) -> Any:
        def mended(self: Any, source: Any, target: Any, *rest: Any) -> Any:
            if source.dtype.scalar == tl.float32 and target.scalar in types:
                return TensorHandle(_encoded(source.data, types[target.scalar]), target.scalar)
            if source.dtype.scalar in types and target.scalar == tl.float32:
                return by_value(source)
            return plain[name](self, source, target, *rest)

        return mended

    def create_atomic_rmw(self: Any, operation: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        if value.dtype.scalar != tl.bfloat16:
            return atomic(self, operation, pointers, value, mask, *rest)
        before = self.create_masked_load(pointers, mask, None, None, None, False)
        total = _encoded(_decoded(before.data, "bfloat16") + _decoded(value.data, "bfloat16"), "bfloat16")
        self.create_masked_store(pointers, TensorHandle(total, tl.bfloat16), mask, None, None)
        return before

    InterpreterBuilder.create_dot, InterpreterBuilder.create_atomic_rmw = create_dot, create_atomic_rmw
    InterpreterBuilder.cast_impl, InterpreterBuilder.create_fp_to_fp = cast("cast_impl"), cast("create_fp_to_fp")


def mend_indices() -> None:
    """Let a tensor of one element be an index with NumPy 2.5, too (a defect of triton 3.6, which 3.7 has mended)."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_and_mend(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_and_mend


def patch_language_once_per_launch() -> None:
    """Spare each call of one jitted function by another the search through the language (triton 3.6 and 3.7.1).

    The search is for functions to replace. Where all of a module's are replaced already, it takes a third of the
    launch's time and finds none.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    patch = interpreter._patch_lang

    def patch_once(function: Any) -> Any:
        modules = [value for value in function.__globals__.values() if value is tl or value is tl.core]
        is_new = any(tl.core.is_builtin(one) for module in modules for one in (module.load, module.tensor.to))
        return patch(function) if is_new or not modules else interpreter._LangPatchScope()

    interpreter._patch_lang = patch_once


def _decoded(raw: Any, dtype: str) -> Any:
    """The float32 values of raw integers."""
    import numpy as np
    import torch

    raw = np.ascontiguousarray(raw)
    return torch.from_numpy(raw.view(f"int{8 * raw.itemsize}")).view(getattr(torch, dtype)).float().numpy()


def _encoded(values: Any, dtype: str) -> Any:
    """The raw integers of float32 values, rounded to nearest even."""
    import numpy as np
    import torch

    numbers, target = torch.from_numpy(np.ascontiguousarray(values)), getattr(torch, dtype)
    if target.itemsize == 1:
        numbers = numbers.clamp(-torch.finfo(target).max, torch.finfo(target).max)
    return numbers.to(target).view(getattr(torch, f"uint{8 * target.itemsize}")).numpy()


def estimated_seconds(kernel: Kernel, launch: Launch) -> float:
    """How long the interpreter takes for one launch, roughly."""
    extents = kernel.extents(launch)
    seconds = 0.0
    for access in kernel.accesses(launch):
        executions = math.prod(extents[index] for index in access.over)
        seconds += executions * (_PER_OPERATION_S + _PER_ELEMENT_S * access.elements)
    return seconds + _PER_PRODUCT_S * kernel.family.work(launch.problem) / 2


def refuse_what_takes_too_long(kernel: Kernel, launch: Launch, instead: str = "") -> None:
    """Raise ConfigError, kind too_slow_here, for a launch that the interpreter would not finish in about 20 s.

    `instead` is added to the sentence: what a person can do besides.
    """
    seconds = estimated_seconds(kernel, launch)
    if seconds > LIMIT_S:
        shape = shape_text(launch.problem)
        raise ConfigError(
            "too_slow_here",
            f"There is no GPU here, and the interpreter would take about {seconds:,.0f} s for {shape} in these tiles. "
            f"The limit is about {LIMIT_S:.0f} s. Make the shape smaller or the tiles larger.{instead}",
        )
