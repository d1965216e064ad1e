"""One launch of a kernel as Python expressions: its tensors, grid and arguments.

The kernel's own declarations are called with integers that record their expression, so a script contains
`-(-M // BLOCK_M)` instead of 8.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import operator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Self

from kernels.export.inline import CannotBeWritten
from kernels.spec import DTYPE_BYTES, Kernel, Launch, TensorSpec


class SymbolicInt(int):
    """An integer whose repr is its expression.

    Attributes:
        text: the expression.
        sign: the expression's outermost operator; "" for a name.
        untraced: collects operations that can't be expressed, such as comparisons. Code that depends on their results
            is valid only for these values.
    """

    text: str
    sign: str
    untraced: list[str]

    def __new__(cls, value: int, text: str, untraced: list[str], sign: str = "") -> Self:
        number = super().__new__(cls, value)
        number.text, number.sign, number.untraced = text, sign, untraced
        return number

    def __repr__(self) -> str:
        return self.text

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __neg__(self) -> SymbolicInt:
        return SymbolicInt(int.__neg__(self), f"-({self.text})" if self.sign else f"-{self.text}", self.untraced)


def _operand(value: int, after: str, is_left: bool) -> str:
    """Return an integer's expression as an operand of the operator `after`, parenthesized if necessary."""
    sign = value.sign if isinstance(value, SymbolicInt) else ""
    plain = not sign or (is_left and sign == after and after in "+*")
    return repr(value) if plain else f"({value!r})"


def _trace(name: str, sign: str, neutral: int) -> None:
    """Define an operator of SymbolicInt. The expression omits operands equal to `neutral`."""
    compute = getattr(operator, name)

    def operation(left: int, right: int) -> int:
        if type(right) is int and right == neutral:
            return left
        if type(left) is int and left == neutral and sign in "+*":
            return right
        text = f"{_operand(left, sign, True)} {sign} {_operand(right, sign, False)}"
        untraced = next(number.untraced for number in (left, right) if isinstance(number, SymbolicInt))
        return SymbolicInt(compute(int.__index__(left), int.__index__(right)), text, untraced, sign)

    setattr(SymbolicInt, f"__{name}__", operation)
    setattr(SymbolicInt, f"__r{name}__", lambda self, other: operation(other, self))


def _record(name: str) -> None:
    plain = getattr(int, name)

    def operation(self: SymbolicInt, *others: Any) -> Any:
        self.untraced.append(name)
        return plain(self, *others)

    setattr(SymbolicInt, name, operation)


for _name, _sign, _neutral in (("add", "+", 0), ("sub", "-", 0), ("mul", "*", 1), ("floordiv", "//", 1)):
    _trace(_name, _sign, _neutral)
_VALUE_FREE = {"__doc__", "__format__", "__getattribute__", "__getnewargs__", "__hash__", "__sizeof__"}
for _name in vars(int).keys() - vars(SymbolicInt).keys() - _VALUE_FREE:
    if _name.startswith("__"):
        _record(_name)


class _SymbolicTensor:
    """A stand-in with the attributes that `arguments` may read: strides, shape, element size, an aligned address."""

    def __init__(self, text: str, spec: TensorSpec, dtype: str, untraced: list[str]) -> None:
        self.text, self.shape = text, spec.shape
        self.dtype = SimpleNamespace(itemsize=DTYPE_BYTES[dtype])
        self._strides = [SymbolicInt(n, f"{text}.stride({axis})", untraced) for axis, n in enumerate(spec.strides)]

    def __repr__(self) -> str:
        return self.text

    def data_ptr(self) -> int:
        return 0

    def stride(self, axis: int) -> int:
        return self._strides[axis]


@dataclass(frozen=True)
class LaunchCode:
    """One launch as source text of Python expressions.

    Attributes:
        inputs: (name, shape in memory, whether the kernel sees its transpose).
        output: (name, shape).
        grid: a tuple, followed by a comment if its numbers are valid only for this problem, config and GPU.
        arguments: arguments by name, in the kernel's order, then the launch options.
        work: floating-point operations; 0 if the rate is in bytes per second.
    """

    inputs: tuple[tuple[str, str, bool], ...]
    output: tuple[str, str]
    grid: str
    arguments: dict[str, str]
    work: str


def launch_code(kernel: Kernel, launch: Launch) -> LaunchCode:
    """Express one launch of a kernel as source text.

    Raises:
        CannotBeWritten: a script can't contain an argument.
    """
    untraced: list[str] = []

    def symbolic(declared: Any, owner: str) -> Any:
        numbers = {name: value for name, value in vars(declared).items() if type(value) is int}
        named = {name: SymbolicInt(value, f"{owner}.{name}", untraced) for name, value in numbers.items()}
        return dataclasses.replace(declared, **named)

    traced = Launch(symbolic(launch.problem, "problem"), symbolic(launch.config, "config"), launch.gpu)
    specs, output = kernel.family.tensors(traced.problem), kernel.family.output(traced.problem)
    untraced.clear()
    grid = repr(shape := kernel.grid(traced))
    # A plain number other than 1 may still depend on a field.
    if untraced or any(type(size) is int and size != 1 for size in shape):
        grid = f"{kernel.grid(launch)}  # for this problem and config, on {launch.gpu.name}"
    tensors = {
        name: _SymbolicTensor("output" if name == output else f'inputs["{name}"]', spec, launch.problem.dtype, untraced)
        for name, spec in specs.items()
    }
    given, parameters = kernel.arguments(tensors, traced), inspect.signature(kernel.jitted.fn).parameters
    order = [*(name for name in parameters if name in given), *(name for name in given if name not in parameters)]
    return LaunchCode(
        inputs=tuple((name, repr(spec.stored), spec.transposed) for name, spec in specs.items() if spec.is_input),
        output=(output, repr(specs[output].shape)),
        grid=grid,
        arguments={name: _argument(name, given[name]) for name in order},
        work=repr(kernel.family.work(traced.problem)),
    )


def literal(value: object) -> str:
    """Return a constant as source text, strings in double quotes."""
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _argument(name: str, value: Any) -> str:
    if value is None or isinstance(value, int | float | str | _SymbolicTensor):
        return literal(value)
    if type(value).__name__ == "TensorDescriptor":
        return f"TensorDescriptor({value.base}, {value.shape}, {value.strides}, {value.block_shape})"
    raise CannotBeWritten(f"The argument {name} is a {type(value).__name__}, which a script can't contain.")
