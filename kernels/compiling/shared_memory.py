"""Read which addresses of shared memory a compiled kernel's lanes use, by working out its PTX. In a compile worker.

An address is a few whole-number operations on the thread's number. What is not known before the launch (arguments, the
program's number, a loop's counter) is the same for all threads of a program, and taken as 0: it moves all addresses
together, by whole buffers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

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
    """The instructions on shared memory, with equal ones counted. Where an address is not linear, it is left out."""
    threads = _Threads(ptx, num_warps)
    found: Counter[SharedOperation] = Counter()
    for line, location in zip(ptx.splitlines(), locations(ptx, "ptx"), strict=True):
        match, address = _ON_SHARED.search(line), _ADDRESS.search(line)
        if not (match and address and location):
            continue
        matrices = int(many[1]) if (many := re.search(r"matrix\..*\.x(\d)", line)) else 0
        bases = _bases(threads.value(address[1]), 8 * matrices or _LANES)
        if bases is not None:
            found[_operation(match["name"], line, location[0][:2], matrices, *bases)] += 1
    return tuple(SharedOperation(**{**vars(operation), "count": count}) for operation, count in found.items())


def conversions(ttgir: str) -> tuple[Conversion, ...]:
    """The layout conversions, in the order of the TTGIR."""
    found = []
    for line, location in zip(ttgir.splitlines(), locations(ttgir, "ttgir"), strict=True):
        if location and (match := _CONVERSION.search(line)):
            bits = re.search(r"\d+", match[2])
            shape = tuple(int(size) for size in match[1][:-1].split("x"))
            found.append(Conversion(location[0][:2], shape, max(1, int(bits[0]) // 8) if bits else 1))
    return tuple(found)


def _operation(
    name: str, line: str, source: tuple[str, int], matrices: int, lane: tuple[int, ...], warp: tuple[int, ...]
) -> SharedOperation:
    if matrices:
        kind = "load matrix" if name.startswith("ld") else "store matrix"
        return SharedOperation(kind, source, name, _MATRIX_ROW_BYTES, matrices, lane, warp, 0)
    if name.startswith("cp.async"):
        return SharedOperation("async copy", source, name, int(line.split(",")[2], 0), 0, lane, warp, 0)
    vector, bits = re.search(r"\.v(\d)", name), re.search(r"[busf](\d+)$", name)
    width = int(vector[1] if vector else 1) * int(bits[1] if bits else 32) // 8
    return SharedOperation("load" if name.startswith("ld") else "store", source, name, width, 0, lane, warp, 0)


def _bases(address: Values, lanes: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """What each bit of a lane's and of a warp's number adds to an address, as an exclusive or.

    None where that is not all there is to it.

    Args:
        lanes: how many lanes of a warp give an address that counts.
    """
    of_warp = address.reshape(-1, _LANES)[:, :lanes]
    lane = tuple(int(of_warp[0, 1 << bit] ^ of_warp[0, 0]) for bit in range(lanes.bit_length() - 1))
    warp = tuple(int(of_warp[1 << bit, 0] ^ of_warp[0, 0]) for bit in range(len(of_warp).bit_length() - 1))
    linear = np.full_like(of_warp, of_warp[0, 0])
    for bit, base in enumerate(lane):
        linear ^= np.where(np.arange(lanes) >> bit & 1, base, 0)
    for bit, base in enumerate(warp):
        linear ^= np.where(np.arange(len(of_warp)) >> bit & 1, base, 0)[:, None]
    return (lane, warp) if np.array_equal(linear, of_warp) else None


class _Threads:
    """The values of registers for all threads of a program at once."""

    def __init__(self, ptx: str, num_warps: int) -> None:
        self._thread = np.arange(_LANES * num_warps, dtype=np.int64)
        self._values: dict[str, Values] = {}
        self._defined: dict[str, tuple[str, list[str]]] = {}
        for line in ptx.splitlines():
            if match := _DEFINITION.match(line):
                # Of a register that a loop changes, what it begins with.
                self._defined.setdefault(match[2], (match[1], [part.strip() for part in match[3].split(",")]))

    def value(self, operand: str) -> Values:
        """The values of a register or a number: int64, unsigned."""
        if operand not in self._values:
            self._values[operand] = np.zeros_like(self._thread)  # of a register that is defined by itself
            self._values[operand] = self._worked_out(operand)
        return self._values[operand]

    def _worked_out(self, operand: str) -> Values:
        if operand == "%tid.x":
            return self._thread
        if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)", operand):
            return np.full_like(self._thread, int(operand, 0) & _MASK)
        if operand not in self._defined:
            return np.zeros_like(self._thread)
        name, operands = self._defined[operand]
        known = _OPERATIONS.get(name.split(".")[0])
        if known is None:
            return np.zeros_like(self._thread)
        return known(name, *(self.value(part) for part in operands)) & _MASK


def _signed(values: Values) -> Values:
    return np.where(values > _MASK >> 1, values - (_MASK + 1), values)


def _bit_field(name: str, values: Values, start: Values, length: Values) -> Values:
    field = values >> start & (1 << length) - 1
    return np.where((field >> length - 1 & 1) == 1, field - (1 << length), field) if name.endswith("s32") else field


def _right(name: str, values: Values, by: Values) -> Values:
    return (_signed(values) if ".s" in name else values) >> by


def _chosen(name: str, a: Values, b: Values, chosen: Values) -> Values:
    return np.where(chosen != 0, a, b)


def _compare(name: str, a: Values, b: Values, *_: Any) -> Values:
    kind = name.split(".")[1]
    a, b = (_signed(a), _signed(b)) if ".s" in name else (a, b)
    results = {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}
    return results.get(kind, a == b).astype(np.int64)


def _from_lane(name: str, values: Values, lane: Values, *_: Any) -> Values:
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
    "shr": _right,
    "bfe": _bit_field,
    "selp": _chosen,
    "setp": _compare,
    "shfl": _from_lane,
}
