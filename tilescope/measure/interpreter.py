"""Patches for defects of Triton's interpreter."""

import inspect
from typing import Any

import numpy as np


def patch_small_floats() -> None:
    """Make the interpreter treat bfloat16 and float8 as numbers (defects of triton 3.6 and 3.7.1).

    The interpreter stores both as raw integers. `tl.dot` multiplies bfloat16 as integers: the patch converts them to
    float32 first, which holds every bfloat16 exactly. A cast from float32 truncates: the patch rounds to nearest even,
    as the GPU does, and clamps float8 to its largest number.
    """
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    original = {
        name: getattr(InterpreterBuilder, name)
        for name in ("create_dot", "cast_impl", "create_fp_to_fp")
    }
    types = {tl.bfloat16: "bfloat16", tl.float8e4nv: "float8_e4m3fn", tl.float8e5: "float8_e5m2"}

    def decode(handle: Any) -> Any:
        name = types.get(handle.dtype.scalar)
        return handle if name is None else TensorHandle(_decode(handle.data, name), tl.float32)

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return original["create_dot"](self, decode(a), decode(b), *rest)

    def cast(name: str) -> Any:
        def patched(self: Any, source: Any, target: Any, *rest: Any) -> Any:
            if source.dtype.scalar == tl.float32 and target.scalar in types:
                return TensorHandle(_encode(source.data, types[target.scalar]), target.scalar)
            if source.dtype.scalar in types and target.scalar == tl.float32:
                return decode(source)
            return original[name](self, source, target, *rest)

        return patched

    InterpreterBuilder.create_dot = create_dot
    InterpreterBuilder.cast_impl = cast("cast_impl")
    InterpreterBuilder.create_fp_to_fp = cast("create_fp_to_fp")


def patch_bfloat16_atomics() -> None:
    """Let the interpreter's atomics accept bfloat16, which triton 3.6 and 3.7.1 refuse.

    The patch loads, adds and stores, which is equivalent because programs run one after another.
    """
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    atomic = InterpreterBuilder.create_atomic_rmw
    _, _, _, _, *policies = inspect.signature(InterpreterBuilder.create_masked_store).parameters
    no_policies = [None] * len(policies)  # two; one since Triton 3.9

    def create_atomic_rmw(
        self: Any, operation: Any, pointers: Any, value: Any, mask: Any, *rest: Any
    ) -> Any:
        if value.dtype.scalar != tl.bfloat16:
            return atomic(self, operation, pointers, value, mask, *rest)
        before = self.create_masked_load(pointers, mask, None, *no_policies, False)
        total = sum(_decode(handle.data, "bfloat16") for handle in (before, value))
        stored = TensorHandle(_encode(total, "bfloat16"), tl.bfloat16)
        self.create_masked_store(pointers, stored, mask, *no_policies)
        return before

    InterpreterBuilder.create_atomic_rmw = create_atomic_rmw


def patch_tensor_index() -> None:
    """Let a one-element tensor serve as an index under NumPy 2.5 (a defect of triton 3.6, fixed in 3.7)."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_with_index(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_with_index


def patch_language_once() -> None:
    """Skip the interpreter's repeated search for functions to replace (triton 3.6 and 3.7.1).

    The interpreter searches `triton.language` whenever one jitted function calls another. Once all functions of a
    module are replaced, the search finds nothing, yet takes a third of the launch's time.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    patch = interpreter._patch_lang

    def patch_once(function: Any) -> Any:
        modules = [
            value for value in function.__globals__.values() if value is tl or value is tl.core
        ]
        is_new = any(
            tl.core.is_builtin(f) for module in modules for f in (module.load, module.tensor.to)
        )
        return patch(function) if is_new or not modules else interpreter._LangPatchScope()

    interpreter._patch_lang = patch_once


def _decode(raw: Any, dtype: str) -> Any:
    """Convert raw integers to float32."""
    import torch

    raw = np.ascontiguousarray(raw)
    return (
        torch.from_numpy(raw.view(f"int{8 * raw.itemsize}"))
        .view(getattr(torch, dtype))
        .float()
        .numpy()
    )


def _encode(values: Any, dtype: str) -> Any:
    """Convert float32 to raw integers, rounded to nearest even."""
    import torch

    numbers = torch.from_numpy(np.ascontiguousarray(values))
    target = getattr(torch, dtype)
    if target.itemsize == 1:
        numbers = numbers.clamp(-torch.finfo(target).max, torch.finfo(target).max)
    return numbers.to(target).view(getattr(torch, f"uint{8 * target.itemsize}")).numpy()
