"""Registers that are live along the SASS, and the instructions that spill them, by source line."""

import re
from bisect import bisect
from collections.abc import Sequence

from kernels.inside.report import LineSpills
from kernels.inside.sass import Instruction

_LANES = 32
_ALL = (1 << 256) - 1
_STACK_POINTER = 1 << 1
_BYTES = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}

_PREDICATE = re.compile(r"!?U?P(\d|T)")
_RESULT = re.compile(r"R(\d+|Z)")
_REGISTER = re.compile(r"\bR(\d+)\b(\.64)?")
_VECTOR = re.compile(r"B?[FUS]?(\d+)x(\d+)")
_SHAPE = re.compile(r"(16|8)x?8x?(\d+)")

# Instructions whose first register is a source, although no address precedes it.
_WITHOUT_RESULT = frozenset(
    [
        "BAR",
        "BRX",
        "CALL",
        "DSETP",
        "FCHK",
        "FSETP",
        "HSETP2",
        "ISETP",
        "JMX",
        "NANOSLEEP",
        "RET",
        "WARPSYNC",
    ]
)
_DOUBLES = frozenset(("DADD", "DFMA", "DMNMX", "DMUL", "DSETP"))
# Bits per element of the operands of matrix instructions, apart from the accumulator.
_MATRIX_BITS = {"HMMA": 16, "IMMA": 8, "QMMA": 8, "OMMA": 4, "DMMA": 64}
_FAR = frozenset(("BRX", "CALL", "LEPC", "RET"))
_JUMPS = frozenset(("BRA", "BRX", "CALL", "EXIT", "RET"))
_MEMORY = ("LD", "ST", "ATOM", "RED", "MATCH")


def find_accesses(instruction: Instruction) -> tuple[int, int]:
    """Return the registers that an instruction reads, and those that it writes, each as a set of bits."""
    values = [each for each in instruction.operands if not _PREDICATE.fullmatch(each)]
    result, *sources = _widths(instruction)
    writes = 0
    if values and instruction.name not in _WITHOUT_RESULT and _RESULT.fullmatch(values[0]):
        writes = _registers(values.pop(0), result)
    reads = 0
    for number, value in enumerate(values):
        reads |= _registers(
            value,
            sources[min(number, len(sources) - 1)],
            ".E." in instruction.opcode + "." and instruction.name != "LDGSTS",
        )
    return reads, writes


def _registers(operand: str, width: int, is_wide: bool = False) -> int:
    """Return the registers that an operand names. In an address, a suffix gives the width."""
    found = 0
    for number, is_pair in _REGISTER.findall(operand):
        count = (2 if is_pair or is_wide else 1) if "[" in operand else width
        found |= ((1 << count) - 1) << int(number)
    return found


def _widths(instruction: Instruction) -> tuple[int, ...]:
    """Return the registers of the result and of each source; the last number is that of all further ones."""
    name, *parts = instruction.opcode.split(".")
    if name.endswith("GMMA"):
        columns = int(parts[0].split("x")[1])
        count = columns // (4 if parts[1] == "F16" else 2)
        return count, 4, count
    if name in _MATRIX_BITS:
        bits = _MATRIX_BITS[name]
        if "TF32" in parts:
            bits = 32
        shape = next(filter(None, map(_SHAPE.fullmatch, parts)))
        rows = int(shape[1])
        depth = int(shape[2])
        accumulator = 64 if name == "DMMA" else 32
        if name != "IMMA" and "F16" in parts:
            accumulator = 16
        count = rows * 8 * accumulator // 1024
        return count, rows * depth * bits // 1024, 8 * depth * bits // 1024, count
    if name in _DOUBLES or (name == "FRND" and "F64" in parts):
        return 2, 2
    if name == "IMAD":
        return 1 + ("WIDE" in parts), 1, 1, 1 + ("WIDE" in parts or "HI" in parts)
    if name in ("F2F", "F2I", "I2F"):
        doubles = [
            part in ("F64", "S64", "U64")
            for part in parts
            if part[0] in "FSU" and part[1:].isdigit()
        ]
        return _conversion(name, parts)
    if name in _FAR:
        return 2, 2
    if name in ("LDTM", "STTM"):
        count = int(parts[-1][1:])
        count *= 2 if "128bit" in instruction.opcode else 4 if "256bit" in instruction.opcode else 1
        return count, count
    if name == "CS2R":
        return 1 if "32" in parts else 2, 1
    if name in ("LDSM", "STSM"):
        count = int(parts[-1]) if parts[-1].isdigit() else 1
        return count, count
    count = 1
    for part in parts:
        if part in ("64", "128", "256"):
            count = int(part) // 32
        elif part in ("F64", "S64", "U64") and name != "SHF":
            count = 2
        elif name.startswith(_MEMORY):
            if vector := _VECTOR.fullmatch(part):
                count = int(vector[1]) * int(vector[2]) // 32
    return count, count


