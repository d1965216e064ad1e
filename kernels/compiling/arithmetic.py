"""The TTGIR's arithmetic on values: integers are held as int64, bfloat16 as float32.

Only operations that addresses, masks and loaded indices use in practice are here. Any other raises.
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from kernels.compiling.listings import UnsupportedOperation
from kernels.compiling.ttgir import Op, pointee_bytes, shape_of
from kernels.compiling.values import Term, Value, add, apply, check_size, compare, conjunction, multiply

_FLOATS = {"f16": np.float16, "bf16": np.float32, "f32": np.float32, "f64": np.float64}


def evaluate(op: Op, operands: list[Value]) -> Value:
    """Return the result of an arithmetic operation.

    Raises:
        UnsupportedOperation: the operation is unknown.
    """
    rule = _RULES.get(op.name)
    if rule is not None:
        return rule(op, *operands)
    if op.name in _FLOAT_FUNCTIONS:
        return apply(_FLOAT_FUNCTIONS[op.name], *operands)
    if op.name in _INTEGER_FUNCTIONS:
        return apply(_INTEGER_FUNCTIONS[op.name], *operands)
    if op.name in _UNSIGNED_FUNCTIONS:
        function, bits = _UNSIGNED_FUNCTIONS[op.name], _bits(op.type)
        return apply(lambda *parts: _wrap(function(*(_unsigned(part, bits) for part in parts)), bits), *operands)
    raise UnsupportedOperation(f"{op.name} is not modeled.")


def _bits(type_text: str) -> int:
    """Return the width of the integers of a type such as i32 or tensor<64x1xi32, #blocked>."""
    match = re.search(r"(?:^|[x<])i(\d+)\b", type_text)
    return int(match[1]) if match else 64


def _float(type_text: str) -> Any:
    match = re.search(r"(?:^|[x<])(bf16|f16|f32|f64)\b", type_text)
    if not match:
        raise UnsupportedOperation(f"The floating-point type of {type_text} is not modeled.")
    return _FLOATS[match[1]]


def _is_float(type_text: str) -> bool:
    return bool(re.search(r"(?:^|[x<])b?f\d+", type_text))


def _source_type(op: Op) -> str:
    """Return the operand's type of a conversion: `arith.extui %x : i1 to i32`."""
    return re.split(r" to | -> ", op.text)[0].rpartition(" : ")[2].strip()


def _wrap(numbers: np.ndarray, bits: int) -> np.ndarray:
    numbers = numbers.astype(np.int64)
    return numbers if bits >= 64 else (numbers + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)


def _unsigned(numbers: np.ndarray, bits: int) -> np.ndarray:
    return numbers.astype(np.uint64) & np.uint64((1 << bits) - 1)


def _fit(value: Value, bits: int) -> Value:
    """Wrap a result that may not fit in its type."""
    if value.is_boolean or value.base.dtype.kind == "f":
        return value
    low, high = value.bounds()
    return value if -(1 << bits - 1) <= low and high < 1 << bits - 1 else apply(lambda x: _wrap(x, bits), value)


