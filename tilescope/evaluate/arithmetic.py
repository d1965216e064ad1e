"""The TTGIR's arithmetic on values, and its overflows. Integers are held as int64, bfloat16 as float32.

Covers the operations that addresses, masks and loaded indices use in practice. Others raise UnsupportedOperation.
"""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
from numpy import ndarray

from tilescope.captures.listings import UnsupportedOperation, read_rows
from tilescope.evaluate.counts import Overflow
from tilescope.evaluate.global_memory import CHUNK
from tilescope.evaluate.values import (
    Unknown,
    Value,
    add,
    apply,
    check_size,
    compare,
    conjunction,
    from_table,
    group,
    keys_of,
    multiply,
)
from tilescope.ttgir.parser import Op, shape_of

# The remedy for operations that are not evaluated.
COUNT_IT = "To measure this launch, use --count on a GPU."
_USERS_NAMES = {
    "tt.cat": "tl.cat",
    "tt.dot": "tl.dot",
    "tt.elementwise_inline_asm": "inline assembly",
    "tt.extern_elementwise": "a libdevice function",
    "tt.histogram": "tl.histogram",
    "ttng.warp_group_dot_wait": "tl.dot",
}
_FLOATS = {"f16": "f2", "bf16": "f4", "f32": "f4", "f64": "f8"}


def evaluate(op: Op, operands: list[Value]) -> Value:
    """Return the result of an arithmetic operation.

    Raises:
        UnsupportedOperation: the operation is unknown.
    """
    if op.name in _RULES:
        return _RULES[op.name](op, *operands)
    if op.name in _FUNCTIONS:
        return apply(_FUNCTIONS[op.name], *operands)
    if op.name in _UNSIGNED_FUNCTIONS:
        bits = bits_of(op.type)
        function = _on_unsigned(_UNSIGNED_FUNCTIONS[op.name], bits)
        return apply(lambda *parts: _wrap(function(*parts), bits), *operands)
    name = _USERS_NAMES.get(op.name, op.name)
    raise UnsupportedOperation(f"Accesses depend on {name}, which is not evaluated. {COUNT_IT}")


def bits_of(type_text: str) -> int:
    """Return the width of the integers of a type such as i32 or tensor<64x1xi32, #blocked>."""
    match = re.search(r"(?:^|[x<])i(\d+)\b", type_text)
    return int(match[1]) if match else 64


def _float(type_text: str) -> np.dtype[Any] | None:
    """Return the NumPy dtype for a floating-point type; None for other types."""
    match = re.search(r"(?:^|[x<])(b?f\d+\w*)", type_text)
    if match and match[1] not in _FLOATS:
        raise UnsupportedOperation(f"Accesses depend on numbers of type {match[1]}. {COUNT_IT}")
    return np.dtype(_FLOATS[match[1]]) if match else None


def _source_type(op: Op) -> str:
    """Return the operand's type of a conversion: `arith.extui %x : i1 to i32`."""
    return re.split(r" to | -> ", op.text)[0].rpartition(" : ")[2].strip()


def _wrap(numbers: ndarray, bits: int) -> ndarray:
    numbers = numbers.astype(np.int64)
    return numbers if bits >= 64 else (numbers + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)


def _unsigned(numbers: ndarray, bits: int) -> ndarray:
    return numbers.astype(np.uint64) & np.uint64((1 << bits) - 1)


def _on_unsigned(function: Callable[..., Any], bits: int) -> Callable[..., Any]:
    return lambda *parts: function(*(_unsigned(part, bits) for part in parts))


def _fit(value: Value, bits: int) -> Value:
    """Wrap a result that may not fit in its type. Most programs shift by whole multiples, and keep their terms."""
    half = 1 << bits - 1
    size = 1 << bits
    if isinstance(value, Unknown) or bits >= 64 or value.base.dtype.kind in "bf":
        return value
    low, high = value.bounds_by_program()
    if -half <= low.min() and high.max() < half:
        return value
    if (high - low).max() >= size:
        result = apply(lambda x: _wrap(x, bits), value)
    else:
        turns = (low + half) // size
        result = Value(value.base - turns * size, value.terms)
        if (high - turns * size).max() >= half:
            is_over = compare(np.greater_equal, result, Value(half))
            result = add(result, apply(lambda x: x * size, is_over), -1)
    result.unwrapped = value if max(-low.min(), high.max()) < size << 8 else None
    return result


def _divide(a: ndarray, b: ndarray) -> ndarray:
    """Divide toward zero, as hardware does. Only inactive programs divide by zero."""
    return (a - np.fmod(a, b)) // b


