"""What a kernel declares of one launch, as expressions: its tensors, its grid, its arguments."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from kernels.export.spelled import SpelledInt, spelling
from kernels.spec import DTYPE_BYTES, Kernel, Launch, TensorSpec

# Options of a launch, which are no parameters of the kernel.
_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")


class CannotBeWritten(Exception):
    """What a kernel declares can't be written as a script: which part, and why."""


@dataclass(frozen=True)
class Described:
    """One launch, each part as the text of a Python expression.

    Attributes:
        inputs: (name, shape as it is stored, whether the kernel sees its transpose).
        output: (name, shape).
        grid: a tuple.
        grid_is_fixed: the grid is written in numbers, because it holds for this problem, config and GPU alone.
        arguments: by name, in the kernel's order, then the options of the launch.
        work: floating-point operations; "" where a speed is given in bytes per second.
        descriptors: whether arguments are tensor descriptors.
    """

    inputs: tuple[tuple[str, str, bool], ...]
    output: tuple[str, str]
    grid: str
    grid_is_fixed: bool
    arguments: dict[str, str]
    work: str
    descriptors: bool


class _SpelledTensor:
    """What a kernel's `arguments` may ask of a tensor: strides, shape, the size of an element, an aligned address."""

    def __init__(self, text: str, spec: TensorSpec, dtype: str, unspelled: list[str]) -> None:
        self.text = text
        self.dtype = SimpleNamespace(itemsize=DTYPE_BYTES[dtype])
        self.shape = spec.shape
        self._strides = tuple(
            SpelledInt(stride, f"{text}.stride({axis})", unspelled) for axis, stride in enumerate(spec.strides)
        )

    def data_ptr(self) -> int:
        return 0

    def stride(self, axis: int) -> int:
        return self._strides[axis]


def described(kernel: Kernel, launch: Launch) -> Described:
    """Ask a kernel for one launch.

    Raises:
        CannotBeWritten: where an argument is nothing that a script can write.
    """
    spelled, unspelled = _spelled(launch)
    specs = kernel.family.tensors(spelled.problem)
    output = kernel.family.output(spelled.problem)
    inputs = tuple((name, _listed(spec.stored, "()"), spec.transposed) for name, spec in specs.items() if spec.is_input)
    del unspelled[:]
    grid = kernel.grid(spelled)
    # A number that no field is in may hang on one all the same: only 1 is taken at its word.
    is_fixed = bool(unspelled) or any(type(size) is int and size != 1 for size in grid)
    work = kernel.family.work(spelled.problem)
    tensors = {
        name: _SpelledTensor("output" if name == output else f'inputs["{name}"]', spec, launch.problem.dtype, unspelled)
        for name, spec in specs.items()
    }
    arguments = kernel.arguments(tensors, spelled)
    order = [*inspect.signature(kernel.jitted.fn).parameters, *_OPTIONS]
    arguments = dict(sorted(arguments.items(), key=lambda item: order.index(item[0])))
    return Described(
        inputs=inputs,
        output=(output, _listed(specs[output].shape, "()")),
        grid=_listed(kernel.grid(launch) if is_fixed else grid, "()"),
        grid_is_fixed=is_fixed,
        arguments={name: _text(name, value) for name, value in arguments.items()},
        work=spelling(work) if work else "",
        descriptors=any(_is_descriptor(value) for value in arguments.values()),
    )


def fields(declared: Any) -> str:
    """The fields of a problem or a config, as arguments."""
    return ", ".join(f"{name}={literal(value)}" for name, value in dataclasses.asdict(declared).items())


def literal(value: object) -> str:
    """A constant as it is written, strings in double quotes."""
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _spelled(launch: Launch) -> tuple[Launch, list[str]]:
    """The same launch, whose integers say which field they are; and what is asked of them that can't be said."""
    unspelled: list[str] = []

    def with_names(declared: Any, owner: str) -> Any:
        integers = {
            name: SpelledInt(value, f"{owner}.{name}", unspelled)
            for name, value in vars(declared).items()
            if type(value) is int
        }
        return dataclasses.replace(declared, **integers)

    named = Launch(with_names(launch.problem, "problem"), with_names(launch.config, "config"), launch.gpu)
    return named, unspelled


def _text(name: str, value: Any) -> str:
    """An argument as it is written."""
    if isinstance(value, _SpelledTensor):
        return value.text
    if type(value) is int or isinstance(value, SpelledInt):
        return spelling(value)
    if value is None or isinstance(value, bool | float | str):
        return literal(value)
    if _is_descriptor(value):
        lists = (_listed(one, "[]") for one in (value.shape, value.strides, value.block_shape))
        return f"TensorDescriptor({value.base.text}, {', '.join(lists)})"
    raise CannotBeWritten(f"The argument {name} is a {type(value).__name__}, which a script can't write down.")


def _is_descriptor(value: Any) -> bool:
    return type(value).__name__ == "TensorDescriptor"


def _listed(sizes: Sequence[int], brackets: str) -> str:
    inner = ", ".join(map(spelling, sizes))
    return f"{brackets[0]}{inner}{',' if len(sizes) == 1 and brackets == '()' else ''}{brackets[1]}"