def _nonzero(numbers: np.ndarray) -> np.ndarray:
    """Replace zero divisors, which only inactive programs have."""
    return np.where(numbers == 0, np.ones_like(numbers), numbers)


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Divide toward zero, as hardware does."""
    quotient = a // _nonzero(b)
    return quotient + ((quotient < 0) & (quotient * _nonzero(b) != a))


def _remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a - _divide(a, b) * _nonzero(b)


_INTEGER_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "arith.ceildivsi": lambda a, b: -(-a // _nonzero(b)),
    "arith.floordivsi": lambda a, b: a // _nonzero(b),
    "arith.minsi": np.minimum,
    "arith.maxsi": np.maximum,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
    "arith.shrsi": np.right_shift,
    "arith.select": np.where,
    "math.absi": np.abs,
}
_UNSIGNED_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "arith.shrui": np.right_shift,
    "arith.minui": np.minimum,
    "arith.maxui": np.maximum,
}
_FLOAT_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "arith.addf": np.add,
    "arith.subf": np.subtract,
    "arith.mulf": np.multiply,
    "arith.divf": np.divide,
    "arith.negf": np.negative,
    "arith.remf": np.fmod,
    "arith.maxnumf": np.fmax,
    "arith.minnumf": np.fmin,
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
    "tt.clampf": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "math.fma": lambda a, b, c: a * b + c,
    "math.rsqrt": lambda x: 1 / np.sqrt(x),
    "math.absf": np.abs,
    "math.round": lambda x: np.trunc(x + np.copysign(0.5, x)),
    "math.roundeven": np.rint,
    **{
        f"math.{name}": getattr(np, name)
        for name in ("exp", "exp2", "log", "log2", "sqrt", "floor", "ceil", "trunc", "sin", "cos", "tanh")
    },
}
_PREDICATES = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal
}  # fmt: skip


def constant(op: Op) -> Value:
    """Return the value of an `arith.constant`."""
    text = re.sub(r"^\{.*?\} ", "", op.text.strip())  # Triton 3.6 prints attributes first
    dense = re.match(r"dense<(.*?)> :", text)
    word = dense[1] if dense else text.split(" : ")[0]
    if word in ("true", "false"):
        return Value(word == "true")
    if _is_float(op.type):
        dtype = _float(op.type)
        if word.startswith("0x"):
            width = 2 if "bf16" in op.type else np.dtype(dtype).itemsize
            bits = int(word, 16) << (16 if "bf16" in op.type else 0)
            return Value(np.array(bits, np.uint32 if width < 4 and dtype == np.float32 else f"u{width}").view(dtype))
        return Value(np.array(float(word), dtype))
    if word.startswith("["):
        numbers = np.array([int(number) for number in re.findall(r"-?\d+", word)]).reshape(shape_of(op.type))
        return Value(np.zeros(1, np.int64), [Term(numbers[None])])
    return Value(np.array(int(word, 0)))


def _linear(op: Op, a: Value, b: Value) -> Value:
    if a.is_boolean:
        return apply(np.bitwise_and if op.name == "arith.muli" else np.bitwise_xor, a, b)
    result = multiply(a, b) if op.name == "arith.muli" else add(a, b, 1 if op.name == "arith.addi" else -1)
    return _fit(result, _bits(op.type))


def _quotient(op: Op, a: Value, b: Value) -> Value:
    """Divide or take the remainder. By a positive constant, whole multiples stay in `base` and need no term."""
    is_quotient, divisor = "div" in op.name, b.base
    if a.terms and not b.terms and len(divisor) == 1 and divisor[0] > 0 and a.bounds()[0] >= 0 and a.base.min() >= 0:
        whole, rest = np.divmod(a.base, divisor[0])
        inner = apply(np.floor_divide if is_quotient else np.remainder, Value(rest, a.terms), b)
        return add(Value(whole), inner) if is_quotient else inner
    if op.name.endswith("ui"):
        bits, function = _bits(op.type), np.floor_divide if is_quotient else np.remainder
        return apply(lambda x, y: _wrap(function(_unsigned(x, bits), _nonzero(_unsigned(y, bits))), bits), a, b)
    return apply(_divide if is_quotient else _remainder, a, b)


def _compare_integers(op: Op, a: Value, b: Value) -> Value:
    name = op.text.split(",")[0].strip()
    predicate = _PREDICATES[name.lstrip("su") if name not in _PREDICATES else name]
    if a.is_boolean or b.is_boolean:
        return apply(lambda x, y: predicate(x.astype(np.int8), y.astype(np.int8)), a, b)
    if name.startswith("u") and min(value.bounds()[0] for value in (a, b)) < 0:
        mask = (1 << _bits(op.type)) - 1
        a, b = (apply(lambda x: x & mask, value) for value in (a, b))
    return compare(predicate, a, b)


def _compare_floats(op: Op, a: Value, b: Value) -> Value:
    name = op.text.split(",")[0].strip()  # o: false for a NaN; u: true for a NaN
    if name in ("ord", "uno"):
        return apply(lambda x, y: (np.isnan(x) | np.isnan(y)) == (name == "uno"), a, b)
    predicate = _PREDICATES[name[1:]]
    if name[0] == "u":
        return apply(lambda x, y: predicate(x, y) | np.isnan(x) | np.isnan(y), a, b)
    return apply(lambda x, y: predicate(x, y) & ~np.isnan(x) & ~np.isnan(y), a, b)


def _extend_unsigned(op: Op, a: Value) -> Value:
    if a.is_boolean:
        return apply(lambda x: x.astype(np.int64), a)
    bits = _bits(_source_type(op))
    return a if a.bounds()[0] >= 0 else apply(lambda x: x & ((1 << bits) - 1), a)


def _truncate(op: Op, a: Value) -> Value:
    return apply(lambda x: x & 1 == 1, a) if _bits(op.type) == 1 else _fit(a, _bits(op.type))


def _bitcast(op: Op, a: Value) -> Value:
    source, target = _source_type(op), op.type
    if "ptr" in target or _is_float(source) == _is_float(target):
        return a
    if "bf16" in op.text:
        raise UnsupportedOperation("tt.bitcast of bfloat16 is not modeled.")
    kind = np.dtype(_float(source if _is_float(source) else target))
    integer = np.dtype(f"i{kind.itemsize}")
    if _is_float(source):
        return apply(lambda x: x.astype(kind).view(integer).astype(np.int64), a)
    return apply(lambda x: x.astype(integer).view(kind), a)


def _high_half(op: Op, a: Value, b: Value) -> Value:
    if _bits(op.type) != 32:
        raise UnsupportedOperation("tt.mulhiui of 64-bit integers is not modeled.")
    return apply(lambda x, y: _wrap((_unsigned(x, 32) * _unsigned(y, 32)) >> np.uint64(32), 32), a, b)


def _make_range(op: Op) -> Value:
    start, end = _attribute(op, "start"), _attribute(op, "end")
    check_size(end - start)
    return Value(np.zeros(1, np.int64), [Term(np.arange(start, end)[None])])


def _expand_dims(op: Op, a: Value) -> Value:
    axis = _attribute(op, "axis") + 1
    return a.map_blocks(lambda table: np.expand_dims(table, axis))


def _transpose(op: Op, a: Value) -> Value:
    match = re.search(r"order = array<i32: ([\d, ]+)>", op.text)
    order = [int(number) + 1 for number in match[1].split(",")] if match else []
    return a.map_blocks(lambda table: table.transpose(0, *order))


def _reshape(op: Op, a: Value) -> Value:
    old, new = shape_of(op.text), shape_of(op.type)
    check_size(*(len(term.table) for term in a.terms), *old)
    return a.map_blocks(lambda table: np.broadcast_to(table, (len(table), *old)).reshape(len(table), *new))


def _join(op: Op, a: Value, b: Value) -> Value:
    rank = len(shape_of(op.type)) - 1
    pair = (value.with_rank(rank) for value in (a, b))
    return apply(lambda x, y: np.stack(np.broadcast_arrays(x, y), axis=-1), *pair)


def _attribute(op: Op, name: str) -> int:
    match = re.search(rf"{name} = (-?\d+)", op.text)
    if not match:
        raise UnsupportedOperation(f"{op.name} has no attribute {name}.")
    return int(match[1])


_RULES: dict[str, Callable[..., Value]] = {
    "arith.constant": constant,
    **dict.fromkeys(("arith.addi", "arith.subi", "arith.muli"), _linear),
    **dict.fromkeys(("arith.divsi", "arith.remsi", "arith.divui", "arith.remui"), _quotient),
    "arith.andi": lambda op, a, b: conjunction(a, b) if a.is_boolean else apply(np.bitwise_and, a, b),
    "arith.shli": lambda op, a, b: apply(lambda x, y: _wrap(x << y, _bits(op.type)), a, b),
    "arith.cmpi": _compare_integers,
    "arith.cmpf": _compare_floats,
    "arith.extsi": lambda op, a: apply(lambda x: -x.astype(np.int64), a) if a.is_boolean else a,
    "arith.extui": _extend_unsigned,
    "arith.trunci": _truncate,
    "arith.sitofp": lambda op, a: apply(lambda x: x.astype(_float(op.type)), a),
    "arith.uitofp": lambda op, a: apply(lambda x: _unsigned(x, _bits(_source_type(op))).astype(_float(op.type)), a),
    **dict.fromkeys(("arith.extf", "arith.truncf"), lambda op, a: apply(lambda x: x.astype(_float(op.type)), a)),
    **dict.fromkeys(("arith.fptosi", "arith.fptoui"), lambda op, a: apply(lambda x: x.astype(np.int64), a)),
    "tt.bitcast": _bitcast,
    "arith.bitcast": _bitcast,
    "tt.mulhiui": _high_half,
    "tt.addptr": lambda op, a, b: add(a, multiply(b, Value(np.array(pointee_bytes(op.type))))),
    "tt.make_range": _make_range,
    "tt.expand_dims": _expand_dims,
    "tt.trans": _transpose,
    "tt.reshape": _reshape,
    "tt.join": _join,
    **dict.fromkeys(
        (
            "tt.splat",
            "tt.unsplat",
            "tt.broadcast",
            "ttg.convert_layout",
            "arith.index_cast",
            "tt.ptr_to_int",
            "tt.int_to_ptr",
            "ttng.reinterpret_tensor_descriptor",
        ),
        lambda op, a: a,
    ),
}