# The NumPy functions of operations, of operations on unsigned numbers, and of comparisons.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "arith.ceildivsi": lambda a, b: -(-a // b),
    "math.fma": lambda a, b, c: a * b + c,
    "math.rsqrt": lambda x: 1 / np.sqrt(x),
    **read_rows(
        """
arith.floordivsi  floor_divide
arith.minsi       minimum
arith.maxsi       maximum
arith.ori         bitwise_or
arith.xori        bitwise_xor
arith.shrsi       right_shift
arith.select      where
arith.addf        add
arith.subf        subtract
arith.mulf        multiply
arith.divf        divide
arith.negf        negative
arith.maxnumf     fmax
arith.minnumf     fmin
arith.maximumf    maximum
arith.minimumf    minimum
math.absi         abs
math.absf         abs
math.exp          exp
math.exp2         exp2
math.log          log
math.log2         log2
math.sqrt         sqrt
math.floor        floor
math.ceil         ceil
""",
        partial(getattr, np),
    ),
}
_UNSIGNED_FUNCTIONS = read_rows(
    """
arith.shrui  right_shift
arith.minui  minimum
arith.maxui  maximum
arith.divui  floor_divide
arith.remui  remainder
""",
    partial(getattr, np),
)
_PREDICATES = read_rows(
    """
eq  equal
ne  not_equal
lt  less
le  less_equal
gt  greater
ge  greater_equal
""",
    partial(getattr, np),
)


def constant(op: Op) -> Value:
    """Return the value of an `arith.constant`."""
    text = re.sub(r"^\{.*?\} ", "", op.text.strip())  # Triton 3.6 prints attributes first
    dense = re.match(r"dense<(.*?)> :", text)
    word = dense[1] if dense else text.split(" : ")[0]
    if word in ("true", "false"):
        return Value(word == "true")
    if dtype := _float(op.type):
        if word.startswith("0x"):  # the bits, for bfloat16 those of the upper half
            bits = int(word, 16) << (16 if "bf16" in op.type else 0)
            return Value(np.array(bits, f"u{dtype.itemsize}").view(dtype))
        return Value(np.array(float(word), dtype))
    if word.startswith("["):
        numbers = np.array([int(number) for number in re.findall(r"-?\d+", word)]).reshape(
            shape_of(op.type)
        )
        return from_table(numbers[None])
    return Value(np.array(int(word, 0)))


def _linear(op: Op, a: Value, b: Value) -> Value:
    if a.is_boolean:
        return apply(np.bitwise_and if op.name == "arith.muli" else np.bitwise_xor, a, b)
    if op.name == "arith.muli":
        return _fit(multiply(a, b), bits_of(op.type))
    # A sum wraps to the same number whether or not its operands were wrapped before.
    result = add(a.unwrapped or a, b.unwrapped or b, 1 if op.name == "arith.addi" else -1)
    return _fit(result, bits_of(op.type))


def _quotient(op: Op, a: Value, b: Value) -> Value:
    """Divide or take the remainder. By a positive constant, whole multiples stay in `base` and need no term."""
    is_quotient = op.name == "arith.divsi"
    divisor = b.base[0] if len(b.base) == 1 and not b.terms else 0
    if a.terms and divisor > 0 and a.lower_bound >= 0 and a.base.min() >= 0:
        whole, rest = np.divmod(a.base, divisor)
        inner = apply(np.floor_divide if is_quotient else np.remainder, Value(rest, a.terms), b)
        return add(Value(whole), inner) if is_quotient else inner
    return apply(_divide if is_quotient else np.fmod, a, b)


def _compare_integers(op: Op, a: Value, b: Value) -> Value:
    name = op.text.split(",")[0].strip()
    predicate = _PREDICATES[name.lstrip("su")]
    if a.is_boolean:
        return apply(predicate, a, b)
    if name.startswith("u") and min(a.lower_bound, b.lower_bound) < 0:
        return apply(_on_unsigned(predicate, bits_of(op.type)), a, b)
    return compare(predicate, a, b)


def _compare_floats(op: Op, a: Value, b: Value) -> Value:
    name = op.text.split(",")[0].strip()  # o: false for a NaN; u: true for a NaN

    def predicate(x: ndarray, y: ndarray) -> ndarray:
        is_unordered = np.isnan(x) | np.isnan(y)
        if name in ("ord", "uno"):
            return is_unordered == (name == "uno")
        result = _PREDICATES[name[1:]](x, y)
        return result | is_unordered if name[0] == "u" else result & ~is_unordered

    return apply(predicate, a, b)


