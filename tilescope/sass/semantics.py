"""The semantics of SASS instructions on integers.

A value is an int or an array that broadcasts to (programs, threads). Registers hold unsigned 32-bit numbers as int64,
predicates hold booleans. NVIDIA documents the opcodes by name only ("CUDA Binary Utilities 13.0"). The
semantics here follow from compiled code with known results, and from executions counted on a GPU.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy import ndarray

# An int or an array.
Number = Any
MASK = 0xFFFFFFFF
_SIGN = 1 << 31
LANES = 32


def signed(value: Number) -> Number:
    """Reinterpret an unsigned 32-bit number."""
    return (value ^ _SIGN) - _SIGN


def pair(low: Number, high: Number) -> Number:
    """Return the signed 64-bit number in two registers."""
    return signed(high) << 32 | low


def halves(value: Number) -> tuple[Number, Number]:
    return value & MASK, value >> 32 & MASK


def select(condition: Number, a: Number, b: Number) -> Number:
    if isinstance(condition, (bool, np.bool_)):
        return a if condition else b
    return np.where(condition, a, b)


def look_up(table: int, values: Sequence[Number], ones: int) -> Number:
    """Apply a truth table to each bit. Entry 4 a + 2 b + c is the result.

    Args:
        ones: the constant with all bits set: MASK, or True for predicates.
    """

    def choose(value: Number, one: Number, zero: Number) -> Number:
        if isinstance(one, int) and isinstance(zero, int) and one == zero:
            return one
        if one is zero:
            return one
        return value & one | (value ^ ones) & zero

    a, b, c = values
    zero = ones ^ ones
    bits = [ones if table >> k & 1 else zero for k in range(8)]
    by_c = [choose(c, bits[k + 1], bits[k]) for k in range(0, 8, 2)]
    by_b = [choose(b, by_c[k + 1], by_c[k]) for k in (0, 2)]
    return choose(a, by_b[1], by_b[0])


def add(*parts: Number) -> tuple[Number, Number, Number]:
    """Return the sum, and whether it exceeds 32 bits once and twice."""
    total = sum(parts[1:], start=parts[0])
    return total & MASK, total >> 32 > 0, total >> 32 > 1


def shift(kind: str, is_high: bool, low: Number, by: Number, high: Number) -> Number:
    """Shift the 64-bit number `high:low`, and return one half.

    Args:
        kind: the direction and the type, such as "R.S32". The shift is clamped to 63 for 64-bit types, else to 32.
    """
    most = 63 if "64" in kind else 32
    by = min(by, most) if isinstance(by, int) else np.minimum(by, most)
    if kind.startswith("L"):
        return (high << by | low << by >> 32 if is_high else low << by) & MASK
    upper = signed(high) if "S" in kind else high
    if is_high:
        return upper >> by & MASK
    # A left shift by 32 - by, or a right shift by by - 32.
    beyond = select(
        by > 32, upper >> select(by > 32, by - 32, 0), high << select(by > 32, 0, 32 - by)
    )
    return (low >> by | beyond) & MASK


def extend(value: Number, bits: Number, is_signed: bool) -> Number:
    value = value & (1 << bits) - 1
    return (value ^ 1 << bits - 1) - (1 << bits - 1) & MASK if is_signed else value


def compare(test: str, a: Number, b: Number, previous: Number | None) -> Number:
    """Compare two numbers, or the high halves if `previous` is the result of the low halves."""
    match test:
        case "EQ":
            return (a == b) & (True if previous is None else previous)
        case "NE":
            return (a != b) | (False if previous is None else previous)
        case "LT" | "LE":
            result = a < b
        case "GT" | "GE":
            result = a > b
        case _:
            raise KeyError(test)
    equal = test in ("LE", "GE") if previous is None else previous
    return result | ((a == b) & equal)


def permute(a: Number, selector: Number, b: Number) -> Number:
    """Return the bytes of `b:a` that the selector's four digits name."""
    both = pair(a, b)
    result: Number = 0
    for k in range(4):
        digit = selector >> 4 * k & 15
        byte = both >> 8 * (digit & 7) & 255
        byte = select(digit > 7, (byte >> 7) * 255, byte)
        result = result | byte << 8 * k
    return result


def count_bits(value: Number) -> Number:
    return (
        int(value).bit_count()
        if isinstance(value, int)
        else np.bitwise_count(value).astype(np.int64)
    )


def find_leading_one(value: Number) -> Number:
    if isinstance(value, int):
        return value.bit_length() - 1 & MASK
    exponent = np.frexp(value.astype(np.float64))[1].astype(np.int64)
    return exponent - 1 & MASK


def as_float(bits: Number) -> ndarray:
    return np.asarray(bits).astype(np.uint32).view(np.float32)


def as_bits(value: Any) -> ndarray:
    return np.asarray(value, np.float32).view(np.uint32).astype(np.int64)


def to_float(value: Number, rounds_up: bool) -> ndarray:
    exact = np.asarray(value, np.float64)
    rounded = exact.astype(np.float32)
    if rounds_up:
        rounded = np.where(rounded < exact, np.nextafter(rounded, np.float32(np.inf)), rounded)
    return as_bits(rounded)


def to_integer(bits: Number) -> ndarray:
    number = np.nan_to_num(as_float(bits).astype(np.float64), posinf=MASK, neginf=0)
    return np.trunc(np.clip(number, -_SIGN, MASK)).astype(np.int64) & MASK


def reciprocal(bits: Number) -> ndarray:
    with np.errstate(divide="ignore"):
        return as_bits(np.float32(1) / as_float(bits))


def shuffle(mode: str, value: ndarray, by: Number, clamp: Number) -> ndarray:
    """Exchange values between the lanes of each warp.

    Args:
        value: (programs, threads).
        clamp: the largest lane (or the smallest for "UP") in bits 0 to 4, the segment mask in bits 8 to 12.
    """
    lane = np.arange(value.shape[1]) % LANES
    segment = clamp >> 8 & 31
    limit = (lane & segment) | (clamp & 31 & ~segment)
    match mode:
        case "BFLY":
            source = lane ^ by
        case "UP":
            source = lane - by
        case "DOWN":
            source = lane + by
        case _:
            source = (lane & segment) | (by & 31 & ~segment)
    inside = source >= limit if mode == "UP" else source <= limit
    source = np.where(inside, source, lane)
    first = np.arange(value.shape[1]) // LANES * LANES
    return np.take_along_axis(value, np.broadcast_to(first + source, value.shape), 1)


def elect(active: ndarray) -> ndarray:
    """Return which lanes, (programs, threads), are the first active ones of their warps."""
    warps = active.reshape(len(active), -1, LANES)
    first = np.argmax(warps, axis=2)[:, :, None] == np.arange(LANES)
    return (first & warps).reshape(active.shape)


def vote(votes: ndarray, is_all: bool) -> list[ndarray]:
    """Return the votes of each lane's warp as bits, and whether all of them, or any, are true."""
    warps = votes.reshape(len(votes), -1, LANES)
    total = warps.all(axis=2) if is_all else warps.any(axis=2)
    ballot = (warps * (1 << np.arange(LANES))).sum(axis=2)
    return [np.repeat(each, LANES, axis=1) for each in (ballot, total)]
