"""Read a kernel's operations on shared memory from its PTX and TTGIR. Runs in a compile worker.

Addresses come from evaluating the PTX, which computes each from the thread index with a few integer operations. Values
unknown before the launch (arguments, the program id, a loop counter) are equal for all threads of a program. The
evaluator sets them to 0, because they shift all addresses together, by whole buffers.
"""

import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy import ndarray

from kernels.evaluate.listings import lane_bytes, locate_lines
from kernels.instructions import Conversion, SharedInstruction
from kernels.layouts import expand_bases
from kernels.sectors import LANES

_DEFINITION = re.compile(r"\s*(?:@!?%p\d+\s+)?([a-z][\w.:]*)\s+(%[a-z]+\d+)\s*,\s*(.*);")
_ON_SHARED = re.compile(
    r"\b(?P<name>(?:ld|st)\.shared[\w.:]*|(?:ld|st)matrix\.sync[\w.:]*|cp\.async\.c[ag]\.shared[\w.:]*)\s"
)
_ADDRESS = re.compile(r"\[\s*(%\w+)\s*(?:\+\s*(-?\d+))?\s*\]")
_CONVERSION = re.compile(r"ttg\.convert_layout .*: tensor<((?:\d+x)+)[a-z]+(\d+)\w*,")
_MASK = 0xFFFFFFFF
_MATRIX_ROW_BYTES = 16

# Shared memory has 32 banks of 4 bytes, each of which serves one word per wavefront. Any number of lanes may share a
# word (CUDA C++ Programming Guide 13.0, "Shared Memory"). Wider accesses are split into parts of 128 bytes: half a warp
# at 8 bytes per lane, a quarter warp at 16, or the 8 rows of 16 bytes of a matrix.
_BANKS = 32
_WORD_BYTES = 4
_WAVEFRONT_BYTES = _BANKS * _WORD_BYTES


def shared_operations(ptx: str, num_warps: int) -> tuple[SharedInstruction, ...]:
    """Return the shared-memory instructions whose addresses are linear, and how often each occurs."""
    evaluate = _make_evaluator(ptx, num_warps)
    counts: Counter[SharedInstruction] = Counter()
    for line, location in locate_lines(ptx, "ptx"):
        match = _ON_SHARED.search(line)
        address = _ADDRESS.search(line)
        if not (match and address and location):
            continue
        name = match["name"]
        kind = "load" if match["name"].startswith("ld") else "store"
        matrices = 0
        if many := re.search(r"matrix\..*\.x(\d)", line):
            kind = f"{kind} matrix"
            matrices = int(many[1])
            width_bytes = _MATRIX_ROW_BYTES
        else:
            kind = "async copy" if name.startswith("cp.async") else kind
            width_bytes = lane_bytes(name, line)
        bases = _linear_bases(evaluate(address[1]), 8 * matrices or LANES)
        if bases is not None:
            counts[
                SharedInstruction(kind, location[0][:2], name, width_bytes, matrices, *bases, 0)
            ] += 1
    return tuple(replace(shared, count=count) for shared, count in counts.items())