def _extend_unsigned(op: Op, a: Value) -> Value:
    if a.is_boolean:
        return apply(lambda x: x.astype(np.int64), a)
    bits = bits_of(_source_type(op))
    return a if a.lower_bound >= 0 else apply(lambda x: x & ((1 << bits) - 1), a)


def _bitcast(op: Op, a: Value) -> Value:
    source = _float(_source_type(op))
    target = _float(op.type)
    if "ptr" in op.type or (source and target):
        return a
    if (source or target) and "bf16" in op.text:
        raise UnsupportedOperation(f"Accesses depend on the bits of bfloat16 numbers. {COUNT_IT}")
    if source:
        return apply(lambda x: x.astype(source).view(f"i{source.itemsize}").astype(np.int64), a)
    return apply(lambda x: x.astype(f"i{target.itemsize}").view(target), a) if target else a


def _high_half(op: Op, a: Value, b: Value) -> Value:
    if bits_of(op.type) != 32:
        raise UnsupportedOperation(f"Accesses depend on tl.umulhi of 64-bit integers. {COUNT_IT}")
    return apply(
        lambda x, y: _wrap((_unsigned(x, 32) * _unsigned(y, 32)) >> np.uint64(32), 32), a, b
    )


def _make_range(op: Op) -> Value:
    start = op.attribute("start")
    end = op.attribute("end")
    check_size(end - start)
    return from_table(np.arange(start, end)[None])


def _transpose(op: Op, a: Value) -> Value:
    match = re.search(r"order = array<i32: ([\d, ]+)>", op.text)
    order = [int(number) + 1 for number in match[1].split(",")] if match else []
    return a.map_blocks(lambda table: table.transpose(0, *order))


def _reshape(op: Op, a: Value) -> Value:
    old = shape_of(op.text)
    new = shape_of(op.type)
    check_size(*(len(term.table) for term in a.terms), *old)
    return a.map_blocks(
        lambda table: np.broadcast_to(table, (len(table), *old)).reshape(len(table), *new)
    )


def _join(op: Op, a: Value, b: Value) -> Value:
    rank = len(shape_of(op.type)) - 1
    return apply(
        lambda x, y: np.stack(np.broadcast_arrays(x, y), axis=-1),
        a.with_rank(rank),
        b.with_rank(rank),
    )


def _gather(op: Op, *operands: Value) -> Value:
    """Evaluate tl.gather: elements of a block along an axis."""
    first, index = group(keys_of(*operands))
    check_size(len(first), *op.shape)
    source, at = (
        value.full_blocks(first, shape)
        for value, shape in zip(operands, (op.shape, shape_of(op.type)), strict=True)
    )
    return from_table(np.take_along_axis(source, at, op.attribute("axis") + 1), index)


_UNCHANGED = (
    "tt.splat", "tt.unsplat", "tt.broadcast", "tt.ptr_to_int", "tt.int_to_ptr", "ttg.convert_layout",
    "ttng.reinterpret_tensor_descriptor", "arith.index_cast",
)  # fmt: skip
_RULES: dict[str, Callable[..., Value]] = {
    **dict.fromkeys(_UNCHANGED, lambda op, a: a),
    "arith.constant": constant,
    **dict.fromkeys(("arith.addi", "arith.subi", "arith.muli"), _linear),
    **dict.fromkeys(("arith.divsi", "arith.remsi"), _quotient),
    "arith.andi": lambda op, a, b: (
        conjunction(a, b) if a.is_boolean else apply(np.bitwise_and, a, b)
    ),
    "arith.shli": lambda op, a, b: apply(lambda x, y: _wrap(x << y, bits_of(op.type)), a, b),
    "arith.cmpi": _compare_integers,
    "arith.cmpf": _compare_floats,
    "arith.extsi": lambda op, a: apply(lambda x: -x.astype(np.int64), a) if a.is_boolean else a,
    "arith.extui": _extend_unsigned,
    "arith.trunci": lambda op, a: (
        apply(lambda x: x & 1 == 1, a) if bits_of(op.type) == 1 else _fit(a, bits_of(op.type))
    ),
    **dict.fromkeys(
        ("arith.sitofp", "arith.extf", "arith.truncf"),
        lambda op, a: apply(lambda x: x.astype(_float(op.type)), a),
    ),
    "arith.uitofp": lambda op, a: apply(
        lambda x: _unsigned(x, bits_of(_source_type(op))).astype(_float(op.type)), a
    ),
    **dict.fromkeys(
        ("arith.fptosi", "arith.fptoui"), lambda op, a: apply(lambda x: x.astype(np.int64), a)
    ),
    **dict.fromkeys(("tt.bitcast", "arith.bitcast"), _bitcast),
    "tt.mulhiui": _high_half,
    "tt.addptr": lambda op, a, b: add(a, multiply(b, Value(op.element_bytes))),
    "tt.make_range": _make_range,
    "tt.expand_dims": lambda op, a: a.map_blocks(
        lambda table: np.expand_dims(table, op.attribute("axis") + 1)
    ),
    "tt.trans": _transpose,
    "tt.reshape": _reshape,
    "tt.join": _join,
    "tt.gather": _gather,
}


