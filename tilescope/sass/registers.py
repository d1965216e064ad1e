"""The registers that each SASS instruction reads and writes, and those that are live."""

import functools
import re
from bisect import bisect
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from tilescope.sass.instructions import Instruction, parse_sass

_PREDICATE = re.compile(r"!?U?P[\dT]")
_RESULT = re.compile(r"U?(R(\d+|Z)|P[\dTR])$")
_REGISTER = re.compile(r"\bR(\d+)\b(\.64)?")
_SHAPE = re.compile(r"(16|8)x?8x?(\d+)")  # 16816 or 16x8x16: rows, 8 columns, depth
_VECTOR = re.compile(r"B?[FUS]?(\d+)x(\d+)")  # F32x4
_REPEATS = re.compile(r"x(\d+)")  # x32, of tensor memory
_DOUBLE = re.compile(r"[FSU]?64")

# A thread has at most 255 registers; 255 is the number of RZ.
_ZERO_REGISTER = 255

# Tensor memory: registers per element of the vector, by the bits of a row.
_TENSOR_MEMORY = {"16dp128bit": 2, "16dp256bit": 4}


def split_operands(instruction: Instruction) -> tuple[Sequence[str], Sequence[str]]:
    """Split the operands of an instruction into those that it writes and those that it reads."""
    operands = instruction.operands
    traits = instruction.traits
    if not operands or traits.jump or traits.result == "none" or not _RESULT.match(operands[0]):
        return (), operands
    count = 1
    if traits.result == "vote":
        count = len(operands) - 1
    elif _is_predicate(operands[0]):
        count = 1 if traits.result == "predicate" else 2
    elif traits.result == "carry":
        while len(operands) > count and _is_predicate(operands[count]):
            count += 1
    return operands[:count], operands[count:]


def _is_predicate(operand: str) -> bool:
    return operand.lstrip("U").startswith("P")


@functools.lru_cache(maxsize=1 << 14)
def find_accesses(instruction: Instruction) -> tuple[int, int]:
    """Return the registers that an instruction reads, and those that it writes, each as a set of bits.

    An unknown opcode is assumed to have a result and 32-bit operands.

    Raises:
        ValueError: a thread has fewer registers.
    """
    suffixes = instruction.opcode.split(".")[1:]
    results, values = split_operands(instruction)
    result_width, *widths = _widths(instruction, suffixes)
    writes = 0
    for value in results:
        writes |= _registers(value, result_width)
    # Global addresses have 64 bits, even where the listing names one register of the pair.
    is_global = "E" in suffixes and not instruction.traits.smem
    reads = 0
    numbers = (value for value in values if not _PREDICATE.fullmatch(value))
    for number, value in enumerate(numbers):
        width = widths[min(number, len(widths) - 1)]
        if "[" in value:
            width = 2 if is_global else 1
        reads |= _registers(value, width)
    return reads, writes


def count_group_rows(instruction: Instruction) -> int:
    """Return the rows that a product of four warps reads from shared memory, 32 bytes each.

    The first operand has 64 rows unless it is in registers; the rows of the second one are the columns of the result.
    """
    shape = instruction.opcode.split(".")[1]
    return int(shape.split("x")[1]) + 64 * instruction.operands[1].startswith("gdesc")


def list_registers(numbers: int) -> list[int]:
    """Return the numbers of the registers in a set of bits."""
    return [number for number in range(numbers.bit_length()) if numbers >> number & 1]


def _registers(operand: str, width: int) -> int:
    numbers = 0
    for first, is_pair in _REGISTER.findall(operand):
        count = 2 if is_pair else width
        if max(count, int(first)) >= _ZERO_REGISTER:
            raise ValueError(
                f"{operand} names {count} registers from R{first} on; a thread has 255."
            )
        numbers |= ((1 << count) - 1) << int(first)
    return numbers


def _widths(instruction: Instruction, suffixes: list[str]) -> tuple[int, ...]:
    """Return the registers of the result and of each source. The last number is that of all further sources."""
    traits = instruction.traits
    match traits.widths:
        case "group product":
            columns = int(suffixes[0].split("x")[1])
            accumulator = columns // (4 if suffixes[1] == "F16" else 2)
            return accumulator, 4, accumulator
        case "product":
            return _matrix_widths(traits.bits, suffixes)
        case "pair":
            count = 2
        case "single":
            count = 1
        case "conversion":
            return _conversion_widths(traits.semantics, suffixes)
        case "wide product":
            is_wide = "WIDE" in suffixes
            return 1 + is_wide, 1, 1, 1 + (is_wide or "HI" in suffixes)
        case "clear":
            count = 1 if "32" in suffixes else 2
        case "matrices":
            count = instruction.lane_registers
        case "tensor memory":
            repeats = filter(None, map(_REPEATS.fullmatch, suffixes))
            count = next((int(each[1]) for each in repeats), 1)
            count *= next((_TENSOR_MEMORY[each] for each in suffixes if each in _TENSOR_MEMORY), 1)
        case _:
            count = max(map(_suffix_width, suffixes), default=1)
    return count, count