def conversions(ttgir: str) -> tuple[Conversion, ...]:
    """Return the layout conversions, in TTGIR order."""
    result = []
    for line, location in locate_lines(ttgir, "ttgir"):
        if location and (match := _CONVERSION.search(line)):
            shape = tuple(map(int, match[1][:-1].split("x")))
            result.append(Conversion(location[0][:2], shape, -(-int(match[2]) // 8)))
    return tuple(result)


def _linear_bases(address: ndarray, lanes: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the address bits that each bit of the lane and warp index flips; None if addresses are not linear.

    Args:
        lanes: number of lanes per warp that supply an address.
    """
    by_warp = address.reshape(-1, LANES)[:, :lanes]
    lane, warp = (
        tuple(int(along[1 << bit] ^ along[0]) for bit in range(len(along).bit_length() - 1))
        for along in (by_warp[0], by_warp[:, 0])
    )
    linear = by_warp[0, 0] ^ expand_bases(warp, 1) ^ expand_bases(lane, 1).T
    return (lane, warp) if np.array_equal(linear, by_warp) else None


def _make_evaluator(ptx: str, num_warps: int) -> Callable[[str], ndarray]:
    """Return a function that maps a register or literal to its value in each thread: unsigned 32-bit, held as int64."""
    thread = np.arange(LANES * num_warps, dtype=np.int64)
    values = {"%tid.x": thread}
    definitions: dict[str, tuple[str, list[str]]] = {}
    for match in filter(None, map(_DEFINITION.match, ptx.splitlines())):
        # A register that a loop updates is defined twice; the first definition is its value before the loop.
        definitions.setdefault(match[2], (match[1], [part.strip() for part in match[3].split(",")]))

    def evaluate(operand: str) -> ndarray:
        if operand not in values:
            # Stops the recursion for a register that a loop updates
            values[operand] = np.zeros_like(thread)
            name, operands = definitions.get(operand, ("", []))
            kind = name.split(".")[0]
            if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)", operand):
                values[operand] = np.full_like(thread, int(operand, 0) & _MASK)
            elif kind in _OPERATIONS:
                values[operand] = _OPERATIONS[kind](*map(evaluate, operands)) & _MASK
            elif kind in _TYPED_OPERATIONS:
                values[operand] = _TYPED_OPERATIONS[kind](name, *map(evaluate, operands)) & _MASK
        return values[operand]

    return evaluate


def _signed(name: str, values: ndarray) -> ndarray:
    """Reinterpret an operand of a signed instruction."""
    return np.where(values > _MASK >> 1, values - (_MASK + 1), values) if ".s" in name else values


def _extract_bits(name: str, values: ndarray, start: ndarray, length: ndarray) -> ndarray:
    field = values >> start & (1 << length) - 1
    return (
        np.where((field >> length - 1 & 1) == 1, field - (1 << length), field)
        if name.endswith("s32")
        else field
    )


def _compare(name: str, a: ndarray, b: ndarray, *_: ndarray) -> ndarray:
    a = _signed(name, a)
    b = _signed(name, b)
    results = {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}
    return results.get(name.split(".")[1], a == b).astype(np.int64)


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "mov": operator.pos,
    "cvt": operator.pos,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "mad": lambda a, b, c: a * b + c,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "not": operator.invert,
    "neg": operator.neg,
    "shl": operator.lshift,
    "selp": lambda a, b, chosen: np.where(chosen != 0, a, b),
    "shfl": lambda a, lane, *_: a[np.arange(len(a)) // LANES * LANES + lane % LANES],
}

# Instructions whose result depends on their type or comparison, which their name contains.
_TYPED_OPERATIONS: dict[str, Callable[..., Any]] = {
    "shr": lambda name, a, b: _signed(name, a) >> b,
    "bfe": _extract_bits,
    "setp": _compare,
}


def wavefronts(operation: SharedInstruction) -> tuple[float, float]:
    """Return the wavefronts of one warp's instruction with and without bank conflicts, averaged over the warps."""
    address = expand_bases(operation.warp, 1) ^ expand_bases(operation.lane, 1).T
    lanes_at_once = min(LANES, _WAVEFRONT_BYTES // max(operation.width_bytes, _WORD_BYTES))
    parts = address.reshape(-1, lanes_at_once, 1) + np.arange(0, operation.width_bytes, _WORD_BYTES)
    total = sum(int(np.bincount(np.unique(part // _WORD_BYTES) % _BANKS).max()) for part in parts)
    # Without conflicts: at most as many words as banks
    return total / len(address), len(parts) / len(address)


def wavefronts_per_instruction(operations: Iterable[SharedInstruction]) -> tuple[float, float]:
    """Return the wavefronts of one warp's instruction with and without bank conflicts, averaged over operations."""
    counts, passes = zip(
        *((operation.count, wavefronts(operation)) for operation in operations), strict=True
    )
    total, ideal = np.average(passes, axis=0, weights=counts).tolist()
    return total, ideal