def _conversion(name: str, parts: Sequence[str]) -> tuple[int, int]:
    """F2F names both types, result first; F2I and I2F omit 32-bit integers and floats."""
    types = [part for part in parts if re.fullmatch(r"[FSU](8|16|32|64)", part)]
    widths = [2 if part.endswith("64") else 1 for part in types]
    if name == "F2F":
        return widths[0], widths[1]
    floats = next((w for t, w in zip(types, widths, strict=True) if t[0] == "F"), 1)
    integers = next((w for t, w in zip(types, widths, strict=True) if t[0] != "F"), 1)
    return (integers, floats) if name == "F2I" else (floats, integers)


def find_live(instructions: Sequence[Instruction]) -> list[int]:
    """Return the registers that hold a value at each instruction, as sets of bits.

    They are the registers that it reads or writes, or that later instructions read.
    """
    accesses = [find_accesses(each) for each in instructions]
    successors = _find_successors(instructions)
    calls = dict[int, list[int]]()
    for number, instruction in enumerate(instructions):
        if _is_call(instruction) and instruction.target is not None:
            calls.setdefault(instruction.target, []).append(number)
    starts = sorted(calls)
    returns = [number for number, each in enumerate(instructions) if each.name == "RET"]
    for start in starts:
        reads = _solve(instructions, accesses, successors, {})[start]
        kept = _solve(instructions, accesses, successors, dict.fromkeys(returns, _ALL))[start]
        for call in calls[start]:
            accesses[call] = reads, _ALL & ~kept
    before = _solve(instructions, accesses, successors, {})
    if starts:
        after = {
            start: max((before[call + 1] for call in calls[start]), key=int.bit_count)
            for start in starts
        }
        at_return = {number: after[starts[bisect(starts, number) - 1]] for number in returns}
        before = _solve(instructions, accesses, successors, at_return)
    return [
        kept | writes | _STACK_POINTER for kept, (_, writes) in zip(before, accesses, strict=True)
    ]


def _solve(instructions: Sequence[Instruction], accesses, successors, at_return) -> list[int]:
    """Return the registers that are live before each instruction."""
    before = [0] * len(instructions)
    changed = True
    while changed:
        changed = False
        for number in range(len(instructions) - 1, -1, -1):
            reads, writes = accesses[number]
            kept = at_return.get(number, 0)
            for successor in successors[number]:
                kept |= before[successor]
            if not instructions[number].predicate:
                kept &= ~writes
            kept |= reads
            if kept != before[number]:
                before[number] = kept
                changed = True
    return before


def _find_successors(instructions: Sequence[Instruction]) -> list[list[int]]:
    """Return the instructions that may follow each. A call is followed by the next instruction."""
    following = list[list[int]]()
    for number, instruction in enumerate(instructions):
        jumps = instruction.name in _JUMPS and not _is_call(instruction)
        is_conditional = instruction.predicate or len(instruction.operands) > 1
        following.append([instruction.target] if jumps and instruction.target is not None else [])
        if not jumps or is_conditional:
            following[-1].append(number + 1)
    following[-1] = []
    # The targets of an indirect branch are not in the listing. Nothing else leads to them.
    reached = {0}.union(*following, (each.target for each in instructions))
    unreached = [number for number in range(len(instructions)) if number not in reached]
    for number, instruction in enumerate(instructions):
        if instruction.name == "BRX":
            following[number] += unreached
    return following


def _is_call(instruction: Instruction) -> bool:
    """Return whether it calls a function. A call of a label in the kernel is a jump."""
    return instruction.name == "CALL" and ".L_" not in instruction.operands[-1]


def count_spills(
    instructions: Sequence[Instruction], executed: Sequence[int] | None = None
) -> tuple[LineSpills, ...]:
    """Return the spills of each source line, in the order of the SASS.

    Args:
        executed: number of times that warps execute each instruction in the launch; None if unknown.
    """
    groups = dict[tuple[str, int], list[int]]()
    for number, instruction in enumerate(instructions):
        if instruction.name in ("STL", "LDL") and instruction.location:
            groups.setdefault(instruction.location[0][:2], []).append(number)
    return tuple(
        _add_up(file, line, instructions, numbers, executed)
        for (file, line), numbers in groups.items()
    )


def _add_up(
    file: str,
    line: int,
    instructions: Sequence[Instruction],
    numbers: Sequence[int],
    executed: Sequence[int] | None,
) -> LineSpills:
    widths = {number: _bytes(instructions[number].opcode) for number in numbers}
    stores = [number for number in numbers if instructions[number].name == "STL"]
    moved = None
    if executed is not None:
        moved = sum(_LANES * widths[number] * executed[number] for number in numbers)
    return LineSpills(
        file=file,
        line=line,
        stores=len(stores),
        reloads=len(numbers) - len(stores),
        stored_bytes=sum(widths[number] for number in stores),
        executed=None if executed is None else sum(executed[number] for number in numbers),
        moved_bytes=moved,
    )


def _bytes(opcode: str) -> int:
    return next((_BYTES[part] for part in opcode.split(".") if part in _BYTES), 4)
