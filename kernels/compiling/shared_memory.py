"""Read which shared-memory addresses a kernel's lanes use, by evaluating its PTX. Runs in a compile worker.

An address is a few integer operations on the thread's number. Values unknown before the launch (arguments, the
program's number, a loop's counter) are equal for all threads of a program and taken as 0: they move all addresses
together, by whole buffers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from kernels.compiling.listing import locations
from kernels.lanes import Conversion, SharedOperation

_DEFINITION = re.compile(r"\s*(?:@!?%p\d+\s+)?([a-z][\w.:]*)\s+(%[a-z]+\d+)\s*,\s*(.*);")
_ON_SHARED = re.compile(
    r"\b(?P<name>(?:ld|st)\.shared[\w.:]*|(?:ld|st)matrix\.sync[\w.:]*|cp\.async\.c[ag]\.shared[\w.:]*)\s"
)
_ADDRESS = re.compile(r"\[\s*(%\w+)\s*(?:\+\s*(-?\d+))?\s*\]")
_CONVERSION = re.compile(r"ttg\.convert_layout .*: tensor<((?:\d+x)+)(\w+),")
_MASK = 0xFFFFFFFF
_LANES = 32
_MATRIX_ROW_BYTES = 16

Values = np.ndarray


def shared_operations(ptx: str, num_warps: int) -> tuple[SharedOperation, ...]:
    """Return the instructions on shared memory with linear addresses. Equal instructions are counted."""
    threads = _Threads(ptx, num_warps)
    counts: Counter[SharedOperation] = Counter()
    for line, location in zip(ptx.splitlines(), locations(ptx, "ptx"), strict=True):
        match, address = _ON_SHARED.search(line), _ADDRESS.search(line)
        if not (match and address and location):
            continue
        name, kind, matrices = match["name"], "load" if match["name"].startswith("ld") else "store", 0
        if many := re.search(r"matrix\..*\.x(\d)", line):
            kind, matrices, width_bytes = f"{kind} matrix", int(many[1]), _MATRIX_ROW_BYTES
        elif name.startswith("cp.async"):
            kind, width_bytes = "async copy", int(line.split(",")[2], 0)
        else:
            vector, bits = re.search(r"\.v(\d)", name), re.search(r"[busf](\d+)$", name)
            width_bytes = int(vector[1] if vector else 1) * int(bits[1] if bits else 32) // 8
        bases = _linear_bases(threads.evaluate(address[1]), 8 * matrices or _LANES)
        if bases is not None:
            counts[SharedOperation(kind, location[0][:2], name, width_bytes, matrices, *bases, 0)] += 1
    return tuple(replace(operation, count=count) for operation, count in counts.items())


def conversions(ttgir: str) -> tuple[Conversion, ...]:
    """Return the layout conversions, in the order of the TTGIR."""
    found = []
    for line, location in zip(ttgir.splitlines(), locations(ttgir, "ttgir"), strict=True):
        if location and (match := _CONVERSION.search(line)):
            bits = re.search(r"\d+", match[2])
            shape = tuple(int(size) for size in match[1][:-1].split("x"))
            found.append(Conversion(location[0][:2], shape, max(1, int(bits[0]) // 8) if bits else 1))
    return tuple(found)


def _linear_bases(address: Values, lanes: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return what each bit of a lane's and a warp's number changes in an address; None if that is not linear.

    Args:
        lanes: number of lanes per warp whose address counts.
    """
    by_warp = address.reshape(-1, _LANES)[:, :lanes]
    sides, linear = [], by_warp[:1, :1]
    for axis in (1, 0):
        along = by_warp[0] if axis else by_warp[:, 0]
        sides.append(tuple(int(along[1 << bit] ^ along[0]) for bit in range(len(along).bit_length() - 1)))
        for base in sides[-1]:
            linear = np.concatenate([linear, linear ^ base], axis=axis)
    return (sides[0], sides[1]) if np.array_equal(linear, by_warp) else None


class _Threads:
    """PTX registers, evaluated for all threads of a program at once."""

    def __init__(self, ptx: str, num_warps: int) -> None:
        self._thread = np.arange(_LANES * num_warps, dtype=np.int64)
        self._values = {"%tid.x": self._thread}
        self._definitions: dict[str, tuple[str, list[str]]] = {}
        for line in ptx.splitlines():
            if match := _DEFINITION.match(line):
                # The first definition is the value before a loop that changes the register.
                self._definitions.setdefault(match[2], (match[1], [part.strip() for part in match[3].split(",")]))

    def evaluate(self, operand: str) -> Values:
        """Return the unsigned 32-bit values of a register or number, int64."""
        if operand not in self._values:
            unknown = self._values[operand] = np.zeros_like(self._thread)  # ends the recursion of a loop's register
            name, operands = self._definitions.get(operand, ("", []))
            evaluate = _OPERATIONS.get(name.split(".")[0])
            if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)", operand):
                self._values[operand] = unknown + (int(operand, 0) & _MASK)
            elif evaluate:
                self._values[operand] = evaluate(name, *map(self.evaluate, operands)) & _MASK
        return self._values[operand]


def _signed(name: str, *operands: Values) -> list[Values]:
    """Reinterpret the operands of a signed instruction."""
    is_signed = ".s" in name
    return [np.where(values > _MASK >> 1, values - (_MASK + 1), values) if is_signed else values for values in operands]


def _extract_bits(name: str, values: Values, start: Values, length: Values) -> Values:
    field = values >> start & (1 << length) - 1
    return np.where((field >> length - 1 & 1) == 1, field - (1 << length), field) if name.endswith("s32") else field


def _compare(name: str, *operands: Values) -> Values:
    a, b = _signed(name, *operands[:2])
    results = {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}
    return results.get(name.split(".")[1], a == b).astype(np.int64)


def _select(_: str, a: Values, b: Values, chosen: Values) -> Values:
    return np.where(chosen != 0, a, b)


def _shuffle(_: str, values: Values, lane: Values, *__: Values) -> Values:
    threads = np.arange(len(values))
    return values[threads // _LANES * _LANES + lane % _LANES]


_OPERATIONS: dict[str, Callable[..., Values]] = {
    "mov": lambda _, a: a,
    "cvt": lambda _, a: a,
    "add": lambda _, a, b: a + b,
    "sub": lambda _, a, b: a - b,
    "mul": lambda _, a, b: a * b,
    "mad": lambda _, a, b, c: a * b + c,
    "and": lambda _, a, b: a & b,
    "or": lambda _, a, b: a | b,
    "xor": lambda _, a, b: a ^ b,
    "not": lambda _, a: ~a,
    "neg": lambda _, a: -a,
    "shl": lambda _, a, b: a << b,
    "shr": lambda name, a, b: _signed(name, a)[0] >> b,
    "bfe": _extract_bits,
    "selp": _select,
    "setp": _compare,
    "shfl": _shuffle,
}
