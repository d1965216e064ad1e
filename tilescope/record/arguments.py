"""Bind the arguments of a launch, and describe them and their tensors."""

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from . import Values

_ROWS = "crow_indices", "col_indices", "values"
_COLUMNS = "ccol_indices", "row_indices", "values"
_PARTS = {
    torch.sparse_coo: ("_indices", "_values"), torch.sparse_csr: _ROWS, torch.sparse_bsr: _ROWS,
    torch.sparse_csc: _COLUMNS, torch.sparse_bsc: _COLUMNS,
}  # fmt: skip


def bind(
    function: Any, arguments: Sequence[Any], grid: Any, keywords: Values
) -> tuple[Values, Values, list[int]]:
    """Return a launch's arguments by name, the compiler's options, and the size of the grid."""
    names = function.arg_names
    bound = function.signature.bind(*arguments, **{k: v for k, v in keywords.items() if k in names})
    bound.apply_defaults()
    values = dict(bound.arguments)
    options = {k: v for k, v in keywords.items() if k not in names}
    sizes = grid(values) if callable(grid) else grid
    sizes = [sizes] if isinstance(sizes, int) else sizes
    return values, options, list(map(operator.index, sizes))


def describe_arguments(
    signature: Values,
    values: Values,
    describe_tensor: Callable[[Any], Values],
    has_tma: bool,
) -> list[Values]:
    """Return the JSON of the compiled function's arguments.

    Args:
        signature: the types of the kernel's parameters. "constexpr" is no argument of the compiled function.
        values: of the parameters, as from `as_compiled`.
        describe_tensor: returns the JSON of a tensor's stand-in.
        has_tma: whether the GPU has a tensor memory accelerator.
    """

    def describe(name: str, value: Any, kind: Any) -> Iterator[Values]:
        """Yield the arguments that come from one parameter."""
        if isinstance(kind, tuple):
            for number, (inner, inner_kind) in enumerate(zip(value, kind, strict=True)):
                yield from describe(f"{name}.{number}", inner, inner_kind)
        elif isinstance(value, _AlignedTensor):
            yield {"name": name, "tensor": describe_tensor(value)}
        elif type(value).__name__ == "TensorDescriptor":
            yield from _describe_descriptor(name, value, describe_tensor(value.base), has_tma)
        elif kind != "constexpr":
            value = value if isinstance(value, int) else float(value)
            yield {"name": name, "value": value if math.isfinite(value) else str(value)}

    return [
        argument
        for name, kind in signature.items()
        for argument in describe(name, values[name], kind)
    ]


def _describe_descriptor(
    name: str, descriptor: Any, tensor: Values, has_tma: bool
) -> Iterator[Values]:
    sizes = {side: list(map(int, getattr(descriptor, side))) for side in ("shape", "strides")}
    scalars = [
        {"name": f"{name}.{side}.{number}", "value": size}
        for side, numbers in sizes.items()
        for number, size in enumerate(numbers)
    ]
    if has_tma:
        block = list(descriptor.block_shape)
        yield {"name": name, "descriptor": {"tensor": tensor, **sizes, "block_shape": block}}
    else:  # without the tensor memory accelerator, Triton passes a pointer, and the sizes twice
        yield {"name": name, "tensor": tensor}
        yield from scalars
        yield {"name": f"{name}.padding", "value": descriptor.padding == "nan"}
        if hasattr(descriptor, "round_f32_to_tf32"):
            yield {"name": f"{name}.round_f32_to_tf32", "value": descriptor.round_f32_to_tf32}
    yield from scalars


class _AlignedTensor:
    """A stand-in for a tensor or its wrapper during compilation. Triton's binder reads its dtype and address."""

    def __init__(self, tensor: Any) -> None:
        # Wrappers of Triton and FlagGems hold the tensor in these attributes
        base: Any = getattr(tensor, "base", getattr(tensor, "_base", None))
        self.dtype = tensor.dtype
        self.base = tensor if isinstance(tensor, torch.Tensor) else base
        self.offset_bytes = self.base.storage_offset() * self.base.element_size()
        self.offset_bytes += tensor.data_ptr() - self.base.data_ptr()
        self._address = storage_start(self.base) + self.offset_bytes

    def data_ptr(self) -> int:
        return self._address

    def ptr_range(self) -> int:
        """Return the bytes of the storage, by which AMD's compiler decides whether it uses buffer instructions."""
        return self.base.untyped_storage().nbytes()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.base, name)


def as_compiled(value: Any) -> Any:
    """Return the stand-in that is passed to Triton's binder for an argument."""
    if type(value).__name__ == "TensorDescriptor":
        # A copy skips the constructor's alignment check, which host tensors may fail
        stand_in = copy(value)
        vars(stand_in)["base"] = _AlignedTensor(value.base)
        return stand_in
    if isinstance(value, tuple):
        parts = [as_compiled(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    is_tensor = hasattr(value, "data_ptr") and hasattr(value, "dtype")
    return _AlignedTensor(value) if is_tensor else value


def own_tensor(argument: Values) -> Any:
    """Return the JSON of the tensor in an argument's JSON; None if it has none."""
    return argument.get("tensor") or argument.get("descriptor", {}).get("tensor")


def storage_start(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's storage; 0 in host memory, because it is less aligned than GPU memory."""
    return tensor.untyped_storage().data_ptr() if tensor.is_cuda else 0


def find_tensors(values: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors among values; for sparse tensors, their parts."""
    for value in tree_leaves(values):
        if isinstance(value, torch.Tensor):
            parts = [getattr(value, name)() for name in _PARTS.get(value.layout, ())] or [value]
            yield from filter(torch._C._has_storage, parts)