def split(value: Value) -> list[Value]:
    """Evaluate tl.split: the two halves of a block's last dimension, which are equal if its length is 1."""
    halves = (partial(np.take, indices=half, axis=-1, mode="clip") for half in (0, 1))
    return [value.map_blocks(half) for half in halves]


def fold(op: Op, operands: list[Value], values: dict[str, Value]) -> list[Value]:
    """Reduce or scan along an axis, in order, with the operation's own region.

    Args:
        values: by name. Those of the region are overwritten.
    """
    region = op.regions[0]
    axis = op.attribute("axis") + 1
    shape = op.shape
    first, index = group(keys_of(*operands))
    check_size(len(first), *shape)
    blocks = [value.full_blocks(first, shape) for value in operands]
    elements = [[np.take(block, i, axis) for block in blocks] for i in range(shape[axis - 1])]
    order = -1 if "reverse = true" in op.text else 1

    def combine(total: list[ndarray], element: list[ndarray]) -> list[ndarray]:
        parts = (Value(part.ravel()) for part in (*total, *element))
        values.update(zip(region.arguments, parts, strict=True))
        for inner in region.ops[:-1]:
            values[inner.results[0]] = evaluate(inner, [values[name] for name in inner.operands])
        results = (values[name].base for name in region.yielded)
        return [np.broadcast_to(base, total[0].size).reshape(total[0].shape) for base in results]

    totals = list(accumulate(elements[::order], combine))
    results = totals[-1]
    if op.name == "tt.scan":
        results = [np.stack(steps, axis) for steps in zip(*totals[::order], strict=True)]
    return [from_table(np.ascontiguousarray(result), index) for result in results]


class Overflows:
    """The operations of a launch whose results overflow their type.

    Attributes:
        by_line: the overflows by line in the TTGIR.
    """

    def __init__(self, programs: int) -> None:
        self.by_line: dict[int, Overflow] = {}
        self._programs = programs
        self._wrapping: dict[int, ndarray] = {}

    def note(self, op: Op, value: Value, programs: ndarray, active: ndarray) -> None:
        """Record the first program in which an operation's result overflows its type, and the smallest such result.

        Args:
            value: the mathematical results.
            programs: (programs,) the numbers of the programs.
            active: (programs,) whether each executes the operation.
        """
        bits = bits_of(op.type)
        half = 1 << bits - 1
        low, high = value.bounds_by_program()
        wraps = np.flatnonzero(active & ((low < -half) | (high >= half)))
        if not op.source or not wraps.size:
            return
        are_wrapping = self._wrapping.setdefault(op.line, np.zeros(self._programs, bool))
        are_wrapping[programs[wraps]] = True
        least = np.broadcast_to(np.minimum(abs(low), abs(high)), len(active))[wraps]
        most = max(1, CHUNK // math.prod(shape_of(op.type)))
        closest = wraps[np.argsort(least, kind="stable")[:most]]
        members = np.union1d(wraps[:most], closest)
        blocks = value.blocks(members)
        is_wrong = (blocks < -half) | (blocks >= half)
        rows = np.nonzero(is_wrong)[0]
        if not rows.size:
            return
        wrong = blocks[is_wrong]
        new = Overflow(
            source=op.source,
            line=op.line,
            program=int(programs[members[rows[0]]]),
            value=int(wrong[0]),
            smallest=int(wrong[np.abs(wrong).argmin()]),
            programs=int(np.count_nonzero(are_wrapping)),
            bits=bits,
        )
        known = self.by_line.get(op.line, new)
        first = min(known, new, key=lambda each: each.program)
        smallest = min(known.smallest, new.smallest, key=abs)
        self.by_line[op.line] = replace(first, smallest=smallest, programs=new.programs)