def _suffix_width(suffix: str) -> int:
    if suffix in ("128", "256"):
        return int(suffix) // 32
    if vector := _VECTOR.fullmatch(suffix):
        return max(1, int(vector[1]) * int(vector[2]) // 32)
    return 2 if _DOUBLE.fullmatch(suffix) else 1


def _matrix_widths(bits: int, suffixes: list[str]) -> tuple[int, ...]:
    """Return the widths of a warp's fragments. Each lane holds a 32nd of a matrix."""
    shape = next(filter(None, map(_SHAPE.fullmatch, suffixes)))
    rows = int(shape[1])
    depth = int(shape[2])
    result_bits = 64 if bits == 64 else 16 if suffixes[1] == "F16" else 32
    if "TF32" in suffixes:
        bits = 32
    accumulator = rows * 8 * result_bits // 1024
    return accumulator, rows * depth * bits // 1024, 8 * depth * bits // 1024, accumulator


def _conversion_widths(semantics: str, suffixes: list[str]) -> tuple[int, int]:
    """F2F names both types, the result's first. The others omit 32-bit types."""
    if not semantics:
        return 1 + (suffixes[0] == "F64"), 1 + ("F64" in suffixes[1:])
    floats = 1 + ("F64" in suffixes)
    integers = 1 + bool({"S64", "U64"}.intersection(suffixes))
    return (integers, floats) if semantics == "to integer" else (floats, integers)


_ALL = (1 << 256) - 1
_STACK_POINTER = 1 << 1


class Accesses(NamedTuple):
    """The registers of an instruction, as sets of bits.

    Attributes:
        reads: those that it reads in any case.
        sources: those that it reads if one of its results is live.
        is_conditional: whether a predicate may keep it from writing.
    """

    reads: int
    writes: int
    is_conditional: bool
    sources: int = 0


def find_live(
    accesses: Sequence[Accesses],
    following: Sequence[Sequence[int]],
    at_return: Mapping[int, int] = MappingProxyType({}),
) -> list[int]:
    """Return the registers that are live before each instruction: that it or later ones read before they are written.

    Args:
        following: the instructions that may follow each.
        at_return: registers that are read after the return of a function.
    """
    before = [0] * len(accesses)
    changed = True
    while changed:
        changed = False
        for number in range(len(accesses) - 1, -1, -1):
            reads, writes, is_conditional, sources = accesses[number]
            live = at_return.get(number, 0)
            for each in following[number]:
                live |= before[each]
            if live & writes:
                live = (live if is_conditional else live & ~writes) | sources
            live |= reads
            if live != before[number]:
                before[number] = live
                changed = True
    return before


def reach(start: int, follow: Callable[[int], list[int]], reached: set[int]) -> set[int]:
    """Add the start and all that it leads to, except through nodes that are already reached."""
    waiting = [start]
    while waiting:
        node = waiting.pop()
        if node not in reached:
            reached.add(node)
            waiting += follow(node)
    return reached


@lru_cache(maxsize=8)
def analyze(sass: str) -> tuple[Sequence[Accesses], list[list[int]], list[int]]:
    """Return accesses, the instructions that may follow each, and the registers that are live at each.

    Live registers are those that an instruction reads or writes, or that later instructions read.
    A call reads and writes what its function reads and writes.
    """
    instructions = parse_sass(sass)
    accesses = [Accesses(*find_accesses(each), bool(each.predicate)) for each in instructions]
    following = _find_following(instructions)
    calls = defaultdict[int, list[int]](list)
    for number, instruction in enumerate(instructions):
        if is_call(instruction) and instruction.target is not None:
            calls[instruction.target].append(number)
    starts = sorted(calls)
    returns = [number for number, each in enumerate(instructions) if each.traits.jump == "return"]
    for start in starts:
        reads = find_live(accesses, following)[start]
        kept = find_live(accesses, following, dict.fromkeys(returns, _ALL))[start]
        for call in calls[start]:
            accesses[call] = accesses[call]._replace(reads=reads, writes=_ALL & ~kept)
    before = find_live(accesses, following)
    if starts:
        # The registers that are live after each function's call, at the call where the most are.
        after = [
            max((before[call + 1] for call in calls[each]), key=int.bit_count) for each in starts
        ]
        at_return = {number: after[bisect(starts, number) - 1] for number in returns}
        before = find_live(accesses, following, at_return)
    live = [
        live | access.writes | _STACK_POINTER for live, access in zip(before, accesses, strict=True)
    ]
    return accesses, following, live


def _find_following(instructions: Sequence[Instruction]) -> list[list[int]]:
    """Return the instructions that may follow each. After a call, execution continues."""
    following = list[list[int]]()
    for number, instruction in enumerate(instructions):
        is_jump = instruction.traits.jump and not is_call(instruction)
        is_conditional = bool(instruction.predicate) or len(instruction.operands) > 1
        following.append([instruction.target] if is_jump and instruction.target is not None else [])
        if not is_jump or is_conditional:
            following[-1].append(number + 1)
    following[-1] = [number for number in following[-1] if number < len(instructions)]
    jumps = [number for number, each in enumerate(instructions) if each.traits.jump == "indexed"]
    for number in jumps:
        following[number] += _find_unreached(instructions, following)
    return following


def _find_unreached(
    instructions: Sequence[Instruction], following: Sequence[list[int]]
) -> list[int]:
    """Return where code begins that only indirect branches reach. The listing does not name their targets."""
    entries = [0, *(each.target for each in instructions if is_call(each) and each.target)]
    reached = set[int]()
    starts = []
    for start in (*entries, *range(len(instructions))):
        if start not in reached:
            starts.append(start)
            reach(start, following.__getitem__, reached)
    return [start for start in starts if start not in entries]


def is_call(instruction: Instruction) -> bool:
    """Return whether an instruction calls a function. A call of a label in the kernel is a jump."""
    return instruction.traits.jump == "call" and ".L_" not in instruction.operands[-1]
